"""What real vLLM servers printed: groups, blocks, tokens, weights and pools.

H200: runs of vLLM 0.22.1 with random weights on one H200 (150,109,880,320 B), utilisation 0.9,
128 sequences, 16,384 batched tokens, eager unless said (this project's own measurements). H100: the
accuracy report of llm-d-incubation/llm-d-planner, pull request 205, and its
docs/empirical-vllm-memory-results.md: one H100 (79.19 GiB), servers of vLLM 0.11 to 0.19.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvtool import engines
from kvtool.device import load_device
from kvtool.engines.base import Budget, Deployment, Reserve
from kvtool.model.huggingface import read_config
from kvtool.model.spec import Attention, Layer, ModelSpec, Parallel, Recurrent

GIB = 1 << 30
MODELS = Path(__file__).parent.parent / "golden" / "vllm_planner_models.json"


@cache
def model(name: str, layers: int | None = None) -> ModelSpec:
    """The text model of that name; its first `layers` alone where given."""
    config = json.loads(MODELS.read_text("utf-8"))[name]["config"]
    spec = read_config(config.get("text_config", config), name, name)[0]
    return replace(spec, layers=spec.layers[:layers])


@dataclass(frozen=True)
class Run:
    """A run on the H200: what it was started with and what it logged."""

    model: str
    context: int
    num_blocks: int
    groups: list[tuple[int, int, int]]
    tokens: int
    concurrency: str
    tokens_033: int
    weights_gib: float
    pool_bytes: int
    options: dict[str, str] = field(default_factory=dict)
    layers: int | None = None


RUNS = {
    "llama": Run("llama-3.1-8b", 8192, 55742, [(32, 16, 65536)], 891_872, "108.87", 891_872,
                 15.0, 116_899_446_784),
    "llama-graphs": Run("llama-3.1-8b", 8192, 55585, [(32, 16, 65536)], 889_360, "108.56", 889_360,
                        15.0, 116_570_193_920, {"enforce_eager": "false"}),
    "llama-2048": Run("llama-3.1-8b", 8192, 56456, [(32, 16, 65536)], 903_296, "110.27", 903_296,
                      15.0, 118_396_813_312, {"max_num_batched_tokens": "2048"}),
    "gemma-3": Run("gemma-3-12b", 8192, 103_256, [(8, 16, 131_072)] * 6, 274_901, "33.56", 274_901,
                   22.74, 108_271_763_456),
    "gpt-oss-20b": Run("gpt-oss-20b", 8192, 302_956, [(12, 16, 32768)] * 2, 2_421_283, "295.57",
                       2_421_283, 13.58, 119_127_146_496),
    "gpt-oss-120b": Run("gpt-oss-120b", 131_072, 108_962, [(18, 16, 32768)] * 2, 1_548_169, "11.81",
                        1_393_488, 64.67, 64_268_402_688),
    "mistral": Run("mistral-7b-v0.1", 32768, 56514, [(32, 16, 65536)], 1_445_629, "44.12", 903_782,
                   13.5, 118_518_448_128),
    "deepseek-v2": Run("deepseek-v2-lite", 32768, 203_596, [(27, 16, 18432)], 3_257_536, "99.41",
                       3_257_536, 29.4, 101_322_399_744),
    "qwen3-next": Run("qwen3-next-80b", 32768, 17443, [(4, 32768, 1_114_112)] * 3
                      + [(4, 544, 1_114_112)], 8_930_816, "272.55", 8_530_928,
                      50.29, 77_733_822_464, layers=16),
    "lfm2": Run("lfm2-1.2b", 32768, 668_299, [(5, 32768, 32768)] * 2 + [(6, 16, 32768)], 10_682_352,
                "326.00", 10_671_940, 2.2, 131_392_929_792),
    "mamba": Run("mamba-2.8b", 8192, 10307, [(64, 8192, 194_560)], 84_434_944, "10307.00",
                 84_434_944, 5.23, 128_341_114_880),
}  # fmt: skip


def reserve(run: Run, version: str, budget: Budget) -> Reserve:
    options = {"max_num_batched_tokens": "16384", "max_num_seqs": "128", "enforce_eager": "true"}
    deployment = Deployment(options=options | run.options)
    spec = model(run.model, run.layers)
    return engines.load("vllm", version).reserve(spec, run.context, 1, deployment, budget)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_pool_of_blocks_gives_the_tokens_that_the_run_logged(run: Run) -> None:
    found = reserve(run, "0.22.1", Budget(num_blocks=run.num_blocks))

    assert found.pool is not None
    assert found.pool.pool_bytes.value == run.pool_bytes
    assert found.pool.pool_tokens.value == run.tokens
    assert f"{found.pool.max_concurrency:.2f}" == run.concurrency


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_groups_are_those_of_the_run(run: Run) -> None:
    found = reserve(run, "0.22.1", Budget(num_blocks=run.num_blocks))

    groups = [(group.layers, group.block_size, group.page_bytes) for group in found.groups]
    assert sorted(groups) == sorted(run.groups)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_0_33_counts_two_batches_in_flight_and_two_states(run: Run) -> None:
    """0.33.0's own planner on the same blocks, with its default of align mode for hybrids."""
    found = reserve(run, "0.33.0", Budget(num_blocks=run.num_blocks))

    assert found.pool is not None
    assert found.pool.pool_tokens.value == run.tokens_033


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_loaded_weights_are_within_0_4_percent_of_the_run(run: Run) -> None:
    found = reserve(run, "0.22.1", Budget(load_device("h200"), 0.9))

    assert found.loaded_bytes is not None
    assert found.loaded_bytes.value / GIB == pytest.approx(run.weights_gib, rel=0.004)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_pool_is_within_0_3_percent_of_the_run_and_in_its_range(run: Run) -> None:
    found = reserve(run, "0.22.1", Budget(load_device("h200"), 0.9))

    assert found.pool is not None
    assert found.pool.pool_bytes.value == pytest.approx(run.pool_bytes, rel=0.003)
    assert found.pool.pool_bytes.low <= run.pool_bytes <= found.pool.pool_bytes.high


