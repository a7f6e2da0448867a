"""Zamba, Zamba 2 and ZAYA: one shared attention block used many times, and convolved attention."""

from __future__ import annotations

from dataclasses import replace

from kvtool.model import blocks, decoder, layout
from kvtool.model.fields import MAX_TOKENS, Fields
from kvtool.model.mamba import time_step_rank
from kvtool.model.recurrent import state_dtype
from kvtool.model.spec import Attention, Layer, ModelSpec, Recurrent, State, Weight
from kvtool.model.styles import PLAIN

_ENTRIES = {
    "hybrid": True,
    "linear_attention": False,
    "mamba": False,
    "mamba2": False,
    "g": True,
    "m": False,
}


def _hybrids(f: Fields, layers: int, default: list[bool]) -> list[bool]:
    """Which layers call the shared attention block before their mixer."""
    name = "layers_block_type" if f.has("layers_block_type") else "layer_types"
    listed = f.strings(name)
    if listed is None:
        if len(default) != layers:
            f.lacks("layers_block_type", f"{layers} layers, the class lists {len(default)}")
            return [False] * layers
        return default
    if len(listed) != layers:
        f.fault(name, listed, f"one entry for each of the {layers} layers")
        return [False] * layers
    f.one_of(name, listed, _ENTRIES)
    return [_ENTRIES.get(entry, False) for entry in listed]


