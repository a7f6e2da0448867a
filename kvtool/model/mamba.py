"""State-space models and their hybrids: Mamba, Jamba, Bamba, Falcon-H1, Granite 4, Nemotron-H."""

from __future__ import annotations

from dataclasses import replace

from kvtool.model import blocks, decoder, layout
from kvtool.model.fields import Fields
from kvtool.model.recurrent import LINEAR, attention_state, state_dtype
from kvtool.model.spec import Layer, ModelSpec, Recurrent, Weight
from kvtool.model.styles import LLAMA, PLAIN, Style


def time_step_rank(f: Fields, name: str, hidden: int) -> int:
    """The rank of the time step; `auto` is a sixteenth of the hidden size."""
    if f.raw.get(name, "auto") == "auto":
        return -(-hidden // 16)
    return f.integer(name)


def read_mamba1(f: Fields) -> ModelSpec:
    """Mamba and FalconMamba: one selective state-space mixer and one norm per layer."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    inner = f.integer("intermediate_size", f.integer("expand", 2) * hidden)
    state, kernel = f.integer("state_size", 16), f.integer("conv_kernel", 4)
    layer = Layer(
        blocks.mamba1_state(inner, state, kernel, f.dtype, state_dtype(f, f.dtype)),
        blocks.mamba1(
            hidden,
            inner,
            state,
            kernel,
            time_step_rank(f, "time_step_rank", hidden),
            bias=f.flag("use_bias", False),
            conv_bias=f.flag("use_conv_bias", True),
        )
        + blocks.norm("norm", hidden),
    )
    return decoder.assemble(f, PLAIN, (layer,) * count, hidden)


def read_mamba2(f: Fields) -> ModelSpec:
    """Mamba 2 (Codestral Mamba): heads with a scalar decay, groups that share B and C."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    heads = f.integer("num_heads")
    inner = heads * f.integer("head_dim")
    groups, state = f.integer("n_groups", 1), f.integer("state_size", 128)
    kernel = f.integer("conv_kernel", 4)
    layer = Layer(
        blocks.mamba2_state(inner, heads, groups, state, kernel, f.dtype, state_dtype(f, f.dtype)),
        blocks.mamba2(
            hidden,
            inner,
            heads,
            groups,
            state,
            kernel,
            bias=f.flag("use_bias", False),
            conv_bias=f.flag("use_conv_bias", True),
        )
        + blocks.norm("norm", hidden),
    )
    return decoder.assemble(f, PLAIN, (layer,) * count, hidden)


def read_jamba(f: Fields) -> ModelSpec:
    """Jamba: Mamba 1 with inner norms, attention on one layer of `attn_layer_period`."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    period, offset = f.integer("attn_layer_period", 8), f.integer("attn_layer_offset", 4, low=0)
    if f.strings("layer_types") is not None:
        kinds = layout.layer_kinds(f, count, allowed=LINEAR)
    else:
        kinds = ["full" if i % period == offset else "linear" for i in range(count)]
    inner = f.integer("mamba_expand", 2) * hidden
    d_state, kernel = f.integer("mamba_d_state", 16), f.integer("mamba_d_conv", 4)
    mixer = blocks.mamba1(
        hidden,
        inner,
        d_state,
        kernel,
        time_step_rank(f, "mamba_dt_rank", hidden),
        bias=f.flag("mamba_proj_bias", False),
        conv_bias=f.flag("mamba_conv_bias", True),
        norms=True,
        name="mamba",
    )
    kept = blocks.mamba1_state(inner, d_state, kernel, f.dtype, state_dtype(f, f.dtype))
    state = attention_state(f)
    attention = decoder.attention_weights(f, PLAIN, state, hidden)
    made = {}
    moe = layout.moe_layers(f, count)
    for kind, sparse in set(zip(kinds, moe, strict=True)):
        tail = decoder.feed_forward(f, PLAIN, hidden, sparse=sparse)
        tail += blocks.norm("norms", hidden, count=2)
        states, weights = ((state,), attention) if kind == "full" else (kept, mixer)
        made[kind, sparse] = Layer(states, weights + tail)
    layers = tuple(made[key] for key in zip(kinds, moe, strict=True))
    return decoder.assemble(f, PLAIN, layers, hidden)


def _mixer2(
    f: Fields, hidden: int, inner: int, *, bias: str = "mamba_proj_bias", gated_norm: bool = True,
    name: str = "mamba", ssm: str | None = None,
) -> tuple[tuple[Recurrent, ...], tuple[Weight, ...]]:  # fmt: skip
    """State and weights of a Mamba 2 mixer from the `mamba_` fields of a hybrid."""
    heads = f.integer("mamba_n_heads")
    groups, state = f.integer("mamba_n_groups", 1), f.integer("mamba_d_state")
    kernel = f.integer("mamba_d_conv", 4)
    return (
        blocks.mamba2_state(
            inner, heads, groups, state, kernel, f.dtype, ssm or state_dtype(f, f.dtype)
        ),
        blocks.mamba2(
            hidden,
            inner,
            heads,
            groups,
            state,
            kernel,
            bias=f.flag(bias, False),
            conv_bias=f.flag("mamba_conv_bias", True),
            gated_norm=gated_norm,
            name=name,
        ),
    )


def read_bamba(f: Fields) -> ModelSpec:
    """Bamba: Mamba 2 with an MLP, attention on `attn_layer_indices`."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    if f.strings("layer_types") is not None:
        kinds = layout.layer_kinds(f, count, allowed=LINEAR)
    else:
        chosen = set(f.integers("attn_layer_indices", high=count - 1) or ())
        kinds = ["full" if i in chosen else "linear" for i in range(count)]
    kept, mixer = _mixer2(f, hidden, f.integer("mamba_expand", 2) * hidden)
    state = attention_state(f)
    style = replace(LLAMA)
    tail = decoder.feed_forward(f, style, hidden, sparse=False)
    tail += blocks.norm("norms", hidden, count=2)
    made = {
        "full": Layer((state,), decoder.attention_weights(f, style, state, hidden) + tail),
        "linear": Layer(kept, mixer + tail),
    }
    return decoder.assemble(f, style, tuple(made[kind] for kind in kinds), hidden)


def read_falcon_h1(f: Fields) -> ModelSpec:
    """Falcon-H1: attention and a Mamba 2 mixer side by side in every layer."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    inner = f.integer("mamba_d_ssm", f.integer("mamba_expand", 2) * hidden)
    kept, mixer = _mixer2(f, hidden, inner, gated_norm=f.flag("mamba_rms_norm", False))
    state = attention_state(f)
    weights = decoder.attention_weights(f, LLAMA, state, hidden)
    tail = decoder.feed_forward(f, LLAMA, hidden, sparse=False)
    layer = Layer((state, *kept), weights + mixer + tail + blocks.norm("norms", hidden, count=2))
    return decoder.assemble(f, LLAMA, (layer,) * count, hidden)


def read_granite_hybrid(f: Fields) -> ModelSpec:
    """Granite 4: Mamba 2 and attention layers; a shared MLP beside experts, if there are any."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    if f.strings("layer_types") is not None:
        kinds = layout.layer_kinds(f, count, allowed=LINEAR)
    else:
        listed = layout.listed_types(f, count, "layers_block_type") or ["mamba"] * count
        f.one_of("layers_block_type", listed, ("mamba", "attention"))
        kinds = ["full" if entry == "attention" else "linear" for entry in listed]
    kept, mixer = _mixer2(f, hidden, f.integer("mamba_expand", 2) * hidden)
    state = attention_state(f)
    tail = blocks.mlp(hidden, f.integer("shared_intermediate_size"), name="shared_mlp")
    if f.integer("num_experts", 0, low=0):
        tail += blocks.experts(
            hidden,
            f.integer("intermediate_size"),
            f.integer("num_experts"),
            f.integer("num_experts_per_tok"),
        )
    tail += blocks.norm("norms", hidden, count=2)
    style = replace(LLAMA, mlp_bias=False)
    made = {
        "full": Layer((state,), decoder.attention_weights(f, style, state, hidden) + tail),
        "linear": Layer(kept, mixer + tail),
    }
    return decoder.assemble(f, style, tuple(made[kind] for kind in kinds), hidden)


_LETTERS = {"M": "linear", "*": "full", "-": "mlp", "E": "moe"}
_BLOCKS = {
    "mamba": "linear",
    "linear_attention": "linear",
    "attention": "full",
    "full_attention": "full",
    "mlp": "mlp",
    "moe": "moe",
}


def _blocks(f: Fields) -> list[str]:
    """Nemotron-H's blocks: `layers_block_type` or `layer_types`, else the letters of
    `hybrid_override_pattern` (M mamba, * attention, - MLP, E experts)."""
    for name in ("layers_block_type", "layer_types"):
        listed = f.strings(name)
        if listed is not None:
            f.one_of(name, listed, _BLOCKS)
            return [_BLOCKS.get(entry, "mlp") for entry in listed]
    pattern = f.text("hybrid_override_pattern")
    f.one_of("hybrid_override_pattern", pattern, _LETTERS)
    return [_LETTERS.get(letter, "mlp") for letter in pattern]


def read_nemotron_h(f: Fields) -> ModelSpec:
    """Nemotron-H and Nemotron 3: each block is a Mamba 2 mixer, attention, an MLP or experts.

    The state is float32 unless the configuration says otherwise.
    """
    hidden = f.integer("hidden_size")
    kinds = _blocks(f)
    if not kinds:
        f.lacks("hybrid_override_pattern", "no layers")
        kinds = ["mlp"]
    heads = f.integer("mamba_num_heads")
    inner = heads * f.integer("mamba_head_dim")
    groups = f.integer("n_groups", f.integer("mamba_n_groups", 1))
    d_state = f.integer("ssm_state_size")
    kernel = f.integer("conv_kernel", f.integer("mamba_d_conv", 4))
    state = attention_state(f)
    norm = blocks.norm("norm", hidden)
    bias = f.flag("mlp_bias", False)

    def layer(kind: str) -> Layer:
        if kind == "full":
            return Layer((state,), decoder.attention_weights(f, PLAIN, state, hidden) + norm)
        if kind == "linear":
            kept = blocks.mamba2_state(
                inner, heads, groups, d_state, kernel, f.dtype, state_dtype(f, "float32")
            )
            mixer = blocks.mamba2(
                hidden,
                inner,
                heads,
                groups,
                d_state,
                kernel,
                bias=f.flag("use_bias", False),
                conv_bias=f.flag("use_conv_bias", True),
            )
            return Layer(kept, mixer + norm)
        if kind == "moe":
            return Layer((), _nemotron_moe(f, hidden, bias=bias) + norm)
        inner_size = f.integer("intermediate_size")
        return Layer(
            (), blocks.mlp(hidden, inner_size, gated=False, bias=bias, name="mixer") + norm
        )

    made = {kind: layer(kind) for kind in dict.fromkeys(kinds)}
    layers = tuple(made[kind] for kind in kinds)
    mtp = f.text("mtp_hybrid_override_pattern", "*E")
    f.one_of("mtp_hybrid_override_pattern", mtp, _LETTERS)
    parts = [layer(_LETTERS.get(letter, "mlp")) for letter in mtp]
    template = Layer(
        tuple(kept for part in parts for kept in part.states),
        tuple(weight for part in parts for weight in part.weights),
    )
    return decoder.assemble(f, Style(), layers, hidden, template)


def _nemotron_moe(f: Fields, hidden: int, *, bias: bool) -> tuple[Weight, ...]:
    size = f.optional("moe_latent_size")
    inner = f.integer("moe_intermediate_size")
    count, top = f.integer("num_experts"), f.integer("num_experts_per_tok")
    weights = blocks.experts(size or hidden, inner, count, top, gated=False, name="mixer")
    weights = (Weight("mixer.gate", "router", (count, hidden)), *weights[1:])
    if size:
        weights += blocks.linear("mixer.fc1_latent_proj", size, hidden, part="mlp", bias=bias)
        weights += blocks.linear("mixer.fc2_latent_proj", hidden, size, part="mlp", bias=bias)
    shared = f.integer("moe_shared_expert_intermediate_size", 0, low=0)
    if shared:
        weights += blocks.mlp(hidden, shared, gated=False, bias=bias, name="mixer.shared_experts")
    return weights
