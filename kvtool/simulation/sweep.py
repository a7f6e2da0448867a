"""A sweep: the jobs of a plan, here or on any executor, and what their samples say together.

Every job carries its own seed, so results do not depend on where or in which order jobs run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass, field

import numpy as np

from kvtool.simulation.plan import Plan
from kvtool.simulation.sample import Rates, Sample, run
from kvtool.workload.requests import Ints

# 97.5 % points of Student's t for 1, 2, .. degrees of freedom; beyond, its expansion in 1/n.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_NORMAL = 1.959964


@dataclass(slots=True)
class Group:
    """The samples of one workload, rule and policy, one per seed that has finished."""

    source: int
    rule: str
    policy: str
    samples: list[Sample] = field(default_factory=list)

    def rates(self, budget_bytes: int) -> list[Rates]:
        """The rates of each seed at a budget, in the order of the seeds."""
        ordered = sorted(self.samples, key=lambda sample: sample.seed)
        found = (sample.at(budget_bytes) for sample in ordered)
        return [rates for rates in found if rates is not None]

    @property
    def lookups(self) -> int:
        """Look-ups that count, over all seeds."""
        return sum(sample.lookups for sample in _one_per_seed(self.samples))

    @property
    def requests(self) -> int:
        """Requests that count, over all seeds."""
        return sum(sample.requests for sample in _one_per_seed(self.samples))

    @property
    def largest_bytes(self) -> int:
        """The largest entry where entries differ, else 0: below it the curve is not exact."""
        return max((sample.largest_bytes for sample in self.samples), default=0)

    def unlimited(self) -> float | None:
        """The mean hit rate of a cache that never evicts; None unless the policy is LRU."""
        curves = [sample.curve for sample in self.samples if sample.curve is not None]
        if not curves:
            return None
        return math.fsum(curve.unlimited()[0] for curve in curves) / len(curves)

    def smallest_budget(self, hit_rate: float) -> int | None:
        """The smallest budget whose mean hit rate over seeds is at least `hit_rate`, for LRU.

        None when an unlimited cache does not reach it. Where entries differ, at least the largest.
        """
        curves = [sample.curve for sample in self.samples if sample.curve is not None]
        if not curves:
            return None
        steps: Ints = np.unique(np.concatenate([curve.budgets for curve in curves]))
        low, high = 0, len(steps)
        while low < high:
            middle = (low + high) // 2
            mean = math.fsum(curve.at(int(steps[middle]))[0] for curve in curves) / len(curves)
            if mean >= hit_rate - 1e-12:
                high = middle
            else:
                low = middle + 1
        return max(int(steps[low]), self.largest_bytes) if low < len(steps) else None


def _one_per_seed(samples: list[Sample]) -> list[Sample]:
    """One sample of each seed: a policy that runs budget by budget has several."""
    return list({sample.seed: sample for sample in samples}.values())


def sweep(plan: Plan, executor: Executor | None = None) -> Iterator[tuple[int, list[Sample]]]:
    """Which workload, and its samples, job by job as they finish.

    `executor` is anything with the interface of `concurrent.futures`; without one, jobs run here.
    Closing the iterator drops what has not started.
    """
    index = {id(source): place for place, source in enumerate(plan.sources)}
    if executor is None:
        for job in plan.jobs():
            yield index[id(job.source)], run(job)
        return
    futures = {executor.submit(run, job): index[id(job.source)] for job in plan.jobs()}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        for future in futures:
            future.cancel()


def collect(groups: list[Group], source: int, samples: list[Sample]) -> None:
    """Put samples into their groups, making new ones at the end."""
    for sample in samples:
        for group in groups:
            if (group.source, group.rule, group.policy) == (source, sample.rule, sample.policy):
                break
        else:
            group = Group(source, sample.rule, sample.policy)
            groups.append(group)
        group.samples.append(sample)


def mean_interval(values: list[float]) -> tuple[float, float | None, float | None]:
    """Mean and 95 % interval by Student's t, within [0, 1]; no interval for one value."""
    mean = math.fsum(values) / len(values)
    freedom = len(values) - 1
    if not freedom:
        return mean, None, None
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / freedom)
    if freedom <= len(_T):
        factor = _T[freedom - 1]
    else:
        z = _NORMAL
        factor = z + (z**3 + z) / (4 * freedom)
        factor += (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        factor += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    half = factor * spread / math.sqrt(len(values))
    return mean, max(0.0, mean - half), min(1.0, mean + half)


def curve_budgets(groups: list[Group], points: int = 100) -> list[int]:
    """Budgets over which LRU's hit rates change: each, or `points` of them in equal ratios.

    They begin where the curves are exact, at the largest entry where entries differ.
    """
    curves = [
        sample.curve for group in groups for sample in group.samples if sample.curve is not None
    ]
    if not curves:
        return []
    largest = max(group.largest_bytes for group in groups)
    steps: Ints = np.unique(np.concatenate([curve.budgets for curve in curves]))
    steps = np.unique(np.maximum(steps, largest))
    if len(steps) <= points:
        return [int(step) for step in steps]
    ratios = np.geomspace(float(steps[0]), float(steps[-1]), points)
    at = np.minimum(np.searchsorted(steps, ratios * (1 + 1e-9), side="right") - 1, len(steps) - 1)
    return [int(step) for step in steps[np.unique(np.maximum(at, 0))]]
