"""lazy against the float64 reference, which puts every key at its position one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvtool.errors import UsageError
from kvtool.kernels import VARIANTS, load
from kvtool.kernels.rope import Rope, from_parameters

DTYPES = (
    [torch.bfloat16, torch.float16, torch.float32]
    if torch.cuda.is_available()
    else [torch.float16, torch.float32]
)
PATHS = ["torch", "triton"]
EVERYWHERE = [v for v in VARIANTS["lazy"] if v != "unsplit"]
PHASES = pytest.mark.parametrize("queries", [1, 3, 60], ids=["decode", "draft", "prefill"])
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
PARAMETERS = {
    "neox": {"rope_theta": 10000.0},
    "partial": {"rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "ntk": {"rope_type": "ntk", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": LLAMA3,
    "yarn": YARN,
}
DOCS = [[100, 50, 60], [64, 1, 70], [90]]
"""Documents by length; the last request is an ordinary sequence."""


def rope_of(name: str, dim: int = 32, interleaved: bool = False) -> Rope:
    return from_parameters(dim, PARAMETERS[name], interleaved=interleaved)


@pytest.mark.parametrize("variant", EVERYWHERE)
@pytest.mark.parametrize("path", PATHS)
@PHASES
def test_each_variant_equals_the_reference(batch, check, path, queries, variant):
    inputs = batch(docs=DOCS, queries=queries, block=16, rope=rope_of("yarn"))

    check("lazy", inputs, path=path, variant=variant)


@pytest.mark.parametrize("queries", [1, 60], ids=["decode", "prefill"])
@pytest.mark.parametrize("name", PARAMETERS)
def test_each_scaling_equals_the_reference(batch, check, queries, name):
    inputs = batch(docs=DOCS, queries=queries, heads=(2, 1), block=16, rope=rope_of(name))

    check("lazy", inputs, path="triton")


@pytest.mark.parametrize("queries", [1, 3], ids=["decode", "draft"])
def test_unsplit_decode_equals_the_reference(batch, check, queries):
    inputs = batch(docs=DOCS, queries=queries, block=16, rope=rope_of("llama3"))

    check("lazy", inputs, path="triton", variant="unsplit")


@pytest.mark.parametrize(("path", "queries"), [("torch", 1), ("triton", 60)])
def test_unsplit_is_refused_outside_triton_decode(batch, path, queries):
    inputs = batch(docs=DOCS, queries=queries, heads=(4, 1), rope=rope_of("neox"))

    with pytest.raises(UsageError, match="unsplit"):
        load("lazy").plan(
            inputs.q, inputs.k, inputs.v, **inputs.options, path=path, variant="unsplit"
        )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("queries", [1, 60], ids=["decode", "prefill"])
@pytest.mark.parametrize("name", ["neox", "partial"])
def test_interleaved_pairs_equal_the_reference(batch, check, path, queries, name):
    inputs = batch(docs=DOCS, queries=queries, rope=rope_of(name, interleaved=True))

    check("lazy", inputs, path=path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("queries", [1, 60], ids=["decode", "prefill"])
@pytest.mark.parametrize("variant", ["rotate-q", "rematerialise", "merge"])
def test_unrotated_keys_are_turned_in_the_kernel(batch, check, path, queries, variant):
    rope = replace(rope_of("yarn"), keys="unrotated")
    inputs = batch(docs=DOCS, queries=queries, block=16, rope=rope)

    check("lazy", inputs, path=path, variant=variant)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
@pytest.mark.parametrize("queries", [1, 60], ids=["decode", "prefill"])
def test_triton_equals_the_reference_for_every_head_dim(batch, check, dtype, dim, queries):
    rope = rope_of("llama3", dim)
    inputs = batch(docs=[[70, 90]], queries=queries, dim=dim, block=16, dtype=dtype, rope=rope)

    check("lazy", inputs, path="triton")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("queries", [1, 60], ids=["decode", "prefill"])
@pytest.mark.parametrize("variant", ["rotate-q", "rotate-k"])
def test_offsets_of_a_million_are_as_exact_as_zero(batch, check, path, queries, variant):
    docs = [[(100, 0), (50, 1_000_000), (70, 1_000_050)], [(64, 999_000), (80, 1_000_000)]]
    inputs = batch(docs=docs, queries=queries, block=16, rope=rope_of("neox"))

    check("lazy", inputs, path=path, variant=variant)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("queries", [1, 60], ids=["decode", "prefill"])
def test_forty_documents_some_of_one_token(batch, check, path, queries):
    docs = [[1 + 7 * (i % 5) for i in range(39)] + [64]]
    inputs = batch(docs=docs, queries=queries, heads=(2, 1), block=16, rope=rope_of("neox"))

    check("lazy", inputs, path=path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("queries", [1, 60], ids=["decode", "prefill"])
@pytest.mark.parametrize("variant", EVERYWHERE)
def test_window_sinks_and_alibi_follow_positions_not_rows(batch, check, path, queries, variant):
    inputs = batch(
        docs=[[100, 50, 60], [(64, 3), (1, 90), (70, 95)]],
        queries=queries,
        block=16,
        rope=rope_of("neox"),
        window=110,
        sinks=torch.tensor([0.5, -1.0, 3.0, 8.0]),
        alibi_slopes=torch.tensor([0.5, 0.25, 0.125, 0.0]),
    )

    check("lazy", inputs, path=path, variant=variant)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("queries", [1, 60], ids=["decode", "prefill"])
@pytest.mark.parametrize("variant", ["rotate-q", "rematerialise"])
def test_without_rotation_documents_place_the_bias(batch, check, path, queries, variant):
    inputs = batch(docs=DOCS, queries=queries, alibi_slopes=torch.tensor([0.5, 0.2, 0.1, 0.0]))

    check("lazy", inputs, path=path, variant=variant)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("queries", [1, 60], ids=["decode", "prefill"])
@pytest.mark.parametrize("variant", EVERYWHERE)
def test_an_fp8_cache_is_scaled_before_it_is_turned(batch, check, path, queries, variant):
    inputs = batch(
        docs=DOCS,
        queries=queries,
        block=16,
        dtype=DTYPES[0],
        kv_dtype=torch.float8_e4m3fn,
        rope=rope_of("neox"),
        k_scale=torch.tensor([0.5, 2.0]),
        v_scale=0.5,
    )

    check("lazy", inputs, path=path, variant=variant)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("queries", [1, 60], ids=["decode", "prefill"])
def test_one_document_shared_by_two_requests_at_different_offsets(batch, check, path, queries):
    inputs = batch(
        docs=[[64, 48, 70], [48, 64, 70]], queries=queries, block=16, rope=rope_of("neox")
    )
    table = inputs.options["block_table"]
    table[1, 3:7] = table[0, :4]
    table[1, :3] = table[0, 4:7]

    check("lazy", inputs, path=path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("queries", [1, 60], ids=["decode", "prefill"])
def test_the_order_of_documents_does_not_change_the_keys_seen(batch, path, queries):
    """With offsets kept, a request that lists its documents otherwise is the same request."""
    rope, lazy = rope_of("neox"), load("lazy")
    one = batch(docs=[[(64, 0), (48, 64), (70, 112)]], queries=queries, block=16, rope=rope)
    table = one.options["block_table"]
    swapped = {
        **one.options,
        "block_table": torch.cat((table[:, 4:7], table[:, :4], table[:, 7:]), dim=1),
        "doc_lens": one.options["doc_lens"][:, [1, 0, 2]],
        "doc_offsets": one.options["doc_offsets"][:, [1, 0, 2]],
    }

    first = lazy.attention(one.q, one.k, one.v, **one.options, path=path)
    second = lazy.attention(one.q, one.k, one.v, **swapped, path=path)

    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("queries", [1, 60], ids=["decode", "prefill"])
def test_a_single_document_at_offset_zero_is_flash_over_rotated_tensors(batch, path, queries):
    from kvtool.kernels.rope import rotate

    rope = rope_of("neox")
    inputs = batch(docs=[[150]], queries=queries, rope=rope)
    positions = torch.arange(150 - queries, 150, device=inputs.q.device)
    rotated = rotate(inputs.q[0], positions, rope)[None]
    lens = inputs.options["kv_lens"]

    lazy = load("lazy").attention(inputs.q, inputs.k, inputs.v, **inputs.options, path=path)
    flash = load("flash").attention(rotated, inputs.k, inputs.v, kv_lens=lens, path=path)

    torch.testing.assert_close(lazy, flash, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("queries", [1, 60], ids=["decode", "prefill"])
def test_one_turn_of_the_query_equals_two_turns_of_every_key(batch, path, queries):
    """The other way to move a document: each key back to angle 0, then forward to its position."""
    from kvtool.kernels.rope import rotate

    rope = rope_of("llama3")
    inputs = batch(docs=[[70, 50, 60]], queries=queries, rope=rope)
    own = torch.cat([torch.arange(n) for n in (70, 50, 60)]).to(inputs.q.device)
    positions = torch.arange(180, device=inputs.q.device)
    moved = rotate(rotate(inputs.k[0].double(), -own, rope), positions, rope)[None].float()
    rotated = rotate(inputs.q[0].double(), positions[-queries:], rope)[None].float()
    lens = inputs.options["kv_lens"]
    expected = load("reference").attention(rotated, moved, inputs.v, kv_lens=lens)

    o = load("lazy").attention(inputs.q, inputs.k, inputs.v, **inputs.options, path=path)

    torch.testing.assert_close(o.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("queries", [1, 60], ids=["decode", "prefill"])
def test_a_document_without_rotation_is_flash_bit_for_bit(batch, path, queries):
    inputs = batch(docs=[[150]], queries=queries, block=16)
    plain = {n: inputs.options[n] for n in ("kv_lens", "block_table")}

    lazy = load("lazy").attention(inputs.q, inputs.k, inputs.v, **inputs.options, path=path)
    flash = load("flash").attention(inputs.q, inputs.k, inputs.v, **plain, path=path)

    assert torch.equal(lazy, flash)


@pytest.mark.parametrize("path", PATHS)
def test_the_error_after_many_documents_equals_that_after_one(batch, path):
    """The query is always turned from its untouched self, so offset changes do not add up."""
    rope, reference, lazy = rope_of("neox", 64), load("reference"), load("lazy")
    errors = []
    for docs in ([[64, 64]], [[1] * 63 + [65]]):
        inputs = batch(docs=docs, queries=1, dim=64, dtype=torch.float16, rope=rope)
        expected = reference.attention(inputs.q, inputs.k, inputs.v, **inputs.options)
        o = lazy.attention(inputs.q, inputs.k, inputs.v, **inputs.options, path=path)
        errors.append(((o.double() - expected).norm() / expected.norm()).item())

    assert errors[1] <= 1.25 * errors[0]


def test_lazy_needs_documents(batch):
    inputs = batch(lens=[10], queries=1)

    with pytest.raises(UsageError, match="doc_lens"):
        load("lazy").attention(inputs.q, inputs.k, inputs.v, **inputs.options)


def test_unknown_variants_are_refused_with_a_hint(batch):
    inputs = batch(docs=[[10]], queries=1)

    with pytest.raises(UsageError, match="no variant 'rotate-v'") as error:
        load("lazy").plan(inputs.q, inputs.k, inputs.v, **inputs.options, variant="rotate-v")

    assert "rotate-q" in error.value.hint


def test_rotate_k_is_refused_for_unrotated_keys(batch):
    rope = replace(rope_of("neox"), keys="unrotated")
    inputs = batch(docs=[[10]], queries=1, rope=rope)

    with pytest.raises(UsageError, match="rotate-k"):
        load("lazy").plan(inputs.q, inputs.k, inputs.v, **inputs.options, variant="rotate-k")


@pytest.mark.parametrize("queries", [1, 64], ids=["decode", "prefill"])
def test_the_query_is_turned_unless_told_otherwise(batch, queries):
    """Turning keys lost at every document length measured: docs/kernels/lazy.md."""
    inputs = batch(docs=[[32, 64]], queries=queries, heads=(4, 1), rope=rope_of("neox"))

    plan = load("lazy").plan(inputs.q, inputs.k, inputs.v, **inputs.options)

    assert plan.variant == "rotate-q"
