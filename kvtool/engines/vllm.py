"""vLLM (V1): what a request reserves in pages and groups, and what the pool holds.

The rules are vLLM's own, by release, and are checked against its planning code (tests/oracles).
`vllm_specs` gives every layer its page, `vllm_groups` puts layers on block tables, `vllm_plan`
counts blocks, `vllm_weights` and `vllm_memory` estimate the pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvtool.engines.base import Budget, Deployment, Estimate, Pool, Reserve, Term
from kvtool.engines.deployed import extra_layers
from kvtool.engines.vllm_groups import layout
from kvtool.engines.vllm_memory import available, device_total, remainder
from kvtool.engines.vllm_options import Settings, settle
from kvtool.engines.vllm_plan import Plan
from kvtool.engines.vllm_releases import CHECKED, Release, find_release
from kvtool.engines.vllm_specs import entries
from kvtool.engines.vllm_weights import loaded_bytes, stage_layers, without_towers
from kvtool.kvcache import check_parallel
from kvtool.model.spec import ModelSpec

NAME = "vllm"


@dataclass(frozen=True, slots=True)
class Vllm:
    """The adapter for one version."""

    version: str
    release: Release
    name: str = NAME

    def reserve(
        self,
        model: ModelSpec,
        context_tokens: int,
        batch_size: int = 1,
        deployment: Deployment = Deployment(),
        budget: Budget | None = None,
    ) -> Reserve:
        """What a request of `context_tokens` takes, and what the pool of `budget` holds.

        Raises UsageError for what cannot be (options, dtypes, ranks), KvtoolError for models that
        vLLM or this adapter does not cover.
        """
        check_parallel(model, deployment.parallel)
        device = budget.device if budget else None
        settings = settle(model, context_tokens, deployment, self.release, device)
        model = without_towers(model) if settings.language_model_only else model
        found = entries(model, settings.rules, extra_layers(model, deployment))
        plan = Plan.of(layout(found, settings.rules), settings.rules)
        loaded = [
            loaded_bytes(model, deployment, self.release, stage)
            for stage in range(deployment.parallel.pp)
        ]
        return Reserve(
            engine=self.name,
            version=self.version,
            kv=settings.rules.kv,
            context_tokens=context_tokens,
            batch_size=batch_size,
            block_size=plan.block_size,
            bytes_per_block=plan.bytes_per_block,
            blocks_per_request=plan.blocks_per_request,
            request_bytes=plan.request_bytes,
            cache_bytes=batch_size * plan.request_bytes,
            cluster_bytes=batch_size * plan.cluster_request_bytes,
            groups=plan.groups(),
            reasons=plan.reasons(),
            settings=settings.shown(),
            loaded_bytes=max(
                (part for part in loaded if part is not None),
                key=lambda part: part.value,
                default=None,
            ),
            pool=_pool(model, plan, settings, deployment, batch_size, budget),
            warnings=settings.warnings + self._warnings(model),
        )

    def _warnings(self, model: ModelSpec) -> tuple[str, ...]:
        found: tuple[str, ...] = ()
        if self.version not in CHECKED:
            rules = self.release.version
            found += (f"vLLM {self.version}: the rules of {rules} on, not checked here",)
        if model.model_type in self.release.unserved:
            found += (f"vLLM {self.version} does not serve {model.model_type} models",)
        return found


def load(version: str | None = None) -> Vllm:
    """The adapter for `version`, the newest known when None; UsageError for an unknown one."""
    return Vllm(*find_release(version))


def _pool(
    model: ModelSpec,
    plan: Plan,
    settings: Settings,
    deployment: Deployment,
    batch_size: int,
    budget: Budget | None,
) -> Pool | None:
    """The pool as given, else estimated from the device; None without either.

    With pipeline stages the one that holds the fewest blocks decides for all.
    """
    if not plan.layout.groups:
        return None
    pool_bytes, num_blocks = settings.pool_bytes, settings.num_blocks
    if budget is not None and budget.is_given:
        pool_bytes, num_blocks = budget.pool_bytes, budget.num_blocks
    if pool_bytes is not None or num_blocks is not None:
        return plan.pool(Estimate.exact(pool_bytes or 0), num_blocks, batch_size)
    if budget is None or budget.device is None:
        return None
    fraction = budget.fraction or settings.fraction or settings.rules.release.default_fraction
    total = device_total(budget.device, fraction)
    pools = [
        plan.pool(available(total, terms), None, batch_size, stage, terms)
        for stage, terms in enumerate(_terms(model, settings, deployment))
        if plan.block_bytes[stage]
    ]
    return min(pools, key=lambda pool: pool.num_blocks.value, default=None)


def _terms(
    model: ModelSpec, settings: Settings, deployment: Deployment
) -> Iterator[tuple[Term, ...]]:
    """What the memory of each stage's devices goes to; nothing where weights are unknown."""
    parts = stage_layers(model, deployment)
    for stage, layers in enumerate(parts):
        loaded = loaded_bytes(model, deployment, settings.rules.release, stage)
        if loaded is None:
            return
        weights = Term("weights", loaded, "as loaded: tensors, rotary tables, copies, rounding")
        is_last = stage == len(parts) - 1
        yield (weights, *remainder(model, layers, settings, samples=is_last))
