"""Engines side by side: one line each, then in words why they differ and what would help.

Every figure and every sentence comes from the rows; nothing is computed here but differences of
figures that stand in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kvtool.report.record import Report, Row
from kvtool.units import format_bytes, format_gib

if TYPE_CHECKING:
    from rich.console import RenderableType

# Reasons without bytes of a request that say why pools hold more or less.
ABOUT_POOLS = (
    "fixed_split",
    "equal_shares",
    "intercept",
    "raised_block",
    "unified_page",
    "replicated_rows",
    "replicated_heads",
)


def compares_engines(rows: list[Row]) -> bool:
    """Whether the rows differ in their engine alone."""
    same = {(row["model"], row["context_tokens"], row["batch_size"], row["tp"]) for row in rows}
    names = {_name(row) for row in rows}
    return len(rows) > 1 and len(same) == 1 and len(names) == len(rows)


def engines_view(report: Report) -> Iterator[RenderableType]:
    """The table, the explanations below it, the advice."""
    yield _title(report)
    yield _table(report.results)
    yield from _section("why requests differ from the logical bytes", _request_lines(report))
    if any(row["pool_bytes"] is not None for row in report.results):
        yield from _section("where the memory goes, GiB of a device", _memory_lines(report))
    yield from _section("advice", _advice_lines(report.results))


def advice_lines(row: Row) -> list[str]:
    """A row's advice: the sentence, and the option where there is one."""
    found = []
    for advice in row.get("advice") or ():
        option = f" (--engine-opt {advice['option']})" if advice["option"] else ""
        found.append(advice["text"] + option)
    return found


def _name(row: Row) -> str:
    return f"{row['engine']} {row['engine_version'] or ''}".strip()


def _title(report: Report) -> str:
    row, inputs = report.results[0], report.inputs
    parts = [f"{row['context_tokens']:,} tokens, {format_bytes(row['sequence_bytes'])} of cache"]
    if row["batch_size"] > 1:
        parts.append(f"{row['batch_size']:,} sequences")
    devices = row["tp"] * row["pp"]
    if devices > 1:
        ranks = [f"{k} {row[k]}" for k in ("tp", "pp", "ep", "dcp") if row[k] > 1]
        parts.append(f"{', '.join(ranks)}: figures per device")
    if inputs.get("gpu"):
        memory = format_bytes(inputs["gpu_memory_bytes"])
        parts.append(f"{inputs['gpu']} of {memory}")
    return f"[bold]{row['model']}[/]: {', '.join(parts)}"


Column = tuple[str, Callable[[Row], str]]


def _table(rows: list[Row]) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    columns = [*_columns(rows)]
    for header, _ in columns:
        side = "left" if header == "engine" else "right"
        table.add_column(header, justify=side, no_wrap="\n" not in header)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(cell(row) for _, cell in columns))
    return table


def _columns(rows: list[Row]) -> Iterator[Column]:
    yield "engine", _name
    yield "request\nGiB", lambda row: _gib(row["request_bytes"])
    if any(row["pool_bytes"] is not None for row in rows):
        yield "pool\nGiB", lambda row: _gib(row["pool_bytes"])
        yield "pool\ntokens", lambda row: _count(row["pool_tokens"])
        yield _ranges(rows)
        yield "at\nonce", lambda row: _decimal(row["max_concurrency"])
        yield "fits", lambda row: {True: "yes", False: "no", None: "?"}[row["fits"]]
        return
    if rows[0]["batch_size"] > 1:
        yield "all\nGiB", lambda row: _gib(row["cache_bytes"])
    yield "of the\nlogical", lambda row: f"{row['request_bytes'] / row['sequence_bytes']:.2f}x"
    yield "block\ntokens", lambda row: _count(row["block_size"])
    yield "cache", lambda row: row["kv_dtype"] or f"{row['k_dtype']}/{row['v_dtype']}"


def _gib(value: int | None) -> str:
    """Two decimals, more for small figures: columns are compared, exact bytes are in JSON."""
    if value is None:
        return ""
    gib = value / (1 << 30)
    return f"{gib:.2f}" if gib >= 0.1 else format_gib(value)


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _decimal(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def _ranges(rows: list[Row]) -> Column:
    """The range of the tokens: its ends, or in per cent where the ends would not fit the line."""
    if max(row.get("pool_tokens_high") or 0 for row in rows) < 1_000_000:
        return "known to lie in", lambda row: _between(row, _count)
    return "give or take", lambda row: _between(
        row, lambda end: f"{end / row['pool_tokens'] - 1:+.0%}" if row["pool_tokens"] else ""
    )


def _between(row: Row, show: Callable[[int], str]) -> str:
    low, high = row.get("pool_tokens_low"), row.get("pool_tokens_high")
    return "" if low is None or high is None else f"{show(low)} to {show(high)}"


def _section(title: str, lines: Iterator[tuple[str, str]]) -> Iterator[RenderableType]:
    """A heading and, under each engine's name, its lines; nothing without lines."""
    from rich.padding import Padding
    from rich.table import Table

    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    last, count = "", 0
    for name, text in lines:
        grid.add_row("" if name == last else name, text)
        last, count = name, count + 1
    if count:
        yield Padding(f"[bold]{title}[/]", (1, 0, 0, 0), expand=False)
        yield Padding(grid, (0, 0, 0, 2), expand=False)


def _request_lines(report: Report) -> Iterator[tuple[str, str]]:
    logical = next((r["kv_dtype"] for r in report.results if r["engine"] == "logical"), None)
    for row in report.results:
        if row["engine"] == "logical":
            continue
        if logical and row["kv_dtype"] != logical:
            yield row["engine"], f"its cache is {row['kv_dtype'] or 'of two types'}"
        found = [reason for reason in row["reasons"] if reason["bytes"]]
        for reason in found:
            sign = "+" if reason["bytes"] > 0 else "-"
            yield row["engine"], f"{sign}{format_bytes(abs(reason['bytes']))}: {reason['text']}"
        if not found:
            yield row["engine"], "exactly the logical bytes"


def _memory_lines(report: Report) -> Iterator[tuple[str, str]]:
    """The device's memory, part by part, and what pools follow besides."""
    total = report.inputs.get("gpu_memory_bytes")
    for row in report.results:
        terms = [(term["name"], term["bytes"]) for term in row.get("terms") or ()]
        if not terms and row["engine"] == "logical" and row["weight_bytes"] is not None:
            terms = [("weights", row["weight_bytes"])]
        if terms and total and row["pool_bytes"] is not None:
            terms.append(("pool", row["pool_bytes"]))
            rest = total - sum(size for _, size in terms)
            if rest > 0:
                terms.append(("not used", rest))
            parts = ", ".join(f"{name} {size / (1 << 30):.2f}" for name, size in terms)
            yield row["engine"], parts
        for reason in row.get("reasons") or ():
            if reason["name"] in ABOUT_POOLS:
                yield row["engine"], reason["text"]


def _advice_lines(rows: list[Row]) -> Iterator[tuple[str, str]]:
    for row in rows:
        for text in advice_lines(row):
            yield row["engine"], text
