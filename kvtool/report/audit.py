"""The table of `kvtool audit`: a start at a time, figures with their verdicts, then the reasons."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from kvtool.report.record import Report, Row
from kvtool.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

COUNTED = ("blocks", "cpu_blocks", "tokens", "cells", "swa_cells", "estimated_max_model_len",
           "attention_block", "padding_layers")  # fmt: skip
STYLES = {"differ": "bold", "unknown": "dim"}


def view(report: Report) -> list[RenderableType]:
    """What a person reads: the starts with their figures, then how many lines were of use."""
    from rich.text import Text

    pieces: list[RenderableType] = []
    for _, rows in groupby(report.results, key=lambda row: row["start"]):
        pieces += [*_start(list(rows)), ""]
    pieces.append(Text(_summary(report)))
    return pieces + [Text(f"note: {warning}", style="dim") for warning in report.warnings]


def _start(rows: list[Row]) -> list[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    first = rows[0]
    title = " ".join(filter(None, (first["engine"], first["engine_version"])))
    heading = Text(f"{title}: {first['model'] or 'model not named'}", style="bold")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    ranks = len({row["rank"] for row in rows}) > 1
    for name in ("figure", *(("rank",) if ranks else ()), "verdict"):
        table.add_column(name, overflow="fold")
    for name in ("printed", "predicted", "off by"):
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        cells = [_name(row), *((row["rank"] or "",) if ranks else ()), row["verdict"]]
        cells += [_value(row, row["printed"]), _value(row, row["predicted"]), _off(row)]
        table.add_row(*map(Text, cells), style=STYLES.get(row["verdict"], ""))
    return [heading, table, *_reasons(rows)]


def _reasons(rows: list[Row]) -> list[RenderableType]:
    """Why a figure is not simply right; the same reason once."""
    from rich.padding import Padding
    from rich.text import Text

    said: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["verdict"] != "agree" and row["why"]:
            names = said.setdefault((row["verdict"], row["why"]), [])
            if row["figure"] not in names:
                names.append(row["figure"])
    return [
        Padding(Text(f"{', '.join(names)}: {verdict}: {why}", style="dim"), (0, 0, 0, 2))
        for (verdict, why), names in said.items()
    ]


def _name(row: Row) -> str:
    about = row["about"]
    layers = f" ({about['layers']} layers)" if "layers" in about else ""
    return f"{row['figure']}{layers}"


def _value(row: Row, value: int | float | None) -> str:
    if value is None:
        return ""
    if row["figure"] == "concurrency":
        return f"{value:,.2f}"
    return f"{value:,}" if row["figure"] in COUNTED else format_bytes(value)


def _off(row: Row) -> str:
    """The relative difference; nothing where rounding hides it."""
    if row["relative"] is None or not row["difference"]:
        return ""
    share = f"{100 * row['relative']:+.2f} %"
    return "" if share in ("+0.00 %", "-0.00 %") else share


def _summary(report: Report) -> str:
    verdicts, log = report.beside["verdicts"], report.beside["log"]
    counts = ", ".join(f"{count} {name}" for name, count in verdicts.items() if count)
    total = len(report.results)
    lines = f"{log['lines']:,} lines read, {log['used']:,} used"
    if log["not_used"]:
        lines += f", {log['not_used']:,} recognised without use"
    if log["cut"]:
        lines += f", {log['cut']:,} cut"
    return f"{total} figures: {counts}\n{lines}" if total else lines
