"""Hybrids whose layers keep a linear-attention state or a short convolution."""

from __future__ import annotations

from dataclasses import replace

from kvtool.model import blocks, decoder, layout
from kvtool.model.fields import MAX_TOKENS, Fields
from kvtool.model.spec import Attention, Index, Layer, ModelSpec, Recurrent, State, Weight
from kvtool.model.styles import PLAIN, Style

QWEN_NEXT = replace(
    PLAIN, qkv_bias="attention_bias", o_bias="attention_bias", qk_norm="head",
    shared="gated", shared_gate=True,
)  # fmt: skip


LINEAR = ("full", "linear")

# What a layer of each kind keeps, and the weights of its mixer.
Mixers = dict[str, tuple[tuple[State, ...], tuple[Weight, ...]]]


def state_dtype(f: Fields, default: str) -> str:
    """Element type of recurrent states: the configuration's own field, else `default`."""
    for name in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype"):
        if f.has(name):
            found = f.text(name)
            return default if found == "auto" else f.dtype_name(name, found)
    return default


def full_kinds(f: Fields, layers: int, interval: int) -> list[str]:
    """Linear layers with full attention on every `interval`-th, or as `layer_types` says."""
    if f.strings("layer_types") is not None:
        return layout.layer_kinds(f, layers, allowed=LINEAR)
    return ["linear" if (i + 1) % interval else "full" for i in range(layers)]


def attention_state(f: Fields) -> Attention:
    """What a full layer keeps, where all full layers are alike."""
    heads = f.integer("num_attention_heads")
    width = decoder.head_dim(f, heads)
    kv = f.integer("num_key_value_heads", heads)
    if heads % kv:
        f.fault("num_key_value_heads", kv, f"a divisor of the {heads} attention heads")
    return Attention(heads, kv, width, f.integer("v_head_dim", width))


def assemble_mixers(f: Fields, style: Style, kinds: list[str], mixers: Mixers) -> ModelSpec:
    """The model whose i-th layer has the mixer `kinds[i]` and a plain MLP or experts behind it."""
    hidden = f.integer("hidden_size")
    moe = layout.moe_layers(f, len(kinds), style.dense)
    mlps = {sparse: decoder.feed_forward(f, style, hidden, sparse=sparse) for sparse in set(moe)}
    norms = decoder.norms(f, style, hidden)
    made: dict[tuple[str, bool], Layer] = {}
    for kind, sparse in dict.fromkeys(zip(kinds, moe, strict=True)):
        states, weights = mixers[kind]
        made[kind, sparse] = Layer(states, weights + mlps[sparse] + norms)
    layers = tuple(made[key] for key in zip(kinds, moe, strict=True))
    template = next((layer for layer in reversed(layers) if attends(layer)), layers[-1])
    return decoder.assemble(f, style, layers, hidden, template)


def attends(layer: Layer) -> bool:
    """Whether the layer keeps anything but recurrent and convolution states."""
    return any(not isinstance(state, Recurrent) for state in layer.states)


def delta_shape(f: Fields) -> tuple[int, int, int, int, int]:
    """Key heads, value heads, their widths and the convolution kernel of gated delta nets."""
    return (
        f.integer("linear_num_key_heads"),
        f.integer("linear_num_value_heads"),
        f.integer("linear_key_head_dim"),
        f.integer("linear_value_head_dim"),
        f.integer("linear_conv_kernel_dim"),
    )


def read_delta(f: Fields, *, interval: int = 4) -> ModelSpec:
    """Qwen3-Next and Qwen3.5: gated delta nets, every fourth layer gated attention."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    kinds = full_kinds(f, count, f.integer("full_attention_interval", interval))
    shape = delta_shape(f)
    state = attention_state(f)
    style = replace(QWEN_NEXT, output_gate=f.flag("attn_output_gate", True))
    full = decoder.attention_weights(f, style, state, hidden)
    linear = blocks.delta_net(hidden, *shape)
    mixers: Mixers = {
        "full": ((state,), full),
        "linear": (blocks.delta_state(*shape, f.dtype, state_dtype(f, f.dtype)), linear),
    }
    return assemble_mixers(f, style, kinds, mixers)


def read_lara(f: Fields) -> ModelSpec:
    """Lara: delta nets, windows and full layers in turns of five, experts in every layer."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    if f.strings("layer_types") is not None:
        kinds = layout.layer_kinds(f, count, allowed=(*LINEAR, "sliding"))
    else:
        turn = ("linear", "sliding", "linear", "full", "sliding")
        kinds = [turn[i % len(turn)] for i in range(count)]
    shape = delta_shape(f)
    state = attention_state(f)
    local = replace(state, kind="sliding", limit=f.integer("sliding_window", high=MAX_TOKENS))
    style = replace(QWEN_NEXT, shared_gate=False)
    attention = decoder.attention_weights(f, style, state, hidden)
    mixers: Mixers = {
        "full": ((state,), attention),
        "sliding": ((local,), attention),
        "linear": (
            blocks.delta_state(*shape, f.dtype, state_dtype(f, f.dtype)),
            blocks.delta_net(hidden, *shape),
        ),
    }
    return assemble_mixers(f, style, kinds, mixers)


