"""On a GPU: real lengths, bfloat16, FlashAttention's own rule, and races."""

from __future__ import annotations

import pytest
import torch

from kvtool.kernels import load
from kvtool.kernels.rope import from_parameters

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BF16, FP16, E4M3, E5M2 = torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2
PAIRS = [
    (BF16, None, 64, (8, 8), 16),
    (BF16, None, 128, (8, 2), 64),
    (BF16, None, 96, (32, 1), 16),
    (BF16, None, 256, (8, 1), 64),
    (FP16, None, 64, (8, 2), 64),
    (FP16, None, 128, (32, 1), 16),
    (FP16, None, 96, (8, 8), 64),
    (FP16, None, 256, (8, 2), 16),
    (BF16, E4M3, 128, (8, 2), 16),
    (BF16, E4M3, 64, (8, 1), 64),
    (FP16, E5M2, 256, (8, 8), 16),
    (BF16, E5M2, 96, (32, 1), 64),
]
"""dtype, kv_dtype, head_dim, heads, block: each pair of values meets somewhere."""
IDS = [f"{p[0]}-{p[1]}-{p[2]}-{p[3][0]}x{p[3][1]}-{p[4]}".replace("torch.", "") for p in PAIRS]


@pytest.mark.parametrize(("dtype", "kv_dtype", "dim", "heads", "block"), PAIRS, ids=IDS)
@pytest.mark.parametrize("queries", [1, 777], ids=["decode", "prefill"])
def test_flash_over_thousands_of_keys(batch, check, dtype, kv_dtype, dim, heads, block, queries):
    inputs = batch(
        lens=[5001, 777, 2048],
        queries=queries,
        heads=heads,
        dim=dim,
        block=block,
        dtype=dtype,
        kv_dtype=kv_dtype,
    )

    check("flash", inputs, path="triton")


@pytest.mark.parametrize(("dtype", "kv_dtype", "dim", "heads", "block"), PAIRS, ids=IDS)
@pytest.mark.parametrize("queries", [1, 777], ids=["decode", "prefill"])
def test_lazy_over_forty_documents_up_to_a_million(
    batch, check, dtype, kv_dtype, dim, heads, block, queries
):
    docs = [
        [*[1 + 37 * (i % 7) for i in range(39)], 1000],
        [(800, 0), (1500, 1_000_000), (900, 1_001_500)],
    ]
    rope = from_parameters(dim, {"rope_theta": 500000.0})
    inputs = batch(
        docs=docs,
        queries=queries,
        heads=heads,
        dim=dim,
        block=block,
        dtype=dtype,
        kv_dtype=kv_dtype,
        rope=rope,
    )

    check("lazy", inputs, path="triton")


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_contiguous_prefill_keeps_flash_attentions_own_rule(batch, dim, causal):
    """Error at most twice that of unfused attention in the same dtype, and of one rounding."""
    inputs = batch(
        lens=[1500, 1024], queries=1024, heads=(8, 2), dim=dim, dtype=BF16, causal=causal
    )
    expected = load("reference").attention(inputs.q, inputs.k, inputs.v, **inputs.options)
    unfused = load("cached").attention(inputs.q, inputs.k, inputs.v, **inputs.options)
    rounding = (expected.bfloat16() + 0.3 - 0.3).double() - expected

    o = load("flash").attention(inputs.q, inputs.k, inputs.v, **inputs.options)

    error = (o.double() - expected).abs().max()
    bound = 2 * (unfused.double() - expected).abs().max() + 2 * rounding.abs().max()
    assert error <= bound


@pytest.mark.parametrize("name", ["flash", "lazy"])
@pytest.mark.parametrize("queries", [1, 500], ids=["decode", "prefill"])
def test_twenty_replays_of_a_graph_are_bit_identical(batch, name, queries):
    if name == "lazy":
        rope = from_parameters(128, {"rope_theta": 500000.0})
        shape = {"docs": [[512] * 15 + [600], [3000, 777, 900]], "rope": rope}
    else:
        shape = {"lens": [8192, 4677]}
    inputs = batch(queries=queries, heads=(8, 2), dim=128, block=16, dtype=BF16, **shape)
    kernel = load(name)
    plan = kernel.plan(inputs.q, inputs.k, inputs.v, **inputs.options)
    out = torch.empty_like(inputs.q)

    def call() -> None:
        kernel.attention(inputs.q, inputs.k, inputs.v, **inputs.options, plan=plan, out=out)

    call()
    first = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for _ in range(20):
        out.fill_(torch.nan)
        graph.replay()

        assert torch.equal(out, first)
