"""The SGLang adapter: figures of real servers, cells and pools of its own code, and laws.

Sources stand beside each figure. "GB" in SGLang's logs are GiB. Rules: `sglang` 0.5.23,
srt/model_executor/pool_configurator.py and srt/mem_cache/kv_cache_configurator.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvtool import engines, fit
from kvtool.catalog import load_model
from kvtool.device import load_device
from kvtool.engines.base import Budget, Deployment, Reserve
from kvtool.engines.sglang_cells import cells
from kvtool.engines.sglang_memory import capture_sizes
from kvtool.engines.sglang_options import settle
from kvtool.engines.sglang_pools import Pools, demand, of_tokens
from kvtool.engines.sglang_releases import RELEASES
from kvtool.errors import KvtoolError, UsageError
from kvtool.model.spec import Parallel

GIB = 1 << 30


def reserve(
    name: str, context: int, budget: Budget | None = None, tp: int = 1, **deployed: Any
) -> Reserve:
    adapter = engines.load("sglang", deployed.pop("version", None))
    deployment = Deployment(parallel=Parallel(tp=tp), **deployed)
    return adapter.reserve(load_model(name), context, 1, deployment, budget)


def group_bytes(found: Reserve, *kinds: str) -> int:
    """Bytes of a page of the layers of these kinds."""
    return sum(g.layers * g.page_bytes for g in found.groups if g.kind in kinds)


def pools_of(name: str, tokens: int, tp: int = 1, **options: str) -> Pools:
    """The pools of a server that logs so many tokens."""
    model = load_model(name)
    deployment = Deployment(parallel=Parallel(tp=tp), options=options)
    settings = settle(model, deployment, RELEASES[-1], None)
    return of_tokens(tokens, demand(cells(model, model.layers, settings), settings, 8192), settings)


# What servers printed: model, ranks, options, tokens, the pools' GiB as printed, pages beside them.
# A pool holds one page more than its tokens.
PRINTED = {
    "Qwen3-235B-A22B-FP8, tp 4: vllm-project/vllm issue 21348": (
        "qwen3-235b-a22b-fp8", 4, {}, 367_404, 8.23 + 8.23, 0.01,
    ),
    "Kimi-K2.5, tp 8: public log, #tokens 2454421, KV size 160.63": (
        "kimi-k2.5", 8, {}, 2_454_421, 160.63, 0.005,
    ),
    "Kimi-K2.6 on Ascend, pages of 128: public log, #tokens 76416, KV size 5.01": (
        "kimi-k2.5", 1, {"page_size": "128"}, 76_416, 5.01, 0.005,
    ),
    "Gemma-4-26B-A4B: public log, full 213761, window 171008, pools 36.69": (
        "gemma-4-26b-a4b", 1, {}, 213_761, 36.69, 0.005,
    ),
    "Qwen3-30B-A3B-FP8, H100: public log of 2026-08-27, #tokens 392920, K and V 17.99": (
        "qwen3-30b-a3b-fp8", 1, {}, 392_920, 17.99 * 2, 0.01,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PRINTED.values(), ids=PRINTED)
def test_pool_of_printed_tokens_has_the_printed_size(case: tuple[Any, ...]) -> None:
    name, tp, options, tokens, printed, rounding = case
    page = int(options.get("page_size", 1))

    found = reserve(name, 8192, Budget(num_blocks=tokens // page), tp, options=options)

    assert found.pool is not None
    assert found.pool.pool_tokens.value == tokens
    assert found.pool.pool_bytes.value / GIB == pytest.approx(printed, abs=rounding)


def test_mimo_windows_have_their_own_heads_and_widths() -> None:
    """sgl-project/sglang PR 18039: tp 4, pages of 64, full 375,360 and window 300,288 tokens;
    the window pool prints K 8.38 and V 5.59. PR 15464: 1,496,958 tokens, K 41.76, V 27.84."""
    found = reserve(
        "mimo-v2-flash", 8192, Budget(num_blocks=375_360 // 64), 4, options={"page_size": "64"}
    )
    cell = group_bytes(found, "sliding") // 64

    assert pools_of("mimo-v2-flash", 375_360, 4, page_size="64").window_tokens == 300_288
    assert cell * (300_288 + 64) / GIB == pytest.approx(8.38 + 5.59, abs=0.01)
    assert cell * 1_496_959 / GIB == pytest.approx(41.76 + 27.84, abs=0.01)


def test_window_pool_has_eight_tenths_of_the_tokens() -> None:
    """Public logs of Gemma 4: full 213,761 and window 171,008 tokens; 1,710 and 1,368 (12B)."""
    assert pools_of("gemma-4-26b-a4b", 213_761).window_tokens == 171_008
    assert pools_of("gemma-4-26b-a4b", 1_710).window_tokens == 1_368


def test_recurrent_states_are_float32_and_five_per_request() -> None:
    """Qwen3.8-27B-NVFP4 on a GB10, public log: max_mamba_cache_size 360, conv_state 0.99,
    ssm_state 50.77, max_running_requests 72, 228,520 tokens of 3.49 + 3.49."""
    found = reserve("qwen3.5-27b", 8192, kv_dtype="fp8")
    slots = {g.kind: g.layers * g.page_bytes for g in found.groups}

    assert 361 * slots["recurrent"] / GIB == pytest.approx(50.77, abs=0.005)
    assert 361 * slots["conv"] / GIB == pytest.approx(0.99, abs=0.005)
    assert 228_521 * slots["full"] / GIB == pytest.approx(3.49 * 2, abs=0.01)
    assert next(g.blocks for g in found.groups if g.kind == "recurrent") == 360 // 72


def test_hybrid_pools_of_0_5_21_agree_with_a_log() -> None:
    """Nemotron-3-Nano-30B-A3B, tp 4, fp8 cache, SGLang 0.5.21, public log: 2,211 slots, conv_state
    0.44, ssm_state 24.84, 19,644,177 tokens, K and V 14.05 each: states are 0.9 of the rest."""
    spent = int((24.84 + 0.44 + 14.05 * 2) * GIB)
    found = reserve(
        "nemotron-3-nano-30b-a3b", 8192, Budget(pool_bytes=spent), 4, kv_dtype="fp8",
        version="0.5.21",
    )  # fmt: skip
    slots = {g.kind: g.layers * g.page_bytes for g in found.groups}

    assert found.pool is not None
    assert 2212 * slots["recurrent"] / GIB == pytest.approx(24.84, abs=0.005)
    assert 2212 * slots["conv"] / GIB == pytest.approx(0.44, abs=0.005)
    assert 19_644_178 * slots["full"] / GIB == pytest.approx(14.05 * 2, abs=0.01)
    assert found.pool.pool_tokens.value == pytest.approx(19_644_177, rel=0.001)


def test_states_take_their_share_before_tokens() -> None:
    """A budget of 58.74 GiB: states at 0.9 to 1, the rest tokens; one slot is padding."""
    budget = 58 * GIB
    found = reserve("qwen3.5-27b", 8192, Budget(pool_bytes=budget), kv_dtype="fp8")
    per_slot = group_bytes(found, "recurrent", "conv")
    slots = int((budget * 0.9 / 1.9 - per_slot) // per_slot)

    assert found.pool is not None
    assert found.pool.pool_tokens.value == (budget - (slots + 1) * per_slot) // 32_768
    assert found.pool.max_batch_size == min(slots // 5, found.pool.pool_tokens.value // 8192)


def test_default_pool_of_an_h100_is_within_one_per_cent_of_the_log() -> None:
    """Qwen3-30B-A3B-FP8 on an H100, default fraction, public log of 2026-08-27: 78.48 GiB free
    before loading, 29.15 loaded, 392,920 tokens."""
    found = reserve("qwen3-30b-a3b-fp8", 40_960, Budget(device=load_device("h100")))

    assert found.pool is not None
    assert found.loaded_bytes is not None
    assert found.pool.pool_tokens.value == pytest.approx(392_920, rel=0.01)
    assert found.pool.pool_tokens.low < 392_920 < found.pool.pool_tokens.high
    assert found.loaded_bytes.low < 29.15 * GIB < found.loaded_bytes.high
    assert found.settings["mem_fraction_static"] == pytest.approx(0.830, abs=0.0015)
    assert capture_sizes(8192) == 58


def test_pool_with_a_stated_fraction_agrees_with_a_log() -> None:
    """Llama-3.1-8B on an H100, 0.88, public log of 2025-01-23: 78.81 free, 63.72 after loading,
    K and V 27.13 each."""
    found = reserve("llama-3.1-8b", 8192, Budget(device=load_device("h100"), fraction=0.88))

    assert found.pool is not None
    assert found.pool.pool_bytes.value == pytest.approx(27.13 * 2 * GIB, rel=0.01)
    assert found.pool.pool_bytes.low < 27.13 * 2 * GIB < found.pool.pool_bytes.high


@pytest.mark.parametrize(
    ("name", "kv", "device", "tp", "bytes_per_token"),
    [
        ("llama-3-70b", "auto", "h100", 8, 40_960),
        ("llama-3-70b", "auto", "h100", 16, 40_960),
        ("llama-3-70b", "fp8", "h100", 8, 20_480),
        ("deepseek-v3", "auto", "h200", 8, 61 * 1152),
        ("deepseek-v3", "fp8", "h200", 8, 61 * 576),
        ("deepseek-v3.2", "fp8", "h200", 8, 61 * (656 + 132)),
        ("deepseek-v3.2", "auto", "h200", 8, 61 * (1152 + 132)),
        ("deepseek-v3.2", "auto", "b200", 8, 61 * (576 + 132)),
        ("gemma-3-27b", "auto", "h100", 1, 62 * 8192),
    ],
)
def test_cell_of_a_token(name: str, kv: str, device: str, tp: int, bytes_per_token: int) -> None:
    """DeepSeek-V3.2: 656 B packed in fp8 on Hopper, raw 576 B on Blackwell, 16 bits by default
    on Hopper; keys of the indexer 132 B. Gemma 3 has no window pool."""
    found = reserve(name, 8192, Budget(device=load_device(device)), tp, kv_dtype=kv)

    assert found.bytes_per_block == bytes_per_token * found.block_size


def test_shared_layers_have_rows_of_their_own() -> None:
    """Gemma 4 E2B: 20 of 35 layers read others' rows, yet the pools count all 35."""
    found = reserve("gemma-4-e2b", 8192)

    assert sum(group.layers for group in found.groups) == 35
    assert [r.name for r in found.reasons if r.bytes] == ["window_page", "shared_layers"]


