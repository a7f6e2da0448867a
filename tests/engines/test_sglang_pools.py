"""Pools as SGLang 0.5.23's own configurators cut them (tests/oracles/sglang_oracle.py)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvtool.catalog import load_model
from kvtool.engines.base import Deployment
from kvtool.engines.sglang_cells import cells
from kvtool.engines.sglang_options import settle
from kvtool.engines.sglang_pools import cut, demand
from kvtool.engines.sglang_releases import RELEASES
from kvtool.model.spec import ModelSpec, Parallel

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "sglang_pools.json").read_text("utf-8"))
MODELS = dict.fromkeys(row["model"] for row in GOLDEN["rows"])


@cache
def model(name: str) -> ModelSpec:
    return load_model(name)


def pools(row: dict[str, Any]) -> dict[str, int | None]:
    """Tokens, window tokens and slots as the adapter cuts them; 0 where SGLang refuses."""
    options = {"page_size": str(row["page"]), "chunked_prefill_size": "8192"}
    if row["capped"]:
        options |= {"disable_radix_cache": "true", "max_running_requests": str(row["capped"])}
    deployment = Deployment(parallel=Parallel(tp=row["tp"]), kv_dtype=row["kv"], options=options)
    spec = model(row["model"])
    settings = settle(spec, deployment, RELEASES[-1], None)
    wanted = demand(cells(spec, spec.layers, settings), settings, 8192)
    found = cut(row["budget"], wanted, settings)
    windowed = bool(wanted.window_layers)
    refused = windowed and found.window_tokens <= (wanted.window or 0) + settings.page_size
    return {
        "tokens": 0 if refused else found.tokens,
        "window": None if not windowed else 0 if refused else found.window_tokens,
        "slots": found.slots if wanted.states else None,
    }


@pytest.mark.parametrize("name", MODELS)
def test_pools_are_those_of_sglang(name: str) -> None:
    rows = [row for row in GOLDEN["rows"] if row["model"] == name]

    different = [
        (row, found)
        for row in rows
        if (found := pools(row)) != {key: row[key] for key in ("tokens", "window", "slots")}
    ]

    assert different == []


def test_golden_rows_cover_every_kind_of_pool() -> None:
    rows = GOLDEN["rows"]

    assert len(rows) >= 400
    assert sum(row["window"] is not None for row in rows) >= 100
    assert sum(row["slots"] is not None for row in rows) >= 40
    assert sum(row["capped"] is not None for row in rows) >= 8
