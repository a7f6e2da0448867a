"""Tables of `kvtool size`: one row as a sheet, several as a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kvtool.report.record import Report, Row
from kvtool.report.size_engines import advice_lines, compares_engines, engines_view
from kvtool.units import format_bytes, format_count, format_gib

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def view(report: Report) -> list[RenderableType]:
    """What a person reads: the figures, the formulas if asked for, then the notes."""
    rows = report.results
    pieces: list[RenderableType]
    if len(rows) == 1:
        pieces = [_sheet(rows[0])]
    else:
        pieces = [*(engines_view if compares_engines(rows) else _comparison)(report)]
    for row in rows:
        if "explain" in row:
            pieces.append(_formulas(row, named=len(rows) > 1))
    return pieces + [_note(warning) for warning in report.warnings]


def _note(text: str) -> RenderableType:
    from rich.text import Text

    return Text(f"note: {text}", style="dim")


def _grid(*justify: str) -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for side in justify:
        table.add_column(justify=side, overflow="fold")  # type: ignore[arg-type]
    return table


def _engine(row: Row) -> str:
    return f"{row['engine']} {row['engine_version'] or ''}".strip()


def _title(row: Row) -> str:
    parts = [f"{row['context_tokens']:,} tokens"]
    if row["batch_size"] > 1:
        parts.append(f"{row['batch_size']:,} sequences")
    parts.append(f"{_format(row)} cache")
    devices = row["tp"] * row["pp"]
    if devices > 1:
        ranks = [f"{k} {row[k]}" for k in ("tp", "pp", "ep", "dcp") if row[k] > 1]
        parts.append(f"{', '.join(ranks)}: figures per device")
    if row["engine"] != "logical":
        parts.append(_engine(row))
    return f"[bold]{row['model']}[/]: {', '.join(parts)}"


def _format(row: Row) -> str:
    return row["kv_dtype"] or f"{row['k_dtype']}/{row['v_dtype']}"


def _sheet(row: Row) -> RenderableType:
    """One combination: cache, weights and, where there is memory to fit into, what fits."""
    from rich.console import Group
    from rich.padding import Padding

    table = _grid("left", "right", "right")
    for label, value, answer in _cache_lines(row):
        style = "bold" if answer else ""
        table.add_row(label, f"{value:,}", format_bytes(value), style=style)
    for label, value in _component_lines(row):
        table.add_row(f"  {label}", f"{value:,}", format_bytes(value), style="dim")
    if row["weight_params"] is not None:
        _weight_lines(table, row)
    pieces: list[RenderableType] = [_title(row), Padding(table, (1, 0, 0, 2), expand=False)]
    facts = [*_facts(row)]
    if facts:
        grid = _grid("left", "left")
        for label, text in facts:
            grid.add_row(label, text)
        pieces.append(Padding(grid, (1, 0, 0, 2), expand=False))
    return Group(*pieces, "")


def _cache_lines(row: Row) -> Iterator[tuple[str, int, bool]]:
    yield "KV cache of one sequence, bytes", row["sequence_bytes"], row["batch_size"] == 1
    if row["engine"] != "logical":
        yield "reserved for one request", row["request_bytes"], False
    if row["batch_size"] > 1:
        yield f"of {row['batch_size']:,} sequences", row["cache_bytes"], True
    if row["cluster_bytes"] != row["cache_bytes"]:
        yield "over all devices", row["cluster_bytes"], False
    yield "next token adds", row["bytes_per_token"], False
    if row["growing_bytes_per_token"] != row["bytes_per_token"]:
        yield "in the long run, per token", row["growing_bytes_per_token"], False
    if row["fixed_bytes"]:
        yield "does not grow", row["fixed_bytes"], False


def _component_lines(row: Row) -> Iterator[tuple[str, int]]:
    parts = row["components"]
    if len(parts) < 2:
        return
    for part in parts:
        tokens = f", {part['tokens']:,} tokens" if part["tokens"] else ""
        yield f"{part['layers']} {part['kind']}{tokens}", part["bytes"]


def _weight_lines(table: Table, row: Row) -> None:
    label = f"weights, {format_count(row['weight_params'])} parameters"
    if row["active_params"] != row["weight_params"]:
        label += f" ({format_count(row['active_params'])} active)"
    if row["weight_bytes"] is None:
        table.add_row(label, "?", "")
    else:
        table.add_row(label, f"{row['weight_bytes']:,}", format_bytes(row["weight_bytes"]))


def _facts(row: Row) -> Iterator[tuple[str, str]]:
    """Sentences below the figures: comparison with other attention, fit, limits."""
    mha, mqa = row["mha_sequence_bytes"], row["mqa_sequence_bytes"]
    if mha is not None and mha != row["sequence_bytes"]:
        text = format_bytes(mha)
        if mqa not in (None, row["sequence_bytes"]):
            text += f"; with a single one {format_bytes(mqa)}"
        yield "with a KV head per query head", text
    elif mqa is not None and mqa != row["sequence_bytes"]:
        yield "with a single KV head", format_bytes(mqa)
    if row["fits"] is not None:
        yield from _fit(row)
    for text in advice_lines(row):
        yield "advice", text


def _fit(row: Row) -> Iterator[tuple[str, str]]:
    devices = row["tp"] * row["pp"]
    text = "[bold]yes[/]" if row["fits"] else "[bold]no[/]"
    text += f", on {devices} devices" if devices > 1 else ""
    if not row["fits"] and row["missing_bytes"]:
        text += f": {format_bytes(row['missing_bytes'])} are missing" + (
            " on each" if devices > 1 else ""
        )
    yield "fits", text
    text = _ranged(row, "pool_bytes", format_bytes)
    if row["engine"] == "logical":
        text += ", activations not counted"
    yield "memory for the cache", text
    if row["num_blocks"] is not None:
        unit = "1 token" if row["block_size"] == 1 else f"{row['block_size']:,} tokens"
        yield "blocks", f"{_ranged(row, 'num_blocks', _plain)} of {unit}"
    if row["pool_tokens"] is not None:
        yield "tokens in the pool", _ranged(row, "pool_tokens", _plain)
    if row["max_concurrency"] is not None:
        yield "such sequences at once", f"{row['max_concurrency']:,.2f}"
    context = row["max_context_tokens"]
    known = row["model_context_tokens"]
    limit = "no bound" if context is None else f"{context:,} tokens"
    yield "largest context", limit + (f" (the model: {known:,})" if known else "")
    if row["max_batch_size"] is not None:
        yield "largest batch", f"{row['max_batch_size']:,}"


def _plain(value: int) -> str:
    return f"{value:,}"


def _ranged(row: Row, name: str, show: Callable[[int], str]) -> str:
    """A figure, and the range it is only known to lie in."""
    text = show(row[name])
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    return text if low is None or high is None else f"{text} ({show(low)} to {show(high)})"


def _comparison(report: Report) -> Iterator[RenderableType]:
    """Several combinations, a line each; columns that say the same everywhere stand above."""
    from rich.table import Table

    rows = report.results
    constant, columns = _split(rows)
    if constant:
        yield ", ".join(constant)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header, _ in columns:
        named = header in ("model", "engine")
        left = named or header == "cache"
        table.add_column(header, justify="left" if left else "right", no_wrap=named)
    for row in rows:
        table.add_row(*(cell(row) for _, cell in columns))
    yield table


Column = tuple[str, Callable[[Row], str]]

_ASKED: tuple[tuple[str, Callable[[Row], str], Callable[[str], str]], ...] = (
    ("model", lambda r: r["model"], lambda v: v),
    ("engine", _engine, lambda v: v),
    ("context", lambda r: f"{r['context_tokens']:,}", lambda v: f"{v} tokens"),
    ("batch", lambda r: f"{r['batch_size']:,}", lambda v: "" if v == "1" else f"{v} sequences"),
    ("cache", lambda r: _format(r), lambda v: f"{v} cache"),
    ("tp", lambda r: str(r["tp"]), lambda v: "" if v == "1" else f"tp {v}: figures per device"),
)


def _split(rows: list[Row]) -> tuple[list[str], list[Column]]:
    constant: list[str] = []
    columns: list[Column] = []
    for header, cell, said in _ASKED:
        values = {cell(row) for row in rows}
        if len(values) > 1:
            columns.append((header, cell))
        elif (text := said(values.pop())) and text != "logical":
            constant.append(text)
    reserved = any(row["engine"] != "logical" for row in rows)
    alone = "engine" not in {header for header, _ in columns}
    if alone:
        columns.append(("B/token", lambda r: f"{r['bytes_per_token']:,}"))
        columns.append(("sequence GiB", lambda r: format_gib(r["sequence_bytes"])))
    if reserved:
        columns.append(("request GiB", lambda r: format_gib(r["request_bytes"])))
    if reserved and alone:
        columns.append(("block", lambda r: _number_or(r["block_size"])))
    if any(row["batch_size"] > 1 for row in rows):
        columns.append(("cache GiB", lambda r: format_gib(r["cache_bytes"])))
    weighed = len({row["weight_bytes"] for row in rows}) > 1 or rows[0]["fits"] is not None
    if weighed and alone:
        columns.append(("weights GiB", lambda r: _gib_or(r["weight_bytes"])))
    if any(row["fits"] is not None for row in rows):
        if reserved:
            columns.append(("pool tokens", lambda r: _number_or(r["pool_tokens"])))
        columns.append(("max batch", lambda r: _number_or(r["max_batch_size"])))
        columns.append(("fits", lambda r: {True: "yes", False: "no", None: "?"}[r["fits"]]))
    return constant, columns


def _gib_or(value: int | None) -> str:
    return "?" if value is None else format_gib(value)


def _number_or(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _formulas(row: Row, *, named: bool) -> RenderableType:
    """The lines of `--explain`: formula, numbers, result, source."""
    from rich.console import Group
    from rich.padding import Padding

    what = f"{row['model']} at {row['context_tokens']:,}, {_engine(row)}," if named else "it"
    head = f"[bold]how {what} comes about[/]"
    pieces: list[Any] = [head]
    for line in row["explain"]:
        value = line["value"]
        text = f"{line['what']}: {line['formula']}"
        if line["source"]:
            text += f" [dim]({line['source']})[/]"
        numbers = f"= {line['numbers']} " if line["numbers"] else ""
        pieces += [
            Padding(text, (0, 0, 0, 2), expand=False),
            Padding(f"{numbers}= {value:,}", (0, 0, 0, 4), expand=False),
        ]
    return Group(*pieces, "")
