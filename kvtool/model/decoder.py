"""Decoder-only transformers whose layers differ from Llama's only as `styles` says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvtool.model import blocks, layout
from kvtool.model.extras import extra_weights
from kvtool.model.fields import MAX_TOKENS, MAX_VOCAB, Fields
from kvtool.model.spec import Attention, Index, Layer, ModelSpec, State, Weight
from kvtool.model.styles import Style

# Width of the MLPs that stand where other layers have experts, under its published names.
DENSE_WIDTHS = (
    "dense_intermediate_size",
    "intermediate_size_mlp",
    "prefix_dense_intermediate_size",
)


def read(f: Fields, style: Style) -> ModelSpec:
    """The decoder that the fields describe, without name and dtype."""
    count = layout.num_layers(f)
    hidden = f.integer("hidden_size")
    allowed = (*layout.ATTENTION, "indexed") if style.indexed else layout.ATTENTION
    kinds = layout.layer_kinds(f, count, style.rule, allowed=allowed)
    states = attention_states(f, kinds)
    made: dict[object, Layer] = {}
    layers = []
    moe = layout.moe_layers(f, count, style.dense)
    extra = side_indexes(f, kinds) if style.indexed else [()] * count
    for i, state in enumerate(states):
        key = (state, moe[i], extra[i])
        if key not in made:
            made[key] = Layer(
                (state, *extra[i]),
                (
                    *attention_weights(f, style, state, hidden),
                    *_side_index(f, extra[i], hidden),
                    *extra_weights(f, state, hidden, sparse=moe[i]),
                    *feed_forward(f, style, hidden, sparse=moe[i]),
                    *norms(f, style, hidden),
                ),
            )  # fmt: skip
        layers.append(made[key])
    own = layout.prediction_kind(f, count)
    alike = [i for i in range(count) if kinds[i] == own and moe[i] == moe[-1]]
    template = layers[alike[-1]] if alike else None
    return assemble(f, style, tuple(layers), hidden, template)


def assemble(
    f: Fields, style: Style, layers: tuple[Layer, ...], hidden: int, template: Layer | None = None
) -> ModelSpec:
    """Embedding, head and multi-token-prediction layers around `layers`."""
    embedding, head, tied = embeddings(f, style, hidden)
    return ModelSpec(
        name="",
        model_type=f.model_type,
        dtype="",
        layers=layers,
        max_context=layout.max_context(f),
        hidden_size=hidden,
        vocab_size=vocab_size(f),
        embedding=embedding,
        head=head,
        tied=tied,
        mtp_layers=mtp_layers(f, template or layers[-1], hidden),
    )


def vocab_size(f: Fields) -> int:
    return f.integer("vocab_size", high=MAX_VOCAB)


def embeddings(
    f: Fields, style: Style, hidden: int
) -> tuple[tuple[Weight, ...], tuple[Weight, ...], bool]:
    """The first stage's tensors, the last stage's, and whether the two share the embedding."""
    vocab = vocab_size(f)
    tied = f.flag("tie_word_embeddings", f.flag("share_input_output_layers", style.tied))
    if f.present("tie_embedding"):
        tied = f.flag("tie_embedding", tied)
    rows = vocab + _extra_rows(f, style)
    embedding: tuple[Weight, ...] = (Weight("embed_tokens", "embedding", (rows, hidden), rows),)
    if style.positions is not None:
        rows = f.integer("max_position_embeddings", high=MAX_TOKENS) + style.positions
        embedding += (Weight("embed_positions", "embedding", (rows, hidden)),)
    if style.embedding_norm:
        embedding += blocks.norm("embedding_norm", hidden, bias=style.norm_bias)
    head: tuple[Weight, ...] = ()
    if style.final_norm:
        head += blocks.norm("norm", hidden, bias=style.norm_bias)
    if not tied:
        out = f.integer("output_vocab_size", vocab, high=MAX_VOCAB)
        head += (Weight("lm_head", "head", (out, hidden), out),)
    if _flag(f, style.head_bias):
        head += (Weight("lm_head.bias", "head", (vocab,), vocab),)
    return embedding, head, tied


def _extra_rows(f: Fields, style: Style) -> int:
    if isinstance(style.extra_rows, str):
        return f.integer(style.extra_rows, 0, low=0)
    return style.extra_rows


def mtp_layers(f: Fields, template: Layer, hidden: int) -> tuple[Layer, ...]:
    """The model's own multi-token-prediction layers: a decoder layer, two input norms, the
    projection that joins hidden state and embedding, and a final norm. They use the model's
    embedding and head (DeepSeek V3, Qwen3-Next)."""
    count = f.integer("num_nextn_predict_layers", 0, low=0, high=64)
    extra = (
        *blocks.norm("mtp.norms", hidden, count=3),
        *blocks.linear("mtp.eh_proj", hidden, 2 * hidden, part="mlp"),
    )
    return (replace(template, weights=template.weights + extra),) * count


def attention_states(f: Fields, kinds: Sequence[str]) -> list[Attention]:
    """What every layer keeps: its heads and widths, bounded by its window or chunk."""
    layers = len(kinds)
    heads, kv = query_heads(f, layers), kv_heads(f, layers)
    width = head_dim(f, max(heads))
    value = f.integer("v_head_dim", width)
    widths = layout.overridden(f, "head_dim", [width] * layers)
    window = layout.window(f)
    if {"full", "sliding"} <= set(kinds) and not layout.states_window(f):
        f.lacks("sliding_window", "some layers slide, no field says how far")
    chunk = f.optional("attention_chunk_size", high=MAX_TOKENS)
    local = _local(f)
    states: list[Attention] = []
    for i, kind in enumerate(kinds):
        state = Attention(heads[i], kv[i], widths[i], value if widths[i] == width else widths[i])
        if kind == "sliding" and window is not None:
            state = replace(state, kind="sliding", limit=window, **local)
        elif kind == "chunked" and chunk is not None:
            state = replace(state, kind="chunked", limit=chunk)
        if state.num_q_heads % state.num_kv_heads:
            expected = f"a divisor of the {state.num_q_heads} attention heads"
            f.fault("num_key_value_heads", state.num_kv_heads, expected)
        states.append(state)
    return states


# Heads and widths of sliding layers where they differ, as MiMo-V2 and Step 3.5 spell them.
LOCAL = {
    "num_q_heads": "swa_num_attention_heads",
    "num_kv_heads": "swa_num_key_value_heads",
    "head_dim": "swa_head_dim",
    "v_head_dim": "swa_v_head_dim",
}


MIMO_V2 = ("mimo_v2_flash", "mimo_v2")


def _local(f: Fields) -> dict[str, int]:
    found = {ours: f.integer(theirs) for ours, theirs in LOCAL.items() if f.has(theirs)}
    if f.model_type in MIMO_V2 and "num_kv_heads" not in found:
        # The class knows no field: sliding layers have twice the heads.
        found["num_kv_heads"] = 2 * f.integer("num_key_value_heads")
    return found


def query_heads(f: Fields, layers: int) -> list[int]:
    name = "num_attention_heads"
    per_layer = f"{name}_per_layer"
    heads = f.per_layer(per_layer if f.has(per_layer) else name, layers, low=1)
    return layout.overridden(f, name, heads)


def kv_heads(f: Fields, layers: int) -> list[int]:
    """Key/value heads of every layer; where the class has its own switch, by that switch."""
    heads = query_heads(f, layers)
    if f.model_type == "falcon" and not f.flag("new_decoder_architecture"):
        return [1] * layers if f.flag("multi_query", True) else heads
    if f.model_type == "gpt_bigcode":
        return [1] * layers if f.flag("multi_query", True) else heads
    if f.model_type == "chatglm" and not f.flag("multi_query_attention"):
        return heads
    name = "num_key_value_heads"
    per_layer = f"{name}_per_layer"
    if f.has(per_layer):
        heads = f.per_layer(per_layer, layers, low=1)
    elif f.has(name):
        heads = f.per_layer(name, layers, low=1)
    return layout.overridden(f, name, heads)


def head_dim(f: Fields, heads: int) -> int:
    """The width of a head: as configured, or hidden size over heads where the class derives it."""
    if f.has("head_dim"):
        return f.integer("head_dim")
    hidden = f.integer("hidden_size")
    if hidden % heads:
        f.lacks("head_dim", f"hidden_size {hidden} is no multiple of {heads} heads")
        return 1
    return hidden // heads


def side_indexes(f: Fields, kinds: Sequence[str]) -> list[tuple[State, ...]]:
    """Side indexes of sparse attention over plain keys and values (MiniMax-M3): one key per token
    on sparse layers, and a value where the index does not go without one."""
    layers = len(kinds)
    section, width, _ = _index_shape(f)
    if section.raw.get("use_sparse_attention") is False:
        return [()] * layers
    if f.has("layer_types"):
        on = [int(kind == "indexed") for kind in kinds]
    else:
        on = section.per_layer("sparse_attention_freq", layers, 0)
    no_value = section.per_layer("sparse_disable_index_value", layers, 1)
    return [
        ((Index(width),) if no_value[i] else (Index(width), Index(width))) if on[i] else ()
        for i in range(layers)
    ]


def _index_shape(f: Fields) -> tuple[Fields, int, int]:
    """Where the index is described, its width and query heads: `sparse_attention_config` or flat
    fields."""
    section = f.child("sparse_attention_config")
    width = section.optional("sparse_index_dim") or f.integer("index_head_dim", 128)
    heads = section.optional("sparse_num_index_heads") or f.integer("index_n_heads", 4)
    return section, width, heads


def _side_index(f: Fields, states: tuple[State, ...], hidden: int) -> tuple[Weight, ...]:
    """Projections and norms of MiniMax-M3's index: its query heads and one key."""
    if not states:
        return ()
    _, width, heads = _index_shape(f)
    name = "self_attn.indexer"
    return (
        *blocks.linear(f"{name}.q_proj", heads * width, hidden, part="attention"),
        *blocks.linear(f"{name}.k_proj", width, hidden, part="attention"),
        *blocks.norm(f"{name}.norms", width, count=2),
    )


