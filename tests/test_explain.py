"""The formulas of `--explain`: with the numbers in place, they give the figure."""

from __future__ import annotations

import ast
import operator
import re
from typing import Any

import pytest

import kvtool
from kvtool.catalog import card_names, load_card

OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}

# One card for each type of model.
CARDS = {load_card(name).config.get("model_type"): name for name in card_names()}


def worked_out(numbers: str) -> float:
    """The value of `2 x 80 x 8 x 128 x 2 x 32,768`."""
    plain = re.sub(r"(?<=\d),(?=\d)", "", numbers).replace(" x ", " * ")
    return value(ast.parse(plain, mode="eval").body)


def value(node: Any) -> float:
    if isinstance(node, ast.BinOp):
        return OPERATIONS[type(node.op)](value(node.left), value(node.right))
    if isinstance(node, ast.Call):
        return max(*map(value, node.args))
    return ast.literal_eval(node)


@pytest.mark.parametrize("options", [
    {}, {"kv_dtype": "int8"}, {"kv_dtype": "fp8", "batch": 3}, {"gpu": "h200"},
], ids=["plain", "scales", "batch", "device"])  # fmt: skip
@pytest.mark.parametrize("name", CARDS.values())
def test_numbers_in_place_give_the_figure(name: str, options: dict[str, Any]) -> None:
    report = kvtool.size(name, ctx=5000, encoder_tokens=1500, explain=True, **options)

    for line in report.results[0]["explain"]:
        if line["numbers"]:
            assert worked_out(line["numbers"]) == pytest.approx(line["value"], rel=1e-9, abs=1)


def test_a_scale_per_head_stands_beside_its_elements() -> None:
    """llama-3-70b with int8: 80 layers, 8 heads, 128 elements and a float32 scale on each side."""
    report = kvtool.size("llama-3-70b", ctx="32k", kv_dtype="int8", explain=True)

    first = report.results[0]["explain"][0]
    assert first["numbers"] == "80 x 8 x (128 x 1 + 4 + 128 x 1 + 4) x 32,768"


@pytest.mark.parametrize("name", ["llama-3-70b", "gemma-3-27b", "qwen3-next-80b-a3b"])
def test_numbers_of_a_rank_give_its_figure(name: str) -> None:
    report = kvtool.size(name, ctx=5000, tp=2, explain=True)

    for line in report.results[0]["explain"]:
        assert worked_out(line["numbers"]) == pytest.approx(line["value"], rel=1e-9, abs=1)
