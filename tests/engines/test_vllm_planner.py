"""The vLLM adapter against the rows of vLLM's own planner (tests/oracles/vllm_oracle.py)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvtool import engines
from kvtool.engines.base import Budget, Deployment
from kvtool.model.huggingface import read_config
from kvtool.model.spec import ModelSpec, Parallel

GOLDEN = Path(__file__).parent.parent / "golden"
OPTIONS = ("block_size", "max_num_batched_tokens", "async_scheduling", "mamba_cache_mode",
           "num_speculative_tokens")  # fmt: skip


@cache
def model(name: str) -> ModelSpec:
    configs = json.loads((GOLDEN / "vllm_planner_models.json").read_text("utf-8"))
    return read_config(configs[name]["config"], name, name)[0]


def rows() -> list[Any]:
    found = []
    for version in ("0.22.1", "0.33.0"):
        golden = json.loads((GOLDEN / f"vllm_planner_{version}.json").read_text("utf-8"))
        for i, row in enumerate(golden["rows"]):
            case = {**golden["defaults"], **row}
            name = f"{version}-{i}-{row['model']}"
            found.append(pytest.param(version, case, id=name))
    return found


KV = {"int8_per_token_head": "int8", "fp8_ds_mla": "fp8"}


@pytest.mark.parametrize(("version", "case"), rows())
def test_plan_is_that_of_vllms_own_planner(version: str, case: dict[str, Any]) -> None:
    spec = model(case["model"])
    options = {name: str(case[name]) for name in OPTIONS}
    options["disable_hybrid_kv_cache_manager"] = str(not case["hybrid"])
    options["mamba_block_size"] = "256"
    if not case["encoder_tokens"]:
        options["max_num_encoder_input_tokens"] = str(case["max_num_batched_tokens"])
    kv = KV.get(case["kv_dtype"], case["kv_dtype"])
    kv = spec.dtype if kv == "auto" else kv
    draft = model(case["model"]) if case["eagle_layers"] else None
    deployment = Deployment(
        Parallel(tp=case["tp"], pp=case["pp"], dcp=case["dcp"]),
        kv_dtype=kv,
        encoder_tokens=case["encoder_tokens"],
        mtp=case["mtp"],
        draft=draft and eagle(draft),
        options=options,
    )

    found = engines.load("vllm", version).reserve(
        spec, case["context"], 1, deployment, Budget(pool_bytes=case["pool_bytes"])
    )

    assert found.pool is not None
    assert found.bytes_per_block == case["bytes_per_block"]
    assert found.blocks_per_request == case["blocks_per_request"]
    assert found.request_bytes == case["request_bytes"]
    assert found.pool.num_blocks.value == case["num_blocks"]
    assert found.pool.pool_tokens.value == case["pool_tokens"]
    assert found.pool.max_concurrency == case["max_concurrency"]


def eagle(target: ModelSpec) -> ModelSpec:
    """A drafter of one full-attention layer with the target's heads."""
    from dataclasses import replace

    from kvtool.model.spec import Attention, Layer

    state = next(s for s in target.states() if isinstance(s, Attention))
    layer = Layer((replace(state, kind="full", limit=None),))
    return replace(target, layers=(layer,), mtp_layers=())
