"""Rows: the promised keys, ratios and advice."""

import json

import pytest

from kvtool.benchmark.cases import Case, Heads
from kvtool.benchmark.contenders import ours
from kvtool.benchmark.gate import Verdict
from kvtool.benchmark.records import advice, remarks, row, with_baseline, with_ratios
from kvtool.benchmark.timing import Timing
from kvtool.roofline import Roof

PROMISED = {
    "kernel", "variant", "implementation", "path", "phase", "batch_size", "query_tokens",
    "context_tokens", "num_q_heads", "num_kv_heads", "head_dim", "dtype", "kv_dtype", "block_size",
    "median_s", "p20_s", "p80_s", "samples_s", "flops", "bytes", "executed_flops", "flops_per_s",
    "bytes_per_s", "roof", "roof_fraction", "max_error", "relative_error", "gate", "baseline",
    "speedup",
}  # fmt: skip
ROOF = Roof(flops_per_s=1e12, bandwidth_bytes_per_s=1e9)
CASE = Case("decode", 1, 1000, Heads(8, 2, 64, "toy"), "float16", "float16", 16, 64)
PASSED = Verdict(1e-4, 1e-3, 1e-4, ())


def record(name="flash", samples=(0.001,), verdict=PASSED):
    timing = Timing(tuple(samples), "cpu-clock", 1, 2) if samples else None
    return row(
        CASE,
        ours([name])[0],
        path="torch",
        variant=None,
        verdict=verdict,
        roof=ROOF,
        timing=timing,
        facts={},
    )


def test_a_row_has_the_promised_keys_and_is_json():
    found = record()

    assert set(found) >= PROMISED
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_rates_follow_from_the_task_and_the_median():
    found = record(samples=[0.002])

    # q and o: 2 x 8 x 64 x 2 B; k and v: 2 x 1000 x 2 x 64 x 2 B
    assert found["bytes"] == 2048 + 512_000
    assert found["bytes_per_s"] == pytest.approx(514_048 / 0.002)
    assert found["roof"] == "memory"
    assert found["roof_fraction"] == pytest.approx(514_048 / 1e9 / 0.002)


def test_a_failed_row_has_an_error_and_no_speed():
    found = record(samples=(), verdict=Verdict(0.5, 1e-3, 0.2, ("error 5.00e-01 exceeds",)))

    assert found["gate"] == "fail"
    assert found["max_error"] == 0.5
    assert found["median_s"] is found["flops_per_s"] is found["roof_fraction"] is None
    assert found["samples_s"] == []


def test_ratios_are_against_flash():
    found = with_ratios([record("cached", [0.004]), record("flash", [0.002])])

    assert [r["speedup"] for r in found] == [0.5, 1.0]
    assert {r["baseline"] for r in found} == {"flash"}


def test_without_flash_ratios_are_against_cached_then_the_first():
    assert with_ratios([record("lazy", [0.1]), record("cached", [0.2])])[0]["baseline"] == "cached"
    assert with_ratios([record("lazy", [0.1]), record("naive", [0.2])])[1]["baseline"] == "lazy"


def test_a_failed_baseline_is_no_baseline():
    failed = record("flash", (), Verdict(1.0, 0.1, 1.0, ("wrong",)))

    found = with_ratios([failed, record("cached", [0.2])])

    assert found[0]["speedup"] is None
    assert found[1]["baseline"] == "cached"


def test_an_earlier_file_is_matched_by_implementation_and_shape():
    earlier = [record("flash", [0.004]), record("cached", [0.008]) | {"batch_size": 7}]

    found = with_baseline(
        with_ratios([record("flash", [0.002]), record("cached", [0.002])]), earlier, "old.json"
    )

    assert (found[0]["baseline"], found[0]["speedup"]) == ("old.json", 2.0)
    assert (found[1]["baseline"], found[1]["speedup"]) == (None, None)


def test_repeats_that_differ_within_the_bounds_are_remarked():
    (line,) = remarks([record(), record() | {"differing_repeats": 7}])

    assert "7 repeats of the same input differ in their bits" in line


@pytest.mark.parametrize(
    ("samples", "lines"), [([1.0, 1.0, 1.01, 1.02], 0), ([1.0, 1.0, 1.5, 2.0], 1)]
)
def test_a_wide_spread_earns_advice(samples, lines):
    found = advice([record(samples=samples), record(samples=[1.0])])

    assert len(found) == lines
    assert all("1 of 2 rows" in line and "--samples" in line for line in found)
