"""Kimi delta attention beside latent attention: Kimi Linear, Kimi K3, GLM-5-Next, Ling 3."""

from __future__ import annotations

from dataclasses import replace

from kvtool.model import blocks, latent, layout
from kvtool.model.fields import Fields
from kvtool.model.recurrent import LINEAR, Mixers, assemble_mixers, full_kinds, state_dtype
from kvtool.model.spec import Index, ModelSpec, State, Weight
from kvtool.model.styles import PLAIN

STYLE = replace(PLAIN, shared="gated")


def _kda_kinds(f: Fields, section: Fields, layers: int) -> list[str]:
    """Full and linear layers: `layer_types`, else the 1-based lists of `linear_attn_config`."""
    if f.strings("layer_types") is not None:
        return layout.layer_kinds(f, layers, allowed=LINEAR)
    full = section.integers("full_attn_layers", low=1, high=layers)
    linear = section.integers("kda_layers", low=1, high=layers)
    if full is None or linear is None:
        return ["full" if i and i % 4 == 0 else "linear" for i in range(layers)]
    if sorted(full + linear) != list(range(1, layers + 1)):
        section.fault("full_attn_layers", full, f"with kda_layers a partition of 1..{layers}")
        return ["full"] * layers
    return ["full" if i + 1 in set(full) else "linear" for i in range(layers)]


def read_kda(f: Fields) -> ModelSpec:
    """Kimi Linear and Kimi K3: delta attention with float32 states, latent attention between.

    With `attn_res_block_size` (K3) each branch looks at the residuals of earlier blocks through a
    norm and a projection to one number. Source: vLLM 0.33, models/kimi_k3.
    """
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    section = f.child("linear_attn_config", model_type=f.model_type)
    kinds = _kda_kinds(f, section, count)
    heads = section.integer("num_heads", f.integer("linear_num_heads", 32))
    width = section.integer("head_dim", f.integer("linear_head_dim", 128))
    kernel = section.integer("short_conv_kernel_size", f.integer("linear_conv_kernel_dim", 4))
    state = latent.latent_state(f, f.integer("num_attention_heads"))
    weights = latent.latent_weights(f, state, hidden)
    if f.flag("mla_use_output_gate"):
        out = state.num_q_heads * state.v_head_dim
        weights += blocks.linear(
            "self_attn.g_proj", out, hidden, part="attention", units=state.num_q_heads
        )
    full_gate = section.flag("use_full_rank_gate", False)
    linear = blocks.kda_state(heads, width, kernel, f.dtype, state_dtype(f, "float32"))
    residual = blocks.norm("residuals", hidden, count=4) if f.has("attn_res_block_size") else ()
    mixers: Mixers = {
        "full": ((state,), weights + residual),
        "linear": (
            linear,
            blocks.kda(hidden, heads, width, kernel, full_gate=full_gate) + residual,
        ),
    }
    spec = assemble_mixers(f, STYLE, kinds, mixers)
    if not residual:
        return spec
    return replace(spec, head=spec.head + blocks.norm("output_residual", hidden, count=2))


def read_ling3(f: Fields) -> ModelSpec:
    """Ling 3 (`bailing_hybrid`): gates of full rank, latent attention with a gate per head on the
    last layer of each `layer_group_size`."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    kinds = full_kinds(f, count, f.integer("layer_group_size"))
    heads = f.integer("num_attention_heads")
    width = f.optional("linear_head_dim") or f.integer("head_dim")
    kernel = f.integer("short_conv_kernel_size")
    state = latent.latent_state(f, heads)
    gate = blocks.linear("self_attn.g_proj", heads, hidden, part="attention", units=heads)
    mixers: Mixers = {
        "full": ((state,), latent.latent_weights(f, state, hidden) + gate),
        "linear": (
            blocks.kda_state(heads, width, kernel, f.dtype, state_dtype(f, "float32")),
            blocks.kda(hidden, heads, width, kernel, full_gate=True, full_decay=True),
        ),
    }
    return assemble_mixers(f, STYLE, kinds, mixers)


def read_glm5_next(f: Fields) -> ModelSpec:
    """GLM-5-Next: latent rows without positions, an index key per `index_kpool` tokens on every
    fourth layer, four residual streams."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    section = f.child("linear_attn_config")
    heads = section.integer("num_heads", f.integer("linear_num_heads"))
    width = section.integer("head_dim", f.integer("linear_head_dim"))
    kernel = section.integer("short_conv_kernel_size", f.integer("linear_conv_kernel_dim"))
    pool, size = f.integer("index_kpool", 1), f.integer("index_head_dim")
    indexed = latent.index_layers(f, count)
    if f.strings("layer_types") is not None:
        listed = layout.layer_kinds(f, count, allowed=("full", "indexed", "linear"))
    else:
        listed = ["linear" if i % 4 != 3 else "full" for i in range(count)]
    kinds = [
        kind if kind == "linear" else ("indexed" if indexed[i] else "full")
        for i, kind in enumerate(listed)
    ]
    state = latent.latent_state(f, f.integer("num_attention_heads"))
    weights = latent.latent_weights(f, state, hidden)
    streams = f.integer("hc_mult", 4)
    mix = (2 + streams) * streams
    connections = Weight("hyper_connections", "mlp", (2, mix * (streams * hidden + 1) + 3))
    indexer = (
        *blocks.indexer(hidden, f.integer("q_lora_rank"), f.integer("index_n_heads"), size),
        Weight("self_attn.indexer.index_kpool_compress", "attention", (pool + hidden, size)),
    )
    kept: tuple[State, ...] = (state, Index(size, stride=pool))
    mixers: Mixers = {
        "full": ((state,), (*weights, connections)),
        "indexed": (kept, (*weights, *indexer, connections)),
        "linear": (
            blocks.kda_state(heads, width, kernel, f.dtype, state_dtype(f, "float32")),
            (*blocks.kda(hidden, heads, width, kernel), connections),
        ),
    }
    return assemble_mixers(f, replace(STYLE, dense=3), kinds, mixers)
