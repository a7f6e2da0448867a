"""Encoder-decoder models: a self-attention and a cross-attention in every decoder layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvtool.model import blocks, decoder, layout
from kvtool.model.fields import MAX_TOKENS, Fields
from kvtool.model.spec import Attention, Layer, ModelSpec, Weight
from kvtool.model.styles import GEMMA, PLAIN


def read_t5(f: Fields) -> ModelSpec:
    """T5, FLAN-T5, mT5, UMT5, Switch: heads of `d_kv`, relative positions, a cross-attention per
    layer; Switch puts experts on every `num_layers / num_sparse_layers`-th layer."""
    encoder_layers = layout.num_layers(f)
    count = f.integer("num_decoder_layers", encoder_layers, high=10_000)
    hidden, heads, width = (
        f.integer(name) for name in ("hidden_size", "num_attention_heads", "head_dim")
    )
    projection = f.text("feed_forward_proj", "relu")
    gated = f.flag("is_gated_act", projection.startswith("gated"))
    state = Attention(heads, heads, width, width)
    cross = replace(state, kind="cross")
    attention = blocks.attention(state, hidden)
    dense = blocks.mlp(hidden, f.integer("intermediate_size"), gated=gated)
    buckets = Weight("relative_attention_bias", "attention",
                     (f.integer("relative_attention_num_buckets", 32), heads), heads)  # fmt: skip

    def feeds(layers: int, side: str) -> list[tuple[Weight, ...]]:
        chosen = _switch_layers(f, layers, side)
        return [_switch_experts(f, hidden) if sparse else dense for sparse in chosen]

    layers = tuple(
        Layer(
            (state, cross), (*attention, *attention, *feed, *blocks.norm("norms", hidden, count=3))
        )
        for feed in feeds(count, "decoder")
    )
    encoder = tuple(
        weight
        for feed in feeds(encoder_layers, "encoder")
        for weight in (*attention, *feed, *blocks.norm("norms", hidden, count=2))
    )
    spec = decoder.assemble(f, PLAIN, layers, hidden)
    per_layer = f.model_type == "umt5"
    if f.model_type == "longt5" and f.text("encoder_attention_type", "local") != "local":
        extent = buckets.elements + hidden * encoder_layers
        encoder += (Weight("global_attention", "attention", (extent,)),)
    return replace(
        spec,
        head=(*spec.head, *((buckets,) * (count if per_layer else 1))),
        encoder=(
            *encoder,
            *((buckets,) * (encoder_layers if per_layer else 1)),
            *blocks.norm("encoder.norm", hidden),
        ),
        encoder_tokens=layout.max_context(f),
    )


def _switch_layers(f: Fields, layers: int, side: str) -> list[bool]:
    """Layers with experts: each `step`-th from the second on, by the number of sparse layers."""
    if f.model_type != "switch_transformers":
        return [False] * layers
    sparse = f.integer(f"num_sparse_{side}_layers", 3, low=0, high=layers)
    step = layers // sparse if sparse else layers
    return [step == 1 or i % step == 1 for i in range(layers)]


def _switch_experts(f: Fields, hidden: int) -> tuple[Weight, ...]:
    return blocks.experts(
        hidden, f.integer("intermediate_size"), f.integer("num_experts"), 1, gated=False,
        router_bias=f.flag("router_bias", False),
    )  # fmt: skip


def read_whisper(f: Fields) -> ModelSpec:
    """Whisper: 1500 encoder frames behind every decoder layer."""
    count = f.integer("decoder_layers", high=10_000)
    hidden, heads = f.integer("d_model"), f.integer("decoder_attention_heads")
    ff, frames = f.integer("decoder_ffn_dim"), f.integer("max_source_positions", high=MAX_TOKENS)
    target = f.integer("max_target_positions", high=MAX_TOKENS)
    if hidden % heads:
        f.fault("decoder_attention_heads", heads, f"a divisor of d_model {hidden}")
    state = Attention(heads, heads, hidden // heads or 1, hidden // heads or 1)
    self_attention = blocks.attention(state, hidden, qkv_bias=True, o_bias=True)
    attention = tuple(w for w in self_attention if w.name != "self_attn.k_proj.bias")
    feed = blocks.mlp(hidden, ff, gated=False, bias=True)
    layer = Layer(
        (state, replace(state, kind="cross")),
        (*attention, *attention, *feed, *blocks.norm("norms", hidden, bias=True, count=3)),
    )
    mels = f.integer("num_mel_bins", 80)
    encoder_feed = blocks.mlp(hidden, f.integer("encoder_ffn_dim"), gated=False, bias=True)
    encoder_layer = (*attention, *encoder_feed, *blocks.norm("norms", hidden, bias=True, count=2))
    vocab = decoder.vocab_size(f)
    return ModelSpec(
        name="",
        model_type=f.model_type,
        dtype="",
        layers=(layer,) * count,
        max_context=target,
        hidden_size=hidden,
        vocab_size=vocab,
        embedding=(
            Weight("embed_tokens", "embedding", (vocab, hidden), vocab),
            Weight("embed_positions", "embedding", (target, hidden)),
        ),
        head=blocks.norm("norm", hidden, bias=True),
        tied=True,
        encoder=(
            Weight("conv1", "encoder", (hidden, mels, 3)),
            Weight("conv2", "encoder", (hidden, hidden, 3)),
            Weight("conv.bias", "encoder", (2, hidden)),
            Weight("embed_positions", "encoder", (frames, hidden)),
            *(encoder_layer * f.integer("encoder_layers", high=10_000)),
            *blocks.norm("encoder.norm", hidden, bias=True),
        ),
        encoder_tokens=frames,
    )


@dataclass(frozen=True, slots=True)
class Bart:
    """How a descendant of BART differs: rows of learned positions beyond the configured ones (None:
    positions without weights), a norm on the embedding, a norm behind the last layer."""

    positions: int | None
    embedding_norm: bool
    final_norm: bool


# Source: the modeling code of transformers 5.24. Marian's sinusoids stand in its checkpoints.
BARTS = {
    "bart": Bart(2, True, False),
    "plbart": Bart(2, True, False),
    "florence2_language": Bart(2, True, False),
    "mvp": Bart(2, True, False),
    "mbart": Bart(2, True, True),
    "marian": Bart(0, False, False),
    "pegasus": Bart(0, False, True),
    "blenderbot": Bart(0, False, True),
    "blenderbot-small": Bart(0, True, False),
    "m2m_100": Bart(None, False, True),
    "nllb-moe": Bart(None, False, True),
}


def read_bart(f: Fields) -> ModelSpec:
    """BART, mBART, Marian, Pegasus, M2M-100, NLLB, Blenderbot: a cross-attention per layer.

    NLLB-MoE has experts on every `decoder_sparse_step`-th layer.
    """
    shape = BARTS[f.model_type]
    count = f.integer("decoder_layers", high=10_000)
    hidden = f.integer("d_model")
    norm = blocks.norm("norms", hidden, bias=True)
    state = _square(f, "decoder_attention_heads", hidden)
    attention = blocks.attention(state, hidden, qkv_bias=True, o_bias=True)
    kept = (state, replace(state, kind="cross"))
    layers = tuple(
        Layer(kept, (*attention, *attention, *feed, *norm * 3))
        for feed in _bart_feeds(f, hidden, count, "decoder")
    )
    encoder: tuple[Weight, ...] = ()
    for feed in _bart_feeds(f, hidden, f.integer("encoder_layers", high=10_000), "encoder"):
        encoder += (*attention, *feed, *norm * 2)
    ends = norm * (shape.embedding_norm + shape.final_norm)
    if shape.positions is not None:
        rows = f.integer("max_position_embeddings", high=MAX_TOKENS) + shape.positions
        ends += (Weight("embed_positions", "embedding", (rows, hidden)),)
    spec = decoder.assemble(f, replace(PLAIN, final_norm=False), layers, hidden)
    spec = replace(
        spec,
        embedding=(*spec.embedding, *ends),
        encoder=encoder + ends,
        encoder_tokens=spec.max_context,
    )
    if not f.flag("is_decoder", False):
        return spec
    # The decoder of a composite such as Donut, whose encoder looks at images.
    note = f"the encoder beside this {f.model_type} decoder is not counted here"
    return replace(spec, encoder=(), encoder_tokens=None, weights_known=False, notes=(note,))


def _square(f: Fields, name: str, hidden: int) -> Attention:
    """Multi-head attention whose heads share out the hidden size."""
    heads = f.integer(name)
    if hidden % heads:
        f.fault(name, heads, f"a divisor of d_model {hidden}")
    return Attention(heads, heads, hidden // heads or 1, hidden // heads or 1)


def _bart_feeds(f: Fields, hidden: int, layers: int, side: str) -> list[tuple[Weight, ...]]:
    inner = f.integer(f"{side}_ffn_dim")
    dense = blocks.mlp(hidden, inner, gated=False, bias=True)
    step = f.integer(f"{side}_sparse_step", 0, low=0) if f.model_type == "nllb-moe" else 0
    if not step:
        return [dense] * layers
    experts = blocks.experts(hidden, inner, f.integer("num_experts"), 2, gated=False, bias=True)
    return [dense if (i + 1) % step else experts for i in range(layers)]


# Descendants of BART whose decoder is the same, but whose encoder has a shape of its own.
LONG_BARTS = ("led", "bigbird_pegasus", "pegasus_x", "fsmt", "trocr")


def read_long_bart(f: Fields) -> ModelSpec:
    """LED, BigBird-Pegasus, Pegasus-X, FSMT, TrOCR: states of the decoder; weights are not counted.

    TrOCR's encoder looks at images, so that its positions say nothing about the encoder's rows.
    """
    count, hidden = f.integer("decoder_layers", high=10_000), f.integer("d_model")
    state = _square(f, "decoder_attention_heads", hidden)
    source = f.optional("max_encoder_position_embeddings", high=MAX_TOKENS)
    target = f.optional("max_decoder_position_embeddings", high=MAX_TOKENS)
    context = layout.max_context(f)
    return ModelSpec(
        name="",
        model_type=f.model_type,
        dtype="",
        layers=(Layer((state, replace(state, kind="cross"))),) * count,
        max_context=target or context,
        hidden_size=hidden,
        encoder_tokens=source or (None if f.model_type == "trocr" else context),
        weights_known=False,
        notes=(f"parameters of {f.model_type} are not counted here",),
    )


def read_t5gemma(f: Fields) -> ModelSpec:
    """The decoder of T5Gemma (a cross-attention per layer) and of T5Gemma 2 (whose one attention
    reads its own rows and the encoder's through the same projections)."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    second = f.model_type == "t5gemma2_decoder"
    kinds = layout.layer_kinds(f, count, "period:6" if second else "even")
    style = replace(GEMMA, qk_norm="head" if second else "", norms=4 if second else 6)
    source = f.integer("cross_attention_hidden_size", hidden)
    states = decoder.attention_states(f, kinds)
    made = {}
    for state in dict.fromkeys(states):
        cross = replace(state, kind="cross", limit=None)
        weights = decoder.attention_weights(f, style, state, hidden)
        if not second:
            queries, keys, values, out = blocks.attention(state, hidden, name="cross_attn")
            heads = (replace(w, shape=(w.shape[0], source)) for w in (keys, values))
            weights += (queries, *heads, out)
        weights += decoder.feed_forward(f, style, hidden, sparse=False)
        made[state] = Layer((state, cross), weights + decoder.norms(f, style, hidden))
    spec = decoder.assemble(f, style, tuple(made[state] for state in states), hidden)
    return replace(
        spec,
        encoder_tokens=spec.max_context,
        weights_known=False,
        notes=("parameters of T5Gemma's encoder are not counted here",),
    )
