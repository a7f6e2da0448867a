"""The command line: finds the verb, runs it, turns failures into two lines and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from kvtool.commands.values import convert_plainly
from kvtool.errors import KvtoolError, UsageError, did_you_mean
from kvtool.version import __version__

# Verb -> the module that has a function of that name or, for a group, a Typer `app`.
COMMANDS = {
    "size": "kvtool.commands.size",
    "audit": "kvtool.commands.audit",
    "simulate": "kvtool.commands.simulate",
    "bench": "kvtool.commands.bench",
    "models": "kvtool.commands.models",
    "devices": "kvtool.commands.devices",
}

INTERRUPTED = 130
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

_SETTINGS = {"help_option_names": ["-h", "--help"]}
# Typer carries click, or its own copy of it; the base of all complaints about arguments is this.
_ArgumentError: type[typer.BadParameter] = next(
    c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException"
)


def build(verbs: Sequence[str]) -> typer.Typer:
    """The application with those verbs; a verb's module is imported only here."""
    app = typer.Typer(
        name="kvtool",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings=_SETTINGS,
        help="Plan and measure LLM inference: cache bytes, hit rates, attention kernels.",
        epilog="`kvtool size llama-3-70b --ctx 32k` is a good start.",
    )

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)
        ] = False,
    ) -> None:
        if version:
            typer.echo(f"kvtool {__version__}")
            raise typer.Exit

    root_info = app.registered_callback
    if root_info is not None:
        root_info.invoke_without_command = True
    for verb in verbs:
        module = import_module(COMMANDS[verb])
        if hasattr(module, "app"):
            app.add_typer(module.app, name=verb)
        else:
            app.command(name=verb, epilog=getattr(module, "EXAMPLES", None))(getattr(module, verb))
    return app


def main() -> None:
    """Runs the command line and exits with its code."""
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Runs `args` and returns the exit code; failures are printed on stderr."""
    try:
        return _run(list(args))
    except KvtoolError as error:
        if os.environ.get("KVTOOL_DEBUG") == "1":
            raise
        complain(error)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno not in NO_SPACE or os.environ.get("KVTOOL_DEBUG") == "1":
            raise
        complain(KvtoolError(f"cannot write the output: {error.strerror}", "check the disk"))
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(args: list[str]) -> int:
    first = next((arg for arg in args if not arg.startswith("-")), None)
    completing = any(name.startswith("_KVTOOL_COMPLETE") for name in os.environ)
    if first is not None and first not in COMMANDS and not completing:
        raise UsageError(
            f"no command named '{first}'",
            did_you_mean(first, COMMANDS, f"commands: {', '.join(COMMANDS)}"),
        )
    verbs = [first] if first is not None and not completing else list(COMMANDS)
    if not args:
        args = ["--help"]
    try:
        command = typer.main.get_command(build(verbs))
        convert_plainly(command)
        code = command(args, standalone_mode=False, prog_name="kvtool")
    except _ArgumentError as error:
        where = getattr(getattr(error, "ctx", None), "command_path", "kvtool")
        message = error.format_message().splitlines()[0].rstrip(".")
        raise UsageError(message[:1].lower() + message[1:], f"see `{where} --help`") from None
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def complain(error: KvtoolError) -> None:
    """One `error:` line per fault, five at most, then the hint."""
    for fault in error.faults[:5]:
        print(f"error: {_printable(fault)}", file=sys.stderr)
    if len(error.faults) > 5:
        print(f"error: .. and {len(error.faults) - 5} more", file=sys.stderr)
    print(f"hint: {_printable(error.hint)}", file=sys.stderr)


def _printable(text: str) -> str:
    """`text` with control characters spelled out: files and arguments may hold any."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
