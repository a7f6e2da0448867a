"""Rotation against transformers' own code, and against the precision of its angles."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.errors import UsageError
from kvtool.kernels.rope import Rope, from_parameters, rotate, rows

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
}
MODELS = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": LLAMA3,
    "llama3-partial": LLAMA3 | {"partial_rotary_factor": 0.5},
    "yarn": YARN,
    "yarn-betas": YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.25},
    "yarn-mscale": YARN | {"mscale": 0.707, "mscale_all_dim": 1.0, "factor": 40.0},
    "yarn-untruncated": YARN | {"truncate": False},
}


def config(parameters: dict[str, object]) -> object:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        head_dim=128,
        max_position_embeddings=131072,
        rope_parameters=dict(parameters),
    )


@pytest.mark.parametrize("name", MODELS)
def test_frequencies_and_factor_equal_those_of_transformers(name):
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    theirs = LlamaRotaryEmbedding(config(MODELS[name]))

    ours = from_parameters(128, MODELS[name])

    torch.testing.assert_close(torch.tensor(ours.inv_freq), theirs.inv_freq, rtol=2e-6, atol=0)
    assert ours.attention_factor == pytest.approx(theirs.attention_scaling)


@pytest.mark.parametrize("name", ["default", "llama3", "yarn"])
def test_rotated_halves_equal_those_of_transformers(name):
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    theirs = LlamaRotaryEmbedding(config(MODELS[name]))
    x = torch.randn(1, 100, 2, 128, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(100)
    cos, sin = theirs(x, positions[None])
    expected, _ = apply_rotary_pos_emb(x, x, cos, sin, unsqueeze_dim=2)

    rope = from_parameters(128, MODELS[name])
    turned = rotate(x, positions, rope, rope.attention_factor)

    torch.testing.assert_close(turned, expected, rtol=1e-4, atol=1e-4)


def test_interleaved_pairs_equal_those_of_gpt_j():
    from transformers.models.gptj.modeling_gptj import (
        apply_rotary_pos_emb,
        create_sinusoidal_positions,
    )

    x = torch.randn(1, 100, 2, 64, generator=torch.Generator().manual_seed(0))
    sin, cos = create_sinusoidal_positions(100, 64).chunk(2, dim=-1)
    expected = apply_rotary_pos_emb(x, sin[None], cos[None])

    rope = from_parameters(64, {"rope_theta": 10000.0}, interleaved=True)
    turned = rotate(x, torch.arange(100), rope)

    torch.testing.assert_close(turned, expected, rtol=1e-4, atol=1e-4)


def test_dimensions_beyond_the_rotary_ones_pass_unchanged():
    rope = from_parameters(64, {"rope_theta": 10000.0, "partial_rotary_factor": 0.25})
    x = torch.randn(5, 2, 64, generator=torch.Generator().manual_seed(0))

    turned = rotate(x, torch.arange(5), rope, factor=2.0)

    assert rope.rotary_dim == 16
    assert torch.equal(turned[..., 16:], x[..., 16:])


def test_rows_at_a_million_are_exact_where_float32_angles_are_not():
    """A float32 angle near 1,000,000 keeps 4 bits behind the point."""
    rope = from_parameters(128, {"rope_theta": 10000.0})
    position = torch.tensor([999_999])
    exact = (position.double()[:, None] * torch.tensor(rope.inv_freq, dtype=torch.float64)).cos()
    in_float32 = (position.float()[:, None] * torch.tensor(rope.inv_freq)).cos()

    c, _ = rows(rope, position, 128)

    assert (c.float()[:, :64] - exact).abs().max() < 1e-7
    assert (in_float32 - exact).abs().max() > 1e-2


@settings(max_examples=50, deadline=None)
@given(
    m=st.integers(0, 1_000_000),
    n=st.integers(0, 1_000_000),
    shift=st.integers(-100_000, 100_000),
    interleaved=st.booleans(),
)
def test_scores_depend_on_the_distance_alone(m, n, shift, interleaved):
    rope = from_parameters(32, {"rope_theta": 10000.0}, interleaved=interleaved)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, 32, dtype=torch.float64, generator=generator) for _ in range(2))

    def score(i: int, j: int) -> float:
        return (
            (rotate(q, torch.tensor([i]), rope) * rotate(k, torch.tensor([j]), rope)).sum().item()
        )

    assert score(m, n) == pytest.approx(score(m + shift, n + shift), abs=1e-8)


def test_the_attention_factor_is_no_part_of_the_rotation():
    rope = from_parameters(128, YARN)

    c, s = rows(rope, torch.arange(0, 200_000, 997), 128)

    assert rope.attention_factor > 1.3
    torch.testing.assert_close(c**2 + s**2, torch.ones_like(c))


@pytest.mark.parametrize(
    ("keys", "expected"), [("local", 1.5), ("unrotated", 2.25)], ids=["local", "unrotated"]
)
def test_the_query_carries_the_factor_that_stored_keys_lack(keys, expected):
    assert Rope((1.0,), attention_factor=1.5, keys=keys).query_factor == expected


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "mrope"])
def test_frequencies_that_depend_on_the_request_are_refused_by_name(kind):
    parameters = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}

    with pytest.raises(UsageError, match=f"'{kind}' cannot serve documents") as error:
        from_parameters(64, parameters)

    assert "would be wrong" in error.value.hint


def test_sections_of_positions_are_refused_whatever_the_type_says():
    parameters = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [16, 24, 24]}

    with pytest.raises(UsageError, match="'mrope'"):
        from_parameters(128, parameters)


def test_an_unknown_type_is_an_error_that_lists_the_known_ones():
    with pytest.raises(UsageError, match="'spiral' is unknown") as error:
        from_parameters(64, {"rope_type": "spiral", "rope_theta": 10000.0})

    assert "llama3" in error.value.hint


def test_scaling_without_its_original_length_is_an_error():
    parameters = {n: v for n, v in YARN.items() if n != "original_max_position_embeddings"}

    with pytest.raises(UsageError, match="original_max_position_embeddings"):
        from_parameters(64, parameters)
