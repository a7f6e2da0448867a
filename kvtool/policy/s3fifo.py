"""S3-FIFO: a small queue for newcomers, a main queue, and a queue of ghosts.

J. Yang et al., "FIFO Queues are All You Need for Cache Eviction", SOSP 2023. The small queue has
10 % of the bytes, the main queue and the ghosts 90 % each; an entry used at least twice while in
the small queue moves to the main queue, others leave a ghost; the main queue keeps what was used
since it was last passed, with uses counted up to 3. While the cache fills for the first time,
newcomers that the small queue has no room for go to the main queue, as in libCacheSim.
"""

from __future__ import annotations

from collections import OrderedDict

SMALL_SHARE = 0.10
GHOST_SHARE = 0.90
MOVE_AFTER_USES = 2
MOST_USES = 3


class S3Fifo:
    """S3-FIFO of `capacity` bytes; an entry larger than that is not kept."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.small_capacity = max(1, int(capacity * SMALL_SHARE))
        self.main_capacity = capacity - self.small_capacity
        self.ghost_capacity = int(capacity * GHOST_SHARE)
        self.small: OrderedDict[int, int] = OrderedDict()
        self.main: OrderedDict[int, int] = OrderedDict()
        self.ghosts: OrderedDict[int, int] = OrderedDict()
        self.uses: dict[int, int] = {}
        self.small_held = self.main_held = self.ghosts_held = 0
        self.filled = False

    def __contains__(self, key: int) -> bool:
        return key in self.uses

    def touch(self, key: int, size: int) -> None:
        """Count a use of `key`, or let it in: a ghost to the main queue, others to the small."""
        uses = self.uses.get(key)
        if uses is not None:
            self.uses[key] = min(uses + 1, MOST_USES)
            return
        if size > self.capacity:
            return
        was_ghost = key in self.ghosts
        if was_ghost:
            self.ghosts_held -= self.ghosts.pop(key)
        while self.small_held + self.main_held + size > self.capacity:
            self.filled = True
            if self.main_held > self.main_capacity or not self.small:
                self._evict_from_main()
            else:
                self._evict_from_small()
        starting = not self.filled and self.small_held >= self.small_capacity
        self.uses[key] = 0
        if was_ghost or starting or size > self.small_capacity:
            self.main[key] = size
            self.main_held += size
        else:
            self.small[key] = size
            self.small_held += size

    def _evict_from_small(self) -> None:
        """Pass the small queue from its oldest entry until one leaves the cache."""
        while self.small:
            key, size = self.small.popitem(last=False)
            self.small_held -= size
            if self.uses[key] >= MOVE_AFTER_USES:
                self.main[key] = size
                self.main_held += size
                continue
            del self.uses[key]
            self.ghosts[key] = size
            self.ghosts_held += size
            while self.ghosts_held > self.ghost_capacity:
                self.ghosts_held -= self.ghosts.popitem(last=False)[1]
            return

    def _evict_from_main(self) -> None:
        """Pass the main queue from its oldest entry, putting used ones back, until one leaves."""
        while self.main:
            key, size = self.main.popitem(last=False)
            if self.uses[key]:
                self.uses[key] -= 1
                self.main[key] = size
                continue
            del self.uses[key]
            self.main_held -= size
            return
