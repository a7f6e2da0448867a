"""The TensorRT-LLM adapter: figures of real servers, slope and intercept, pools per window.

Sources stand beside each figure. Rules: tensorrt_llm/_torch/pyexecutor, `_util.py` and
`resource_manager.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvtool import engines, fit
from kvtool.catalog import load_model
from kvtool.device import load_device
from kvtool.engines.base import Budget, Deployment, Reserve
from kvtool.errors import KvtoolError, UsageError
from kvtool.model.spec import Parallel

GIB = 1 << 30


def reserve(
    name: str, context: int, budget: Budget | None = None, tp: int = 1, **deployed: Any
) -> Reserve:
    adapter = engines.load("trtllm", deployed.pop("version", None))
    batch = deployed.pop("batch", 1)
    deployment = Deployment(parallel=Parallel(tp=tp), **deployed)
    return adapter.reserve(load_model(name), context, batch, deployment, budget)


# "Allocated X GiB for max tokens in paged KV cache (N)": model, tokens per block, N, X, type.
PRINTED = {
    "Llama-3.1-8B geometry, 1.2.1: public log": ("llama-3.1-8b", 32, 12_800, 1.56, "auto"),
    "DeepSeek-R1-Distill-Llama-8B, 02/2025: Dynamo's guide": (
        "llama-3.1-8b", 64, 220_480, 26.91, "auto",
    ),
    "gpt-oss-120b, 12/2025: public log of a dry run": ("gpt-oss-120b", 32, 8_224, 0.56, "auto"),
    "Qwen3-8B: public report": ("qwen3-8b", 32, 33_984, 4.67, "auto"),
    "Qwen3-8B, fp8: public report": ("qwen3-8b", 32, 33_984, 2.33, "fp8"),
}  # fmt: skip


@pytest.mark.parametrize("case", PRINTED.values(), ids=PRINTED)
def test_pool_of_printed_tokens_has_the_printed_size(case: tuple[Any, ...]) -> None:
    name, block, tokens, printed, kv = case

    found = reserve(
        name, 4096, Budget(num_blocks=tokens // block), kv_dtype=kv,
        options={"tokens_per_block": str(block)},
    )  # fmt: skip

    assert found.pool is not None
    assert found.pool.pool_tokens.value == tokens
    assert found.pool.pool_bytes.value / GIB == pytest.approx(printed, abs=0.0051)


def test_last_block_hangs_over_the_budget() -> None:
    """gpt-oss-120b, public log of 12/20/2025: 73,728 B a token, max_tokens 86,711, window reduced
    to 86,720; NVIDIA/TensorRT-LLM issue 224 prints 10,718 tokens before rounding to blocks."""
    found = reserve("gpt-oss-120b", 131_072, Budget(pool_bytes=86_711 * 73_728))
    later = reserve("gpt-oss-120b", 131_072, Budget(pool_bytes=86_711 * 73_728), version="1.3.0")
    llama = reserve(
        "llama-2-7b", 4096, Budget(pool_bytes=10_718 * 524_288),
        options={"tokens_per_block": "16"},
    )  # fmt: skip

    assert found.pool is not None
    assert later.pool is not None
    assert llama.pool is not None
    assert found.pool.pool_tokens.value == 86_720
    assert later.pool.pool_tokens.value == 86_688
    assert llama.pool.pool_tokens.value == 10_720


def test_fraction_is_of_free_memory() -> None:
    """A model of 262,144 B a token and rank, tp 2, public log: 85.57 of 93.10 GiB free, 77.02 GiB
    allocated for 315,488 tokens; 0.9 of the free memory is 77.01, the last block hangs over."""
    ends = []
    for free in (85.565, 85.575):
        found = reserve("llama-2-7b", 4096, Budget(pool_bytes=int(0.9 * free * GIB)), tp=2)
        assert found.pool is not None
        ends.append(found.pool.pool_tokens.value)

    assert ends == [315_456, 315_488]
    assert found.settings["free_gpu_memory_fraction"] == 0.9


@pytest.mark.parametrize(
    ("name", "kv", "tp", "bytes_per_token"),
    [
        ("llama-3-70b", "auto", 8, 40_960),
        ("llama-3-70b", "auto", 16, 40_960),
        ("llama-3-70b", "nvfp4", 1, 80 * 2 * 8 * 72),
        ("deepseek-v3", "auto", 8, 61 * 1152),
        ("deepseek-v3", "fp8", 8, 61 * 576),
        ("deepseek-v3.2", "fp8", 8, 61 * (576 + 132)),
        ("deepseek-v3.2", "auto", 8, 61 * 2 * (576 + 132)),
        ("gpt-oss-120b", "auto", 1, 36 * 2048),
    ],
)
def test_slope(name: str, kv: str, tp: int, bytes_per_token: int) -> None:
    """Latent rows have a factor of 1; index keys are charged at the cache's element size."""
    found = reserve(name, 8192, tp=tp, kv_dtype=kv)

    assert found.bytes_per_block == bytes_per_token * found.block_size


