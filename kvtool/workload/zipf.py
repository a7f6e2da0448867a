"""Bounded Zipf popularity: document r of K is drawn with probability r^-a / H_K(a), a >= 0.

Draws go through the inverse of the cumulative distribution, so equal uniforms give coupled draws
over exponents and nothing is clipped or rejected (numpy's `zipf` is unbounded and needs a > 1).
Distinct documents are drawn one after the other from what is left, which is also what sorting by
log p plus Gumbel noise does; both are exact, and the second serves where the mass that is left has
no digits left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvtool.errors import UsageError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_DOCS = 50_000_000
_SMALLEST_REST = 1e-7  # below this share, 1 - (mass already drawn) keeps fewer than 9 digits
_GUMBEL_CELLS = 4_000_000  # random numbers held at once


def takes_long_in_turns(wanted: int, docs: int) -> bool:
    """Whether noise on all `docs` is cheaper than `wanted` draws, each stepping over the earlier.

    About 5 ns for each of wanted^2 steps against 30 ns for each document, on one EPYC core.
    """
    return wanted * wanted > 6 * docs


def check_skew(skew: float) -> float:
    """`skew` itself; UsageError unless it is finite and at least 0."""
    if not math.isfinite(skew) or skew < 0:
        raise UsageError(
            f"a Zipf exponent of '{skew:g}' is not possible",
            "0 is uniform, 1.2 is common; any finite exponent from 0 works",
        )
    return skew


@dataclass(frozen=True, slots=True)
class Zipf:
    """Popularity of `docs` documents, document 0 the most popular, with exponent `skew`."""

    docs: int
    skew: float

    def __post_init__(self) -> None:
        check_skew(self.skew)
        if not 1 <= self.docs <= MAX_DOCS:
            raise UsageError(
                f"a pool of {self.docs:,} documents is not possible",
                f"use 1 to {MAX_DOCS:,} documents",
            )

    def log_weights(self) -> Floats:
        """[docs] log of r^-a, not normalised."""
        ranks = np.arange(1, self.docs + 1, dtype=np.float64)
        weights: Floats = -self.skew * np.log(ranks)
        return weights

    def probabilities(self) -> Floats:
        """[docs] probabilities, falling, summing to 1."""
        weights: Floats = np.exp(self.log_weights())
        weights /= weights.sum()
        return weights

    def draw(self, uniforms: Floats) -> Ints:
        """One document per uniform number in [0, 1), repeats allowed."""
        cumulative = np.cumsum(self.probabilities())
        ranks: Ints = np.searchsorted(cumulative, uniforms * cumulative[-1], side="right")
        return ranks

    def draw_distinct(self, uniforms: Floats, rng: np.random.Generator) -> Ints:
        """[R, D] documents from [R, D] uniforms: the D of a row differ, each drawn from the rest.

        A uniform is stretched over the mass not yet drawn and stepped over the documents already
        taken, in the order of the ranks. `rng` serves the rows whose rest is too small for that,
        and prompts of so many documents that going through the pool is faster.
        """
        rows, wanted = uniforms.shape
        if wanted > self.docs:
            raise UsageError(
                f"{wanted:,} distinct documents per request from a pool of {self.docs:,}",
                "raise --docs, lower --docs-per-request, or allow --duplicates keep",
            )
        if takes_long_in_turns(wanted, self.docs):
            nothing = np.zeros(uniforms.shape, dtype=np.int64)
            return self.finish_distinct(nothing, np.zeros(rows, dtype=np.int64), rng)
        probabilities = self.probabilities()
        cumulative = np.cumsum(probabilities)
        above = np.concatenate(([0.0], cumulative[:-1]))
        taken = np.empty((rows, wanted), dtype=np.int64)
        picks = np.empty((rows, wanted), dtype=np.int64)
        rest = np.full(rows, cumulative[-1])
        exact_turns = np.full(rows, wanted)
        for turn in range(wanted):
            target = uniforms[:, turn] * rest
            for column in range(turn):  # ranks already taken, rising
                rank = taken[:, column]
                target += np.where(target >= above[rank], probabilities[rank], 0.0)
            pick = np.searchsorted(cumulative, target, side="right")
            pick = np.minimum(pick, self.docs - 1)
            lost = (rest < _SMALLEST_REST) | (taken[:, :turn] == pick[:, None]).any(axis=1)
            exact_turns[lost] = np.minimum(exact_turns[lost], turn)
            picks[:, turn] = pick
            taken[:, turn] = pick
            taken[:, : turn + 1].sort(axis=1)
            rest = rest - probabilities[pick]
        inexact = np.flatnonzero(exact_turns < wanted)
        if len(inexact):
            picks[inexact] = self.finish_distinct(picks[inexact], exact_turns[inexact], rng)
        return picks

    def finish_distinct(self, picks: Ints, kept: Ints, rng: np.random.Generator) -> Ints:
        """`picks` with all but the first `kept` of each row drawn anew from the documents left.

        The largest of log p plus Gumbel noise, largest first, are successive draws from the rest.
        """
        log_weights = self.log_weights()
        rows, wanted = picks.shape
        out = picks.copy()
        turns = np.arange(wanted)
        chunk = max(1, _GUMBEL_CELLS // self.docs)
        for start in range(0, rows, chunk):
            rows_here = slice(start, min(start + chunk, rows))
            keep = turns < kept[rows_here, None]
            noisy = log_weights + rng.gumbel(size=(len(keep), self.docs))
            row, turn = np.nonzero(keep)
            noisy[row, picks[rows_here][row, turn]] = -np.inf
            top = np.argpartition(noisy, self.docs - wanted, axis=1)[:, self.docs - wanted :]
            order = np.argsort(-np.take_along_axis(noisy, top, axis=1), axis=1)
            drawn = np.take_along_axis(top, order, axis=1)
            place = np.maximum(turns - kept[rows_here, None], 0)
            redrawn = np.take_along_axis(drawn, place, axis=1)
            out[rows_here] = np.where(keep, picks[rows_here], redrawn)
        return out
