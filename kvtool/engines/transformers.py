"""transformers: tensors of a cache class, layer by layer; no pool is set aside.

    full             T rows                         static: max_cache_len rows
    sliding, chunked min(T, window - 1) rows        static: min(max_cache_len, window) rows
    latent           T rows of kv_lora_rank + rope  before 5.24: keys and values of every head
    index            T rows of 16-bit keys, no scales
    recurrent        tails of `kernel` columns, matrices in float32

Source: `cache_utils.py`, and the model classes' own states; run by tests/oracles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvtool import kvcache
from kvtool.engines.base import Budget, Deployment, Estimate, Group, Pool, Reason, Reserve, Term
from kvtool.engines.deployed import extra_layers, stored_weights
from kvtool.engines.transformers_layers import Kept, kept_states
from kvtool.engines.transformers_options import CHECKED, Release, Settings, find_release, settle
from kvtool.errors import UsageError
from kvtool.model.spec import ModelSpec, stages

NAME = "transformers"
GIB = 1 << 30

# Driver, libraries and activations beside weights and cache. Nothing is reserved, and no run was
# measured: the range is wide.
OTHER = Estimate(int(1.5 * GIB), int(0.4 * GIB), int(5 * GIB))
LOADED = (1.0, 0.98, 1.03)

TEXTS = {
    "window_between_steps": "between steps a window lacks the row of the token to come",
    "window_stored_in_full": "this release keeps every token of a window",
    "static_length": "a static cache is allocated for max_cache_len tokens at once",
    "heads_uncompressed": "keys and values of every head instead of the latent row",
    "index_keys_16_bit": "index keys in the model's type, not in fp8",
    "residual_precision": "the last tokens of a quantised cache stay as they are",
    "shared_layers": "layers that read another layer's rows keep a copy",
    "tail_column": "convolution tails hold one column more than is needed",
    "state_dtype": "recurrent matrices in another type than the model's",
}


@dataclass(frozen=True, slots=True)
class Transformers:
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
        """What the cache of one sequence of `context_tokens` holds, and what fits on a device.

        Raises UsageError for types and options that the cache has not, KvtoolError for layers that
        this adapter does not cover.
        """
        kvcache.check_parallel(model, deployment.parallel)
        encoder = kvcache.encoder_tokens(model, deployment.encoder_tokens)
        settings = settle(model, context_tokens, deployment, self.release)
        extra = extra_layers(model, deployment)
        parts = [list(part) for part in stages(model.layers, deployment.parallel.pp)]
        parts[-1] += extra
        every = [[*kept_states(model, part, settings, context_tokens, encoder)] for part in parts]
        whole = replace(model, mtp_layers=extra)
        fullest = kvcache.fullest_stage(
            whole, context_tokens, settings.kv, deployment.parallel, encoder, bool(extra)
        )
        kept = every[parts.index(list(fullest))]
        request = sum(item.bytes for item in kept)
        cluster = sum(item.bytes for stage in every for item in stage) * deployment.parallel.tp
        return Reserve(
            engine=self.name,
            version=self.version,
            kv=settings.kv,
            context_tokens=context_tokens,
            batch_size=batch_size,
            block_size=0,
            bytes_per_block=0,
            blocks_per_request=0,
            request_bytes=request,
            cache_bytes=batch_size * request,
            cluster_bytes=batch_size * cluster,
            groups=_groups(kept),
            reasons=(*_reasons(kept), *_notes(model, settings)),
            settings=settings.shown(),
            loaded_bytes=_loaded(model, deployment),
            pool=_pool(model, context_tokens, request, batch_size, deployment, budget),
            warnings=self._warnings(),
        )

    def _warnings(self) -> tuple[str, ...]:
        if self.version in CHECKED:
            return ()
        return (
            f"transformers {self.version}: the rules of {self.release.version} on, not run here",
        )


def load(version: str | None = None) -> Transformers:
    """The adapter for `version`, the newest known when None; UsageError for an unknown one."""
    return Transformers(*find_release(version))


def _groups(kept: Sequence[Kept]) -> tuple[Group, ...]:
    counts = Counter((item.kind, item.rows, item.bytes) for item in kept)
    return tuple(
        Group(kind, layers, rows, size, 1) for (kind, rows, size), layers in counts.items()
    )


def _reasons(kept: Sequence[Kept]) -> list[Reason]:
    """Why the cache differs from the logical bytes; their sum is exactly the difference."""
    totals = dict.fromkeys(TEXTS, 0)
    for item in kept:
        for name, count in item.reasons:
            totals[name] += count
    return [Reason(name, count, TEXTS[name]) for name, count in totals.items() if count]


def _notes(model: ModelSpec, settings: Settings) -> Iterator[Reason]:
    if settings.implementation == "dynamic":
        text = "a step joins old and new rows: one layer at a time is there twice"
        yield Reason("copy_on_growth", 0, text)
    yield Reason("no_pool", 0, "a batch is padded to its longest sequence; nothing is reserved")


def _loaded(model: ModelSpec, deployment: Deployment) -> Estimate | None:
    held = stored_weights(model, deployment)
    return None if held is None else Estimate(*(int(held * factor) for factor in LOADED))


def _pool(
    model: ModelSpec,
    context: int,
    request: int,
    batch_size: int,
    deployment: Deployment,
    budget: Budget | None,
) -> Pool | None:
    """What is left beside the weights; transformers reserves none of it."""
    if budget is None or not request:
        return None
    if budget.num_blocks is not None:
        raise UsageError("transformers has no blocks", "give --pool, or a device with --gpu")
    terms: tuple[Term, ...] = ()
    if budget.pool_bytes is not None:
        room = Estimate.exact(budget.pool_bytes)
    else:
        loaded = _loaded(model, deployment)
        if loaded is None or budget.device is None:
            return None
        terms = (
            Term("weights", loaded, "as loaded"),
            Term("other", OTHER, "driver, libraries, activations"),
        )
        total = int(budget.device.memory_bytes * (budget.fraction or 1.0))
        least = int(total * 0.97) if budget.device.memory_is_nominal else total
        room = Estimate(
            max(total - loaded.value - OTHER.value, 0),
            max(least - loaded.high - OTHER.high, 0),
            max(total - loaded.low - OTHER.low, 0),
        )
    at_once = [end / request for end in (room.value, room.low, room.high)]
    return Pool(
        pool_bytes=room,
        num_blocks=Estimate.exact(0),
        pool_tokens=Estimate(*(int(count * context) for count in at_once)),
        max_concurrency=at_once[0],
        max_concurrency_low=at_once[1],
        max_concurrency_high=at_once[2],
        fits=batch_size * request <= room.value,
        max_batch_size=room.value // request,
        terms=terms,
    )
