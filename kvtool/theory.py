"""Closed forms to hold a simulated hit rate against.

- Che: an LRU of C entries keeps what was asked for within a time T that solves
  sum_i (1 - exp(-p_i T)) = C. H. Che, Y. Tung, Z. Wang, IEEE JSAC 20(7), 2002; why it holds:
  C. Fricker, P. Robert, J. Roberts, ITC 2012.
- King: the exact LRU hit rate under independent references, by summing over every cached set.
  W. F. King, IFIP Congress 1971.
- Static optimum: the mass of the C most popular; no policy without knowledge of the future beats
  it under independent references.
- LazyAttention, arXiv 2606.04302, Eq. 3: a position-agnostic cache holds the C most popular
  documents, a position-aware one floor(C / D) of them: H_C / H_floor(C/D). Both sides are static
  optima, not LRU.

All of them describe a cache long after its cold start.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kvtool.workload.documents import DocumentWorkload
from kvtool.workload.zipf import Zipf

Floats = NDArray[np.float64]

KING_MAX_DOCS = 16
"""King's sum runs over 2^docs sets."""

_STEPS = 200
_ALONE = 20_000  # ranks that form no group
_GROUP_WIDTH = 1e-3
_NO_TIME = float(np.finfo(np.float64).tiny)
_PRECISION = 1e-13


def che_time(rates: Floats, capacity: float, counts: Floats | None = None) -> float:
    """T with sum_i (1 - exp(-rates_i T)) = capacity, by Newton; infinite when everything fits.

    counts: how many documents share a rate, one by default. Documents with an infinite rate are
    always there and take their place first.
    """
    counts = np.ones(len(rates)) if counts is None else counts
    always = float(counts[np.isinf(rates)].sum())
    finite = (rates > 0) & np.isfinite(rates)
    rates, counts = rates[finite], counts[finite]
    capacity -= always
    if capacity >= counts.sum():
        return float("inf")
    if capacity <= 0:
        return _NO_TIME if always and capacity == 0 else 0.0
    time = capacity / float((counts * rates).sum())
    for _ in range(_STEPS):  # the sum is concave in T and below the target at the start
        absent = counts * np.exp(-rates * time)
        missing = capacity - float((counts - absent).sum())
        step = missing / float((rates * absent).sum())
        time += step
        if abs(step) <= _PRECISION * time:
            break
    return time


def che_hit_rate(probabilities: Floats, capacity: float) -> float:
    """LRU hit rate of `capacity` equal entries, one document a request, by Che's approximation.

    >>> round(che_hit_rate(Zipf(5, 1.0).probabilities(), 2), 6)
    0.510826
    """
    time = che_time(probabilities, capacity)
    return float((probabilities * _present(probabilities, time)).sum() / probabilities.sum())


def _present(rates: Floats, time: float) -> Floats:
    """[n] chance that each document was asked for within `time`."""
    if time == float("inf"):
        return np.ones(len(rates))
    if time == 0:
        return np.zeros(len(rates))
    present: Floats = -np.expm1(-rates * time)
    return present


def king_hit_rate(probabilities: Floats, capacity: int) -> float:
    """Exact LRU hit rate of `capacity` entries, one document a request; at most 16 documents.

    f(S), the chance that the cache holds exactly S, is the sum over the last document drawn:
    f(S) = sum_{i in S} f(S - i) p_i / (1 - p(S - i)); the hit rate is sum_S f(S) p(S).

    >>> round(king_hit_rate(Zipf(5, 1.0).probabilities(), 2), 6)
    0.518885
    """
    docs = len(probabilities)
    if docs > KING_MAX_DOCS:
        raise ValueError(f"{docs} documents are more than {KING_MAX_DOCS}")
    if capacity >= docs:
        return 1.0
    chance, mass = {0: 1.0}, {0: 0.0}
    for _ in range(capacity):
        larger: dict[int, float] = {}
        for held, likelihood in chance.items():
            for doc, probability in enumerate(probabilities.tolist()):
                if held >> doc & 1:
                    continue
                rest = sum(p for d, p in enumerate(probabilities.tolist()) if not held >> d & 1)
                grown = held | 1 << doc
                larger[grown] = larger.get(grown, 0.0) + likelihood * probability / rest
                mass[grown] = mass[held] + probability
        chance = larger
    return sum(likelihood * mass[held] for held, likelihood in chance.items())


