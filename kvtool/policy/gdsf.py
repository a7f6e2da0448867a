"""Greedy-dual size frequency: evict the lowest clock + uses / bytes.

The clock is the priority of the last entry evicted.

L. Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy",
HP Labs 1998, with equal cost per entry. Among equal priorities the oldest goes first.
"""

from __future__ import annotations

import heapq


class Gdsf:
    """GDSF of `capacity` bytes; an entry larger than that is not kept.

    Priorities are in uses per `capacity` bytes, which keeps them near 1 whatever the unit.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0
        self.clock = 0.0
        self.turn = 0
        self.entries: dict[int, tuple[float, int, int, int]] = {}
        self.heap: list[tuple[float, int, int]] = []

    def __contains__(self, key: int) -> bool:
        return key in self.entries

    def touch(self, key: int, size: int) -> None:
        """Raise the priority of `key`, or add it after evicting the lowest until it fits."""
        entry = self.entries.get(key)
        if entry is None:
            if size > self.capacity:
                return
            while self.held + size > self.capacity:
                self._evict()
            self.held += size
        uses = entry[2] + 1 if entry else 1
        self.turn += 1
        priority = self.clock + uses * self.capacity / size
        self.entries[key] = (priority, self.turn, uses, size)
        heapq.heappush(self.heap, (priority, self.turn, key))

    def _evict(self) -> None:
        while True:
            priority, turn, key = heapq.heappop(self.heap)
            entry = self.entries.get(key)
            if entry is not None and entry[1] == turn:
                self.clock = priority
                self.held -= entry[3]
                del self.entries[key]
                return