def _shared_attention(f: Fields, hidden: int) -> Attention:
    """The block reads hidden state and embedding side by side: twice the width."""
    heads = f.integer("num_attention_heads")
    width = f.integer("attention_head_dim", 2 * hidden // heads)
    return Attention(heads, f.integer("num_key_value_heads", heads), width, width)


def read_zamba(f: Fields) -> ModelSpec:
    """Zamba: Mamba 1 with several heads; one attention block, its rows kept at every use."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    period, offset = f.integer("attn_layer_period", 6), f.integer("attn_layer_offset", 4, low=0)
    default = [False, False, True] + [i % period == offset for i in range(count - 3)]
    hybrid = _hybrids(f, count, default[:count])
    inner, heads = f.integer("mamba_expand", 2) * hidden, f.integer("n_mamba_heads", 2)
    state, kernel = f.integer("mamba_d_state", 16), f.integer("mamba_d_conv", 4)
    rank = time_step_rank(f, "mamba_dt_rank", hidden)
    kept = blocks.mamba1_state(inner, state, kernel, f.dtype, state_dtype(f, f.dtype))
    mixer = blocks.mamba1(
        hidden, inner, state, kernel, rank, bias=f.flag("mamba_proj_bias", False),
        conv_bias=f.flag("mamba_conv_bias", True),
    )  # fmt: skip
    # One projection to time step, B and C per head, over the head's own channels.
    mixer = tuple(
        replace(w, shape=(rank + 2 * state, inner), units=heads) if "x_proj" in w.name else w
        for w in mixer
    )
    mixer += blocks.norm("norm", hidden)
    attention = _shared_attention(f, hidden)
    wide = attention.num_q_heads * attention.head_dim
    shared = (
        *blocks.attention(attention, wide)[:3],
        *blocks.linear("shared.o_proj", hidden, wide, part="attention",
                       units=attention.num_q_heads, rows=True),
        *blocks.mlp(hidden, f.integer("intermediate_size")),
        *blocks.norm("shared.norms", wide + hidden),
    )  # fmt: skip
    joint = blocks.linear("linear", hidden, hidden, part="attention")
    return _assemble(f, hybrid, kept, mixer, attention, joint, [shared])


def _assemble(
    f: Fields, hybrid: list[bool], kept: tuple[State, ...], mixer: tuple[Weight, ...],
    attention: Attention, joint: tuple[Weight, ...], shared: list[tuple[Weight, ...]],
) -> ModelSpec:  # fmt: skip
    """Layers around the shared blocks, whose weights count at their first use."""
    layers, uses = [], 0
    for uses_block in hybrid:
        if not uses_block:
            layers.append(Layer(kept, mixer))
            continue
        weights = (*mixer, *joint, *(shared[uses] if uses < len(shared) else ()))
        layers.append(Layer((attention, *kept), weights))
        uses += 1
    return decoder.assemble(f, PLAIN, tuple(layers), f.integer("hidden_size"))


def read_zamba2(f: Fields) -> ModelSpec:
    """Zamba 2: Mamba 2 mixers, `num_mem_blocks` attention blocks in turn, adapters per use."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    five, default = [False] * 5 + [True], [False]
    default = default + five * 7 + [False] * 4 + [True] + [False] * 3 + [True] + [False] * 2
    hybrid = _hybrids(f, count, default)
    inner, heads = f.integer("mamba_expand", 2) * hidden, f.integer("n_mamba_heads", 8)
    groups, state = f.integer("mamba_ngroups", 1), f.integer("mamba_d_state", 64)
    kernel = f.integer("mamba_d_conv", 4)
    kept = blocks.mamba2_state(
        inner, heads, groups, state, kernel, f.dtype, state_dtype(f, f.dtype)
    )
    mixer = blocks.mamba2(
        hidden, inner, heads, groups, state, kernel, bias=f.flag("add_bias_linear", False),
        conv_bias=f.flag("use_conv_bias", True),
    ) + blocks.norm("norm", hidden)  # fmt: skip
    attention = _shared_attention(f, hidden)
    wide = attention.num_q_heads * attention.head_dim
    ff, rank = f.integer("intermediate_size", 4 * hidden), f.integer("adapter_rank", 128)
    number, uses = f.integer("num_mem_blocks", 1), sum(hybrid)
    block = (
        *blocks.attention(attention, wide)[:3],
        *blocks.linear("shared.o_proj", hidden, wide, part="attention",
                       units=attention.num_q_heads, rows=True),
        *blocks.mlp(hidden, ff),
        *blocks.norm("shared.norms", wide + hidden),
    )  # fmt: skip
    shared = []
    for first in range(number):
        mine = len(range(first, uses, number))
        adapters: tuple[Weight, ...] = (
            Weight("shared.mlp_adapters", "mlp", (mine, rank, hidden + 2 * ff)),
        )
        if f.flag("use_shared_attention_adapter", False):
            adapters += (Weight("shared.qkv_adapters", "attention", (mine, 3 * rank, 2 * wide)),)
        shared.append(block + adapters)
    joint = blocks.linear("linear", hidden, hidden, part="attention")
    spec = _assemble(f, hybrid, kept, mixer, attention, joint, shared)
    if f.flag("use_long_context", False):
        spec = replace(spec, max_context=16_384)
    return spec


def read_zaya(f: Fields) -> ModelSpec:
    """ZAYA: queries and keys pass two short convolutions, half of each value comes one token late;
    a router with an MLP of its own, one expert of which is a skip."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    kinds = ["hybrid"] * count
    if f.strings("layer_types") is not None:
        kinds = layout.layer_kinds(f, count, allowed=("hybrid", "hybrid_sliding"))
    heads, kv, width = (
        f.integer(name) for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    q, k = heads * width, kv * width
    first, second = f.integer("cca_time0", 2), f.integer("cca_time1", 2)
    tails = (
        Recurrent("conv", (((q + k) * (first + second - 2), kv),), f.dtype),
        Recurrent("recurrent", ((k // 2, kv),), f.dtype),
    )
    router, experts = f.integer("router_hidden_size", 256), f.integer("num_experts")
    full = Attention(heads, kv, width, width)
    inner, bias = f.integer("moe_intermediate_size"), f.flag("attention_bias", False)
    window = f.optional("sliding_window", high=MAX_TOKENS)
    weights = (
        *blocks.attention(full, hidden, qkv_bias=bias),
        Weight("self_attn.conv_qk", "attention", (q + k, first + width * second + 2), kv),
        Weight("self_attn.qk_norm.temp", "attention", (kv,), kv),
        *blocks.linear("mlp.gate.down_proj", router, hidden, part="router", bias=True),
        *blocks.norm("mlp.gate.norm", router),
        *blocks.linear("mlp.gate.fc1", router, router, part="router", bias=True),
        *blocks.linear("mlp.gate.fc2", router, router, part="router", bias=True),
        *blocks.linear("mlp.gate.out_proj", experts + 1, router, part="router"),
        *blocks.experts(hidden, inner, experts, f.integer("num_experts_per_tok"))[1:],
        *blocks.norm("norms", hidden, count=2 + 8),
    )
    scale = blocks.norm("mlp.gate.router_states_scale", router)
    layers = []
    for i, kind in enumerate(kinds):
        state = full
        if kind == "hybrid_sliding" and window:
            state = replace(full, kind="sliding", limit=window)
        layers.append(Layer((state, *tails), weights + (scale if i else ())))
    spec = decoder.assemble(f, PLAIN, tuple(layers), hidden)
    return replace(spec, embedding=spec.embedding + blocks.norm("input_scale", hidden, bias=True))
