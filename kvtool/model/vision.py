"""Parameters of a vision transformer, in closed form from its section of a configuration.

Patches, positions, blocks of attention and MLP, norms around them: families differ in biases,
gates and what follows the last block. One `Vit` says how a type is built (`vision_types` lists
them), the sizes come from the section. Buffers are not counted; what stands between tower and
decoder is in `projectors`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from kvtool.model.counting import Unstated, dense, extents, flat, fraction, mlp2, size, stack
from kvtool.model.fields import Fields
from kvtool.model.spec import Weight

LAYERS = ("layers", "vt_num_hidden_layers", "depth", "num_hidden_layers")
RATIO = "mlp_ratio"


def none(f: Fields) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Vit:
    """How a type of vision transformer is built.

    `inner` names the fields that may hold the width of the MLPs; a ratio among them decides where
    no other is stated. A flag is a truth, or the name of the field that decides it. Norms are
    counted in rows of the width, 2 with a shift and 1 without: `norm` is one of the `norms` of a
    block, `ends` the sum over those before and after the blocks. `qk_norm` normalises queries and
    keys over the width, `head_norm` over each head; `scales` counts vectors of layer scale;
    `grouped` reads KV heads and a width per head. `positions` counts learnt positions,
    `class_token` adds a token and its position, `tail` counts the elements of everything else.
    """

    width: tuple[str, ...] = ("hidden_size",)
    inner: tuple[str, ...] = ("intermediate_size", "vt_intermediate_size")
    norm: int = 2
    norms: int = 2
    ends: int = 2
    qkv_bias: bool | str = True
    out_bias: bool | str = True
    mlp_bias: bool | str = True
    gated: bool = False
    grouped: bool = False
    head_norm: bool = False
    qk_norm: bool | str = False
    scales: int = 0
    patch_bias: bool = True
    positions: Callable[[Fields], int] = none
    class_token: bool = False
    pooling_head: bool | str = False
    tail: Callable[[Fields], int] = none


def vit(v: Vit, f: Fields, name: str) -> tuple[Weight, ...]:
    """The blocks of the tower that `f` describes, and everything else in it.

    Raises Unstated when a size is neither in the section nor in its class.
    """
    width = size(f, *v.width)
    inner = _inner(f, v, width)
    channels = f.integer("num_channels", f.integer("in_channels", 3))
    frames = f.integer("temporal_patch_size", f.integer("patch_temporal", 1))
    patch = channels * frames * prod(extents(f, "patch_size"))
    rows = v.ends + v.positions(f) + (2 if v.class_token else 0)
    rest = dense(width, patch, v.patch_bias) + rows * width + v.tail(f)
    if _holds(f, v.pooling_head):
        rest += _pooling_head(width, inner)
    layers = size(f, *LAYERS, low=0)
    return (*stack(f"{name}.layers", layers, _block(f, v, width, inner)), *flat(name, rest))


def _inner(f: Fields, v: Vit, width: int) -> int:
    """Width of the MLPs."""
    sizes = [name for name in v.inner if name != RATIO]
    if RATIO not in v.inner or any(f.raw.get(name) is not None for name in sizes):
        return size(f, *sizes)
    if not f.has(RATIO):
        raise Unstated(RATIO)
    return int(width * fraction(f, RATIO, high=64.0))


def _holds(f: Fields, flag: bool | str) -> bool:
    return f.flag(flag) if isinstance(flag, str) else flag


def _block(f: Fields, v: Vit, width: int, inner: int) -> int:
    """Elements of one block."""
    q = kv = width
    if v.grouped:
        heads = size(f, "num_attention_heads", "num_heads")
        head = f.integer("head_dim", width // heads)
        q, kv = heads * head, size(f, "num_key_value_heads") * head
    attention = dense(q + 2 * kv, width, _holds(f, v.qkv_bias))
    attention += dense(width, q, _holds(f, v.out_bias))
    if v.head_norm:
        attention += 2 * (q // size(f, "num_attention_heads", "num_heads"))
    if _holds(f, v.qk_norm):
        attention += 2 * width
    up = inner * (2 if v.gated else 1)
    bias = _holds(f, v.mlp_bias)
    kind = f.text("norm_type", "layer_norm")
    f.one_of("norm_type", [kind], ("layer_norm", "rms_norm"))
    norm = 1 if kind == "rms_norm" else v.norm
    mlp = dense(up, width, bias) + dense(width, inner, bias)
    return attention + mlp + (norm * v.norms + v.scales) * width


def _pooling_head(width: int, inner: int) -> int:
    """SigLIP's attention pooling: a learnt query, attention, a norm and an MLP."""
    attention = dense(3 * width, width) + dense(width, width)
    return width + attention + 2 * width + mlp2(width, inner, width)
