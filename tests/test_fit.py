"""Rows of `size`, whether things fit, and the inverse questions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtool
from kvtool import fit
from kvtool.errors import KvtoolError, UsageError
from kvtool.fit import largest

# guide/interface.md: every key a row has, whatever applies
KEYS = {
    "model", "model_type", "context_tokens", "model_context_tokens", "batch_size", "engine",
    "engine_version", "kv_dtype", "k_dtype", "v_dtype", "tp", "pp", "ep", "dcp", "sequence_bytes",
    "bytes_per_token", "growing_bytes_per_token", "fixed_bytes", "components", "request_bytes",
    "cache_bytes", "cluster_bytes", "weight_params", "active_params", "mtp_params", "weight_bytes",
    "loaded_bytes", "block_size", "pool_bytes", "num_blocks", "pool_tokens", "max_concurrency",
    "max_context_tokens", "max_batch_size", "fits",
}  # fmt: skip


def row(*args, **more):
    return kvtool.size(*args, **more).results[0]


def test_a_row_has_every_key_of_the_contract():
    assert set(row("llama-3-70b", ctx="32k")) >= KEYS
    assert set(row("llama-3-70b", ctx="32k", gpu="h100", gpus=8, engine="vllm")) >= KEYS


def test_the_first_command_of_the_readme():
    # domain.md: 2 x 80 x 8 x 128 x 2 B; parameters of the published checkpoint
    found = row("llama-3-70b", ctx="32k")

    assert found["sequence_bytes"] == 10_737_418_240
    assert found["bytes_per_token"] == 327_680
    assert found["weight_params"] == 70_553_706_496
    assert found["weight_bytes"] == 141_107_412_992
    assert found["fits"] is None


def test_logical_fit_is_memory_times_fraction_less_weights():
    found = row("llama-3-70b", ctx="32k", gpu="h200", gpus=2, gpu_fraction=0.8)

    # an H200 reports 150,109,880,320 B
    assert found["pool_bytes"] == int(150_109_880_320 * 0.8) - found["weight_bytes"]
    assert found["max_batch_size"] == found["pool_bytes"] // found["sequence_bytes"]
    assert found["fits"]


def test_a_pool_may_be_given_instead():
    found = row("llama-3-70b", ctx="32k", batch=4, pool="40GiB")

    assert found["fits"]
    assert found["max_batch_size"] == 4
    assert found["max_context_tokens"] == 32_768
    assert found["pool_tokens"] == 131_072


def test_weights_that_exceed_the_device_leave_nothing():
    found = row("llama-3-70b", ctx="32k", gpu="h100")

    assert found["fits"] is False
    assert found["pool_bytes"] == found["max_batch_size"] == found["max_context_tokens"] == 0
    # weights and cache less nine tenths of the 85,027,979,264 B that an H100 shows
    assert found["missing_bytes"] == 141_107_412_992 + 10_737_418_240 - 76_525_181_337


def test_combinations_are_rows():
    report = kvtool.size(["llama-3-70b", "llama-3-8b"], ctx="4k..16k*2", batch="1,2")

    assert len(report.results) == 12
    assert report.inputs["ctx"] == [4096, 8192, 16_384]


def test_numbers_are_accepted_as_numbers():
    assert row("llama-3-70b", ctx=32_768, batch=2)["cache_bytes"] == 2 * 10_737_418_240


def test_gpus_alone_means_tensor_parallel():
    assert row("llama-3-70b", ctx="32k", gpus=8)["tp"] == 8
    assert row("llama-3-70b", ctx="32k", gpus=8, pp=2, tp=4)["tp"] == 4


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ctx": "0"}, "'0' is not a number of tokens"),
        ({"ctx": "-5"}, "'-5' is not a number of tokens"),
        ({"ctx": "32q"}, "'32q' is not a number of tokens"),
        ({"pool": "80G"}, "'80G' is not a number of bytes"),
        ({"batch": "0"}, "'0' is not a number of sequences"),
        ({"kv_dtype": "fp9"}, "no dtype named 'fp9'"),
        ({"dtype": "q9_0"}, "no dtype named 'q9_0'"),
        ({"tp": 3}, "tp 3 does not divide the 64 attention heads"),
        ({"tp": 0}, "tp is 0"),
        ({"gpus": 8, "tp": 2}, "8 devices are not tp 2 x pp 1"),
        ({"gpu": "h1000"}, "no device card named 'h1000'"),
        ({"gpu_fraction": 1.5, "gpu": "h100"}, "'1.5' is no fraction"),
        ({"engine": "vlm"}, "no engine named 'vlm'"),
        ({"engine": "vllm", "engine_opt": ["block_size"]}, "'block_size' is not an engine option"),
        ({"num_blocks": 100}, "logical bytes have no blocks"),
        ({"solve": "everything"}, "cannot solve for 'everything'"),
        ({"solve": "ctx"}, "needs memory to fit into"),
        ({"solve": "gpus", "pool": "40GiB"}, "needs a device"),
        ({"draft": "lama"}, "no model card named 'lama'"),
    ],
    ids=str,
)
def test_what_cannot_be_is_a_usage_error(options, reason):
    with pytest.raises(UsageError) as caught:
        kvtool.size("llama-3-70b", **{"ctx": "32k", **options})

    assert reason in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_key_type_whose_block_does_not_divide_the_row_is_refused(tmp_path):
    config = {
        "model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 3, "head_dim": 20,
        "hidden_size": 60, "intermediate_size": 64, "vocab_size": 10, "torch_dtype": "float16",
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))

    with pytest.raises(UsageError, match="'q8_0' stores blocks of 32 elements"):
        kvtool.size(str(path), ctx=128, k_dtype="q8_0")


def test_a_model_without_maximum_needs_a_context(tmp_path):
    config = {
        "model_type": "mamba", "num_hidden_layers": 1, "hidden_size": 64, "state_size": 16,
        "vocab_size": 10, "torch_dtype": "float16",
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))

    with pytest.raises(UsageError) as caught:
        kvtool.size(str(path))

    assert "states no maximum context" in str(caught.value)
    assert "--ctx" in caught.value.hint


def test_a_context_beyond_the_maximum_is_computed_with_a_warning():
    report = kvtool.size("llama-3-70b", ctx="128k")

    assert report.results[0]["sequence_bytes"] == 42_949_672_960
    assert report.warnings == ["131,072 tokens are more than the 8,192 llama-3-70b was made for"]


def test_solve_for_the_largest_context_and_batch():
    context = row("llama-3-70b", gpu="h100", gpus=4, solve="ctx")["context_tokens"]
    batch = row("llama-3-70b", ctx="32k", gpu="h100", gpus=4, solve="batch")["batch_size"]

    for more, fits in ((0, True), (1, False)):
        assert row("llama-3-70b", ctx=context + more, gpu="h100", gpus=4)["fits"] is fits
        assert row("llama-3-70b", ctx="32k", batch=batch + more, gpu="h100", gpus=4)["fits"] is fits


def test_solve_for_the_fewest_devices():
    found = row("llama-3-70b", ctx="32k", gpu="h100", solve="gpus")

    assert (found["tp"], found["fits"]) == (2, True)
    assert row("llama-3-70b", ctx="32k", gpu="h100", gpus=1)["fits"] is False


def test_nothing_that_fits_is_an_error_with_the_numbers():
    with pytest.raises(KvtoolError) as caught:
        kvtool.size("llama-3-70b", ctx="32k", gpu="t4", solve="ctx")

    assert "131.42 GiB" in str(caught.value)
    assert caught.value.exit_code == 1


def test_a_drafter_adds_its_cache_and_weights():
    alone, small = row("llama-3-70b", ctx="8k"), row("llama-3-8b", ctx="8k")

    both = row("llama-3-70b", ctx="8k", draft="llama-3-8b")

    assert both["sequence_bytes"] == alone["sequence_bytes"] + small["sequence_bytes"]
    assert both["weight_bytes"] == alone["weight_bytes"] + small["weight_bytes"]


def test_a_drafter_whose_parameters_are_not_counted_is_named():
    report = kvtool.size("llama-3-70b", ctx="8k", draft="rwkv-5-world-3b", gpu="h200", gpus=2)

    assert report.results[0]["fits"] is None
    assert any("the parameters of rwkv-5-world-3b are not counted" in w for w in report.warnings)


def test_components_sum_to_the_sequence():
    found = row("gpt-oss-120b", ctx="32k")

    assert sum(part["bytes"] for part in found["components"]) == found["sequence_bytes"]
    assert {part["kind"]: part["tokens"] for part in found["components"]} == {
        "sliding": 128,
        "full": 32_768,
    }


def test_explanations_hold_the_formula_with_the_numbers():
    lines = row("llama-3-70b", ctx="32k", explain=True)["explain"]

    assert lines[0]["formula"] == "2 x layers x kv_heads x head_dim x bytes x T"
    assert lines[0]["numbers"] == "2 x 80 x 8 x 128 x 2 x 32,768"
    assert lines[0]["value"] == 10_737_418_240


def test_reports_become_frames_and_json():
    report = kvtool.size("llama-3-70b", ctx="32k")

    assert report.to_frame()["sequence_bytes"].tolist() == [10_737_418_240]
    assert json.loads(report.to_json())["results"][0]["model"] == "llama-3-70b"


@given(st.integers(0, 10**9), st.integers(1, 1 << 30))
def test_largest_finds_the_last_that_fits(limit, most):
    found = largest(lambda n: n <= limit, most)

    assert found == (None if limit >= most and most > 1 else limit) or most == 1


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(["llama-3-70b", "gpt-oss-120b"]),
    st.integers(1, 40),
    st.integers(1, 1 << 38),
)
def test_the_solved_context_is_the_largest_that_fits(model, batch, pool):
    found = row(model, ctx=1, batch=batch, pool=pool)["max_context_tokens"]

    assert found == 0 or row(model, ctx=found, batch=batch, pool=pool)["fits"]
    assert not row(model, ctx=found + 1, batch=batch, pool=pool)["fits"]


def test_the_default_fraction_is_the_documented_one():
    assert fit.LOGICAL_FRACTION == 0.9
