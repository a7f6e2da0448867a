"""Latent attention with an indexer and more: A.X-K2, Hy4, Mistral Large 4, dots3-note.

Source: the modeling code of transformers 5.24.
"""

from __future__ import annotations

from dataclasses import replace

from kvtool.model import blocks, decoder, latent, layout
from kvtool.model.fields import MAX_TOKENS, Fields
from kvtool.model.spec import Attention, Index, Latent, Layer, ModelSpec, Shared, State, Weight
from kvtool.model.styles import PLAIN

STYLE = replace(PLAIN, shared="gated")


def _indexer(f: Fields, hidden: int, rank: int) -> tuple[Weight, ...]:
    return blocks.indexer(hidden, rank, f.integer("index_n_heads"), f.integer("index_head_dim"))


def read_axk2(f: Fields) -> ModelSpec:
    """A.X-K2: DeepSeek V3.2 with one projection for query and output gate, and norms whose gain
    passes through a low rank."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    state = latent.latent_state(f, f.integer("num_attention_heads"))
    rank, heads = f.integer("q_lora_rank"), state.num_q_heads
    low = f.integer("gated_norm_rank", 16)
    index = Index(f.integer("index_head_dim"))
    attention = (
        *(w for w in latent.latent_weights(f, state, hidden) if w.name != "self_attn.q_b_proj"),
        *blocks.linear(
            "self_attn.q_gate_proj", heads * (state.qk_head_dim + state.v_head_dim), 2 * rank,
            part="attention", units=heads,
        ),
        *_indexer(f, hidden, rank),
    )  # fmt: skip
    gate = (
        *blocks.linear("norm.mlp.fc1", low, hidden, part="norm"),
        *blocks.linear("norm.mlp.fc2", hidden, low, part="norm"),
    )

    def layer(sparse: bool) -> Layer:
        mlp = decoder.feed_forward(f, STYLE, hidden, sparse=sparse)
        norms = blocks.norm("norms", hidden, count=2) + gate * (2 if sparse else 1)
        return Layer((state, index), attention + mlp + norms)

    made = {sparse: layer(sparse) for sparse in (True, False)}
    moe = layout.moe_layers(f, count, 1)
    return decoder.assemble(f, STYLE, tuple(made[sparse] for sparse in moe), hidden)


def read_hy4(f: Fields) -> ModelSpec:
    """Hy4: latent attention with sinks and an output gate, an index on the first layer and on
    every fourth after it, four residual streams."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    state = latent.latent_state(f, f.integer("num_attention_heads"))
    rank, heads = f.integer("q_lora_rank"), state.num_q_heads
    streams = f.integer("hc_mult", 4)
    index = Index(f.integer("index_head_dim"))
    indexed = latent.listed_indexes(f, count)
    if indexed is None:
        indexed = [i == 0 or i % 4 == 1 for i in range(count)]
    wide = streams * hidden
    attention = (
        *latent.latent_weights(f, state, hidden),
        *blocks.linear(
            "self_attn.gate_proj", heads * state.v_head_dim, hidden, part="attention", units=heads
        ),
        Weight("self_attn.sinks", "attention", (heads,), heads),
        Weight("hyper_connections", "mlp", (2, 2 * streams * (wide + 1) + 2)),
        *blocks.norm("norms", hidden, count=2),
    )

    def layer(with_index: bool, sparse: bool) -> Layer:
        states: tuple[State, ...] = (state, index) if with_index else (state,)
        weights = attention + (_indexer(f, hidden, rank) if with_index else ())
        return Layer(states, weights + decoder.feed_forward(f, STYLE, hidden, sparse=sparse))

    keys = list(zip(indexed, layout.moe_layers(f, count, 1), strict=True))
    made = {key: layer(*key) for key in set(keys)}
    spec = decoder.assemble(f, STYLE, tuple(made[key] for key in keys), hidden)
    collapse = Weight("hc_head", "mlp", (streams * (wide + 1) + 1,))
    return replace(spec, head=(*spec.head, collapse))


