"""flash against the float64 reference: prefill and decode, both paths."""

from __future__ import annotations

import pytest
import torch

from kvtool.errors import UsageError
from kvtool.kernels import load

DTYPES = (
    [torch.bfloat16, torch.float16, torch.float32]
    if torch.cuda.is_available()
    else [torch.float16, torch.float32]
)
"""Triton's interpreter computes bfloat16 products wrongly; they are checked on a GPU."""
PATHS = ["torch", "triton"]
FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("heads", [(2, 2), (8, 2)], ids=["mha", "gqa"])
def test_prefill_of_an_odd_length_equals_the_reference(batch, check, path, dtype, causal, heads):
    inputs = batch(lens=[111, 111], queries=111, heads=heads, dtype=dtype, causal=causal)

    check("flash", inputs, path=path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dim", [16, 64, 80, 96, 128, 256])
def test_prefill_equals_the_reference_for_every_head_dim(batch, check, path, dim):
    inputs = batch(lens=[150], queries=70, heads=(2, 1), dim=dim, dtype=torch.float16)

    check("flash", inputs, path=path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("block", [0, 16, 64])
def test_prefill_of_ragged_sequences_equals_the_reference(batch, check, path, block):
    inputs = batch(
        lens=[150, 63, 1, 129], queries=129, q_lens=[100, 63, 1, 129], heads=(2, 1), block=block
    )

    check("flash", inputs, path=path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("window", [1, 17, 64, 1000])
def test_prefill_sees_the_last_window_of_keys(batch, check, path, window):
    inputs = batch(lens=[200, 130], queries=130, heads=(2, 1), window=window)

    check("flash", inputs, path=path)


@pytest.mark.parametrize("path", PATHS)
def test_more_queries_than_keys_leave_the_first_rows_zero(batch, check, path):
    inputs = batch(lens=[30, 0], queries=70, heads=(2, 1))

    check("flash", inputs, path=path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("group", "block"), [(1, 0), (4, 16), (8, 64), (32, 16)])
def test_decode_of_ragged_sequences_equals_the_reference(batch, check, path, dtype, block, group):
    inputs = batch(
        lens=[700, 1, 15, 17, 0, 129],
        queries=1,
        heads=(group * 2, 2) if group < 32 else (32, 1),
        dtype=dtype,
        block=block,
    )

    check("flash", inputs, path=path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
def test_decode_equals_the_reference_for_every_head_dim(batch, check, path, dim):
    inputs = batch(lens=[333, 70], queries=1, dim=dim, block=16, dtype=torch.float16)

    check("flash", inputs, path=path)


@pytest.mark.parametrize("path", PATHS)
def test_several_queries_per_sequence_decode_causally(batch, check, path):
    inputs = batch(lens=[333, 5], queries=5, q_lens=[5, 2], heads=(6, 2), block=16)

    check("flash", inputs, path=path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("queries", [1, 70], ids=["decode", "prefill"])
@pytest.mark.parametrize("window", [None, 60], ids=["full", "window"])
def test_sinks_and_alibi_enter_the_softmax(batch, check, path, queries, window):
    inputs = batch(
        lens=[333, 90],
        queries=queries,
        block=16,
        window=window,
        sinks=torch.tensor([0.5, -1.0, 3.0, 8.0]),
        alibi_slopes=torch.tensor([0.5, 0.25, 0.125, 0.0]),
    )

    check("flash", inputs, path=path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kv_dtype", FP8, ids=str)
@pytest.mark.parametrize("queries", [1, 70], ids=["decode", "prefill"])
@pytest.mark.parametrize("scale", [0.5, "per head"])
def test_an_fp8_cache_is_multiplied_by_its_scales(batch, check, path, kv_dtype, queries, scale):
    scales = torch.tensor([0.5, 2.0]) if scale == "per head" else scale
    inputs = batch(
        lens=[333, 90],
        queries=queries,
        block=16,
        dtype=DTYPES[0],
        kv_dtype=kv_dtype,
        k_scale=scales,
        v_scale=scales,
    )

    check("flash", inputs, path=path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("queries", [1, 130], ids=["decode", "prefill"])
def test_repeated_calls_are_bit_identical(batch, path, queries):
    inputs = batch(lens=[400, 333], queries=queries, heads=(2, 1), block=16, dtype=DTYPES[0])
    flash = load("flash")
    plan = flash.plan(inputs.q, inputs.k, inputs.v, **inputs.options, path=path)

    outputs = [
        flash.attention(inputs.q, inputs.k, inputs.v, **inputs.options, plan=plan)
        for _ in range(20 if torch.cuda.is_available() else 3)
    ]

    assert all(torch.equal(o, outputs[0]) for o in outputs)


def test_flash_refuses_documents(batch):
    inputs = batch(docs=[[10, 20]], queries=1)

    with pytest.raises(UsageError, match="not documents"):
        load("flash").attention(inputs.q, inputs.k, inputs.v, **inputs.options)
