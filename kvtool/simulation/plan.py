"""A plan: everything that one sweep is asked, checked before anything runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from kvtool import kvcache
from kvtool.dtype import KVFormat
from kvtool.errors import UsageError, did_you_mean
from kvtool.model.spec import ModelSpec, Parallel, Recurrent
from kvtool.policy.replay import POLICIES
from kvtool.reuse import RULES, BlockRules
from kvtool.simulation.sample import Job
from kvtool.workload.documents import DocumentWorkload
from kvtool.workload.requests import BlockRequests, DocumentRequests, Ints

LOOKUPS = ("request", "each")
MAX_SEEDS = 10_000


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """Bytes that a model keeps of an entry of so many tokens, on the device that holds most.

    Windows, latent rows and states that do not grow are counted as for a sequence of that length.
    """

    model: ModelSpec
    kv: KVFormat
    parallel: Parallel

    def __call__(self, tokens: Ints) -> Ints:
        """[n] bytes from [n] token counts."""
        return np.array(
            [
                kvcache.sequence_bytes(self.model, count, self.kv, self.parallel)
                for count in tokens.tolist()
            ],
            dtype=np.int64,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """One sweep over workloads or one trace, rules, policies, budgets and seeds.

    sources: workloads that differ in their exponent, or the requests of one trace.  budgets: bytes,
    rising.  seed, seeds: the first and how many; a trace has one run.  `entry_bytes` and the other
    fields are those of `Job`.
    """

    sources: tuple[DocumentWorkload, ...] | tuple[DocumentRequests | BlockRequests]
    rules: tuple[str, ...]
    policies: tuple[str, ...]
    budgets: tuple[int, ...]
    entry_bytes: Callable[[Ints], Ints]
    whole_request: bool = True
    warmup: float = 0.0
    seed: int = 0
    seeds: int = 1
    page_tokens: int = 16
    block_rules: BlockRules = field(default_factory=BlockRules)

    def __post_init__(self) -> None:
        for rule in self.rules:
            if rule not in RULES:
                raise UsageError(
                    f"no reuse rule named '{rule}'",
                    did_you_mean(rule, RULES, f"rules: {', '.join(RULES)}"),
                )
        for policy in self.policies:
            if policy not in POLICIES:
                raise UsageError(
                    f"no policy named '{policy}'",
                    did_you_mean(policy, POLICIES, f"policies: {', '.join(POLICIES)}"),
                )
        if not (math.isfinite(self.warmup) and 0 <= self.warmup < 1):
            raise UsageError(
                f"a warm-up of '{self.warmup:g}' leaves nothing to count",
                "--warmup is the share of requests that do not count, from 0 to below 1",
            )
        if self.seed < 0:
            raise UsageError(f"'{self.seed}' is no seed", "seeds are whole numbers from 0")
        if not 1 <= self.seeds <= MAX_SEEDS:
            raise UsageError(f"'{self.seeds}' is not a number of seeds", f"use 1 to {MAX_SEEDS:,}")
        if isinstance(self.sources[0], BlockRequests):
            self._check_blocks()

    def _check_blocks(self) -> None:
        others = [rule for rule in self.rules if rule != "prefix"]
        if others:
            raise UsageError(
                f"'{others[0]}' is not defined on a block trace",
                "its ids stand for whole prefixes, not for documents: use --reuse prefix, or a "
                "document log",
            )
        others = [policy for policy in self.policies if policy != "lru"]
        if others and self.block_rules.pinned > 1:
            raise UsageError(
                f"pinned={self.block_rules.pinned} is not supported with '{others[0]}'",
                "requests in flight are pinned under --policy lru only",
            )

    def jobs(self) -> Iterator[Job]:
        """The units of work: all rules of a seed together under LRU, else one run each."""
        for source in self.sources:
            runs = self.seeds if isinstance(source, DocumentWorkload) else 1
            for run in range(runs):
                for policy in self.policies:
                    if policy == "lru":
                        yield self._job(source, run, self.rules, policy, self.budgets)
                        continue
                    for rule in self.rules:
                        for budget in self.budgets:
                            yield self._job(source, run, (rule,), policy, (budget,))

    def _job(
        self,
        source: DocumentWorkload | DocumentRequests | BlockRequests,
        run: int,
        rules: tuple[str, ...],
        policy: str,
        budgets: tuple[int, ...],
    ) -> Job:
        return Job(
            source=source,
            seed=(self.seed, run),
            rules=rules,
            policy=policy,
            budgets=budgets,
            whole_request=self.whole_request,
            warmup=self.warmup,
            entry_bytes=self.entry_bytes,
            page_tokens=self.page_tokens,
            block_rules=self.block_rules,
        )


def refuse_recurrent(model: ModelSpec, rules: tuple[str, ...]) -> None:
    """UsageError when a rule other than `prefix` meets a model with recurrent state."""
    recurrent = any(isinstance(state, Recurrent) for state in model.states())
    others = [rule for rule in rules if rule != "prefix"]
    if recurrent and others:
        raise UsageError(
            f"'{others[0]}' does not work with {model.name}: its recurrent state depends on "
            "everything before a document",
            "use --reuse prefix, or a model of attention layers only",
        )
