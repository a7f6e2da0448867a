"""Advice: when it is given, and that its figures are those of the adapter run again."""

from __future__ import annotations

from typing import Any

import pytest

import kvtool


def row(model: str, engine: str, **asked: Any) -> dict[str, Any]:
    return kvtool.size(model, engine=engine, **asked).results[0]


def advice(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in found["advice"]}


def test_hybrid_manager_costs_more_than_it_saves_for_gemma_at_8k() -> None:
    """Gemma-3-27B, 8,192 tokens, vLLM 0.22.1: 4,705,484,800 B with the hybrid manager and
    4,160,749,568 without it, from vLLM's own planner (docs/engines/vllm.md)."""
    found = row("gemma-3-27b", "vllm@0.22.1", ctx="8k")
    entry = advice(found)["hybrid_manager"]

    assert (entry["before"], entry["after"]) == (4_705_484_800, 4_160_749_568)
    assert entry["figure"] == "request_bytes"
    off = row("gemma-3-27b", "vllm@0.22.1", ctx="8k", engine_opt=[entry["option"]])
    assert off["request_bytes"] == 4_160_749_568
    assert "hybrid_manager" not in advice(off)


def test_hybrid_manager_is_left_alone_where_windows_save() -> None:
    """At 131,072 tokens the manager saves four fifths: 15.3 of 66.6 GB."""
    assert "hybrid_manager" not in advice(row("gemma-3-27b", "vllm@0.22.1", ctx="128k"))


def test_fewer_batched_tokens_free_tokens_of_the_pool() -> None:
    found = row("gpt-oss-120b", "vllm", ctx="8k", gpu="h100")
    entry = advice(found)["batched_tokens"]
    again = row("gpt-oss-120b", "vllm", ctx="8k", gpu="h100", engine_opt=[entry["option"]])

    assert entry["option"] == "max_num_batched_tokens=2048"
    assert (entry["before"], entry["after"]) == (found["pool_tokens"], again["pool_tokens"])
    assert f"{again['pool_tokens'] - found['pool_tokens']:,} tokens" in entry["text"]


def test_batched_tokens_need_a_pool_to_free() -> None:
    assert "batched_tokens" not in advice(row("gpt-oss-120b", "vllm", ctx="8k"))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_ranks_beyond_the_heads_only_replicate(engine: str) -> None:
    """Llama-3-70B has 8 KV heads: at tp 16 a device holds what it holds at tp 8."""
    wide = row("llama-3-70b", engine, ctx="8k", tp=16)
    narrow = row("llama-3-70b", engine, ctx="8k", tp=8)

    assert wide["request_bytes"] == narrow["request_bytes"] == 335_544_320
    assert "8 KV heads on 16 ranks" in advice(wide)["replicated_heads"]["text"]
    assert "replicated_heads" not in advice(narrow)


def test_context_parallel_ranks_split_what_would_be_copies() -> None:
    """DeepSeek-V3 at tp 8: 575,668,224 B on every device, an eighth of it with dcp 8."""
    entry = advice(row("deepseek-v3", "vllm", ctx="8k", tp=8))["replicated_heads"]
    split = row("deepseek-v3", "vllm", ctx="8k", tp=8, dcp=8)

    assert (entry["before"], entry["after"]) == (575_668_224, split["request_bytes"])
    assert split["request_bytes"] == 71_958_528
    assert split["advice"] == []


def test_block_is_larger_than_a_short_prompt() -> None:
    """Qwen3-Next, vLLM 0.22.1: blocks of 544 tokens, a page for each of four groups."""
    found = row("qwen3-next-80b-a3b", "vllm@0.22.1", ctx="32k")
    entry = advice(found)["large_block"]

    assert found["block_size"] == 544
    assert entry["after"] == 4 * 13_369_344
    assert entry["before"] == found["request_bytes"] == 855_638_016
    assert "large_block" not in advice(row("llama-3-70b", "vllm", ctx="8k"))


def test_window_pool_of_sglang_is_larger_than_windows_need() -> None:
    found = row("gpt-oss-120b", "sglang", ctx="8k", gpu="h100")
    entry = advice(found)["window_ratio"]
    again = row("gpt-oss-120b", "sglang", ctx="8k", gpu="h100", engine_opt=[entry["option"]])

    assert (entry["before"], entry["after"]) == (found["pool_tokens"], again["pool_tokens"])
    assert again["max_concurrency"] > found["max_concurrency"]
    assert "window_ratio" not in advice(again)


def test_windows_of_tensorrt_llm_are_worth_naming() -> None:
    found = row("gemma-3-27b", "trtllm", ctx="32k", gpu="h100")
    entry = advice(found)["attention_window"]
    again = row("gemma-3-27b", "trtllm", ctx="32k", gpu="h100", engine_opt=[entry["option"]])

    assert entry["option"] == "max_attention_window=1024,1024,1024,1024,1024,32768"
    assert (entry["before"], entry["after"]) == (found["request_bytes"], again["request_bytes"])
    assert again["max_concurrency"] > 2 * found["max_concurrency"]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "transformers"])
def test_a_plain_model_on_one_device_needs_no_advice(engine: str) -> None:
    assert row("llama-3.1-8b", engine, ctx="8k")["advice"] == []
