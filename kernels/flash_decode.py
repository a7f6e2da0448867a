"""Decode in Triton: the keys of a sequence are split over the GPU and the parts merged.

A few query rows meet a long cache, so a program per (sequence, kv head) would leave most of the
GPU idle. The plan cuts every sequence into items of about equal tiles; an item is a run of
segments, each a part of one document, and the query is turned once per segment. Each item leaves
its acc / l_i and its log-sum-exp, and a second kernel merges them; a batch whose sequences are
one item each skips both. The second launch overlaps the end of the first where the device can
(programmatic dependent launch). Source: Flash-Decoding, Stanford CRFM, October 2023; LazyAttention,
arXiv 2606.04302, section 3.2 (there without a split).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvtool.kernels.checks import Call
from kvtool.kernels.launch import Tables, common_arguments, padded_dim
from kvtool.kernels.plan import Plan
from kvtool.kernels.tiles import (
    attend,
    attend_tile,
    finish,
    partner_of,
    row_offsets,
    turn_rows,
    turned,
)

CONFIGS = {
    16: (64, 3, 4),
    32: (64, 3, 4),
    64: (64, 5, 4),
    128: (64, 5, 4),
    256: (32, 4, 4),
}
"""BLOCK_N, stages, warps per padded head_dim."""
TURN_ROWS = 32
"""Query rows, of several segments, turned at once."""
MAX_REGISTERS = 128
"""Per thread: left alone, the compiler takes 250 for documents and halves the programs per SM."""


UNSPLIT_CONFIG = (16, 2, 4)
"""BLOCK_N, stages, warps of the variant `unsplit`: one block of 16 tokens at a time."""


def config(call: Call, variant: str | None) -> tuple[int, int, int, int]:
    """BLOCK_M, BLOCK_N, stages and warps for a call; tiles are halved for float32."""
    rows = call.query_tokens * call.group_size
    block_n, stages, warps = CONFIGS[padded_dim(call.head_dim)]
    if variant == "unsplit":
        block_n, stages, warps = UNSPLIT_CONFIG
    if call.q.dtype == torch.float32:
        block_n, stages = max(16, block_n // 2), 2
    return max(16, 1 << (rows - 1).bit_length()), block_n, stages, warps


@triton.jit
def decode_kernel(
    q_ptr, k_src, v_src, o_ptr, part_ptr, lse_ptr, turned_ptr, table_ptr, items_ptr, segments_ptr,
    tiles_ptr, query_rows_ptr, doc_rows_ptr, key_rows_ptr, slopes_ptr, sinks_ptr, k_scale_ptr,
    v_scale_ptr, scale, v_scale, window, max_queries, max_blocks,
    stride_qb, stride_qt, stride_qh, stride_ob, stride_ot, stride_oh,
    stride_kb, stride_kn, stride_kh,
    HKV: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr,
    INTERLEAVED: tl.constexpr, FACTOR: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, ALIBI: tl.constexpr, SINKS: tl.constexpr,
    HEAD_SCALES: tl.constexpr, FP8: tl.constexpr, PACKED: tl.constexpr,
    DOCUMENTS: tl.constexpr, QUERY_TURN: tl.constexpr, KEY_TURN: tl.constexpr,
    SINGLE: tl.constexpr, ONE_QUERY: tl.constexpr, PDL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr, TURN_ROWS: tl.constexpr,
):  # fmt: skip
    """Writes o if SINGLE, else acc / l_i and the log-sum-exp of one item to part and lse.

    part: [items, HKV, T * G, D].  lse: [items, HKV, T * G].  turned: [segments, HKV, T * G, D].
    DOCUMENTS: an item has several segments; else item i is segment i.
    """
    index = tl.program_id(0)
    hk = tl.program_id(1)
    item = items_ptr + index * 8
    b = tl.load(item)
    queries = tl.load(item + 3)
    q_start = tl.load(item + 4)
    row = tl.arange(0, BLOCK_M)
    t = row // G
    h = hk * G + row % G
    live = t < queries
    d = tl.arange(0, DP)
    q_pos = q_start + t
    q_at = q_ptr + row_offsets(b, t, h, stride_qb, stride_qt, stride_qh)[:, None]
    inside = live[:, None] & (d < D)[None, :]
    scale_h = scale
    v_scale_h = v_scale
    if HEAD_SCALES:
        scale_h = scale * tl.load(k_scale_ptr + hk)
        v_scale_h = v_scale * tl.load(v_scale_ptr + hk)
    slope = tl.zeros([BLOCK_M], tl.float32)
    if ALIBI:
        slope = tl.load(slopes_ptr + h, mask=live, other=0.0) * 1.4426950408889634
    if BLOCK_SIZE == 0:
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
    doc_c = tl.zeros([DP], tl.float32)
    doc_s = tl.zeros([DP], tl.float32)
    key_rows = key_rows_ptr
    if DOCUMENTS:
        rows = max_queries * G
        if QUERY_TURN:
            # All segments' queries are turned first, so that one loop over tiles, pipelined
            # across documents, reads the query beside the keys.
            first = tl.load(item + 5)
            count = tl.load(item + 1) * rows
            for start in tl.range(0, count, TURN_ROWS, num_stages=1):
                r = start + tl.arange(0, TURN_ROWS)
                segment = first + r // rows
                some_t = r % rows // G
                some_h = hk * G + r % rows % G
                turned_at = (segment * HKV + hk).to(tl.int64) * rows + r % rows
                turn_rows(
                    q_ptr + row_offsets(b, some_t, some_h, stride_qb, stride_qt, stride_qh),
                    turned_ptr + turned_at * D,
                    query_rows_ptr + (segment * max_queries + some_t).to(tl.int64) * (2 * D),
                    doc_rows_ptr, (r < count) & (some_t < queries),
                    D, DP, R, INTERLEAVED, FACTOR, False,
                )  # fmt: skip
            tl.debug_barrier()
        else:
            q = tl.load(q_at + d[None, :], mask=inside, other=0.0)
            if FP8:
                q = q.to(tl.float16)
        tiles = tiles_ptr + tl.load(item + 6) * 8
        for i in tl.range(0, tl.load(item + 7), num_stages=STAGES):
            tile = tiles + i * 8
            segment = tl.load(tile + 4)
            if QUERY_TURN:
                turned_at = (segment * HKV + hk).to(tl.int64) * rows + row
                q = tl.load(
                    turned_ptr + turned_at[:, None] * D + d[None, :], mask=inside, other=0.0
                )
            if KEY_TURN == 1:
                at = doc_rows_ptr + segment * (2 * D) + d
                doc_c = tl.load(at, mask=d < D, other=0.0)
                doc_s = tl.load(at + D, mask=d < D, other=0.0)
            acc, l_i, m_i = attend_tile(
                acc, l_i, m_i, q, k_head, v_head, table, key_rows, doc_c, doc_s,
                b, hk, tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3),
                q_pos, slope, window, scale_h, stride_kb, stride_kn,
                D, DP, R, INTERLEAVED, BLOCK_N, BLOCK_SIZE, True, CAUSAL, WINDOW, ALIBI,
                KEY_TURN, False, PACKED, PRECISION,
            )  # fmt: skip
    else:
        segment = segments_ptr + index * 4
        row0 = tl.load(segment)
        tokens = tl.load(segment + 1)
        position = tl.load(segment + 2)
        q = tl.load(q_at + d[None, :], mask=inside, other=0.0)
        if QUERY_TURN:
            other_d = partner_of(d, R, D, INTERLEAVED)
            other = tl.load(q_at + other_d[None, :], mask=inside, other=0.0)
            rows_at = query_rows_ptr + index * max_queries * (2 * D) + d[None, :]
            if ONE_QUERY:
                c = tl.load(rows_at, mask=(d < D)[None, :], other=0.0)
                s = tl.load(rows_at + D, mask=(d < D)[None, :], other=0.0)
            else:
                rows_at = rows_at + t[:, None] * (2 * D)
                c = tl.load(rows_at, mask=inside, other=0.0)
                s = tl.load(rows_at + D, mask=inside, other=0.0)
            q = turned(q, other, c, s, FACTOR, R, d[None, :])
        q = q.to(tl.float16 if FP8 else q_ptr.dtype.element_ty)
        if KEY_TURN == 1:
            at = doc_rows_ptr + index * (2 * D) + d
            doc_c = tl.load(at, mask=d < D, other=0.0)
            doc_s = tl.load(at + D, mask=d < D, other=0.0)
        if KEY_TURN == 2:
            key_rows = key_rows_ptr + tl.load(segment + 3) * (2 * D)
        acc, l_i, m_i = attend(
            acc, l_i, m_i, q, k_head, v_head, table, key_rows, doc_c, doc_s,
            b, hk, row0, 0, tokens, position, q_pos, slope, window, scale_h, stride_kb, stride_kn,
            D, DP, R, INTERLEAVED, BLOCK_N, BLOCK_SIZE, True, CAUSAL, WINDOW, ALIBI,
            KEY_TURN, False, PACKED, STAGES, PRECISION,
        )  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    sink = tl.zeros([BLOCK_M], tl.float32)
    if SINGLE:
        if SINKS:
            sink = tl.load(sinks_ptr + h, mask=live, other=0.0) * 1.4426950408889634
        o, lse = finish(acc, l_i, m_i, sink, v_scale_h, SINKS)
        o_at = o_ptr + row_offsets(b, t, h, stride_ob, stride_ot, stride_oh)[:, None]
        tl.store(o_at + d[None, :], o.to(o_ptr.dtype.element_ty), mask=inside)
    else:
        o, lse = finish(acc, l_i, m_i, sink, v_scale_h, False)
        slot = (index * HKV + hk).to(tl.int64) * (max_queries * G) + row
        tl.store(part_ptr + slot[:, None] * D + d[None, :], o, mask=inside)
        tl.store(lse_ptr + slot, lse, mask=live)


@triton.jit
def merge_kernel(
    part_ptr, lse_ptr, o_ptr, first_ptr, queries_ptr, sinks_ptr, max_queries,
    stride_ob, stride_ot, stride_oh,
    HKV: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    SINKS: tl.constexpr, BLOCK_I: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """o of one query row: its items' parts weighted by exp2(log-sum-exp - maximum)."""
    b = tl.program_id(0)
    h = tl.program_id(1)
    t = tl.program_id(2)
    if PDL:
        tl.extra.cuda.gdc_wait()
    first = tl.load(first_ptr + b)
    last = tl.load(first_ptr + b + 1)
    last = tl.where(t < tl.load(queries_ptr + b), last, first)
    hk = h // G
    d = tl.arange(0, DP)
    acc = tl.zeros([DP], tl.float32)
    l_i = 0.0
    m_i = -float("inf")
    for start in tl.range(first, last, BLOCK_I):
        item = start + tl.arange(0, BLOCK_I)
        ok = item < last
        slot = (item * HKV + hk).to(tl.int64) * (max_queries * G) + t * G + h % G
        lse = tl.load(lse_ptr + slot, mask=ok, other=-float("inf"))
        m_new = tl.maximum(m_i, tl.max(lse, 0))
        peak = tl.where(m_new == -float("inf"), 0.0, m_new)
        w = tl.math.exp2(lse - peak)
        inside = ok[:, None] & (d < D)[None, :]
        part = tl.load(part_ptr + slot[:, None] * D + d[None, :], mask=inside, other=0.0)
        alpha = tl.math.exp2(m_i - peak)
        acc = acc * alpha + tl.sum(part * w[:, None], 0)
        l_i = l_i * alpha + tl.sum(w, 0)
        m_i = m_new
    seen = l_i > 0.0
    if SINKS:
        sink = tl.load(sinks_ptr + h) * 1.4426950408889634
        m_new = tl.maximum(m_i, sink)
        alpha = tl.math.exp2(m_i - m_new)
        acc = acc * alpha
        l_i = l_i * alpha + tl.math.exp2(sink - m_new)
    o = acc / tl.where(seen, l_i, 1.0)
    o_at = o_ptr + b.to(tl.int64) * stride_ob + t * stride_ot + h * stride_oh
    tl.store(o_at + d, o.to(o_ptr.dtype.element_ty), mask=d < D)