def _flag(f: Fields, setting: bool | str) -> bool:
    return f.flag(setting) if isinstance(setting, str) else setting


def norms(f: Fields, style: Style, hidden: int) -> tuple[Weight, ...]:
    """The norms over the hidden size that every layer has."""
    count = style.norms + (2 if style.post_norms and f.flag(style.post_norms) else 0)
    if f.model_type == "falcon" and f.flag("parallel_attn", True):
        split = f.flag("new_decoder_architecture") and f.integer("num_ln_in_parallel_attn", 2) == 2
        count = 2 if split else 1
    if f.model_type == "stablelm" and f.flag("use_parallel_residual"):
        count = 1
    return blocks.norm("norms", hidden, bias=style.norm_bias, count=count)


def attention_weights(f: Fields, style: Style, state: Attention, hidden: int) -> tuple[Weight, ...]:
    """Projections of the layer that keeps `state`, and what `style` puts beside them."""
    weights = blocks.attention(
        state,
        hidden,
        qkv_bias=_flag(f, style.qkv_bias),
        o_bias=_flag(f, style.o_bias),
        gated=style.output_gate,
    )
    if style.qk_norm and (not style.qk_norm_flag or f.flag(style.qk_norm_flag)):
        weights += blocks.qk_norm(state, style.qk_norm) * (2 if style.qk_norm_bias else 1)
    if _flag(f, style.head_gate):
        weights += blocks.linear(
            "self_attn.g_proj", state.num_q_heads, hidden, part="attention", units=state.num_q_heads
        )
    if style.sinks and _has_sinks(f, state):
        weights += (
            Weight("self_attn.sinks", "attention", (state.num_q_heads,), state.num_q_heads),
        )
    return weights


