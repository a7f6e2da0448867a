"""Bounded Zipf: the sampler against its own probabilities, for any exponent from 0."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.errors import UsageError
from kvtool.workload.zipf import Zipf


def chi_square_bound(cells: int) -> float:
    """The 1 - 1e-6 quantile of chi-square with cells - 1 degrees (Wilson and Hilferty)."""
    freedom = cells - 1
    return freedom * (1 - 2 / (9 * freedom) + 4.7534 * math.sqrt(2 / (9 * freedom))) ** 3


@pytest.mark.parametrize("skew", [0, 0.8, 1.0, 1.2, 2.1])
def test_draws_pass_a_chi_square_test(skew):
    zipf, draws = Zipf(1_000, skew), 1_000_000
    drawn = zipf.draw(np.random.default_rng(11).random(draws))

    expected = draws * zipf.probabilities()
    enough = expected >= 10
    seen = np.bincount(drawn, minlength=1_000)
    cells = np.append(seen[enough], seen[~enough].sum())
    ideal = np.append(expected[enough], max(expected[~enough].sum(), 1e-9))
    statistic = ((cells - ideal) ** 2 / ideal)[ideal > 1e-6].sum()

    assert statistic < chi_square_bound(len(cells))


def successive(probabilities: list[float], first: tuple[int, ...]) -> float:
    """Chance of drawing `first` in this order without replacement."""
    chance, rest = 1.0, 1.0
    for doc in first:
        chance *= probabilities[doc] / rest
        rest -= probabilities[doc]
    return chance


@pytest.mark.parametrize("skew", [0, 1.2, 3.0])
@pytest.mark.parametrize("by", ["inverse", "gumbel"])
def test_distinct_draws_follow_successive_sampling(skew, by):
    zipf, rows = Zipf(5, skew), 200_000
    rng = np.random.default_rng(5)
    if by == "inverse":
        picks = zipf.draw_distinct(rng.random((rows, 2)), rng)
    else:
        nothing = np.zeros((rows, 2), dtype=np.int64)
        picks = zipf.finish_distinct(nothing, np.zeros(rows, dtype=np.int64), rng)

    probabilities = zipf.probabilities().tolist()
    pairs = [(a, b) for a in range(5) for b in range(5) if a != b]
    ideal = np.array([rows * successive(probabilities, pair) for pair in pairs])
    seen = np.array([((picks[:, 0] == a) & (picks[:, 1] == b)).sum() for a, b in pairs])
    enough = ideal > 5
    statistic = ((seen - ideal) ** 2 / ideal)[enough].sum()
    assert statistic < chi_square_bound(int(enough.sum()))


def test_a_pick_kept_before_the_digits_run_out_conditions_the_rest():
    # At exponent 30 the first document has all but 1e-9 of the mass: it comes first, the second
    # next but for a share of (2/3)^30, and nothing is drawn twice.
    zipf, rng = Zipf(6, 30.0), np.random.default_rng(1)

    picks = zipf.draw_distinct(rng.random((10_000, 3)), rng)

    assert (picks[:, 0] == 0).all()
    assert (picks[:, 1] == 1).mean() > 0.999
    assert (np.sort(picks, axis=1)[:, 1:] != np.sort(picks, axis=1)[:, :-1]).all()


@settings(deadline=None, max_examples=60)
@given(
    docs=st.integers(1, 40),
    skew=st.floats(0, 1e6),
    share=st.floats(0, 1),
    seed=st.integers(0, 1_000),
)
def test_distinct_draws_are_distinct_documents_of_the_pool(docs, skew, share, seed):
    wanted = max(1, round(share * docs))
    rng = np.random.default_rng(seed)

    picks = Zipf(docs, skew).draw_distinct(rng.random((50, wanted)), rng)

    assert picks.min() >= 0
    assert picks.max() < docs
    assert all(len(set(row)) == wanted for row in picks.tolist())


def test_equal_uniforms_give_lower_ranks_at_higher_exponents():
    uniforms = np.random.default_rng(2).random(10_000)

    flat, steep = Zipf(1_000, 0.8).draw(uniforms), Zipf(1_000, 1.2).draw(uniforms)

    assert (steep <= flat).all()


def test_exponent_zero_is_uniform():
    assert Zipf(4, 0).probabilities().tolist() == [0.25] * 4


@pytest.mark.parametrize("skew", [-0.1, math.nan, math.inf])
def test_impossible_exponents_are_refused(skew):
    with pytest.raises(UsageError, match="exponent"):
        Zipf(10, skew)


def test_more_distinct_documents_than_the_pool_has_are_refused():
    rng = np.random.default_rng(0)

    with pytest.raises(UsageError, match="6 distinct documents per request from a pool of 5"):
        Zipf(5, 1.0).draw_distinct(rng.random((2, 6)), rng)


def test_a_pool_too_large_for_memory_is_refused():
    with pytest.raises(UsageError, match="pool"):
        Zipf(10**9, 1.0)