def read_mistral_large4(f: Fields) -> ModelSpec:
    """Mistral Large 4: rows without a rotary part on the layers that use no positions, a row only
    where a layer is its own `kv_source_layers` entry, an index where `indexer_types` says full."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    heads = f.integer("num_attention_heads")
    rotary = layout.rotary_layers(f, count)
    rope, rank = f.integer("qk_rope_head_dim"), f.integer("kv_lora_rank")
    wide = f.integer("qk_nope_head_dim") + rope
    value = f.integer("v_head_dim")
    index, index_heads = Index(f.integer("index_head_dim")), f.integer("index_n_heads")
    indexed = latent.index_layers(f, count)
    moe = layout.moe_layers(f, count, 1)
    source = f.integers("kv_source_layers", high=count - 1) or list(range(count))
    if len(source) != count:
        f.fault("kv_source_layers", source, f"one entry for each of the {count} layers")
        source = list(range(count))

    def layer(rotated: bool, owns: bool, with_index: bool, sparse: bool) -> Layer:
        turned = rope if rotated else 0
        state = Latent(rank + turned, heads, wide, value)
        weights = blocks.latent(state, hidden, kv_rank=rank, rope=turned, q_rank=None)
        weights += (Weight("self_attn.softmax_scaling", "attention", (2, heads), heads),)
        states: tuple[State, ...] = (state,)
        if not owns:
            states = (Shared(),)
            weights = tuple(w for w in weights if "kv_a" not in w.name)
        if with_index:
            states += (index,)
            weights += (
                *blocks.indexer(hidden, hidden, index_heads, index.width),
                *blocks.norm("self_attn.indexer.q_input_norm", hidden, bias=True),
                Weight("self_attn.indexer.softmax_scaling", "attention", (2, index_heads)),
            )
        mlp = decoder.feed_forward(f, STYLE, hidden, sparse=sparse)
        return Layer(states, weights + mlp + blocks.norm("norms", hidden, count=2))

    owns = [source[i] == i for i in range(count)]
    keys = list(zip(rotary, owns, indexed, moe, strict=True))
    made = {key: layer(*key) for key in set(keys)}
    spec = decoder.assemble(f, STYLE, tuple(made[key] for key in keys), hidden)
    alpha = Weight("rotary_emb.alpha", "attention", (rope // 2,))
    return replace(spec, head=(*spec.head, alpha))


def read_dots3(f: Fields) -> ModelSpec:
    """dots3-note: windows of wide latent rows, with an indexed or full latent layer on each fourth.

    The sliding layers have `swa_` heads and ranks of their own; `use_dsa` false drops the index.
    """
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    kinds = _dots3_kinds(f, count)
    window = f.optional("sliding_window", high=MAX_TOKENS) or f.integer("sliding_window_size", 512)
    full = latent.latent_state(f, f.integer("num_attention_heads"))
    first = kinds.index("sliding") if "sliding" in kinds else 0

    def swa(name: str, default: int) -> int:
        """A field of the sliding layers: `swa_NAME`, or that of the first in per_layer_config."""
        return layout.overridden(f, name, [f.integer(f"swa_{name}", default)] * count)[first]

    nope = swa("qk_nope_head_dim", 192)
    rope = swa("qk_rope_head_dim", swa("head_dim", 256) - nope)
    ranks = {"full": f.integer("kv_lora_rank"), "sliding": swa("kv_lora_rank", 1024)}
    local = Latent(
        ranks["sliding"] + rope, swa("num_attention_heads", 64), nope + rope,
        swa("v_head_dim", 128),
    )  # fmt: skip
    rotary = {"full": f.integer("qk_rope_head_dim"), "sliding": rope}
    q_ranks = {"full": f.integer("q_lora_rank"), "sliding": swa("q_lora_rank", 1024)}
    index = Index(f.integer("index_head_dim"))

    def layer(kind: str, sparse: bool) -> Layer:
        role = "sliding" if kind == "sliding" else "full"
        state = local if role == "sliding" else full
        kept: tuple[State, ...] = (state,)
        if kind == "sliding":
            kept = (Attention(state.num_q_heads, 1, state.width, 0, "sliding", window),)
        weights = (
            *blocks.latent(
                state, hidden, kv_rank=ranks[role], rope=rotary[role], q_rank=q_ranks[role],
                bias=f.flag("attention_bias"),
            ),
            *blocks.norm("self_attn.k_rope_only_layernorm", rotary[role]),
            *blocks.linear(
                "self_attn.g_proj", state.num_q_heads, hidden, part="attention",
                units=state.num_q_heads,
            ),
        )  # fmt: skip
        if kind == "indexed":
            kept += (index,)
            weights += _indexer(f, hidden, q_ranks[role])
        mlp = decoder.feed_forward(f, STYLE, hidden, sparse=sparse)
        return Layer(kept, weights + mlp + blocks.norm("norms", hidden, count=2))

    keys = list(zip(kinds, layout.moe_layers(f, count, 1), strict=True))
    made = {key: layer(*key) for key in set(keys)}
    return decoder.assemble(f, STYLE, tuple(made[key] for key in keys), hidden)


def _dots3_kinds(f: Fields, layers: int) -> list[str]:
    """`sliding`, and `indexed` or `full` by `use_dsa`; the first two layers and every fourth from
    the second on are not sliding where no list says."""
    own = "full" if f.raw.get("use_dsa") is False else "indexed"
    f.used.add(f"{f.path}use_dsa")
    if f.strings("layer_types") is not None:
        kinds = layout.layer_kinds(f, layers, allowed=("full", "sliding", "indexed"))
        return [kind if kind == "sliding" else own for kind in kinds]
    windows = f.flag("use_sliding_window", True)
    return [own if not windows or i < 2 or i % 4 == 1 else "sliding" for i in range(layers)]
