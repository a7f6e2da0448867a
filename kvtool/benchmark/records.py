"""One row per contender and case, under the names that `kvtool bench --json` promises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvtool.benchmark.cases import Case
from kvtool.benchmark.contenders import Contender
from kvtool.benchmark.gate import Verdict
from kvtool.benchmark.timing import WIDE_SPREAD, Timing
from kvtool.roofline import Roof, bound, bytes_moved, floor_seconds, flops

Row = dict[str, Any]
IDENTITY = (
    "implementation",
    "phase",
    "batch_size",
    "query_tokens",
    "context_tokens",
    "num_q_heads",
    "num_kv_heads",
    "head_dim",
    "dtype",
    "kv_dtype",
    "block_size",
    "document_tokens",
    "mask",
)
"""What two rows must share to be compared across files."""


def row(
    case: Case,
    contender: Contender,
    *,
    path: str,
    variant: str | None,
    verdict: Verdict,
    roof: Roof,
    timing: Timing | None,
    facts: Mapping[str, Any],
) -> Row:
    """The record of one contender on one case; no `timing` leaves every speed None.

    `facts` are further fields that the run knows (device, versions, clocks, preparation time).
    """
    task = case.task
    fields: Row = {
        "kernel": contender.kernel,
        "variant": variant,
        "implementation": contender.name,
        "path": path,
        "phase": case.phase,
        "batch_size": case.batch_size,
        "query_tokens": case.query_tokens,
        "context_tokens": case.context_tokens,
        "num_q_heads": case.heads.num_q_heads,
        "num_kv_heads": case.heads.num_kv_heads,
        "head_dim": case.heads.head_dim,
        "dtype": case.dtype,
        "kv_dtype": case.kv_dtype,
        "block_size": case.block_size,
        "document_tokens": case.doc_tokens if contender.kernel == "lazy" else None,
        "mask": case.mask,
        "flops": flops(task),
        "bytes": bytes_moved(task),
        "executed_flops": contender.executed_flops(case, variant),
        "roof": bound(task, roof),
        "floor_s": floor_seconds(task, roof),
        "max_error": verdict.max_error,
        "allowed_error": verdict.allowed_error,
        "relative_error": verdict.relative_error,
        "differing_repeats": verdict.differing_repeats,
        "gate": verdict.gate,
        "faults": list(verdict.faults),
        "seed": case.seed,
        "baseline": None,
        "speedup": None,
    }
    return fields | _speeds(case, timing, floor_seconds(task, roof)) | dict(facts)


def _speeds(case: Case, timing: Timing | None, floor_s: float) -> Row:
    names = ("median_s", "p20_s", "p80_s", "flops_per_s", "bytes_per_s", "roof_fraction")
    if timing is None:
        return dict.fromkeys(names) | {
            "samples_s": [],
            "timer": None,
            "calls_per_sample": None,
            "input_sets": None,
        }
    task, median = case.task, timing.median_s
    return {
        "median_s": median,
        "p20_s": timing.p20_s,
        "p80_s": timing.p80_s,
        "samples_s": list(timing.samples_s),
        "flops_per_s": flops(task) / median,
        "bytes_per_s": bytes_moved(task) / median,
        "roof_fraction": floor_s / median,
        "timer": timing.timer,
        "calls_per_sample": timing.calls_per_sample,
        "input_sets": timing.input_sets,
    }


def with_ratios(rows: Sequence[Row], preferred: Sequence[str] = ("flash", "cached")) -> list[Row]:
    """Rows of one case with `speedup` against the first preferred implementation that has a speed.

    Without one of those the first row that has a speed is the baseline.
    """
    timed = {r["implementation"]: r for r in rows if r["median_s"]}
    base = next((timed[name] for name in (*preferred, *timed) if name in timed), None)
    if base is None:
        return list(rows)
    return [_against(r, base["implementation"], base["median_s"]) for r in rows]


def with_baseline(
    rows: Iterable[Row], earlier: Iterable[Mapping[str, Any]], name: str
) -> list[Row]:
    """Rows with `speedup` against the row of an earlier result that has the same identity.

    Rows without a counterpart lose their baseline: they say None, not a ratio to something else.
    """
    known = {_identity(r): r["median_s"] for r in earlier if r.get("median_s")}
    return [
        _against(r, name, known[_identity(r)])
        if _identity(r) in known
        else r | {"baseline": None, "speedup": None}
        for r in rows
    ]


def _against(r: Row, name: str, baseline_s: float) -> Row:
    speedup = baseline_s / r["median_s"] if r["median_s"] else None
    return r | {"baseline": name, "speedup": speedup}


def _identity(r: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(r.get(field) for field in IDENTITY)


def advice(rows: Iterable[Row]) -> list[str]:
    """One line when samples spread wide, with the widest row and the option that would help."""
    rows = [r for r in rows if r.get("p80_s")]
    spreads = [(r["p80_s"] - r["p20_s"]) / r["median_s"] for r in rows]
    wide = sum(spread > WIDE_SPREAD for spread in spreads)
    if not wide:
        return []
    widest = rows[spreads.index(max(spreads))]
    return [
        f"the samples of {wide} of {len(rows)} rows spread wide (p20 to p80 over the median: up to "
        f"{max(spreads):.0%}, {widest['implementation']} in {widest['phase']}); "
        "try --samples 500, or a device that nothing else uses"
    ]


def remarks(rows: Iterable[Row]) -> list[str]:
    """A line for each row whose repeats agree with float64 and not with each other's bits."""
    return [
        f"{r['implementation']}, {r['phase']} batch {r['batch_size']} context "
        f"{r['context_tokens']}: {r['differing_repeats']} repeats of the same input differ in "
        "their bits, all within the bounds"
        for r in rows
        if r["differing_repeats"] and r["gate"] == "pass"
    ]
