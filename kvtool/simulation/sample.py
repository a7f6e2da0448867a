"""One sample: the requests of one seed, or a trace, under reuse rules and a policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvtool.curve import HitCurve, bytes_needed, hit_curve
from kvtool.errors import KvtoolError
from kvtool.policy.replay import replay, unbroken
from kvtool.reuse import Accesses, BlockRules, block_accesses, document_accesses, touch_order
from kvtool.units import format_bytes
from kvtool.workload.documents import DocumentWorkload, draw_requests
from kvtool.workload.requests import (
    BlockRequests,
    DocumentRequests,
    Ints,
    by_position,
    request_of_access,
)

_MOST_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class Rates:
    """What was found: of keys, of prompt tokens, and on average over requests of their tokens."""

    hit_rate: float
    token_hit_rate: float
    request_hit_rate: float


@dataclass(frozen=True, slots=True)
class Job:
    """One unit of work, independent of all others, that a worker can be sent.

    source: what to draw from with `seed`, or the requests of a trace.  rules: reuse rules, all on
    the same requests.  budgets: bytes, for policies that need one run each; LRU gives its whole
    curve and runs only budgets below the largest entry.  whole_request: a request is looked up
    before it is touched.  warmup: the share of requests, from the start, that do not count.
    entry_bytes: bytes of entries from their token counts.  page_tokens: documents are padded to
    whole pages.  block_rules: the engine's switches on block traces.
    """

    source: DocumentWorkload | DocumentRequests | BlockRequests
    seed: tuple[int, ...]
    rules: tuple[str, ...]
    policy: str
    budgets: tuple[int, ...]
    whole_request: bool
    warmup: float
    entry_bytes: Callable[[Ints], Ints]
    page_tokens: int
    block_rules: BlockRules


@dataclass(frozen=True, slots=True)
class Sample:
    """The outcome of one rule and policy in a job.

    curve: LRU's hits at every budget from `largest_bytes` up; None for other policies.
    rates: at single budgets.  lookups, requests: those that count.
    """

    rule: str
    policy: str
    seed: tuple[int, ...]
    curve: HitCurve | None
    rates: dict[int, Rates]
    lookups: int
    requests: int
    largest_bytes: int

    def at(self, budget_bytes: int) -> Rates | None:
        """The rates at a budget, None where this sample has none."""
        if budget_bytes in self.rates:
            return self.rates[budget_bytes]
        if self.curve is None or (self.curve.lookups and budget_bytes < self.largest_bytes):
            return None
        return Rates(*self.curve.at(budget_bytes))


def run(job: Job) -> list[Sample]:
    """The samples of a job, one per rule."""
    source = job.source
    if isinstance(source, DocumentWorkload):
        source = draw_requests(source, job.seed)
    return [_run_rule(rule, source, job) for rule in job.rules]


def accesses_of(rule: str, source: DocumentRequests | BlockRequests, job: Job) -> Accesses:
    """What a cache sees of the requests under a rule."""
    if isinstance(source, DocumentRequests):
        return document_accesses(rule, source, job.entry_bytes, job.page_tokens)
    block_bytes = int(job.entry_bytes(np.array([source.block_size], dtype=np.int64))[0])
    return block_accesses(source, job.block_rules, block_bytes, alone=not job.whole_request)


def _run_rule(rule: str, source: DocumentRequests | BlockRequests, job: Job) -> Sample:
    accesses = accesses_of(rule, source, job)
    if accesses.largest * len(accesses.keys) > _MOST_BYTES:
        raise KvtoolError(
            f"{len(accesses.keys):,} entries of up to {format_bytes(accesses.largest)} are more "
            "bytes than can be counted",
            "use shorter documents or fewer requests",
        )
    requests = len(accesses.starts) - 1
    first = int(job.warmup * requests)
    curve, alone = None, job.budgets
    if job.policy == "lru":
        curve = lru_curve(accesses, whole_request=job.whole_request, first=first)
        equal = isinstance(accesses.sizes, int)
        alone = tuple(b for b in job.budgets if b < accesses.largest) if not equal else ()
    rates = {
        budget: replay_rates(
            job.policy, accesses, budget, whole_request=job.whole_request, first=first
        )
        for budget in alone
    }
    return Sample(
        rule=rule,
        policy=job.policy,
        seed=job.seed,
        curve=curve,
        rates=rates,
        lookups=int(accesses.lookups[first:].sum()),
        requests=requests - first,
        largest_bytes=0 if isinstance(accesses.sizes, int) else accesses.largest,
    )


def working_set_bytes(accesses: Accesses) -> int:
    """Bytes of all keys, each once."""
    unique, first = np.unique(accesses.keys, return_index=True)
    if isinstance(accesses.sizes, int):
        return len(unique) * accesses.sizes
    return int(accesses.sizes[first].sum())


def lru_curve(accesses: Accesses, *, whole_request: bool, first: int = 0) -> HitCurve:
    """LRU's hits at every budget, counted from request `first` on.

    Exact for budgets that hold the largest entry.
    """
    order = touch_order(accesses)
    sizes = accesses.sizes if isinstance(accesses.sizes, int) else accesses.sizes[order]
    starts = accesses.starts if whole_request else None
    needed = bytes_needed(accesses.keys[order], sizes, starts)[order]
    if accesses.unbroken and not accesses.tail_first:
        needed = _running_maximum(needed, accesses.starts)
    request = request_of_access(accesses.starts)
    counts = accesses.can_hit & (request >= first)
    return hit_curve(
        needed[counts],
        accesses.tokens[counts],
        request[counts] - first,
        accesses.request_tokens[first:],
        int(accesses.lookups[first:].sum()),
        accesses.sizes if isinstance(accesses.sizes, int) else 1,
    )


def _running_maximum(needed: Ints, starts: Ints) -> Ints:
    """The largest value so far within each request: an unbroken run needs all before it.

    Touched tail first, the chain of a prefix needs ever more bytes by itself and this is not used.
    """
    running = needed.copy()
    for slot, here in enumerate(by_position(starts)):
        if slot:
            running[here] = np.maximum(running[here], running[here - 1])
    return running


def replay_rates(
    policy: str, accesses: Accesses, budget: int, *, whole_request: bool, first: int = 0
) -> Rates:
    """The rates of a policy at one budget, counted from request `first` on."""
    found = replay(policy, accesses, budget, whole_request=whole_request) & accesses.can_hit
    if accesses.unbroken:
        found = unbroken(accesses, found)
    request = request_of_access(accesses.starts)
    hit = found & (request >= first)
    lookups = int(accesses.lookups[first:].sum())
    request_tokens = accesses.request_tokens[first:]
    saved = np.bincount(
        request[hit] - first, weights=accesses.tokens[hit], minlength=len(request_tokens)
    )
    if not lookups:
        return Rates(0.0, 0.0, 0.0)
    return Rates(
        int(hit.sum()) / lookups,
        int(saved.sum()) / int(request_tokens.sum()),
        float((saved / np.maximum(request_tokens, 1)).mean()),
    )
