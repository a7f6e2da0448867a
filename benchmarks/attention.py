"""The figures of docs/benchmarks: every section in one process, one JSON file.

    python benchmarks/attention.py --output docs/benchmarks/h200.json
    python benchmarks/attention.py --sections decode,fp8 --output run.json

Peers that compile are built beforehand, in a process beside the first sections. The file is
complete after each case; a section that fails is named in its `warnings` and the rest goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import kvtool
from kvtool.benchmark.ceilings import Ceilings
from kvtool.report.output import write
from kvtool.report.record import Report

LLAMA = {"heads": 32, "kv_heads": 8, "head_dim": 128}
NARROW = {"heads": 32, "kv_heads": 8, "head_dim": 64}
# (batch, context): 16,384 tokens in all, as FlashAttention's own benchmark has it
PREFILL = ((8, 2048), (2, 8192), (1, 16384))
DECODE = ((1, 32768), (1, 131072), (8, 8192), (32, 4096), (64, 8192))
LAZY = ("rotate-q", "rotate-k", "rematerialise", "merge", "unsplit")
BUILD = """
from kvtool import bench
shape = dict(heads=32, kv_heads=8, head_dim=128, ctx=64, samples=1)
bench(kernel="flash", phase="decode", dtype="bfloat16", peers="flashinfer", **shape)
"""

OURS = ("flash", "lazy")
PREFILL_PEERS = {"kernel": OURS, "peers": ("sdpa-cudnn", "sdpa-flash"), "mask": ("causal", "full")}
DECODE_ALONE = {"phase": "decode", "kernel": OURS, "peers": "none", **LLAMA}
FLEX = {"kernel": "flash", "peers": ("sdpa-efficient", "flex"), **LLAMA}
SECTIONS: dict[str, list[dict[str, Any]]] = {
    "prefill": [
        {"phase": "prefill", "shapes": PREFILL, **PREFILL_PEERS, **LLAMA},
        {"phase": "prefill", "shapes": PREFILL, **PREFILL_PEERS, **NARROW},
    ],
    "decode": [
        {
            "phase": "decode",
            "shapes": DECODE,
            "kernel": ("cached", *OURS),
            "peers": ("sdpa-cudnn", "flashinfer"),
            "doc_tokens": 1024,
            **LLAMA,
        }
    ],
    "documents": [{"shapes": DECODE, "doc_tokens": 512, **DECODE_ALONE}],
    "fp8": [{"shapes": ((64, 8192),), "kv_dtype": ("auto", "fp8"), **DECODE_ALONE}],
    "variants": [{"shapes": ((1, 32768), (32, 4096)), "variant": LAZY, **DECODE_ALONE}],
    "default": [{"model": "llama-3-8b"}],
    "generate": [{"generate": 512, "model": "llama-3-8b"}],
    "flex": [
        {"phase": "prefill", "shapes": ((4, 4096),), **FLEX},
        {"phase": "decode", "shapes": ((32, 4096),), **FLEX},
    ],
}


def main() -> None:
    options = _arguments()
    builder = _build_peers() if "decode" in options.sections else None
    whole = Report("bench", {}, [], beside={"environment": {}, "sections": {}})
    for name in options.sections:
        if name == "decode" and builder is not None:
            builder.wait()
        start = time.perf_counter()
        for call in SECTIONS[name]:
            _run(name, call | {"device": options.device}, whole, options.output)
        whole.beside["sections"][name] = {"seconds": time.perf_counter() - start}
        write(compact(whole.to_dict()), options.output)
        print(f"{name}: {time.perf_counter() - start:.1f} s, {len(whole.results)} rows", flush=True)


def compact(document: dict[str, Any]) -> str:
    """JSON with a line for each row: thousands of samples do not fill the page of a diff."""
    rows = document["results"]
    head = json.dumps(document | {"results": []}, indent=1, allow_nan=False)
    lines = ",\n".join(json.dumps(row, allow_nan=False) for row in rows)
    return f"{head.removesuffix('[]' + chr(10) + '}')}[\n{lines}\n]}}\n"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The figures of docs/benchmarks.")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--sections", type=lambda text: text.split(","), default=list(SECTIONS),
        help=f"from: {', '.join(SECTIONS)}",
    )  # fmt: skip
    return parser.parse_args()


def _build_peers() -> subprocess.Popen[bytes]:
    """Compiles FlashInfer's modules in a process of its own; the cache on disk serves this one."""
    return subprocess.Popen(
        [sys.executable, "-c", BUILD], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )


def _run(section: str, call: dict[str, Any], whole: Report, output: Path) -> None:
    """One call of `kvtool.bench`, its rows added to `whole` case by case."""
    done = len(whole.results)
    known = whole.beside["environment"].get("ceilings")

    def finished(report: Report, _: object) -> None:
        _take(section, report, whole, done)
        write(compact(whole.to_dict()), output)

    try:
        report = kvtool.bench(
            **call,
            command=_command(call),
            ceilings=Ceilings(**known) if known else None,
            finished=finished,
        )
        _take(section, report, whole, done)
        lines = [f"{section}: {line}" for line in report.warnings]
        whole.warnings += [line for line in lines if line not in whole.warnings]
    except Exception as error:
        whole.warnings.append(f"{section} {call}: {type(error).__name__}: {error}")
        traceback.print_exc()


def _take(section: str, report: Report, whole: Report, done: int) -> None:
    whole.beside["environment"].update(report.beside["environment"])
    whole.results[done:] = [{"section": section, **row} for row in report.results]


def _command(call: dict[str, Any]) -> str:
    """The call that repeats a section."""
    return f"kvtool.bench({', '.join(f'{name}={value!r}' for name, value in call.items())})"


if __name__ == "__main__":
    main()
