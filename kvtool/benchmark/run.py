"""The run: every case through the gate and then on the clock, one result at a time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvtool.benchmark import gate
from kvtool.benchmark.cases import Case
from kvtool.benchmark.contenders import Contender, Prepared
from kvtool.benchmark.environment import l2_bytes, state
from kvtool.benchmark.gate import Verdict
from kvtool.benchmark.inputs import Layout, LayoutName, Tokens, arrange, draw
from kvtool.benchmark.oracle import JUDGED_AS, Judgement, judgement
from kvtool.benchmark.records import Row, row, with_ratios
from kvtool.benchmark.timing import Timing, input_sets_needed, measure
from kvtool.errors import KvtoolError
from kvtool.roofline import Roof, bytes_moved

if TYPE_CHECKING:
    import torch

ODD_LENGTHS: tuple[tuple[int, ...], ...] = ((1,), (17, 17), (129, 129), (63, 111))
"""Context lengths that no tile divides, and one ragged batch; the last two sequences differ."""
ODD_DOC_BLOCKS = 2
ODD_REPEATS = 2
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


@dataclass(slots=True)
class _Candidate:
    contender: Contender
    verdict: Verdict
    prepared: Prepared
    prepare_s: float
    call_s: float


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
    for case in cases:
        starting(case)
        try:
            yield run_case(
                case, contenders, device=device, roof=roof, effort=effort, facts=facts or {}
            )
        except (MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            yield Result(case, [], lost=[f"{case.label}: out of memory, the case is lost"])
        _release(device)


def run_case(
    case: Case,
    contenders: Sequence[Contender],
    *,
    device: torch.device,
    roof: Roof,
    effort: Effort,
    facts: Mapping[str, Any],
) -> Result:
    """Gate all contenders on one case, time those that passed, and record each one."""
    result = Result(case, [])
    running = _able(case, contenders, device, result.left_out)
    inputs = _Inputs(case, device)
    candidates = _gated(case, running, inputs, device, result)
    before = state(device)
    timings = _timed(
        [c for c in candidates if c.verdict.passed], inputs, device=device, effort=effort
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
        for c in candidates
    ]
    return replace(result, rows=with_ratios(rows))


class _Inputs:
    """Input sets of one case, made when they are first asked for."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case, self.device = case, device
        self._layouts: dict[tuple[int, LayoutName], Layout] = {}

    def tokens(self, index: int) -> Tokens:
        case = self.case
        return _draw(
            case, (case.context_tokens,) * case.batch_size, case.query_tokens, self.device, index
        )

    def layout(self, index: int, name: LayoutName) -> Layout:
        if (index, name) not in self._layouts:
            self._layouts[index, name] = arrange(self.tokens(index), name)
        return self._layouts[index, name]


def _draw(
    case: Case, kv_lens: tuple[int, ...], query_tokens: int, device: torch.device, index: int
) -> Tokens:
    heads = case.heads
    return draw(
        kv_lens=kv_lens,
        query_tokens=query_tokens,
        heads=(heads.num_q_heads, heads.num_kv_heads, heads.head_dim),
        dtype=case.dtype,
        kv_dtype=case.kv_dtype,
        block_size=case.block_size,
        doc_tokens=case.doc_tokens,
        causal=case.mask == "causal",
        device=device,
        seed=case.seed + index,
    )


def _able(
    case: Case, contenders: Sequence[Contender], device: torch.device, left_out: list[str]
) -> list[Contender]:
    """Contenders for this case; a line for each one that refuses it or does not fit in memory."""
    able = []
    for contender in contenders:
        if case.phase not in contender.layouts:
            continue
        reason = contender.refuses(case) or _too_large(contender.scratch_bytes(case), device)
        if reason:
            left_out.append(f"{contender.name}, {case.label}: {reason}")
        else:
            able.append(contender)
    return able


def _too_large(scratch_bytes: int, device: torch.device) -> str | None:
    """Whether scores alone would take more than half of the memory that is free."""
    free = _free_bytes(device)
    if scratch_bytes <= free // 2:
        return None
    gib = 1 << 30
    return f"its scores take {scratch_bytes / gib:,.1f} GiB, {free / gib:,.1f} GiB are free"


