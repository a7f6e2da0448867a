"""Encoder-decoder models, decoders that look at images, and models without a decoder."""

from __future__ import annotations

from dataclasses import replace

from kvtool.model import blocks, decoder, layout
from kvtool.model.fields import MAX_TOKENS, Fields
from kvtool.model.spec import Attention, Layer, ModelSpec, Weight
from kvtool.model.styles import CLASSIC, PLAIN


def read_t5(f: Fields) -> ModelSpec:
    """T5, FLAN-T5, mT5, UMT5: heads of `d_kv`, relative positions, a cross-attention per layer."""
    encoder_layers = layout.num_layers(f)
    count = f.integer("num_decoder_layers", encoder_layers, high=10_000)
    hidden, heads, width = f.integer("hidden_size"), f.integer("num_attention_heads"), f.integer("head_dim")  # fmt: skip
    inner = f.integer("intermediate_size")
    projection = f.text("feed_forward_proj", "relu")
    gated = f.flag("is_gated_act", projection.startswith("gated"))
    state = Attention(heads, heads, width, width)
    cross = replace(state, kind="cross")
    attention = blocks.attention(state, hidden)
    feed = blocks.mlp(hidden, inner, gated=gated)
    buckets = Weight("relative_attention_bias", "attention",
                     (f.integer("relative_attention_num_buckets", 32), heads), heads)  # fmt: skip
    layer = Layer(
        (state, cross), (*attention, *attention, *feed, *blocks.norm("norms", hidden, count=3))
    )
    encoder_layer = (*attention, *feed, *blocks.norm("norms", hidden, count=2))
    spec = decoder.assemble(f, PLAIN, (layer,) * count, hidden)
    per_layer = f.model_type == "umt5"
    return replace(
        spec,
        head=(*spec.head, *((buckets,) * (count if per_layer else 1))),
        encoder=(
            *(encoder_layer * encoder_layers),
            *((buckets,) * (encoder_layers if per_layer else 1)),
            *blocks.norm("encoder.norm", hidden),
        ),
        encoder_tokens=layout.max_context(f),
    )


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


def read_bart(f: Fields) -> ModelSpec:
    """BART, mBART, Marian, Pegasus, M2M-100, NLLB, Blenderbot: a cross-attention per layer."""
    count = f.integer("decoder_layers", high=10_000)
    hidden, heads = f.integer("d_model"), f.integer("decoder_attention_heads")
    state = Attention(heads, heads, hidden // heads or 1, hidden // heads or 1)
    attention = blocks.attention(state, hidden, qkv_bias=True, o_bias=True)
    layer = Layer(
        (state, replace(state, kind="cross")),
        (
            *attention,
            *attention,
            *blocks.mlp(hidden, f.integer("decoder_ffn_dim"), gated=False, bias=True),
            *blocks.norm("norms", hidden, bias=True, count=3),
        ),
    )
    spec = decoder.assemble(f, CLASSIC, (layer,) * count, hidden)
    return replace(
        spec,
        encoder_tokens=spec.max_context,
        weights_known=False,
        notes=(f"parameters of {f.model_type} are not counted here",),
    )


def read_mllama(f: Fields) -> ModelSpec:
    """Llama 3.2 Vision: `cross_attention_layers` hold the image's keys and values, the others the
    text's."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    chosen = f.integers("cross_attention_layers", high=count - 1)
    if chosen is None:
        f.lacks("cross_attention_layers")
        chosen = []
    state = decoder.attention_states(f, ["full"] * count)[0]
    assert isinstance(state, Attention)
    cross = replace(state, kind="cross")
    weights = blocks.attention(state, hidden)
    tail = blocks.mlp(hidden, f.integer("intermediate_size")) + blocks.norm("norms", hidden, count=2)
    gates = Weight("cross_attn_gates", "attention", (2,))
    plain = Layer((state,), weights + tail)
    crossing = Layer((cross,), (*weights, *blocks.qk_norm(cross, "head"), gates, *tail))
    found = set(chosen)
    spec = decoder.assemble(
        f, PLAIN, tuple(crossing if i in found else plain for i in range(count)), hidden
    )
    vocab = spec.vocab_size + 8
    return replace(
        spec, embedding=(Weight("embed_tokens", "embedding", (vocab, hidden), spec.vocab_size),)
    )


def read_encoder(f: Fields) -> ModelSpec:
    """Encoder-only models and embedders: they keep nothing between tokens."""
    note = ("an encoder: it keeps no cache between tokens",)
    positions = layout.max_context(f)
    if f.model_type != "bert":
        return ModelSpec(
            "", f.model_type, "", (Layer(()),), positions, weights_known=False,
            notes=(*note, f"parameters of {f.model_type} are not counted here"),
        )  # fmt: skip
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    heads = f.integer("num_attention_heads")
    state = Attention(heads, heads, hidden // heads or 1, hidden // heads or 1)
    layer = Layer(
        (),
        (
            *blocks.attention(state, hidden, qkv_bias=True, o_bias=True),
            *blocks.mlp(hidden, f.integer("intermediate_size"), gated=False, bias=True),
            *blocks.norm("norms", hidden, bias=True, count=2),
        ),
    )
    vocab = decoder.vocab_size(f)
    rows = vocab + (positions or 0) + f.integer("type_vocab_size", 2, low=0)
    return ModelSpec(
        name="",
        model_type=f.model_type,
        dtype="",
        layers=(layer,) * count,
        max_context=positions,
        hidden_size=hidden,
        vocab_size=vocab,
        embedding=(
            Weight("embeddings", "embedding", (rows, hidden), rows),
            *blocks.norm("embedding_norm", hidden, bias=True),
        ),
        head=_bert_head(f, hidden, vocab),
        tied=True,
        notes=note,
    )


def _bert_head(f: Fields, hidden: int, vocab: int) -> tuple[Weight, ...]:
    """A pooler for a bare BertModel, else the head that predicts masked words."""
    dense = Weight("head.dense", "head", (hidden, hidden + 1))
    classes = f.raw.get("architectures")
    f.used.add("architectures")
    if isinstance(classes, list) and classes and str(classes[0]).endswith("Model"):
        return (dense,)
    return (
        dense,
        *blocks.norm("head.norm", hidden, bias=True),
        Weight("head.bias", "head", (vocab,)),
    )
