"""The transformers adapter against what its cache classes hold after real steps.

The rows of tests/golden/transformers_cache.json come from the oracle script of the same name:
tiny random models, four versions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvtool import engines, fit
from kvtool.catalog import load_model
from kvtool.device import load_device
from kvtool.engines.base import Budget, Deployment, Reserve
from kvtool.errors import UsageError
from kvtool.model.huggingface import read_config
from kvtool.model.spec import ModelSpec

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "transformers_cache.json").read_text("utf-8")
)
MAX_CACHE_LEN = 64

# Rows that are known to differ: (version, configuration) -> bytes here, and why.
DIFFERENT = {
    # Lfm2HybridConvCache makes a convolution tail for each layer, the attention layer included.
    ("4.57.6", "lfm2"): 6528,
}


def tiny(name: str) -> ModelSpec:
    config = {**GOLDEN["configs"][name], "torch_dtype": "bfloat16"}
    return read_config(config, name, name)[0]


def of_row(row: dict[str, Any]) -> Reserve:
    static = {"cache_implementation": "static", "max_cache_len": str(MAX_CACHE_LEN)}
    deployment = Deployment(
        kv_dtype="fp8" if row["cache"] == "fp8" else "auto",
        encoder_tokens=row["encoder_tokens"],
        options=static if row["cache"] == "static" else {},
    )
    adapter = engines.load("transformers", row["version"])
    return adapter.reserve(tiny(row["config"]), row["tokens"], 1, deployment)


def of_card(name: str, context: int, budget: Budget | None = None, **deployed: Any) -> Reserve:
    version = deployed.pop("version", None)
    adapter = engines.load("transformers", version)
    return adapter.reserve(load_model(name), context, 1, Deployment(**deployed), budget)


@pytest.mark.parametrize(
    "row", GOLDEN["rows"], ids=lambda row: f"{row['version']} {row['config']} {row['cache']}"
)
def test_cache_is_what_the_cache_classes_hold(row: dict[str, Any]) -> None:
    expected = DIFFERENT.get((row["version"], row["config"]), row["bytes"])

    assert of_row(row).request_bytes == expected


def test_golden_rows_cover_four_versions_and_three_caches() -> None:
    rows = GOLDEN["rows"]

    assert {row["version"] for row in rows} == {"4.53.3", "4.57.6", "5.14.0", "5.24.0"}
    assert {row["cache"] for row in rows} == {"dynamic", "static", "fp8"}
    assert len(rows) >= 80


def test_window_keeps_one_row_less_between_steps() -> None:
    """Gemma 3 27B: 52 windows of 1,024 and 10 full layers of 16 heads of 128, 16 bits."""
    row = 2 * 16 * 128 * 2

    found = of_card("gemma-3-27b", 8192)

    assert found.request_bytes == (52 * 1023 + 10 * 8192) * row
    assert [(r.name, r.bytes) for r in found.reasons if r.bytes] == [
        ("window_between_steps", -52 * row)
    ]


def test_older_releases_keep_heads_and_windows_in_full() -> None:
    """DeepSeek-V3: 61 layers, 128 heads of 192 + 128 against rows of 576 (71 times as much)."""
    old = of_card("deepseek-v3", 4096, version="4.57.6")
    new = of_card("deepseek-v3", 4096)

    assert old.request_bytes == 61 * 128 * (192 + 128) * 2 * 4096
    assert new.request_bytes == 61 * 576 * 2 * 4096
    assert of_card("gemma-3-27b", 8192, version="4.53.3").request_bytes == 62 * 8192 * 8192


def test_sparse_index_keys_are_16_bit() -> None:
    """DeepSeek-V3.2: 61 layers with rows of 576 and keys of 128."""
    found = of_card("deepseek-v3.2", 4096)

    assert found.request_bytes == 61 * (576 + 128) * 2 * 4096


def test_quantised_cache_keeps_the_last_128_tokens() -> None:
    """Llama-3.1-8B: 36 bytes per 64 values, of the last 128 tokens 2 bytes each."""
    values = 32 * 2 * 8 * 128

    found = of_card("llama-3.1-8b", 4096, kv_dtype="int4")

    assert found.request_bytes == values * (4096 * 36 // 64 + 128 * 2 - 128 * 36 // 64)


def test_cross_attention_keeps_the_encoder_rows() -> None:
    """Whisper large v3: 32 layers of 20 heads of 64, 1,500 frames."""
    row = 32 * 2 * 20 * 64 * 2

    found = of_card("whisper-large-v3", 448)

    assert found.request_bytes == row * (448 + 1500)


@pytest.mark.parametrize(
    "name", ["gemma-3-27b", "deepseek-v3.2", "qwen3-next-80b-a3b", "jamba-v0.1"]
)
@pytest.mark.parametrize("version", ["4.53.3", "4.57.6", "5.14.0", "5.24.0"])
def test_reasons_sum_to_the_difference(name: str, version: str) -> None:
    model = load_model(name)
    sized = fit.size(fit.Case(model, 4096, 1, engines.load("transformers", version)))

    total = sum(reason["bytes"] for reason in sized.row["reasons"])

    assert sized.row["request_bytes"] == sized.row["sequence_bytes"] + total


def test_memory_is_what_weights_leave() -> None:
    device = load_device("h100")

    pool = of_card("llama-3.1-8b", 8192, Budget(device=device)).pool

    assert pool is not None
    assert pool.pool_bytes.low < pool.pool_bytes.value < pool.pool_bytes.high
    assert pool.pool_bytes.high < device.memory_bytes - 15 * 10**9
    assert pool.max_batch_size == pool.pool_bytes.value // (8192 * 131_072)


@pytest.mark.parametrize(
    ("name", "deployed"),
    [
        ("gemma-3-27b", {"kv_dtype": "int4"}),
        ("llama-3.1-8b", {"kv_dtype": "int8"}),
        ("llama-3.1-8b", {"kv_dtype": "fp16"}),
        ("llama-3.1-8b", {"options": {"max_cache_len": "100", "cache_implementation": "static"}}),
        ("llama-3.1-8b", {"options": {"block_size": "16"}}),
        ("llama-3.1-8b", {"version": "4.20.0"}),
        ("llama-3.1-8b", {"version": "new"}),
    ],
)
def test_what_the_cache_has_not_is_refused(name: str, deployed: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        of_card(name, 4096, **deployed)


def test_blocks_are_refused() -> None:
    with pytest.raises(UsageError, match="no blocks"):
        of_card("llama-3.1-8b", 4096, Budget(num_blocks=10))


def test_a_version_that_was_not_run_says_so() -> None:
    assert of_card("llama-3.1-8b", 4096, version="5.0.0").warnings
    assert not of_card("llama-3.1-8b", 4096).warnings


def test_largest_context_of_a_static_cache_is_its_length() -> None:
    options = {"cache_implementation": "static", "max_cache_len": "8192"}
    case = fit.Case(
        load_model("llama-3.1-8b"),
        4096,
        1,
        engines.load("transformers"),
        Deployment(options=options),
        Budget(device=load_device("h100")),
    )

    assert fit.size(case).row["max_context_tokens"] == 8192