def test_windows_have_pools_with_equal_shares() -> None:
    """gpt-oss-120b: 18 windows of 128 and 18 full layers; a window takes 4 blocks and one more."""
    found = reserve(
        "gpt-oss-120b", 8192, Budget(pool_bytes=10 * GIB),
        options={"max_attention_window": "128,131072"},
    )  # fmt: skip
    share = 5 * GIB // (18 * 2048) // 32

    assert found.pool is not None
    assert found.request_bytes == 18 * 2048 * 32 * (5 + 256)
    assert found.pool.num_blocks.value == 2 * share
    assert found.pool.max_concurrency == share / 256
    assert [r.name for r in found.reasons if r.bytes] == ["window_block"]


def test_states_are_an_intercept() -> None:
    """Qwen3-Next: 12 full layers, states for max_batch_size requests off the budget first."""
    state = 36 * (49_152 + 1_048_576)
    slope = 12 * 2048

    four = reserve("qwen3-next-80b-a3b", 8192, Budget(pool_bytes=20 * GIB), batch=4)
    given = reserve(
        "qwen3-next-80b-a3b", 8192, Budget(pool_bytes=20 * GIB), options={"max_batch_size": "64"}
    )

    assert four.cache_bytes == 4 * (8192 * slope + state)
    assert four.pool is not None
    assert given.pool is not None
    assert four.pool.num_blocks.value == -(-((20 * GIB - 4 * state) // slope) // 32)
    assert four.pool.max_batch_size == 20 * GIB // (8192 * slope + state)
    assert given.pool.num_blocks.value == -(-((20 * GIB - 64 * state) // slope) // 32)
    assert given.pool.max_batch_size == 64


def test_pool_of_a_device_is_a_range() -> None:
    found = reserve("llama-3.1-8b", 8192, Budget(device=load_device("h100")))

    assert found.pool is not None
    assert found.pool.pool_bytes.low < found.pool.pool_bytes.value < found.pool.pool_bytes.high
    assert {term.name for term in found.pool.terms} == {"weights", "other"}


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "gpt-oss-120b", "gemma-3-27b", "deepseek-v3.2", "qwen3-next-80b-a3b"]
)
@pytest.mark.parametrize("context", [1, 1000, 40_000])
@pytest.mark.parametrize("window", [None, "1024,131072"])
def test_reasons_sum_to_the_difference(name: str, context: int, window: str | None) -> None:
    options = {} if window is None else {"max_attention_window": window}
    case = fit.Case(
        load_model(name), context, 1, engines.load("trtllm"), Deployment(options=options)
    )

    row = fit.size(case).row

    total = sum(reason["bytes"] for reason in row["reasons"])
    assert row["request_bytes"] == row["sequence_bytes"] + total


@pytest.mark.parametrize(
    ("name", "deployed", "error"),
    [
        ("llama-3.1-8b", {"kv_dtype": "int8"}, UsageError),
        ("llama-3.1-8b", {"v_dtype": "fp8"}, UsageError),
        ("llama-3.1-8b", {"options": {"tokens_per_block": "48"}}, UsageError),
        ("llama-3.1-8b", {"options": {"max_attention_window": "all"}}, UsageError),
        ("llama-3.1-8b", {"version": "0.20.0"}, UsageError),
        ("mimo-v2-flash", {}, KvtoolError),
        ("whisper-large-v3", {}, KvtoolError),
    ],
)
def test_what_trtllm_has_not_is_refused(
    name: str, deployed: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        reserve(name, 448, **deployed)


def test_window_pattern_counts_from_the_first_layer_of_the_model() -> None:
    """With two stages the second one goes on in the pattern: 12 of 24 windows of gpt-oss-20b are
    on each stage, whatever the pattern's length."""
    deployment = Deployment(
        parallel=Parallel(pp=2), options={"max_attention_window": "128,131072,128,131072,131072"}
    )
    adapter, model = engines.load("trtllm"), load_model("gpt-oss-20b")

    found = adapter.reserve(model, 8192, 1, deployment)

    pattern = [128, 131_072, 128, 131_072, 131_072]
    blocks = [5 if pattern[layer % 5] == 128 else 256 for layer in range(24)]
    stages = [sum(blocks[:12]), sum(blocks[12:])]
    assert found.cluster_bytes == sum(stages) * 2048 * 32
