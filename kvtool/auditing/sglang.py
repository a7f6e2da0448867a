"""SGLang: bytes of each pool from its printed tokens or slots, and what weights take.

How many tokens a pool gets is decided by the memory left after loading, which the log of one rank
does not tell; the printed numbers are taken, and what follows from them is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from kvtool.engines.base import Deployment
from kvtool.engines.logs import Figure, Start
from kvtool.engines.sglang_cells import Cell, cells
from kvtool.engines.sglang_memory import loaded_bytes
from kvtool.engines.sglang_options import OPTIONS, Settings, settle
from kvtool.engines.sglang_releases import find_release
from kvtool.errors import KvtoolError
from kvtool.model.spec import Attention, ModelSpec, Parallel, shares

NAMES = ("model_path", "served_model_name", "model")
TYPES = {"uint8": "fp8", "float8_e4m3fn": "fp8"}
MAX_PAGE = 256
COUNTED = "what the figures below are predicted from"


@dataclass(frozen=True, slots=True)
class Case:
    """A start as SGLang would see it: its cells, settings and deployment."""

    model: ModelSpec
    deployment: Deployment
    settings: Settings
    cells: Sequence[Cell]
    page: int | None
    packing: str | None


def audit(start: Start, overrides: Overrides) -> list[Finding]:
    """A finding for every figure of `start`."""
    model = model_of(start, overrides, NAMES)
    if model is None:
        return [unknown(figure, unknown_model(start, NAMES)) for figure in start.figures]
    said = {**start.settings, **overrides.settings}
    try:
        case = _case(model, said, overrides)
    except KvtoolError as error:
        why = f"the settings cannot be used: {error}"
        return [unknown(figure, why) for figure in start.figures]
    return [_finding(case, figure) for figure in start.figures]


def _case(model: ModelSpec, said: dict[str, str], overrides: Overrides) -> Case:
    tp = whole(said.get("tp_size")) or whole(said.get("tensor_parallel_size")) or 1
    kind = said.get("kv_pool_dtype") or said.get("kv_cache_dtype", "auto")
    options = {
        name: value
        for name, value in said.items()
        if name in OPTIONS and value not in ("None", "auto", "")
    }
    deployment = Deployment(
        parallel=Parallel(tp=tp),
        kv_dtype=TYPES.get(kind, kind),
        options={**options, **overrides.options_of(OPTIONS)},
    )
    release = find_release(overrides.version)[1]
    settings = settle(model, deployment, release, overrides.device)
    packing = said.get("quantization", "None")
    return Case(
        model=model,
        deployment=deployment,
        settings=settings,
        cells=cells(model, model.layers, settings),
        page=settings.page_size if "page_size" in deployment.options else None,
        packing=None if packing == "None" or model.quantization is not None else packing,
    )


def _finding(case: Case, figure: Figure) -> Finding:
    tokens = whole(figure.about.get("tokens"))
    if figure.name in ("k_size", "v_size", "kv_size") and tokens is not None:
        return _side(case, figure, tokens)
    if figure.name == "window_pools":
        return _window_pools(case, figure)
    if figure.name in ("conv_state", "ssm_state"):
        return _states(case, figure)
    if figure.name == "weights":
        return _weights(case, figure)
    if figure.name == "tokens":
        return unknown(figure, COUNTED)
    return unknown(figure, "no rule for this figure")


def _side(case: Case, figure: Figure, tokens: int) -> Finding:
    """Keys, values or both of a pool, which holds one page more than its tokens. A model with
    windows prints a line for each of its two pools, unnamed: the one that is nearer is meant."""
    side = figure.name.removesuffix("_size")
    found = []
    for pool in ("full", "window"):
        row = sum(_row(cell, case.settings)[side] for cell in case.cells if cell.pool == pool)
        if row:
            why = f"({pool} tokens printed + one page) x bytes of a row"
            found.append(_with_page(tokens, row, case.page, why))
    if not found:
        return unknown(figure, "the model keeps no such rows")
    nearest = min(found, key=lambda prediction: abs(prediction.value - figure.value))
    return judge(figure, nearest)


def _with_page(tokens: int, row: int, page: int | None, why: str) -> Prediction:
    """Bytes of the tokens and one page; where its size is not known, of none up to 256."""
    value = (tokens + (page or 1)) * row
    if page:
        return Prediction.exact(value, why)
    return Prediction(value, tokens * row, (tokens + MAX_PAGE) * row, why)


def _row(cell: Cell, settings: Settings) -> dict[str, int]:
    """A cell's bytes by side; latent rows and index keys are the figure of both."""
    state = cell.state
    if not isinstance(state, Attention):
        return {"k": cell.bytes, "v": 0, "kv": cell.bytes}
    heads = max(1, shares(state.num_kv_heads, settings.parallel.tp))
    k = settings.kv.k.row_bytes(heads, state.head_dim)
    return {"k": k, "v": cell.bytes - k, "kv": cell.bytes}


def _window_pools(case: Case, figure: Figure) -> Finding:
    """Both pools of a model with windows."""
    full, window = (whole(figure.about.get(name)) or 0 for name in ("full", "window"))
    rows = {
        pool: sum(cell.bytes for cell in case.cells if cell.pool == pool)
        for pool in ("full", "window")
    }
    value = full * rows["full"] + window * rows["window"]
    page = (case.page or MAX_PAGE) * (rows["full"] + rows["window"])
    why = "tokens of each pool x bytes of its rows"
    return judge(figure, Prediction(value, value, value + page, why))


def _states(case: Case, figure: Figure) -> Finding:
    """Slots of recurrent states, one more than the log counts."""
    slots = whole(figure.about.get("slots"))
    kinds = {"conv_state": "conv", "ssm_state": "recurrent"}
    row = sum(cell.bytes for cell in case.cells if cell.kind == kinds[figure.name])
    if slots is None or not row:
        return unknown(figure, "the model keeps no such states")
    why = "(slots printed + 1) x bytes of the states"
    return judge(figure, Prediction((slots + 1) * row, slots * row, (slots + 1) * row, why))


def _weights(case: Case, figure: Figure) -> Finding:
    if case.packing is not None:
        name = case.model.name
        return unknown(figure, f"the card of {name} does not have '{case.packing}' weights")
    size = loaded_bytes(case.model, case.deployment)
    if size is None:
        return unknown(figure, f"the parameters of {case.model.name} are not all counted")
    why = "parameters as stored"
    return judge(figure, Prediction(size.value, size.low, size.high, why, is_estimate=True))
