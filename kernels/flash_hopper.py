"""Prefill on Hopper in Gluon: a producer feeds warp groups whose products and softmax overlap.

Each program of a persistent grid walks items of the work list. One warp, the producer, keeps a
ring of key and value tiles full through the copy engine; two or three consumer groups own 64 query
rows each. A consumer issues the product of its queries with the next keys before that of its
weights with the last values, so that the softmax between them runs beside a product. Keys are
walked from the last tile to the first: the masked tiles come first, then a loop without masks.
Lazy: a group of its own turns the queries for the next document from their untouched selves while
the consumers work on this one. Source: FlashAttention-3, arXiv 2407.08608; LazyAttention, arXiv
2606.04302.
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kvtool.kernels.checks import Call
from kvtool.kernels.launch import LOG2_E, Config, Tables, padded_dim
from kvtool.kernels.plan import Plan

ROWS = 64
"""Query rows of a consumer: what one matrix instruction takes."""
CONFIGS = {64: (192, 128, 2), 128: (128, 128, 2), 256: (128, 64, 2)}
"""BLOCK_M (64 for each consumer), BLOCK_N, stages of the ring, by padded head_dim."""
PINGPONG = True
"""Whether consumers take turns at issuing products."""

# Triton 3.8 renamed the copies.
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
load_tile, store_tile = gl.constexpr(load_tile), gl.constexpr(store_tile)


@gluon.jit
def spans(
    length, offset, pos_min, pos_max, window,
    BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """Tiles lo to hi of a document that queries at pos_min to pos_max see, low to high wholly."""
    hi = (length + BLOCK_N - 1) // BLOCK_N
    high = length // BLOCK_N
    lo = 0 * length
    low = lo
    if CAUSAL:
        hi = (gl.minimum(length, pos_max + 1 - offset) + BLOCK_N - 1) // BLOCK_N
        high = gl.maximum(gl.minimum(length, pos_min + 1 - offset), 0) // BLOCK_N
    if WINDOW:
        lo = gl.maximum(pos_min - window + 1 - offset, 0) // BLOCK_N
        low = (gl.maximum(pos_max - window + 1 - offset, 0) + BLOCK_N - 1) // BLOCK_N
        high = gl.where(low > high, lo, high)
        low = gl.minimum(low, high)
    return lo, low, high, hi


@gluon.jit
def first_column(tile, length, BLOCK_N: gl.constexpr, TAIL: gl.constexpr):
    """Where a tile begins: one that a document does not fill begins earlier, to end with it."""
    column = tile * BLOCK_N
    if TAIL:
        column = gl.minimum(column, length - BLOCK_N)
    return column


@gluon.jit
def producer(
    arguments,
    G: gl.constexpr, P: gl.constexpr, D: gl.constexpr, DP: gl.constexpr, NC: gl.constexpr,
    NQ: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
    WINDOW: gl.constexpr, TAIL: gl.constexpr, DOCUMENTS: gl.constexpr, TURN: gl.constexpr,
    FACTOR: gl.constexpr, RAGGED: gl.constexpr, SINKS: gl.constexpr, PINGPONG: gl.constexpr,
):  # fmt: skip
    """Fills the rings in the order in which the consumers read them."""
    (
        q_desc, k_desc, v_desc, o_desc, q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full,
        v_empty, turns, items_ptr, segments_ptr, starts_ptr, q_ptr, query_rows_ptr, doc_rows_ptr,
        sinks_ptr, scale, v_scale, window, max_queries, stride_qb, stride_qt, stride_qh,
    ) = arguments  # fmt: skip
    n = 0
    turn = 0
    ROWS: gl.constexpr = q_s.shape[2] * q_s.shape[3]
    first = gl.load(starts_ptr + gl.program_id(0))
    last = gl.load(starts_ptr + gl.program_id(0) + 1)
    for index in range(first, last):
        item = items_ptr + index * 8
        b = gl.load(item)
        head = gl.load(item + 1)
        t0 = gl.load(item + 2)
        queries = gl.load(item + 3)
        q_start = gl.load(item + 4)
        segment = gl.load(item + 5)
        count = gl.load(item + 6)
        length = gl.load(item + 7)
        pos_min = q_start + t0
        pos_max = q_start + gl.minimum(t0 + NC * ROWS // P, queries) - 1
        row0 = 0
        offset = 0
        if not TURN:
            mbarrier.wait(q_empty.index(turn % NQ), ((turn // NQ) & 1) ^ 1)
            mbarrier.expect(q_full.index(turn % NQ), NC * ROWS * DP * 2)
            for c in gl.static_range(NC):
                load_tile(
                    q_desc, [b, t0 + c * (ROWS // P), head, 0], q_full.index(turn % NQ),
                    q_s.index(turn % NQ * NC + c),
                )  # fmt: skip
            turn += 1
        for j in range(count):
            if DOCUMENTS:
                row0 = gl.load(segments_ptr + (segment + j) * 4)
                length = gl.load(segments_ptr + (segment + j) * 4 + 1)
                offset = gl.load(segments_ptr + (segment + j) * 4 + 2)
            lo, low, high, hi = spans(
                length, offset, pos_min, pos_max, window, BLOCK_N, CAUSAL, WINDOW
            )
            for i in range(lo, hi):
                row = row0 + first_column(hi - 1 - (i - lo), length, BLOCK_N, TAIL)
                stage = n % STAGES
                phase = ((n // STAGES) & 1) ^ 1
                mbarrier.wait(k_empty.index(stage), phase)
                mbarrier.expect(k_full.index(stage), BLOCK_N * DP * 2)
                load_tile(k_desc, [b, head // G, row, 0], k_full.index(stage), k_s.index(stage))
                mbarrier.wait(v_empty.index(stage), phase)
                mbarrier.expect(v_full.index(stage), BLOCK_N * DP * 2)
                load_tile(v_desc, [b, head // G, row, 0], v_full.index(stage), v_s.index(stage))
                n += 1


@gluon.jit
def turner(
    arguments,
    G: gl.constexpr, P: gl.constexpr, D: gl.constexpr, DP: gl.constexpr, NC: gl.constexpr,
    NQ: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
    WINDOW: gl.constexpr, TAIL: gl.constexpr, DOCUMENTS: gl.constexpr, TURN: gl.constexpr,
    FACTOR: gl.constexpr, RAGGED: gl.constexpr, SINKS: gl.constexpr, PINGPONG: gl.constexpr,
):  # fmt: skip
    """Queries of each item turned for each of its documents, ahead of the consumers."""
    (
        q_desc, k_desc, v_desc, o_desc, q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full,
        v_empty, turns, items_ptr, segments_ptr, starts_ptr, q_ptr, query_rows_ptr, doc_rows_ptr,
        sinks_ptr, scale, v_scale, window, max_queries, stride_qb, stride_qt, stride_qh,
    ) = arguments  # fmt: skip
    HALF: gl.constexpr = D // 2
    ROWS: gl.constexpr = q_s.shape[2] * q_s.shape[3]
    TOKENS: gl.constexpr = ROWS // P
    CHUNK: gl.constexpr = 16 // P if P < 16 else 1
    # A thread holds up to four heads of its token: they share a rotation row.
    HEADS: gl.constexpr = P if P < 4 else 4
    WARPS: gl.constexpr = CHUNK if CHUNK < 4 else 4
    layout: gl.constexpr = gl.BlockedLayout(
        [1, HEADS, HALF // 32], [1, 1, 32], [WARPS, 4 // WARPS, 1], [2, 1, 0]
    )
    rows: gl.constexpr = gl.SliceLayout(1, layout)  # [CHUNK, HALF]
    t = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, rows))
    j = gl.arange(0, HALF, layout=gl.SliceLayout(0, rows))
    p = gl.arange(0, P, layout=gl.SliceLayout(0, gl.SliceLayout(2, layout)))
    heads = gl.expand_dims(gl.expand_dims(p, 0), 2)
    turn = 0
    first = gl.load(starts_ptr + gl.program_id(0))
    last = gl.load(starts_ptr + gl.program_id(0) + 1)
    for index in range(first, last):
        item = items_ptr + index * 8
        b = gl.load(item)
        head = gl.load(item + 1)
        t0 = gl.load(item + 2)
        queries = gl.load(item + 3)
        segment = gl.load(item + 5)
        count = gl.load(item + 6)
        q_item = q_ptr + b.to(gl.int64) * stride_qb + head * stride_qh
        for d in range(count):
            document = gl.load(segments_ptr + (segment + d) * 4 + 3)
            doc_at = doc_rows_ptr + document * (2 * D) + HALF + j
            doc_c = gl.expand_dims(gl.load(doc_at), 0)
            doc_s = gl.expand_dims(gl.load(doc_at + D), 0)
            mbarrier.wait(q_empty.index(turn % NQ), ((turn // NQ) & 1) ^ 1)
            for c in range(NC):
                tile = q_s.index(turn % NQ * NC + c).reshape((ROWS, DP))
                for some in gl.static_range(TOKENS // CHUNK):
                    token = t0 + c * TOKENS + some * CHUNK + t
                    live = gl.expand_dims(token < queries, 1)
                    rows_at = query_rows_ptr + (
                        gl.expand_dims((b * max_queries + token) * (2 * D) + HALF, 1)
                        + gl.expand_dims(j, 0)
                    )
                    c_q = gl.load(rows_at, mask=live, other=0.0)
                    s_q = gl.load(rows_at + D, mask=live, other=0.0)
                    cos = gl.expand_dims((c_q * doc_c + s_q * doc_s) * FACTOR, 1)
                    sin = gl.expand_dims((s_q * doc_c - c_q * doc_s) * FACTOR, 1)
                    at = gl.expand_dims(token * stride_qt, 1) + gl.expand_dims(j, 0)
                    at = gl.expand_dims(at, 1) + heads * stride_qh
                    alive = gl.expand_dims(live, 1)
                    x1 = gl.load(q_item + at, mask=alive, other=0.0).to(gl.float32)
                    x2 = gl.load(q_item + at + HALF, mask=alive, other=0.0).to(gl.float32)
                    y1 = (x1 * cos - x2 * sin).to(q_desc.dtype).reshape([CHUNK * P, HALF])
                    y2 = (x2 * cos + x1 * sin).to(q_desc.dtype).reshape([CHUNK * P, HALF])
                    part = tile.slice(some * (CHUNK * P), CHUNK * P, 0)
                    part.slice(0, HALF, 1).store(y1)
                    part.slice(HALF, HALF, 1).store(y2)
            fence_async_shared()
            mbarrier.arrive(q_full.index(turn % NQ), count=1)
            turn += 1


@gluon.jit
def softmax_tile(
    s, m_i, l_i, scale, tile, length, lim, low, tile_col, BLOCK_N: gl.constexpr,
    MASKED: gl.constexpr, WINDOW: gl.constexpr, TAIL: gl.constexpr,
):  # fmt: skip
    """Weights of one tile, what to scale earlier sums by, and both statistics."""
    if MASKED:
        col = first_column(tile, length, BLOCK_N, TAIL) + tile_col
        seen = gl.expand_dims(col, 0) < gl.expand_dims(lim, 1)
        if TAIL:  # columns before the tile belong to the one before it
            seen = seen & gl.expand_dims(col >= tile * BLOCK_N, 0)
        if WINDOW:
            seen = seen & (gl.expand_dims(col, 0) >= gl.expand_dims(low, 1))
        s = gl.where(seen, s, -float("inf"))
    m_new = gl.maximum(m_i, gl.max(s, 1) * scale)
    peak = m_new
    if MASKED:
        peak = gl.where(m_new == -float("inf"), 0.0, m_new)
    p = gl.exp2(s * scale - gl.expand_dims(peak, 1))
    alpha = gl.exp2(m_i - peak)
    return p, alpha, m_new, l_i * alpha + gl.sum(p, 1)


@gluon.jit
def step(
    q, k_s, v_s, k_full, k_empty, v_full, v_empty, turns, n, w, acc, m_i, l_i, scale, tile, length,
    lim, low, tile_col, cid: gl.constexpr, NC: gl.constexpr, STAGES: gl.constexpr,
    MASKED: gl.constexpr, WINDOW: gl.constexpr, TAIL: gl.constexpr, PINGPONG: gl.constexpr,
    s_layout: gl.constexpr, o_layout: gl.constexpr, w_layout: gl.constexpr,
):  # fmt: skip
    """Scores of tile n beside the values of tile n - 1, whose weights are w."""
    BLOCK_N: gl.constexpr = k_s.shape[3]
    DP: gl.constexpr = k_s.shape[4]
    ROWS: gl.constexpr = q.shape[0]
    stage = n % STAGES
    before = (n - 1) % STAGES
    mbarrier.wait(k_full.index(stage), (n // STAGES) & 1)
    if PINGPONG:
        mbarrier.wait(turns.index(cid), n & 1)
    zero = gl.zeros([ROWS, BLOCK_N], gl.float32, layout=s_layout)
    k = k_s.index(stage).reshape((BLOCK_N, DP)).permute((1, 0))
    s_token = warpgroup_mma(q, k, zero, use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(before), ((n - 1) // STAGES) & 1)
    v = v_s.index(before).reshape((BLOCK_N, DP))
    acc_token = warpgroup_mma(w, v, acc, is_async=True)
    if PINGPONG:
        mbarrier.arrive(turns.index((cid + 1) % NC), count=1)
    s = warpgroup_mma_wait(1, deps=(s_token,))
    mbarrier.arrive(k_empty.index(stage), count=1)
    p, alpha, m_i, l_i = softmax_tile(
        s, m_i, l_i, scale, tile, length, lim, low, tile_col, BLOCK_N, MASKED, WINDOW, TAIL
    )
    acc = warpgroup_mma_wait(0, deps=(acc_token,))
    mbarrier.arrive(v_empty.index(before), count=1)
    acc = acc * gl.expand_dims(gl.convert_layout(alpha, gl.SliceLayout(1, o_layout)), 1)
    w = gl.convert_layout(p.to(w.dtype), w_layout)
    return w, acc, m_i, l_i


@gluon.jit
def consumer(
    cid: gl.constexpr,
    arguments,
    G: gl.constexpr, P: gl.constexpr, D: gl.constexpr, DP: gl.constexpr, NC: gl.constexpr,
    NQ: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
    WINDOW: gl.constexpr, TAIL: gl.constexpr, DOCUMENTS: gl.constexpr, TURN: gl.constexpr,
    FACTOR: gl.constexpr, RAGGED: gl.constexpr, SINKS: gl.constexpr, PINGPONG: gl.constexpr,
):  # fmt: skip
    """Attention of ROWS query rows of each item: P heads of ROWS // P tokens."""
    (
        q_desc, k_desc, v_desc, o_desc, q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full,
        v_empty, turns, items_ptr, segments_ptr, starts_ptr, q_ptr, query_rows_ptr, doc_rows_ptr,
        sinks_ptr, scale, v_scale, window, max_queries, stride_qb, stride_qt, stride_qh,
    ) = arguments  # fmt: skip
    ROWS: gl.constexpr = q_s.shape[2] * q_s.shape[3]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DP, 16])
    w_layout: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=o_layout, k_width=2)
    dtype: gl.constexpr = q_desc.dtype
    EDGE: gl.constexpr = CAUSAL or TAIL or WINDOW
    row = cid * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, s_layout))
    tile_col = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, s_layout))
    n = 0
    turn = 0
    first = gl.load(starts_ptr + gl.program_id(0))
    last = gl.load(starts_ptr + gl.program_id(0) + 1)
    for index in range(first, last):
        item = items_ptr + index * 8
        b = gl.load(item)
        head = gl.load(item + 1)
        t0 = gl.load(item + 2)
        queries = gl.load(item + 3)
        q_start = gl.load(item + 4)
        segment = gl.load(item + 5)
        count = gl.load(item + 6)
        length = gl.load(item + 7)
        pos_min = q_start + t0
        pos_max = q_start + gl.minimum(t0 + NC * ROWS // P, queries) - 1
        q_pos = q_start + t0 + row // P
        offset = 0
        if DOCUMENTS:
            length = gl.load(segments_ptr + segment * 4 + 1)
            offset = gl.load(segments_ptr + segment * 4 + 2)
        lo, low, high, hi = spans(length, offset, pos_min, pos_max, window, BLOCK_N, CAUSAL, WINDOW)
        lim = gl.full_like(q_pos, 0) + length
        left = lim
        if CAUSAL:
            lim = gl.minimum(length, q_pos + 1 - offset)
        if WINDOW:
            left = q_pos + 1 - window - offset
        m_i = gl.full([ROWS], -float("inf"), gl.float32, layout=gl.SliceLayout(1, s_layout))
        l_i = gl.full([ROWS], 0.0, gl.float32, layout=gl.SliceLayout(1, s_layout))
        acc = gl.zeros([ROWS, DP], gl.float32, layout=o_layout)
        zero = gl.zeros([ROWS, BLOCK_N], gl.float32, layout=s_layout)
        # The last tile of keys has no values before it.
        mbarrier.wait(q_full.index(turn % NQ), (turn // NQ) & 1)
        q = q_s.index(turn % NQ * NC + cid).reshape((ROWS, DP))
        stage = n % STAGES
        mbarrier.wait(k_full.index(stage), (n // STAGES) & 1)
        if PINGPONG:
            mbarrier.wait(turns.index(cid), n & 1)
        k = k_s.index(stage).reshape((BLOCK_N, DP)).permute((1, 0))
        s = warpgroup_mma(q, k, zero, use_acc=False, is_async=True)
        if PINGPONG:
            mbarrier.arrive(turns.index((cid + 1) % NC), count=1)
        s = warpgroup_mma_wait(0, deps=(s,))
        mbarrier.arrive(k_empty.index(stage), count=1)
        p, alpha, m_i, l_i = softmax_tile(
            s, m_i, l_i, scale, hi - 1, length, lim, left, tile_col, BLOCK_N, EDGE, WINDOW, TAIL
        )
        w = gl.convert_layout(p.to(dtype), w_layout)
        n += 1
        top = hi - 1
        for j in range(count):
            if DOCUMENTS:
                if j > 0:
                    length = gl.load(segments_ptr + (segment + j) * 4 + 1)
                    offset = gl.load(segments_ptr + (segment + j) * 4 + 2)
                    lo, low, high, hi = spans(
                        length, offset, pos_min, pos_max, window, BLOCK_N, CAUSAL, WINDOW
                    )
                    lim = gl.full_like(q_pos, 0) + length
                    if CAUSAL:
                        lim = gl.minimum(length, q_pos + 1 - offset)
                    if WINDOW:
                        left = q_pos + 1 - window - offset
                    top = hi
                    if TURN:
                        mbarrier.arrive(q_empty.index(turn % NQ), count=1)
                        turn += 1
                        mbarrier.wait(q_full.index(turn % NQ), (turn // NQ) & 1)
            q = q_s.index(turn % NQ * NC + cid).reshape((ROWS, DP))
            middle = gl.minimum(high, top)
            if EDGE:
                for i in range(middle, top):
                    tile = top - 1 - (i - middle)
                    w, acc, m_i, l_i = step(
                        q, k_s, v_s, k_full, k_empty, v_full, v_empty, turns, n, w, acc, m_i, l_i,
                        scale, tile, length, lim, left, tile_col, cid, NC, STAGES, True, WINDOW,
                        TAIL, PINGPONG, s_layout, o_layout, w_layout,
                    )  # fmt: skip
                    n += 1
            for i in range(gl.minimum(low, middle), middle):
                w, acc, m_i, l_i = step(
                    q, k_s, v_s, k_full, k_empty, v_full, v_empty, turns, n, w, acc, m_i, l_i,
                    scale, i, length, lim, left, tile_col, cid, NC, STAGES, False, False, TAIL,
                    PINGPONG, s_layout, o_layout, w_layout,
                )  # fmt: skip
                n += 1
            if WINDOW:
                bottom = gl.minimum(low, middle)
                for i in range(lo, bottom):
                    tile = bottom - 1 - (i - lo)
                    w, acc, m_i, l_i = step(
                        q, k_s, v_s, k_full, k_empty, v_full, v_empty, turns, n, w, acc, m_i, l_i,
                        scale, tile, length, lim, left, tile_col, cid, NC, STAGES, True, WINDOW,
                        TAIL, PINGPONG, s_layout, o_layout, w_layout,
                    )  # fmt: skip
                    n += 1
        before = (n - 1) % STAGES
        mbarrier.wait(v_full.index(before), ((n - 1) // STAGES) & 1)
        acc = warpgroup_mma(w, v_s.index(before).reshape((BLOCK_N, DP)), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(v_empty.index(before), count=1)
        seen = l_i > 0.0
        factor = gl.where(seen, v_scale / gl.where(seen, l_i, 1.0), 0.0)
        if SINKS:
            sink = gl.load(sinks_ptr + head + row % P) * 1.4426950408889634
            m_new = gl.maximum(m_i, sink)
            alpha = gl.exp2(m_i - m_new)
            factor = v_scale * alpha / (l_i * alpha + gl.exp2(sink - m_new))
        if RAGGED:
            factor = gl.where(t0 + row // P < queries, factor, 0.0)
        o = acc * gl.expand_dims(gl.convert_layout(factor, gl.SliceLayout(1, o_layout)), 1)
        # The queries are done with: their place takes the output.
        q_s.index(turn % NQ * NC + cid).reshape((ROWS, DP)).store(o.to(dtype))
        fence_async_shared()
        store_tile(o_desc, [b, t0 + cid * (ROWS // P), head, 0], q_s.index(turn % NQ * NC + cid))
        tma.store_wait(0)
        mbarrier.arrive(q_empty.index(turn % NQ), count=1)
        turn += 1


@gluon.jit
def hopper_kernel(
    q_desc, k_desc, v_desc, o_desc, items_ptr, segments_ptr, starts_ptr, q_ptr, query_rows_ptr,
    doc_rows_ptr, sinks_ptr, scale, v_scale, window, max_queries, stride_qb, stride_qt, stride_qh,
    G: gl.constexpr, P: gl.constexpr, D: gl.constexpr, DP: gl.constexpr, NC: gl.constexpr,
    NQ: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
    WINDOW: gl.constexpr, TAIL: gl.constexpr, DOCUMENTS: gl.constexpr, TURN: gl.constexpr,
    FACTOR: gl.constexpr, RAGGED: gl.constexpr, SINKS: gl.constexpr, PINGPONG: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, TURNER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Writes o for items starts[program] to starts[program + 1] of the work list.

    P query heads of one kv head share a tile.  TAIL: some document ends within a tile.
    RAGGED: some sequence has fewer queries than the batch has rows, which are zeroed.
    """
    dtype: gl.constexpr = q_desc.dtype
    q_s = gl.allocate_shared_memory(dtype, [NQ * NC] + q_desc.block_shape, q_desc.layout)
    k_s = gl.allocate_shared_memory(dtype, [STAGES] + k_desc.block_shape, k_desc.layout)
    v_s = gl.allocate_shared_memory(dtype, [STAGES] + v_desc.block_shape, v_desc.layout)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [NQ, 1], barrier)
    q_empty = gl.allocate_shared_memory(gl.int64, [NQ, 1], barrier)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    turns = gl.allocate_shared_memory(gl.int64, [NC, 1], barrier)
    for i in gl.static_range(NQ):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=NC)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=NC)
        mbarrier.init(v_empty.index(i), count=NC)
    for i in gl.static_range(NC):
        mbarrier.init(turns.index(i), count=1)
    if PINGPONG:
        mbarrier.arrive(turns.index(0), count=1)
    arguments = (
        q_desc, k_desc, v_desc, o_desc, q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full,
        v_empty, turns, items_ptr, segments_ptr, starts_ptr, q_ptr, query_rows_ptr, doc_rows_ptr,
        sinks_ptr, scale, v_scale, window, max_queries, stride_qb, stride_qt, stride_qh,
    )  # fmt: skip
    C: gl.constexpr = CONSUMER_REGISTERS
    if TURN:
        gl.warp_specialize(
            [
                (consumer, (0, arguments, G, P, D, DP, NC, NQ, BLOCK_N, STAGES, CAUSAL, WINDOW,
                 TAIL, DOCUMENTS, TURN, FACTOR, RAGGED, SINKS, PINGPONG)),
                (consumer, (1, arguments, G, P, D, DP, NC, NQ, BLOCK_N, STAGES, CAUSAL, WINDOW,
                 TAIL, DOCUMENTS, TURN, FACTOR, RAGGED, SINKS, PINGPONG)),
                (turner, (arguments, G, P, D, DP, NC, NQ, BLOCK_N, STAGES, CAUSAL, WINDOW,
                 TAIL, DOCUMENTS, TURN, FACTOR, RAGGED, SINKS, PINGPONG)),
                (producer, (arguments, G, P, D, DP, NC, NQ, BLOCK_N, STAGES, CAUSAL, WINDOW,
                 TAIL, DOCUMENTS, TURN, FACTOR, RAGGED, SINKS, PINGPONG)),
            ],
            [4, 4, 1], [C, TURNER_REGISTERS, 24],
        )  # fmt: skip
    elif NC == 3:
        gl.warp_specialize(
            [
                (consumer, (0, arguments, G, P, D, DP, NC, NQ, BLOCK_N, STAGES, CAUSAL, WINDOW,
                 TAIL, DOCUMENTS, TURN, FACTOR, RAGGED, SINKS, PINGPONG)),
                (consumer, (1, arguments, G, P, D, DP, NC, NQ, BLOCK_N, STAGES, CAUSAL, WINDOW,
                 TAIL, DOCUMENTS, TURN, FACTOR, RAGGED, SINKS, PINGPONG)),
                (consumer, (2, arguments, G, P, D, DP, NC, NQ, BLOCK_N, STAGES, CAUSAL, WINDOW,
                 TAIL, DOCUMENTS, TURN, FACTOR, RAGGED, SINKS, PINGPONG)),
                (producer, (arguments, G, P, D, DP, NC, NQ, BLOCK_N, STAGES, CAUSAL, WINDOW,
                 TAIL, DOCUMENTS, TURN, FACTOR, RAGGED, SINKS, PINGPONG)),
            ],
            [4, 4, 1], [C, C, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (consumer, (0, arguments, G, P, D, DP, NC, NQ, BLOCK_N, STAGES, CAUSAL, WINDOW,
                 TAIL, DOCUMENTS, TURN, FACTOR, RAGGED, SINKS, PINGPONG)),
                (consumer, (1, arguments, G, P, D, DP, NC, NQ, BLOCK_N, STAGES, CAUSAL, WINDOW,
                 TAIL, DOCUMENTS, TURN, FACTOR, RAGGED, SINKS, PINGPONG)),
                (producer, (arguments, G, P, D, DP, NC, NQ, BLOCK_N, STAGES, CAUSAL, WINDOW,
                 TAIL, DOCUMENTS, TURN, FACTOR, RAGGED, SINKS, PINGPONG)),
            ],
            [4, 1], [C, 24],
        )  # fmt: skip


def config(call: Call) -> Config:
    """Tile sizes of a call."""
    block_m, block_n, stages = CONFIGS[padded_dim(call.head_dim)]
    if call.rope is not None:
        block_m = 2 * ROWS
    return Config(block_m, block_n, stages, 4)


def packed_heads(group_size: int) -> int:
    """Query heads of a group that share a tile: its largest power of two, at most 16."""
    return min(group_size & -group_size, 16)


def hopper(call: Call, plan: Plan, o: Tensor) -> None:
    """Fills o: [B, T, H, D]."""
    tables: Tables = plan.tables
    tile, dim = tables.config, padded_dim(call.head_dim)
    heads, turn = packed_heads(call.group_size), call.rope is not None
    rows = [1, ROWS // heads, heads, dim]
    keys = [1, 1, tile.block_n, dim]
    consumers = tile.block_m // ROWS
    k, v = (cache.permute(0, 2, 1, 3) for cache in (call.k, call.v))
    buffers = 1 if dim == 256 else 2
    assert tables.starts is not None
    hopper_kernel[(tables.starts.shape[0] - 1,)](
        _descriptor(call.q, rows),
        _descriptor(k, keys),
        _descriptor(v, keys),
        _descriptor(o, rows),
        tables.items,
        tables.segments,
        tables.starts,
        call.q,
        call.q if tables.query_rows is None else tables.query_rows,
        call.q if tables.doc_rows is None else tables.doc_rows,
        call.q if call.sinks is None else call.sinks,
        call.sm_scale * LOG2_E * call.k_scale,
        call.v_scale,
        call.window or 0,
        call.query_tokens,
        *call.q.stride()[:3],
        G=call.group_size,
        P=heads,
        D=call.head_dim,
        DP=dim,
        NC=consumers,
        NQ=buffers,
        BLOCK_N=tile.block_n,
        STAGES=tile.stages,
        CAUSAL=call.causal,
        WINDOW=call.window is not None,
        TAIL=tables.tail,
        DOCUMENTS=call.doc_lens is not None,
        TURN=turn,
        FACTOR=1.0 if call.rope is None else call.rope.query_factor,
        RAGGED=min(plan.q_lens) < call.query_tokens,
        SINKS=call.sinks is not None,
        PINGPONG=PINGPONG,
        CONSUMER_REGISTERS=208 if turn else 240 if consumers == 2 else 160,
        TURNER_REGISTERS=72,
        num_warps=4,
        enable_fp_fusion=True,
    )


def _descriptor(x: Tensor, block: list[int]) -> TensorDescriptor:
    kind = gl.bfloat16 if x.dtype == torch.bfloat16 else gl.float16
    layout = gl.NVMMASharedLayout.get_default_for(block, kind)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), block, layout)
