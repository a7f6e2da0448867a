"""`kvtool size --engine all`: a table within 80 columns, explanations, advice, JSON rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

ASKED = ["gpt-oss-120b", "--engine", "all", "--gpu", "h100", "--ctx", "8k"]
ENGINES = ["logical", "vllm", "sglang", "llamacpp", "trtllm", "transformers"]
# Keys of the contract for every row, whatever the engine.
KEYS = (
    "model", "model_type", "context_tokens", "model_context_tokens", "batch_size", "engine",
    "engine_version", "kv_dtype", "k_dtype", "v_dtype", "tp", "pp", "ep", "dcp", "sequence_bytes",
    "bytes_per_token", "growing_bytes_per_token", "fixed_bytes", "components", "request_bytes",
    "cache_bytes", "cluster_bytes", "weight_params", "active_params", "mtp_params",
    "weight_bytes", "loaded_bytes", "block_size", "pool_bytes", "num_blocks", "pool_tokens",
    "max_concurrency", "max_context_tokens", "max_batch_size", "fits",
)  # fmt: skip


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
    code = "import sys; from kvtool.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-P", "-c", code, "size", *arguments],
        env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


@pytest.fixture(scope="module")
def table() -> str:
    done = run(*ASKED)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return json.loads(run(*ASKED, "--json").stdout)["results"]


def test_table_has_a_line_per_engine_within_80_columns(table: str) -> None:
    lines = table.splitlines()
    starts = [line.split()[0] for line in lines[3:9]]

    assert starts == ENGINES
    assert max(map(len, lines)) <= 80
    assert "…" not in table


def test_table_shows_ranges_and_reasons_and_memory(table: str, rows: list[dict[str, Any]]) -> None:
    vllm = rows[1]

    assert f"{vllm['pool_tokens_low']:,} to {vllm['pool_tokens_high']:,}" in table
    for heading in ("why requests differ", "where the memory goes", "advice"):
        assert heading in table
    assert "+283.50 MiB" in table
    assert "max_num_batched_tokens=2048" in " ".join(table.split())


def test_each_note_is_printed_once(table: str) -> None:
    notes = [line for line in table.splitlines() if line.startswith("note:")]

    assert len(notes) == len(set(notes))


def test_rows_keep_the_keys_of_the_contract(rows: list[dict[str, Any]]) -> None:
    assert [row["engine"] for row in rows] == ENGINES
    for row in rows:
        assert not [key for key in KEYS if key not in row]
        assert row["fits"] in (True, False)


def test_what_does_not_apply_is_null(rows: list[dict[str, Any]]) -> None:
    transformers = rows[-1]

    assert transformers["block_size"] is None
    assert transformers["num_blocks"] is None
    assert transformers["blocks_per_request"] is None


def test_reasons_and_memory_add_up(rows: list[dict[str, Any]]) -> None:
    for row in rows[1:]:
        if row["engine"] == "llamacpp":
            continue
        total = sum(reason["bytes"] for reason in row["reasons"])
        assert row["request_bytes"] == row["sequence_bytes"] + total


def test_without_a_device_engines_are_compared_by_bytes() -> None:
    text = run("gemma-3-27b", "--engine", "all", "--ctx", "8k").stdout

    assert "4.25x" in text
    assert "where the memory goes" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_contexts_and_engines_together_stay_within_80_columns() -> None:
    done = run(
        "llama-3.1-8b", "--engine", "logical,vllm,sglang,trtllm", "--gpu", "h100", "--ctx", "8k,32k"
    )

    assert done.returncode == 0, done.stderr
    assert "…" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_sheet_of_one_engine_ends_with_its_advice() -> None:
    text = run("gemma-3-27b", "--engine", "vllm@0.22.1", "--ctx", "8k").stdout

    assert "advice" in text
    assert "disable_hybrid_kv_cache_manager=true" in "".join(text.split())
