"""Rows copied and turned in Triton: the copy half of copy-and-re-rotate."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kvtool.kernels.launch import padded_dim
from kvtool.kernels.rope import Rope
from kvtool.kernels.tiles import partner_of, turned

BLOCK_S = 64


@triton.jit
def turn_copy_kernel(
    x_ptr, y_ptr, scale_ptr, source_ptr, turn_ptr, rows_ptr, table_ptr, scale, tokens, max_blocks,
    stride_xb, stride_xs, stride_xh, stride_yb, stride_ys, stride_yh,
    D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, INTERLEAVED: tl.constexpr,
    FACTOR: tl.constexpr, BLOCK_SIZE: tl.constexpr, TURN: tl.constexpr,
    HEAD_SCALES: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """y[b, s, h] = scale * x[row source[b, s] of sequence b, h], turned by rows[turn[b, s]].

    source, turn: [B, tokens] int32; source is -1 past the end, where y is left alone.
    """
    b = tl.program_id(2)
    h = tl.program_id(1)
    s = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    d = tl.arange(0, DP)
    source = tl.load(source_ptr + b * tokens + s, mask=s < tokens, other=-1)
    live = source >= 0
    inside = live[:, None] & (d < D)[None, :]
    if BLOCK_SIZE == 0:
        at = b.to(tl.int64) * stride_xb + source.to(tl.int64) * stride_xs
    else:
        block = tl.load(table_ptr + b * max_blocks + source // BLOCK_SIZE, mask=live, other=0)
        at = block.to(tl.int64) * stride_xb + (source % BLOCK_SIZE).to(tl.int64) * stride_xs
    x_at = x_ptr + (at + h * stride_xh)[:, None]
    y = tl.load(x_at + d[None, :], mask=inside, other=0.0).to(tl.float32)
    if TURN:
        row = tl.load(turn_ptr + b * tokens + s, mask=live, other=0).to(tl.int64) * (2 * D)
        c = tl.load(rows_ptr + row[:, None] + d[None, :], mask=inside, other=0.0)
        sin = tl.load(rows_ptr + row[:, None] + D + d[None, :], mask=inside, other=0.0)
        other_d = partner_of(d, R, D, INTERLEAVED)
        other = tl.load(x_at + other_d[None, :], mask=inside, other=0.0)
        y = turned(y, other, c, sin, FACTOR, R, d[None, :])
    if HEAD_SCALES:
        scale = tl.load(scale_ptr + h)
    y = y * scale
    at = b.to(tl.int64) * stride_yb + s.to(tl.int64) * stride_ys + h * stride_yh
    y_at = y_ptr + at[:, None]
    tl.store(y_at + d[None, :], y.to(y_ptr.dtype.element_ty), mask=inside)


def turn_copy(
    x: Tensor,
    y: Tensor,
    source: Tensor,
    *,
    block_table: Tensor | None = None,
    scale: float | Tensor = 1.0,
    rope: Rope | None = None,
    turn: Tensor | None = None,
    rows: Tensor | None = None,
    factor: float = 1.0,
) -> None:
    """Fills y: [B, S, heads, D] from x, [B, S', heads, D] or a pool with its block_table.

    source: [B, S] int32 key row of each token, -1 past the end.  turn: [B, S] int32 its line in
    rows: [n, 2, D] float32.  factor: on the dimensions that turn.
    """
    batch, tokens, heads, dim = y.shape
    turn_copy_kernel[(triton.cdiv(tokens, BLOCK_S), heads, batch)](
        x, y, scale if isinstance(scale, Tensor) else x, source,
        source if turn is None else turn, x if rows is None else rows,
        source if block_table is None else block_table,
        1.0 if isinstance(scale, Tensor) else scale, tokens,
        0 if block_table is None else block_table.stride(0),
        *x.stride()[:3], *y.stride()[:3],
        D=dim, DP=padded_dim(dim), R=0 if rope is None else rope.rotary_dim,
        INTERLEAVED=rope is not None and rope.interleaved, FACTOR=factor,
        BLOCK_SIZE=0 if block_table is None else x.shape[1], TURN=rows is not None,
        HEAD_SCALES=isinstance(scale, Tensor), BLOCK_S=BLOCK_S,
        num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
