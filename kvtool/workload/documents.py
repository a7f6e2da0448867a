"""Requests over a pool of documents: Zipf popularity, cold documents, prompt order, duplicates.

Popularity, cold documents, prompt order and lengths draw from generators of their own, spawned from
one seed, so that changing one leaves the others as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvtool.errors import UsageError
from kvtool.workload.lengths import Lengths
from kvtool.workload.requests import DocumentRequests, Ints, repeats_in_request
from kvtool.workload.zipf import Zipf, takes_long_in_turns

ORDERS = ("drawn", "shuffled", "ranked")
DUPLICATES = ("distinct", "drop", "keep")


@dataclass(frozen=True, slots=True)
class DocumentWorkload:
    """A pool of documents and the prompts made from it.

    Of `docs_per_request` documents, `cold` are drawn uniformly, the others by Zipf with exponent
    `skew`. `duplicates`: `distinct` draws without replacement; `drop` draws with replacement and
    leaves repeats out (cold documents then fill the prompt up); `keep` leaves repeats in.
    `order` of the prompt: as `drawn` (cold last), `shuffled`, or `ranked` by popularity.
    """

    docs: int = 1000
    docs_per_request: int = 5
    skew: float = 1.2
    cold: int = 0
    order: str = "drawn"
    duplicates: str = "distinct"
    requests: int = 20_000
    lengths: Lengths = field(default_factory=lambda: Lengths(1024, 1024))

    def __post_init__(self) -> None:
        Zipf(self.docs, self.skew)
        if not 0 <= self.cold <= self.docs_per_request:
            raise UsageError(
                f"{self.cold:,} cold documents in a prompt of {self.docs_per_request:,}",
                "--cold is at most --docs-per-request",
            )
        fills_up = self.duplicates == "distinct" or (self.duplicates == "drop" and self.cold)
        if fills_up and self.docs_per_request > self.docs:
            raise UsageError(
                f"{self.docs_per_request:,} distinct documents per request from a pool of "
                f"{self.docs:,}",
                "raise --docs, lower --docs-per-request, or use --duplicates keep",
            )


def draw_requests(workload: DocumentWorkload, seed: Sequence[int]) -> DocumentRequests:
    """The requests of one seed, which may be several numbers.

    A document's id is its rank, 0 the most popular.
    """
    by_rank, cold, order, lengths = map(
        np.random.default_rng, np.random.SeedSequence(seed).spawn(4)
    )
    prompts = _pick(workload, by_rank, cold)
    if workload.order != "drawn":
        last = np.full(prompts.shape, np.inf)
        place = order.random(prompts.shape) if workload.order == "shuffled" else prompts
        place = np.where(prompts >= 0, place, last)
        prompts = np.take_along_axis(prompts, np.argsort(place, axis=1, kind="stable"), axis=1)
    present = prompts >= 0
    docs = prompts[present]
    starts = np.concatenate(([0], np.cumsum(present.sum(axis=1)))).astype(np.int64)
    tokens = workload.lengths.draw(workload.docs, lengths)[docs]
    if workload.duplicates == "keep":
        repeats = repeats_in_request(docs, starts)
    else:
        repeats = np.zeros(len(docs), dtype=np.bool_)
    return DocumentRequests(docs, tokens, starts, repeats)


def _pick(
    workload: DocumentWorkload, by_rank: np.random.Generator, cold: np.random.Generator
) -> Ints:
    """[R, D] documents in the order they are drawn, -1 where a repeat was dropped."""
    popular = workload.docs_per_request - workload.cold
    zipf = Zipf(workload.docs, workload.skew)
    uniforms = by_rank.random((workload.requests, popular))
    if workload.duplicates == "distinct":
        hot = zipf.draw_distinct(uniforms, by_rank)
    else:
        hot = zipf.draw(uniforms)
    if workload.duplicates == "drop":
        starts = np.arange(0, hot.size + 1, max(popular, 1), dtype=np.int64)
        hot[repeats_in_request(hot.reshape(-1), starts).reshape(hot.shape)] = -1
    if not workload.cold:
        return hot
    if workload.duplicates == "keep":
        drawn = cold.integers(0, workload.docs, size=(workload.requests, workload.cold))
        return np.concatenate((hot, drawn), axis=1)
    return _fill_up(hot, workload, cold)


def _fill_up(hot: Ints, workload: DocumentWorkload, cold: np.random.Generator) -> Ints:
    """[R, D] the distinct documents of `hot` (-1 is none), then uniform ones until all D are there.

    A draw counts documents that the prompt does not have yet; it steps over those it has, which
    stand sorted in `taken`.
    """
    rows, wanted = workload.requests, workload.docs_per_request
    prompts = np.full((rows, wanted), -1, dtype=np.int64)
    prompts[:, : hot.shape[1]] = hot
    prompts = np.take_along_axis(prompts, np.argsort(prompts < 0, axis=1, kind="stable"), axis=1)
    if takes_long_in_turns(wanted, workload.docs):
        return Zipf(workload.docs, 0.0).finish_distinct(prompts, (prompts >= 0).sum(axis=1), cold)
    uniforms: NDArray[np.float64] = cold.random((rows, wanted))
    for place in range(wanted):
        missing = np.flatnonzero(prompts[:, place] < 0)
        if not len(missing):
            continue
        taken = np.sort(prompts[missing, :place], axis=1)
        pick = (uniforms[missing, place] * (workload.docs - place)).astype(np.int64)
        for column in range(place):
            pick += pick >= taken[:, column]
        prompts[missing, place] = pick
    return prompts
