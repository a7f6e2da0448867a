"""The one-pass curve against an LRU in an ordered dictionary, touch by touch."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.curve import NEVER, bytes_needed, hit_curve


def lru_hits(
    requests: list[list[int]], sizes: dict[int, int], budget: int, *, whole_request: bool
) -> list[bool]:
    """Found or not, touch by touch, of an LRU that evicts the oldest until all bytes fit."""
    cache: OrderedDict[int, None] = OrderedDict()
    held = 0
    hits: list[bool] = []
    for request in requests:
        before = set(cache)
        for key in request:
            hits.append(key in (before if whole_request else cache))
            if key not in cache:
                held += sizes[key]
            cache[key] = None
            cache.move_to_end(key)
            while held > budget:
                held -= sizes[cache.popitem(last=False)[0]]
    return hits


def streams(distinct: bool) -> st.SearchStrategy[list[list[int]]]:
    request = st.lists(st.integers(0, 11), min_size=1, max_size=6, unique=distinct)
    return st.lists(request, min_size=1, max_size=60)


def flat(requests: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    keys = np.array([key for request in requests for key in request], dtype=np.int64)
    starts = np.cumsum([0, *map(len, requests)], dtype=np.int64)
    return keys, starts


@settings(deadline=None, max_examples=150)
@given(streams(distinct=False), st.integers(1, 14))
def test_curve_equals_an_ordered_dictionary_when_keys_are_looked_up_one_at_a_time(requests, size):
    keys, _ = flat(requests)

    needed = bytes_needed(keys, 1)

    expected = lru_hits(requests, dict.fromkeys(range(12), 1), size, whole_request=False)
    assert (needed <= size).tolist() == expected


@settings(deadline=None, max_examples=150)
@given(streams(distinct=True), st.integers(1, 14))
def test_curve_equals_an_ordered_dictionary_when_requests_are_looked_up_whole(requests, size):
    keys, starts = flat(requests)

    needed = bytes_needed(keys, 1, starts)

    expected = lru_hits(requests, dict.fromkeys(range(12), 1), size, whole_request=True)
    assert (needed <= size).tolist() == expected


@settings(deadline=None, max_examples=150)
@given(
    streams(distinct=True),
    st.lists(st.integers(1, 9), min_size=12, max_size=12),
    st.integers(0, 60),
    st.booleans(),
)
def test_curve_equals_an_ordered_dictionary_with_unequal_bytes(requests, sizes, more, whole):
    keys, starts = flat(requests)
    by_key = dict(enumerate(sizes))
    budget = max(sizes[key] for key in keys) + more

    needed = bytes_needed(keys, np.array(sizes)[keys], starts if whole else None)

    assert (needed <= budget).tolist() == lru_hits(requests, by_key, budget, whole_request=whole)


@pytest.mark.parametrize("touches", [127, 128, 129, 1_000, 4_097])
@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "unequal"])
def test_curve_equals_an_ordered_dictionary_beyond_one_block_of_ranks(touches, weighted):
    rng = np.random.default_rng(touches)
    keys = rng.zipf(1.3, touches) % 300
    sizes = rng.integers(1, 50, 300) if weighted else np.ones(300, dtype=np.int64)

    needed = bytes_needed(keys, sizes[keys] if weighted else 1)

    for budget in (int(sizes.max()), 100, 1_000):
        expected = lru_hits(
            [keys.tolist()], dict(enumerate(sizes.tolist())), budget, whole_request=False
        )
        assert (needed <= budget).tolist() == expected


def test_curve_equals_an_ordered_dictionary_beyond_one_block_of_the_partition():
    rng = np.random.default_rng(4)
    keys = (rng.pareto(0.9, 300_000) * 50).astype(np.int64) % 40_000

    needed = bytes_needed(keys, 1)

    for size in (100, 5_000):
        expected = lru_hits(
            [keys.tolist()], dict.fromkeys(range(40_000), 1), size, whole_request=False
        )
        assert (needed <= size).tolist() == expected


def test_requests_of_hundreds_of_keys_are_looked_up_whole():
    rng = np.random.default_rng(3)
    requests = [rng.permutation(700)[:400].tolist() for _ in range(12)]
    keys, starts = flat(requests)

    needed = bytes_needed(keys, 1, starts)

    for size in (400, 500, 699):
        expected = lru_hits(requests, dict.fromkeys(range(700), 1), size, whole_request=True)
        assert (needed <= size).tolist() == expected


def test_huge_keys_count_like_their_ranks():
    keys = np.array([2**62, 5, 2**62, 5], dtype=np.int64)

    needed = bytes_needed(keys, 1)

    assert needed.tolist() == [NEVER, NEVER, 2, 2]


def test_no_touches_make_an_empty_curve():
    empty = np.zeros(0, dtype=np.int64)

    needed = bytes_needed(empty, 1)

    assert len(needed) == 0
    assert hit_curve(needed, empty, empty, empty, 0).unlimited() == (0.0, 0.0, 0.0)


def test_curve_steps_report_the_three_rates_and_invert():
    # Two requests of 10 and 30 prompt tokens; the first hits from 5 bytes, the second from 9.
    curve = hit_curve(
        needed=np.array([5, 9, NEVER]),
        tokens=np.array([10, 15, 15]),
        request_of=np.array([0, 1, 1]),
        request_tokens=np.array([10, 30]),
        lookups=3,
    )

    assert curve.at(4) == (0.0, 0.0, 0.0)
    assert curve.at(5) == (1 / 3, 10 / 40, 0.5)
    assert curve.unlimited() == (2 / 3, 25 / 40, 0.75)
    assert curve.smallest_budget(0.34) == 9
    assert curve.smallest_budget(1 / 3) == 5
    assert curve.smallest_budget(0.9) is None
