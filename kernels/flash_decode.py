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

from kvtool.kernels.checks import FP8_DTYPES, Call
from kvtool.kernels.launch import MAX_SEGMENTS, Config, Tables, common_arguments, padded_dim
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
    16: (64, 3, 4, 128, 4),
    32: (64, 3, 4, 128, 4),
    64: (64, 3, 4, 128, 4),
    128: (64, 3, 4, 128, 4),
    256: (32, 3, 4, 128, 3),
}
"""BLOCK_N, stages, warps, registers, programs per multiprocessor, by padded head_dim.

Registers are capped because the compiler, left alone, takes what halves the programs per
multiprocessor. Measured on an H200.
"""
FP8_CONFIGS = CONFIGS | {128: (64, 5, 2, 200, 4)}
"""For fp8 caches: fewer warps, since converting costs more than waiting. Measured on an H200."""
UNSPLIT_CONFIG = (16, 2, 4, 128, 4)
"""Of the variant `unsplit`: one block of 16 tokens at a time."""
TURN_ROWS = 32
"""Query rows, of several segments, turned at once."""


def config(call: Call, variant: str | None) -> Config:
    """Tile sizes and resources of a call; float32 takes half the keys at a time."""
    rows = call.query_tokens * call.group_size
    table = FP8_CONFIGS if call.k.dtype in FP8_DTYPES else CONFIGS
    block_n, stages, warps, registers, programs = table[padded_dim(call.head_dim)]
    if variant == "unsplit":
        block_n, stages, warps, registers, programs = UNSPLIT_CONFIG
    if call.q.dtype == torch.float32:
        block_n, stages = max(16, block_n // 2), 2
    block_m = max(16, 1 << (rows - 1).bit_length())
    return Config(block_m, block_n, stages, warps, registers, programs)


@triton.jit
def decode_kernel(
    q_ptr, k_src, v_src, o_ptr, part_ptr, lse_ptr, turned_ptr, table_ptr, items_ptr, segments_ptr,
    query_rows_ptr, doc_rows_ptr, key_rows_ptr, slopes_ptr, sinks_ptr, k_scale_ptr, v_scale_ptr,
    scale, v_scale, window, max_queries, max_blocks,
    stride_qb, stride_qt, stride_qh, stride_ob, stride_ot, stride_oh,
    stride_kb, stride_kn, stride_kh,
    HKV: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr,
    INTERLEAVED: tl.constexpr, FACTOR: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, ALIBI: tl.constexpr, SINKS: tl.constexpr,
    HEAD_SCALES: tl.constexpr, FP8: tl.constexpr, PACKED: tl.constexpr,
    DOCUMENTS: tl.constexpr, QUERY_TURN: tl.constexpr, KEY_TURN: tl.constexpr,
    SINGLE: tl.constexpr, ONE_QUERY: tl.constexpr, PDL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr, TURN_ROWS: tl.constexpr,
    MAX_SEGMENTS: tl.constexpr,
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
        first = tl.load(item + 5)
        count = tl.load(item + 1)
        # Where a tile lies follows from which segments have begun: sums over the item's segments
        # in registers, so that the loads of keys depend on no other load than the block table.
        number = tl.arange(0, MAX_SEGMENTS)
        record = segments_ptr + (first + number) * 8
        there = number < count
        later = there & (number > 0)
        begins = tl.load(record + 4, mask=there, other=2147483647)
        row_v = tl.load(record, mask=there, other=0)
        row_p = tl.load(record - 8, mask=later, other=0)
        end_v = row_v + tl.load(record + 1, mask=there, other=0)
        end_p = row_p + tl.load(record - 7, mask=later, other=0)
        tile_row = row_v - tl.load(record + 4, mask=there, other=0) * BLOCK_N
        tile_row -= row_p - tl.load(record - 4, mask=later, other=0) * BLOCK_N
        end_row = end_v - end_p
        ahead = tl.load(record + 2, mask=there, other=0) - row_v
        ahead -= tl.load(record - 6, mask=later, other=0) - row_p
        inner = tl.load(record + 3, mask=there, other=0) - row_v
        inner -= tl.load(record - 5, mask=later, other=0) - row_p
        if QUERY_TURN:
            # All segments' queries are turned first, so that one loop over tiles, pipelined
            # across documents, reads the query beside the keys.
            for start in tl.range(0, count * rows, TURN_ROWS, num_stages=1):
                r = start + tl.arange(0, TURN_ROWS)
                segment = first + r // rows
                some_t = r % rows // G
                some_h = hk * G + r % rows % G
                turned_at = (segment * HKV + hk).to(tl.int64) * rows + r % rows
                turn_rows(
                    q_ptr + row_offsets(b, some_t, some_h, stride_qb, stride_qt, stride_qh),
                    turned_ptr + turned_at * D,
                    query_rows_ptr + (segment * max_queries + some_t).to(tl.int64) * (2 * D),
                    doc_rows_ptr, (r < count * rows) & (some_t < queries),
                    D, DP, R, INTERLEAVED, FACTOR, False,
                )  # fmt: skip
            tl.debug_barrier()
        else:
            q = tl.load(q_at + d[None, :], mask=inside, other=0.0)
            if FP8:
                q = q.to(tl.float16)
        n = tl.arange(0, BLOCK_N)
        for i in tl.range(0, tl.load(item + 7), num_stages=STAGES):
            begun = begins <= i
            segment = first - 1 + tl.sum(begun.to(tl.int32), 0)
            key_row = i * BLOCK_N + tl.sum(tl.where(begun, tile_row, 0), 0) + n
            valid = key_row < tl.sum(tl.where(begun, end_row, 0), 0)
            position = key_row
            if CAUSAL or ALIBI:
                position = key_row + tl.sum(tl.where(begun, ahead, 0), 0)
            token = key_row
            if KEY_TURN == 2:
                token = key_row + tl.sum(tl.where(begun, inner, 0), 0)
            if QUERY_TURN:
                turned_at = ((segment * HKV + hk).to(tl.int64) * rows + row)[:, None] * D
                q = tl.load(turned_ptr + turned_at + d[None, :], mask=inside, other=0.0)
            if KEY_TURN == 1:
                doc_at = doc_rows_ptr + segment * (2 * D) + d
                doc_c = tl.load(doc_at, mask=d < D, other=0.0)
                doc_s = tl.load(doc_at + D, mask=d < D, other=0.0)
            acc, l_i, m_i = attend_tile(
                acc, l_i, m_i, q, k_head, v_head, table, key_rows, doc_c, doc_s,
                b, hk, 0, key_row, valid, position, token, q_pos, slope, window, scale_h,
                stride_kb, stride_kn, D, DP, R, INTERLEAVED, BLOCK_N, BLOCK_SIZE, True, CAUSAL,
                WINDOW, ALIBI, KEY_TURN, False, PACKED, PRECISION,
            )  # fmt: skip
    else:
        segment = segments_ptr + index * 8
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
    tile = tables.config
    arguments, _ = common_arguments(call, plan, o, tile.block_n)
    items, rows = tables.items.shape[0], call.query_tokens * call.group_size
    single, pdl = tables.first_items is None, _overlaps(call)
    per_item = (call.num_kv_heads, rows, call.head_dim)
    part, lse, turned_q = o, o, o
    if not single:
        part = o.new_empty((items, *per_item), dtype=torch.float32)
        lse = part.new_empty(part.shape[:-1])
    # One query sees all the keys of its items: the plan left the others out.
    several = call.query_tokens > 1
    shape = {
        "DOCUMENTS": tables.several,
        "CAUSAL": call.causal and several,
        "WINDOW": call.window is not None and several,
    }
    if tables.several and call.rope is not None:
        dtype = torch.float16 if arguments["FP8"] else call.q.dtype
        turned_q = o.new_empty((tables.segments.shape[0], *per_item), dtype=dtype)
    decode_kernel[(items, call.num_kv_heads)](
        **arguments | shape,
        part_ptr=part,
        lse_ptr=lse,
        turned_ptr=turned_q,
        max_queries=call.query_tokens,
        HKV=call.num_kv_heads,
        SINGLE=single,
        ONE_QUERY=call.query_tokens == 1,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        STAGES=tile.stages,
        TURN_ROWS=TURN_ROWS,
        MAX_SEGMENTS=MAX_SEGMENTS,
        num_warps=tile.warps,
        num_stages=tile.stages,
        PDL=pdl and not single,
        maxnreg=tile.registers,
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
            BLOCK_I=16 if tables.most_items <= 16 else 64,
            PDL=pdl,
            launch_pdl=pdl,
            num_warps=4,
            enable_fp_fusion=True,
        )


def _overlaps(call: Call) -> bool:
    """Devices where a kernel may be launched while the one before it ends: sm_90 and later."""
    return call.q.is_cuda and torch.cuda.get_device_capability(call.q.device) >= (9, 0)
