"""Attention without a cache: each new token works off its whole prefix again.

Step t computes keys, values and queries of t tokens and a t x t score matrix, though only the
last row is new: 1 + 2 + ... + n = n (n + 1) / 2 rows and O(n^3) scores for n tokens, against n
rows and O(n^2) scores with a cache.
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
    """o: [B, T, H, D] in q.dtype; arguments as in `check`, without blocks and documents.

    What one decoded token costs is a call with the queries of the whole prefix, T = S: all its
    rows are computed and the last is used.
    """
    call = check(q, k, v, **options)
    return unfused(call, call.plan or plan_unfused(call, "naive"))


def plan(q: Tensor, k: Tensor, v: Tensor, **options: Unpack[Options]) -> Plan:
    """The lengths of a batch, read and checked."""
    return plan_unfused(check(q, k, v, **options), "naive")


def decode(x: Tensor, layer: Projections) -> tuple[Tensor, Operations]:
    """Outputs [B, N, H, D] of N tokens decoded one by one from x: [B, N, E], and the cost."""
    rows, operations = [], Operations()
    for t in range(1, x.shape[1] + 1):
        q, k, v = layer.apply(x[:, :t])
        lens = torch.full((len(x),), t, dtype=torch.int32, device=x.device)
        o = attention(q, k, v, kv_lens=lens)
        rows.append(o[:, -1])
        operations = operations.plus(q.shape[1], k.shape[1], q.shape[1] * k.shape[1])
    return torch.stack(rows, dim=1), operations
