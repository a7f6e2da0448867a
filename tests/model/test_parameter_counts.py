"""Parameters of the cards against transformers' own classes on the meta device.

The golden file is made by `tests/oracles/transformers_oracle.py counts --cards`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvtool.catalog import load_card
from kvtool.model.weights import parameters

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "parameter_counts.json").read_text("utf-8")
)

# Where transformers' class and the published checkpoint are not the same model: parameters that
# the checkpoint has more.
UNTIED = "transformers 5 ties T5's head to its embedding; v1.1 and FLAN checkpoints hold their own"
FLAT = "transformers takes the vocabulary from a text_config, which this configuration has not"
ELSEWHERE = {
    "flan-t5-large": (32_128 * 1024, UNTIED),
    "flan-t5-xxl": (32_128 * 4096, UNTIED),
    "t5-v1.1-xl": (32_128 * 2048, UNTIED),
    "step-3.7-flash": (2 * (128_896 - 128_815) * 4096, FLAT),
    "step-3.7-flash-fp8": (2 * (128_896 - 128_815) * 4096, FLAT),
}


def text_parameters(spec) -> int:
    layers = sum(weight.elements for layer in spec.layers for weight in layer.weights)
    return layers + sum(weight.elements for weight in (*spec.embedding, *spec.head))


def test_more_than_forty_model_types_are_compared():
    types = {load_card(name).spec().model_type for name in GOLDEN["models"]}

    assert len(types) >= 40


@pytest.mark.parametrize("name", sorted(GOLDEN["models"]))
def test_parameters_equal_those_of_transformers(name):
    spec, counted = load_card(name).spec(), GOLDEN["models"][name]
    whole = counted["total"] is not None and (spec.encoder or counted["total"] == counted["text"])

    mine = parameters(spec) if whole else text_parameters(spec)

    more, _ = ELSEWHERE.get(name, (0, ""))
    assert mine == (counted["total"] if whole else counted["text"]) + more
