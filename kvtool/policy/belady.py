"""Belady's MIN: evict what is used again furthest in the future.

L. A. Belady, IBM Systems Journal 5(2), 1966. With entries of equal size no policy that admits every
entry hits more often; with unequal sizes it is a heuristic and no bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class Belady:
    """MIN of `capacity` bytes. `next_touches` yields, per touch, when its key is touched again."""

    def __init__(self, capacity: int, next_touches: Iterator[int]) -> None:
        self.capacity = capacity
        self.next_touches = next_touches
        self.held = 0
        self.entries: dict[int, tuple[int, int]] = {}
        self.heap: list[tuple[int, int]] = []

    def __contains__(self, key: int) -> bool:
        return key in self.entries

    def touch(self, key: int, size: int) -> None:
        """Use `key`, or add it after evicting the furthest next uses until it fits."""
        again = next(self.next_touches)
        if key not in self.entries:
            if size > self.capacity:
                return
            while self.held + size > self.capacity:
                self._evict()
            self.held += size
        self.entries[key] = (again, size)
        heapq.heappush(self.heap, (-again, key))

    def _evict(self) -> None:
        while True:
            again, key = heapq.heappop(self.heap)
            entry = self.entries.get(key)
            if entry is not None and entry[0] == -again:
                self.held -= entry[1]
                del self.entries[key]
                return
