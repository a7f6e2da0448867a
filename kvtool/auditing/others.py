"""SGLang and TensorRT-LLM: the figures that follow from a model's rows alone.

Their pools divide memory by rules that are not applied here; bytes of a printed number of tokens
are. Models with windows or recurrent states have pools of their own, and stay unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvtool import kvcache
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
from kvtool.dtype import DTYPES, KVFormat, load_dtype
from kvtool.engines.logs import Figure, Start
from kvtool.errors import KvtoolError
from kvtool.model.spec import Attention, Index, Latent, ModelSpec, Parallel

SGLANG_NAMES = ("model_path", "served_model_name", "model")
TRTLLM_NAMES = ("model", "model_path")
PLAIN = "no rule for this figure yet"
POOLS = "windows, recurrent states and index keys have pools of their own here: not predicted yet"


@dataclass(frozen=True, slots=True)
class Rows:
    """Bytes of a token's keys and values on one rank, over all layers."""

    k: int
    v: int


def audit_sglang(start: Start, overrides: Overrides) -> list[Finding]:
    """Sizes of the pool from its printed tokens: one page more than the tokens is allocated."""
    return _audit(start, overrides, SGLANG_NAMES, _sglang)


def audit_trtllm(start: Start, overrides: Overrides) -> list[Finding]:
    """Bytes allocated for the printed tokens; tokens of the printed blocks."""
    return _audit(start, overrides, TRTLLM_NAMES, _trtllm)


def _audit(start: Start, overrides: Overrides, names: tuple[str, ...], find) -> list[Finding]:  # type: ignore[no-untyped-def]
    model = model_of(start, overrides, names)
    if model is None:
        return [unknown(figure, unknown_model(start, names)) for figure in start.figures]
    said = {**start.settings, **overrides.settings}
    try:
        rows = _rows(model, said)
    except KvtoolError as error:
        return [
            unknown(figure, f"the settings cannot be used: {error}") for figure in start.figures
        ]
    return [find(figure, rows, said, start) for figure in start.figures]


def _rows(model: ModelSpec, said: dict[str, str]) -> Rows | None:
    """Bytes per token of a model whose layers all keep the same kind of row; None for others."""
    tp = whole(said.get("tp_size")) or whole(said.get("tensor_parallel_size")) or 1
    kvcache.check_parallel(model, Parallel(tp=tp))
    kv = _format(model, said)
    k = v = 0
    for state in model.states():
        if isinstance(state, Latent) and state.stride == 1:
            k += state.row_bytes(kv)
        elif isinstance(state, Attention) and state.kind == "full":
            heads = -(-state.num_kv_heads // tp)
            k += kv.k.row_bytes(heads, state.head_dim)
            v += kv.v.row_bytes(heads, state.v_head_dim)
        elif isinstance(state, Index) or state.kind != "shared":
            return None
    return Rows(k, v)


def _format(model: ModelSpec, said: dict[str, str]) -> KVFormat:
    name = said.get("kv_pool_dtype") or said.get("kv_cache_dtype") or "auto"
    name = {"uint8": "fp8"}.get(name, name)
    dtype = DTYPES[model.dtype] if name == "auto" else load_dtype(name)
    return KVFormat(dtype, dtype)


def _sglang(figure: Figure, rows: Rows | None, said: dict[str, str], start: Start) -> Finding:
    tokens = whole(figure.about.get("tokens"))
    if figure.name not in ("k_size", "v_size", "kv_size") or tokens is None:
        return unknown(figure, PLAIN)
    if rows is None:
        return unknown(figure, POOLS)
    row = {"k_size": rows.k, "v_size": rows.v}.get(figure.name, rows.k + rows.v)
    page = whole(said.get("page_size"))
    value = (tokens + (page or 1)) * row
    low, high = (value, value) if page else (tokens * row, (tokens + 256) * row)
    why = "(tokens printed above + one page) x bytes of a row"
    return judge(figure, Prediction(value, low, high, why))


def _trtllm(figure: Figure, rows: Rows | None, said: dict[str, str], start: Start) -> Finding:
    block = whole(said.get("tokens_per_block"))
    if figure.name == "tokens" and block:
        blocks = [f for f in start.figures if f.name == "blocks" and f.line <= figure.line]
        if blocks:
            value = blocks[-1].value * block
            return judge(figure, Prediction.exact(value, "blocks printed above x their tokens"))
    tokens = whole(figure.about.get("tokens"))
    if figure.name != "pool" or tokens is None:
        return unknown(figure, PLAIN)
    if rows is None:
        return unknown(figure, POOLS)
    value = tokens * (rows.k + rows.v)
    return judge(figure, Prediction.exact(value, "tokens printed x bytes of a row"))
