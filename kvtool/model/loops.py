"""Models that run some layers several times: each run keeps keys and values of its own.

Source: the modeling code of transformers 5.24 (Dory, HRM-Text).
"""

from __future__ import annotations

from dataclasses import replace

from kvtool.model import blocks, decoder, layout
from kvtool.model.fields import MAX_TOKENS, Fields
from kvtool.model.recurrent import attention_state
from kvtool.model.spec import Attention, Layer, ModelSpec, Weight
from kvtool.model.styles import PLAIN

# No norm has weights in these models.
BARE = replace(PLAIN, norms=0, final_norm=False, output_gate=True)


def read_dory(f: Fields) -> ModelSpec:
    """Dory: the middle `n_recurrent_layers` run `n_recurrent_loops` times.

    Published configurations count attention and MLP as layers of their own; `last_loop` keeps the
    rows of the last loop only.
    """
    count = layout.num_layers(f)
    listed = layout.listed_types(f, count)
    step = 2 if listed is not None and "mlp" in listed else 1
    if listed is None:
        kinds = layout.layer_kinds(f, count, "period:4")
    else:
        f.one_of("layer_types", listed[::step], ("full_attention", "sliding_attention"))
        kinds = ["full" if entry == "full_attention" else "sliding" for entry in listed[::step]]
    count = len(kinds)
    first = f.integer("n_input_layers", low=0) // step
    looped = f.optional("n_recurrent_layers", low=0)
    if looped is None:
        looped = count * step - first * step - f.integer("n_output_layers", low=0)
    last = first + looped // step
    mode = f.text("recurrent_kv_cache_mode", "per_loop")
    f.one_of("recurrent_kv_cache_mode", [mode], ("per_loop", "last_loop"))
    loops = f.integer("n_recurrent_loops", high=1024) if mode == "per_loop" else 1
    hidden, inner = f.integer("hidden_size"), f.integer("intermediate_size")
    full = attention_state(f)
    local = replace(full, kind="sliding", limit=f.integer("sliding_window", high=MAX_TOKENS))
    width = full.num_q_heads * full.head_dim
    weights = (
        *decoder.attention_weights(f, BARE, full, hidden),
        *blocks.mlp(hidden, inner),
        Weight("scales", "norm", (2 * width + 2 * hidden + 2 * inner,)),
    )
    layers = []
    for i, kind in enumerate(kinds):
        state = local if kind == "sliding" else full
        layers.append(Layer((state,) * (loops if first <= i < last else 1), weights))
    spec = decoder.assemble(f, BARE, tuple(layers), hidden)
    scale = Weight("lm_head.logit_scale", "head", (spec.vocab_size,), spec.vocab_size)
    return replace(spec, head=(*spec.head, scale))


def read_hrm(f: Fields) -> ModelSpec:
    """HRM-Text: two stacks; the low one runs `L_cycles` times within each of `H_cycles`."""
    high, low = f.integer("H_cycles", high=1024), f.integer("L_cycles", high=1024)
    slots = layout.num_layers(f)
    count = f.optional("num_layers_per_stack") or slots // (high * (low + 1))
    if count * high * (low + 1) != slots:
        f.fault("num_hidden_layers", slots, f"a multiple of {high * (low + 1)} runs of a stack")
    hidden = f.integer("hidden_size")
    heads = f.integer("num_attention_heads")
    width = decoder.head_dim(f, heads)
    state = Attention(heads, heads, width, width)
    weights = (
        *decoder.attention_weights(f, BARE, state, hidden),
        *blocks.mlp(hidden, f.integer("intermediate_size")),
    )
    layers = (Layer((state,) * (high * low), weights),) * count
    layers += (Layer((state,) * high, weights),) * count
    spec = decoder.assemble(f, BARE, layers, hidden)
    return replace(spec, embedding=(*spec.embedding, Weight("z_L_init", "norm", (hidden,))))
