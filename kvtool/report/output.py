"""Where results go: a format for each reader, a file written whole or not at all."""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kvtool.errors import KvtoolError, UsageError, did_you_mean
from kvtool.report.record import Report

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

FORMATS = ("table", "json", "jsonl", "csv", "md")
_SUFFIXES = {".json": "json", ".jsonl": "jsonl", ".csv": "csv", ".md": "md", ".txt": "table"}

# Columns of a file and a pipe, and the least: a narrower terminal breaks lines, no figure is cut.
WIDTH = 80

View = Callable[[Report], "list[RenderableType]"]


def choose_format(fmt: str | None, as_json: bool, output: str | None) -> str:
    """The format asked for: `--json`, `--format`, else the suffix of the file, else a table."""
    if as_json:
        fmt = "json"
    if fmt is None:
        suffix = Path(output).suffix.lower() if output and output != "-" else ""
        return _SUFFIXES.get(suffix, "table")
    if fmt not in FORMATS:
        known = f"formats: {', '.join(FORMATS)}"
        raise UsageError(f"no format named '{fmt}'", did_you_mean(fmt, FORMATS, known))
    return fmt


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A Rich console on stdout or stderr; without a terminal it is 80 columns wide, uncoloured."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    if stream is None:
        raise KvtoolError("there is no standard output", "leave it open, or use --output FILE")
    if width is None and not stream.isatty() and "COLUMNS" not in os.environ:
        width = WIDTH
    made = Console(file=stream, width=width, highlight=False, soft_wrap=False)
    if width is None and made.width < WIDTH:
        made.width = WIDTH
    return made


def text_of(report: Report, fmt: str, view: View) -> str:
    """`report` as text in that format (a table is drawn 80 columns wide, without colour)."""
    if fmt == "table":
        from rich.console import Console

        text = io.StringIO()
        out = Console(width=WIDTH, highlight=False, file=text)
        for piece in view(report):
            out.print(piece)
        return text.getvalue()
    writers: dict[str, Callable[[], str]] = {
        "json": lambda: report.to_json() + "\n",
        "jsonl": report.to_jsonl,
        "csv": report.to_csv,
        "md": report.to_markdown,
    }
    return writers[fmt]()


def show(report: Report, fmt: str, view: View, output: str | None = None) -> None:
    """Prints `report` on stdout, or writes it to the file `output`; warnings of a table are part
    of it, those of the other formats stand in the JSON and on stderr."""
    if output and output != "-":
        write(text_of(report, fmt, view), Path(output))
    elif fmt == "table":
        out = console()
        for piece in view(report):
            out.print(piece)
    else:
        sys.stdout.write(text_of(report, fmt, view))
        sys.stdout.flush()


def write(text: str, path: Path) -> None:
    """Writes `text` to `path` whole or not at all; an existing file stays until the new one is
    complete. Links are followed; a device or a pipe is written to, not replaced. KvtoolError when
    the disk or the folder does not take it."""
    path = path.expanduser()
    try:
        path = path.resolve()
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, 0o666 & ~_umask())  # noqa: PTH101
            os.replace(name, path)  # noqa: PTH105
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "its links lead in a circle"
        raise KvtoolError(
            f"cannot write '{path}': {reason}", "choose another place with --output"
        ) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
