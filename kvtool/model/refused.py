"""Types that are known and refused: what they keep does not fit the states of `spec`."""

from __future__ import annotations

from kvtool.errors import ModelError
from kvtool.model.fields import Fields
from kvtool.model.spec import ModelSpec

# Source: the models' own code (transformers 5.24, or the hub).
REASONS = {
    "blt": "it caches patches of bytes, whose number depends on the text",
    "deepseek_v41": "its n-gram tables and the rows that its layers share are not read here",
    "gla": "its gated linear attention is not read here",
    "hymba": "its heads mix attention and Mamba around meta tokens, and some layers share",
    "plamo2": "its Mamba layers are not described in its configuration",
    "reformer": "it keeps hash buckets instead of keys and values",
    "retnet": "its retention states are not read here",
    "transfo-xl": "it keeps the hidden states of earlier segments instead of keys and values",
    "xlnet": "it keeps the hidden states of earlier segments instead of keys and values",
    "yuan": "its filters keep the last inputs beside keys and values, which are not read here",
}


def read(f: Fields) -> ModelSpec:
    """Raises ModelError with the reason; there is no model to return."""
    raise ModelError(
        f"{f.where}: model_type '{f.model_type}' is not supported: {REASONS[f.model_type]}",
        "kvtool does not guess how a model caches",
    )
