"""Inkling: short convolutions on keys, values and both residual branches beside the attention.

Source: the modeling code of transformers 5.24.
"""

from __future__ import annotations

from dataclasses import replace

from kvtool.model import blocks, decoder, layout
from kvtool.model.fields import MAX_TOKENS, MAX_VOCAB, Fields
from kvtool.model.spec import Attention, Layer, ModelSpec, Recurrent, State, Weight
from kvtool.model.styles import PLAIN


def _kinds(f: Fields, layers: int) -> list[str]:
    """`hybrid` (full) and `hybrid_sliding` layers: listed, by `local_layer_ids`, or 5 to 1."""
    if f.strings("layer_types") is not None:
        return layout.layer_kinds(f, layers, allowed=("hybrid", "hybrid_sliding"))
    local = f.integers("local_layer_ids", high=layers - 1)
    chosen = {i for i in range(layers) if (i + 1) % 6} if local is None else set(local)
    return ["hybrid_sliding" if i in chosen else "hybrid" for i in range(layers)]


def _attention(f: Fields, kind: str) -> Attention:
    if kind == "hybrid":
        names = ("num_attention_heads", "num_key_value_heads", "head_dim")
    else:
        names = ("swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim")
    heads, kv, width = (f.integer(name) for name in names)
    if heads % kv:
        f.fault(names[1], kv, f"a divisor of the {heads} attention heads")
    if kind == "hybrid":
        return Attention(heads, kv, width, width)
    window = f.optional("sliding_window", high=MAX_TOKENS) or f.integer("sliding_window_size")
    return Attention(heads, kv, width, width, "sliding", window)


def _states(f: Fields, state: Attention, hidden: int) -> tuple[State, ...]:
    """Keys and values, and the tails of four convolutions: on k, on v, after each branch."""
    tail = f.integer("conv_kernel_size") - 1
    row = state.num_kv_heads * state.head_dim * tail
    parts = ((2 * row, state.num_kv_heads), (2 * hidden * tail, 0))
    return (state, Recurrent("conv", parts, f.dtype))


