"""All layouts hold the same tokens: the float64 reference cannot tell them apart."""

import pytest
import torch

from kvtool.benchmark.inputs import arrange, draw
from kvtool.benchmark.oracle import judgement
from kvtool.kernels import load

CPU = torch.device("cpu")
LAYOUTS = ["prefix", "paged", "documents", "documents-paged", "unrotated"]


def tokens(kv_lens=(63, 111), query_tokens=1, dtype="float32", kv_dtype=None, seed=5, causal=True):
    return draw(
        kv_lens=kv_lens,
        query_tokens=query_tokens,
        heads=(8, 2, 32),
        dtype=dtype,
        kv_dtype=kv_dtype or dtype,
        block_size=16,
        doc_tokens=32,
        causal=causal,
        device=CPU,
        seed=seed,
    )


def exact(layout, rows):
    return load("reference").attention(layout.q, layout.k, layout.v, **layout.options)[:, -rows:]


@pytest.mark.parametrize("query_tokens", [1, 40], ids=["decode", "prefill"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_the_same_attention(name, query_tokens):
    drawn = tokens(query_tokens=query_tokens)

    difference = exact(arrange(drawn, name), query_tokens) - exact(
        arrange(drawn, "plain"), query_tokens
    )

    assert float(difference.abs().max()) < 2e-6


def test_blocks_are_shuffled_and_every_block_is_used_once():
    table = arrange(tokens(kv_lens=(160, 160)), "paged").options["block_table"]

    used = table.flatten().tolist()
    assert sorted(used) == list(range(20))
    assert used != sorted(used)


def test_paging_keeps_the_bits():
    drawn = tokens(kv_lens=(111, 111))
    plain, paged = arrange(drawn, "plain"), arrange(drawn, "paged")

    table = paged.options["block_table"].long()
    rebuilt = paged.k[table].flatten(1, 2)[:, :111]

    assert torch.equal(rebuilt, plain.k)


def test_documents_are_whole_until_the_last():
    options = arrange(tokens(), "documents").options

    assert options["doc_lens"].tolist() == [[32, 31, 0, 0], [32, 32, 32, 15]]
    assert options["doc_offsets"].tolist() == [[0, 32, 64, 96]] * 2


@pytest.mark.parametrize("kv_dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_an_fp8_cache_uses_the_range_of_its_dtype(kv_dtype):
    layout = arrange(tokens(dtype="float16", kv_dtype=kv_dtype), "paged")

    largest = float(layout.k.float().abs().max())
    assert layout.k.element_size() == 1
    assert largest == torch.finfo(layout.k.dtype).max
    assert layout.options["k_scale"] > 0


def test_the_same_seed_draws_the_same_tokens():
    assert torch.equal(tokens(seed=9).k, tokens(seed=9).k)
    assert not torch.equal(tokens(seed=9).k, tokens(seed=10).k)


@pytest.mark.parametrize("name", ["plain", "documents", "unrotated"])
def test_eager_code_is_close_to_the_reference_in_every_layout(name):
    judged = judgement(tokens(kv_lens=(111, 111), dtype="bfloat16"), name)

    error = (judged.eager.double() - judged.reference).norm() / judged.reference.norm()
    assert 1e-4 < float(error) < 1e-2


def test_eager_code_in_slices_equals_eager_code_in_one_piece(monkeypatch):
    drawn = tokens(kv_lens=(111, 111), query_tokens=111)
    whole = judgement(drawn, "plain").eager

    monkeypatch.setattr("kvtool.benchmark.oracle.MAX_SCORE_BYTES", 14 * 8 * 111 * 10)

    assert torch.allclose(judgement(drawn, "plain").eager, whole, atol=1e-6)
