"""Quantiles, rotation and the order of turns."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvtool.benchmark import timing
from kvtool.benchmark.timing import Timing, input_sets_needed, measure, quantile

CPU = torch.device("cpu")


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=30), st.floats(0, 1))
def test_quantiles_agree_with_numpy(values, share):
    numpy = pytest.importorskip("numpy")

    assert quantile(values, share) == pytest.approx(float(numpy.quantile(values, share)))


@given(st.integers(1, 1 << 32), st.integers(1, 1 << 27))
def test_rotating_sets_exceed_five_times_the_cache(set_bytes, l2_bytes):
    sets = input_sets_needed(set_bytes, l2_bytes)

    assert sets >= 2
    assert sets * set_bytes >= 5 * l2_bytes
    assert sets == 2 or (sets - 1) * set_bytes < 5 * l2_bytes


def test_percentiles_are_those_of_the_samples():
    found = Timing((6.0, 1.0, 5.0, 2.0, 4.0, 3.0), "cpu-clock", 1, 1)

    assert (found.p20_s, found.median_s, found.p80_s) == (2.0, 3.5, 5.0)


def test_every_input_set_is_used_and_order_alternates(monkeypatch):
    monkeypatch.setattr(timing, "MIN_SAMPLE_S", 0.0)
    seen = []
    calls = {name: [lambda n=name, i=i: seen.append((n, i)) for i in range(2)] for name in "ab"}

    found = measure(calls, device=CPU, budget_s=0.0, max_samples=2)
    turns = [name for name, index in seen if index == 0]

    assert {index for _, index in seen} == {0, 1}
    assert turns[-4:] == ["a", "b", "b", "a"]
    assert found["a"].input_sets == found["a"].calls_per_sample == 2


def test_a_short_budget_still_takes_the_least_number_of_samples():
    found = measure({"a": [lambda: None]}, device=CPU, budget_s=0.0, max_samples=1000)

    assert len(found["a"].samples_s) == timing.MIN_SAMPLES
    assert found["a"].timer == "cpu-clock"


def test_samples_are_long_enough_for_the_clock():
    found = measure({"a": [lambda: None]}, device=CPU, budget_s=0.0, max_samples=3)["a"]

    assert found.calls_per_sample > 100
    assert found.median_s < 1e-5
