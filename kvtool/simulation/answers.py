"""Answers of a sweep: rows at budgets, budgets for a target, the knee of each curve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvtool.device import DeviceSpec
from kvtool.simulation.expected import expected, mean_document_bytes
from kvtool.simulation.plan import Plan
from kvtool.simulation.sweep import Group, mean_interval
from kvtool.workload.documents import DocumentWorkload
from kvtool.workload.requests import BlockRequests, DocumentRequests

KNEE = 0.9


@dataclass(frozen=True, slots=True)
class Row:
    """One rule under one policy at one budget; rates lie in [0, 1].

    hit_rate: documents or blocks found / looked up, those behind a miss included.  token_hit_rate:
    the same in prompt tokens.  request_hit_rate: mean over requests of the token ratio.
    hit_rate_low, hit_rate_high: 95 % over seeds.  lookups, requests: those that count, over all
    seeds.  over_prefix, over_position_aware: ratio to that rule's hit rate at the same budget.
    unlimited_hit_rate: of a cache that never evicts.
    """

    reuse: str
    policy: str
    budget_bytes: int | None
    budget_tokens: int | None
    budget_entries: int | None
    hit_rate: float
    token_hit_rate: float
    request_hit_rate: float
    hit_rate_low: float | None
    hit_rate_high: float | None
    unlimited_hit_rate: float | None
    analytic_hit_rate: float | None
    analytic_method: str | None
    static_hit_rate: float | None
    over_prefix: float | None
    over_position_aware: float | None
    lookups: int
    requests: int
    skew: float | None
    docs: int | None
    docs_per_request: int | None
    seed: int | None
    seeds: int | None
    target_hit_rate: float | None = None
    paper_hit_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Knee:
    """The smallest budget with `KNEE` of the unlimited hit rate, under LRU."""

    source: int
    reuse: str
    unlimited_hit_rate: float
    budget_bytes: int


def devices_needed(budget_bytes: int, tp: int, device: DeviceSpec) -> int:
    """The fewest devices whose memory holds the cache of all `tp` ranks, weights apart."""
    return -(-budget_bytes * tp // device.memory_bytes)


def budget_entries(plan: Plan, source: int, budget_bytes: int) -> int | None:
    """Documents or blocks that fit into a budget; None where they differ in bytes."""
    size = entry_bytes(plan, source)
    return budget_bytes // size if size else None


def entry_bytes(plan: Plan, source: int) -> int | None:
    """Bytes of one document or block, None where documents differ."""
    workload = plan.sources[source]
    if isinstance(workload, BlockRequests):
        return int(plan.entry_bytes(np.array([workload.block_size], dtype=np.int64))[0])
    if isinstance(workload, DocumentWorkload) and workload.lengths.fixed is not None:
        return round(mean_document_bytes(plan, workload))
    return None


def _budget_tokens(plan: Plan, source: int, budget_bytes: int) -> int:
    """Prompt tokens that a budget holds, whole entries only where these are equal."""
    workload = plan.sources[source]
    size = entry_bytes(plan, source)
    if isinstance(workload, BlockRequests):
        return budget_bytes // (size or 1) * workload.block_size
    if isinstance(workload, DocumentWorkload):
        fixed = workload.lengths.fixed
        if fixed is not None and size:
            return budget_bytes // size * fixed
        mean = workload.lengths.draw(100_000, np.random.default_rng(plan.seed)).mean()
        return int(budget_bytes / mean_document_bytes(plan, workload) * float(mean))
    padded = -(-workload.tokens // plan.page_tokens) * plan.page_tokens
    distinct, count = np.unique(padded, return_counts=True)
    total = int((plan.entry_bytes(distinct) * count).sum())
    return budget_bytes * int(workload.tokens.sum()) // total


def row(
    plan: Plan,
    group: Group,
    budget_bytes: int | None,
    beside: list[Group],
    target: float | None = None,
) -> Row | None:
    """The row of a group at a budget, None before any of its seeds has finished.

    A budget of None is a cache that never evicts. `beside`: the groups that ratios are taken to.
    """
    held = budget_bytes if budget_bytes is not None else np.iinfo(np.int64).max
    found = group.rates(held)
    if not found:
        return None
    mean, low, high = mean_interval([rates.hit_rate for rates in found])
    workload = plan.sources[group.source]
    generated = isinstance(workload, DocumentWorkload)
    theory = expected(plan, group.source, group.rule, group.policy, held)
    return Row(
        reuse=group.rule,
        policy=group.policy,
        budget_bytes=budget_bytes,
        budget_tokens=None
        if budget_bytes is None
        else _budget_tokens(plan, group.source, budget_bytes),
        budget_entries=None
        if budget_bytes is None
        else budget_entries(plan, group.source, budget_bytes),
        hit_rate=mean,
        token_hit_rate=mean_interval([rates.token_hit_rate for rates in found])[0],
        request_hit_rate=mean_interval([rates.request_hit_rate for rates in found])[0],
        hit_rate_low=low,
        hit_rate_high=high,
        unlimited_hit_rate=group.unlimited(),
        analytic_hit_rate=theory.hit_rate,
        analytic_method=theory.method,
        static_hit_rate=theory.static_hit_rate,
        over_prefix=_ratio(mean, group, "prefix", held, beside),
        over_position_aware=_ratio(mean, group, "position-aware", held, beside),
        lookups=group.lookups,
        requests=group.requests,
        skew=workload.skew if isinstance(workload, DocumentWorkload) else None,
        docs=_docs(workload),
        docs_per_request=workload.docs_per_request
        if isinstance(workload, DocumentWorkload)
        else None,
        seed=plan.seed if generated else None,
        seeds=len(found) if generated else None,
        target_hit_rate=target,
    )


def _docs(workload: DocumentWorkload | DocumentRequests | BlockRequests) -> int | None:
    if isinstance(workload, DocumentWorkload):
        return workload.docs
    if isinstance(workload, DocumentRequests):
        return len(np.unique(workload.docs))
    return None


def _ratio(
    hit_rate: float, group: Group, rule: str, budget_bytes: int, beside: list[Group]
) -> float | None:
    """hit_rate over that of `rule` in the same workload, policy and budget; None if that is 0."""
    for other in beside:
        same = (other.source, other.policy, other.rule) == (group.source, group.policy, rule)
        if same and other is not group:
            rates = other.rates(budget_bytes)
            base = mean_interval([r.hit_rate for r in rates])[0] if rates else 0.0
            return hit_rate / base if base else None
    return None


def rows(plan: Plan, groups: list[Group]) -> list[Row]:
    """All rows of a plan's budgets: by workload, policy and budget, then by rule as asked."""
    ordered = sorted(
        groups,
        key=lambda g: (g.source, plan.policies.index(g.policy), plan.rules.index(g.rule)),
    )
    found = []
    for source in range(len(plan.sources)):
        for policy in plan.policies:
            here = [g for g in ordered if (g.source, g.policy) == (source, policy)]
            for budget in plan.budgets:
                made = (row(plan, group, budget, here) for group in here)
                found += [one for one in made if one is not None]
    return found


def target_rows(plan: Plan, groups: list[Group], target: float) -> list[Row]:
    """One row per LRU group at the smallest budget that reaches `target`; None if none does."""
    made = (
        row(plan, group, group.smallest_budget(target), groups, target)
        for group in groups
        if group.policy == "lru"
    )
    return [one for one in made if one is not None]


def knees(groups: list[Group]) -> list[Knee]:
    """Where the curve of each LRU group bends: most of the unlimited rate for the least memory."""
    found = []
    for group in groups:
        unlimited = group.unlimited()
        if unlimited:
            budget = group.smallest_budget(KNEE * unlimited)
            if budget is not None:
                found.append(Knee(group.source, group.rule, unlimited, budget))
    return found
