"""The Zipf exponent of what was asked for, by maximum likelihood, with its standard error.

Only the documents seen at least `SEEN` times are fitted: beyond them the ranks of what was seen are
ranks of chance. Two models, by how prompts are made:

- one document a request: counts are multinomial with p_i ~ i^-a over the fitted ranks;
- several distinct ones: document i is in a request with chance 1 - exp(-c i^-a), the race of
  exponential clocks that draws without replacement are; c and a are fitted together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvtool.errors import KvtoolError

Floats = NDArray[np.float64]

SEEN = 10
_FEWEST_RANKS = 5
_STEPS = 100


@dataclass(frozen=True, slots=True)
class ZipfFit:
    """A fitted exponent.

    error: standard error of the estimate, which says nothing about whether Zipf fits at all.
    ranks, counts: documents fitted and how often they were asked for.  distance: the largest gap
    between the cumulative shares of the fit and of the counts (0 is perfect).
    """

    skew: float
    error: float
    ranks: int
    counts: int
    distance: float


def fit_zipf(counts: NDArray[np.int64], requests: int, *, distinct: bool) -> ZipfFit:
    """The exponent behind `counts`, how often each document was asked for in `requests`.

    distinct: prompts hold several documents, each at most once. Raises KvtoolError when too few
    documents come again often enough.
    """
    falling = np.sort(counts)[::-1].astype(np.float64)
    head = falling[falling >= SEEN]
    if len(head) < _FEWEST_RANKS:
        raise KvtoolError(
            f"only {len(head)} ids occur at least {SEEN} times: too few to fit an exponent",
            f"--fit-zipf needs {_FEWEST_RANKS} of them: use a longer trace",
        )
    log_rank = np.log(np.arange(1, len(head) + 1, dtype=np.float64))
    if distinct:
        skew, error, shares = _fit_race(head, log_rank, requests)
    else:
        skew, error, shares = _fit_multinomial(head, log_rank)
    gap = np.abs(np.cumsum(shares) / shares.sum() - np.cumsum(head) / head.sum())
    return ZipfFit(skew, error, len(head), int(head.sum()), float(gap.max()))


def _fit_multinomial(head: Floats, log_rank: Floats) -> tuple[float, float, Floats]:
    """Exponent, error and shares: the exponent whose mean log rank is that of the counts."""
    seen = float((head * log_rank).sum() / head.sum())
    skew = 1.0
    for _ in range(_STEPS):
        shares = np.exp(-skew * log_rank)
        shares /= shares.sum()
        mean = float((shares * log_rank).sum())
        variance = float((shares * log_rank**2).sum()) - mean**2
        step = (mean - seen) / variance
        skew += max(-1.0, min(1.0, step))
        if abs(step) < 1e-10:
            break
    return skew, 1 / math.sqrt(float(head.sum()) * variance), shares


def _fit_race(head: Floats, log_rank: Floats, requests: int) -> tuple[float, float, Floats]:
    """Exponent, error and shares by Fisher scoring over (log c, a) of 1 - exp(-c i^-a)."""
    share = np.minimum(head / requests, 1 - 0.5 / requests)
    rate = -np.log1p(-share)
    weight = head / head.sum()
    slope = np.polyfit(log_rank, np.log(rate), 1, w=np.sqrt(weight))
    log_c, skew = float(slope[1]), -float(slope[0])
    for _ in range(_STEPS):
        rate = np.exp(log_c - skew * log_rank)
        chance = np.clip(-np.expm1(-rate), 1e-15, 1 - 1e-15)
        # d chance / d log(rate) = rate exp(-rate); the Fisher information of one Bernoulli trial
        score = (head - requests * chance) / chance * rate
        info = requests * rate**2 * (1 - chance) / chance
        gradient = np.array([score.sum(), -(score * log_rank).sum()])
        cross = -float((info * log_rank).sum())
        fisher = np.array([[info.sum(), cross], [cross, (info * log_rank**2).sum()]])
        step = np.clip(np.linalg.solve(fisher, gradient), -1.0, 1.0)
        log_c, skew = log_c + float(step[0]), skew + float(step[1])
        if np.abs(step).max() < 1e-10:
            break
    error = math.sqrt(float(np.linalg.inv(fisher)[1, 1]))
    return skew, error, chance
