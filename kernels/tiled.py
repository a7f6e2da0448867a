"""Tiled attention in plain torch: the portable path of `flash` and `lazy`, on any device.

Queries and keys are taken tile by tile. Per row a running maximum m_i, the sum l_i of
exp(score - m_i) and the weighted values acc are kept, and rescaled by exp(m_old - m_new) when
the maximum grows; o = acc / l_i at the end. Documents come one after the other, and the query is
turned once for each of them from its untouched self. Source: FlashAttention-2, arXiv 2307.08691,
algorithm 1; LazyAttention, arXiv 2606.04302, section 3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kvtool.kernels.checks import Call
from kvtool.kernels.plan import Document, Plan
from kvtool.kernels.rope import rotate

LOG2_E = math.log2(math.e)
QUERY_TILE = 256
KEY_TILE = 512


class Rows:
    """The running state of a tile of queries: acc [Hkv, G*T, D], m_i and l_i [Hkv, G*T]."""

    def __init__(self, num_kv_heads: int, rows: int, head_dim: int, device: torch.device) -> None:
        self.acc = torch.zeros(num_kv_heads, rows, head_dim, device=device)
        self.m_i = torch.full((num_kv_heads, rows), -torch.inf, device=device)
        self.l_i = torch.zeros(num_kv_heads, rows, device=device)

    def add(self, scores: Tensor, v: Tensor) -> None:
        """Takes in a tile. scores: [Hkv, G*T, S], -inf where hidden.  v: [Hkv, S, D]."""
        m_new = torch.maximum(self.m_i, scores.amax(dim=-1))
        peak = m_new.masked_fill(m_new == -torch.inf, 0.0)
        p = (scores - peak[..., None]).exp()
        alpha = (self.m_i - peak).exp()
        self.l_i = self.l_i * alpha + p.sum(dim=-1)
        self.acc = self.acc * alpha[..., None] + p @ v
        self.m_i = m_new

    def log2_sum_exp2(self) -> Tensor:
        """[Hkv, G*T] base 2 log-sum-exp of the scores; -inf for a row that saw nothing."""
        return (self.m_i + self.l_i.log()) * LOG2_E

    def add_sinks(self, sinks: Tensor) -> None:
        """Adds exp(sink) to each row's sum. sinks: [Hkv, G*T]."""
        seen = self.l_i > 0
        m_new = torch.maximum(self.m_i, sinks)
        alpha = (self.m_i - m_new).exp()
        self.acc = self.acc * alpha[..., None]
        self.l_i = torch.where(seen, self.l_i * alpha + (sinks - m_new).exp(), 0.0)
        self.m_i = m_new

    def output(self) -> Tensor:
        """[Hkv, G*T, D], zero in rows that saw nothing."""
        return self.acc / self.l_i.masked_fill(self.l_i == 0, 1.0)[..., None]


def tiled(call: Call, plan: Plan, lse: Tensor | None = None) -> Tensor:
    """o: [B, T, H, D] in q.dtype; sums are float32.

    lse: [B, T, H] float32, filled with the base 2 log-sum-exp of each row where given.
    """
    o = torch.zeros_like(call.q) if call.out is None else call.out.zero_()
    for b, queries in enumerate(plan.q_lens):
        for first in range(0, queries, QUERY_TILE):
            last = min(first + QUERY_TILE, queries)
            rows = attend(call, plan, b, first, last, plan.documents[b])
            if call.sinks is not None:
                sinks = call.sinks.view(call.num_kv_heads, call.group_size, 1)
                rows.add_sinks(sinks.expand(-1, -1, last - first).flatten(1))
            shape = (call.num_q_heads, last - first)
            tile = rows.output().unflatten(1, (call.group_size, last - first))
            o[b, first:last] = tile.flatten(0, 1).transpose(0, 1).to(o.dtype)
            if lse is not None:
                lse[b, first:last] = rows.log2_sum_exp2().reshape(shape).T
    return o


