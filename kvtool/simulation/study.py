"""A study under way: jobs one after the other, and the answers from those that have finished."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

import numpy as np

from kvtool.errors import KvtoolError
from kvtool.simulation.answers import Knee, Row, knees, rows, target_rows
from kvtool.simulation.notes import notes
from kvtool.simulation.options import Options, Study, settle
from kvtool.simulation.plan import Plan
from kvtool.simulation.sample import accesses_of, working_set_bytes
from kvtool.simulation.sweep import Group, collect, curve_budgets, sweep
from kvtool.workload.documents import DocumentWorkload
from kvtool.workload.fit import ZipfFit, fit_zipf
from kvtool.workload.requests import BlockRequests

WORKING_SET_SHARES = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Budgets of a trace when none are given: shares of the bytes of all its keys."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a study found, or has found so far.

    groups: the samples behind the rows.  fit: of the trace's exponent, when asked for.
    complete: no job is missing.
    """

    study: Study
    plan: Plan
    rows: list[Row]
    knees: list[Knee]
    notes: list[str]
    groups: list[Group]
    fit: ZipfFit | None
    complete: bool


@dataclass(slots=True)
class Run:
    """A study and what has finished of it; `advance` works, `outcome` answers at any time."""

    study: Study
    plan: Plan = field(init=False)
    groups: list[Group] = field(default_factory=list)
    done: int = 0
    jobs: int = 0
    complete: bool = False

    def __post_init__(self) -> None:
        self.plan = self.study.plan
        self.jobs = sum(1 for _ in self.plan.jobs())

    def advance(self, executor: Executor | None = None) -> Iterator[None]:
        """Run all jobs, here or on `executor`, yielding after each.

        LRU comes first: its curves say which budgets are worth a run of the other policies where
        none were given.
        """
        others = tuple(policy for policy in self.plan.policies if policy != "lru")
        if "lru" in self.plan.policies:
            yield from self._sweep(replace(self.plan, policies=("lru",)), executor)
        if not self.plan.budgets and self.study.options.target_hit is None:
            self.plan = replace(self.plan, budgets=self._budgets(executor))
        if others:
            later = replace(self.plan, policies=others)
            self.jobs = self.done + sum(1 for _ in later.jobs())
            yield from self._sweep(later, executor)
        self.complete = True

    def _sweep(self, plan: Plan, executor: Executor | None) -> Iterator[None]:
        for source, samples in sweep(plan, executor):
            collect(self.groups, source, samples)
            self.done += 1
            yield

    def _budgets(self, executor: Executor | None) -> tuple[int, ...]:
        """The points of the curve, or shares of the working set."""
        if not self.study.options.curve:
            return _shares_of_working_set(self.plan)
        groups = [group for group in self.groups if group.policy == "lru"]
        if not groups:
            scout = replace(self.plan, policies=("lru",), seeds=1)
            for source, samples in sweep(scout, executor):
                collect(groups, source, samples)
        return tuple(curve_budgets(groups))

    def outcome(self) -> Outcome:
        """The answers from what has finished."""
        target = self.study.options.target_hit
        if target is None:
            made = rows(self.plan, self.groups)
        else:
            made = target_rows(self.plan, self.groups, target)
        made = _with_paper(self.study, made)
        return Outcome(
            study=self.study,
            plan=self.plan,
            rows=made,
            knees=knees(self.groups),
            notes=[*self.study.notes, *notes(self.plan, self.groups, made)],
            groups=self.groups,
            fit=_fit(self.study) if self.study.options.fit_zipf else None,
            complete=self.complete,
        )


def simulate(options: Options, executor: Executor | None = None) -> Outcome:
    """Hit rates for `options`, all jobs run here or on any `concurrent.futures` executor."""
    run = Run(settle(options))
    for _ in run.advance(executor):
        pass
    return run.outcome()


def _shares_of_working_set(plan: Plan) -> tuple[int, ...]:
    """Budgets as shares of the bytes of all keys under the rule that has most."""
    job = next(iter(plan.jobs()), None)
    source = plan.sources[0]
    if job is None or isinstance(source, DocumentWorkload):
        return ()
    seen = [accesses_of(rule, source, job) for rule in plan.rules]
    total = max(map(working_set_bytes, seen))
    largest = max(accesses.largest for accesses in seen)
    whole = [accesses.sizes for accesses in seen if isinstance(accesses.sizes, int)]
    unit = min(whole) if whole else 1
    budgets = (max(largest, int(share * total) // unit * unit) for share in WORKING_SET_SHARES)
    return tuple(sorted(set(budgets)))


def _with_paper(study: Study, made: list[Row]) -> list[Row]:
    """Rows with the published hit rate beside them, where the preset has one."""
    if study.preset is None:
        return made
    paper = study.preset.paper
    return [
        replace(one, paper_hit_rate=paper.get((one.reuse, one.skew or 0.0, one.budget_bytes or 0)))
        for one in made
    ]


def _fit(study: Study) -> ZipfFit:
    """The exponent of a trace's documents or blocks."""
    requests = study.plan.sources[0]
    if isinstance(requests, DocumentWorkload):
        raise KvtoolError("there is no trace to fit", "give one with --trace FILE")
    if isinstance(requests, BlockRequests):
        counts = np.unique(requests.ids, return_counts=True)[1]
        return fit_zipf(counts, requests.requests, distinct=False)
    docs = requests.docs[~requests.repeats]
    several = len(docs) > requests.requests
    return fit_zipf(np.bincount(docs), requests.requests, distinct=several)