def read_qwen4(f: Fields) -> ModelSpec:
    """Qwen4-Exp: Qwen3-Next with an index beside the full layers (one key per token), several
    residual streams, and n-gram embeddings on `ple_layer_ids` (counted from 1)."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    interval = f.integer("full_attention_interval", 4)
    if f.strings("layer_types") is not None:
        listed = layout.layer_kinds(f, count, allowed=(*LINEAR, "indexed"))
        kinds = ["full" if kind == "indexed" else kind for kind in listed]
    else:
        kinds = ["linear" if (i + 1) % interval else "full" for i in range(count)]
    chosen = {i - 1 for i in f.integers("ple_layer_ids", low=1, high=count) or ()}
    kinds = [f"{kind} ple" if i in chosen else kind for i, kind in enumerate(kinds)]
    shape = delta_shape(f)
    state = attention_state(f)
    style = replace(QWEN_NEXT, norms=0, final_norm=False, output_gate=True)
    streams, rank = f.integer("hc_count"), f.integer("hc_lowrank")
    wide = streams * hidden
    mixer = Weight("hyper_connection", "mlp", ((1 + 2 * rank) * wide,))
    connections = Weight("hyper_connections", "mlp", (2, (1 + 2 * rank + streams) * wide))
    kept: tuple[State, ...] = (state,)
    full = (*decoder.attention_weights(f, style, state, hidden), connections)
    if f.has("indexer_head_dim"):
        size, heads = f.integer("indexer_head_dim"), f.integer("indexer_n_heads")
        kept += (Index(size),)
        full += blocks.linear("self_attn.indexer.qk", (heads + 1) * size, hidden, part="attention")
        full += blocks.norm("self_attn.indexer.norms", size, count=2)
    linear = (*blocks.delta_net(hidden, *shape), connections)
    states = blocks.delta_state(*shape, f.dtype, state_dtype(f, f.dtype))
    tails: tuple[State, ...] = ()
    if chosen:
        steps = (f.integer("ple_conv_kernel_size", 4) - 1) * f.integer("ngram_size", 3)
        tails = (Recurrent("conv", ((wide * steps, 0),), f.dtype),)
    mixers: Mixers = {
        "full": (kept, full),
        "linear": (states, linear),
        "full ple": ((*kept, *tails), full),
        "linear ple": ((*states, *tails), linear),
    }
    spec = assemble_mixers(f, style, kinds, mixers)
    spec = replace(spec, head=(*spec.head, mixer))
    if not chosen:
        return spec
    note = "parameters of Qwen4-Exp's n-gram embeddings (ple_layer_ids) are not counted here"
    return replace(spec, weights_known=False, notes=(*spec.notes, note))


def read_olmo_hybrid(f: Fields) -> ModelSpec:
    """OLMo-Hybrid: gated delta nets with separate projections, every fourth layer attention."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    heads = f.integer("num_attention_heads")
    kinds = full_kinds(f, count, 4)
    if "full" not in kinds:
        kinds[-1] = "full"
    keys, values = (
        f.integer("linear_num_key_heads", heads),
        f.integer("linear_num_value_heads", heads),
    )
    key_dim = f.integer("linear_key_head_dim", int(0.75 * hidden / keys))
    value_dim = f.integer("linear_value_head_dim", 2 * key_dim)
    shape = (keys, values, key_dim, value_dim, f.integer("linear_conv_kernel_dim", 4))
    state = attention_state(f)
    style = replace(PLAIN, qkv_bias="attention_bias", o_bias="attention_bias", qk_norm="full")
    mixers: Mixers = {
        "full": ((state,), decoder.attention_weights(f, style, state, hidden)),
        "linear": (
            blocks.delta_state(*shape, f.dtype, state_dtype(f, f.dtype)),
            blocks.delta_net(hidden, *shape),
        ),
    }
    return assemble_mixers(f, style, kinds, mixers)


