"""Decoders with names, sections or per-layer shapes of their own: OpenELM, Nemotron-NAS, MPT, .."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvtool.model import blocks, decoder, layout
from kvtool.model.fields import MAX_LAYERS, MAX_TOKENS, Fields, as_integer
from kvtool.model.recurrent import attention_state
from kvtool.model.spec import Attention, Layer, ModelSpec, Weight
from kvtool.model.styles import PLAIN, SAME_AS, STYLES, Style

# Types whose published configurations call a field by a name of their own: ours, then theirs.
RENAMED: dict[str, dict[str, str]] = {
    "xglm": {"num_attention_heads": "attention_heads"},
    "cpmant": {"head_dim": "dim_head", "intermediate_size": "dim_ff"},
    "ctrl": {"intermediate_size": "dff"},
    "gpt_neox_japanese": {},
    "codeshell": {"num_key_value_heads": "num_query_groups"},
    "phi3small": {"intermediate_size": "ff_intermediate_size"},
    "step3p5": {
        "num_key_value_heads": "num_attention_groups",
        "swa_num_attention_heads": "num_sliding_attention_heads",
    },
}
RENAMED["step3p7"] = RENAMED["step3p5"]


def read_renamed(f: Fields) -> ModelSpec:
    """XGLM, CPM-Ant, CTRL, Step 3.5, CodeShell, Phi-3-small: plain decoders under other names."""
    flat = {**f.raw}
    for ours, theirs in RENAMED[f.model_type].items():
        value = f.raw.get(theirs, f.defaults.get(theirs))
        if f.raw.get(ours) is None and value is not None:
            f.used.add(f.path + theirs)
            flat[ours] = value
    other = f.mapping("attention_other_setting")
    if other.get("attention_type") == "sliding_attention":
        # Step 3.5 describes the heads of its sliding layers in a section.
        section = f.child("attention_other_setting")
        flat["swa_num_attention_heads"] = section.integer("num_attention_heads")
        flat["swa_num_key_value_heads"] = section.integer("num_attention_groups")
        flat["swa_head_dim"] = section.integer("head_dim")
    named = decoder.renamed(f, flat)
    spec = decoder.read(named, STYLES[SAME_AS.get(f.model_type, f.model_type)])
    hidden = spec.hidden_size
    if f.model_type == "gpt_neox_japanese":
        return replace(spec, head=(*spec.head, Weight("dense_bias", "attention", (hidden,))))
    if f.model_type == "cpmant":
        rows = f.integer("prompt_types", 32) * f.integer("prompt_length", 32)
        buckets = f.integer("position_bias_num_buckets", 512)
        segments = f.integer("segment_types", 32)
        extra = (
            Weight("prompt_embedding", "embedding", (rows + segments, hidden)),
            Weight("position_bias", "attention",
                   (buckets + segments * segments, f.integer("num_attention_heads"))),
        )  # fmt: skip
        head = (*spec.head, Weight("lm_head", "head", (spec.vocab_size, hidden), spec.vocab_size))
        return replace(spec, embedding=spec.embedding + extra, head=head, tied=False)
    return spec


def read_gpt_neo(f: Fields) -> ModelSpec:
    """GPT-Neo: `attention_types` says how often global and local layers take turns; a local layer
    sees `window_size` tokens."""
    count = layout.num_layers(f)
    listed = f.strings("attention_layers")
    if listed is None:
        turns = f.raw.get("attention_types")
        f.used.add(f"{f.path}attention_types")
        turns = [[["global", "local"], (count + 1) // 2]] if turns is None else turns
        listed = _repeated(turns)[:count]
    if len(listed) != count:
        f.fault("attention_types", listed, f"one entry for each of the {count} layers")
        listed = ["global"] * count
    f.one_of("attention_types", listed, ("global", "local"))
    window = f.integer("window_size", 256, high=MAX_TOKENS)
    flat = {**f.raw, "layer_types": listed, "sliding_window": window}
    return decoder.read(decoder.renamed(f, flat), STYLES["gpt_neo"])


def _repeated(turns: Any) -> list[str]:
    """[[["global", "local"], 12]] written out; empty where it has another shape."""
    found: list[str] = []
    for entry in turns if isinstance(turns, list) else []:
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], list):
            return []
        names, times = entry[0], as_integer(entry[1])
        if times is None or not 0 < times <= MAX_LAYERS:
            return []
        found += [str(name) for name in names] * times
    return found


def read_modernbert(f: Fields) -> ModelSpec:
    """ModernBERT as a decoder: windows of half of `local_attention`, a full layer first of each
    `global_attn_every_n_layers`; the first layer has no norm before its attention."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    kinds = layout.layer_kinds(f, count, "first:3")
    full = attention_state(f)
    window = f.optional("sliding_window", high=MAX_TOKENS)
    window = window or f.integer("local_attention", high=MAX_TOKENS) // 2 or 1
    local = replace(full, kind="sliding", limit=window)
    bias, shift = f.flag("attention_bias"), f.flag("norm_bias")
    norm = blocks.norm("norms", hidden, bias=shift)
    weights = (
        *blocks.attention(full, hidden, qkv_bias=bias, o_bias=bias),
        *blocks.mlp(hidden, f.integer("intermediate_size"), bias=f.flag("mlp_bias")),
        *norm,
    )
    layers = tuple(
        Layer((local if kind == "sliding" else full,), weights + (norm if i else ()))
        for i, kind in enumerate(kinds)
    )
    style = replace(PLAIN, norm_bias=shift, embedding_norm=True, head_bias="decoder_bias")
    spec = decoder.assemble(f, style, layers, hidden)
    dense = blocks.linear("head.dense", hidden, hidden, part="head", bias=f.flag("classifier_bias"))
    return replace(spec, head=(*spec.head, *dense, *norm))


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
    plain = all(
        isinstance(x, int | float) and not isinstance(x, bool) and 0 < x < 1e4 for x in factors
    )
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
    weights: tuple[Weight, ...] = ()
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
    return decoder.read(decoder.renamed(f, flat), replace(STYLES["dbrx"], norms=2))


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
    return decoder.read(decoder.renamed(f, flat), style)
