"""Configurations with one field damaged: read, or refused by name, never a crash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kvtool.catalog import card_names, load_card
from kvtool.errors import ModelError
from kvtool.model.huggingface import read_config
from kvtool.model.weights import parameters

JUNK: tuple[object, ...] = ("zzz", -3, 1.5, 10**40, True, [1], ["zzz"], {}, None)

# One card for each type of model.
CARDS = {load_card(name).config.get("model_type"): name for name in card_names()}


def damaged(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The configuration with each field, nested ones included, replaced by each piece of junk."""
    for name, value in config.items():
        for junk in JUNK:
            yield {**config, name: junk}
        if isinstance(value, list):
            yield {**config, name: value[:-1]}
        if isinstance(value, Mapping):
            for inner in damaged(value):
                yield {**config, name: inner}


def outcome(config: Mapping[str, Any]) -> str:
    """`refused`, or `read` with a number of parameters that can be."""
    try:
        spec, _ = read_config(config, "damaged", "config.json")
    except ModelError:
        return "refused"
    return "read" if not spec.weights_known or parameters(spec) >= 0 else "read as nonsense"


@pytest.mark.parametrize("name", CARDS.values())
def test_a_damaged_field_is_read_or_refused(name: str) -> None:
    outcomes = {outcome(config) for config in damaged(load_card(name).config)}

    assert "refused" in outcomes
    assert outcomes <= {"read", "refused"}
