"""Decoders that look at images through cross-attention layers: Llama 3.2 Vision."""

from __future__ import annotations

from dataclasses import replace

from kvtool.model import blocks, decoder, layout
from kvtool.model.fields import Fields
from kvtool.model.spec import Layer, ModelSpec, Weight
from kvtool.model.styles import PLAIN


def read_mllama(f: Fields) -> ModelSpec:
    """Llama 3.2 Vision: `cross_attention_layers` hold the image's keys and values, the others the
    text's."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    chosen = f.integers("cross_attention_layers", high=count - 1)
    if chosen is None:
        f.lacks("cross_attention_layers")
        chosen = []
    state = decoder.attention_states(f, ["full"] * count)[0]
    cross = replace(state, kind="cross")
    weights = blocks.attention(state, hidden)
    tail = blocks.mlp(hidden, f.integer("intermediate_size")) + blocks.norm(
        "norms", hidden, count=2
    )
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
