"""Small tensors that single families add to a layer: gates, learned scales, low-rank norms."""

from __future__ import annotations

from collections.abc import Callable

from kvtool.model import blocks
from kvtool.model.fields import Fields
from kvtool.model.spec import Attention, Weight

Extra = Callable[[Fields, Attention, int, bool], tuple[Weight, ...]]


def _bitnet(f: Fields, state: Attention, hidden: int, sparse: bool) -> tuple[Weight, ...]:
    """Norms before the output projection and before the down projection."""
    return (
        *blocks.norm("self_attn.attn_sub_norm", hidden),
        *blocks.norm("mlp.ffn_sub_norm", f.integer("intermediate_size")),
    )


def _diffllama(f: Fields, state: Attention, hidden: int, sparse: bool) -> tuple[Weight, ...]:
    """Four vectors that weigh the difference of two attention maps."""
    return (Weight("self_attn.lambdas", "attention", (4, state.head_dim)),)


def _doge(f: Fields, state: Attention, hidden: int, sparse: bool) -> tuple[Weight, ...]:
    """The dynamic mask: a decay per key/value head and its projection from the values."""
    heads = state.num_kv_heads
    return (
        Weight("self_attn.A", "attention", (heads,), heads),
        *blocks.linear("self_attn.dt_proj", heads, heads * state.head_dim, part="attention"),
    )


def _beam(f: Fields, state: Attention, hidden: int, sparse: bool) -> tuple[Weight, ...]:
    """A bias per head in the output gate."""
    return (Weight("self_attn.gate_bias", "attention", (state.num_q_heads,), state.num_q_heads),)


def _voxtral(f: Fields, state: Attention, hidden: int, sparse: bool) -> tuple[Weight, ...]:
    """A norm whose gain follows the time step through a rank of 32."""
    return (
        *blocks.linear("ada_rms_norm.linear1", 32, hidden, part="norm"),
        *blocks.linear("ada_rms_norm.linear2", hidden, 32, part="norm"),
    )


def _telechat(f: Fields, state: Attention, hidden: int, sparse: bool) -> tuple[Weight, ...]:
    """A bias behind the down projection alone."""
    return (Weight("mlp.down_proj.bias", "mlp", (hidden,)),)


def _arctic(f: Fields, state: Attention, hidden: int, sparse: bool) -> tuple[Weight, ...]:
    """On layers with experts a plain MLP as wide as the hidden size, with a norm of its own."""
    if not sparse:
        return ()
    return (
        *blocks.mlp(hidden, hidden, name="residual_mlp"),
        *blocks.norm("residual_layernorm", hidden),
    )


# Source: the modeling code of transformers 5.24; for TeleChat2 and Arctic their own.
EXTRAS: dict[str, Extra] = {
    "arctic": _arctic,
    "bitnet": _bitnet,
    "diffllama": _diffllama,
    "doge": _doge,
    "beam": _beam,
    "telechat": _telechat,
    "telechat2": _telechat,
    "voxtral_realtime_text": _voxtral,
}


def extra_weights(f: Fields, state: Attention, hidden: int, *, sparse: bool) -> tuple[Weight, ...]:
    """What the family of `f` adds to a layer that keeps `state`; nothing for most."""
    extra = EXTRAS.get(f.model_type)
    return extra(f, state, hidden, sparse) if extra else ()
