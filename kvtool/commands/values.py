"""Values of options and arguments, converted here where that takes one call.

Newer versions of typer build a pydantic schema for each of them; loading pydantic and building the
schemas takes longer than everything that `kvtool size` computes. Parameters of any other kind are
left to typer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kvtool.errors import UsageError

CONVERT: dict[object, tuple[Callable[[Any], Any], str]] = {
    bool: (bool, "true or false"),
    str: (str, "text"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    list[str]: (list, "a list"),
}


def convert_plainly(command: Any) -> None:
    """Gives the parameters of a command and its subcommands plain conversions, where typer would
    build schemas for them."""
    command.get_params = partial(_params, command)
    for inner in getattr(command, "commands", {}).values():
        convert_plainly(inner)


def _params(command: Any, ctx: Any) -> list[Any]:
    """The command's parameters, `--help` included."""
    params: list[Any] = type(command).get_params(command, ctx)
    for param in params:
        kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
        if kind in CONVERT:
            param.process_value = partial(_value, param, *CONVERT[kind])
    return params


def _value(param: Any, convert: Callable[[Any], Any], kind: str, ctx: Any, value: Any) -> Any:
    several = param.multiple or param.nargs == -1
    missing = value is None or (several and not value)
    if missing and param.required:
        return type(param).process_value(param, ctx, value)
    try:
        found = ([] if several else None) if missing else convert(value)
    except ValueError:
        raise UsageError(f"'{value}' is not {kind}", f"see `{ctx.command_path} --help`") from None
    return found if param.callback is None else param.callback(ctx, param, found)
