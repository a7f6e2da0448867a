"""Parameters by part, and the bytes of the device that holds most of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool import size
from kvtool.catalog import load_card, load_model
from kvtool.errors import UsageError
from kvtool.model.huggingface import read_config
from kvtool.model.spec import ModelSpec, Parallel, stages
from kvtool.model.weights import (
    active_parameters,
    by_part,
    mtp_parameters,
    parameters,
    weight_bytes,
)

GIB = 1 << 30
# A rotary table of vLLM: cosines and sines of every position, head_dim values, 2 bytes each. It is
# in what vLLM prints after loading, and no weight.
TABLE_8B = 131_072 * 128 * 2
TABLE_QWEN3 = 40_960 * 128 * 2


def llama(layers: int = 4, heads: int = 8, kv_heads: int = 4, **more: Any) -> ModelSpec:
    config = {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": heads * 16,
        "intermediate_size": heads * 32,
        "vocab_size": 512,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    } | more
    return read_config(config, "toy", "toy")[0]


def mixtral(experts: int = 8, active: int = 2, **more: Any) -> ModelSpec:
    return llama(
        model_type="mixtral", num_local_experts=experts, num_experts_per_tok=active, **more
    )


# Source: transformers on the meta device, and reference cards of the models
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-3-70b", 70_553_706_496),
        ("llama-3-8b", 8_030_261_248),
        ("qwen3-32b", 32_762_123_264),
        ("llama-2-7b", 6_738_415_616),
        ("gpt2", 124_439_808),
        ("gpt-oss-120b", 116_829_156_672),
        ("deepseek-v3", 671_026_404_352),
        ("mixtral-8x7b", 46_702_792_704),
    ],
)
def test_parameters_of_known_models(name: str, expected: int) -> None:
    assert parameters(load_model(name)) == expected


def test_parameters_of_llama_3_8b_by_part() -> None:
    """vocab x hidden twice; per layer q, o: 4096^2, k, v: 1024 x 4096; 3 x 14336 x 4096; norms."""
    found = by_part(load_model("llama-3-8b"))

    assert found == {
        "embedding": 128_256 * 4096,
        "attention": 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096),
        "mlp": 32 * 3 * 14_336 * 4096,
        "norm": (2 * 32 + 1) * 4096,
        "head": 128_256 * 4096,
    }


@pytest.mark.parametrize("name", ["llama-3-70b", "gpt-oss-120b", "deepseek-v3.2", "gemma-3-27b"])
def test_parts_sum_to_the_whole(name: str) -> None:
    model = load_model(name)

    assert sum(by_part(model).values()) == parameters(model)


# DeepSeek-V3's README_WEIGHTS: 37B activated, 11.5B in the MTP module beside copies of embedding
# and head (and beside eh_proj); OpenAI's model card: 5.13B active, the embedding not counted.
def test_active_and_mtp_parameters() -> None:
    deepseek, gpt_oss = load_model("deepseek-v3"), load_model("gpt-oss-120b")
    table = 129_280 * 7168

    assert round((active_parameters(deepseek) - table) / 1e9) == 37
    assert round((mtp_parameters(deepseek) - 7168 * 14_336) / 1e9, 1) == 11.5
    assert round((active_parameters(gpt_oss) - by_part(gpt_oss)["embedding"]) / 1e9, 2) == 5.13


def test_active_parameters_leave_out_the_experts_that_are_not_chosen() -> None:
    model = mixtral(experts=8, active=2)

    experts = by_part(model)["experts"]

    assert parameters(model) - active_parameters(model) == experts * 6 // 8


@given(st.integers(1, 16), st.integers(1, 16))
def test_a_token_uses_no_more_than_all_experts(experts: int, active: int) -> None:
    model = mixtral(experts=experts, active=min(active, experts))

    assert 0 < active_parameters(model) <= parameters(model)


@given(st.integers(1, 12), st.integers(1, 6).map(lambda n: n * 4))
def test_parameters_are_linear_in_layers(layers: int, heads: int) -> None:
    one, two, many = (
        parameters(llama(layers=n, heads=heads)) for n in (layers, layers + 1, layers + 10)
    )

    assert many - one == 10 * (two - one)


# Memory after loading that vLLM printed in bf16: Llama-3.1-8B at PP 4 took 4.26 GiB, Qwen3-8B at
# PP 3 5.48 GiB on the fullest rank (llm-d planner, vLLM 0.19 on an H100; sizing notes 3.5).
# A naive quarter of the first is 3.74 GiB: embedding and head stand on the end stages.
def test_end_stages_hold_embedding_and_head() -> None:
    llama_8b = weight_bytes(load_model("llama-3.1-8b"), "bfloat16", Parallel(pp=4))
    qwen_8b = weight_bytes(load_model("qwen3-8b"), "bfloat16", Parallel(pp=3))

    assert round((llama_8b + TABLE_8B) / GIB, 2) == 4.26
    assert round((qwen_8b + TABLE_QWEN3) / GIB, 2) == 5.48


def test_stages_of_a_toy_by_hand() -> None:
    """Five layers on two stages: 3 + 2, the first with the embedding, the last with norm and head.

    A layer has q and o of 128 x 128, k and v of 64 x 128, 3 x 256 x 128 and two norms of 128."""
    model = llama(layers=5)
    layer = 2 * 128 * 128 + 2 * 64 * 128 + 3 * 256 * 128 + 2 * 128

    found = weight_bytes(model, "bfloat16", Parallel(pp=2))

    assert [len(part) for part in stages(model.layers, 2)] == [3, 2]
    assert found == 2 * (3 * layer + 512 * 128)


def test_a_tied_embedding_counts_once_and_stands_on_both_end_stages() -> None:
    tied, apart = llama(tie_word_embeddings=True), llama()
    table = 512 * 128

    assert parameters(apart) - parameters(tied) == table
    assert weight_bytes(tied) == 2 * parameters(tied)
    assert weight_bytes(tied, "auto", Parallel(pp=4)) == weight_bytes(apart, "auto", Parallel(pp=4))


def test_qwen3_0_6b_ties_its_embedding() -> None:
    """vLLM printed 1.12 GiB: 1.1102 and its rotary table; with a head of its own it were 1.40."""
    found = weight_bytes(load_model("qwen3-0.6b"))

    assert round((found + TABLE_QWEN3) / GIB, 2) == 1.12


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_tp_slices_what_divides_and_copies_the_norms(tp: int) -> None:
    model = load_model("llama-3-70b")
    norms = by_part(model)["norm"]

    found = weight_bytes(model, "auto", Parallel(tp=tp))

    assert found == 2 * ((parameters(model) - norms) // tp + norms)


def test_key_and_value_projections_are_copied_once_ranks_outnumber_heads() -> None:
    """8 KV heads of Llama-3-70B on 16 ranks: each keeps one head's rows, 128 x 8192 of k and v."""
    model = load_model("llama-3-70b")
    sliced = parameters(model) - by_part(model)["norm"]
    copied = 80 * 2 * 128 * 8192 // 2

    found = weight_bytes(model, "auto", Parallel(tp=16))

    assert found == 2 * (sliced // 16 + copied + by_part(model)["norm"])


def test_expert_parallelism_deals_whole_experts_out() -> None:
    model = load_model("deepseek-v3")
    experts = by_part(model)["experts"]

    alone, eight = (weight_bytes(model, "bfloat16", Parallel(tp=ep, ep=ep)) for ep in (1, 8))
    apart = weight_bytes(model, "bfloat16", Parallel(ep=8))

    assert apart == alone - 2 * experts * 7 // 8
    assert eight < apart


def test_experts_that_do_not_divide_leave_one_more_on_the_fullest_rank() -> None:
    model = mixtral(experts=10)
    one = by_part(model)["experts"] // 10

    found = weight_bytes(model, "bfloat16", Parallel(ep=4))

    assert found == weight_bytes(model, "bfloat16") - 2 * 7 * one


@settings(deadline=None)
@given(
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["bfloat16", "fp8", "int4", "mxfp4", "nvfp4", "int8"]),
)
def test_ranks_together_hold_at_least_the_whole(tp: int, pp: int, dtype: str) -> None:
    model = llama(layers=8, heads=32, kv_heads=8)

    found = weight_bytes(model, dtype, Parallel(tp=tp, pp=pp))

    assert tp * pp * found >= weight_bytes(model, dtype)
    assert found <= weight_bytes(model, dtype, Parallel(tp=tp))


