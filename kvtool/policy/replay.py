"""Replay: accesses through a policy at one cache size, request by request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, repeat
from typing import Protocol

import numpy as np

from kvtool.policy.arc import Arc
from kvtool.policy.belady import Belady
from kvtool.policy.fifo import Fifo
from kvtool.policy.gdsf import Gdsf
from kvtool.policy.lfu import Lfu
from kvtool.policy.lru import Lru
from kvtool.policy.s3fifo import S3Fifo
from kvtool.reuse import Accesses, touch_order
from kvtool.workload.requests import Bools, Ints, previous_touch, request_of_access

POLICIES = ("lru", "fifo", "lfu", "arc", "s3fifo", "gdsf", "belady")


class Policy(Protocol):
    """A cache that says what it holds and is told what is used."""

    def __contains__(self, key: int) -> bool: ...

    def touch(self, key: int, size: int) -> None:
        """Use `key` of `size` bytes, evicting others where it needs room."""


_POLICIES: dict[str, Callable[[int], Policy]] = {
    "lru": Lru,
    "fifo": Fifo,
    "lfu": Lfu,
    "arc": Arc,
    "s3fifo": S3Fifo,
    "gdsf": Gdsf,
}


def next_touches(keys: Ints) -> Iterator[int]:
    """Per touch, the index of the next touch of the same key, or a number past the end."""
    previous = previous_touch(keys)
    after = np.full(len(keys), len(keys), dtype=np.int64)
    seen = np.flatnonzero(previous >= 0)
    after[previous[seen]] = seen
    return iter(after.tolist())


def replay(policy: str, accesses: Accesses, capacity: int, *, whole_request: bool) -> Bools:
    """[n] found or not, in prompt order, through a `policy` with `capacity` bytes.

    whole_request: all keys of a request are looked up before any is touched; else one at a time.
    """
    order = touch_order(accesses)
    keys = accesses.keys[order]
    if policy == "belady":
        cache: Policy = Belady(capacity, next_touches(keys))
    else:
        cache = _POLICIES[policy](capacity)
    touched = keys.tolist()
    sizes: Iterator[int]
    if isinstance(accesses.sizes, int):
        sizes = repeat(accesses.sizes)
    else:
        sizes = iter(accesses.sizes[order].tolist())
    touch, holds = cache.touch, cache.__contains__
    found: list[bool] = []
    if whole_request:
        starts = accesses.starts.tolist()
        for begin, end in pairwise(starts):
            request = touched[begin:end]
            found.extend(map(holds, request))
            for key, size in zip(request, sizes, strict=False):
                touch(key, size)
    else:
        for key, size in zip(touched, sizes, strict=False):
            found.append(holds(key))
            touch(key, size)
    return np.array(found, dtype=np.bool_)[order]


def unbroken(accesses: Accesses, found: Bools) -> Bools:
    """[n] `found` up to the first key of each request that is not."""
    missing = np.cumsum(~found)
    before = np.concatenate(([0], missing))[accesses.starts[:-1]]
    run: Bools = missing == before[request_of_access(accesses.starts)]
    return run