def read_lightning(f: Fields) -> ModelSpec:
    """MiniMax-01: lightning attention, a matrix per head; one layer of eight attends in full."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    listed = f.integers("attn_type_list", high=1)
    if listed is not None and len(listed) != count:
        f.fault("attn_type_list", listed, f"one entry for each of the {count} layers")
        listed = None
    if listed is not None:
        kinds = ["full" if entry else "linear" for entry in listed]
    elif f.strings("layer_types") is not None:
        kinds = layout.layer_kinds(f, count, allowed=LINEAR)
    else:
        kinds = ["linear" if (i + 1) % 2 else "full" for i in range(count)]
    state = attention_state(f)
    heads, width = state.num_q_heads, state.head_dim
    inner = heads * width
    name = "self_attn"
    linear = (
        *blocks.linear(f"{name}.qkv_proj", 3 * inner, hidden, part="recurrent", units=heads),
        *blocks.linear(f"{name}.output_gate", inner, hidden, part="recurrent", units=heads),
        Weight(f"{name}.norm", "norm", (inner,), heads),
        *blocks.linear(f"{name}.out_proj", hidden, inner, part="recurrent", units=heads, rows=True),
    )
    kept = (Recurrent("recurrent", ((heads * width * width, heads),), state_dtype(f, f.dtype)),)
    mixers: Mixers = {
        "full": ((state,), decoder.attention_weights(f, PLAIN, state, hidden)),
        "linear": (kept, linear),
    }
    return assemble_mixers(f, PLAIN, kinds, mixers)


def read_lfm2(f: Fields) -> ModelSpec:
    """LFM2 and LFM3: gated short convolutions that keep kernel-1 columns, attention on some layers.

    LFM3 has windows, norms after each branch and a gate per head.
    """
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    third = f.model_type == "lfm3"
    state = attention_state(f)
    kernel, bias = f.integer("conv_L_cache", 3), f.flag("conv_bias", False)
    conv: tuple[Weight, ...] = (
        *blocks.linear(
            "conv.in_proj", 3 * hidden, hidden, part="recurrent", units=hidden, bias=bias
        ),
        Weight("conv.conv", "recurrent", (hidden, kernel), hidden),
        *blocks.linear(
            "conv.out_proj", hidden, hidden, part="recurrent", units=hidden, bias=bias, rows=True
        ),
    )  # fmt: skip
    if bias:
        conv += (Weight("conv.conv.bias", "recurrent", (hidden,), hidden),)
    style = replace(PLAIN, qk_norm="head")
    if third:
        style = replace(
            style, qkv_bias="attention_bias", o_bias="attention_bias",
            head_gate="use_attention_gate", norms=4 if f.flag("use_sandwich_norm", True) else 2,
        )  # fmt: skip
    attention = decoder.attention_weights(f, style, state, hidden)
    mixers: Mixers = {
        "full": ((state,), attention),
        "conv": ((Recurrent("conv", ((hidden * (kernel - 1), hidden),), f.dtype),), conv),
    }
    if third:
        local = replace(state, kind="sliding", limit=f.integer("sliding_window", high=MAX_TOKENS))
        mixers["sliding"] = ((local,), attention)
    return assemble_mixers(f, style, _lfm_kinds(f, count, third=third), mixers)


def _lfm_kinds(f: Fields, layers: int, *, third: bool) -> list[str]:
    """`layer_types`, else full layers by `full_attn_idxs` (LFM2) or the turns of four of LFM3."""
    if f.strings("layer_types") is not None:
        kinds = ("full", "conv", "sliding") if third else ("full", "conv")
        return layout.layer_kinds(f, layers, allowed=kinds)
    if third:
        turn = ("sliding", "conv", "full", "conv")
        return [turn[i % 4] if i else "conv" for i in range(layers)]
    full = f.integers("full_attn_idxs", high=layers - 1)
    chosen = set(range(layers) if full is None else full)
    return ["full" if i in chosen else "conv" for i in range(layers)]


def read_griffin(f: Fields) -> ModelSpec:
    """RecurrentGemma: gated linear recurrences in float32, every third layer a sliding window."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    pattern = f.strings("block_types") or ["recurrent", "recurrent", "attention"]
    f.one_of("block_types", pattern, ("recurrent", "attention"))
    kinds = [
        "linear" if pattern[i % len(pattern)] == "recurrent" else "sliding" for i in range(count)
    ]
    width = f.integer("lru_width", hidden)
    kernel = f.integer("conv1d_width", 4)
    state = replace(
        attention_state(f), kind="sliding", limit=f.integer("attention_window_size", 2048)
    )
    heads = state.num_q_heads
    block = width // heads
    recurrent = (
        *blocks.linear(
            "temporal_block.linear_yx", 2 * width, hidden, part="recurrent", units=heads, bias=True
        ),
        *blocks.linear(
            "temporal_block.linear_out", hidden, width, part="recurrent", units=heads, bias=True,
            rows=True,
        ),
        Weight("temporal_block.conv_1d", "recurrent", (width, kernel + 1), heads),
        Weight("temporal_block.rg_lru.gates", "recurrent", (2, heads, block, block + 1), heads),
        Weight("temporal_block.rg_lru.recurrent_param", "recurrent", (width,), heads),
    )  # fmt: skip
    kept = (
        Recurrent("conv", ((width * (kernel - 1), heads),), f.dtype),
        Recurrent("recurrent", ((width, heads),), "float32"),
    )
    attention = blocks.attention(
        state, hidden, qkv_bias=f.flag("attention_bias", False), o_bias=True
    )
    inner = f.integer("intermediate_size") // 2
    tail = blocks.mlp(hidden, inner, bias=True) + blocks.norm("norms", hidden, count=2)
    made = {"linear": Layer(kept, recurrent + tail), "sliding": Layer((state,), attention + tail)}
    return decoder.assemble(f, PLAIN, tuple(made[kind] for kind in kinds), hidden)
