"""llama.cpp: the buffers of a context, allocated whole at start-up, and what fits beside them.

A context of n_ctx cells serves n_seq_max slots; here n_ctx = context x batch and n_seq_max = batch.
`llamacpp_releases` holds the rules by build, `llamacpp_options` the settings, `llamacpp_caches` the
buffers. Devices share out whole layers: `--gpus N` splits layers, whatever it is called elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvtool.engines.base import Budget, Deployment, Estimate, Group, Pool, Reason, Reserve, Term
from kvtool.engines.llamacpp_caches import STATE, Buffers, Cache, device_layers, rolls_back
from kvtool.engines.llamacpp_options import Settings, settle
from kvtool.engines.llamacpp_releases import Release, find_release, is_near_a_change
from kvtool.errors import ModelError
from kvtool.kvcache import encoder_tokens
from kvtool.model import weights
from kvtool.model.spec import Attention, Index, Latent, Layer, ModelSpec, Recurrent, State

NAME = "llamacpp"
MAX_CELLS = 1 << 40

# What each reason means; the order is that of the explanation.
TEXTS = {
    "padded_context": "a slot's cells are a multiple of 256",
    "window_batch": "a window's cells also hold a batch of tokens, rounded up to 256",
    "window_stored_in_full": "windows are stored in full",
    "latent_values": "the values inside a latent row are stored once more",
    "uncompressed_rows": "latent rows are stored as heads of uncompressed attention",
    "index_rows": "index keys are stored in the type of the cache",
    "value_padding": "without flash attention values are as wide as in the widest layer",
    "float32_state": "recurrent states and convolution tails are float32",
    "snapshots": "recurrent states are kept again for each drafted token",
    "cross_attention": "keys and values of the encoder's output are computed, not cached",
    "draft_type": "a drafter keeps float16 whatever the cache type",
}


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """The adapter for one build."""

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
        """The buffers of a context for `batch_size` slots, on the device that holds most.

        Raises UsageError for what cannot be (options, cache types, more devices than layers).
        """

        def settled(context: int, slots: int) -> Settings:
            return settle(context, slots, deployment, self.release, rolls_back=rolls_back(model))

        settings = settled(context_tokens, batch_size)
        devices = deployment.parallel.tp * deployment.parallel.pp
        parts = device_layers(model, devices)
        extra = _drafted(model, deployment)
        held = [_bytes(model, part, settings) for part in parts]
        held[-1] += _bytes(model, extra, settings, is_draft=True)
        stage = max(range(devices), key=held.__getitem__)
        own = extra if stage == devices - 1 else ()
        one = settled(context_tokens, 1)
        request = _bytes(model, parts[stage], one) + _bytes(model, own, one, is_draft=True)
        buffers = Buffers.of(model, one)
        groups = [_group(cache) for cache in buffers.caches(parts[stage])]
        groups += [_group(c) for c in Buffers.of(model, one, is_draft=True).caches(own)]
        grown = sum(g.page_bytes * g.layers for g in groups if g.blocks == one.n_ctx_seq)
        reserve = Reserve(
            engine=self.name,
            version=self.version,
            kv=settings.kv,
            context_tokens=context_tokens,
            batch_size=batch_size,
            block_size=1,
            bytes_per_block=grown or request,
            blocks_per_request=one.n_ctx_seq,
            request_bytes=request,
            cache_bytes=held[stage],
            cluster_bytes=sum(held),
            groups=tuple(groups),
            reasons=_reasons(
                model, parts[stage], own, one, encoder_tokens(model, deployment.encoder_tokens)
            ),
            settings=settings.shown(),
            loaded_bytes=_loaded(model, deployment, devices),
            warnings=self._warnings(model, devices),
        )

        def cache_bytes(context: int, slots: int) -> int:
            wanted = settled(context, slots)
            return _bytes(model, parts[stage], wanted) + _bytes(model, own, wanted, is_draft=True)

        return replace(reserve, pool=_pool(model, reserve, settings, budget, cache_bytes))

    def _warnings(self, model: ModelSpec, devices: int) -> tuple[str, ...]:
        found = []
        if is_near_a_change(self.version):
            found.append(
                f"llama.cpp {self.version} is near a change of rules whose build is not known"
            )
        if devices > 1:
            found.append(f"llama.cpp deals whole layers out to the {devices} devices")
        if any(state.kind == "cross" for state in model.states()):
            found.append("llama.cpp computes cross-attention anew and keeps no cache of it")
        return tuple(found)


def load(version: str | None = None) -> LlamaCpp:
    """The adapter for `version`, the newest known when None; UsageError for an unknown one."""
    return LlamaCpp(*find_release(version))


def context_caches(
    model: ModelSpec, deployment: Deployment, version: str, context: int, slots: int
) -> tuple[Settings, list[Cache]]:
    """The settings and the caches of a context, line by line as the log prints them."""
    release = find_release(version)[1]
    settings = settle(context, slots, deployment, release, rolls_back=rolls_back(model))
    found = Buffers.of(model, settings).caches(model.layers)
    drafter = Buffers.of(model, settings, is_draft=True)
    return settings, [*found, *drafter.caches(_drafted(model, deployment))]


def _drafted(model: ModelSpec, deployment: Deployment) -> tuple[Layer, ...]:
    """Layers of the context that drafts: the model's own MTP layers, another model's."""
    own = model.mtp_layers if deployment.mtp else ()
    return (*own, *(deployment.draft.layers if deployment.draft else ()))


def _bytes(
    model: ModelSpec, layers: Sequence[Layer], settings: Settings, *, is_draft: bool = False
) -> int:
    if not layers:
        return 0
    buffers = Buffers.of(model, settings, is_draft=is_draft)
    return sum(sum(buffers.sides(state)) for layer in layers for state in layer.states)


def _group(cache: Cache) -> Group:
    """A cache of a single slot: a block is a cell."""
    cells = cache.cells * cache.streams
    return Group(cache.kind, cache.layers, 1, cache.total_bytes // (cells * cache.layers), cells)


def _reasons(
    model: ModelSpec,
    layers: Sequence[Layer],
    drafted: Sequence[Layer],
    settings: Settings,
    encoder: int,
) -> tuple[Reason, ...]:
    """Why a slot takes other than its logical bytes; their sum is exactly the difference."""
    totals = dict.fromkeys(TEXTS, 0)
    for part, is_draft in ((layers, False), (drafted, True)):
        if not part:
            continue
        buffers = Buffers.of(model, settings, is_draft=is_draft)
        for state in (s for layer in part for s in layer.states):
            for name, difference in _differences(state, buffers, encoder):
                totals[name] += difference
    return tuple(Reason(name, count, TEXTS[name]) for name, count in totals.items() if count)


def _differences(state: State, buffers: Buffers, encoder: int) -> list[tuple[str, int]]:
    settings = buffers.settings
    context = settings.context_tokens
    logical = state.bytes(context, settings.kv, encoder=encoder)
    held = sum(buffers.sides(state))
    if isinstance(state, Recurrent):
        once = STATE.row_bytes(1, sum(count for count, _ in state.parts))
        return [("float32_state", once - logical), ("snapshots", held - once)]
    if state.kind == "cross":
        return [("cross_attention", held - logical)]
    if not held:
        return []
    row = sum(buffers.rows(state))
    tokens = state.tokens(context, encoder)
    cells = buffers.cells(state) * buffers.streams
    if buffers.has_window(state) and not settings.swa_full:
        more = "window_batch"
    elif isinstance(state, Attention) and state.limit is not None:
        more = "window_stored_in_full"
    else:
        more = "padded_context"
    return [(more, (cells - tokens) * row), (_row_reason(state, buffers), tokens * row - logical)]


def _row_reason(state: State, buffers: Buffers) -> str:
    """What makes a row other than its logical bytes, by the kind of the state."""
    if buffers.is_draft:
        return "draft_type"
    if isinstance(state, Index):
        return "index_rows"
    if isinstance(state, Latent):
        compressed = sum(buffers.rows(state)) <= 2 * state.row_bytes(buffers.settings.kv)
        return "latent_values" if compressed else "uncompressed_rows"
    return "value_padding"


def _loaded(model: ModelSpec, deployment: Deployment, devices: int) -> Estimate | None:
    """Bytes of the weights on one device, all layers offloaded; None where they are not known.

    The embedding stays on the host unless it is also the head, which is then on the device.
    """
    total = _weight_bytes(model, deployment)
    if total is None:
        return None
    host = 0
    if not model.tied and model.weights_known and model.stored_bytes is None:
        whole = max(weights.parameters(model), 1)
        host = total * sum(w.elements for w in model.embedding) // whole
    share = -(-(total - host) // devices)
    return Estimate(share, share * 97 // 100, -(-total // devices) * 103 // 100)


def _weight_bytes(model: ModelSpec, deployment: Deployment) -> int | None:
    if deployment.dtype == "auto" and model.stored_bytes is not None:
        return model.stored_bytes
    if not model.weights_known:
        return None
    try:
        return weights.weight_bytes(model, deployment.dtype, mtp=deployment.mtp)
    except ModelError:
        return None


def _pool(
    model: ModelSpec,
    reserve: Reserve,
    settings: Settings,
    budget: Budget | None,
    cache_bytes: Callable[[int, int], int],
) -> Pool | None:
    """Memory for the caches, as given or left over on the device, and the cells it holds."""
    terms: tuple[Term, ...] = ()
    if budget is None:
        return None
    if budget.num_blocks is not None:
        room = Estimate.exact(budget.num_blocks * reserve.bytes_per_block)
    elif budget.pool_bytes is not None:
        room = Estimate.exact(budget.pool_bytes)
    elif budget.device is not None and reserve.loaded_bytes is not None:
        total = budget.device.memory_bytes
        usable = total - settings.fit_target if budget.fraction is None else int(
            total * budget.fraction
        )  # fmt: skip
        terms = (
            Term("weights", reserve.loaded_bytes, "the file's tensors, embedding on the host"),
            _compute(model, settings),
            DRIVER,
        )
        room = _left(usable, terms)
    else:
        return None
    slots = reserve.batch_size

    one = reserve.request_bytes

    def cells(size: int) -> int:
        """Cells of all slots; with a cache that does not grow, those of the slots that fit."""
        if one and cache_bytes(1, 1) == cache_bytes(MAX_CELLS, 1):
            return size // one * reserve.context_tokens
        return _most(lambda n: cache_bytes(n, slots) <= size) * slots

    ends = room.value, room.low, room.high
    concurrency = [end / one if one else 0.0 for end in ends]
    tokens = Estimate(*(cells(end) for end in ends))
    return Pool(
        pool_bytes=room,
        num_blocks=tokens,
        pool_tokens=tokens,
        max_concurrency=concurrency[0],
        max_concurrency_low=concurrency[1],
        max_concurrency_high=concurrency[2],
        fits=reserve.cache_bytes <= room.value,
        max_batch_size=room.value // one if one else 0,
        terms=terms,
    )


def _left(usable: int, terms: Sequence[Term]) -> Estimate:
    value = usable - sum(term.bytes.value for term in terms)
    low = usable - sum(term.bytes.high for term in terms)
    high = usable - sum(term.bytes.low for term in terms)
    return Estimate(max(value, 0), max(low, 0), max(high, 0))


def _compute(model: ModelSpec, settings: Settings) -> Term:
    """Scratch memory of the graph: logits and hidden states of a micro-batch in float32, and
    without flash attention the scores. Four posted logs (Gemma 2, gpt-oss twice, Qwen3.5) print
    1 to 5 % more."""
    tokens = settings.n_ubatch
    value = tokens * 4 * (model.vocab_size + model.hidden_size)
    if not settings.flash_attn:
        states = [s for s in model.states() if isinstance(s, Attention | Latent)]
        heads = max((state.num_q_heads for state in states), default=0)
        value += tokens * 4 * heads * settings.n_ctx_seq
    text = f"logits and hidden states of {tokens:,} tokens"
    return Term("compute", Estimate(value, value * 9 // 10, value * 5 // 4), text)


# What the driver keeps for a program; not measured.
DRIVER = Term("driver", Estimate(500 << 20, 200 << 20, 1 << 30), "the driver's own context")


def _most(fits: Callable[[int], bool]) -> int:
    """The largest number of cells that fits, 0 when not even one does."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high < MAX_CELLS and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
