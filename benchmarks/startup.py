"""How long `kvtool size` takes to answer, beside the packages that it stands on.

    python benchmarks/startup.py [--runs N]

The first command of the README and `import typer, rich.table` take turns in fresh processes, so
that both see the same machine; the medians and their ratio are printed with the 20th and 80th
percentile of each. Then all cards are sized through the Python API in one process. Exit code 1
when a bar is missed: a ratio of 2.5, one second. Both bars are of processor time, which other work
on the machine does not stretch; wall time is printed beside it. All processes find compiled
modules, as after an installation.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

MAX_RATIO = 2.5
MAX_CARDS_S = 1.0

KVTOOL = [str(Path(sys.executable).with_name("kvtool")), "size", "llama-3-70b", "--ctx", "32k"]
BASE = [sys.executable, "-c", "import typer, rich.table"]
ALL_CARDS = [
    sys.executable,
    "-c",
    "import kvtool\n"
    "from kvtool.catalog import card_names\n"
    "for name in card_names():\n"
    "    kvtool.size(name, ctx='4k', encoder_tokens='1k')\n"
    "print(len(card_names()))",
]


class Taken(NamedTuple):
    """Processor and wall time of a process, in seconds."""

    cpu_s: float
    wall_s: float


def run(command: Sequence[str], compiled: str) -> tuple[Taken, str]:
    """The time that a process takes, its children included, and what it prints; `compiled` is the
    folder of the compiled modules."""
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    variables["PYTHONPYCACHEPREFIX"] = compiled
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=variables)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Taken(cpu, wall), done.stdout


def line(name: str, taken: Sequence[Taken]) -> str:
    """Median and percentiles in milliseconds."""
    cells = []
    for field in ("cpu_s", "wall_s"):
        times = sorted(1000 * getattr(t, field) for t in taken)
        low, high = times[len(times) // 5], times[-1 - len(times) // 5]
        cells.append(f"{statistics.median(times):7.1f} ({low:.1f} .. {high:.1f})")
    return f"{name:26} {cells[0]:>26} {cells[1]:>26}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=15, help="of each command; default 15")
    runs = parser.parse_args().runs
    with TemporaryDirectory() as compiled:
        for command in (KVTOOL, BASE, ALL_CARDS):
            run(command, compiled)  # compiles, and fills the page cache
        turns = [(run(KVTOOL, compiled)[0], run(BASE, compiled)[0]) for _ in range(runs)]
        each = [run(ALL_CARDS, compiled) for _ in range(3)]

    ours, base = zip(*turns, strict=True)
    ratio, wall_ratio = (
        statistics.median(getattr(t, field) for t in ours)
        / statistics.median(getattr(t, field) for t in base)
        for field in Taken._fields
    )
    print(f"{'milliseconds':26} {'processor, median (20..80 %)':>26} {'wall':>26}")
    print(line("kvtool size llama-3-70b", ours))
    print(line("import typer, rich.table", base))
    print(f"ratio {ratio:.2f} of processor time, {wall_ratio:.2f} of wall time; bar {MAX_RATIO}")
    cards, shortest = each[0][1].strip(), min(taken for taken, _ in each)
    print(
        f"{cards} cards sized in one process: {shortest.cpu_s:.2f} s of processor time,"
        f" {shortest.wall_s:.2f} s of wall time; bar {MAX_CARDS_S}"
    )
    return int(ratio > MAX_RATIO or shortest.cpu_s > MAX_CARDS_S)


if __name__ == "__main__":
    sys.exit(main())
