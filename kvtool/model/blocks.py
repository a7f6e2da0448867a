"""Parts that model families share: projections, MLPs, experts, norms, recurrent mixers.

Each function returns the weights of one block as the published checkpoints name and shape them
(transformers spells them the same way); TP units follow Megatron: columns of the first matrix,
rows of the second, a whole head or group at a time.
"""

from __future__ import annotations

from kvtool.model.spec import Attention, Latent, Part, Recurrent, Weight


def linear(
    name: str, out: int, inp: int, *, part: Part, units: int = 0, bias: bool = False,
    rows: bool = False,
) -> tuple[Weight, ...]:  # fmt: skip
    """A matrix [out, inp], and its bias: shared out with the columns, whole where TP cuts rows."""
    matrix = Weight(name, part, (out, inp), units, linear=True)
    if not bias:
        return (matrix,)
    return (matrix, Weight(f"{name}.bias", part, (out,), 0 if rows else units))


def norm(name: str, size: int, *, bias: bool = False, count: int = 1) -> tuple[Weight, ...]:
    """`count` norms over `size` elements, each with a gain and, with `bias`, a shift."""
    return (Weight(name, "norm", (count * (2 if bias else 1), size)),) if size and count else ()


def attention(
    state: Attention,
    hidden: int,
    *,
    name: str = "self_attn",
    qkv_bias: bool = False,
    o_bias: bool = False,
    gated: bool = False,
    values: bool = True,
    kv: bool = True,
) -> tuple[Weight, ...]:
    """Projections of multi-head, grouped or multi-query attention.

    `gated` doubles the query projection (output gates); without `values` the keys serve as values
    (no v_proj); without `kv` the layer reads the cache of another one and projects queries alone.
    """
    q = state.num_q_heads * state.head_dim * (2 if gated else 1)
    out = state.num_q_heads * state.v_head_dim
    heads = state.num_kv_heads
    weights = linear(
        f"{name}.q_proj", q, hidden, part="attention", units=state.num_q_heads, bias=qkv_bias
    )
    if kv:
        k, v = heads * state.head_dim, heads * state.v_head_dim
        weights += linear(f"{name}.k_proj", k, hidden, part="attention", units=heads, bias=qkv_bias)
        if values:
            weights += linear(
                f"{name}.v_proj", v, hidden, part="attention", units=heads, bias=qkv_bias
            )
    return weights + linear(
        f"{name}.o_proj", hidden, out, part="attention", units=state.num_q_heads, bias=o_bias,
        rows=True,
    )  # fmt: skip


def qk_norm(state: Attention, how: str, *, kv: bool = True) -> tuple[Weight, ...]:
    """Norms of queries and keys: over each `head`, over the `full` projection, or `per_head`
    (gains of their own for each head); "" for none."""
    if not how:
        return ()
    d = state.head_dim
    q, k = {
        "head": ((d,), (d,)),
        "full": ((state.num_q_heads * d,), (state.num_kv_heads * d,)),
        "per_head": ((state.num_q_heads, d), (state.num_kv_heads, d)),
    }[how]
    q_norm = Weight("self_attn.q_norm", "norm", q, 0 if how == "head" else state.num_q_heads)
    k_norm = Weight("self_attn.k_norm", "norm", k, 0 if how == "head" else state.num_kv_heads)
    return (q_norm, k_norm) if kv else (q_norm,)


def mlp(
    hidden: int, inner: int, *, gated: bool = True, bias: bool = False, name: str = "mlp"
) -> tuple[Weight, ...]:
    """A feed-forward block: gate, up and down, or up and down."""
    weights: tuple[Weight, ...] = ()
    for projection in ("gate_proj", "up_proj") if gated else ("up_proj",):
        weights += linear(f"{name}.{projection}", inner, hidden, part="mlp", units=inner, bias=bias)
    return weights + linear(
        f"{name}.down_proj", hidden, inner, part="mlp", units=inner, bias=bias, rows=True
    )


def experts(
    hidden: int,
    inner: int,
    count: int,
    top_k: int,
    *,
    gated: bool = True,
    bias: bool = False,
    router_bias: bool = False,
    name: str = "mlp",
    router: str = "gate",
) -> tuple[Weight, ...]:
    """A router and `count` experts, of which a token uses `top_k`."""
    up = inner * (2 if gated else 1)

    def expert(projection: str, *extents: int, units: int, packed: bool = True) -> Weight:
        return Weight(
            f"{name}.experts.{projection}", "experts", (count, *extents), units, packed, top_k
        )

    weights: tuple[Weight, ...] = (
        Weight(f"{name}.{router}", "router", (count, hidden)),
        expert("gate_up_proj" if gated else "up_proj", up, hidden, units=inner),
        expert("down_proj", hidden, inner, units=inner),
    )
    if router_bias:
        weights += (Weight(f"{name}.{router}.bias", "router", (count,)),)
    if bias:
        weights += (
            expert("gate_up_proj_bias", up, units=inner, packed=False),
            expert("down_proj_bias", hidden, units=0, packed=False),
        )
    return weights


