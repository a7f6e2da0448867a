"""Models without attention that are no state-space models: RWKV and xLSTM."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from kvtool.model import blocks, decoder, layout
from kvtool.model.fields import Fields
from kvtool.model.spec import Layer, ModelSpec, Recurrent, State, Weight
from kvtool.model.styles import PLAIN


def read_rwkv(f: Fields) -> ModelSpec:
    """RWKV: two shifted inputs per layer, and per channel three float32 sums (v4) or per head a
    float32 matrix (v5 to v7)."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    inner = f.integer("attention_hidden_size", hidden)
    shifts = Recurrent("conv", ((2 * hidden, 0),), f.dtype)
    if f.model_type == "rwkv":
        kept: tuple[State, ...] = (shifts, Recurrent("recurrent", ((3 * inner, inner),), "float32"))
        ff = f.integer("intermediate_size", 4 * hidden)
        weights = (
            Weight("attention.mix", "recurrent", (3, hidden)),
            Weight("attention.time", "recurrent", (2, inner), inner),
            *blocks.linear("attention.kvr", 3 * inner, hidden, part="recurrent", units=inner),
            *blocks.linear(
                "attention.output", hidden, inner, part="recurrent", units=inner, rows=True
            ),
            Weight("feed_forward.mix", "mlp", (2, hidden)),
            *blocks.linear("feed_forward.key", ff, hidden, part="mlp", units=ff),
            *blocks.linear("feed_forward.receptance", hidden, hidden, part="mlp"),
            *blocks.linear("feed_forward.value", hidden, ff, part="mlp", units=ff, rows=True),
            *blocks.norm("norms", hidden, bias=True, count=2),
        )  # fmt: skip
        spec = decoder.assemble(
            f, replace(PLAIN, norm_bias=True), (Layer(kept, weights),) * count, hidden
        )
        return replace(spec, embedding=spec.embedding + blocks.norm("pre_ln", hidden, bias=True))
    size = f.integer("head_size", f.integer("head_dim", 64))
    heads = f.integer("num_heads", inner // size)
    kept = (shifts, Recurrent("recurrent", ((heads * size * size, heads),), "float32"))
    spec = decoder.assemble(f, PLAIN, (Layer(kept),) * count, hidden)
    return replace(
        spec, weights_known=False, notes=(f"parameters of {f.model_type} are not counted here",)
    )


def read_xlstm(f: Fields) -> ModelSpec:
    """xLSTM (mLSTM): per head a matrix memory, a normaliser and a running maximum, in float32."""
    count = f.integer("num_blocks", f.optional("num_hidden_layers", high=10_000), high=10_000)
    hidden = f.optional("embedding_dim") or f.integer("hidden_size")
    heads = f.integer("num_heads")
    bias = f.flag("use_bias", False)
    keys = _scaled(f, "qk_dim_factor", 0.5, hidden, 64)
    values = _scaled(f, "v_dim_factor", 1.0, hidden, 64)
    step = f.integer("ffn_round_up_to_multiple_of", 64)
    inner = _scaled(f, "ffn_proj_factor", 2.667, hidden, step)
    dtype = f.dtype_name("inference_state_dtype", f.text("inference_state_dtype", "float32"))
    memory = keys * values // heads + keys + heads
    kept = (Recurrent("recurrent", ((memory, heads),), dtype),)
    name = "mlstm_layer"
    weights = (
        *blocks.linear(f"{name}.qk", 2 * keys, hidden, part="recurrent", units=heads, bias=bias),
        *blocks.linear(
            f"{name}.v_gate", 2 * values, hidden, part="recurrent", units=heads, bias=bias
        ),
        *blocks.linear(
            f"{name}.if_gates", 2 * heads, hidden, part="recurrent", units=heads, bias=True
        ),
        Weight(f"{name}.multihead_norm", "norm", (values,), heads),
        *blocks.linear(f"{name}.out_proj", hidden, values, part="recurrent", units=heads, bias=bias,
                       rows=True),
        *blocks.mlp(hidden, inner, bias=bias, name="ffn"),
        *blocks.norm("norms", hidden, count=2),
    )  # fmt: skip
    spec = decoder.assemble(f, PLAIN, (Layer(kept, weights),) * count, hidden)
    return replace(spec, max_context=None)


def _scaled(f: Fields, name: str, default: float, hidden: int, step: int) -> int:
    """The hidden size times the factor `name`, rounded up to a multiple of `step`."""
    factor = f.number(name, default)
    if not 0 < factor < 1e4:
        f.fault(name, factor, "a number between 0 and 10,000")
        factor = default
    return step * ceil(hidden * factor / step)
