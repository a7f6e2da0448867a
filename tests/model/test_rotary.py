"""Rotary tables: what is read from a configuration, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from kvtool.errors import ModelError
from kvtool.model.huggingface import read_config
from kvtool.model.spec import Rotary

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "vocab_size": 1000,
    "max_position_embeddings": 16384,
    "torch_dtype": "bfloat16",
}


def tables(fields: dict[str, Any]) -> tuple[Rotary, ...]:
    return read_config({**LLAMA, **fields}, "test", "config.json")[0].rotary


@pytest.mark.parametrize(
    "fields",
    [{"rope_theta": 1e11}, {"rope_parameters": {"rope_theta": 1e11, "rope_type": "default"}}],
    ids=["flat", "nested"],
)
def test_a_base_of_falcon_h1_is_read_wherever_it_stands(fields: dict[str, Any]) -> None:
    """tiiuae/Falcon-H1 has 1e11. Flat it was refused, nested it was dropped without a word."""
    assert [table.theta for table in tables(fields)] == [1e11]


def test_yarn_is_read_with_its_factor_and_the_positions_it_counts_from() -> None:
    scaling = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 4096}

    (table,) = tables({"rope_scaling": scaling})

    assert (table.scaling, table.factor, table.original) == ("yarn", 4.0, 4096)


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"type": "yarn", "factor": "40"}, "rope_scaling.factor is '40'"),
        ({"type": "linear", "factor": -2}, "rope_scaling.factor is -2"),
        (
            {"type": "yarn", "factor": 2, "original_max_position_embeddings": "4k"},
            "original_max_position_embeddings is '4k'",
        ),
        ({"rope_type": "default", "rope_theta": 0}, "rope_theta is 0"),
    ],
    ids=["text", "negative", "positions", "base"],
)
def test_a_figure_that_is_no_positive_number_is_refused(
    scaling: dict[str, Any], named: str
) -> None:
    """These became 1, or nothing, without a word."""
    with pytest.raises(ModelError, match=f"{named}, not a positive number"):
        tables({"rope_scaling": scaling})