def latent(
    state: Latent,
    hidden: int,
    *,
    kv_rank: int,
    rope: int,
    q_rank: int | None,
    bias: bool = False,
    q_name: str = "self_attn",
) -> tuple[Weight, ...]:
    """Projections of multi-head latent attention; queries are compressed when `q_rank` is given."""
    heads = state.num_q_heads
    q = heads * state.qk_head_dim
    nope = state.qk_head_dim - rope
    name = q_name
    if q_rank:
        weights = (
            *linear(f"{name}.q_a_proj", q_rank, hidden, part="attention", bias=bias),
            *norm(f"{name}.q_a_layernorm", q_rank),
            *linear(f"{name}.q_b_proj", q, q_rank, part="attention", units=heads),
        )
    else:
        weights = linear(f"{name}.q_proj", q, hidden, part="attention", units=heads)
    return (
        *weights,
        *linear(
            f"{name}.kv_a_proj_with_mqa", kv_rank + rope, hidden, part="attention", bias=bias
        ),
        *norm(f"{name}.kv_a_layernorm", kv_rank),
        *linear(
            f"{name}.kv_b_proj", heads * (nope + state.v_head_dim), kv_rank, part="attention",
            units=heads,
        ),
        *linear(
            f"{name}.o_proj", hidden, heads * state.v_head_dim, part="attention", units=heads,
            bias=bias, rows=True,
        ),
    )  # fmt: skip


def indexer(hidden: int, q_rank: int, heads: int, width: int) -> tuple[Weight, ...]:
    """The sparse indexer of DeepSeek V3.2: queries from the latent, one key, a weight per head."""
    name = "self_attn.indexer"
    return (
        *linear(f"{name}.wq_b", heads * width, q_rank, part="attention"),
        *linear(f"{name}.wk", width, hidden, part="attention"),
        *norm(f"{name}.k_norm", width, bias=True),
        *linear(f"{name}.weights_proj", heads, hidden, part="attention"),
    )


def mamba1(
    hidden: int, inner: int, state: int, kernel: int, rank: int, *, bias: bool = False,
    conv_bias: bool = True, norms: bool = False, name: str = "mixer",
) -> tuple[Weight, ...]:  # fmt: skip
    """A selective state-space mixer (Mamba 1); with `norms`, Jamba's on dt, B and C."""
    weights = (
        *linear(f"{name}.in_proj", 2 * inner, hidden, part="recurrent", units=inner, bias=bias),
        Weight(f"{name}.conv1d", "recurrent", (inner, kernel), inner),
        *linear(
            f"{name}.x_proj", rank + 2 * state, inner, part="recurrent", units=inner, rows=True
        ),
        *linear(f"{name}.dt_proj", inner, rank, part="recurrent", units=inner, bias=True),
        Weight(f"{name}.A_log", "recurrent", (inner, state), inner),
        Weight(f"{name}.D", "recurrent", (inner,), inner),
        *linear(
            f"{name}.out_proj", hidden, inner, part="recurrent", units=inner, bias=bias, rows=True
        ),
    )
    if conv_bias:
        weights += (Weight(f"{name}.conv1d.bias", "recurrent", (inner,), inner),)
    if norms:
        weights += (*norm(f"{name}.dt_layernorm", rank), *norm(f"{name}.bc_layernorm", 2 * state))
    return weights


def mamba2(hidden: int, inner: int, heads: int, groups: int, state: int, kernel: int, *,
           bias: bool = False, conv_bias: bool = True, gated_norm: bool = True,
           name: str = "mixer") -> tuple[Weight, ...]:  # fmt: skip
    """A Mamba 2 mixer: a projection for gate, values, B, C and dt, a convolution, a gated norm."""
    channels = inner + 2 * groups * state
    taps = kernel + 1 if conv_bias else kernel
    weights = (
        *linear(
            f"{name}.in_proj", inner + channels + heads, hidden, part="recurrent", units=heads,
            bias=bias,
        ),
        Weight(f"{name}.conv1d.x", "recurrent", (inner, taps), heads),
        Weight(f"{name}.conv1d.bc", "recurrent", (channels - inner, taps), groups),
        Weight(f"{name}.A_log_D_dt_bias", "recurrent", (3, heads), heads),
        *linear(
            f"{name}.out_proj", hidden, inner, part="recurrent", units=heads, bias=bias, rows=True
        ),
    )  # fmt: skip
    if gated_norm:
        weights += (Weight(f"{name}.norm", "norm", (inner,), heads),)
    return weights