def static_optimum(probabilities: Floats, capacity: float) -> float:
    """Hit rate of holding the floor(capacity) most popular; `probabilities` fall."""
    return min(1.0, float(probabilities[: int(capacity)].sum()))


def lazy_over_position_aware(
    docs: int, skew: float, capacity: float, docs_per_request: int
) -> float:
    """H_C / H_floor(C / D), the ratio of Eq. 3; infinite when C < D.

    >>> round(lazy_over_position_aware(1000, 1.0, 100, 5), 3)
    1.442
    """
    probabilities = Zipf(docs, skew).probabilities()
    aware = static_optimum(probabilities, capacity // docs_per_request)
    return static_optimum(probabilities, capacity) / aware if aware else float("inf")


@dataclass(frozen=True, slots=True)
class RequestRates:
    """How often requests name documents, in groups of documents with (nearly) one popularity.

    counts: documents of a group.  rates: at which requests name one.  chances: that a request does.
    lookups: mean of a request.
    """

    counts: Floats
    rates: Floats
    chances: Floats
    lookups: float


@lru_cache(maxsize=8)
def request_rates(workload: DocumentWorkload) -> RequestRates | None:
    """The rates of a workload's documents.

    Drawing until D documents differ is a race of exponential clocks stopped at the D-th: document
    i is in with 1 - exp(-p_i s), where s makes these sum to D. None where a prompt takes all
    documents, or all that have any chance in float64.
    """
    counts, probabilities = _popularity(workload)
    popular = workload.docs_per_request - workload.cold
    cold = float(workload.cold)
    if workload.docs_per_request == 1:
        chance = probabilities if popular else np.full(len(counts), 1 / workload.docs)
        return RequestRates(counts, chance, chance, 1.0)
    keeps = workload.duplicates == "keep"
    if not keeps and workload.docs_per_request >= workload.docs:
        return None
    rates = np.zeros(len(counts))
    if popular and workload.duplicates == "distinct":
        race = che_time(probabilities, popular, counts)
        if race == float("inf"):
            return None
        rates += probabilities * race
    elif popular:
        with np.errstate(divide="ignore"):
            rates -= popular * np.log1p(-probabilities)
        if not keeps and cold:
            cold += popular + float((counts * np.expm1(-rates)).sum())
    if cold and keeps:
        rates += cold / workload.docs
    elif cold:
        # the rate c, equal for all, with sum_i (1 - exp(-rates_i - c)) = documents in a prompt
        absent = float((counts * np.exp(-rates)).sum())
        rates += np.log(absent / (absent - cold))
    chance = -np.expm1(-rates)
    lookups = float(workload.docs_per_request) if keeps else float((counts * chance).sum())
    return RequestRates(counts, rates, chance, lookups)


def _popularity(workload: DocumentWorkload) -> tuple[Floats, Floats]:
    """Documents per group and the mean probability of each group.

    The first ranks stand alone; later ones are grouped within a thousandth of their rank, which
    moves a hit rate by less than a millionth.
    """
    probabilities = Zipf(workload.docs, workload.skew).probabilities()
    if workload.docs <= _ALONE:
        return np.ones(workload.docs), probabilities
    groups = int(np.log(workload.docs / _ALONE) / _GROUP_WIDTH) + 1
    later = np.geomspace(_ALONE, workload.docs, groups + 1)[:-1].astype(np.int64)
    starts = np.concatenate((np.arange(_ALONE), np.unique(later)))
    counts = np.diff(np.append(starts, workload.docs)).astype(np.float64)
    return counts, np.add.reduceat(probabilities, starts) / counts


def lazy_hit_rate(
    workload: DocumentWorkload, capacity: float, *, whole_request: bool
) -> float | None:
    """LRU hit rate on document keys by Che's approximation, `capacity` in mean documents.

    T counts requests. One document a request is Che's own case. With several, a document is in a
    request with chance c_i and the share found is sum_i c_i (1 - exp(-r_i T)) / look-ups. Looked up
    one at a time, a document has on average (D - 1) / 2 of its own prompt ahead of it, which
    shortens T by (D - 1) / 2D of a request. None where `request_rates` has none.
    """
    found = request_rates(workload)
    if found is None:
        return None
    time = che_time(found.rates, capacity, found.counts)
    chances = found.counts * found.chances
    if not whole_request:
        distinct = float(chances.sum())
        time = max(0.0, time - max(0.0, distinct - 1) / (2 * distinct))
    return float((chances * _present(found.rates, time)).sum()) / found.lookups
