"""Prompts: order, duplicates, cold documents, lengths, and seeds that leave each other alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.errors import UsageError
from kvtool.workload.documents import DUPLICATES, ORDERS, DocumentWorkload, draw_requests
from kvtool.workload.lengths import Lengths, parse_lengths

SMALL = DocumentWorkload(docs=40, docs_per_request=6, requests=300)


def prompts(workload: DocumentWorkload, seed: int = 0) -> list[list[int]]:
    requests = draw_requests(workload, (seed,))
    return [part.tolist() for part in np.split(requests.docs, requests.starts[1:-1])]


def test_the_same_seed_gives_the_same_requests_and_another_seed_others():
    assert prompts(SMALL, 1) == prompts(SMALL, 1)
    assert prompts(SMALL, 1) != prompts(SMALL, 2)


def test_fewer_requests_are_the_first_of_more():
    assert prompts(replace(SMALL, requests=50)) == prompts(SMALL)[:50]


def test_order_and_lengths_leave_the_draws_alone():
    drawn = prompts(SMALL)

    shuffled = prompts(replace(SMALL, order="shuffled", lengths=Lengths(5, 90)))

    assert shuffled != drawn
    assert [sorted(p) for p in shuffled] == [sorted(p) for p in drawn]


def test_cold_documents_leave_the_popular_ones_alone():
    hot = prompts(replace(SMALL, docs_per_request=4))

    mixed = prompts(replace(SMALL, cold=2))

    assert [p[:4] for p in mixed] == hot


def test_ranked_prompts_rise_in_rank():
    assert all(p == sorted(p) for p in prompts(replace(SMALL, order="ranked")))


def test_dropped_repeats_shorten_the_prompt_and_kept_ones_are_marked():
    steep = replace(SMALL, skew=2.5)
    kept = draw_requests(replace(steep, duplicates="keep"), (0,))

    dropped = prompts(replace(steep, duplicates="drop"))

    by_prompt = np.split(kept.docs, kept.starts[1:-1])
    assert dropped == [list(dict.fromkeys(p.tolist())) for p in by_prompt]
    assert kept.repeats.sum() == sum(len(p) - len(set(p.tolist())) for p in by_prompt)


@settings(deadline=None, max_examples=80)
@given(
    docs=st.integers(6, 30),
    cold=st.integers(0, 6),
    skew=st.floats(0, 4),
    order=st.sampled_from(ORDERS),
    duplicates=st.sampled_from(DUPLICATES),
    seed=st.integers(0, 99),
)
def test_prompts_have_the_documents_that_were_asked_for(docs, cold, skew, order, duplicates, seed):
    workload = DocumentWorkload(
        docs, 6, skew, cold, order, duplicates, requests=30, lengths=Lengths(3, 9)
    )

    requests = draw_requests(workload, (seed,))

    lengths = np.diff(requests.starts)
    assert requests.docs.min() >= 0
    assert requests.docs.max() < docs
    if duplicates == "keep" or duplicates == "distinct" or cold:
        assert (lengths == 6).all()
    if duplicates != "keep":
        assert not requests.repeats.any()
        assert all(
            len(set(p.tolist())) == len(p) for p in np.split(requests.docs, requests.starts[1:-1])
        )
    length_of = {}
    for doc, tokens in zip(requests.docs.tolist(), requests.tokens.tolist(), strict=True):
        assert length_of.setdefault(doc, tokens) == tokens


@pytest.mark.parametrize("cold", [0, 20, 40])
def test_prompts_of_nearly_the_whole_pool_are_distinct(cold):
    for prompt in prompts(replace(SMALL, docs_per_request=40, cold=cold, requests=20)):
        assert sorted(prompt) == list(range(40))


def test_cold_documents_are_uniform_over_the_rest():
    workload = DocumentWorkload(docs=10, docs_per_request=2, skew=50.0, cold=1, requests=40_000)

    second = draw_requests(workload, (3,)).docs[1::2]

    # The popular draw is always document 0; the cold one is each of the others a ninth of the time.
    counts = np.bincount(second, minlength=10)
    assert counts[0] == 0
    assert np.abs(counts[1:] - 40_000 / 9).max() < 5 * np.sqrt(40_000 / 9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"docs": 5}, "6 distinct documents"),
        ({"cold": 7}, "cold documents"),
        ({"docs": 5, "duplicates": "drop", "cold": 1}, "distinct documents"),
        ({"skew": -1.0}, "exponent"),
    ],
    ids=["distinct", "cold", "drop-and-fill", "exponent"],
)
def test_impossible_workloads_are_refused(change, message):
    with pytest.raises(UsageError, match=message):
        replace(SMALL, **change)


@pytest.mark.parametrize("text", ["1024", "uniform:200..800", "lognormal:1000,0.5"])
def test_lengths_print_as_they_are_typed(text):
    assert str(parse_lengths(text)) == text


@pytest.mark.parametrize(
    "text", ["", "0", "uniform:8..2", "uniform:8", "lognormal:5", "lognormal:5,-1", "zipf:2", "x"]
)
def test_impossible_lengths_are_refused(text):
    with pytest.raises(UsageError):
        parse_lengths(text)


def test_lognormal_lengths_have_the_mean_that_is_typed():
    tokens = parse_lengths("lognormal:1000,0.5").draw(200_000, np.random.default_rng(0))

    assert tokens.mean() == pytest.approx(1000, rel=0.01)
    assert np.log(tokens).std() == pytest.approx(0.5, abs=0.01)


def test_uniform_lengths_reach_both_ends():
    tokens = parse_lengths("uniform:3..5").draw(1_000, np.random.default_rng(0))

    assert set(tokens.tolist()) == {3, 4, 5}
