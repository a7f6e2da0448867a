"""Attention with keys and values kept: each new token computes one row of everything.

Step t computes one query, one key and one value, and t scores: n rows and n (n + 1) / 2 scores
for n tokens. Scores are still written to memory; `flash` avoids that.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from kvtool.kernels.checks import Options, check
from kvtool.kernels.plan import Plan
from kvtool.kernels.steps import Operations, Projections
from kvtool.kernels.unfused import plan_unfused, unfused


def attention(q: Tensor, k: Tensor, v: Tensor, **options: Unpack[Options]) -> Tensor:
    """o: [B, T, H, D] in q.dtype; arguments as in `check`, without blocks and documents."""
    call = check(q, k, v, **options)
    return unfused(call, call.plan or plan_unfused(call, "cached"))


def plan(q: Tensor, k: Tensor, v: Tensor, **options: Unpack[Options]) -> Plan:
    """The lengths of a batch, read and checked."""
    return plan_unfused(check(q, k, v, **options), "cached")


def decode(x: Tensor, layer: Projections) -> tuple[Tensor, Operations]:
    """Outputs [B, N, H, D] of N tokens decoded one by one from x: [B, N, E], and the cost."""
    batch, steps = x.shape[:2]
    k_cache = x.new_empty(batch, steps, *layer.k.shape[1:])
    v_cache = torch.empty_like(k_cache)
    rows, operations = [], Operations()
    for t in range(1, steps + 1):
        q, k, v = layer.apply(x[:, t - 1 : t])
        k_cache[:, t - 1 : t], v_cache[:, t - 1 : t] = k, v
        lens = torch.full((batch,), t, dtype=torch.int32, device=x.device)
        rows.append(attention(q, k_cache, v_cache, kv_lens=lens)[:, 0])
        operations = operations.plus(q.shape[1], k.shape[1], q.shape[1] * t)
    return torch.stack(rows, dim=1), operations
