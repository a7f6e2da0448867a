"""Tables and curves of `kvtool simulate`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvtool.device import DeviceSpec
from kvtool.report.record import Report, Row
from kvtool.simulation.answers import devices_needed
from kvtool.simulation.explain import explained
from kvtool.simulation.study import Outcome
from kvtool.units import format_bytes, format_gib
from kvtool.workload.documents import DocumentWorkload

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_MOST_LINES = 24
_WIDE = 8  # columns that fit 80 characters with two spaces between


def report_of(outcome: Outcome, device: DeviceSpec, *, explain: bool = False) -> Report:
    """The outcome as a report: rows, and beside them the knees, the fit and whether all has run.

    device: what knees are counted in, by the memory that software sees.  explain: with formulas.
    """
    beside: dict[str, Any] = {"knees": _knees(outcome, device)}
    if outcome.fit is not None:
        beside["fit"] = asdict(outcome.fit)
    if explain:
        beside["explain"] = explained(outcome)
    warnings = list(outcome.notes)
    if not outcome.complete:
        beside["complete"] = False
        warnings.insert(0, "interrupted: only what had finished is shown")
    inputs = {**outcome.study.inputs, "budgets": list(outcome.plan.budgets)}
    return Report("simulate", inputs, [asdict(row) for row in outcome.rows], warnings, beside)


def _knees(outcome: Outcome, device: DeviceSpec) -> list[Row]:
    found = []
    for knee in outcome.knees:
        row = asdict(knee)
        source = outcome.plan.sources[row.pop("source")]
        row["skew"] = source.skew if isinstance(source, DocumentWorkload) else None
        row["device"] = device.name
        row["device_memory_bytes"] = device.memory_bytes
        row["devices"] = devices_needed(knee.budget_bytes, outcome.study.options.tp, device)
        found.append(row)
    return found


def view(report: Report) -> list[RenderableType]:
    """What a person reads: the workload, a table per exponent, what is meant, the notes."""
    pieces: list[RenderableType] = [*_heading(report)]
    skews = dict.fromkeys(row["skew"] for row in report.results)
    for skew in skews:
        rows = [row for row in report.results if row["skew"] == skew]
        if len(skews) > 1:
            pieces.append(f"\nZipf {skew:g}")
        pieces += _tables(rows, report)
        pieces += _knee_lines(report, skew)
    pieces += _fit_line(report)
    pieces += _definition(report)
    pieces += _formulas(report)
    return pieces + [_note(warning) for warning in report.warnings]


def _note(text: str) -> RenderableType:
    from rich.text import Text

    return Text(f"note: {text}", style="dim")


def _heading(report: Report) -> Iterator[RenderableType]:
    from rich.markup import escape

    asked = report.inputs
    if "about" in asked:
        yield f"{asked['preset']}: {asked['about']}"
    if "trace" in asked:
        name, count = escape(asked["trace"]), asked["requests"]
        yield f"[bold]{name}[/]: {asked['format']}, {count:,} request{'s' if count > 1 else ''}"
    else:
        skews = asked["zipf"] if isinstance(asked["zipf"], list) else [asked["zipf"]]
        cold = f" ({asked['cold']} of them uniform)" if asked["cold"] else ""
        yield (
            f"[bold]Zipf {', '.join(f'{skew:g}' for skew in skews)}[/] over {asked['docs']:,} "
            f"documents of {asked['doc_tokens']} tokens; {asked['docs_per_request']} a "
            f"request{cold}, {asked['order']}, {asked['duplicates']}"
        )
        seeds = f"{asked['seeds']} seeds from" if asked["seeds"] > 1 else "seed"
        runs = f"{seeds} {asked['seed']}, {asked['requests']:,} requests each"
        skipped = f", the first {100 * asked['warmup']:g} % not counted" if asked["warmup"] else ""
        yield runs + skipped
    tp = f", tp {asked['tp']}: bytes per device" if asked["tp"] > 1 else ""
    yield f"{escape(asked['model'])}, {asked['kv_dtype']} cache{tp}"
    if "tail_first" in asked:
        names = ("tail_first", "full_blocks_only", "reserve_last_token", "cache_outputs", "pinned")
        switches = " ".join(f"{name}={str(asked[name]).lower()}" for name in names)
        yield f"blocks of {asked['block_size']:,} tokens, {switches}"
    yield ""


def _tables(rows: list[Row], report: Report) -> Iterator[RenderableType]:
    rules = list(dict.fromkeys(row["reuse"] for row in rows))
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    if report.inputs.get("curve"):
        yield chart(rows)
        yield ""
        rows = _thinned(rows)
    one_target = any(row["target_hit_rate"] is not None for row in rows)
    if len(rules) > 1 and len(policies) == 1 and not one_target:
        yield _by_rule(rows, rules)
    else:
        yield _one_per_line(rows, rules, policies)


def _thinned(rows: list[Row]) -> list[Row]:
    """The rows of about a dozen budgets, evenly taken, first and last included."""
    budgets = sorted({row["budget_bytes"] for row in rows})
    if len(budgets) <= _MOST_LINES:
        return rows
    step = (len(budgets) - 1) / 11
    kept = {budgets[round(i * step)] for i in range(12)}
    return [row for row in rows if row["budget_bytes"] in kept]


Cell = Callable[[dict[str, Row]], str]


def _table(columns: int = 0) -> Table:
    from rich.table import Table

    gap = 2 if columns <= _WIDE else 1
    return Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")


_RATIOS = (("over_prefix", "prefix"), ("over_position_aware", "position-aware"))


def _name(rule: str) -> str:
    return "aware" if rule == "position-aware" else rule


def _by_rule(rows: list[Row], rules: list[str]) -> Table:
    """A line per budget: the rules side by side, then what stands beside the best of them."""
    base = "lazy" if "lazy" in rules else rules[-1]
    ratios = [(key, rule) for key, rule in _RATIOS if rule in rules and rule != base]
    asked: list[tuple[str, Cell, str | None]] = [
        ("docs", lambda here: _count(here[base]["budget_entries"]), "budget_entries"),
        *((_name(rule), _rate_of(rule, bold=rule == base), None) for rule in rules),
        ("±", _widest, "hit_rate_low"),
        ("theory", lambda here: _percent(here[base]["analytic_hit_rate"]), "analytic_hit_rate"),
        ("paper", lambda here: _percent(here[base]["paper_hit_rate"]), "paper_hit_rate"),
        *((f"×{_name(rule)}", _ratio_of(base, key), None) for key, rule in ratios),
    ]
    shown = [
        (header, cell)
        for header, cell, key in asked
        if key is None or any(row[key] is not None for row in rows if row["reuse"] == base)
    ]
    table = _table(len(shown) + 1)
    for header in ("GiB", *(header for header, _ in shown)):
        table.add_column(header, justify="right", no_wrap=True)
    for budget in dict.fromkeys(row["budget_bytes"] for row in rows):
        here = {row["reuse"]: row for row in rows if row["budget_bytes"] == budget}
        if base in here:
            table.add_row(format_gib(budget), *(cell(here) for _, cell in shown))
    return table


def _rate_of(rule: str, *, bold: bool) -> Cell:
    def cell(here: dict[str, Row]) -> str:
        text = _percent(here[rule]["hit_rate"]) if rule in here else ""
        return f"[bold]{text}[/]" if bold else text

    return cell


def _ratio_of(base: str, key: str) -> Cell:
    return lambda here: "" if here[base][key] is None else f"{here[base][key]:.2f}"


def _widest(here: dict[str, Row]) -> str:
    """Half the widest 95 % interval of a line."""
    halves = [
        50 * (row["hit_rate_high"] - row["hit_rate_low"])
        for row in here.values()
        if row["hit_rate_low"] is not None
    ]
    return f"{max(halves):.2f}" if halves else ""


def _one_per_line(rows: list[Row], rules: list[str], policies: list[str]) -> Table:
    """A line per row: several policies, one rule, or budgets found for a target."""
    table = _table()
    entries = any(row["budget_entries"] is not None for row in rows)
    generated = any(row["seeds"] is not None for row in rows)
    theory = any(row["analytic_hit_rate"] is not None for row in rows)
    if len(rules) > 1:
        table.add_column("reuse")
    if len(policies) > 1:
        table.add_column("policy")
    table.add_column("GiB", justify="right")
    if entries:
        table.add_column("docs" if generated else "blocks", justify="right")
    table.add_column("hit %", justify="right")
    table.add_column("tokens %", justify="right")
    table.add_column("per request %", justify="right")
    if theory:
        table.add_column("theory", justify="right")
    for row in rows:
        cells = [_name(row["reuse"])] if len(rules) > 1 else []
        cells += [row["policy"]] if len(policies) > 1 else []
        budget = row["budget_bytes"]
        cells.append("unlimited" if budget is None else format_gib(budget))
        if entries:
            cells.append(_count(row["budget_entries"]))
        cells += [
            _rate(row, bold=True),
            _percent(row["token_hit_rate"]),
            _percent(row["request_hit_rate"]),
        ]
        if theory:
            cells.append(_percent(row["analytic_hit_rate"]))
        table.add_row(*cells)
    return table


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def _rate(row: Row | None, *, bold: bool) -> str:
    """Per cent, with half the 95 % interval where there is one."""
    if row is None:
        return ""
    text = _percent(row["hit_rate"])
    if row["hit_rate_low"] is not None:
        text += f" ±{50 * (row['hit_rate_high'] - row['hit_rate_low']):.2f}"
    return f"[bold]{text}[/]" if bold else text


def _knee_lines(report: Report, skew: float | None) -> Iterator[RenderableType]:
    from rich.markup import escape

    knees = [knee for knee in report.beside["knees"] if knee["skew"] == skew]
    if knees:
        device, memory = escape(knees[0]["device"]), format_gib(knees[0]["device_memory_bytes"])
        yield f"\n90 % of the unlimited hit rate needs ({device}: {memory} GiB)"
    for knee in knees:
        devices = f"{knee['devices']:,} device{'s' if knee['devices'] > 1 else ''}"
        unlimited = f"{100 * knee['unlimited_hit_rate']:.2f} %"
        yield (
            f"  {knee['reuse']}: {format_bytes(knee['budget_bytes'])} = {devices}, "
            f"unlimited {unlimited}"
        )


def _fit_line(report: Report) -> Iterator[RenderableType]:
    fit = report.beside.get("fit")
    if fit:
        yield (
            f"\nZipf exponent {fit['skew']:.3f} ± {1.96 * fit['error']:.3f} over the "
            f"{fit['ranks']:,} ids seen 10 times or more; largest gap to that law "
            f"{fit['distance']:.3f} of the requests"
        )


def _definition(report: Report) -> Iterator[RenderableType]:
    asked = report.inputs
    what = "blocks" if "tail_first" in asked else "documents"
    order = (
        "a whole request is looked up before it is touched"
        if asked["lookup"] == "request"
        else "looked up and touched one at a time"
    )
    policy = ", ".join(asked["policy"])
    rules = asked["reuse"]
    over = "; × lazy over that rule" if "lazy" in rules and len(rules) > 1 else ""
    yield f"\nhit rate in % = {what} found / looked up ({order}), {policy}{over}"
    yield "a bound on reuse, not a speed-up"


def _formulas(report: Report) -> Iterator[RenderableType]:
    """The lines of `--explain`: what, formula, numbers."""
    from rich.padding import Padding

    for place, line in enumerate(report.beside.get("explain", ())):
        if place == 0:
            yield "\n[bold]how it comes about[/]"
        yield Padding(f"{line['what']}: {line['formula']}", (0, 0, 0, 2), expand=False)
        if line["numbers"]:
            yield Padding(f"= {line['numbers']}", (0, 0, 0, 4), expand=False)


def chart(rows: list[Row], width: int = 66, height: int = 14) -> str:
    """Hit rate over budget (logarithmic) in characters, a letter for each rule or policy."""
    budgets = [row["budget_bytes"] for row in rows if row["budget_bytes"]]
    if not budgets:
        return ""
    low, high = math.log(min(budgets)), math.log(max(budgets))
    span = high - low or 1.0
    top = max(row["hit_rate"] for row in rows) or 1.0
    several = len({row["policy"] for row in rows}) > 1
    names = list(dict.fromkeys(row["policy"] if several else row["reuse"] for row in rows))
    marks = {name: _mark(names, place) for place, name in enumerate(names)}
    cells = [[" "] * width for _ in range(height)]
    for row in rows:
        if row["budget_bytes"]:
            column = round((math.log(row["budget_bytes"]) - low) / span * (width - 1))
            line = height - 1 - round(row["hit_rate"] / top * (height - 1))
            cells[line][column] = marks[row["policy"] if several else row["reuse"]]
    lines = []
    for place, line_cells in enumerate(cells):
        share = top * (height - 1 - place) / (height - 1)
        label = f"{100 * share:6.1f} %" if place % 4 == 0 or place == height - 1 else " " * 8
        lines.append(f"{label} |{''.join(line_cells).rstrip()}")
    axis = format_bytes(min(budgets)), format_bytes(max(budgets))
    lines.append(" " * 9 + "+" + "-" * width)
    lines.append(" " * 10 + axis[0] + axis[1].rjust(width - len(axis[0])))
    lines.append(" " * 10 + ", ".join(f"{mark} {name}" for name, mark in marks.items()))
    return "\n".join(lines)


def _mark(names: list[str], place: int) -> str:
    """The first letter that no earlier name has taken."""
    taken = [_mark(names, earlier) for earlier in range(place)]
    return next((letter for letter in names[place] if letter not in taken), str(place))
