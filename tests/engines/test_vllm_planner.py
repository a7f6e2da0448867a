"""The vLLM adapter against the rows of vLLM's own planner (tests/oracles/vllm_oracle.py)."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvtool import engines
from kvtool.engines.base import Budget, Deployment, Reserve
from kvtool.model.huggingface import read_config
from kvtool.model.spec import Attention, Layer, ModelSpec, Parallel, stages

GOLDEN = Path(__file__).parent.parent / "golden"
OPTIONS = {
    "block_size": "block_size",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "async_scheduling": "async_scheduling",
    "mamba_cache_mode": "mamba_cache_mode",
    "num_speculative_tokens": "num_speculative_tokens",
    "ssm_dtype": "mamba_ssm_cache_dtype",
}
KV = {"int8_per_token_head": "int8", "fp8_ds_mla": "fp8"}


@cache
def model(name: str, layers: int | None = None) -> ModelSpec:
    """The model of that name; its first `layers` alone where given."""
    configs = json.loads((GOLDEN / "vllm_planner_models.json").read_text("utf-8"))
    spec = read_config(configs[name]["config"], name, name)[0]
    return replace(spec, layers=spec.layers[:layers])


def rows(*versions: str) -> list[Any]:
    """The golden rows of `versions` with every setting written out."""
    found = []
    for version in versions:
        golden = json.loads((GOLDEN / f"vllm_planner_{version}.json").read_text("utf-8"))
        for i, row in enumerate(golden["rows"]):
            case = {**golden["defaults"], **row}
            found.append(pytest.param(version, case, id=f"{version}-{i}-{row['model']}"))
    return found


def reserve(version: str, case: dict[str, Any]) -> Reserve:
    """The adapter's answer to a golden case."""
    spec = model(case["model"], case["layers"])
    options = {theirs: str(case[ours]) for ours, theirs in OPTIONS.items()}
    options["disable_hybrid_kv_cache_manager"] = str(not case["hybrid"])
    options["mamba_block_size"] = "256"
    options["gdn_prefill_backend"] = "flashinfer" if case["flashinfer_delta"] else "triton"
    options["max_num_encoder_input_tokens"] = str(
        case["encoder_tokens"] or case["max_num_batched_tokens"]
    )
    kv = KV.get(case["kv_dtype"], case["kv_dtype"])
    deployment = Deployment(
        Parallel(tp=case["tp"], pp=case["pp"], dcp=case["dcp"]),
        kv_dtype=spec.dtype if kv == "auto" else kv,
        encoder_tokens=case["encoder_tokens"],
        mtp=case["mtp"],
        draft=eagle(spec) if case["eagle_layers"] else None,
        options=options,
    )
    budget = Budget(pool_bytes=case["pool_bytes"])
    return engines.load("vllm", version).reserve(spec, case["context"], 1, deployment, budget)


def eagle(target: ModelSpec) -> ModelSpec:
    """A drafter of one full-attention layer with the target's heads."""
    state = next(s for s in target.states() if isinstance(s, Attention))
    layer = Layer((replace(state, kind="full", limit=None),))
    return replace(target, layers=(layer,), mtp_layers=())


@pytest.mark.parametrize(("version", "case"), rows("0.22.1", "0.33.0"))
def test_plan_is_that_of_vllms_own_planner(version: str, case: dict[str, Any]) -> None:
    found = reserve(version, case)

    assert found.pool is not None
    assert found.bytes_per_block == case["bytes_per_block"]
    assert found.blocks_per_request == case["blocks_per_request"]
    assert found.request_bytes == case["request_bytes"]
    assert found.pool.num_blocks.value == case["num_blocks"]
    assert found.pool.pool_tokens.value == case["pool_tokens"]
    assert found.pool.max_concurrency == case["max_concurrency"]


@pytest.mark.parametrize(("version", "case"), rows("0.22.1", "0.33.0"))
def test_groups_are_those_of_vllms_own_planner(version: str, case: dict[str, Any]) -> None:
    """Layers on the stage with the widest groups, block sizes and page bytes, in vLLM's order."""
    stage = max(
        range(case["pp"]), key=lambda s: max(counts[s] * page for counts, _, page in case["groups"])
    )
    expected = [(counts[stage], block, page) for counts, block, page in case["groups"]]

    found = reserve(version, case)

    assert [(g.layers, g.block_size, g.page_bytes) for g in found.groups] == expected


@pytest.mark.parametrize(("version", "case"), rows("0.22.1", "0.33.0"))
def test_reasons_explain_every_byte(version: str, case: dict[str, Any]) -> None:
    """Logical bytes plus the bytes of all reasons are the bytes a request reserves."""
    spec = model(case["model"], case["layers"])

    found = reserve(version, case)

    kept = fullest_stage_bytes(spec, case, found)
    assert kept + sum(reason.bytes for reason in found.reasons) == found.request_bytes


def fullest_stage_bytes(spec: ModelSpec, case: dict[str, Any], found: Reserve) -> int:
    """Logical bytes on the stage whose blocks are largest, drafted layers included."""
    extra = spec.mtp_layers if case["mtp"] else ()
    extra += eagle(spec).layers if case["eagle_layers"] else ()
    parts = [list(part) for part in stages(spec.layers, case["pp"])]
    parts[-1] += extra
    stage = max(
        range(case["pp"]), key=lambda s: max(counts[s] * page for counts, _, page in case["groups"])
    )
    parallel = Parallel(tp=case["tp"], pp=case["pp"], dcp=case["dcp"])
    encoder = case["encoder_tokens"] or case["max_num_batched_tokens"]
    return sum(
        state.bytes(case["context"], found.kv, parallel, encoder)
        for layer in parts[stage]
        for state in layer.states
    )
