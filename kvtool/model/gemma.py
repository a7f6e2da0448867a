"""Gemma 3n and Gemma 4: layers that share keys and values, two head sizes, per-layer inputs."""

from __future__ import annotations

from dataclasses import replace

from kvtool.model import blocks, decoder, layout
from kvtool.model.fields import MAX_TOKENS, Fields
from kvtool.model.spec import Attention, Layer, ModelSpec, Shared, State, Weight
from kvtool.model.styles import PLAIN


def _shared(f: Fields, layers: int) -> list[bool]:
    """Which layers read the cache of an earlier layer of their kind: the last
    `num_kv_shared_layers`, or where `kv_sharing_modes` says `reuse`."""
    modes = f.strings("kv_sharing_modes")
    if modes is not None and len(modes) == layers:
        return [mode == "reuse" for mode in modes]
    count = f.integer("num_kv_shared_layers", 0, low=0, high=layers)
    return [i >= layers - count for i in range(layers)]


def _per_layer_inputs(f: Fields, layers: int, hidden: int) -> tuple[int, tuple[Weight, ...]]:
    """Width of the inputs that every layer gets from an embedding of its own, and its tensors."""
    size = f.integer("hidden_size_per_layer_input", 0, low=0)
    if not size:
        return 0, ()
    rows = f.integer("vocab_size_per_layer_input", high=1 << 28)
    return size, (
        Weight("embed_tokens_per_layer", "embedding", (rows, layers * size), rows),
        *blocks.linear("per_layer_model_projection", layers * size, hidden, part="embedding"),
        *blocks.norm("per_layer_projection_norm", size),
    )


def _gate(size: int, hidden: int) -> tuple[Weight, ...]:
    if not size:
        return ()
    return (
        *blocks.linear("per_layer_input_gate", size, hidden, part="mlp"),
        *blocks.linear("per_layer_projection", hidden, size, part="mlp"),
        *blocks.norm("post_per_layer_input_norm", hidden),
    )


def read_gemma4(f: Fields) -> ModelSpec:
    """Gemma 4: sliding layers `head_dim` wide, full layers `global_head_dim` wide with heads of
    their own where keys serve as values; shared layers store nothing."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    kinds = layout.layer_kinds(f, count, "period:6")
    kinds[-1] = "full"
    shared = _shared(f, count)
    heads, kv = f.integer("num_attention_heads"), f.integer("num_key_value_heads")
    local = f.integer("head_dim")
    diffusion = f.model_type == "diffusion_gemma_text"
    same = diffusion or f.flag("attention_k_eq_v", False)
    wide = f.integer("global_head_dim", local)
    wide_kv = f.integer("num_global_key_value_heads", kv) if same else kv
    full = kinds.index("full")
    if f.mapping("per_layer_config"):
        wide = layout.overridden(f, "head_dim", [local] * count)[full]
        wide_kv = layout.overridden(f, "num_key_value_heads", [kv] * count)[full]
    window = f.integer("sliding_window", high=MAX_TOKENS)
    size, inputs = _per_layer_inputs(f, count, hidden)
    experts = diffusion or f.flag("enable_moe_block", False)
    double = f.flag("use_double_wide_mlp", False)

    def layer(kind: str, reuse: bool) -> Layer:
        if kind == "sliding":
            state = Attention(heads, kv, local, local, "sliding", window)
        else:
            state = Attention(heads, wide_kv, wide, wide)
        kept: State = Shared() if reuse else state
        inner = f.integer("intermediate_size") * (2 if double and reuse else 1)
        weights = (
            *blocks.attention(state, hidden, values=not (same and kind != "sliding"),
                              kv=not reuse, qkv_bias=f.flag("attention_bias", False)),
            *blocks.qk_norm(state, "head", kv=not reuse),
            *blocks.mlp(hidden, inner),
            *_gate(size, hidden),
            *blocks.norm("norms", hidden, count=7 if experts else 4),
        )  # fmt: skip
        if experts:
            weights += _experts(f, hidden)
        return Layer((kept,), weights)

    made = {key: layer(*key) for key in set(zip(kinds, shared, strict=True))}
    layers = tuple(made[key] for key in zip(kinds, shared, strict=True))
    spec = decoder.assemble(f, PLAIN, layers, hidden)
    return replace(spec, embedding=spec.embedding + inputs)


def _experts(f: Fields, hidden: int) -> tuple[Weight, ...]:
    """Experts beside the MLP, with a learned scale of the router's input and of each expert."""
    count = f.integer("num_experts")
    inner = f.optional("moe_intermediate_size") or f.integer("expert_intermediate_size")
    return (
        *blocks.experts(hidden, inner, count, f.integer("num_experts_per_tok"), name="moe"),
        Weight("router.scale", "router", (hidden,)),
        Weight("router.per_expert_scale", "router", (count,)),
    )


def read_gemma3n(f: Fields) -> ModelSpec:
    """Gemma 3n: four parallel residual streams (AltUp), low-rank residuals (LAuReL), per-layer
    inputs; every fifth layer attends in full, the last `num_kv_shared_layers` share."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    kinds = layout.layer_kinds(f, count, "period:5")
    shared = _shared(f, count)
    inner = f.per_layer("intermediate_size", count, low=1)
    heads, kv, width = (
        f.integer(name) for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    window = f.integer("sliding_window", high=MAX_TOKENS)
    size, inputs = _per_layer_inputs(f, count, hidden)
    streams, rank = f.integer("altup_num_inputs", 4), f.integer("laurel_rank", 64)

    def layer(kind: str, reuse: bool, wide: int) -> Layer:
        state = Attention(heads, kv, width, width)
        if kind == "sliding":
            state = replace(state, kind="sliding", limit=window)
        kept: State = Shared() if reuse else state
        weights = (
            *blocks.attention(state, hidden, kv=not reuse),
            *blocks.qk_norm(state, "head", kv=not reuse),
            *blocks.mlp(hidden, wide),
            *_gate(size, hidden),
            *blocks.linear("laurel.linear_left", rank, hidden, part="mlp"),
            *blocks.linear("laurel.linear_right", hidden, rank, part="mlp"),
            Weight("altup.coefs", "mlp", (streams * streams + streams**3,)),
            Weight("altup.modality_router", "mlp", (streams, hidden)),
            *blocks.norm("norms", hidden, count=4 + 1 + 2),
        )
        return Layer((kept,), weights)

    keys = list(zip(kinds, shared, inner, strict=True))
    made = {key: layer(*key) for key in set(keys)}
    spec = decoder.assemble(f, PLAIN, tuple(made[key] for key in keys), hidden)
    projections = Weight("altup_projections", "embedding", (2 * (streams - 1), hidden, hidden))
    return replace(spec, embedding=(*spec.embedding, *inputs, projections))