def test_window_pool_that_holds_no_request_does_not_fit() -> None:
    """SGLang refuses to start when the window and a page fill the pool."""
    found = reserve("gpt-oss-120b", 8192, Budget(num_blocks=160))

    assert found.pool is not None
    assert (found.pool.max_concurrency, found.pool.fits) == (0.0, False)


def test_capped_window_pool_is_sized_by_requests() -> None:
    """Without prefix reuse and with max_running_requests N the window pool has
    (window + 128 + 2 pages) N + two prefill steps + a page; the full pool gets the rest."""
    options = {
        "disable_radix_cache": "true", "max_running_requests": "16", "chunked_prefill_size": "2048",
    }  # fmt: skip
    cell = 18 * 2048
    window = (128 + 128 + 2) * 16 + 2 * 2048 + 1

    found = reserve("gpt-oss-120b", 8192, Budget(pool_bytes=2 * GIB), options=options)

    assert found.pool is not None
    assert found.pool.pool_tokens.value == (2 * GIB - window * cell) // cell


def test_older_release_prices_all_layers_alike() -> None:
    """Up to 0.5.8 a pool of equal layers is dealt out: MiMo's full layers (4 heads) stand for its
    windows (8 heads), which is why PR 18039 changed it."""
    full = 9 * (4 // 4) * (192 + 128) * 2
    cell = full / 9 * (9 + 0.8 * 39)

    found = reserve("mimo-v2-flash", 8192, Budget(pool_bytes=16 * GIB), 4, version="0.5.6")

    assert found.pool is not None
    assert found.pool.pool_tokens.value == int(16 * GIB // cell)
    assert not found.warnings
    assert reserve("mimo-v2-flash", 8192, version="0.5.22").warnings


@pytest.mark.parametrize(
    "name",
    ["llama-3.1-8b", "gpt-oss-120b", "gemma-3-27b", "gemma-4-e2b", "deepseek-v3.2",
     "qwen3-next-80b-a3b", "qwen3.5-27b", "mimo-v2-flash", "llama-4-scout", "jamba-v0.1"],
)  # fmt: skip
@pytest.mark.parametrize("context", [1, 1000, 40_000])
@pytest.mark.parametrize("page", [1, 64])
def test_reasons_sum_to_the_difference(name: str, context: int, page: int) -> None:
    deployment = Deployment(options={"page_size": str(page)})
    case = fit.Case(load_model(name), context, 1, engines.load("sglang"), deployment)

    row = fit.size(case).row

    total = sum(reason["bytes"] for reason in row["reasons"])
    assert row["request_bytes"] == row["sequence_bytes"] + total


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-120b", "qwen3-next-80b-a3b"])
def test_more_memory_never_holds_less(name: str) -> None:
    sizes = [reserve(name, 8192, Budget(pool_bytes=n * GIB)).pool for n in (1, 2, 5, 20, 80)]
    tokens = [pool.pool_tokens.value for pool in sizes if pool is not None]

    assert len(tokens) == 5
    assert tokens == sorted(tokens)


@pytest.mark.parametrize(
    ("name", "deployed", "error"),
    [
        ("llama-3.1-8b", {"kv_dtype": "q8_0"}, UsageError),
        ("llama-3.1-8b", {"k_dtype": "fp8"}, UsageError),
        ("llama-3.1-8b", {"options": {"block_size": "16"}}, UsageError),
        ("llama-3.1-8b", {"version": "0.4.9"}, UsageError),
        ("llama-3.1-8b", {"version": "main"}, UsageError),
        ("deepseek-v4-flash", {}, KvtoolError),
        ("whisper-large-v3", {}, KvtoolError),
    ],
)
def test_what_sglang_has_not_is_refused(
    name: str, deployed: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        reserve(name, 448, **deployed)


def test_context_parallelism_is_named_as_not_covered() -> None:
    deployment = Deployment(parallel=Parallel(tp=16, dcp=2))

    with pytest.raises(UsageError, match="not covered"):
        engines.load("sglang").reserve(load_model("llama-3-70b"), 8192, 1, deployment)
