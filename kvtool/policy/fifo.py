"""First in, first out: evict what came in first, however often it was used since."""

from __future__ import annotations

from collections import OrderedDict


class Fifo:
    """A FIFO of `capacity` bytes; an entry larger than that is not kept."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0
        self.sizes: OrderedDict[int, int] = OrderedDict()

    def __contains__(self, key: int) -> bool:
        return key in self.sizes

    def touch(self, key: int, size: int) -> None:
        """Add `key` unless it is there, evicting what came in first until it fits."""
        if key not in self.sizes and size <= self.capacity:
            self.held += size
            self.sizes[key] = size
            while self.held > self.capacity:
                self.held -= self.sizes.popitem(last=False)[1]
