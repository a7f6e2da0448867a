"""Who computes what on the GPU: the work lists of prefill and decode, built on the host.

Prefill: one item per tile of query rows and kv head, the longest first, so that short ones fill
the end. Decode: each sequence is cut into items of about equal tiles, as many as keep the GPU
busy once; cuts fall anywhere, but a segment never crosses a document, so its query is turned
once. The variant `merge` makes each document an item of its own, `unsplit` each sequence.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kvtool.kernels.checks import Call
from kvtool.kernels.launch import MAX_SEGMENTS, Config, Tables, key_turn, rotation_rows
from kvtool.kernels.plan import Document, Plan

MAX_DECODE_ROWS = 64
"""Query rows per kv head (tokens x group) up to which a batch is decoded, not prefilled."""
MIN_TILES = 4
"""Tiles below which an item is not cut further."""
SLACK = 1.1
"""How much longer than its fair share a whole sequence may be before it is cut."""
ITEM_COST = 1.0
"""What an item costs beside its tiles there, in tiles."""
INTERPRETER_SMS = 8
"""Multiprocessors assumed where there is no GPU, so that small batches are split there too."""


class Segment(NamedTuple):
    """A part of one document. row: its first key row.  start: its index within the document."""

    row: int
    tokens: int
    start: int
    offset: int


def is_decode(call: Call) -> bool:
    """Whether the rows of a sequence fit one small tile."""
    return call.query_tokens * call.group_size <= MAX_DECODE_ROWS


def prefill_tables(call: Call, plan: Plan, config: Config) -> Tables:
    """Items, documents and rotation rows of a prefill."""
    block_m, group, device = config.block_m, call.group_size, call.q.device
    segments: list[tuple[int, int, int, int]] = []
    items, work = [], []
    for b, (queries, start) in enumerate(zip(plan.q_lens, plan.q_starts, strict=True)):
        documents = plan.documents[b]
        first_row = np.arange(0, queries * group, block_m)
        item = np.zeros((len(first_row), 8), dtype=np.int32)
        item[:, 0], item[:, 2], item[:, 3], item[:, 4] = b, first_row, queries, start
        item[:, 5], item[:, 6] = len(segments), len(documents)
        item[:, 7] = documents[0].length
        segments += [(d.row, d.length, d.offset, 0) for d in documents]
        last = start + np.minimum((first_row + block_m - 1) // group, queries - 1)
        first = start + first_row // group
        for hk in range(call.num_kv_heads):
            item = item.copy()
            item[:, 1] = hk
            items.append(item)
            work.append(_visible_keys(call, documents, first, last))
    order = np.argsort(-np.concatenate(work), kind="stable")
    turns = None if call.rope is None else _positions(call, plan)
    return Tables(
        "prefill",
        config,
        torch.from_numpy(np.concatenate(items)[order]).to(device),
        torch.tensor(segments, dtype=torch.int32, device=device),
        query_rows=_rotation(call, turns),
        doc_rows=_rotation(call, torch.tensor([s[2] for s in segments])),
        key_rows=_key_rows(call, plan),
    )


def hopper_applies(call: Call, plan: Plan) -> bool:
    """Whether the Hopper path takes a prefill; the rest is plain Triton's.

    It reads contiguous 16-bit caches through the copy engine.
    """
    dim = call.head_dim
    turns = call.rope is not None
    return (
        call.block_table is None
        and call.q.dtype in (torch.float16, torch.bfloat16)
        and call.k.dtype == call.q.dtype
        and dim in (64, 96, 128, 256)
        and (not turns or (dim in (64, 128) and _turns_by_halves(call)))
        and turns == (call.doc_lens is not None)
        and call.alibi_slopes is None
        and not isinstance(call.k_scale, Tensor)
        and not isinstance(call.v_scale, Tensor)
        and plan.variant in (None, "rotate-q")
        and all(_follows_strides(x) for x in (call.q, call.k, call.v))
    )


def _turns_by_halves(call: Call) -> bool:
    """Whether queries alone turn, all dimensions, the first half paired with the second."""
    rope = call.rope
    assert rope is not None
    return not rope.interleaved and rope.rotary_dim == call.head_dim and rope.keys != "unrotated"


def _follows_strides(x: Tensor) -> bool:
    """Whether the copy engine can step through x."""
    return all(s % 8 == 0 for s in x.stride()[:3]) and x.data_ptr() % 16 == 0


def hopper_tables(call: Call, plan: Plan, config: Config, multiprocessors: int) -> Tables | None:
    """Items of the Hopper path, dealt to its programs; None without items or if one sees no key."""
    heads = min(call.group_size & -call.group_size, 16)
    tokens, device = config.block_m // heads, call.q.device
    segments: list[tuple[int, int, int, int]] = []
    items, work = [], []
    number = 0
    for b, (queries, start) in enumerate(zip(plan.q_lens, plan.q_starts, strict=True)):
        documents = plan.documents[b]
        for t0 in range(0, queries, tokens):
            first, last = start + t0, start + min(t0 + tokens, queries) - 1
            seen = [
                (tiles, d.row, d.length, d.offset, number + i)
                for i, d in enumerate(documents)
                if (tiles := _tiles(call, d, first, last, config.block_n))
            ]
            if not seen:
                return None
            seen.reverse()
            cost = sum(s[0] for s in seen)
            begin = len(segments)
            segments += [s[1:] for s in seen]
            items.append((b, 0, t0, queries, start, begin, len(seen), seen[0][2]))
            work.append(cost)
        number += len(documents)
    if not items:
        return None
    table = np.asarray(items, dtype=np.int32)
    groups = call.num_q_heads // heads
    # Heads of a sequence lie side by side, so that their keys meet in the cache.
    order = np.lexsort((np.tile(np.arange(groups), len(table)), np.repeat(table[:, 0], groups)))
    table = np.repeat(table, groups, axis=0)
    table[:, 1] = np.tile(np.arange(groups), len(items)) * heads
    dealt = _deal(np.repeat(np.asarray(work), groups)[order], multiprocessors)
    table = table[order]
    starts = np.cumsum([0, *(len(d) for d in dealt)])
    turns = None if call.rope is None else _positions(call, plan)
    offsets = [d.offset for documents in plan.documents for d in documents]
    return Tables(
        "hopper",
        config,
        torch.from_numpy(table[np.concatenate(dealt)]).to(device),
        torch.tensor(segments, dtype=torch.int32, device=device),
        query_rows=_rotation(call, turns),
        doc_rows=_rotation(call, torch.tensor(offsets)),
        starts=torch.from_numpy(starts.astype(np.int32)).to(device),
        tail=any(s[1] % config.block_n for s in segments),
    )


def _tiles(call: Call, d: Document, first: int, last: int, block_n: int) -> int:
    """Tiles of a document that queries at positions first to last visit."""
    high, low = d.length, 0
    if call.causal:
        high = min(high, last + 1 - d.offset)
    if call.window is not None:
        low = max(low, first + 1 - call.window - d.offset)
    return max(0, -(-high // block_n) - low // block_n) if high > low else 0


def _deal(cost: np.ndarray, programs: int) -> list[np.ndarray]:
    """Items of each program: the dearest first, each to the program with the least so far."""
    programs = min(programs, len(cost))
    loads = [(0.0, p) for p in range(programs)]
    dealt: list[list[int]] = [[] for _ in range(programs)]
    for index in np.argsort(-cost, kind="stable"):
        load, p = heapq.heappop(loads)
        dealt[p].append(int(index))
        heapq.heappush(loads, (load + float(cost[index]) + ITEM_COST, p))
    return [np.asarray(d) for d in dealt]


def _visible_keys(
    call: Call, documents: tuple[Document, ...], first: np.ndarray, last: np.ndarray
) -> np.ndarray:
    """Keys that tiles with queries at positions first to last have to visit."""
    keys = np.zeros(len(first), dtype=np.int64)
    for d in documents:
        low = np.zeros_like(first)
        high = np.full_like(first, d.length)
        if call.causal:
            high = np.clip(last + 1 - d.offset, 0, d.length)
        if call.window is not None:
            low = np.maximum(first + 1 - call.window - d.offset, 0)
        keys += np.maximum(high - low, 0)
    return keys


def _positions(call: Call, plan: Plan) -> Tensor:
    """[B, T] positions of the queries."""
    starts = torch.tensor(plan.q_starts)
    return starts[:, None] + torch.arange(call.query_tokens)


def decode_tables(call: Call, plan: Plan, config: Config, multiprocessors: int) -> Tables:
    """Items, segments and rotation rows of a decode."""
    block_n, device = config.block_n, call.q.device
    runs = [
        _segments(call, documents, start, queries)
        for documents, start, queries in zip(
            plan.documents, plan.q_starts, plan.q_lens, strict=True
        )
    ]
    counts = [sum(-(-s.tokens // block_n) for s in run) for run in runs]
    slots = max(1, multiprocessors * config.programs // call.num_kv_heads)
    per_item = max(MIN_TILES, -(-sum(counts) // slots))
    if plan.variant == "unsplit":
        per_item = max(1, *counts)
    items: list[tuple[int, ...]] = []
    segments: list[Segment] = []
    records: list[tuple[int, ...]] = []
    first_items, owners = [0], []
    for b, (run, count) in enumerate(zip(runs, counts, strict=True)):
        parts = 1 if count <= SLACK * per_item else -(-count // per_item)
        tokens = max(1, -(-count // parts)) * block_n
        for part in [[s] for s in run] if plan.variant == "merge" else _cut(run, tokens, block_n):
            first, tile = len(segments), 0
            for s in part:
                records.append((s.row, s.tokens, s.offset + s.start, s.start, tile, 0, 0, 0))
                tile += -(-s.tokens // block_n)
            query = (plan.q_lens[b], plan.q_starts[b])
            items.append((b, len(part), 0, *query, first, 0, tile))
            segments += part
            owners += [b] * len(part)
        first_items.append(len(items))
    single = len(items) == call.batch_size
    offsets = torch.tensor([s.offset for s in segments])
    turns = None
    if call.rope is not None:
        frame = torch.zeros_like(offsets) if key_turn(call, plan.variant) == 1 else offsets
        turns = _positions(call, plan)[owners] - frame[:, None]
    return Tables(
        "decode",
        config,
        torch.tensor(items, dtype=torch.int32, device=device),
        torch.tensor(records, dtype=torch.int32, device=device),
        several=len(segments) > len(items),
        query_rows=_rotation(call, turns),
        doc_rows=_rotation(call, offsets),
        key_rows=_key_rows(call, plan),
        first_items=None if single else torch.tensor(first_items, dtype=torch.int32).to(device),
        most_items=int(np.diff(first_items).max()),
        queries=None if single else torch.tensor(plan.q_lens, dtype=torch.int32).to(device),
    )


def _segments(
    call: Call, documents: tuple[Document, ...], start: int, queries: int
) -> list[Segment]:
    """The parts of documents that some query of a sequence sees; an empty one if none does."""
    seen = []
    for d in documents:
        low, high = 0, d.length
        if call.causal:
            high = min(high, start + queries - d.offset)
        if call.window is not None:
            low = max(low, start + 1 - call.window - d.offset)
        if low < high:
            seen.append(Segment(d.row + low, high - low, low, d.offset))
    return seen or [Segment(0, 0, 0, documents[0].offset)]


def _cut(run: list[Segment], tokens: int, block_n: int) -> list[list[Segment]]:
    """Parts of at most `tokens`, counted in whole tiles, and MAX_SEGMENTS segments."""
    parts: list[list[Segment]] = [[]]
    room = tokens
    for segment in run:
        row, left, start, offset = segment
        while True:
            take = min(left, room)
            parts[-1].append(Segment(row, take, start, offset))
            room -= -(-take // block_n) * block_n
            row, left, start = row + take, left - take, start + take
            if room <= 0 or len(parts[-1]) == MAX_SEGMENTS:
                parts.append([])
                room = tokens
            if not left:
                break
    return parts if parts[-1] else parts[:-1]


def _rotation(call: Call, positions: Tensor | None) -> Tensor | None:
    """Rotation rows on the device of q, or None where nothing is rotated."""
    if call.rope is None or positions is None:
        return None
    return rotation_rows(call.rope, positions.to(call.q.device), call.head_dim)


def _key_rows(call: Call, plan: Plan) -> Tensor | None:
    if key_turn(call, plan.variant) != 2:
        return None
    longest = max(d.length for documents in plan.documents for d in documents)
    return _rotation(call, torch.arange(max(1, longest)))
