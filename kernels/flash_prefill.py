"""Prefill in Triton: one program per tile of query rows, over the documents of its sequence.

The query heads of a key/value head are packed into the rows of a tile (row = token * G + head),
so a key tile that was loaded, or turned, serves the whole group. Tiles that every row sees whole
take a loop without masks; the diagonal and the tail take a masked one. A plain sequence is one
document at offset 0 and is compiled without the loop over documents. Lazy: documents outside,
tiles inside; the query is turned once per document from its untouched self in float32, or each
key tile by its document's row. Source: FlashAttention-2, arXiv 2307.08691; LazyAttention, arXiv
2606.04302, section 3.1 and appendix.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvtool.kernels.checks import Call
from kvtool.kernels.launch import Config, Tables, common_arguments, padded_dim, shared_bytes
from kvtool.kernels.plan import Plan
from kvtool.kernels.tiles import attend, finish, row_offsets, turn_rows

CONFIGS = {
    16: (64, 64, 2, 4),
    32: (64, 64, 2, 4),
    64: (128, 64, 3, 4),
    128: (64, 64, 3, 4),
    256: (128, 64, 2, 8),
}
"""BLOCK_M, BLOCK_N, stages, warps by padded head_dim, for 16-bit queries. Measured on an H200."""
PAGED_CONFIGS = CONFIGS | {64: (128, 64, 5, 4), 128: (128, 64, 5, 8)}
"""For block tables, whose lookup takes stages of its own."""
LITTLE_SHARED_CONFIG = (64, 32, 2, 8)
"""For head_dim 256 where a program has less than 200 KiB of shared memory (sm_80 to sm_89)."""
MAX_TURN_ROWS = 64
"""Query rows turned at once."""
FLOAT32_CONFIG = (64, 32, 1, 4)
"""float32 products run without matrix units, whatever the head_dim."""


def config(call: Call) -> Config:
    """Tile sizes and resources of a call."""
    if call.q.dtype == torch.float32:
        return Config(*FLOAT32_CONFIG)
    dim = padded_dim(call.head_dim)
    if dim == 256 and shared_bytes(call) < 200 << 10:
        return Config(*LITTLE_SHARED_CONFIG)
    return Config(*(CONFIGS if call.block_table is None else PAGED_CONFIGS)[dim])


@triton.jit
def prefill_kernel(
    q_ptr, k_src, v_src, o_ptr, lse_ptr, table_ptr, items_ptr, segments_ptr,
    query_rows_ptr, doc_rows_ptr, key_rows_ptr, slopes_ptr, sinks_ptr, k_scale_ptr, v_scale_ptr,
    scale, v_scale, window, max_queries, max_blocks,
    stride_qb, stride_qt, stride_qh, stride_ob, stride_ot, stride_oh,
    stride_kb, stride_kn, stride_kh,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr,
    INTERLEAVED: tl.constexpr, FACTOR: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, ALIBI: tl.constexpr, SINKS: tl.constexpr,
    HEAD_SCALES: tl.constexpr, FP8: tl.constexpr, PACKED: tl.constexpr,
    DOCUMENTS: tl.constexpr, QUERY_TURN: tl.constexpr,
    KEY_TURN: tl.constexpr, LSE: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
    TURN_ROWS: tl.constexpr,
):  # fmt: skip
    """Writes o, and the log-sum-exp of each row if LSE, for one item of the work list."""
    item = items_ptr + tl.program_id(0) * 8
    b = tl.load(item)
    hk = tl.load(item + 1)
    first_row = tl.load(item + 2)
    queries = tl.load(item + 3)
    q_start = tl.load(item + 4)
    row = first_row + tl.arange(0, BLOCK_M)
    t = row // G
    h = hk * G + row % G
    live = t < queries
    d = tl.arange(0, DP)
    q_pos = q_start + t
    pos_min = q_start + first_row // G
    pos_max = q_start + tl.minimum((first_row + BLOCK_M - 1) // G, queries - 1)
    q_at = q_ptr + row_offsets(b, t, h, stride_qb, stride_qt, stride_qh)[:, None]
    o_at = o_ptr + row_offsets(b, t, h, stride_ob, stride_ot, stride_oh)[:, None]
    inside = live[:, None] & (d < D)[None, :]
    scale_h = scale
    v_scale_h = v_scale
    if HEAD_SCALES:
        scale_h = scale * tl.load(k_scale_ptr + hk)
        v_scale_h = v_scale * tl.load(v_scale_ptr + hk)
    slope = tl.zeros([BLOCK_M], tl.float32)
    if ALIBI:
        slope = tl.load(slopes_ptr + h) * 1.4426950408889634
    sink = tl.zeros([BLOCK_M], tl.float32)
    if SINKS:
        sink = tl.load(sinks_ptr + h) * 1.4426950408889634
    if TMA:
        k_head = k_src
        v_head = v_src
        table = table_ptr
    elif BLOCK_SIZE == 0:
        k_head = k_src + b.to(tl.int64) * stride_kb + hk * stride_kh
        v_head = v_src + b.to(tl.int64) * stride_kb + hk * stride_kh
        table = table_ptr
    else:
        k_head = k_src + hk * stride_kh
        v_head = v_src + hk * stride_kh
        table = table_ptr + b * max_blocks
    acc = tl.zeros([BLOCK_M, DP], tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    m_i = tl.full([BLOCK_M], -float("inf"), tl.float32)
    first = 0
    count = 1
    if DOCUMENTS:
        first = tl.load(item + 5)
        count = tl.load(item + 6)
    if not QUERY_TURN:
        q = tl.load(q_at + d[None, :], mask=inside, other=0.0)
        if FP8:
            q = q.to(tl.float16)
    for j in tl.range(0, count, num_stages=1):
        segment = first + j
        if DOCUMENTS:
            row0 = tl.load(segments_ptr + segment * 4)
            length = tl.load(segments_ptr + segment * 4 + 1)
            offset = tl.load(segments_ptr + segment * 4 + 2)
        else:
            row0 = 0
            length = tl.load(item + 7)
            offset = 0
        doc_c = tl.zeros([DP], tl.float32)
        doc_s = tl.zeros([DP], tl.float32)
        if KEY_TURN == 1:
            doc_c = tl.load(doc_rows_ptr + segment * (2 * D) + d, mask=d < D, other=0.0)
            doc_s = tl.load(doc_rows_ptr + segment * (2 * D) + D + d, mask=d < D, other=0.0)
        if QUERY_TURN:
            # The turned tile waits where its output will go: nobody else touches those rows, and
            # a tile turned in registers would spill the accumulator.
            tl.debug_barrier()
            for r in tl.range(0, BLOCK_M, TURN_ROWS, num_stages=1):
                some = first_row + r + tl.arange(0, TURN_ROWS)
                some_t = some // G
                some_h = hk * G + some % G
                turn_rows(
                    q_ptr + row_offsets(b, some_t, some_h, stride_qb, stride_qt, stride_qh),
                    o_ptr + row_offsets(b, some_t, some_h, stride_ob, stride_ot, stride_oh),
                    query_rows_ptr + (b * max_queries + some_t) * (2 * D),
                    doc_rows_ptr + segment * (2 * D), some_t < queries,
                    D, DP, R, INTERLEAVED, FACTOR, KEY_TURN != 1,
                )  # fmt: skip
            tl.debug_barrier()
            q = tl.load(o_at + d[None, :], mask=inside, other=0.0)
            if FP8:
                q = q.to(tl.float16)
        hi = length
        full = length // BLOCK_N * BLOCK_N
        lo = 0
        if CAUSAL:
            hi = tl.maximum(tl.minimum(length, pos_max + 1 - offset), 0)
            full = tl.maximum(tl.minimum(length, pos_min + 1 - offset), 0) // BLOCK_N * BLOCK_N
            if WINDOW:
                lo = tl.maximum(pos_min - window + 1 - offset, 0) // BLOCK_N * BLOCK_N
                full = lo
        if not WINDOW:
            acc, l_i, m_i = attend(
                acc, l_i, m_i, q, k_head, v_head, table, key_rows_ptr, doc_c, doc_s,
                b, hk, row0, lo, full, offset, q_pos, slope, window, scale_h, stride_kb, stride_kn,
                D, DP, R, INTERLEAVED, BLOCK_N, BLOCK_SIZE, False, CAUSAL, WINDOW, ALIBI,
                KEY_TURN, TMA, PACKED, STAGES, PRECISION,
            )  # fmt: skip
        if full < hi:
            acc, l_i, m_i = attend(
                acc, l_i, m_i, q, k_head, v_head, table, key_rows_ptr, doc_c, doc_s,
                b, hk, row0, full, hi, offset, q_pos, slope, window, scale_h, stride_kb, stride_kn,
                D, DP, R, INTERLEAVED, BLOCK_N, BLOCK_SIZE, True, CAUSAL, WINDOW, ALIBI,
                KEY_TURN, TMA, PACKED, STAGES, PRECISION,
            )  # fmt: skip
    o, lse = finish(acc, l_i, m_i, sink, v_scale_h, SINKS)
    o_at = o_ptr + row_offsets(b, t, h, stride_ob, stride_ot, stride_oh)[:, None]
    tl.store(o_at + d[None, :], o.to(o_ptr.dtype.element_ty), mask=inside)
    if LSE:
        tl.store(lse_ptr + (b * max_queries + t) * H + h, lse, mask=live)


def prefill(call: Call, plan: Plan, o: Tensor, lse: Tensor | None = None) -> None:
    """Fills o: [B, T, H, D], and lse: [B, T, H] float32 (base 2) where given."""
    tables: Tables = plan.tables
    tile = tables.config
    arguments, tma = common_arguments(call, plan, o, tile.block_n)
    prefill_kernel[(tables.items.shape[0],)](
        **arguments,
        lse_ptr=o if lse is None else lse,
        max_queries=call.query_tokens,
        H=call.num_q_heads,
        LSE=lse is not None,
        TMA=tma,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        STAGES=tile.stages,
        TURN_ROWS=min(tile.block_m, MAX_TURN_ROWS),
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=True,
    )
