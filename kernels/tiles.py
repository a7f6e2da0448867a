"""The inner loop of flash and lazy attention in Triton: a tile of queries over a run of keys.

Shared by prefill and decode. Base 2 throughout: scale already holds sm_scale * k_scale * log2(e),
m_i is the running maximum of scaled scores and l_i the running sum of exp2(score - m_i).
"""

import triton
import triton.language as tl


@triton.jit
def partner_of(d, R: tl.constexpr, D: tl.constexpr, INTERLEAVED: tl.constexpr):
    """For each dimension the other one of its rotary pair; R of D dimensions turn."""
    if INTERLEAVED:
        return tl.where(d < R, d ^ 1, d)
    if R == D:
        return (d + D // 2) % D
    return tl.where(d < R // 2, d + R // 2, tl.where(d < R, d - R // 2, d))


@triton.jit
def turned(x, other, c, s, FACTOR: tl.constexpr, R: tl.constexpr, d):
    """x turned by rotation rows (c, s), float32; its turning dimensions times FACTOR."""
    y = x.to(tl.float32) * c + other.to(tl.float32) * s
    if FACTOR != 1.0:
        y = y * tl.where(d < R, FACTOR, 1.0)
    return y


@triton.jit
def row_offsets(b, t, h, stride_b, stride_t, stride_h):
    """[M] int64 element offsets of rows (t, h) of sequence b."""
    return b.to(tl.int64) * stride_b + t.to(tl.int64) * stride_t + h * stride_h


@triton.jit
def widened(x, dtype: tl.constexpr, PACKED: tl.constexpr):
    """x in dtype; PACKED: fp8 to float16 by hand, two elements an instruction.

    Left to the compiler, an fp8 tile is read byte by byte in the order the matrix units want it
    and converted afterwards. The conversion here is declared impure, which keeps it ahead of the
    change of order: wide reads, then float16 through shared memory.
    """
    if PACKED:
        kind: tl.constexpr = "e5m2" if x.dtype == tl.float8e5 else "e4m3"
        return tl.inline_asm_elementwise(
            "{ .reg .b16 low, high; mov.b32 {low, high}, $2; cvt.rn.f16x2."
            + kind
            + "x2 $0, low; cvt.rn.f16x2."
            + kind
            + "x2 $1, high; }",
            "=r,=r,r",
            [x.to(tl.int8, bitcast=True)],
            dtype=tl.float16,
            is_pure=False,
            pack=4,
        )
    return x.to(dtype)


@triton.jit
def key_offsets(table_ptr, row, valid, stride_block, stride_row, BLOCK_SIZE: tl.constexpr):
    """[BLOCK_N] int64 element offsets of key rows; BLOCK_SIZE 0 means contiguous rows."""
    if BLOCK_SIZE == 0:
        return row.to(tl.int64) * stride_row
    block = tl.load(table_ptr + row // BLOCK_SIZE, mask=valid, other=0)
    return block.to(tl.int64) * stride_block + (row % BLOCK_SIZE).to(tl.int64) * stride_row


@triton.jit
def turn_rows(
    q_at, o_at, rows_at, doc_rows_ptr, live,
    D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, INTERLEAVED: tl.constexpr,
    FACTOR: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """Turns head rows from memory to memory, pair by pair in float32.

    q_at, o_at, rows_at: [M] pointers to untouched rows, turned rows and their rotation rows.
    BACK: turn back by the document's rotation row as well, cos(a - b) by the addition theorem.
    """
    j = tl.arange(0, DP // 2)
    if INTERLEAVED:
        d1 = 2 * j
        d2 = d1 + 1
    else:
        d1 = j
        d2 = j + R // 2
    inside = live[:, None] & (j < R // 2)[None, :]
    x1 = tl.load(q_at[:, None] + d1[None, :], mask=inside, other=0.0).to(tl.float32)
    x2 = tl.load(q_at[:, None] + d2[None, :], mask=inside, other=0.0).to(tl.float32)
    c = tl.load(rows_at[:, None] + d2[None, :], mask=inside, other=0.0)
    s = tl.load(rows_at[:, None] + D + d2[None, :], mask=inside, other=0.0)
    if BACK:
        doc_c = tl.load(doc_rows_ptr + d2, mask=j < R // 2, other=0.0)[None, :]
        doc_s = tl.load(doc_rows_ptr + D + d2, mask=j < R // 2, other=0.0)[None, :]
        back = c * doc_c + s * doc_s
        s = s * doc_c - c * doc_s
        c = back
    y1 = (x1 * c - x2 * s) * FACTOR
    y2 = (x2 * c + x1 * s) * FACTOR
    tl.store(o_at[:, None] + d1[None, :], y1.to(o_at.dtype.element_ty), mask=inside)
    tl.store(o_at[:, None] + d2[None, :], y2.to(o_at.dtype.element_ty), mask=inside)
    if R != D:
        d = tl.arange(0, DP)
        rest = live[:, None] & (d >= R)[None, :] & (d < D)[None, :]
        x = tl.load(q_at[:, None] + d[None, :], mask=rest, other=0.0)
        tl.store(o_at[:, None] + d[None, :], x.to(o_at.dtype.element_ty), mask=rest)


@triton.jit
def attend_tile(
    acc, l_i, m_i, q, k_src, v_src, table_ptr, key_rows_ptr, doc_c, doc_s,
    b, hk, first, row, valid, position, index, q_pos, slope, window, scale,
    stride_block, stride_row,
    D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, ALIBI: tl.constexpr, KEY_TURN: tl.constexpr, TMA: tl.constexpr,
    PACKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """acc [M, DP], l_i and m_i [M] after one tile of keys.

    q: [M, DP].  row, valid, position, index: [BLOCK_N] key rows, whether they hold a token, its
    position, and its index within its document.  first: row[0], for TMA.  q_pos: [M].
    KEY_TURN: 0 keys are used as stored, 1 turned by the document's row (doc_c, doc_s), 2 by their
    token's row in key_rows_ptr [length, 2, D].  Not MASKED promises a whole tile that every query
    sees.
    """
    d = tl.arange(0, DP)
    inside = (d < D)[None, :]
    if TMA:
        k = k_src.load([b, hk, first, 0]).reshape(BLOCK_N, DP)
    else:
        at = key_offsets(table_ptr, row, valid, stride_block, stride_row, BLOCK_SIZE)
        if MASKED:
            inside = inside & valid[:, None]
        if MASKED or D != DP:
            k = tl.load(k_src + at[:, None] + d[None, :], mask=inside, other=0.0)
        else:
            k = tl.load(k_src + at[:, None] + d[None, :])
    if KEY_TURN != 0:
        other_d = partner_of(d, R, D, INTERLEAVED)
        other = tl.load(k_src + at[:, None] + other_d[None, :], mask=inside, other=0.0)
        if KEY_TURN == 1:
            turned_k = turned(k, other, doc_c[None, :], doc_s[None, :], 1.0, R, d)
        else:
            rows = key_rows_ptr + index[:, None] * (2 * D) + d[None, :]
            c = tl.load(rows, mask=inside, other=0.0)
            s = tl.load(rows + D, mask=inside, other=0.0)
            turned_k = turned(k, other, c, s, 1.0, R, d)
        k = turned_k.to(q.dtype)
    x = tl.dot(q, k.to(q.dtype).T, input_precision=PRECISION)  # [M, BLOCK_N]
    if ALIBI:
        x = x * scale + slope[:, None] * (position[None, :] - q_pos[:, None])
    unit = 1.0 if ALIBI else scale
    if MASKED:
        seen = valid[None, :]
        if CAUSAL:
            distance = q_pos[:, None] - position[None, :]
            seen = seen & (distance >= 0)
            if WINDOW:
                seen = seen & (distance < window)
        x = tl.where(seen, x, -float("inf"))
    m_new = tl.maximum(m_i, tl.max(x, 1) * unit)
    peak = m_new
    if MASKED:
        peak = tl.where(m_new == -float("inf"), 0.0, m_new)
    p = tl.math.exp2(x * unit - peak[:, None])
    alpha = tl.math.exp2(m_i - peak)
    l_i = l_i * alpha + tl.sum(p, 1)
    acc = acc * alpha[:, None]
    if TMA:
        v = v_src.load([b, hk, first, 0]).reshape(BLOCK_N, DP)
        if MASKED:
            v = tl.where(valid[:, None], v, 0.0)
    elif MASKED or D != DP:
        v = tl.load(v_src + at[:, None] + d[None, :], mask=inside, other=0.0)
    else:
        v = tl.load(v_src + at[:, None] + d[None, :])
    v = widened(v, q.dtype, PACKED)
    acc = tl.dot(p.to(q.dtype), v, acc, input_precision=PRECISION)
    return acc, l_i, m_new


@triton.jit
def attend(
    acc, l_i, m_i, q, k_src, v_src, table_ptr, key_rows_ptr, doc_c, doc_s,
    b, hk, row0, lo, hi, offset, q_pos, slope, window, scale, stride_block, stride_row,
    D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, ALIBI: tl.constexpr, KEY_TURN: tl.constexpr, TMA: tl.constexpr,
    PACKED: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """acc, l_i and m_i after tokens lo to hi - 1 of a run of keys.

    row0, offset: the run's first key row and position.  Not MASKED promises that every query sees
    every key and that hi - lo is a multiple of BLOCK_N.
    """
    for i in tl.range(lo, hi, BLOCK_N, num_stages=STAGES):
        n = i + tl.arange(0, BLOCK_N)
        acc, l_i, m_i = attend_tile(
            acc, l_i, m_i, q, k_src, v_src, table_ptr, key_rows_ptr, doc_c, doc_s,
            b, hk, row0 + i, row0 + n, n < hi, offset + n, n, q_pos, slope, window, scale,
            stride_block, stride_row, D, DP, R, INTERLEAVED, BLOCK_N, BLOCK_SIZE, MASKED, CAUSAL,
            WINDOW, ALIBI, KEY_TURN, TMA, PACKED, PRECISION,
        )  # fmt: skip
    return acc, l_i, m_i


@triton.jit
def finish(acc, l_i, m_i, sink, v_scale, SINKS: tl.constexpr):
    """o [M, DP] and log2-sum-exp2 [M]; zero and -inf for rows that saw no key. sink: [M]."""
    seen = l_i > 0.0
    if SINKS:
        m_new = tl.maximum(m_i, sink)
        alpha = tl.math.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.math.exp2(sink - m_new)
        acc = acc * alpha[:, None]
        m_i = m_new
    total = tl.where(seen, l_i, 1.0)
    o = acc * (v_scale / total)[:, None]
    return o, tl.where(seen, m_i + tl.math.log2(total), -float("inf"))
