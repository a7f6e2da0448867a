"""Logical bytes: what the architecture alone keeps per sequence, before any engine's pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kvtool.dtype import BF16, KVFormat
from kvtool.errors import UsageError
from kvtool.model.spec import (
    SINGLE,
    Attention,
    Index,
    Kind,
    Latent,
    Layer,
    ModelSpec,
    Parallel,
    Recurrent,
    State,
    stages,
)


@dataclass(frozen=True, slots=True)
class Component:
    """Layers that keep the same kind of state for the same number of tokens, on one device."""

    kind: Kind
    layers: int
    tokens: int
    bytes: int


def check_parallel(model: ModelSpec, parallel: Parallel) -> None:
    """UsageError when the heads of `model` cannot be dealt out over the ranks of `parallel`.

    Query heads must divide evenly. Key/value heads must too, or be copied evenly where ranks
    outnumber them; dcp splits tokens among ranks that would hold the same copy.
    """
    for state in set(model.states()):
        if not isinstance(state, Attention | Latent):
            continue
        heads, kv = state.num_q_heads, 1
        if isinstance(state, Attention):
            kv = state.num_kv_heads
        tp = parallel.tp
        if heads % tp:
            raise UsageError(
                f"tp {tp} does not divide the {heads} attention heads of {model.name}",
                f"use one of {', '.join(map(str, _divisors(heads)))}",
            )
        if kv % tp and tp % kv:
            raise UsageError(
                f"tp {tp} fits neither into nor over the {kv} key/value heads of {model.name}",
                "use a tp that divides them, or a multiple of them",
            )
        if parallel.dcp > max(1, tp // kv):
            raise UsageError(
                f"dcp {parallel.dcp} is more than the {max(1, tp // kv)} copies of each key/value"
                f" head at tp {tp}",
                "decode-context parallelism splits tokens among ranks that hold the same heads",
            )


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, min(n, 64) + 1) if n % d == 0]


def encoder_tokens(model: ModelSpec, given: int | None) -> int:
    """Tokens behind cross-attention: as given, else the model's own number, else an error."""
    if given is not None:
        return given
    if model.encoder_tokens is not None:
        return model.encoder_tokens
    if any(state.kind == "cross" for state in model.states()):
        raise UsageError(
            f"{model.name} has cross-attention over an input whose length its config does not fix",
            "give it with --encoder-tokens",
        )
    return 0


def _layers(model: ModelSpec, mtp: bool) -> tuple[Layer, ...]:
    return model.layers + model.mtp_layers if mtp else model.layers


def _stages(model: ModelSpec, parallel: Parallel, mtp: bool) -> list[Sequence[Layer]]:
    """Stages of the model; its MTP layers run on the last one."""
    found = stages(model.layers, parallel.pp)
    return [*found[:-1], [*found[-1], *model.mtp_layers]] if mtp else found


def _sum(
    layers: Iterable[Layer], context: int, kv: KVFormat, parallel: Parallel, encoder: int
) -> int:
    return sum(
        state.bytes(context, kv, parallel, encoder) for layer in layers for state in layer.states
    )


def fullest_stage(
    model: ModelSpec,
    context_tokens: int,
    kv: KVFormat = BF16,
    parallel: Parallel = SINGLE,
    encoder: int = 0,
    mtp: bool = False,
) -> Sequence[Layer]:
    """The layers of the pipeline stage whose devices hold most for a sequence of that length."""
    if parallel.pp == 1:
        return _layers(model, mtp)
    return max(
        _stages(model, parallel, mtp),
        key=lambda layers: _sum(layers, context_tokens, kv, parallel, encoder),
    )


def sequence_bytes(
    model: ModelSpec,
    context_tokens: int,
    kv: KVFormat = BF16,
    parallel: Parallel = SINGLE,
    encoder: int = 0,
    mtp: bool = False,
) -> int:
    """Logical bytes of cached state of one sequence on the device that holds most.

    The sum of what each of its layers keeps: a full layer one row per token, a sliding layer at
    most its window, a recurrent layer a state that does not grow. Not counted: pages, groups,
    padding (what an engine adds).
    """
    layers = fullest_stage(model, context_tokens, kv, parallel, encoder, mtp)
    return _sum(layers, context_tokens, kv, parallel, encoder)


