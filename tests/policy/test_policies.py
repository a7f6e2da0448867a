"""What each policy evicts, on streams short enough to follow by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kvtool.policy.arc import Arc
from kvtool.policy.belady import Belady
from kvtool.policy.fifo import Fifo
from kvtool.policy.gdsf import Gdsf
from kvtool.policy.lfu import Lfu
from kvtool.policy.lru import Lru
from kvtool.policy.replay import POLICIES, next_touches, replay, unbroken
from kvtool.policy.s3fifo import S3Fifo
from kvtool.reuse import Accesses

A, B, C, D = range(4)


def kept(cache, touches, size=1):
    for key in touches:
        cache.touch(key, size)
    return [key for key in range(10) if key in cache]


def test_lru_evicts_what_was_touched_longest_ago():
    assert kept(Lru(2), [A, B, A, C]) == [A, C]


def test_fifo_evicts_what_came_in_first_however_often_it_was_used():
    assert kept(Fifo(2), [A, B, A, A, C]) == [B, C]


def test_lfu_evicts_the_fewest_uses_and_the_first_among_equals():
    assert kept(Lfu(2), [A, A, B, C]) == [A, C]
    assert kept(Lfu(2), [A, B, C]) == [B, C]


def test_lfu_forgets_the_uses_of_what_it_evicted():
    assert kept(Lfu(2), [A, A, B, B, C, A, C, C]) == [B, C]


def test_gdsf_prefers_small_entries_and_ages_old_ones():
    cache = Gdsf(10)
    cache.touch(A, 8)
    cache.touch(B, 2)
    cache.touch(C, 2)

    assert [A in cache, B in cache, C in cache] == [False, True, True]
    # With equal sizes an entry used often is evicted once the clock has passed its priority.
    assert A not in kept(Gdsf(2), [A, A, A, *([B, C] * 10)])
    assert A in kept(Lfu(2), [A, A, A, *([B, C] * 10)])


def test_arc_keeps_what_was_used_twice_through_a_scan():
    assert kept(Arc(3), [A, A, B, C, D, 5, 6, 7])[0] == A
    assert A not in kept(Lru(3), [A, A, B, C, D, 5, 6, 7])


def test_arc_learns_from_its_ghosts():
    cache = Arc(2)
    kept(cache, [A, A, B, C])
    before = cache.target

    cache.touch(B, 1)  # evicted from the list of those seen once, so that list should grow

    assert cache.target > before
    assert B in cache


def test_s3fifo_lets_a_newcomer_used_twice_into_the_main_queue():
    cache = S3Fifo(20)
    kept(cache, range(100, 120))  # fills the cache: two in the small queue, the rest in main
    kept(cache, [A, A, A])

    kept(cache, [200, 201, 202])

    assert A in cache.main


def test_s3fifo_brings_a_ghost_back_into_the_main_queue():
    cache = S3Fifo(20)
    kept(cache, range(100, 130))
    ghost = next(iter(cache.ghosts))

    cache.touch(ghost, 1)

    assert ghost in cache.main


def test_belady_evicts_what_is_used_last():
    touches = [A, B, C, A, C, B]

    cache = Belady(2, next_touches(np.array(touches)))

    assert kept(cache, touches[:3]) == [A, C]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_larger_than_the_cache_is_not_kept_and_evicts_nothing(policy):
    accesses = Accesses(
        keys=np.array([A, B, A]),
        sizes=np.array([4, 50, 4]),
        starts=np.array([0, 1, 2, 3]),
        can_hit=np.ones(3, dtype=bool),
        tokens=np.ones(3, dtype=np.int64),
        lookups=np.ones(3, dtype=np.int64),
        request_tokens=np.ones(3, dtype=np.int64),
        unbroken=False,
    )

    found = replay(policy, accesses, 10, whole_request=True)

    assert found.tolist() == [False, False, True]


@pytest.mark.parametrize("policy", POLICIES)
def test_bytes_held_never_exceed_the_capacity(policy):
    rng = np.random.default_rng(6)
    keys = rng.zipf(1.3, 3_000) % 60
    sizes = rng.integers(1, 40, 60)
    caches = {
        "lru": Lru,
        "fifo": Fifo,
        "lfu": Lfu,
        "arc": Arc,
        "s3fifo": S3Fifo,
        "gdsf": Gdsf,
        "belady": lambda capacity: Belady(capacity, next_touches(keys)),
    }
    cache = caches[policy](100)

    for key in keys.tolist():
        cache.touch(key, int(sizes[key]))
        assert sum(int(sizes[k]) for k in range(60) if k in cache) <= 100


def test_a_run_ends_at_the_first_key_that_is_missing():
    accesses = Accesses(
        keys=np.arange(5),
        sizes=1,
        starts=np.array([0, 3, 5]),
        can_hit=np.ones(5, dtype=bool),
        tokens=np.ones(5, dtype=np.int64),
        lookups=np.array([3, 2]),
        request_tokens=np.array([3, 2]),
        unbroken=True,
    )

    run = unbroken(accesses, np.array([True, False, True, True, True]))

    assert run.tolist() == [True, False, False, True, True]
