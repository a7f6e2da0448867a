"""Plain lists: models and devices, a line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvtool.report.record import Report
from kvtool.units import format_count, format_gib

if TYPE_CHECKING:
    from rich.console import RenderableType

# Column -> header, and how its value is shown.
_SHOWN: dict[str, tuple[str, Callable[[object], str]]] = {
    "model_type": ("type", str),
    "attention": ("attention", lambda v: " ".join(v)),  # type: ignore[arg-type]
    "bytes_per_token": ("B/token", lambda v: f"{v:,}"),
    "context": ("context", lambda v: f"{v:,}"),
    "params": ("params", lambda v: format_count(v)),  # type: ignore[arg-type]
    "memory_usable_bytes": ("usable GiB", lambda v: format_gib(v)),  # type: ignore[arg-type]
    "memory_nominal_bytes": ("nominal GiB", lambda v: format_gib(v)),  # type: ignore[arg-type]
    "bandwidth_bytes_per_s": ("GB/s", lambda v: f"{v / 1e9:,.0f}"),  # type: ignore[operator]
    "bf16_flops_per_s": ("bf16 TFLOP/s", lambda v: f"{v / 1e12:,.0f}"),  # type: ignore[operator]
    "fp8_flops_per_s": ("fp8 TFLOP/s", lambda v: f"{v / 1e12:,.0f}"),  # type: ignore[operator]
}
_NAMES = {"model", "device"}
_TEXT = {"model_type", "attention", *_NAMES}


def view(columns: Sequence[str], title: str) -> Callable[[Report], list[RenderableType]]:
    """A view that shows those columns of the rows, and `title` below them."""

    def show(report: Report) -> list[RenderableType]:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for name in columns:
            header = _SHOWN.get(name, (name, str))[0]
            if name in _TEXT:
                table.add_column(header, overflow="fold", no_wrap=name in _NAMES)
            else:
                table.add_column(header, justify="right", no_wrap=True)
        for row in report.results:
            table.add_row(*(_cell(name, row[name]) for name in columns))
        return [table, f"[dim]{title}[/]"]

    return show


def _cell(name: str, value: object) -> str:
    return "" if value is None else _SHOWN.get(name, (name, str))[1](value)
