"""ARC: a list seen once and a list seen twice, their sizes steered by hits on what each evicted.

N. Megiddo, D. Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003, Fig. 4, with
bytes in place of pages: the target moves by the size of the entry found in a ghost list, times the
ratio of the ghost lists.
"""

from __future__ import annotations

from collections import OrderedDict


class _List:
    """Keys from least to most recent, and the bytes they stand for."""

    def __init__(self) -> None:
        self.sizes: OrderedDict[int, int] = OrderedDict()
        self.held = 0

    def push(self, key: int, size: int) -> None:
        self.sizes[key] = size
        self.held += size

    def remove(self, key: int) -> None:
        self.held -= self.sizes.pop(key)

    def pop_oldest(self) -> tuple[int, int]:
        key, size = self.sizes.popitem(last=False)
        self.held -= size
        return key, size


class Arc:
    """ARC with `capacity` bytes of entries, and ghosts of as many bytes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.target = 0.0
        self.once, self.twice = _List(), _List()
        self.once_ghosts, self.twice_ghosts = _List(), _List()

    def __contains__(self, key: int) -> bool:
        return key in self.once.sizes or key in self.twice.sizes

    def touch(self, key: int, size: int) -> None:
        """Use `key`; a ghost shifts the target, a new key comes in as seen once."""
        if size > self.capacity:
            return
        if key in self.twice.sizes:
            self.twice.sizes.move_to_end(key)
        elif key in self.once.sizes:
            self.once.remove(key)
            self.twice.push(key, size)
        elif key in self.once_ghosts.sizes:
            step = size * max(1.0, self.twice_ghosts.held / self.once_ghosts.held)
            self.target = min(float(self.capacity), self.target + step)
            self._make_room(size, wanted_twice=False)
            self.once_ghosts.remove(key)
            self.twice.push(key, size)
        elif key in self.twice_ghosts.sizes:
            step = size * max(1.0, self.once_ghosts.held / self.twice_ghosts.held)
            self.target = max(0.0, self.target - step)
            self._make_room(size, wanted_twice=True)
            self.twice_ghosts.remove(key)
            self.twice.push(key, size)
        else:
            self._admit(key, size)

    def _admit(self, key: int, size: int) -> None:
        """Case IV of the paper: bound the lists, make room, insert as seen once."""
        while self.once_ghosts.sizes and (
            self.once.held + self.once_ghosts.held + size > self.capacity
        ):
            self.once_ghosts.pop_oldest()
        while self.once.held + size > self.capacity:
            self.once.pop_oldest()
        while self.twice_ghosts.sizes and (
            self.once.held + self.once_ghosts.held + self.twice.held + self.twice_ghosts.held + size
            > 2 * self.capacity
        ):
            self.twice_ghosts.pop_oldest()
        self._make_room(size, wanted_twice=False)
        self.once.push(key, size)

    def _make_room(self, size: int, *, wanted_twice: bool) -> None:
        """Evict into the ghost lists until `size` more bytes fit."""
        while self.once.held + self.twice.held + size > self.capacity:
            once = self.once.held
            above = once > self.target or (wanted_twice and once == self.target)
            if self.once.sizes and (above or not self.twice.sizes):
                self.once_ghosts.push(*self.once.pop_oldest())
            else:
                self.twice_ghosts.push(*self.twice.pop_oldest())
