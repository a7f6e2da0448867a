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
from kvtool.dtype import DTYPES
from kvtool.engines.base import Budget, Deployment, Estimate, Group, Pool, Reason, Reserve, Term
from kvtool.engines.deployed import extra_layers, owner, stored_weights
from kvtool.engines.transformers_options import CHECKED, Release, Settings, find_release, settle
from kvtool.errors import KvtoolError, UsageError
from kvtool.model.spec import (
    Attention,
    Index,
    Latent,
    Layer,
    ModelSpec,
    Recurrent,
    Shared,
    State,
    shares,
    stages,
)

NAME = "transformers"
GIB = 1 << 30

# Driver, libraries and activations beside weights and cache. Nothing is reserved, and no run was
# measured: the range is wide.
OTHER = Estimate(int(1.5 * GIB), int(0.4 * GIB), int(5 * GIB))
LOADED = (1.0, 0.98, 1.03)

# Recurrent matrices that a model's own cache keeps in the model's type.
MODEL_TYPE_STATES = ("minimax",)

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
class Kept:
    """What a layer keeps of one state: rows (0 for a state) of so many bytes, and why."""

    kind: str
    rows: int
    bytes: int
    reasons: tuple[tuple[str, int], ...]


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
        every = [[*_kept(model, part, settings, context_tokens, encoder)] for part in parts]
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


def _kept(
    model: ModelSpec, layers: Sequence[Layer], settings: Settings, context: int, encoder: int
) -> Iterator[Kept]:
    for layer in layers:
        for state in layer.states:
            if settings.implementation == "quantized" and state.kind != "full":
                raise UsageError(
                    "a quantised cache of transformers takes models of full attention only",
                    f"{model.name} has {state.kind} layers: leave --kv-dtype at auto",
                )
            yield _state(model, layer, state, settings, context, encoder)


def _state(
    model: ModelSpec, layer: Layer, state: State, settings: Settings, context: int, encoder: int
) -> Kept:
    release, tp = settings.release, settings.parallel.tp
    if isinstance(state, Attention):
        return _attention(state, settings, context, encoder)
    if isinstance(state, Latent) and state.stride == 1:
        return _latent(state, settings, context)
    if isinstance(state, Index):
        element = settings.plain.k.block_bytes
        rows = _length(settings, context)
        difference = element * state.width * rows - state.bytes(context, settings.kv)
        return Kept(
            "index", rows, element * state.width * rows, (("index_keys_16_bit", difference),)
        )
    if isinstance(state, Recurrent):
        return _recurrent(model, layer, state, settings)
    if isinstance(state, Shared):
        read = owner(layer, model.layers) if release.stores_shared else None
        if read is None:
            return Kept("shared", 0, 0, ())
        size = read.row_bytes(settings.kv, tp) * context
        return Kept("shared", context, size, (("shared_layers", size),))
    what = "compressed latent" if isinstance(state, Latent) else state.kind
    raise KvtoolError(
        f"the transformers adapter does not cover the {what} layers of {model.name} yet",
        "use --engine logical for what the architecture keeps",
    )


def _length(settings: Settings, context: int) -> int:
    return settings.max_cache_len if settings.implementation == "static" else context


def _attention(state: Attention, settings: Settings, context: int, encoder: int) -> Kept:
    row = state.row_bytes(settings.kv, settings.parallel.tp)
    if state.kind == "cross":
        return Kept("cross", encoder, row * encoder, ())
    stored = state.tokens(context, encoder)
    if state.limit is None:
        return _full(state, settings, context)
    if settings.implementation == "static":
        rows = min(state.limit, settings.max_cache_len)
        return Kept(state.kind, rows, row * rows, (("static_length", row * (rows - stored)),))
    if not settings.release.windows:
        return Kept(
            state.kind,
            context,
            row * context,
            (("window_stored_in_full", row * (context - stored)),),
        )
    rows = min(context, state.limit - 1)
    return Kept(state.kind, rows, row * rows, (("window_between_steps", row * (rows - stored)),))


def _full(state: Attention, settings: Settings, context: int) -> Kept:
    """Every token's row; a quantised cache keeps the last ones in the model's type."""
    tp = settings.parallel.tp
    row, plain = state.row_bytes(settings.kv, tp), state.row_bytes(settings.plain, tp)
    if settings.implementation == "quantized":
        recent = min(settings.residual_length, context)
        more = recent * (plain - row)
        return Kept("full", context, row * context + more, (("residual_precision", more),))
    rows = _length(settings, context)
    return Kept("full", rows, row * rows, (("static_length", row * (rows - context)),))


def _latent(state: Latent, settings: Settings, context: int) -> Kept:
    row, rows = state.row_bytes(settings.kv), _length(settings, context)
    if settings.release.latent_rows:
        return Kept("latent", rows, row * rows, (("static_length", row * (rows - context)),))
    heads = shares(state.num_q_heads, settings.parallel.tp)
    whole = settings.kv.k.row_bytes(heads, state.qk_head_dim)
    whole += settings.kv.v.row_bytes(heads, state.v_head_dim)
    reasons = (
        ("heads_uncompressed", (whole - row) * context),
        ("static_length", whole * (rows - context)),
    )
    return Kept("latent", rows, whole * rows, reasons)


def _recurrent(model: ModelSpec, layer: Layer, state: Recurrent, settings: Settings) -> Kept:
    """A state as the model class keeps it: tails one column longer, matrices in float32.

    Mamba 2 kept its matrices in the model's type up to 5.8.
    """
    logical = state.bytes(0, settings.kv, settings.parallel)
    elements = sum(
        count // units * shares(units, settings.parallel.tp) if units else count
        for count, units in state.parts
    )
    if state.kind == "conv":
        tail = state.tail or _tail(layer, state)
        if not tail:
            raise KvtoolError(
                f"the convolution of {model.name} has no width here",
                "use --engine logical for what the architecture keeps",
            )
        size = DTYPES[model.dtype].row_bytes(1, elements // tail * (tail + 1))
        return Kept("conv", 0, size, (("tail_column", size - logical),))
    old = _is_mamba2(layer) and not settings.release.float32_states
    plain = old or model.model_type in MODEL_TYPE_STATES
    size = DTYPES[model.dtype if plain else "float32"].row_bytes(1, elements)
    return Kept("recurrent", 0, size, (("state_dtype", size - logical),))


def _tail(layer: Layer, state: Recurrent) -> int:
    """Columns of a convolution's tail, from the channels of its kernels; 0 without kernels."""
    kernels = [
        weight
        for weight in layer.weights
        if len(weight.shape) > 1 and ("conv1d" in weight.name or weight.name.endswith(".conv"))
    ]
    channels = sum(weight.shape[0] for weight in kernels)
    return sum(count for count, _ in state.parts) // channels if channels else 0


def _is_mamba2(layer: Layer) -> bool:
    """Whether decay, skip and step bias are numbers per head, read as one tensor."""
    return any(weight.name.endswith("A_log_D_dt_bias") for weight in layer.weights)


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
