"""Contenders on one case: who can run it, on which inputs, and who passes the gate."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvtool.benchmark import gate
from kvtool.benchmark.cases import Case
from kvtool.benchmark.contenders import Contender, Prepared
from kvtool.benchmark.gate import Verdict
from kvtool.benchmark.inputs import Layout, LayoutName, Tokens, arrange, draw
from kvtool.benchmark.memory import free_bytes, is_out_of_memory, release, synchronize
from kvtool.benchmark.oracle import JUDGED_AS, Judgement, judgement
from kvtool.errors import KvtoolError

if TYPE_CHECKING:
    import torch

ODD_LENGTHS: tuple[tuple[int, ...], ...] = ((1,), (17, 17), (129, 129), (63, 111))
"""Context lengths that no tile divides, and one ragged batch."""
ODD_DOC_BLOCKS = 2
ODD_REPEATS = 2
ODD_SEED = 1000


@dataclass(frozen=True, slots=True)
class Candidate:
    """A contender that ran, what the gate says, and how long it took: the first call with
    everything that happens once, and one call after it."""

    contender: Contender
    verdict: Verdict
    prepared: Prepared
    prepare_s: float
    call_s: float


@dataclass(slots=True)
class Field:
    """Those who ran a case, and a line for each one that did not: by choice, or out of memory."""

    candidates: list[Candidate] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


class OddChecks:
    """Faults on short, odd and ragged lengths, found once for what does not depend on the case's
    batch and context."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._known: dict[tuple[Any, ...], tuple[str, ...]] = {}

    def faults(self, case: Case, contender: Contender) -> tuple[str, ...]:
        key = (
            contender.name,
            case.phase,
            case.heads,
            case.dtype,
            case.kv_dtype,
            case.block_size,
            case.mask,
        )
        if key not in self._known:
            found = [_odd_faults(case, contender, i, self.device) for i in range(len(ODD_LENGTHS))]
            self._known[key] = tuple(fault for faults in found for fault in faults)
        return self._known[key]


class Inputs:
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


def gated(case: Case, contenders: Sequence[Contender], inputs: Inputs, odd: OddChecks) -> Field:
    """Every contender that can run the case, judged on the inputs that will be timed."""
    device = inputs.device
    found = Field()
    judgements: dict[LayoutName, Judgement] = {}
    for contender in _able(case, contenders, device, found.left_out):
        name = contender.layouts[case.phase]
        judged_as = JUDGED_AS.get(name, name)
        if judged_as not in judgements:
            judgements[judged_as] = judgement(inputs.tokens(0), name)
        try:
            found.candidates.append(
                _gate_one(case, contender, inputs.layout(0, name), judgements[judged_as], odd)
            )
        except KvtoolError as error:
            found.left_out.append(f"{contender.name}, {case.label}: {error}")
        except (MemoryError, RuntimeError) as error:
            if is_out_of_memory(error):
                found.lost.append(f"{contender.name}, {case.label}: out of memory")
                release(device)
            elif contender.kernel is None:
                first_line = str(error).strip().splitlines()[0][:120]
                found.left_out.append(f"{contender.name}, {case.label}: {first_line}")
            else:
                raise
    return found


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
    free = free_bytes(device)
    if scratch_bytes <= free // 2:
        return None
    gib = 1 << 30
    return f"its scores take {scratch_bytes / gib:,.1f} GiB, {free / gib:,.1f} GiB are free"


def _gate_one(
    case: Case, contender: Contender, layout: Layout, judged: Judgement, odd: OddChecks
) -> Candidate:
    """The inputs that will be timed first, then short, odd and ragged ones."""
    start = time.perf_counter()
    prepared = contender.prepare(layout)
    prepared.call()
    synchronize(odd.device)
    prepare_s = time.perf_counter() - start
    verdict = _verdict(case, contender, prepared, judged, case.query_tokens, gate.REPEATS)
    start = time.perf_counter()
    prepared.call()
    synchronize(odd.device)
    call_s = time.perf_counter() - start
    if verdict.passed:
        verdict = replace(verdict, faults=odd.faults(case, contender))
    return Candidate(contender, verdict, prepared, prepare_s, call_s)


def _odd_faults(
    case: Case, contender: Contender, index: int, device: torch.device
) -> tuple[str, ...]:
    """What fails on one entry of `ODD_LENGTHS`.

    A peer that refuses a length is not blamed for it: cuDNN takes no sequence of one token.
    """
    lens = ODD_LENGTHS[index]
    if not contender.odd or (len(set(lens)) > 1 and not contender.ragged):
        return ()
    queries = min(lens) if case.phase == "prefill" else 1
    small = replace(case, doc_tokens=ODD_DOC_BLOCKS * case.block_size)
    tokens = _draw(small, lens, queries, device, ODD_SEED + index)
    name = contender.layouts[case.phase]
    try:
        prepared = contender.prepare(arrange(tokens, name))
        prepared.call()
    except RuntimeError:
        if contender.kernel is not None:
            raise
        return ()
    verdict = _verdict(case, contender, prepared, judgement(tokens, name), queries, ODD_REPEATS)
    return tuple(f"{fault} at lengths {lens}" for fault in verdict.faults)


def _verdict(
    case: Case,
    contender: Contender,
    prepared: Prepared,
    judged: Judgement,
    queries: int,
    repeats: int,
) -> Verdict:
    return gate.check(
        _last_rows(prepared, queries),
        judged.reference,
        judged.eager,
        case.dtype,
        rounds_scores=contender.rounds_scores,
        same_bits=contender.kernel is not None,
        repeats=repeats,
    )


def _last_rows(prepared: Prepared, queries: int) -> Callable[[], torch.Tensor]:
    """The call, cut to the rows that were asked for: code without a cache returns earlier ones."""
    return lambda: prepared.call()[:, -queries:]
