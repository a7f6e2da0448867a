"""Two matrix products and a softmax: what `naive` and `cached` do once keys and values are there.

The whole [T, S] score matrix is written to memory in q's dtype and the softmax runs in float32,
as torch's math backend does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvtool.errors import UsageError
from kvtool.kernels.checks import Call, host_plan
from kvtool.kernels.plan import Plan


def plan_unfused(call: Call, name: str) -> Plan:
    """The plan of a kernel that knows neither blocks nor documents; both are refused by `name`."""
    if call.block_table is not None:
        raise UsageError(
            f"'{name}' keeps keys and values contiguous and takes no block_table",
            "use 'flash' for a paged cache",
        )
    if call.doc_lens is not None:
        raise UsageError(
            f"'{name}' takes keys at their final positions, not documents", "use 'lazy'"
        )
    if call.variant is not None or call.path not in (None, "torch"):
        raise UsageError(
            f"'{name}' has neither variants nor a path '{call.path}'", "leave variant and path out"
        )
    return host_plan(call, "torch")


def unfused(call: Call, plan: Plan) -> Tensor:
    """o: [B, T, H, D] in q.dtype; sequences of equal lengths go through as one batch."""
    o = torch.zeros_like(call.q) if call.out is None else call.out.zero_()
    rows = o.unflatten(2, (call.num_kv_heads, call.group_size))  # [B, T, Hkv, G, D]
    lengths = list(zip(plan.kv_lens, plan.q_lens, strict=True))
    uniform = len(set(lengths)) == 1
    batches = [slice(None)] if uniform else [slice(b, b + 1) for b in range(call.batch_size)]
    for batch, (keys, queries) in zip(batches, lengths, strict=False):
        if keys and queries:
            rows[batch, :queries] = _attend(call, batch, keys, queries)
    return o


def _attend(call: Call, batch: slice, keys: int, queries: int) -> Tensor:
    """[B, T, Hkv, G, D] of sequences that share their lengths."""
    dtype, groups = call.q.dtype, (call.num_kv_heads, call.group_size)
    q = call.q[batch, :queries].unflatten(2, groups).permute(0, 2, 3, 1, 4)  # [B, Hkv, G, T, D]
    k = _stored(call.k[batch, :keys], call.k_scale, dtype).permute(0, 2, 3, 1)  # [B, Hkv, D, S]
    v = _stored(call.v[batch, :keys], call.v_scale, dtype).transpose(1, 2)  # [B, Hkv, S, D]
    scores = _products(q.flatten(2, 3), k, torch.float32).unflatten(2, (-1, queries))
    scores *= call.sm_scale  # [B, Hkv, G, T, S]
    distance = torch.arange(keys - queries, keys, device=q.device)[:, None] - torch.arange(
        keys, device=q.device
    )
    if call.alibi_slopes is not None:
        scores -= call.alibi_slopes.view(*groups, 1, 1) * distance
    if call.causal:
        hidden = distance < 0
        if call.window is not None:
            hidden |= distance >= call.window
        scores.masked_fill_(hidden, -torch.inf)
    weights = _softmax(scores, call).to(dtype).flatten(2, 3)  # [B, Hkv, G * T, S]
    return _products(weights, v, dtype).unflatten(2, (-1, queries)).permute(0, 3, 1, 2, 4)


def _products(rows: Tensor, cache: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, Hkv, M, N] in `dtype`: rows [B, Hkv, M, K] times cache [B, Hkv, K, N], never copied.

    Each product is rounded to the dtype of its operands. One head's group shares its keys, so its
    queries are rows of one matrix. A batched product has one batch stride, and in [B, S, Hkv, D]
    no stride spans sequences and heads: the loop is over the fewer of the two.
    """
    products = rows.new_empty((*rows.shape[:3], cache.shape[3]), dtype=dtype)
    over = 0 if rows.shape[0] <= rows.shape[1] else 1
    for to, a, b in zip(products.unbind(over), rows.unbind(over), cache.unbind(over), strict=True):
        to.copy_(torch.bmm(a, b))
    return products


def _softmax(scores: Tensor, call: Call) -> Tensor:
    """Weights in float32, zero in rows that see no key; a sink takes its share and is dropped."""
    if call.sinks is not None:
        sinks = call.sinks.view(call.num_kv_heads, call.group_size, 1, 1)
        scores = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), dim=-1)
        return scores.softmax(dim=-1)[..., :-1]
    return scores.softmax(dim=-1).nan_to_num_(0.0)


def _stored(x: Tensor, scale: float | Tensor, dtype: torch.dtype) -> Tensor:
    """[B, S, Hkv, D] in q's dtype, an fp8 cache times its scale."""
    if isinstance(scale, Tensor):
        return (x.float() * scale[:, None]).to(dtype)
    return x.to(dtype) if scale == 1.0 else (x.float() * scale).to(dtype)
