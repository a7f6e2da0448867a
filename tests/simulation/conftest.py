"""Where public traces lie; tests that need them are skipped elsewhere."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from kvtool.workload.requests import BlockRequests
from kvtool.workload.trace import load_trace

ROOT = Path(__file__).resolve().parents[2]


@cache
def _load(path: Path) -> BlockRequests:
    requests = load_trace(path).requests
    assert isinstance(requests, BlockRequests)
    return requests


@pytest.fixture(scope="session")
def trace_path():
    """The path of a public trace by its name below KVTOOL_TRACES (default: ../shared/traces)."""

    def find(name: str) -> Path:
        folder = Path(os.environ.get("KVTOOL_TRACES", ROOT.parent / "shared" / "traces"))
        path = folder / name
        if not path.is_file():
            pytest.skip(f"no {name} in {folder}: set KVTOOL_TRACES to a folder that has it")
        return path

    return find


@pytest.fixture(scope="session")
def mooncake(trace_path):
    """Requests of a trace of github.com/kvcache-ai/Mooncake, FAST25-release/traces, @3b5a594."""
    return lambda name: _load(trace_path(f"mooncake/{name}_trace.jsonl"))
