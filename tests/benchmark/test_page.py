"""The published page is what its JSON says."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "docs" / "benchmarks" / "h200.json"


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location(
        "attention_page", ROOT / "benchmarks" / "attention_page.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def document():
    return json.loads(SOURCE.read_text(encoding="utf-8"))


def test_the_page_is_generated_from_its_file(generator, document):
    written = (SOURCE.parent / "attention.md").read_text(encoding="utf-8")

    assert generator.page(generator.Run(document), "h200.json", "h200.svg") == written


def test_every_row_of_the_file_that_has_a_speed_passed_its_gate(document):
    timed = [row for row in document["results"] if row.get("median_s") or row.get("total_s")]

    assert {row["gate"] for row in timed} == {"pass"}


def test_the_file_names_device_versions_and_roof(document):
    environment = document["environment"]

    assert environment["device"] == "NVIDIA H200"
    assert {"torch", "triton"} <= set(environment["versions"])
    assert environment["ceilings"]["matmul_flops_per_s"] > 1e14


def test_a_ratio_of_two_is_twice_as_fast(generator):
    assert generator.ratios({"a": 2.0, "b": 1.0}, {"a": 1.0}) == [2.0]


@pytest.mark.parametrize(
    ("found", "cell"), [([2.0, 0.5], "**no**"), ([2.0, 1.5], "yes"), ([], "not measured")]
)
def test_a_bar_that_is_missed_says_so(generator, found, cell):
    assert cell in generator.Bar("claim", found, min, 1.0).line()
