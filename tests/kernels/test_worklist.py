"""Work lists: every key and every query row is somebody's, and nobody's twice."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.kernels.checks import Call, check, host_plan
from kvtool.kernels.launch import MAX_SEGMENTS, Config
from kvtool.kernels.worklist import decode_tables, hopper_tables, prefill_tables

REQUESTS = st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=50), min_size=1, max_size=4)


def call_of(requests: list[list[int]], queries: int, block: int) -> object:
    width = max(map(len, requests))
    lens = torch.tensor([r + [0] * (width - len(r)) for r in requests], dtype=torch.int32)
    rows = int((-(-lens // block) * block).sum(1).max())
    blocks = max(1, rows // block)
    pool = torch.zeros(blocks * len(requests), block, 2, 16)
    return check(
        torch.zeros(len(requests), queries, 4, 16),
        pool,
        pool,
        kv_lens=lens.sum(1).int(),
        block_table=torch.arange(blocks * len(requests)).view(len(requests), blocks).int(),
        doc_lens=lens,
        doc_offsets=(lens.cumsum(1) - lens).int(),
    )


@settings(max_examples=60, deadline=None)
@given(
    requests=REQUESTS,
    block=st.sampled_from([16, 64]),
    block_n=st.sampled_from([16, 64]),
    programs=st.integers(1, 8),
)
def test_decode_items_hold_every_key_once_and_never_cross_a_document(
    requests, block, block_n, programs
):
    call = call_of(requests, 1, block)
    plan = host_plan(call, "triton")

    tables = decode_tables(call, plan, Config(16, block_n, 2, 4, 128, programs), 8)

    rows: dict[int, list[int]] = {b: [] for b in range(len(requests))}
    for b, segments, _, _, _, first, _, tiles in tables.items.tolist():
        mine = tables.segments[first : first + segments].tolist()
        starts = [record[4] for record in mine]
        assert 1 <= segments <= MAX_SEGMENTS
        assert starts == sorted(starts)
        assert tiles == sum(-(-record[1] // block_n) for record in mine)
        for row, tokens, *_ in mine:
            rows[b] += range(row, row + tokens)
            homes = [d for d in plan.documents[b] if d.row <= row < d.row + max(1, d.length)]
            assert not tokens or row + tokens <= homes[0].row + homes[0].length
    for b, documents in enumerate(plan.documents):
        expected = [row for d in documents for row in range(d.row, d.row + d.length)]
        assert rows[b] == expected


@settings(max_examples=40, deadline=None)
@given(requests=REQUESTS, queries=st.integers(33, 200), block_m=st.sampled_from([32, 64, 128]))
def test_prefill_items_hold_every_query_row_once(requests, queries, block_m):
    call = call_of(requests, queries, 16)
    plan = host_plan(call, "triton")

    items = prefill_tables(call, plan, Config(block_m, 64, 2, 4)).items.tolist()

    seen = {(b, hk, row) for b, hk, row, *_ in items}
    expected = {
        (b, hk, row)
        for b in range(len(requests))
        for hk in range(2)
        for row in range(0, queries * 2, block_m)
    }
    assert len(items) == len(seen)
    assert seen == expected


def test_the_longest_prefill_items_come_first():
    call = call_of([[200, 300]], 200, 16)

    tables = prefill_tables(call, host_plan(call, "triton"), Config(64, 64, 2, 4))

    first_rows = tables.items[:, 2].tolist()
    assert first_rows == sorted(first_rows, reverse=True)


@settings(max_examples=60, deadline=None)
@given(
    requests=REQUESTS,
    queries=st.integers(1, 300),
    heads=st.sampled_from([(4, 2), (6, 2), (32, 1), (3, 3)]),
    programs=st.integers(1, 8),
)
def test_hopper_items_hold_every_query_once_and_every_document_that_it_sees(
    requests, queries, heads, programs
):
    requests = [r for r in requests if sum(r) >= queries] or [[queries]]
    call = contiguous(requests, queries, heads)
    plan = host_plan(call, "triton")
    packed = min(call.group_size & -call.group_size, 16)

    tables = hopper_tables(call, plan, Config(128, 128, 2, 4), programs)

    rows = []
    for b, head, t0, count, start, first, segments, length in tables.items.tolist():
        last = min(t0 + 128 // packed, count)
        rows += [(b, h, t) for h in range(head, head + packed) for t in range(t0, last)]
        seen = [d for d in plan.documents[b] if d.length and d.offset < start + last]
        mine = tables.segments[first : first + segments].tolist()
        assert [m[:3] for m in mine] == [[d.row, d.length, d.offset] for d in reversed(seen)]
        assert mine[0][1] == length
    shape = len(requests), heads[0], queries
    assert sorted(rows) == list(itertools.product(*map(range, shape)))
    starts = tables.starts.tolist()
    assert starts[0] == 0
    assert starts[-1] == len(tables.items)
    assert all(n > 0 for n in np.diff(starts))


def contiguous(requests: list[list[int]], queries: int, heads: tuple[int, int]) -> Call:
    width = max(map(len, requests))
    lens = torch.tensor([r + [0] * (width - len(r)) for r in requests], dtype=torch.int32)
    cache = torch.zeros(len(requests), int(lens.sum(1).max()), heads[1], 64)
    return check(
        torch.zeros(len(requests), queries, heads[0], 64),
        cache,
        cache,
        kv_lens=lens.sum(1).int(),
        doc_lens=lens,
        doc_offsets=(lens.cumsum(1) - lens).int(),
    )
