"""What users ask for, request by request: documents of known length, or blocks by prefix hash."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class DocumentRequests:
    """Documents in prompt order.

    docs: [n] ids.  tokens: [n] length of each.  starts: [R + 1] where requests begin in these.
    repeats: [n] true where a document already stands earlier in the same prompt.
    """

    docs: Ints
    tokens: Ints
    starts: Ints
    repeats: Bools

    @property
    def requests(self) -> int:
        """Requests, R."""
        return len(self.starts) - 1


@dataclass(frozen=True, slots=True)
class BlockRequests:
    """Prompts as ids of their blocks, an id standing for the whole prefix up to its block's end.

    ids: [n] block ids in prompt order.  starts: [R + 1].  input_tokens, output_tokens: [R].
    block_size: tokens per block; the last block of a prompt may be shorter.
    """

    ids: Ints
    starts: Ints
    input_tokens: Ints
    output_tokens: Ints
    block_size: int

    @property
    def requests(self) -> int:
        """Requests, R."""
        return len(self.starts) - 1


def position_in_request(starts: Ints) -> Ints:
    """[n] 0, 1, 2, .. within each request."""
    return np.arange(int(starts[-1]), dtype=np.int64) - np.repeat(starts[:-1], np.diff(starts))


def by_position(starts: Ints) -> Iterator[Ints]:
    """The accesses that are first in their request, then those that are second, and so on."""
    position = position_in_request(starts)
    longest = int(np.diff(starts).max(initial=0))
    # A stable sort of 16-bit numbers is numpy's linear one.
    order = np.argsort(position.astype(np.int16) if longest < 1 << 15 else position, kind="stable")
    ends = np.cumsum(np.bincount(position)) if len(position) else np.zeros(0, dtype=np.int64)
    begin = 0
    for end in ends.tolist():
        yield order[begin:end]
        begin = end


def request_of_access(starts: Ints) -> Ints:
    """[n] the request each access belongs to."""
    return np.repeat(np.arange(len(starts) - 1, dtype=np.int64), np.diff(starts))


def repeats_in_request(ids: Ints, starts: Ints) -> Bools:
    """[n] true where the same id stands earlier in the same request."""
    request = request_of_access(starts)
    order = np.lexsort((np.arange(len(ids)), ids, request))
    same = (ids[order][1:] == ids[order][:-1]) & (request[order][1:] == request[order][:-1])
    repeats = np.zeros(len(ids), dtype=np.bool_)
    repeats[order[1:][same]] = True
    return repeats


def previous_touch(keys: Ints) -> Ints:
    """Per touch, the index of the last earlier touch of the same key; -1 for the first.

    `keys` are at least 0. One sort of (key, index) packed into 63 bits; keys too large for that
    are replaced by their ranks first.
    """
    n = len(keys)
    bits = max(n, 1).bit_length()
    if n and int(keys.max()) >> (63 - bits):
        keys = np.unique(keys, return_inverse=True)[1]
    packed = (keys << bits) | np.arange(n, dtype=np.int64)
    packed.sort()
    index = packed & ((1 << bits) - 1)
    packed >>= bits
    same = packed[1:] == packed[:-1]
    previous = np.full(n, -1, dtype=np.int64)
    previous[index[1:][same]] = index[:-1][same]
    return previous