def cluster_sequence_bytes(
    model: ModelSpec,
    context_tokens: int,
    kv: KVFormat = BF16,
    parallel: Parallel = SINGLE,
    encoder: int = 0,
    mtp: bool = False,
) -> int:
    """Bytes of one sequence over all devices, copies of replicated heads and rows included."""
    return parallel.tp * _sum(_layers(model, mtp), context_tokens, kv, parallel, encoder)


def fixed_bytes(
    layers: Iterable[Layer], kv: KVFormat = BF16, parallel: Parallel = SINGLE, encoder: int = 0
) -> int:
    """Recurrent, convolution and cross-attention state of one sequence; windows are not fixed."""
    return sum(
        state.bytes(0, kv, parallel, encoder)
        for layer in layers
        for state in layer.states
        if isinstance(state, Recurrent) or state.kind == "cross"
    )


def growing_bytes_per_token(
    layers: Iterable[Layer],
    kv: KVFormat = BF16,
    parallel: Parallel = SINGLE,
    max_context: int | None = None,
) -> int | float:
    """Slope of the sequence's bytes beyond every window, on average where it comes in steps.

    A window or chunk as long as `max_context`, the tokens the model was made for, never closes:
    its layer grows like a full one (Phi-3.5: 262,144 of 131,072).
    """
    slope = sum(
        _growing_row(state, kv, parallel, max_context) for layer in layers for state in layer.states
    )
    return int(slope) if slope == int(slope) else slope


def _growing_row(state: State, kv: KVFormat, parallel: Parallel, max_context: int | None) -> float:
    if isinstance(state, Attention):
        if state.kind == "full":
            return state.row_bytes(kv, parallel.tp) / parallel.dcp
        open_end = None not in (state.limit, max_context) and state.limit >= max_context  # type: ignore[operator]
        return state.row_bytes(kv, parallel.tp) if open_end and state.kind != "cross" else 0
    if isinstance(state, Latent | Index):
        return state.row_bytes(kv) / state.stride / parallel.dcp
    return 0


def components(
    layers: Iterable[Layer],
    context_tokens: int,
    kv: KVFormat = BF16,
    parallel: Parallel = SINGLE,
    encoder: int = 0,
) -> list[Component]:
    """What `layers` keep, summed by kind and number of stored tokens, in order of appearance."""
    found: dict[tuple[Kind, int], Component] = {}
    for layer in layers:
        for state in layer.states:
            tokens = state.tokens(context_tokens, encoder, parallel.dcp)
            seen = found.get((state.kind, tokens), Component(state.kind, 0, tokens, 0))
            found[state.kind, tokens] = replace(
                seen,
                layers=seen.layers + 1,
                bytes=seen.bytes + state.bytes(context_tokens, kv, parallel, encoder),
            )
    return list(found.values())


def with_kv_heads(model: ModelSpec, variant: str) -> ModelSpec | None:
    """The twin of `model` with multi-head (`mha`) or multi-query (`mqa`) attention.

    Every attention layer gets as many key/value heads as query heads, or a single one; latent
    layers become the uncompressed attention they stand for. None for a model without attention.
    """

    def twin(state: State) -> State:
        if not isinstance(state, Attention | Latent):
            return state
        heads = state.num_q_heads if variant == "mha" else 1
        if isinstance(state, Attention):
            return replace(state, num_kv_heads=heads)
        return Attention(state.num_q_heads, heads, state.qk_head_dim, state.v_head_dim)

    if not any(isinstance(state, Attention | Latent) for state in model.states()):
        return None
    twins = dict.fromkeys(model.layers)
    made = {layer: replace(layer, states=tuple(map(twin, layer.states))) for layer in twins}
    return replace(model, layers=tuple(made[layer] for layer in model.layers))