# H100: model, version, ranks (tp, pp), dtype of weights, printed weights and pool in GiB.
H100: dict[str, Any] = {
    "llama": ("llama-3.1-8b", "0.19.0", 1, 1, "auto", 14.99, 58.11),
    "llama-fp8": ("llama-3.1-8b", "0.19.0", 1, 1, "fp8-tensor", 8.49, 64.61),
    "llama-float32": ("llama-3.1-8b", "0.19.0", 1, 1, "float32", 29.98, 42.8),
    "llama-tp2": ("llama-3.1-8b", "0.19.0", 2, 1, "auto", 7.51, None),
    "llama-tp4": ("llama-3.1-8b", "0.19.0", 4, 1, "auto", 3.77, None),
    "llama-pp2": ("llama-3.1-8b", "0.19.0", 1, 2, "auto", 7.51, None),
    "qwen3-8b": ("qwen3-8b", "0.19.0", 1, 1, "auto", 15.27, None),
    "qwen3-8b-pp3": ("qwen3-8b", "0.19.0", 1, 3, "auto", 5.48, None),
    "qwen2.5": ("qwen2.5-7b", "0.19.0", 1, 1, "auto", 14.25, 58.53),
    "qwen2.5-tp2": ("qwen2.5-7b", "0.19.0", 2, 1, "auto", 7.12, None),
    "qwen2.5-tp4": ("qwen2.5-7b", "0.19.0", 4, 1, "auto", 3.55, None),
    "qwen3-14b-0.16": ("qwen3-14b", "0.16.0", 1, 1, "auto", 27.52, 41.94),
    "qwen3-14b-0.17": ("qwen3-14b", "0.17.0", 1, 1, "auto", 27.52, 45.34),
}


def h100(name: str, version: str, tp: int, pp: int, dtype: str) -> Reserve:
    spec = model(name)
    spec = replace(spec, dtype="float32") if dtype == "float32" else spec
    deployment = Deployment(Parallel(tp=tp, pp=pp), dtype=dtype)
    budget = Budget(load_device("h100"), 0.95)
    return engines.load("vllm", version).reserve(spec, 8192, 1, deployment, budget)


@pytest.mark.parametrize("case", H100.values(), ids=H100)
def test_weights_of_the_h100_sweep_are_within_0_2_percent(case: tuple[Any, ...]) -> None:
    """Out of sample: nothing in the rules was fitted on this sweep but the allocator's split."""
    *start, weights, _ = case

    found = h100(*start)

    assert found.loaded_bytes is not None
    assert found.loaded_bytes.value / GIB == pytest.approx(weights, rel=0.002)


WITH_POOL = {name: case for name, case in H100.items() if case[-1]}


@pytest.mark.parametrize("case", WITH_POOL.values(), ids=WITH_POOL)
def test_pools_of_the_h100_sweep_are_within_0_7_percent(case: tuple[Any, ...]) -> None:
    *start, _, pool = case

    found = h100(*start)

    assert found.pool is not None
    assert found.pool.pool_bytes.value / GIB == pytest.approx(pool, rel=0.007)
    assert found.pool.pool_bytes.low / GIB - 0.005 <= pool <= found.pool.pool_bytes.high / GIB


def test_before_0_21_tokens_are_the_blocks_of_one_group() -> None:
    """Nemotron-3-Nano-4B's log: 1473 blocks of 992 tokens in 7 groups are 208,320 tokens, 98.20x.

    A request of 8192 tokens takes 9 blocks of the attention group and 1 of each of six others.
    """
    attention = Layer((Attention(8, 2, 128, 128),))
    mamba = Layer((Recurrent("recurrent", ((992 * 512, 8),), "bfloat16"),))
    spec = ModelSpec("hybrid", "nemotron_h", "bfloat16", (attention, *[mamba] * 6))

    found = engines.load("vllm", "0.19.0").reserve(
        spec, 8192, 1, Deployment(), Budget(num_blocks=1473)
    )

    assert found.pool is not None
    assert found.pool.pool_tokens.value == 208_320
    assert f"{found.pool.max_concurrency:.2f}" == "98.20"
