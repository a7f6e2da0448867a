"""Least frequently used: evict the fewest uses; among equals, the first to get to that number."""

from __future__ import annotations

from collections import OrderedDict


class Lfu:
    """An LFU of `capacity` bytes. Counts start anew when an entry returns after eviction."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0
        self.uses: dict[int, int] = {}
        self.by_uses: dict[int, OrderedDict[int, int]] = {}
        self.fewest = 1

    def __contains__(self, key: int) -> bool:
        return key in self.uses

    def touch(self, key: int, size: int) -> None:
        """Count a use of `key`, or add it after evicting the least used until it fits."""
        uses = self.uses.get(key)
        if uses is None:
            if size > self.capacity:
                return
            while self.held + size > self.capacity:
                self._evict()
            self.held += size
            self.uses[key] = self.fewest = 1
            self.by_uses.setdefault(1, OrderedDict())[key] = size
            return
        group = self.by_uses[uses]
        del group[key]
        if not group:
            del self.by_uses[uses]
            if self.fewest == uses:
                self.fewest = uses + 1
        self.uses[key] = uses + 1
        self.by_uses.setdefault(uses + 1, OrderedDict())[key] = size

    def _evict(self) -> None:
        if self.fewest not in self.by_uses:
            self.fewest = min(self.by_uses)
        group = self.by_uses[self.fewest]
        key, size = group.popitem(last=False)
        if not group:
            del self.by_uses[self.fewest]
        del self.uses[key]
        self.held -= size