@settings(deadline=None)
@given(st.sampled_from(["llama-3-8b", "qwen3-0.6b", "gpt-oss-20b", "gemma-3-1b"]))
def test_narrower_formats_take_less(name: str) -> None:
    model = load_model(name)

    formats = ("float32", "bfloat16", "int8", "nvfp4", "mxfp4")
    found = [weight_bytes(model, dtype) for dtype in formats]

    assert found == sorted(found, reverse=True)
    assert found[0] == 2 * found[1] == 4 * parameters(model)


# vLLM prints 8.49 GiB for an 8B Llama in fp8, not the 7.5 GiB of a byte a parameter
def test_fp8_leaves_embedding_head_and_norms_in_16_bits() -> None:
    model = load_model("llama-3.1-8b")
    part = by_part(model)
    packed = part["attention"] + part["mlp"]
    scales = packed // 128**2 * 4

    found = weight_bytes(model, "fp8")

    assert found == packed + scales + 2 * (parameters(model) - packed)
    assert round((found + TABLE_8B) / GIB, 2) == 8.49


def test_fp8_of_deepseek_v3_by_hand() -> None:
    """A byte a weight of every matrix, a float32 for each 128 x 128 of it; embedding, head, norms
    and routers in 16 bits. kv_a_proj has 576 rows: five blocks of rows."""
    model = load_model("deepseek-v3")
    part = by_part(model)
    plain = part["embedding"] + part["head"] + part["norm"] + part["router"]
    packed = parameters(model) - plain
    ragged = 61 * (5 * 56) - 61 * 576 * 7168 / 128**2

    found = weight_bytes(model)

    assert found == packed + 4 * (packed / 128**2 + ragged) + 2 * plain


