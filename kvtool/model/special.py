"""Decoders with a shape of their own per layer: OpenELM, Nemotron-NAS, and renamed sections."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvtool.model import blocks, decoder, layout
from kvtool.model.fields import Fields
from kvtool.model.spec import Attention, Layer, ModelSpec
from kvtool.model.styles import PLAIN, STYLES, Style


def read_openelm(f: Fields) -> ModelSpec:
    """OpenELM: query heads, key/value heads and MLP width per layer."""
    count = f.integer("num_transformer_layers", high=10_000)
    hidden, width = f.integer("model_dim"), f.integer("head_dim")
    heads = f.per_layer("num_query_heads", count, low=1)
    kv = f.per_layer("num_kv_heads", count, low=1)
    step = f.integer("ffn_dim_divisor", 256)
    scale = f.raw.get("ffn_multipliers", 4.0)
    f.used.add("ffn_multipliers")
    factors = scale if isinstance(scale, list) else [scale] * count
    plain = all(isinstance(x, int | float) and not isinstance(x, bool) and 0 < x < 1e4 for x in factors)
    if len(factors) != count or not plain:
        f.fault("ffn_multipliers", scale, f"one number for each of the {count} layers")
        factors = [1.0] * count
    gated = f.flag("ffn_with_glu", True)
    norm = "head" if f.flag("normalize_qk_projections", False) else ""
    layers = []
    for q, k, factor in zip(heads, kv, factors, strict=True):
        state = Attention(q, k, width, width)
        layers.append(
            Layer(
                (state,),
                (
                    *blocks.attention(state, hidden),
                    *blocks.qk_norm(state, norm),
                    *blocks.mlp(hidden, make_divisible(factor * hidden, step), gated=gated),
                    *blocks.norm("norms", hidden, count=2),
                ),
            )
        )
    spec = decoder.assemble(f, PLAIN, tuple(layers), hidden)
    return replace(spec, max_context=f.optional("max_context_length") or spec.max_context)


def make_divisible(value: float, step: int) -> int:
    """`value` rounded to a multiple of `step`, never more than a tenth below it."""
    rounded = max(step, int(value + step / 2) // step * step)
    return rounded + step if rounded < 0.9 * value else rounded


def read_nas(f: Fields) -> ModelSpec:
    """Nemotron-NAS (Llama-Nemotron Super, Ultra): `block_configs` gives every layer its own
    key/value heads and MLP width; an attention that is a no-op or linear keeps nothing."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    heads = f.integer("num_attention_heads")
    width = decoder.head_dim(f, heads)
    found = f.raw.get("block_configs")
    f.used.add("block_configs")
    if not isinstance(found, list) or len(found) != count:
        f.fault("block_configs", found, f"a list of {count} blocks")
        found = []
    layers = tuple(_nas_layer(f, entry, hidden, heads, width) for entry in found)
    return decoder.assemble(f, PLAIN, layers or (Layer(()),), hidden)


def _nas_layer(f: Fields, entry: Any, hidden: int, heads: int, width: int) -> Layer:
    block = Fields(
        entry if isinstance(entry, dict) else {}, f.where, path="block_configs[].", faults=f.faults
    )
    attention, ffn = block.child("attention"), block.child("ffn")
    states: tuple[Attention, ...] = ()
    weights = ()
    if attention.flag("replace_with_linear", False):
        weights += blocks.linear("self_attn.linear", hidden, hidden, part="attention", units=heads)
    elif not attention.flag("no_op", False):
        group = attention.integer("n_heads_in_group")
        if heads % group:
            attention.fault("n_heads_in_group", group, f"a divisor of {heads} heads")
            group = heads
        states = (Attention(heads, heads // group, width, width),)
        weights += blocks.attention(states[0], hidden)
    weights += blocks.norm("input_norm", hidden) if weights else ()
    if ffn.flag("replace_with_linear", False):
        weights += blocks.linear("mlp.linear", hidden, hidden, part="mlp", units=hidden)
        weights += blocks.norm("mlp_norm", hidden)
    elif not ffn.flag("no_op", False):
        inner = ffn.optional("intermediate_size")
        if inner is None:
            inner = 256 * -(-int(2 * ffn.number("ffn_mult") * hidden / 3) // 256)
        weights += blocks.mlp(hidden, inner) + blocks.norm("mlp_norm", hidden)
    return Layer(states, weights)


def read_dbrx(f: Fields) -> ModelSpec:
    """DBRX keeps heads and experts in sections of their own."""
    attention, ffn = f.child("attn_config"), f.child("ffn_config")
    flat = {**f.raw}
    for section, names in (
        (attention, {"kv_n_heads": "num_key_value_heads"}),
        (ffn, {"ffn_hidden_size": "intermediate_size", "moe_num_experts": "num_experts",
               "moe_top_k": "num_experts_per_tok"}),
    ):  # fmt: skip
        for theirs, ours in names.items():
            if section.has(theirs):
                flat[ours] = section.integer(theirs)
    return decoder.read(_renamed(f, flat), replace(STYLES["dbrx"], norms=2))


def read_mpt(f: Fields) -> ModelSpec:
    """MPT: `expansion_ratio` times the width in the MLP; biases unless `no_bias`."""
    style: Style = STYLES["mpt"]
    inner = f.integer("expansion_ratio", 4) * f.integer("hidden_size")
    attention = f.child("attn_config")
    flat = {**f.raw, "intermediate_size": inner}
    if attention.has("kv_n_heads"):
        flat["num_key_value_heads"] = attention.integer("kv_n_heads")
    if not f.flag("no_bias", True):
        style = replace(style, qkv_bias=True, o_bias=True, mlp_bias=True, norm_bias=True)
    return decoder.read(_renamed(f, flat), style)


def _renamed(f: Fields, raw: dict[str, Any]) -> Fields:
    twin = Fields(raw, f.where, model_type=f.model_type, path=f.path, faults=f.faults, used=f.used)
    twin.dtype = f.dtype
    return twin