def _has_sinks(f: Fields, state: Attention) -> bool:
    """MiMo-V2 has sinks on sliding layers only, unless its configuration says otherwise."""
    if f.model_type not in MIMO_V2:
        return True
    sliding = state.kind == "sliding"
    return f.flag(
        "add_swa_attention_sink_bias" if sliding else "add_full_attention_sink_bias", sliding
    )


def inner_size(f: Fields, style: Style, hidden: int) -> int:
    """Width of the MLP; a multiple of the hidden size where the class says so and no field does."""
    if style.inner and not f.has("intermediate_size"):
        return style.inner * hidden
    inner = f.integer("intermediate_size")
    return inner // 2 if f.model_type in ("qwen", "molmo", "moshi") else inner


def feed_forward(f: Fields, style: Style, hidden: int, *, sparse: bool) -> tuple[Weight, ...]:
    if sparse:
        return moe(f, style, hidden)
    if f.model_type in ("lfm2", "lfm2_moe"):
        return blocks.mlp(hidden, lfm2_inner(f))
    dense = next((f.optional(name) for name in DENSE_WIDTHS if f.has(name)), None)
    weights = blocks.mlp(
        hidden,
        dense or inner_size(f, style, hidden),
        gated=_flag(f, style.gated),
        bias=_flag(f, style.mlp_bias),
    )
    if style.activation:
        weights += (Weight("mlp.act_fn", "mlp", (style.activation,)),)
    return weights


