"""naive and cached: what they compute, what they refuse, and what they cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kvtool.errors import UsageError
from kvtool.kernels import load
from kvtool.kernels.steps import Operations, Projections


@pytest.mark.parametrize("name", ["naive", "cached"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("lens", "queries"),
    [([70, 70], 70), ([70, 33], 1), ([20, 0], 30)],
    ids=["square", "ragged", "tall"],
)
def test_unfused_attention_equals_the_reference(batch, name, dtype, lens, queries):
    inputs = batch(
        lens=lens,
        queries=queries,
        heads=(6, 2),
        dtype=dtype,
        window=25,
        sinks=torch.linspace(-1, 1, 6),
        alibi_slopes=torch.linspace(0, 0.5, 6),
    )
    expected = load("reference").attention(inputs.q, inputs.k, inputs.v, **inputs.options)

    o = load(name).attention(inputs.q, inputs.k, inputs.v, **inputs.options)

    bound = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(o.double(), expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("name", ["naive", "cached"])
def test_an_fp8_cache_is_multiplied_by_its_scales(batch, name):
    inputs = batch(
        lens=[50],
        queries=5,
        kv_dtype=torch.float8_e4m3fn,
        k_scale=torch.tensor([0.5, 2.0]),
        v_scale=0.25,
    )
    expected = load("reference").attention(inputs.q, inputs.k, inputs.v, **inputs.options)

    o = load(name).attention(inputs.q, inputs.k, inputs.v, **inputs.options)

    torch.testing.assert_close(o.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["naive", "cached"])
def test_blocks_and_documents_are_refused_by_name(batch, name):
    paged = batch(lens=[20], queries=1, block=16)
    documents = batch(docs=[[20]], queries=1)

    with pytest.raises(UsageError, match=f"'{name}' keeps keys and values contiguous"):
        load(name).plan(paged.q, paged.k, paged.v, **paged.options)
    with pytest.raises(UsageError, match="not documents"):
        load(name).plan(documents.q, documents.k, documents.v, **documents.options)


@pytest.mark.parametrize("name", ["naive", "cached"])
def test_paths_other_than_torch_are_refused(batch, name):
    inputs = batch(lens=[20], queries=1)

    with pytest.raises(UsageError, match="'triton'"):
        load(name).plan(inputs.q, inputs.k, inputs.v, **inputs.options, path="triton")


def largest_allocation(call: Callable[[], object]) -> int:
    """Bytes of the largest tensor that `call` makes, also inside torch's own operators."""
    call()  # workspaces that live on are made by the first call
    with torch.profiler.profile(profile_memory=True) as seen:
        call()
    return max(e.self_cpu_memory_usage + e.self_device_memory_usage for e in seen.events())


# bfloat16 is left out: on a CPU oneDNN packs its operands.
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("lens", "heads"),
    [([256], (8, 2)), ([256] * 2, (8, 4)), ([200] * 5, (8, 2)), ([256, 9, 130], (8, 4))],
    ids=["one-sequence", "fewer-sequences", "fewer-heads", "ragged"],
)
def test_a_decoded_token_copies_no_keys_and_no_values(batch, dtype, lens, heads):
    """A broadcast product over groups once copied every key and value G times: 0.1 TB/s."""
    inputs = batch(lens=lens, queries=1, heads=heads, dim=64, dtype=dtype)
    one_sequence = inputs.k[0].nbytes

    made = largest_allocation(
        lambda: load("cached").attention(inputs.q, inputs.k, inputs.v, **inputs.options)
    )

    scores = inputs.q.shape[0] * heads[0] * max(lens) * torch.float32.itemsize
    assert made <= scores
    assert made < one_sequence


def layer() -> tuple[torch.Tensor, Projections]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 100, 16, generator=generator)
    q = torch.randn(16, 4, 8, generator=generator) / 4
    k, v = (torch.randn(16, 2, 8, generator=generator) / 4 for _ in range(2))
    return x, Projections(q, k, v)


def test_a_hundred_tokens_cost_5050_rows_without_a_cache_and_100_with_one():
    """1 + 2 + ... + 100 = 5050; scores: the sum of squares, 338350, against 5050."""
    x, weights = layer()

    _, without = load("naive").decode(x, weights)
    _, kept = load("cached").decode(x, weights)

    assert without == Operations(query_rows=5050, key_rows=5050, scores=338_350)
    assert kept == Operations(query_rows=100, key_rows=100, scores=5050)


def test_decoding_with_and_without_a_cache_gives_the_same_tokens():
    x, weights = layer()

    without, _ = load("naive").decode(x, weights)
    kept, _ = load("cached").decode(x, weights)

    torch.testing.assert_close(without, kept, rtol=1e-5, atol=1e-6)
