"""Families whose experts have a shape of their own: JetMoE, Muse Spark, ERNIE 4.5 VL, Doge.

Source: the modeling code of transformers 5.24.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

from kvtool.model import blocks, decoder, layout
from kvtool.model.extras import extra_weights
from kvtool.model.fields import Fields
from kvtool.model.recurrent import attention_state
from kvtool.model.spec import Attention, Layer, ModelSpec, Weight
from kvtool.model.styles import LLAMA, PLAIN, STYLES


def _layers(
    f: Fields, attention: tuple[Weight, ...], states: list[Attention],
    mlps: dict[bool, tuple[Weight, ...]], moe: list[bool],
) -> tuple[Layer, ...]:  # fmt: skip
    """A layer for each state, with experts where `moe` says so."""
    keys = list(zip(states, moe, strict=True))
    made = {key: Layer((key[0],), attention + mlps[key[1]]) for key in set(keys)}
    return tuple(made[key] for key in keys)


def read_jetmoe(f: Fields) -> ModelSpec:
    """JetMoE: query and output projections are experts too; every chosen pair reads the same keys
    and values of `num_key_value_heads` heads `kv_channels` wide."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    kv, width = f.integer("num_key_value_heads"), f.integer("head_dim")
    experts, top = f.integer("num_experts"), f.integer("num_experts_per_tok")
    row = kv * width
    state = Attention(kv * top, kv, width, width)
    queries = (
        Weight("self_attention.router", "router", (experts, hidden)),
        Weight("self_attention.bias", "attention", (hidden,)),
        Weight("self_attention.input_linear", "attention", (experts, row, hidden), kv, True, top),
        Weight("self_attention.output_linear", "attention", (experts, hidden, row), kv, True, top),
        *blocks.linear("self_attention.kv_proj", 2 * row, hidden, part="attention", units=kv),
    )
    weights = (
        *queries,
        *blocks.experts(hidden, f.integer("intermediate_size"), experts, top),
        Weight("mlp.bias", "mlp", (hidden,)),
        *blocks.norm("norms", hidden, count=2),
    )
    return decoder.assemble(f, PLAIN, (Layer((state,), weights),) * count, hidden)


def read_muse_spark(f: Fields) -> ModelSpec:
    """Muse Spark: gated attention, experts of a narrower width between two projections, a gate on
    each residual; the last layer and every fourth before it attend in full."""
    style = replace(LLAMA, output_gate=True, rule="backward:4")
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    states = decoder.attention_states(f, layout.layer_kinds(f, count, style.rule))
    pooled, inner = f.integer("moe_hidden_size"), f.integer("moe_intermediate_size")
    number, top = f.integer("num_experts"), f.integer("num_experts_per_tok")
    sparse = (
        Weight("mlp.gate", "router", (number, hidden)),
        *blocks.linear("mlp.pre_expert_proj", pooled, hidden, part="mlp"),
        *blocks.linear("mlp.post_expert_proj", hidden, pooled, part="mlp"),
        *blocks.norm("mlp.expert_norms", pooled, count=2),
        *blocks.experts(pooled, inner, number, top)[1:],
    )
    mlps = {True: sparse, False: blocks.mlp(hidden, f.integer("intermediate_size"))}
    shared = decoder.attention_weights(f, style, states[0], hidden)
    shared += blocks.norm("norms", hidden, count=5)
    moe = layout.moe_layers(f, count)
    return decoder.assemble(f, style, _layers(f, shared, states, mlps, moe), hidden)


def read_ernie_vl(f: Fields) -> ModelSpec:
    """ERNIE 4.5 VL: experts for text and experts for images behind the same attention.

    A text token uses the text experts alone, so those of the images are active for none.
    """
    style = STYLES["ernie4_5_moe"]
    number = _pair(f, "num_experts")
    f = decoder.renamed(f, {**f.raw, **_first_of_pairs(f), "num_experts": number[0]})
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    states = decoder.attention_states(f, ["full"] * count)
    inner = f.integers("moe_intermediate_size", low=1) or [1, 1]
    top = f.integer("num_experts_per_tok")
    if len(inner) != 2:
        f.fault("moe_intermediate_size", inner, "a width for text and one for images")
        inner = [1, 1]
    shared = f.integer("moe_num_shared_experts", 0, low=0)
    sparse: tuple[Weight, ...] = ()
    for size, experts, used, name in zip(
        inner, number, (top, 0), ("mlp.text_moe", "mlp.vision_moe"), strict=True
    ):
        sparse += blocks.experts(hidden, size, experts, used, router_bias=True, name=name)
    sparse += blocks.mlp(hidden, shared * inner[0], name="mlp.shared_experts")
    mlps = {True: sparse, False: blocks.mlp(hidden, f.integer("intermediate_size"))}
    weights = decoder.attention_weights(f, style, states[0], hidden)
    weights += decoder.norms(f, style, hidden)
    moe = layout.moe_layers(f, count, 1)
    return decoder.assemble(f, style, _layers(f, weights, states, mlps, moe), hidden)


def _first_of_pairs(f: Fields) -> dict[str, int]:
    """Where experts begin and end, which first configurations give for text and images apart."""
    found = {}
    for name in ("moe_layer_start_index", "moe_layer_end_index"):
        if isinstance(f.raw.get(name), list):
            first, *others = f.integers(name) or [0]
            if set(others) - {first}:
                f.fault(name, f.raw[name], "the same layer for text and for images")
            found[name] = first
    return found


def _pair(f: Fields, name: str) -> tuple[int, int]:
    """Two numbers, from one for both or from a list of two (text, images)."""
    listed = f.per_layer(name, 2, low=1, high=65_536)
    return listed[0], listed[1]


def read_doge(f: Fields) -> ModelSpec:
    """Doge: plain keys and values under a learned mask; with `is_moe`, experts of one row each that
    product keys find."""
    style = STYLES["doge"]
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    mlp = blocks.mlp(hidden, f.integer("intermediate_size"), bias=f.flag("mlp_bias"))
    if f.flag("is_moe", False):
        number, top = f.integer("num_experts"), f.integer("num_experts_per_tok")
        mlp += (
            Weight("mlp.router_gate", "router", (2 * isqrt(number), hidden)),
            Weight("mlp.down_embed", "experts", (number, hidden), 0, False, top),
            Weight("mlp.up_embed", "experts", (number, hidden), 0, False, top),
        )
    state = attention_state(f)
    weights = (
        *decoder.attention_weights(f, style, state, hidden),
        *extra_weights(f, state, hidden, sparse=False),
        *mlp,
        *decoder.norms(f, style, hidden),
    )
    return decoder.assemble(f, style, (Layer((state,), weights),) * count, hidden)
