"""Attention in float64, obvious and slow: the judge of all other kernels.

o = softmax(sm_scale * q k^T + bias) v, row by row over the keys that a query may see. Documents
are put at their positions one token at a time, so nothing here knows of offsets shared by a
document. A query that sees no key has output 0.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from kvtool.kernels.checks import Call, Options, check, host_plan
from kvtool.kernels.plan import Plan
from kvtool.kernels.rope import rotate

MAX_SCORES = 1 << 26
"""Scores held at once; longer sequences are worked off in slices of queries."""


def attention(q: Tensor, k: Tensor, v: Tensor, **options: Unpack[Options]) -> Tensor:
    """o: [B, T, H, D] in float64, from inputs as they are stored; arguments as in `check`."""
    call = check(q, k, v, **options)
    plan = call.plan or _plan(call)
    o = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    for b in range(call.batch_size):
        if plan.kv_lens[b] and plan.q_lens[b]:
            o[b, : plan.q_lens[b]] = _sequence(call, plan, b)
    return o


def plan(q: Tensor, k: Tensor, v: Tensor, **options: Unpack[Options]) -> Plan:
    """The lengths of a batch, read and checked."""
    return _plan(check(q, k, v, **options))


def _plan(call: Call) -> Plan:
    return host_plan(call, "torch")


def key_rows(call: Call, cache: Tensor, plan: Plan, b: int) -> Tensor:
    """[S, Hkv, D] the stored rows of sequence b in order of its tokens, gaps of blocks left out."""
    parts = [torch.arange(d.row, d.row + d.length, device=cache.device) for d in plan.documents[b]]
    index = torch.cat(parts)
    if call.block_table is None:
        return cache[b, index]
    blocks = call.block_table[b, index // call.block_size].long()
    return cache[blocks, index % call.block_size]


def key_positions(plan: Plan, b: int, device: torch.device) -> Tensor:
    """[S] the position of each key of sequence b."""
    parts = [torch.arange(d.offset, d.offset + d.length) for d in plan.documents[b]]
    return torch.cat(parts).to(device)


def visible(call: Call, q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """[T, S] whether a query sees a key: causality, then the window, on positions."""
    distance = q_pos[:, None] - k_pos[None, :]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if call.causal:
        seen &= distance >= 0
    if call.window is not None:
        seen &= distance < call.window
    return seen


def scaled(x: Tensor, scale: float | Tensor) -> Tensor:
    """x: [..., Hkv, D] in float64 times its scale, one for all or one per head."""
    if isinstance(scale, Tensor):
        return x.double() * scale.double()[:, None]
    return x.double() * scale


def _sequence(call: Call, plan: Plan, b: int) -> Tensor:
    """[T, H, D] the output rows of sequence b, T its own number of queries."""
    q = call.q[b, : plan.q_lens[b]].double()
    k = scaled(key_rows(call, call.k, plan, b), call.k_scale)
    v = scaled(key_rows(call, call.v, plan, b), call.v_scale)
    start = plan.q_starts[b]
    q_pos = torch.arange(start, start + len(q), device=q.device)
    k_pos = key_positions(plan, b, q.device)
    if call.rope is not None:
        q = rotate(q, q_pos, call.rope, call.rope.attention_factor)
        k = _keys_at_positions(call, plan, b, k, k_pos)
    step = max(1, MAX_SCORES // len(k))
    heads = [
        torch.cat([_rows(call, h, q[t : t + step, h], k, v, q_pos[t : t + step], k_pos)
                   for t in range(0, len(q), step)])
        for h in range(call.num_q_heads)
    ]  # fmt: skip
    return torch.stack(heads, dim=1)


def _keys_at_positions(call: Call, plan: Plan, b: int, k: Tensor, k_pos: Tensor) -> Tensor:
    """Keys turned to their positions: unrotated ones all the way, local ones by their offset."""
    assert call.rope is not None
    if call.rope.keys == "unrotated":
        return rotate(k, k_pos, call.rope, call.rope.attention_factor)
    offsets = [torch.full((d.length,), d.offset) for d in plan.documents[b]]
    return rotate(k, torch.cat(offsets).to(k.device), call.rope)


def _rows(
    call: Call, h: int, q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor
) -> Tensor:
    """[T, D] the output of query head h for some rows."""
    hk = h // call.group_size
    scores = call.sm_scale * (q @ k[:, hk].T)
    if call.alibi_slopes is not None:
        scores += call.alibi_slopes[h].double() * (k_pos[None, :] - q_pos[:, None])
    scores.masked_fill_(~visible(call, q_pos, k_pos), -torch.inf)
    peak = scores.amax(dim=1, keepdim=True)
    if call.sinks is not None:
        peak = peak.maximum(call.sinks[h].double())
    peak = peak.clamp_min(-1e300)
    weights = (scores - peak).exp()
    total = weights.sum(dim=1, keepdim=True)
    if call.sinks is not None:
        total = total + (call.sinks[h].double() - peak).exp()
    return (weights @ v[:, hk]) / total.clamp_min(1e-300)
