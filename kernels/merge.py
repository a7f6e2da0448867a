"""One attention per document, merged by log-sum-exp: lazy attention without its outer loop.

The parts o_d with log-sum-exp s_d give o = sum(exp(s_d) o_d) / sum(exp(s_d)). In decode each
document is an item of the split-KV kernel; in prefill it is a launch of its own.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kvtool.kernels.checks import Call
from kvtool.kernels.launch import LOG2_E
from kvtool.kernels.paths import make_plan, run, with_tables
from kvtool.kernels.plan import Document, Plan


def plan_merge(call: Call) -> Plan:
    """The plan of `merge`; its tables are one plan per document if each takes its own launch."""
    whole = make_plan(call, "merge")
    if whole.path == "triton" and whole.tables.phase == "decode":
        return whole
    count = max(len(documents) for documents in whole.documents)
    return replace(whole, tables=[_nth_document(call, whole, n) for n in range(count)])


def merge(call: Call, plan: Plan) -> Tensor:
    """o: [B, T, H, D] in q.dtype; parts are merged in float32."""
    if not isinstance(plan.tables, list):
        return run(call, plan)
    alone = replace(call, sinks=None, out=None)
    shape = (len(plan.tables), *call.q.shape[:3])
    lse = torch.full(shape, -torch.inf, device=call.q.device)
    parts = [run(alone, part, lse[n]) for n, part in enumerate(plan.tables)]
    peak = lse.amax(dim=0)
    if call.sinks is not None:
        peak = peak.maximum(call.sinks * LOG2_E)
    peak = peak.masked_fill(peak == -torch.inf, 0.0)
    weights = (lse - peak).exp2()
    total = weights.sum(dim=0)
    seen = total > 0
    if call.sinks is not None:
        total = total + (call.sinks * LOG2_E - peak).exp2()
    acc = torch.zeros(call.q.shape, device=call.q.device)
    for weight, part in zip(weights, parts, strict=True):
        acc += weight[..., None] * part.float()
    o = (acc / torch.where(seen, total, 1.0)[..., None]).to(call.q.dtype)
    return o if call.out is None else call.out.copy_(o)


def _nth_document(call: Call, plan: Plan, n: int) -> Plan:
    """The same queries over document n of each sequence, an empty one where it has fewer."""
    nothing = (Document(0, 0, 0),)
    documents = tuple(d[n : n + 1] or nothing for d in plan.documents)
    return with_tables(call, replace(plan, documents=documents))
