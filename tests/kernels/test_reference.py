"""The judge itself, against torch's float64 attention and against a loop over single scores."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kvtool.kernels import load
from kvtool.kernels.rope import from_parameters, rotate


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("block", [0, 16])
def test_reference_equals_torch_in_float64(batch, causal, block):
    inputs = batch(lens=[90, 90], queries=90, heads=(6, 2), causal=causal, block=block)
    k, v = inputs.k, inputs.v
    if block:
        table = inputs.options["block_table"].long()
        k, v = (x[table].flatten(1, 2)[:, :90] for x in (k, v))
    q, k, v = (x.double().transpose(1, 2) for x in (inputs.q, k, v))
    expected = scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    o = load("reference").attention(inputs.q, inputs.k, inputs.v, **inputs.options)

    torch.testing.assert_close(o, expected.transpose(1, 2), rtol=1e-12, atol=1e-12)


def test_window_sinks_and_alibi_as_written_down(batch):
    """One row at a time: exp of each visible score over their sum and exp(sink)."""
    inputs = batch(
        lens=[40],
        queries=7,
        heads=(2, 1),
        window=9,
        sinks=torch.tensor([0.3, -2.0]),
        alibi_slopes=torch.tensor([0.5, 0.1]),
        sm_scale=0.2,
        k_scale=2.0,
        v_scale=3.0,
    )
    sinks, slopes = inputs.options["sinks"].tolist(), inputs.options["alibi_slopes"].tolist()

    o = load("reference").attention(inputs.q, inputs.k, inputs.v, **inputs.options)

    for t in range(7):
        position = 40 - 7 + t
        for h in range(2):
            total, acc = math.exp(sinks[h]), torch.zeros(32, dtype=torch.float64)
            for j in range(position - 8, position + 1):
                dot = (inputs.q[0, t, h].double() @ inputs.k[0, j, 0].double()).item()
                weight = math.exp(0.2 * 2.0 * dot + slopes[h] * (j - position))
                total += weight
                acc += weight * 3.0 * inputs.v[0, j, 0].double().cpu()
            torch.testing.assert_close(o[0, t, h].cpu(), acc / total, rtol=1e-6, atol=1e-6)


def test_documents_are_the_concatenation_with_every_key_at_its_position(batch):
    """Block-diagonal keys: each document was read alone, then put where the request has it."""
    rope = from_parameters(32, {"rope_theta": 10000.0})
    inputs = batch(docs=[[20, 30, 15]], queries=15, rope=rope)
    positions = torch.arange(65, device=inputs.q.device)
    offsets = torch.tensor([0] * 20 + [20] * 30 + [50] * 15, device=inputs.q.device)
    q = rotate(inputs.q[0].double(), positions[50:], rope)[None]
    k = rotate(inputs.k[0].double(), offsets, rope)[None]
    expected = scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        inputs.v.double().transpose(1, 2),
        attn_mask=positions[50:, None] >= positions,
        enable_gqa=True,
    )

    o = load("reference").attention(inputs.q, inputs.k, inputs.v, **inputs.options)

    torch.testing.assert_close(o, expected.transpose(1, 2), rtol=1e-10, atol=1e-10)


def test_a_query_that_sees_no_key_has_output_zero(batch):
    inputs = batch(lens=[3, 0], queries=5)

    o = load("reference").attention(inputs.q, inputs.k, inputs.v, **inputs.options)

    assert not o[0, :2].any()
    assert not o[1].any()
    assert o[0, 2:].abs().min() > 0
