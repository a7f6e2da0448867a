"""What a layer of transformers' cache keeps of each state, and why it is not the logical bytes.

Rows and states as `cache_utils.py` and the models' own cache classes hold them, by release.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvtool.dtype import DTYPES
from kvtool.engines.deployed import owner
from kvtool.engines.transformers_options import Settings
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
)

# Recurrent matrices that a model's own cache keeps in the model's type.
MODEL_TYPE_STATES = ("minimax",)


@dataclass(frozen=True, slots=True)
class Kept:
    """What a layer keeps of one state: rows (0 for a state) of so many bytes, and why."""

    kind: str
    rows: int
    bytes: int
    reasons: tuple[tuple[str, int], ...]


def kept_states(
    model: ModelSpec, layers: Sequence[Layer], settings: Settings, context: int, encoder: int
) -> Iterator[Kept]:
    """What the cache keeps of every state of `layers`.

    Raises UsageError for what a quantised cache refuses, KvtoolError for what is not covered here.
    """
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
