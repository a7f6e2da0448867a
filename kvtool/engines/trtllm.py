"""TensorRT-LLM (PyTorch backend): blocks of a request, a slope, an intercept, pools per window.

    bytes  = slope x tokens + intercept       intercept: recurrent states of max_batch_size requests
    budget = fraction x (memory - peak of a dry run)             (0.9 of what is free, not of all)
    blocks = (budget - intercept) / slope / tokens_per_block     up to 1.2 rounded up

Windows are stored in full unless `max_attention_window` names them; then every distinct window has
a pool with an equal share of the bytes. Source: tensorrt_llm/_torch/pyexecutor, `_util.py` and
`resource_manager.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from kvtool import kvcache
from kvtool.engines.base import Budget, Deployment, Estimate, Group, Pool, Reason, Reserve, Term
from kvtool.engines.deployed import extra_layers, stored_weights
from kvtool.engines.trtllm_options import NEWEST, Release, Settings, find_release, settle
from kvtool.engines.trtllm_pools import (
    Row,
    WindowPool,
    concurrency,
    cut,
    largest_batch,
    layer_rows,
    paged_bytes,
    state_bytes,
    window_pools,
)
from kvtool.model.spec import Attention, Index, Latent, ModelSpec, Recurrent, stages

NAME = "trtllm"
GIB = 1 << 30

# One log states all terms (gpt-oss-120b, 12/2025): 63.52 GiB inside torch after loading 63.32 GB of
# weights, 0.85 GiB of activations at 8,192 tokens. What lies outside torch is not known on a device
# with memory of its own: driver, libraries, NCCL and graphs take 1 to 4 GiB elsewhere.
OTHER = Estimate(int(2.5 * GIB), int(1.0 * GIB), int(5.0 * GIB))
LOADED = (1.005, 0.99, 1.04)

TEXTS = {
    "window_stored_in_full": "windows are stored in full unless max_attention_window names them",
    "window_block": "a window may begin inside a block and gets one more",
    "index_format": "index keys are charged at the cache's element size",
    "page_rounding": "the last block is not full",
}


@dataclass(frozen=True, slots=True)
class Trtllm:
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
        """What a request of `context_tokens` takes, and what the pools of `budget` hold.

        Raises UsageError for options, dtypes and ranks that cannot be, KvtoolError for layers that
        this adapter does not cover.
        """
        kvcache.check_parallel(model, deployment.parallel)
        fraction = budget.fraction if budget else None
        settings = settle(model, deployment, self.release, batch_size, fraction)
        extra = extra_layers(model, deployment)
        parts = [list(part) for part in stages(model.layers, deployment.parallel.pp)]
        parts[-1] += extra
        first = [sum(map(len, parts[:stage])) for stage in range(len(parts))]
        every = [
            layer_rows(model, part, number, settings, context_tokens)
            for part, number in zip(parts, first, strict=True)
        ]
        whole = replace(model, mtp_layers=extra)
        fullest = list(
            kvcache.fullest_stage(
                whole, context_tokens, settings.kv, deployment.parallel, 0, bool(extra)
            )
        )
        rows = every[parts.index(fullest)]
        pools = window_pools(rows, settings, context_tokens)
        state = state_bytes(rows)
        request = paged_bytes(pools, settings)
        single = pools[0] if len(pools) == 1 and not state else None
        block = settings.tokens_per_block
        cluster = sum(
            batch_size * paged_bytes(window_pools(stage, settings, context_tokens), settings)
            + max(settings.max_batch_size if state else 0, batch_size) * state_bytes(stage)
            for stage in every
        )
        return Reserve(
            engine=self.name,
            version=self.version,
            kv=settings.kv,
            context_tokens=context_tokens,
            batch_size=batch_size,
            block_size=block,
            bytes_per_block=single.token_bytes * block if single else 0,
            blocks_per_request=single.blocks if single else 0,
            request_bytes=request + state,
            cache_bytes=batch_size * request
            + (max(settings.max_batch_size, batch_size) * state if state else 0),
            cluster_bytes=cluster * deployment.parallel.tp,
            groups=_groups(rows, pools, settings, context_tokens),
            reasons=(
                *_reasons(rows, pools, settings, context_tokens),
                *_notes(rows, pools, settings),
            ),
            settings=settings.shown(),
            loaded_bytes=_loaded(model, deployment),
            pool=_pool(model, deployment, settings, pools, state, batch_size, budget),
            warnings=self._warnings(),
        )

    def _warnings(self) -> tuple[str, ...]:
        if self.version == NEWEST:
            return ()
        return (
            f"TensorRT-LLM {self.version}: the rules of {self.release.version} on,"
            " not checked here",
        )


def load(version: str | None = None) -> Trtllm:
    """The adapter for `version`, the newest known when None; UsageError for an unknown one."""
    return Trtllm(*find_release(version))


def _groups(
    rows: Sequence[Row], pools: Sequence[WindowPool], settings: Settings, context: int
) -> tuple[Group, ...]:
    counts: dict[tuple[str, int | None, int], int] = {}
    for row in rows:
        key = (row.state.kind, row.window, row.bytes)
        counts[key] = counts.get(key, 0) + 1
    blocks = {pool.window: pool.blocks for pool in pools}
    block = settings.tokens_per_block
    return tuple(
        Group(kind, layers, context, size, 1)
        if kind in ("recurrent", "conv")
        else Group(kind, layers, block, size * block, blocks[window])
        for (kind, window, size), layers in counts.items()
    )


def _reasons(
    rows: Sequence[Row], pools: Sequence[WindowPool], settings: Settings, context: int
) -> list[Reason]:
    """Why a request takes more than its logical bytes; their sum is exactly the difference."""
    blocks = {pool.window: pool.blocks for pool in pools}
    totals = dict.fromkeys(TEXTS, 0)
    for row in rows:
        if isinstance(row.state, Recurrent):
            continue
        kept = blocks[row.window] * settings.tokens_per_block
        tokens = context if row.window is None else row.window
        if isinstance(row.state, Index):
            logical = row.state.bytes(context, settings.kv, settings.parallel)
            totals["index_format"] += row.bytes * tokens - logical
        else:
            stored = row.state.tokens(context, 0)
            totals["window_stored_in_full"] += row.bytes * (tokens - stored)
        name = "page_rounding" if row.window is None else "window_block"
        totals[name] += row.bytes * (kept - tokens)
    return [Reason(name, count, TEXTS[name]) for name, count in totals.items() if count]


def _notes(
    rows: Sequence[Row], pools: Sequence[WindowPool], settings: Settings
) -> Iterator[Reason]:
    """Facts about pools and cluster, which take no bytes of a request."""
    tp = settings.parallel.tp
    if tp > 1 and any(isinstance(row.state, Latent) for row in rows):
        yield Reason("replicated_rows", 0, f"latent rows are on each of the {tp} tensor ranks")
    heads = {row.state.num_kv_heads for row in rows if isinstance(row.state, Attention)}
    for count in sorted(heads):
        if count < tp:
            text = f"{count} key/value heads on {tp} ranks: each is kept {tp // count} times"
            yield Reason("replicated_heads", 0, text)
    for smaller, larger in pairwise(pools):
        last = "full" if larger.window is None else f"{larger.window:,}"
        text = f"the pools of windows {smaller.window:,} and {last} get equal shares of the bytes"
        yield Reason("equal_shares", 0, text)
    if state_bytes(rows):
        text = f"states of max_batch_size {settings.max_batch_size:,} requests come off the budget"
        yield Reason("intercept", 0, text)
    yield Reason("free_fraction", 0, f"{settings.fraction:g} of what is free after a dry run")


def _loaded(model: ModelSpec, deployment: Deployment) -> Estimate | None:
    held = stored_weights(model, deployment)
    return None if held is None else Estimate(*(int(held * factor) for factor in LOADED))


def _terms(model: ModelSpec, deployment: Deployment, budget: Budget) -> tuple[Term, ...] | None:
    """What a dry run finds taken; None where the weights are not known."""
    loaded = _loaded(model, deployment)
    if loaded is None or budget.device is None:
        return None
    text = "activations of a dry run, driver, libraries, NCCL, graphs"
    return Term("weights", loaded, "as loaded"), Term("other", OTHER, text)


def _pool(
    model: ModelSpec,
    deployment: Deployment,
    settings: Settings,
    pools: Sequence[WindowPool],
    state: int,
    batch_size: int,
    budget: Budget | None,
) -> Pool | None:
    """The pools as given, else estimated from the device; None without either."""
    if budget is None or not (pools or state):
        return None
    terms: tuple[Term, ...] = ()
    if budget.num_blocks is not None:
        held = budget.num_blocks * settings.tokens_per_block * sum(p.token_bytes for p in pools)
        size = Estimate.exact(held + settings.max_batch_size * state)
        ends = [[budget.num_blocks] * len(pools)] * 3
        return _filled(size, ends, pools, settings, state, batch_size, terms)
    if budget.pool_bytes is not None:
        room = Estimate.exact(budget.pool_bytes)
    elif budget.device is not None:
        found = _terms(model, deployment, budget)
        if found is None:
            return None
        terms, total = found, budget.device.memory_bytes
        least = int(total * 0.97) if budget.device.memory_is_nominal else total
        free = (
            total - sum(term.bytes.value for term in found),
            least - sum(term.bytes.high for term in found),
            total - sum(term.bytes.low for term in found),
        )
        room = Estimate(*(max(int(end * settings.fraction), 0) for end in free))
    else:
        return None
    ends = [cut(end, pools, settings, state) for end in (room.value, room.low, room.high)]
    return _filled(room, ends, pools, settings, state, batch_size, terms)


def _filled(
    room: Estimate,
    ends: Sequence[Sequence[int]],
    pools: Sequence[WindowPool],
    settings: Settings,
    state: int,
    batch_size: int,
    terms: tuple[Term, ...],
) -> Pool:
    """The pools' figures at their value, low and high end; the log counts blocks of all pools."""
    at_once = [concurrency(end, pools, settings, state) for end in ends]
    totals = Estimate(*(sum(end) for end in ends))
    largest = largest_batch(room.value, ends[0], pools, settings, state)
    return Pool(
        pool_bytes=room,
        num_blocks=totals,
        pool_tokens=Estimate(
            *(n * settings.tokens_per_block for n in (totals.value, totals.low, totals.high))
        ),
        max_concurrency=at_once[0],
        max_concurrency_low=at_once[1],
        max_concurrency_high=at_once[2],
        fits=batch_size <= largest,
        max_batch_size=largest,
        terms=terms,
    )