def read_inkling(f: Fields) -> ModelSpec:
    """Inkling: relative positions through a low rank, shared experts that the router weighs."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    kernel, rank = f.integer("conv_kernel_size"), f.integer("d_rel")
    inner = f.integer("moe_intermediate_size", f.integer("intermediate_size"))
    wide = f.integer("intermediate_size")
    if f.has("dense_intermediate_size"):
        inner, wide = wide, f.integer("dense_intermediate_size")
    experts, top = f.integer("num_experts"), f.integer("num_experts_per_tok")
    shared = f.integer("n_shared_experts", 0, low=0)
    rows = experts + (shared if f.flag("shared_expert_sink", False) else 0)
    sparse_mlp = (
        Weight("mlp.gate", "router", (rows, hidden)),
        Weight("mlp.gate.global_scale", "router", (1,)),
        *blocks.experts(hidden, inner, experts, top)[1:],
        *blocks.mlp(hidden, inner * shared, name="mlp.shared_experts"),
    )
    mlps = {True: sparse_mlp, False: blocks.mlp(hidden, wide)}

    def layer(kind: str, sparse: bool) -> Layer:
        state = _attention(f, kind)
        heads, row = state.num_q_heads, state.num_kv_heads * state.head_dim
        extent = f.integer("rel_extent") if state.limit is None else state.limit
        weights = (
            *blocks.attention(state, hidden),
            *blocks.linear("self_attn.r_proj", heads * rank, hidden, part="attention", units=heads),
            Weight("self_attn.rel_logits", "attention", (rank, extent)),
            Weight("self_attn.kv_sconv", "attention", (2 * row, kernel), state.num_kv_heads),
            *blocks.qk_norm(state, "head"),
            Weight("branch_sconv", "mlp", (2 * hidden, kernel)),
            *mlps[sparse],
            *blocks.norm("norms", hidden, count=2),
        )
        return Layer(_states(f, state, hidden), weights)

    keys = list(zip(_kinds(f, count), layout.moe_layers(f, count), strict=True))
    made = {key: layer(*key) for key in set(keys)}
    spec = decoder.assemble(f, PLAIN, tuple(made[key] for key in keys), hidden)
    return _trimmed(f, spec, hidden)


def _trimmed(f: Fields, spec: ModelSpec, hidden: int) -> ModelSpec:
    """The model with a norm on its embedding and a head without the padding of the vocabulary."""
    vocab = f.integer("unpadded_vocab_size", spec.vocab_size, high=MAX_VOCAB)
    head = tuple(
        replace(w, shape=(vocab, hidden), units=vocab) if w.name == "lm_head" else w
        for w in spec.head
    )
    return replace(spec, head=head, embedding=(*spec.embedding, *blocks.norm("embed_norm", hidden)))


def read_inkling2(f: Fields) -> ModelSpec:
    """Inkling 2: gated attention with a sink per head; residual branches look at earlier blocks.

    The `loop` models run layers `loop_layer_index_start` to `loop_layer_index_end` several times;
    each pass keeps its own rows and tails.
    """
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    kinds = _kinds(f, count)
    passes = f.integer("loop_num_passes", 1, high=1024)
    start = f.integer("loop_layer_index_start", 0, low=0)
    end = f.integer("loop_layer_index_end", 0, low=0)
    layers = []
    for i, kind in enumerate(kinds):
        looped = start <= i < end
        states = _states(f, _attention(f, kind), hidden) * (passes if looped else 1)
        weights = _inkling2_weights(f, kind, hidden, first=i == 0)
        if looped:
            rank = f.integer("loop_gate_rank")
            weights += (Weight("message_gates", "mlp", (4, rank, 4 * hidden)),)
        layers.append(Layer(states, weights))
    unique = {layer: layer for layer in layers}
    spec = decoder.assemble(f, PLAIN, tuple(unique[layer] for layer in layers), hidden)
    extra = Weight("final_input.query", "norm", (hidden,))
    if end > start:
        blocks_of = -(-count // f.integer("n_layers_per_attn_res_block"))
        extra = replace(extra, shape=(1 + (end - start) * blocks_of, hidden))
    return _trimmed(f, replace(spec, head=(*spec.head, extra)), hidden)


def _inkling2_weights(f: Fields, kind: str, hidden: int, *, first: bool) -> tuple[Weight, ...]:
    state = _attention(f, kind)
    heads, kv, width = state.num_q_heads, state.num_kv_heads, state.head_dim
    kernel, rank = f.integer("conv_kernel_size"), f.integer("d_rel")
    row, full = kv * width, kind == "hybrid"
    inner = f.integer("moe_intermediate_size")
    # Queries over earlier blocks: one before the MLP, one (full layers: q, k, v) before attention.
    queries = 1 + (0 if first else 3 if full else 1)
    weights = (
        *blocks.attention(state, hidden, gated=True),
        Weight("self_attn.q_norm", "norm", (heads, width), heads),
        Weight("self_attn.sink", "attention", (heads, hidden), heads),
        Weight("self_attn.kv_sconv", "attention", (2 * row, kernel), kv),
        Weight("self_attn.relative_position_bias", "attention", (rank, f.integer("rel_extent"))),
        *blocks.linear("self_attn.relative", heads * rank, hidden, part="attention", units=heads),
        Weight("self_attn.relative_norm", "norm", (heads, rank), heads),
        *blocks.experts(hidden, inner, f.integer("num_experts"), f.integer("num_experts_per_tok")),
        *blocks.norm("norms", hidden, count=queries + (4 if full else 2)),
        Weight("branch_convolutions", "mlp", (2 * hidden, kernel)),
    )
    if full:
        weights += (
            Weight("self_attn.kv_sconv.dynamic", "attention", (2 * kv * kernel, hidden), kv),
        )
    return weights
