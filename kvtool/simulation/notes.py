"""Notes: what a reader must know beside the rows, each said once."""

from __future__ import annotations

from collections.abc import Iterator

from kvtool.simulation.answers import Row, entry_bytes
from kvtool.simulation.expected import doubts
from kvtool.simulation.plan import Plan
from kvtool.simulation.sweep import Group
from kvtool.units import format_bytes
from kvtool.workload.documents import DocumentWorkload
from kvtool.workload.requests import BlockRequests

FEW_HITS = 100
"""A ratio to fewer hits than this is called uncertain: its error is above a tenth."""


def notes(plan: Plan, groups: list[Group], made: list[Row]) -> list[str]:
    """All notes on the rows `made` of a plan."""
    found = [
        *_nothing_twice(groups),
        *_sizes(plan, groups),
        *_blocks(plan),
        *_ratios(made),
        *_targets(made),
        *_theory(plan, made),
        *_policies(plan),
    ]
    return list(dict.fromkeys(found))


def _nothing_twice(groups: list[Group]) -> Iterator[str]:
    """Whether no cache of any size could hit."""
    unlimited = [group.unlimited() for group in groups if group.samples]
    if unlimited and all(rate == 0 for rate in unlimited):
        yield "nothing is asked for twice: a cache of any size hits 0 %"


def _sizes(plan: Plan, groups: list[Group]) -> Iterator[str]:
    """Budgets below one entry."""
    for place, source in enumerate(plan.sources):
        size = entry_bytes(plan, place)
        if isinstance(source, BlockRequests):
            what = f"block of {source.block_size:,} tokens"
        elif size is None:
            what, size = "document that comes again", _smallest_that_returns(groups, place)
        else:
            what = f"document, padded to pages of {plan.page_tokens} tokens"
        for budget in plan.budgets:
            if size is not None and budget < size:
                yield f"{format_bytes(budget)} is less than one {what} ({format_bytes(size)}): 0 %"
    largest = max((group.largest_bytes for group in groups), default=0)
    below = [budget for budget in plan.budgets if budget < largest]
    if below and "lru" in plan.policies:
        yield (
            f"{_at(below)}: less than the largest document ({format_bytes(largest)}), which is "
            "then not kept; these come from a run each, not from the curve"
        )


def _smallest_that_returns(groups: list[Group], source: int) -> int | None:
    """The smallest budget that hits anything, from the curves."""
    steps = [
        int(sample.curve.budgets[0])
        for group in groups
        for sample in group.samples
        if group.source == source and sample.curve is not None and len(sample.curve.budgets)
    ]
    return min(steps, default=None)


def _blocks(plan: Plan) -> Iterator[str]:
    """What the blocks of a trace rule out: short prompts, pools smaller than what is in flight."""
    source, rules = plan.sources[0], plan.block_rules
    if not isinstance(source, BlockRequests) or not source.requests:
        return
    block = source.block_size
    floor = block if rules.full_blocks_only else 1
    floor += rules.reserve_last_token
    short = int((source.input_tokens < floor).sum())
    if short:
        yield (
            f"{short:,} of {source.requests:,} prompts have fewer than {floor:,} tokens and can "
            f"never hit with blocks of {block:,}"
        )
    size = entry_bytes(plan, 0) or 1
    tokens = source.input_tokens + (source.output_tokens if rules.cache_outputs else 0)
    in_flight = max(1, rules.pinned)
    needed = -(-int(tokens.max()) // block) * in_flight
    small = [budget for budget in plan.budgets if size <= budget < needed * size]
    if small:
        requests = (
            "the longest request" if in_flight == 1 else f"{in_flight} of the longest requests"
        )
        yield (
            f"{requests} may need {needed:,} blocks, more than {_at(small)}: an engine lets "
            "requests wait, the simulation does not"
        )


def _ratios(made: list[Row]) -> Iterator[str]:
    """Ratios whose denominator rests on few hits."""
    for rule, ratio in (("prefix", "over_prefix"), ("position-aware", "over_position_aware")):
        if not any(getattr(one, ratio) is not None for one in made):
            continue
        base = [one for one in made if one.reuse == rule]
        thin = [one for one in base if round(one.hit_rate * one.lookups) < FEW_HITS]
        if thin:
            budgets = [one.budget_bytes or 0 for one in thin]
            yield (
                f"ratios to {rule} at {_at(budgets)} rest on fewer than {FEW_HITS} hits: more "
                "--requests make them firm"
            )


def _at(budgets: list[int]) -> str:
    """Budgets by name, or how many there are."""
    different = sorted(set(budgets))
    if len(different) > 3:
        return f"{len(different)} budgets up to {format_bytes(different[-1])}"
    return ", ".join(map(format_bytes, different))


def _targets(made: list[Row]) -> Iterator[str]:
    """Targets that no cache reaches."""
    for one in made:
        if one.target_hit_rate is not None and one.budget_bytes is None:
            yield (
                f"{one.reuse} never reaches {one.target_hit_rate:g}: an unlimited cache hits "
                f"{one.hit_rate:.4f}"
            )


def _theory(plan: Plan, made: list[Row]) -> Iterator[str]:
    """Where a closed form and a run should not agree."""
    methods = {one.analytic_method for one in made}
    if methods & {"che", "king"}:
        reasons: dict[str, list[int]] = {}
        for place in range(len(plan.sources)):
            for budget in plan.budgets:
                for doubt in doubts(plan, place, budget):
                    reasons.setdefault(doubt, []).append(budget)
        for doubt, budgets in reasons.items():
            yield f"theory may be off at {_at(budgets)}: {doubt}"
    if "eq3" in methods:
        yield (
            "theory of position-aware is Eq. 3 of arXiv 2606.04302, a static cache of the most "
            "popular documents: an LRU stays below it"
        )


def _policies(plan: Plan) -> Iterator[str]:
    """What independent draws cannot say, and where Belady's rule is no bound."""
    if isinstance(plan.sources[0], DocumentWorkload):
        yield (
            "Zipf draws are independent of each other; real traces rank policies and rules "
            "differently: try --trace FILE"
        )
    if "belady" in plan.policies and entry_bytes(plan, 0) is None:
        yield "belady is a heuristic, not a bound, when documents differ in bytes"
