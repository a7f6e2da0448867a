"""What theory expects of a row: the closed form that fits its rule, and where it should not fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvtool.simulation.plan import Plan
from kvtool.theory import (
    KING_MAX_DOCS,
    che_time,
    king_hit_rate,
    lazy_hit_rate,
    request_rates,
    static_optimum,
)
from kvtool.workload.documents import DocumentWorkload
from kvtool.workload.zipf import Zipf

_SAMPLED_LENGTHS = 200_000


@dataclass(frozen=True, slots=True)
class Expected:
    """A closed form beside a simulated hit rate.

    hit_rate: its value, None where there is none.  method: `che`, `king` or `eq3` (the static
    closed form of arXiv 2606.04302).  static_hit_rate: the mass of the most popular that fit, the
    most that a policy without the future can reach with one document a request.
    """

    hit_rate: float | None
    method: str | None
    static_hit_rate: float | None


NOTHING = Expected(None, None, None)


def mean_document_bytes(plan: Plan, workload: DocumentWorkload) -> float:
    """Mean bytes of a document of the pool, padding included."""
    fixed = workload.lengths.fixed
    if fixed is not None:
        tokens = np.array([fixed], dtype=np.int64)
    else:
        rng = np.random.default_rng((plan.seed, 0))
        tokens = workload.lengths.draw(min(workload.docs, _SAMPLED_LENGTHS), rng)
    padded, count = np.unique(-(-tokens // plan.page_tokens), return_counts=True)
    sizes = plan.entry_bytes(padded * plan.page_tokens)
    return float((sizes * count).sum() / count.sum())


def expected(plan: Plan, source: int, rule: str, policy: str, budget_bytes: int) -> Expected:
    """The closed form for one rule at one budget; nothing for traces and for policies but LRU."""
    workload = plan.sources[source]
    if not isinstance(workload, DocumentWorkload) or policy != "lru":
        return NOTHING
    documents = budget_bytes / mean_document_bytes(plan, workload)
    if workload.lengths.fixed is not None:
        documents = float(int(documents + 1e-9))
    if rule == "two-copy":
        documents = documents / 2
        if workload.lengths.fixed is not None:
            documents = float(int(documents))
    probabilities = Zipf(workload.docs, workload.skew).probabilities()
    alone = workload.docs_per_request == 1 and not workload.cold
    if rule in ("lazy", "two-copy") or alone:
        static = static_optimum(probabilities, documents) if alone else None
        if documents < 1:
            return Expected(0.0, "che", static)
        if alone and workload.docs <= KING_MAX_DOCS and workload.lengths.fixed is not None:
            return Expected(king_hit_rate(probabilities, int(documents)), "king", static)
        rate = lazy_hit_rate(workload, documents, whole_request=plan.whole_request)
        return Expected(rate, "che" if rate is not None else None, static)
    if rule == "position-aware" and workload.duplicates == "distinct" and not workload.cold:
        held = documents // workload.docs_per_request
        return Expected(static_optimum(probabilities, held), "eq3", None)
    return NOTHING


def doubts(plan: Plan, source: int, budget_bytes: int) -> list[str]:
    """Why Che's approximation and a run should not agree at this budget, if anything speaks so."""
    workload = plan.sources[source]
    if not isinstance(workload, DocumentWorkload):
        return []
    found = []
    documents = budget_bytes / mean_document_bytes(plan, workload)
    if workload.lengths.fixed is None:
        found.append("documents differ in length, Che takes them at their mean")
    if 1 <= documents < 2 * workload.docs_per_request:
        found.append("the cache holds less than two prompts, Che is for many entries")
    rates = request_rates(workload)
    if documents < workload.docs and rates is not None:
        time = che_time(rates.rates, documents, rates.counts)
        if time > plan.warmup * workload.requests:
            found.append("the warm-up does not fill the cache, Che is for a full one")
    return found