def _free_bytes(device: torch.device) -> int:
    import os

    import torch

    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _gated(
    case: Case,
    contenders: Sequence[Contender],
    inputs: _Inputs,
    device: torch.device,
    result: Result,
) -> list[_Candidate]:
    judgements: dict[LayoutName, Judgement] = {}
    candidates = []
    for contender in contenders:
        name = contender.layouts[case.phase]
        judged_as = JUDGED_AS.get(name, name)
        if judged_as not in judgements:
            judgements[judged_as] = judgement(inputs.tokens(0), name)
        try:
            candidates.append(
                _gate_one(case, contender, inputs.layout(0, name), judgements[judged_as], device)
            )
        except KvtoolError as error:
            result.left_out.append(f"{contender.name}, {case.label}: {error}")
        except (MemoryError, RuntimeError) as error:
            if _out_of_memory(error):
                result.lost.append(f"{contender.name}, {case.label}: out of memory")
                _release(device)
            elif contender.kernel is None:
                first_line = str(error).strip().splitlines()[0][:120]
                result.left_out.append(f"{contender.name}, {case.label}: {first_line}")
            else:
                raise
    return candidates


def _gate_one(
    case: Case,
    contender: Contender,
    layout: Layout,
    judged: Judgement,
    device: torch.device,
) -> _Candidate:
    """Odd shapes first, then the inputs that will be timed."""
    queries = case.query_tokens
    start = time.perf_counter()
    prepared = contender.prepare(layout)
    prepared.call()
    _synchronize(device)
    prepare_s = time.perf_counter() - start
    verdict = gate.check(_last_rows(prepared, queries), judged.reference, judged.eager, case.dtype)
    call_s = _seconds(prepared, device)
    if verdict.passed:
        faults = _odd_faults(case, contender, device)
        verdict = replace(verdict, faults=faults)
    return _Candidate(contender, verdict, prepared, prepare_s, call_s)


def _odd_faults(case: Case, contender: Contender, device: torch.device) -> tuple[str, ...]:
    """What fails on short, odd and ragged lengths, one line per fault."""
    faults = []
    for index, lens in enumerate(ODD_LENGTHS if contender.odd else ()):
        if len(set(lens)) > 1 and not contender.ragged:
            continue
        queries = min(lens) if case.phase == "prefill" else 1
        small = replace(case, doc_tokens=ODD_DOC_BLOCKS * case.block_size)
        tokens = _draw(small, lens, queries, device, 1000 + index)
        name = contender.layouts[case.phase]
        judged = judgement(tokens, name)
        prepared = contender.prepare(arrange(tokens, name))
        verdict = gate.check(
            _last_rows(prepared, queries),
            judged.reference,
            judged.eager,
            case.dtype,
            rounds_scores=contender.rounds_scores,
            repeats=ODD_REPEATS,
        )
        faults += [f"{fault} at lengths {lens}" for fault in verdict.faults]
    return tuple(faults)


def _last_rows(prepared: Prepared, queries: int) -> Callable[[], torch.Tensor]:
    """The call, cut to the rows that were asked for: code without a cache returns earlier ones."""
    return lambda: prepared.call()[:, -queries:]


def _timed(
    candidates: Sequence[_Candidate], inputs: _Inputs, *, device: torch.device, effort: Effort
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


def _input_sets(candidate: _Candidate, case: Case, device: torch.device) -> int:
    if device.type != "cuda" or candidate.call_s > SLOW_CALL_S:
        return CPU_INPUT_SETS
    return min(MAX_INPUT_SETS, input_sets_needed(bytes_moved(case.task), l2_bytes(device)))


def _seconds(prepared: Prepared, device: torch.device) -> float:
    _synchronize(device)
    start = time.perf_counter()
    prepared.call()
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _release(device: torch.device) -> None:
    """Hand the memory of a finished case back."""
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _out_of_memory(error: BaseException) -> bool:
    import torch

    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        "can't allocate memory" in str(error)
    )


def gates_passed(rows: Sequence[Row]) -> bool:
    """Whether every row agreed with float64."""
    return all(r["gate"] == "pass" for r in rows)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """How many rows there are, how many passed, and the largest relative error."""
    errors = [r["relative_error"] for r in rows if r["relative_error"] is not None]
    return {
        "rows": len(rows),
        "passed": sum(r["gate"] == "pass" for r in rows),
        "largest_relative_error": max(errors, default=None),
    }