# 17 bytes for 32 weights of an expert; everything else, biases included, in bf16
def test_mxfp4_of_gpt_oss_by_hand() -> None:
    model = load_model("gpt-oss-120b")
    matrices = 36 * 128 * (5760 + 2880) * 2880

    found = weight_bytes(model)

    assert found == matrices * 17 // 32 + 2 * (parameters(model) - matrices)


def test_awq_packs_the_matrices_of_the_layers() -> None:
    """Half a byte, and per 128 inputs a float16 scale and a 4-bit zero: 4.16 bits a weight."""
    scheme = {"quant_method": "awq", "bits": 4, "group_size": 128}
    model = llama(heads=32, quantization_config=scheme)
    part = by_part(model)
    packed = part["attention"] + part["mlp"]

    found = weight_bytes(model)

    assert found == packed * (0.5 + 2.5 / 128) + 2 * (parameters(model) - packed)


def test_modules_left_out_by_name_stay_in_16_bits() -> None:
    scheme = {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["model.layers.1.self_attn.q_proj", "lm_head"],
    }
    plain = {"quant_method": "fp8", "weight_block_size": [128, 128]}

    listed, all_packed = (
        weight_bytes(llama(heads=32, quantization_config=q)) for q in (scheme, plain)
    )

    assert listed - all_packed == 512 * 512 - 4 * (512 // 128) ** 2


def test_an_unknown_scheme_leaves_the_weights_open_and_says_so(tmp_path: Any) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4,'
        ' "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100,'
        ' "max_position_embeddings": 512, "torch_dtype": "bfloat16",'
        ' "quantization_config": {"quant_method": "aqlm"}}'
    )

    report = size(str(config))

    assert report.results[0]["weight_bytes"] is None
    assert report.results[0]["sequence_bytes"] == 2 * 2 * 64 * 2 * 512
    assert any("--dtype" in warning for warning in report.warnings)
    assert size(str(config), dtype="bfloat16").results[0]["weight_bytes"] is not None


def test_more_stages_than_layers_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="pp 5"):
        weight_bytes(llama(layers=4), "bfloat16", Parallel(pp=5))


def test_a_cache_type_is_no_weight_format() -> None:
    with pytest.raises(UsageError, match="no dtype named 'int3'"):
        weight_bytes(llama(), "int3")


# The repository of deepseek-ai/DeepSeek-V4-Flash holds about 160 GB, MTP layer included
def test_deepseek_v4_packs_its_experts_in_fp4() -> None:
    config = {**load_card("deepseek-v4-flash").config, "expert_dtype": "fp4"}
    model = read_config(config, "v4", "v4")[0]
    experts = 43 * 256 * 3 * 2048 * 4096

    in_fp4, in_fp8 = (weight_bytes(m) for m in (model, load_model("deepseek-v4-flash-fp8")))

    assert by_part(model)["experts"] == experts
    assert 159e9 < weight_bytes(model, mtp=True) < 161e9
    assert 0 < in_fp8 - in_fp4 - experts * (1 - 17 / 32) < 0.001 * in_fp8
