"""Least recently used: evict what was touched longest ago."""

from __future__ import annotations

from collections import OrderedDict


class Lru:
    """An LRU of `capacity` bytes; an entry larger than that is not kept."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0
        self.sizes: OrderedDict[int, int] = OrderedDict()

    def __contains__(self, key: int) -> bool:
        return key in self.sizes

    def touch(self, key: int, size: int) -> None:
        """Make `key` the most recent entry, evicting from the oldest until it fits."""
        if key in self.sizes:
            self.sizes.move_to_end(key)
        elif size <= self.capacity:
            self.held += size
            self.sizes[key] = size
            while self.held > self.capacity:
                self.held -= self.sizes.popitem(last=False)[1]
