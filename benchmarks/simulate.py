"""Speed and memory of the exact LRU curve, beside libCacheSim on the same accesses in one run.

    python benchmarks/simulate.py [--libcachesim PYTHON] [--traces FOLDER] [--output FILE] [--small]

PYTHON is an interpreter of another environment that has libcachesim (KVTOOL_LIBCACHESIM names it
too); without it that part is left out and said so. FOLDER holds mooncake/conversation_trace.jsonl.
One thread each: nothing here calls BLAS. Times are the best of several runs with their spread,
because a shared machine only ever adds; CPU seconds stand beside wall seconds. The output is JSON,
rows as they finish.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvtool.curve import bytes_needed
from kvtool.reuse import BlockRules, block_accesses
from kvtool.simulation.sample import lru_curve
from kvtool.version import __version__
from kvtool.workload.requests import previous_touch
from kvtool.workload.trace import load_trace
from kvtool.workload.zipf import Zipf

ROOT = Path(__file__).resolve().parents[1]
ORACLE = ROOT / "tests" / "oracles" / "libcachesim_oracle.py"
OBJECTS = 1_000_000
SKEW = 1.0
SIZES = [round(size) for size in np.geomspace(100, 500_000, 20)]


def zipf_keys(accesses: int, seed: int = 0) -> np.ndarray:
    """Independent draws over a million objects with exponent 1."""
    return Zipf(OBJECTS, SKEW).draw(np.random.default_rng(seed).random(accesses))


def hit_rates(keys: np.ndarray, sizes: list[int]) -> list[float]:
    """Exact LRU hit rates at all `sizes` from one pass."""
    needed = bytes_needed(keys, 1)
    counts = np.bincount(np.minimum(needed, max(sizes) + 1))
    found = np.cumsum(counts)
    return [float(found[min(size, len(found) - 1)]) / len(keys) for size in sizes]


def timed(function: Callable[[], Any], runs: int) -> tuple[Any, dict[str, float]]:
    """What `function` returns, and the best and worst wall and best CPU seconds of `runs` calls."""
    walls, cpus, value = [], [], None
    for _ in range(runs):
        wall, cpu = time.perf_counter(), time.process_time()
        value = function()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return value, {"best_s": min(walls), "worst_s": max(walls), "best_cpu_s": min(cpus)}


def write_oracle_general(keys: np.ndarray, path: Path) -> None:
    """`keys` as libCacheSim's binary trace, every object of size 1."""
    record = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
    rows = np.empty(len(keys), dtype=record)
    rows["time"] = np.arange(len(keys))
    rows["id"] = keys
    rows["size"] = 1
    rows["next"] = -1
    earlier = previous_touch(keys)
    seen = np.flatnonzero(earlier >= 0)
    rows["next"][earlier[seen]] = seen
    rows.tofile(path)


def curve_row(accesses: int, runs: int) -> tuple[dict[str, Any], np.ndarray, list[float]]:
    keys = zipf_keys(accesses)
    rates, times = timed(lambda: hit_rates(keys, SIZES), runs)
    row = {
        "what": "exact LRU curve, hit rates at 20 sizes",
        "accesses": accesses,
        **times,
        "accesses_per_s": accesses / times["best_s"],
        "accesses_per_cpu_s": accesses / times["best_cpu_s"],
    }
    return row, keys, rates


def libcachesim_row(python: str, keys: np.ndarray, rates: list[float]) -> dict[str, Any]:
    """libCacheSim over the same accesses, one pass a size; its hit rates against `rates`."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "zipf.oracleGeneral.bin"
        write_oracle_general(keys, trace)
        command = [python, str(ORACLE), str(trace), "LRU", *map(str, SIZES)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    differences = [abs(a - b) for a, b in zip(found["hit_rates"], rates, strict=True)]
    return {
        "what": "libCacheSim LRU, 20 sizes, one pass each",
        "accesses": len(keys),
        "total_s": sum(found["seconds"]),
        "accesses_per_s_per_size": len(keys) * len(SIZES) / sum(found["seconds"]),
        "largest_difference": max(differences),
    }


def memory_row(keys: np.ndarray) -> dict[str, Any]:
    """Peak memory that one pass allocates, its keys not counted."""
    tracemalloc.start()
    bytes_needed(keys, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "what": "peak memory of one pass",
        "accesses": len(keys),
        "bytes_per_access": peak / len(keys),
    }


def command_row(runs: int = 5) -> dict[str, Any]:
    """`kvtool simulate --zipf 1.2` with defaults, start-up included."""
    command = [
        sys.executable,
        "-P",
        "-c",
        "from kvtool.cli import main; main()",
        "simulate",
        "--zipf",
        "1.2",
    ]
    _, times = timed(lambda: subprocess.run(command, check=True, capture_output=True), runs)
    return {
        "what": "kvtool simulate --zipf 1.2, start-up included",
        "best_s": times["best_s"],
        "worst_s": times["worst_s"],
    }


def mooncake_row(folder: Path, runs: int = 5) -> dict[str, Any]:
    path = folder / "mooncake" / "conversation_trace.jsonl"
    if not path.is_file():
        return {"what": "Mooncake conversation", "left_out": f"no {path.name}: give --traces"}
    trace, loading = timed(lambda: load_trace(path).requests, 1)

    def curve() -> Any:
        accesses = block_accesses(trace, BlockRules(), 1, alone=False)
        return lru_curve(accesses, whole_request=True)

    _, times = timed(curve, runs)
    return {
        "what": "Mooncake conversation, full curve in engine order",
        "accesses": len(trace.ids),
        "load_s": loading["best_s"],
        **times,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--libcachesim", default=os.environ.get("KVTOOL_LIBCACHESIM"))
    traces = os.environ.get("KVTOOL_TRACES", ROOT.parent / "shared" / "traces")
    parser.add_argument("--traces", type=Path, default=Path(traces))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--small", action="store_true", help="leave the 10M accesses out")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        print("; ".join(f"{key} {_shown(value)}" for key, value in row.items()), flush=True)
        if asked.output:
            asked.output.write_text(json.dumps({**_environment(), "rows": rows}, indent=2) + "\n")

    for accesses, runs in ((1_000_000, 7), (10_000_000, 3))[: 1 if asked.small else 2]:
        row, keys, rates = curve_row(accesses, runs)
        add(row)
        if asked.libcachesim:
            beside = libcachesim_row(asked.libcachesim, keys, rates)
            beside["kvtool_is_faster_by"] = beside["total_s"] / row["best_s"]
            add(beside)
        else:
            add({"what": "libCacheSim", "left_out": "give --libcachesim PYTHON"})
        add(memory_row(keys))
    add(mooncake_row(asked.traces))
    add(command_row())


def _shown(value: object) -> str:
    return (
        f"{value:,.4g}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


def _environment() -> dict[str, Any]:
    return {
        "kvtool": __version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "objects": OBJECTS,
        "skew": SKEW,
        "sizes": SIZES,
    }


if __name__ == "__main__":
    main()
