"""TensorRT-LLM: bytes of the pool from its printed tokens, tokens from its printed blocks."""

from __future__ import annotations

from kvtool.auditing.findings import (
    Finding,
    Overrides,
    Prediction,
    judge,
    model_of,
    unknown,
    unknown_model,
    whole,
)
from kvtool.engines import trtllm
from kvtool.engines.base import Deployment
from kvtool.engines.logs import Figure, Start
from kvtool.engines.trtllm_options import OPTIONS
from kvtool.errors import KvtoolError
from kvtool.model.spec import ModelSpec, Parallel

NAMES = ("model", "model_path")


def audit(start: Start, overrides: Overrides) -> list[Finding]:
    """A finding for every figure of `start`."""
    return [_finding(start, overrides, figure) for figure in start.figures]


def _finding(start: Start, overrides: Overrides, figure: Figure) -> Finding:
    said = {**start.settings, **overrides.settings}
    block = whole(said.get("tokens_per_block"))
    if figure.name == "tokens":
        blocks = [f for f in start.figures if f.name == "blocks" and f.line <= figure.line]
        if block and blocks:
            value = blocks[-1].value * block
            return judge(figure, Prediction.exact(value, "blocks printed above x their tokens"))
        return unknown(figure, "what the figures below are predicted from")
    tokens = whole(figure.about.get("tokens"))
    if figure.name != "pool" or not tokens:
        return unknown(figure, "no rule for this figure")
    model = model_of(start, overrides, NAMES)
    if model is None:
        return unknown(figure, unknown_model(start, NAMES))
    try:
        value = _bytes(model, tokens, said, overrides)
    except KvtoolError as error:
        return unknown(figure, f"the settings cannot be used: {error}")
    return judge(figure, Prediction.exact(value, "tokens printed x bytes of a token"))


def _bytes(model: ModelSpec, tokens: int, said: dict[str, str], overrides: Overrides) -> int:
    """What a request of all those tokens takes, which is what the pool was allocated for."""
    options = overrides.options_of(OPTIONS)
    if "tokens_per_block" in said:
        options.setdefault("tokens_per_block", said["tokens_per_block"])
    deployment = Deployment(
        parallel=Parallel(tp=whole(said.get("tensor_parallel_size")) or 1),
        kv_dtype=said.get("kv_cache_dtype", "auto"),
        options=options,
    )
    adapter = trtllm.load(overrides.version)
    return adapter.reserve(model, tokens, 1, deployment).request_bytes
