"""The exact LRU hit-rate curve: one pass gives every cache size.

Number the touches 0..n-1 and let p_i be the last earlier touch of the same key. What an LRU cache
must hold for touch i to hit is the keys touched since p_i, each once, and the key itself:

    d_i = (at_i - p_i - 1) - #{ j < at_i : p_j > p_i }       distinct other keys since p_i

where at_i is the moment of the look-up: i itself when keys are looked up one at a time, the first
touch of the request when a whole request is looked up before it is touched. The first term counts
all touches in the gap, the second removes those that repeat a key of the same gap. A cache of C
equal entries hits iff d_i < C. With entries of unequal bytes the same sum runs over bytes and a
budget B hits iff bytes in the gap + own bytes <= B; that is exact while every entry fits into B
alone, because LRU then always holds an unbroken top of its stack (Mattson et al., IBM Systems
Journal 9(2), 1970).

The pairs are counted by a stable partition per bit of the rank, highest bit first: each pair is
seen once, at the highest bit in which its ranks differ. The lowest bits are compared directly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvtool.workload.requests import Ints, previous_touch

NEVER = np.iinfo(np.int64).max
"""Bytes needed by a key that was not seen before: no cache hits it."""

# Measured best of 6 to 8 and of 15 to 20 at 1M and 10M touches on one core of an AMD EPYC.
_DIRECT_BITS = 7
_BLOCK_BITS = 17
_DIRECT_BITS_WEIGHTED = 4
_LOW_32 = 0xFFFF_FFFF


def bytes_needed(keys: Ints, sizes: Ints | int, request_starts: Ints | None = None) -> Ints:
    """Per touch, the smallest LRU budget that hits it; NEVER where there is no earlier touch.

    keys: [n] in the order of touching.  sizes: [n] bytes of the entry, the same whenever the key
    returns, or one number for all.  request_starts: [R + 1] first touch of each request when the
    whole request is looked up before it is touched; None when keys are looked up one at a time.
    A key must not repeat inside a request in the first case.
    """
    n = len(keys)
    previous = previous_touch(keys)
    warm = np.flatnonzero(previous >= 0)
    looked_up_at = warm
    if request_starts is not None:
        lengths = np.diff(request_starts)
        looked_up_at = np.repeat(request_starts[:-1], lengths)[warm]
        warm = _earliest_reuse_first(warm, looked_up_at, previous, n)
    last = previous[warm]
    rank_of_slot = np.full(n, -1, dtype=np.int64)
    rank_of_slot[last] = np.arange(len(warm), dtype=np.int64)
    by_falling_last = rank_of_slot[::-1]
    by_falling_last = by_falling_last[by_falling_last >= 0]
    needed = np.full(n, NEVER, dtype=np.int64)
    if isinstance(sizes, int):
        repeats = _smaller_before(by_falling_last)
        needed[warm] = (looked_up_at - last - repeats) * sizes
    else:
        total = np.zeros(n + 1, dtype=np.int64)
        np.cumsum(sizes, out=total[1:])
        repeats = _smaller_before_weighted(by_falling_last, sizes[warm])
        needed[warm] = total[looked_up_at] - total[last] - repeats
    return needed


def _earliest_reuse_first(warm: Ints, looked_up_at: Ints, previous: Ints, n: int) -> Ints:
    """`warm` with the touches of each request sorted by their last earlier touch.

    Touches of one request must not count against each other when all are looked up first. In this
    order a touch only follows those of its request whose last touch is older, and these never
    count, so the pairs that remain are those with earlier requests.
    """
    bits = max(n, 1).bit_length()
    last = previous[warm]
    if np.all((last[1:] > last[:-1]) | (looked_up_at[1:] != looked_up_at[:-1])):
        return warm
    if 2 * bits > 63:
        return warm[np.lexsort((last, looked_up_at))]
    packed = (looked_up_at << bits) | last
    packed.sort()
    packed &= (1 << bits) - 1
    touch_of_last = np.empty(n, dtype=np.int64)
    touch_of_last[last] = warm
    in_order: Ints = touch_of_last[packed]
    return in_order


def _smaller_before(order: Ints) -> Ints:
    """For each rank r, how many smaller ranks stand before r in `order`, a permutation of 0..m-1.

    A rank and its running count share an int64 (count in the upper half), so one array moves.
    Below `_BLOCK_BITS` the groups are short enough for each block of them to stay in the cache.
    """
    m = len(order)
    packed = order.copy()
    for bit in reversed(range(_BLOCK_BITS, max(m - 1, 0).bit_length())):
        packed = _split(packed, bit)
    count = np.empty(m, dtype=np.int64)
    for start in range(0, m, 1 << _BLOCK_BITS):
        block = packed[start : start + (1 << _BLOCK_BITS)]
        for bit in reversed(range(_DIRECT_BITS, _BLOCK_BITS)):
            block = _split(block, bit)
        ranks = block & _LOW_32
        block >>= 32
        block += _smaller_before_directly(ranks)
        count[ranks] = block
    return count


def _split(packed: Ints, bit: int) -> Ints:
    """One stable partition: in each group of 2^(bit+1), ranks without the bit before those with it.

    A rank with the bit adds the ranks without it that stood before it in its group.
    """
    has_bit = (packed & (1 << bit)) != 0
    at_right = np.flatnonzero(has_bit)
    at_left = np.flatnonzero(np.logical_not(has_bit, out=has_bit))
    left, right = packed.take(at_left), packed.take(at_right)
    earlier_groups = at_right >> (bit + 1)
    earlier_groups <<= bit
    lefts_before = at_right
    lefts_before -= np.arange(len(at_right))
    lefts_before -= earlier_groups
    lefts_before <<= 32
    right += lefts_before
    return _regroup(left, right, bit, len(packed))


def _regroup(left: Ints, right: Ints, bit: int, m: int) -> Ints:
    """Groups of 2^(bit+1), the left half before the right; only the last group may be short."""
    half = 1 << bit
    groups = m >> (bit + 1)
    whole = groups * half
    out = np.empty(m, dtype=np.int64)
    halves = out[: 2 * whole].reshape(groups, 2, half)
    halves[:, 0] = left[:whole].reshape(groups, half)
    halves[:, 1] = right[:whole].reshape(groups, half)
    tail = out[2 * whole :]
    tail[: len(left) - whole] = left[whole:]
    tail[len(left) - whole :] = right[whole:]
    return out


def _smaller_before_directly(ranks: Ints) -> NDArray[np.uint8]:
    """Smaller ranks before each one in its group of 2^_DIRECT_BITS, by comparing all pairs."""
    width = 1 << _DIRECT_BITS
    m = len(ranks)
    low = np.full(m + -m % width, width - 1, dtype=np.uint8)
    low[:m] = ranks & (width - 1)
    columns = np.ascontiguousarray(low.reshape(-1, width).T)
    count = np.zeros(columns.shape, dtype=np.uint8)
    for lag in range(1, width):
        count[lag:] += columns[lag:] > columns[:-lag]
    return count.T.reshape(-1)[:m]


def _smaller_before_weighted(order: Ints, weights: Ints) -> Ints:
    """For each rank r, the weight of the smaller ranks that stand before r in `order`.

    weights: [m] of each rank. The same partition as in `_smaller_before`, with the sums beside it.
    """
    m = len(order)
    ranks, sums = order, np.zeros(m, dtype=np.int64)
    running = np.zeros(m + 1, dtype=np.int64)
    for bit in reversed(range(_DIRECT_BITS_WEIGHTED, max(m - 1, 0).bit_length())):
        is_right = ((ranks >> bit) & 1).astype(np.bool_)
        at_right, at_left = np.flatnonzero(is_right), np.flatnonzero(~is_right)
        weight_here = weights.take(ranks)
        weight_here[is_right] = 0
        np.cumsum(weight_here, out=running[1:])
        group_start = (at_right >> (bit + 1)) << (bit + 1)
        right_sums = sums.take(at_right)
        right_sums += running.take(at_right) - running.take(group_start)
        sums = _regroup(sums.take(at_left), right_sums, bit, m)
        ranks = _regroup(ranks.take(at_left), ranks.take(at_right), bit, m)
    width = 1 << _DIRECT_BITS_WEIGHTED
    low = np.full(m + -m % width, width - 1, dtype=np.int64)
    low[:m] = ranks & (width - 1)
    weight = np.zeros(len(low), dtype=np.int64)
    weight[:m] = weights.take(ranks)
    columns = np.ascontiguousarray(low.reshape(-1, width).T)
    columns_weight = np.ascontiguousarray(weight.reshape(-1, width).T)
    block_sums = np.zeros(columns.shape, dtype=np.int64)
    for lag in range(1, width):
        block_sums[lag:] += columns_weight[:-lag] * (columns[lag:] > columns[:-lag])
    out = np.empty(m, dtype=np.int64)
    out[ranks] = sums + block_sums.T.reshape(-1)[:m]
    return out


@dataclass(frozen=True, slots=True)
class HitCurve:
    """What is hit at every budget: a step function over `budgets`.

    budgets: [s] rising bytes at which something more is hit.  found, found_tokens: [s] keys and
    prompt tokens found at that budget.  request_share: [s] sum over requests of the share of their
    prompt tokens that was found.  lookups, prompt_tokens, requests: the totals they are shares of.
    """

    budgets: Ints
    found: Ints
    found_tokens: Ints
    request_share: NDArray[np.float64]
    lookups: int
    prompt_tokens: int
    requests: int

    def at(self, budget_bytes: int) -> tuple[float, float, float]:
        """hit_rate, token_hit_rate, request_hit_rate at a budget; 0 where nothing is looked up."""
        step = int(np.searchsorted(self.budgets, budget_bytes, side="right")) - 1
        if step < 0 or not self.lookups:
            return 0.0, 0.0, 0.0
        return (
            int(self.found[step]) / self.lookups,
            int(self.found_tokens[step]) / self.prompt_tokens,
            float(self.request_share[step]) / self.requests,
        )

    def unlimited(self) -> tuple[float, float, float]:
        """The three rates of a cache that never evicts."""
        return self.at(NEVER)

    def smallest_budget(self, hit_rate: float) -> int | None:
        """The smallest budget whose hit rate is at least `hit_rate`; None when none reaches it."""
        if hit_rate <= 0:
            return 0
        step = int(np.searchsorted(self.found / max(self.lookups, 1), hit_rate, side="left"))
        return int(self.budgets[step]) if step < len(self.budgets) else None


def hit_curve(
    needed: Ints,
    tokens: Ints,
    request_of: Ints,
    request_tokens: Ints,
    lookups: int,
    unit: int = 1,
) -> HitCurve:
    """The curve of look-ups that need `needed` bytes and save `tokens` prompt tokens each.

    needed, tokens, request_of: [h] of the look-ups that can hit.  request_tokens: [R] prompt
    tokens of each request counted.  lookups: all look-ups, those that cannot hit included.
    unit: bytes that all of `needed` are multiples of.
    """
    reachable = needed != NEVER
    needed, tokens, request_of = needed[reachable], tokens[reachable], request_of[reachable]
    budgets, step = _steps(needed, unit)
    share = tokens / np.maximum(request_tokens[request_of], 1)
    return HitCurve(
        budgets=budgets,
        found=np.cumsum(np.bincount(step)),
        found_tokens=np.cumsum(np.bincount(step, weights=tokens)).astype(np.int64),
        request_share=np.cumsum(np.bincount(step, weights=share)),
        lookups=lookups,
        prompt_tokens=int(request_tokens.sum()),
        requests=len(request_tokens),
    )


def _steps(needed: Ints, unit: int) -> tuple[Ints, Ints]:
    """The different values of `needed`, rising, and which of them each one is."""
    scaled = needed // unit
    if len(scaled) and int(scaled.max()) > 4 * len(scaled):
        budgets, step = np.unique(needed, return_inverse=True)
        return budgets, step
    present = np.bincount(scaled) > 0
    step_of: Ints = np.cumsum(present) - 1
    return np.flatnonzero(present) * unit, step_of[scaled]
