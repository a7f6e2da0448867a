"""Tables of `kvtool bench`: the device and its roof, one table per case, then what to know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from kvtool.report.record import Report, Row
from kvtool.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

CASE_FIELDS = (
    "phase",
    "batch_size",
    "context_tokens",
    "num_q_heads",
    "num_kv_heads",
    "head_dim",
    "dtype",
    "kv_dtype",
    "block_size",
    "mask",
)


def view(report: Report) -> list[RenderableType]:
    """A finished run as a person reads it."""
    rows = report.results
    pieces = [*header(report.beside["environment"])]
    if rows and rows[0]["phase"] == "generate":
        pieces += [generate_table(rows)]
    else:
        pieces += [
            case_table(list(group)) for _, group in groupby(rows, key=lambda row: _case_key(row))
        ]
    return pieces + footer(report)


def _case_key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in CASE_FIELDS)


def header(environment: Mapping[str, Any]) -> list[RenderableType]:
    """Device, versions and the ceilings of this run."""
    lines = [f"[bold]{environment['device']}[/]  {_software(environment)}"]
    ceilings = environment.get("ceilings")
    if ceilings:
        lines.append(
            f"measured now: copy {_rate(ceilings['copy_bytes_per_s'], 'B/s')}, "
            f"read {_rate(ceilings['read_bytes_per_s'], 'B/s')}, "
            f"{ceilings['dtype']} matmul {_rate(ceilings['matmul_flops_per_s'], 'FLOP/s')}"
        )
    state = environment.get("before")
    if state:
        reasons = ", ".join(state["throttle_reasons"]) or "none"
        lines.append(
            f"SM clock {state['sm_clock_hz'] / 1e6:,.0f} MHz, {state['power_w']:,.0f} W, "
            f"{state['temperature_c']} C at the start; throttled by: {reasons}"
        )
    return [*lines, ""]


def _software(environment: Mapping[str, Any]) -> str:
    versions = environment["versions"]
    named = [f"{name} {versions[name]}" for name in ("torch", "triton") if name in versions]
    if environment["driver"]:
        named.insert(0, f"driver {environment['driver']}")
    if environment["device_type"] == "cpu":
        named.append(f"{environment['threads']} threads")
    return ", ".join(named)


def case_table(rows: Sequence[Row]) -> RenderableType:
    """One case: a line per implementation, and under it the gates that failed."""
    from rich.console import Group
    from rich.table import Table

    scale, unit = _time_unit(rows)
    compute = rows[0]["roof"] == "compute"
    rate = "flops_per_s" if compute else "bytes_per_s"
    rate_scale, rate_unit = _rate_unit([row[rate] for row in rows if row[rate]], compute)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("implementation")
    table.add_column("path")
    for name in (unit, "p20-p80", rate_unit, "roof", f"vs {_baseline(rows)}", "error"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*_cells(row, scale, rate, rate_scale))
    faults = [
        f"[bold]{row['implementation']} failed its gate[/]: {fault}"
        for row in rows
        for fault in row["faults"]
    ]
    return Group(_case_title(rows[0]), table, *faults, "")


def _case_title(row: Row) -> str:
    cache = "" if row["kv_dtype"] == row["dtype"] else f", {row['kv_dtype']} cache"
    limit = "arithmetic" if row["roof"] == "compute" else "memory"
    decode = row["phase"] == "decode"
    last = f"blocks of {row['block_size']}" if decode else f"{row['mask']} mask"
    return (
        f"[bold]{row['phase']}[/], batch {row['batch_size']:,}, {row['context_tokens']:,} tokens, "
        f"{row['num_q_heads']}/{row['num_kv_heads']} heads of {row['head_dim']}, "
        f"{row['dtype']}{cache}, {last}\n"
        f"{format_bytes(row['bytes'])}, {row['flops'] / 1e9:,.4g} GFLOP; {limit} allows no less "
        f"than {row['floor_s'] * 1e6:,.4g} us"
    )


def _cells(row: Row, scale: float, rate: str, rate_scale: float) -> list[str]:
    error = "-" if row["max_error"] is None else f"{row['max_error']:.1e}"
    if row["median_s"] is None:
        return [row["implementation"], row["path"], "FAIL", "", "", "", "", error]
    low, high = row["p20_s"] * scale, row["p80_s"] * scale
    return [
        row["implementation"],
        row["path"],
        _short(row["median_s"] * scale),
        f"{_short(low)}-{_short(high)}",
        f"{row[rate] / rate_scale:,.3g}"
        if row[rate] / rate_scale < 1000
        else f"{row[rate] / rate_scale:,.0f}",
        f"{row['roof_fraction']:.0%}" if row["roof_fraction"] >= 0.01 else "<1%",
        "" if row["speedup"] is None else f"{_ratio(row['speedup'])}x",
        error,
    ]


def _short(value: float) -> str:
    """Four figures at most after the point, as many as help: 1.234, 12.34, 123.4, 1,234."""
    digits = max(0, 3 - len(str(int(value))) + 1) if value >= 1 else 3
    return f"{value:,.{digits}f}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _baseline(rows: Iterable[Row]) -> str:
    names = {row["baseline"] for row in rows if row["baseline"]}
    return names.pop() if len(names) == 1 else "baseline"


def _time_unit(rows: Iterable[Row]) -> tuple[float, str]:
    times = [row["median_s"] for row in rows if row["median_s"]]
    return (1e3, "ms") if times and min(times) >= 0.01 else (1e6, "us")


def _rate_unit(rates: Sequence[float], compute: bool) -> tuple[float, str]:
    suffix = "FLOP/s" if compute else "B/s"
    return (1e12, f"T{suffix}") if rates and max(rates) >= 1e12 else (1e9, f"G{suffix}")


def _rate(value: float, suffix: str) -> str:
    scale, unit = (1e12, "T") if value >= 1e12 else (1e9, "G")
    return f"{value / scale:,.3g} {unit}{suffix}"


def generate_table(rows: Sequence[Row]) -> RenderableType:
    """Tokens per second, exact counts, and how attention's time grew."""
    from rich.console import Group
    from rich.table import Table

    first = rows[0]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("attention")
    for name in ("tokens/s", "seconds", "of it here", "query rows", "scores", "grows as"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*_generate_cells(row))
    title = (
        f"[bold]generate[/] {first['tokens']:,} tokens: {first['layers']} layers, hidden "
        f"{first['hidden_size']:,}, {first['num_q_heads']}/{first['num_kv_heads']} heads of "
        f"{first['head_dim']}, {first['dtype']}, random weights"
    )
    counted = "rows and scores are counted per layer and query head"
    return Group(title, table, f"[dim]{counted}[/]", "")


def _generate_cells(row: Row) -> list[str]:
    counts = [f"{row['query_rows']:,}", f"{row['scores']:,}"]
    if row["total_s"] is None:
        return [row["implementation"], "FAIL", "", "", *counts, ""]
    exponent = row["attention_exponent"]
    return [
        row["implementation"],
        f"{row['tokens_per_s']:,.1f}",
        f"{row['total_s']:,.2f}",
        f"{row['attention_s']:,.2f}",
        *counts,
        "fixed cost" if exponent is None else f"n^{exponent:.1f}",
    ]


def footer(report: Report) -> list[RenderableType]:
    """Notes under the tables, dimmed."""
    from rich.text import Text

    return [Text(f"note: {warning}", style="dim") for warning in report.warnings]


def listing(
    kernels: Mapping[str, Sequence[str]], peers: Sequence[tuple[str, str, str]]
) -> list[RenderableType]:
    """What `--list` prints: kernels with their variants, peers with what they are and lack."""
    table = _plain_table("kernel", "variants")
    for name, variants in kernels.items():
        table.add_row(name, ", ".join(variants))
    others = _plain_table("peer", "what it is", "here")
    for peer in peers:
        others.add_row(*peer)
    return [table, "", others]


def _plain_table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    return table