def decode(call: Call, plan: Plan, o: Tensor) -> None:
    """Fills o: [B, T, H, D]."""
    tables: Tables = plan.tables
    block_m, block_n, stages, warps = tables.config
    arguments, _ = common_arguments(call, plan, o, block_n)
    items, rows = tables.items.shape[0], call.query_tokens * call.group_size
    single, pdl = tables.first_items is None, _overlaps(call)
    per_item = (call.num_kv_heads, rows, call.head_dim)
    part, lse, turned_q = o, o, o
    if not single:
        part = o.new_empty((items, *per_item), dtype=torch.float32)
        lse = part.new_empty(part.shape[:-1])
    if tables.tiles is not None and call.rope is not None:
        dtype = torch.float16 if arguments["FP8"] else call.q.dtype
        turned_q = o.new_empty((tables.segments.shape[0], *per_item), dtype=dtype)
    decode_kernel[(items, call.num_kv_heads)](
        **arguments | {"DOCUMENTS": tables.tiles is not None},
        part_ptr=part,
        lse_ptr=lse,
        turned_ptr=turned_q,
        tiles_ptr=tables.items if tables.tiles is None else tables.tiles,
        max_queries=call.query_tokens,
        HKV=call.num_kv_heads,
        SINGLE=single,
        ONE_QUERY=call.query_tokens == 1,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        STAGES=stages,
        TURN_ROWS=TURN_ROWS,
        num_warps=warps,
        num_stages=stages,
        PDL=pdl and not single,
        maxnreg=MAX_REGISTERS,
        enable_fp_fusion=True,
    )
    if not single:
        merge_kernel[(call.batch_size, call.num_q_heads, call.query_tokens)](
            part,
            lse,
            o,
            tables.first_items,
            tables.queries,
            arguments["sinks_ptr"],
            call.query_tokens,
            *o.stride()[:3],
            HKV=call.num_kv_heads,
            G=call.group_size,
            D=call.head_dim,
            DP=arguments["DP"],
            SINKS=call.sinks is not None,
            BLOCK_I=16,
            PDL=pdl,
            launch_pdl=pdl,
            num_warps=4,
        )


def _overlaps(call: Call) -> bool:
    """Devices where a kernel may be launched while the one before it ends: sm_90 and later."""
    return call.q.is_cuda and torch.cuda.get_device_capability(call.q.device) >= (9, 0)
