"""The run: every case through the gate and then on the clock, one result at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from kvtool.benchmark.candidates import Candidate, Inputs, OddChecks, gated
from kvtool.benchmark.cases import Case
from kvtool.benchmark.contenders import Contender
from kvtool.benchmark.environment import l2_bytes, state
from kvtool.benchmark.memory import is_out_of_memory, release
from kvtool.benchmark.records import Row, row, with_ratios
from kvtool.benchmark.timing import Timing, input_sets_needed, measure
from kvtool.roofline import Roof, bytes_moved

if TYPE_CHECKING:
    import torch

CPU_INPUT_SETS = 2
MAX_INPUT_SETS = 256
SLOW_CALL_S = 5e-3
"""A call this long writes more than any cache holds; two input sets are enough for it."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long each contender is sampled on a case, and how many samples are enough."""

    budget_s: float = 0.3
    max_samples: int = 200


@dataclass(frozen=True, slots=True)
class Result:
    """Rows of one case, and what was left out or went wrong, one line each."""

    case: Case
    rows: list[Row]
    left_out: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def run(
    cases: Sequence[Case],
    contenders: Sequence[Contender],
    *,
    device: torch.device,
    roof: Roof,
    effort: Effort,
    facts: Mapping[str, Any] | None = None,
    starting: Callable[[Case], None] = lambda case: None,
) -> Iterator[Result]:
    """The result of each case as it is finished; `facts` (device, versions) go into each row.

    A case that runs out of memory is lost and said so in its result; an interrupt ends the
    run between two results.
    """
    odd = OddChecks(device)
    for case in cases:
        starting(case)
        try:
            yield run_case(case, contenders, odd=odd, roof=roof, effort=effort, facts=facts or {})
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            yield Result(case, [], lost=[f"{case.label}: out of memory, the case is lost"])
        release(device)


def run_case(
    case: Case,
    contenders: Sequence[Contender],
    *,
    odd: OddChecks,
    roof: Roof,
    effort: Effort,
    facts: Mapping[str, Any],
) -> Result:
    """Gate all contenders on one case, time those that passed, and record each one."""
    device = odd.device
    inputs = Inputs(case, device)
    found = gated(case, contenders, inputs, odd)
    before = state(device)
    timings = _timed(
        [c for c in found.candidates if c.verdict.passed], inputs, device=device, effort=effort
    )
    moments = {
        "device_before": asdict(before) if before else None,
        "device_after": asdict(after) if (after := state(device)) else None,
    }
    rows = [
        row(
            case,
            c.contender,
            path=c.prepared.path,
            variant=c.prepared.variant,
            verdict=c.verdict,
            roof=roof,
            timing=timings.get(c.contender.name),
            facts={**facts, **moments, "prepare_s": c.prepare_s},
        )
        for c in found.candidates
    ]
    return Result(case, with_ratios(rows), found.left_out, found.lost)


def _timed(
    candidates: Sequence[Candidate], inputs: Inputs, *, device: torch.device, effort: Effort
) -> dict[str, Timing]:
    if not candidates:
        return {}
    case = inputs.case
    calls = {}
    for candidate in candidates:
        contender = candidate.contender
        name = contender.layouts[case.phase]
        more = range(1, _input_sets(candidate, case, device))
        calls[contender.name] = [
            candidate.prepared.call,
            *(contender.prepare(inputs.layout(i, name)).call for i in more),
        ]
    return measure(calls, device=device, budget_s=effort.budget_s, max_samples=effort.max_samples)


def _input_sets(candidate: Candidate, case: Case, device: torch.device) -> int:
    if device.type != "cuda" or candidate.call_s > SLOW_CALL_S:
        return CPU_INPUT_SETS
    return min(MAX_INPUT_SETS, input_sets_needed(bytes_moved(case.task), l2_bytes(device)))


def gates_passed(rows: Sequence[Row]) -> bool:
    """Whether every row agreed with float64."""
    return all(r["gate"] == "pass" for r in rows)
