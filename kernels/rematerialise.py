"""Copy and re-rotate: what a position-bound engine does with a document at a new offset.

Keys are copied and turned to their positions, values are copied, and flash attention runs over
the copies. The copies live on the plan, so that repeated calls do not allocate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvtool.kernels.checks import Call, host_plan
from kvtool.kernels.paths import choose_path, run, with_tables
from kvtool.kernels.plan import Document, Plan
from kvtool.kernels.rope import Rope, rotate


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """Buffers and indices of one batch.

    call, plan: flash over the buffers call.q, call.k and call.v.
    source: [B, S] int32 stored row of each token, -1 past the end.
    turn: [B, S] how far each stored key is turned.  q_positions: [B, T].
    """

    call: Call
    plan: Plan
    source: Tensor
    turn: Tensor
    q_positions: Tensor


def plan_copy(call: Call) -> Plan:
    """The plan of `rematerialise`: buffers, indices and the plan of the flash call."""
    stored = host_plan(call, choose_path(call), "rematerialise")
    batch, tokens = call.batch_size, max(1, *stored.kv_lens)
    shape = (batch, tokens, call.num_kv_heads, call.head_dim)
    documents = tuple(_adjoined(docs) for docs in stored.documents)
    plain = all(docs == (Document(0, docs[0].length, 0),) for docs in documents)
    inner = replace(
        call,
        q=torch.zeros_like(call.q, memory_format=torch.contiguous_format),
        k=call.q.new_zeros(shape),
        v=call.q.new_zeros(shape),
        block_table=None,
        doc_lens=None if plain else call.doc_lens,
        rope=None,
        k_scale=1.0,
        v_scale=1.0,
    )
    source = torch.full((batch, tokens), -1, dtype=torch.int32)
    turn = torch.zeros((batch, tokens), dtype=torch.int64)
    unrotated = call.rope is not None and call.rope.keys == "unrotated"
    for b, docs in enumerate(stored.documents):
        at = 0
        for d in docs:
            run_of = slice(at, at + d.length)
            source[b, run_of] = torch.arange(d.row, d.row + d.length)
            turn[b, run_of] = d.offset + (torch.arange(d.length) if unrotated else 0)
            at += d.length
    positions = torch.tensor(stored.q_starts)[:, None] + torch.arange(call.query_tokens)
    device = call.q.device
    flash = with_tables(inner, replace(stored, documents=documents))
    copy = Copy(inner, flash, source.to(device), turn.to(device), positions.to(device))
    return replace(stored, tables=(copy, _rows(call, copy, stored)))


def rematerialise(call: Call, plan: Plan) -> Tensor:
    """o: [B, T, H, D] in q.dtype: the copies are made anew, then attended to."""
    copy, rows = plan.tables
    if plan.path != "torch":
        _copy_triton(call, copy, rows)
    else:
        _copy_torch(call, plan, copy)
    return run(replace(copy.call, out=call.out), copy.plan)


def _adjoined(documents: tuple[Document, ...]) -> tuple[Document, ...]:
    """Documents laid end to end; those whose positions follow each other become one."""
    runs: list[Document] = []
    row = 0
    for d in documents:
        if runs and runs[-1].offset + runs[-1].length == d.offset:
            runs[-1] = runs[-1]._replace(length=runs[-1].length + d.length)
        else:
            runs.append(Document(row, d.length, d.offset))
        row += d.length
    return tuple(runs)


def _key_factor(rope: Rope | None) -> float:
    """What the turning part of a copied key is multiplied by; local keys hold it already."""
    return rope.attention_factor if rope is not None and rope.keys == "unrotated" else 1.0


def _rows(call: Call, copy: Copy, plan: Plan) -> tuple[Tensor, ...] | None:
    """Triton's rotation rows: lines and rows of keys, then of queries."""
    if plan.path == "torch" or call.rope is None:
        return None
    from kvtool.kernels.launch import rotation_rows

    tables: list[Tensor] = []
    for positions in (copy.turn, copy.q_positions):
        distinct, line = positions.unique(return_inverse=True)
        tables += [line.int(), rotation_rows(call.rope, distinct, call.head_dim)]
    return tuple(tables)


def _copy_triton(call: Call, copy: Copy, rows: tuple[Tensor, ...] | None) -> None:
    from kvtool.kernels.turn_copy import turn_copy

    turn, key_rows, q_turn, q_rows = rows or (None, None, None, None)
    table = call.block_table
    turn_copy(
        call.k, copy.call.k, copy.source, block_table=table, scale=call.k_scale, rope=call.rope,
        turn=turn, rows=key_rows, factor=_key_factor(call.rope),
    )  # fmt: skip
    turn_copy(call.v, copy.call.v, copy.source, block_table=table, scale=call.v_scale)
    every = torch.arange(call.query_tokens, dtype=torch.int32, device=call.q.device)
    turn_copy(
        call.q, copy.call.q, every.repeat(call.batch_size, 1), rope=call.rope,
        turn=q_turn, rows=q_rows, factor=1.0 if call.rope is None else call.rope.attention_factor,
    )  # fmt: skip


def _copy_torch(call: Call, plan: Plan, copy: Copy) -> None:
    for b, tokens in enumerate(plan.kv_lens):
        rows = copy.source[b, :tokens].long()
        k, v = (_stored(call, cache, b, rows).float() for cache in (call.k, call.v))
        k, v = _times(k, call.k_scale), _times(v, call.v_scale)
        q = call.q[b].float()
        if call.rope is not None:
            k = rotate(k, copy.turn[b, :tokens], call.rope, _key_factor(call.rope))
            q = rotate(q, copy.q_positions[b], call.rope, call.rope.attention_factor)
        copy.call.k[b, :tokens], copy.call.v[b, :tokens], copy.call.q[b] = k, v, q


def _stored(call: Call, cache: Tensor, b: int, rows: Tensor) -> Tensor:
    """[S, Hkv, D] the stored rows of sequence b."""
    if call.block_table is None:
        return cache[b, rows]
    return cache[call.block_table[b, rows // call.block_size].long(), rows % call.block_size]


def _times(x: Tensor, scale: float | Tensor) -> Tensor:
    return x * (scale[:, None] if isinstance(scale, Tensor) else scale)