def delta_net(hidden: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int,
              kernel: int) -> tuple[Weight, ...]:  # fmt: skip
    """The gated delta net of Qwen3-Next and Qwen3.5."""
    name = "linear_attn"
    keys, values = key_heads * key_dim, value_heads * value_dim
    return (
        *linear(
            f"{name}.in_proj_qkvz", 2 * keys + 2 * values, hidden, part="recurrent",
            units=key_heads,
        ),
        *linear(f"{name}.in_proj_ba", 2 * value_heads, hidden, part="recurrent", units=value_heads),
        Weight(f"{name}.conv1d", "recurrent", (2 * keys + values, kernel), key_heads),
        Weight(f"{name}.A_log_dt_bias", "recurrent", (2, value_heads), value_heads),
        *norm(f"{name}.norm", value_dim),
        *linear(
            f"{name}.out_proj", hidden, values, part="recurrent", units=value_heads, rows=True
        ),
    )  # fmt: skip


def kda(
    hidden: int, heads: int, dim: int, kernel: int, *, full_gate: bool = False,
    full_decay: bool = False,
) -> tuple[Weight, ...]:  # fmt: skip
    """Kimi delta attention: convolved q, k, v; decay and output gate, each of low or full rank."""
    name, width = "self_attn", heads * dim
    weights: tuple[Weight, ...] = ()
    for projection in ("q_proj", "k_proj", "v_proj"):
        weights += linear(f"{name}.{projection}", width, hidden, part="recurrent", units=heads)
    if full_gate:
        gate = linear(f"{name}.g_proj", width, hidden, part="recurrent", units=heads)
    else:
        gate = (
            *linear(f"{name}.g_a_proj", dim, hidden, part="recurrent"),
            *linear(f"{name}.g_b_proj", width, dim, part="recurrent", units=heads),
        )
    if full_decay:
        decay = linear(f"{name}.f_proj", width, hidden, part="recurrent", units=heads)
    else:
        decay = (
            *linear(f"{name}.f_a_proj", dim, hidden, part="recurrent"),
            *linear(f"{name}.f_b_proj", width, dim, part="recurrent", units=heads),
        )
    return (
        *weights,
        Weight(f"{name}.conv1d", "recurrent", (3 * width, kernel), heads),
        *decay,
        Weight(f"{name}.dt_bias", "recurrent", (width,), heads),
        Weight(f"{name}.A_log", "recurrent", (heads,), heads),
        *linear(f"{name}.b_proj", heads, hidden, part="recurrent", units=heads),
        *gate,
        *norm(f"{name}.o_norm", dim),
        *linear(f"{name}.o_proj", hidden, width, part="recurrent", units=heads, rows=True),
    )


def mamba1_state(inner: int, state: int, kernel: int, conv: str, ssm: str) -> tuple[Recurrent, ...]:
    """Convolution tail [inner, kernel-1] and recurrent state [inner, state]."""
    return (
        Recurrent("conv", ((inner * (kernel - 1), inner),), conv),
        Recurrent("recurrent", ((inner * state, inner),), ssm),
    )


def mamba2_state(inner: int, heads: int, groups: int, state: int, kernel: int, conv: str,
                 ssm: str) -> tuple[Recurrent, ...]:  # fmt: skip
    """Convolution tail over values, B and C, and a state [head_dim, state] per head."""
    tail = kernel - 1
    return (
        Recurrent("conv", ((inner * tail, heads), (2 * groups * state * tail, groups)), conv, tail),
        Recurrent("recurrent", ((inner * state, heads),), ssm),
    )


def delta_state(key_heads: int, value_heads: int, key_dim: int, value_dim: int, kernel: int,
                conv: str, ssm: str) -> tuple[Recurrent, ...]:  # fmt: skip
    """Convolution tail over q, k and v, and a state [value_dim, key_dim] per value head."""
    tail = kernel - 1
    return (
        Recurrent(
            "conv",
            (
                (2 * key_heads * key_dim * tail, key_heads),
                (value_heads * value_dim * tail, value_heads),
            ),
            conv,
            tail,
        ),
        Recurrent("recurrent", ((value_heads * value_dim * key_dim, value_heads),), ssm),
    )


def kda_state(heads: int, dim: int, kernel: int, conv: str, ssm: str) -> tuple[Recurrent, ...]:
    """Convolution tails of q, k and v, and a matrix [dim, dim] per head."""
    tail = kernel - 1
    return (
        Recurrent("conv", ((3 * heads * dim * tail, heads),), conv, tail),
        Recurrent("recurrent", ((heads * dim * dim, heads),), ssm),
    )