def lfm2_inner(f: Fields) -> int:
    """Width of LFM2's MLP: two thirds of the field, scaled and rounded up, when it adjusts it."""
    inner = f.optional("block_ff_dim") or f.integer("intermediate_size")
    if not f.flag("block_auto_adjust_ff_dim", f.model_type == "lfm2"):
        return inner
    inner = int(2 * inner / 3)
    if f.has("block_ffn_dim_multiplier"):
        step = f.integer("block_multiple_of", 256)
        times = f.number("block_ffn_dim_multiplier", 1.0)
        if times <= 0:
            f.fault("block_ffn_dim_multiplier", times, "a positive number")
        inner = int(times * inner)
        inner = step * -(-inner // step)
    return inner


def moe(f: Fields, style: Style, hidden: int) -> tuple[Weight, ...]:
    """Router, experts and shared experts of one layer."""
    inner = f.optional("moe_intermediate_size") or inner_size(f, style, hidden)
    narrow = f.optional("routed_expert_hidden_size")
    weights = blocks.experts(
        narrow or hidden,
        inner,
        f.integer("num_experts", high=65_536),
        f.integer("num_experts_per_tok", high=65_536),
        bias=style.expert_bias,
        router_bias=_flag(f, style.router_bias),
    )
    if narrow:
        weights = (*_between_projections(f, hidden, narrow), *weights[1:])
    shared = shared_size(f, inner) if style.shared else 0
    if style.shared == "llama4":
        shared = inner_size(f, style, hidden)
    if shared:
        weights += blocks.mlp(
            hidden, shared, bias=_flag(f, style.mlp_bias), name="mlp.shared_experts"
        )
    if style.shared_gate:
        weights += (Weight("mlp.shared_expert_gate", "router", (1, hidden)),)
    return weights


def _between_projections(f: Fields, hidden: int, narrow: int) -> tuple[Weight, ...]:
    """What stands around experts that work at a narrower width (Kimi K3), the router included."""
    size = narrow if f.flag("latent_moe_use_norm", False) else 0
    return (
        Weight("mlp.gate", "router", (f.integer("num_experts", high=65_536), hidden)),
        *blocks.linear("mlp.routed_expert_down_proj", narrow, hidden, part="mlp"),
        *blocks.norm("mlp.routed_expert_norm", size),
        *blocks.linear("mlp.routed_expert_up_proj", hidden, narrow, part="mlp"),
    )


def renamed(f: Fields, raw: dict[str, Any], model_type: str = "") -> Fields:
    """The same section under other names: `raw` in place of the published fields."""
    kind = model_type or f.model_type
    twin = Fields(raw, f.where, model_type=kind, path=f.path, faults=f.faults, used=f.used)
    twin.dtype = f.dtype
    return twin


def shared_size(f: Fields, inner: int) -> int:
    """Width of the experts that every token uses, side by side; 0 for none."""
    for name in ("shared_expert_intermediate_size", "share_expert_dim", "shared_intermediate_size"):
        if f.has(name):
            return f.integer(name, low=0)
    for name in (
        "n_shared_experts",
        "num_shared_experts",
        "moe_num_shared_experts",
        "num_shared_expert",
    ):
        if f.has(name):
            width = f.optional("moe_shared_expert_intermediate_size") or inner
            return f.integer(name, low=0, high=1024) * width
    return 0
