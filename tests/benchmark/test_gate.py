"""The gate lets eager torch through, and nothing that is wrong."""

import pytest
import torch

from kvtool.benchmark.gate import RELATIVE_BOUND, check, judge, poisoned

SHAPE = (2, 7, 4, 16)


@pytest.fixture
def exact():
    return torch.randn(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_rounded_reference_passes(exact, dtype):
    rounded = exact.to(getattr(torch, dtype))

    verdict = check(lambda: rounded, exact, rounded, dtype)

    assert verdict.passed
    assert verdict.gate == "pass"
    assert 0 < verdict.max_error <= verdict.allowed_error
    assert verdict.relative_error < RELATIVE_BOUND[dtype]


def with_spike(exact, error):
    """Float16 with one element off by `error`, which hardly moves the norm."""
    out = exact.clone()
    out[0, 0, 0, 0] += error
    return out.half()


@pytest.mark.parametrize(("error", "faults"), [(0.015, 0), (0.05, 1)], ids=["under", "over"])
def test_a_kernel_may_be_twice_as_wrong_as_eager_code_and_no_more(exact, error, faults):
    verdict = judge(with_spike(exact, error), exact * 1.0, with_spike(exact, 0.01), "float16")

    largest = [fault for fault in verdict.faults if fault.startswith("error")]
    assert len(largest) == faults


def test_a_bad_eager_code_does_not_excuse_a_bad_kernel(exact):
    wrong = exact.half() * 1.5

    verdict = judge(wrong, exact, wrong, "float16")

    assert verdict.faults == (f"relative error {verdict.relative_error:.2e} exceeds 1e-03",)


def test_a_row_that_is_never_written_fails(exact):
    def forgetful():
        out = torch.empty(SHAPE, dtype=torch.float32)
        out[:, :-1] = exact[:, :-1]
        return out

    verdict = check(forgetful, exact, exact.float(), "float32")

    assert verdict.faults == ("128 elements are not finite",)
    assert verdict.max_error is None


def test_uninitialised_memory_is_nan_inside_and_settings_return_after():
    before = torch.are_deterministic_algorithms_enabled()

    with poisoned():
        inside = torch.empty(64), torch.empty_like(torch.ones(8, dtype=torch.bfloat16))

    assert all(bool(t.isnan().all()) for t in inside)
    assert torch.are_deterministic_algorithms_enabled() is before


def test_a_wrong_shape_fails_without_broadcasting(exact):
    verdict = judge(exact[:1].float(), exact, exact.float(), "float32")

    assert verdict.faults == ("shape (1, 7, 4, 16) instead of (2, 7, 4, 16)",)


def nudged(exact, at, by):
    """A call whose output changes by `by` in one element, the `at`-th time."""
    calls = iter(range(100))

    def call():
        out = exact.float().clone()
        out[0, 0, 0, 0] += by if next(calls) == at else 0.0
        return out

    return call


def test_a_single_wrong_bit_in_twenty_repeats_is_a_race(exact):
    verdict = check(nudged(exact, at=15, by=1e-6), exact, exact.float(), "float32")

    assert verdict.faults == ("1 of 20 repeats differ from the first",)


def test_a_peer_may_change_bits_within_the_bounds_and_is_counted(exact):
    call = nudged(exact, at=15, by=1e-6)

    verdict = check(call, exact, exact.float(), "float32", same_bits=False)

    assert verdict.passed
    assert verdict.differing_repeats == 1


def test_a_peer_that_is_wrong_once_in_twenty_fails(exact):
    call = nudged(exact, at=15, by=1e-3)

    verdict = check(call, exact, exact.float(), "float32", same_bits=False)

    assert "exceeds" in verdict.faults[0]


def test_an_output_that_reuses_its_buffer_is_compared_with_its_first_bits(exact):
    buffer = exact.float()

    verdict = check(lambda: buffer.add_(1e-6), exact, exact.float(), "float32", repeats=3)

    assert verdict.differing_repeats == 3