def attend(
    call: Call, plan: Plan, b: int, first: int, last: int, documents: tuple[Document, ...]
) -> Rows:
    """Queries first to last - 1 of sequence b over some of its documents."""
    start = plan.q_starts[b]
    q_pos = torch.arange(start + first, start + last, device=call.q.device)
    q = call.q[b, first:last]
    rows = Rows(call.num_kv_heads, call.group_size * len(q), call.head_dim, q.device)
    for document in documents:
        low, high = _visible_range(call, document, start + first, start + last - 1)
        turned = _pack(_turn(call, plan, q, q_pos, document.offset), call)
        for i in range(low, high, KEY_TILE):
            stop = min(i + KEY_TILE, high)
            k, v = _tile(call, plan, b, document, i, stop)
            scores = turned @ k.transpose(-1, -2) * call.sm_scale
            distance = q_pos[:, None] - torch.arange(
                document.offset + i, document.offset + stop, device=q.device
            )
            rows.add(_biased(call, scores, distance), v)
    return rows


def _visible_range(call: Call, document: Document, first: int, last: int) -> tuple[int, int]:
    """The tokens of a document that queries at positions first to last can see."""
    low, high = 0, document.length
    if call.causal:
        high = min(high, last + 1 - document.offset)
    if call.window is not None:
        low = max(low, first + 1 - call.window - document.offset)
    return low, high


def _turn(call: Call, plan: Plan, q: Tensor, q_pos: Tensor, offset: int) -> Tensor:
    """[T, H, D] float32 queries, turned into the frame the keys are met in."""
    if call.rope is None:
        return q.float()
    frame = 0 if plan.variant == "rotate-k" else offset
    return rotate(q.float(), q_pos - frame, call.rope, call.rope.query_factor)


def _tile(
    call: Call, plan: Plan, b: int, document: Document, first: int, last: int
) -> tuple[Tensor, Tensor]:
    """Keys and values [Hkv, S, D] of some tokens of a document, float32, scales applied."""
    index = torch.arange(document.row + first, document.row + last, device=call.k.device)
    if call.block_table is None:
        k, v = call.k[b, index], call.v[b, index]
    else:
        blocks = call.block_table[b, index // call.block_size].long()
        k, v = (pool[blocks, index % call.block_size] for pool in (call.k, call.v))
    k, v = _dequantised(k, call.k_scale), _dequantised(v, call.v_scale)
    if call.rope is not None and call.rope.keys == "unrotated":
        k = rotate(k, torch.arange(first, last, device=k.device), call.rope)
    elif call.rope is not None and plan.variant == "rotate-k":
        k = rotate(k, torch.full((last - first,), document.offset, device=k.device), call.rope)
    return k.transpose(0, 1), v.transpose(0, 1)


def _dequantised(x: Tensor, scale: float | Tensor) -> Tensor:
    return x.float() * (scale[:, None] if isinstance(scale, Tensor) else scale)


def _pack(q: Tensor, call: Call) -> Tensor:
    """[T, H, D] to [Hkv, G*T, D]: the query heads of a key/value head, one below the other."""
    return q.transpose(0, 1).unflatten(0, (call.num_kv_heads, call.group_size)).flatten(1, 2)


def _biased(call: Call, scores: Tensor, distance: Tensor) -> Tensor:
    """Scores [Hkv, G*T, S] with ALiBi, and -inf where hidden. distance: [T, S] query - key."""
    if call.alibi_slopes is None and not call.causal:
        return scores
    scores = scores.unflatten(1, (call.group_size, len(distance)))
    if call.alibi_slopes is not None:
        slopes = call.alibi_slopes.view(call.num_kv_heads, call.group_size, 1, 1)
        scores = scores - slopes * distance
    if call.causal:
        hidden = distance < 0
        if call.window is not None:
            hidden |= distance >= call.window
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.flatten(1, 2)
