"""Closed forms against published and computed values, and LRU runs against Che."""

from __future__ import annotations

import numpy as np
import pytest

from kvtool.curve import bytes_needed
from kvtool.theory import (
    che_hit_rate,
    king_hit_rate,
    lazy_hit_rate,
    lazy_over_position_aware,
    static_optimum,
)
from kvtool.workload.documents import DocumentWorkload
from kvtool.workload.zipf import Zipf

# Bounded Zipf of K documents, exponent a, cache of C: King's exact sum and Che's approximation,
# computed from the formulas by an independent program.
KING = [
    (5, 1.0, 2, 0.518885, 0.510826),
    (6, 1.2, 3, 0.687237, 0.687697),
    (8, 0.8, 4, 0.609041, 0.608139),
    (8, 1.2, 3, 0.598516, 0.596170),
]
# One million documents, from the same program.
CHE = [
    (1.0, 1_000, 0.40310),
    (1.0, 10_000, 0.58514),
    (1.0, 100_000, 0.77936),
    (1.2, 1_000, 0.75962),
    (1.2, 10_000, 0.87536),
    (1.2, 100_000, 0.94981),
]
TOP = [
    (10_000, 0.8, 0.36241),
    (10_000, 1.0, 0.68004),
    (10_000, 1.2, 0.90960),
    (100_000, 0.8, 0.60907),
    (100_000, 1.0, 0.84002),
    (100_000, 1.2, 0.96503),
]


@pytest.mark.parametrize(("docs", "skew", "capacity", "king", "che"), KING)
def test_king_and_che_on_small_pools(docs, skew, capacity, king, che):
    probabilities = Zipf(docs, skew).probabilities()

    assert king_hit_rate(probabilities, capacity) == pytest.approx(king, abs=1e-6)
    assert che_hit_rate(probabilities, capacity) == pytest.approx(che, abs=1e-6)


@pytest.mark.parametrize(("skew", "capacity", "rate"), CHE)
def test_che_on_a_million_documents(skew, capacity, rate):
    assert che_hit_rate(Zipf(1_000_000, skew).probabilities(), capacity) == pytest.approx(
        rate, abs=1e-5
    )


@pytest.mark.parametrize(("capacity", "skew", "mass"), TOP)
def test_mass_of_the_most_popular(capacity, skew, mass):
    found = static_optimum(Zipf(1_000_000, skew).probabilities(), capacity)

    assert found == pytest.approx(mass, abs=1e-5)


@pytest.mark.parametrize(
    ("docs", "skew", "capacity", "per_request", "ratio"),
    [
        (1_000, 1.0, 100, 5, 1.442),
        (1_000, 0.6, 100, 10, 3.112),
        (100_000, 0.853, 100, 20, 2.86),
        (100_000, 1.1, 100, 20, 1.99),
        (100_000, 1.5, 100, 20, 1.37),
        (100_000, 2.1, 100, 20, 1.09),
    ],
)
def test_closed_form_of_the_lazy_paper(docs, skew, capacity, per_request, ratio):
    # arXiv 2606.04302, Eq. 3; the last four with its D = 20 and C = 100.
    found = lazy_over_position_aware(docs, skew, capacity, per_request)

    assert found == pytest.approx(ratio, abs=0.006)


@pytest.mark.parametrize("skew", [0, 0.8, 1.0, 1.2, 2.1])
def test_lru_agrees_with_che_within_a_thousandth(skew):
    """K = 100,000, C = 1,000, one document a request, 1M requests, mean of 5 seeds."""
    zipf, requests = Zipf(100_000, skew), 1_000_000
    rates = []
    for seed in range(5):
        keys = zipf.draw(np.random.default_rng((17, seed)).random(requests))
        needed = bytes_needed(keys, 1)[requests // 5 :]
        rates.append((needed <= 1_000).mean())

    assert np.mean(rates) == pytest.approx(che_hit_rate(zipf.probabilities(), 1_000), abs=1e-3)


@pytest.mark.parametrize("skew", [0, 0.8, 1.2])
def test_grouped_ranks_move_che_by_less_than_a_millionth(skew):
    workload = DocumentWorkload(docs=300_000, docs_per_request=1, skew=skew)
    probabilities = Zipf(300_000, skew).probabilities()

    for capacity in (100, 10_000, 200_000):
        grouped = lazy_hit_rate(workload, capacity, whole_request=True)
        assert grouped == pytest.approx(che_hit_rate(probabilities, capacity), abs=1e-6)


@pytest.mark.parametrize("docs", [1, 7])
def test_everything_fits(docs):
    probabilities = Zipf(docs, 1.0).probabilities()

    assert king_hit_rate(probabilities, docs) == che_hit_rate(probabilities, docs) == 1.0


def test_uniform_popularity_hits_the_share_that_fits():
    uniform = Zipf(10, 0).probabilities()

    assert king_hit_rate(uniform, 4) == pytest.approx(0.4)
    assert che_hit_rate(uniform, 4) == pytest.approx(0.4)


@pytest.mark.parametrize("duplicates", ["distinct", "drop", "keep"])
@pytest.mark.parametrize("cold", [0, 3])
@pytest.mark.parametrize("whole", [True, False], ids=["request", "each"])
def test_che_with_several_documents_agrees_with_a_run(duplicates, cold, whole):
    from kvtool.reuse import document_accesses
    from kvtool.simulation.sample import lru_curve
    from kvtool.workload.documents import draw_requests

    workload = DocumentWorkload(
        docs=1_000, docs_per_request=6, skew=1.1, cold=cold, duplicates=duplicates, requests=20_000
    )
    accesses = document_accesses("lazy", draw_requests(workload, (4,)), lambda t: t // 1024, 16)

    curve = lru_curve(accesses, whole_request=whole, first=4_000)

    for documents in (60, 200):
        theory = lazy_hit_rate(workload, documents, whole_request=whole)
        assert curve.at(documents)[0] == pytest.approx(theory, abs=0.01)
