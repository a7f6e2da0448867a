"""Times tile configurations of flash and lazy on one GPU: `python tests/kernels/tune.py --help`.

Each group is checked against torch's own attention first, then timed in CUDA graphs over inputs
that rotate through more than the L2. Prints a line per configuration and writes JSON lines.
`--compile I/N` only compiles every N-th configuration, so that N processes fill Triton's cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kvtool.kernels import flash_decode, flash_prefill, load
from kvtool.kernels.rope import from_parameters

L2_BYTES = 60 << 20
ROPE = from_parameters(128, {"rope_theta": 500000.0})
PREFILL = {64: [(128, 64, 3, 4)], 128: [(64, 64, 3, 4)], 256: [(128, 64, 2, 8)]}
PAGED = [(128, 64, 5, 8)]
"""BLOCK_M, BLOCK_N, stages, warps."""
DECODE = [(64, 3, 4, 128, 4)]
FP8 = [(64, 5, 2, 168, 6), (64, 5, 2, 168, 4), (64, 4, 2, 168, 5), (64, 5, 2, 200, 4)]
"""BLOCK_N, stages, warps, registers, programs per multiprocessor."""
SHAPES = [(1, 4096), (1, 32768), (1, 131072), (8, 8192), (32, 4096), (64, 8192)]


def graph_seconds(calls: list[Callable[[], Any]], replays: int = 15) -> float:
    """Median seconds of one call, all of them in one graph, replayed."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
    torch.cuda.synchronize()
    times = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1000 / len(calls))
    return statistics.median(times)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def int32(values: Any) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.int32, device="cuda")


def prefill_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    for dim, configs in PREFILL.items():
        heads = 2048 // dim
        for causal in (True, False):
            for tokens in (2048, 8192, 16384):
                shape = {"dim": dim, "causal": causal, "tokens": tokens}
                yield "prefill", shape | {"heads": (heads, heads // 4), "config": configs[0]}
                for config in configs:
                    yield "prefill", shape | {"heads": (heads, heads), "config": config}


def run_prefill(case: dict[str, Any], only_compile: bool) -> dict[str, Any]:
    dim, tokens, (heads, kv_heads) = case["dim"], case["tokens"], case["heads"]
    batch = 16384 // tokens
    q = randn(batch, tokens, heads, dim)
    k, v = randn(batch, tokens, kv_heads, dim), randn(batch, tokens, kv_heads, dim)
    flash_prefill.CONFIGS[dim] = case["config"]
    options = {"kv_lens": int32([tokens] * batch), "causal": case["causal"]}
    flash = load("flash")
    plan = flash.plan(q, k, v, **options)
    o = flash.attention(q, k, v, **options, plan=plan)
    if only_compile:
        return {}
    swapped = [x.transpose(1, 2) for x in (q, k, v)]

    def peer() -> torch.Tensor:
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return scaled_dot_product_attention(
                *swapped, is_causal=case["causal"], enable_gqa=heads != kv_heads
            )

    error = relative(o, peer().transpose(1, 2))
    flops = 4 * batch * heads * tokens * tokens * dim * (0.5 if case["causal"] else 1)
    ours = graph_seconds([lambda: flash.attention(q, k, v, **options, plan=plan)] * 4, 9)
    theirs = graph_seconds([peer] * 4, 9)
    return {
        "error": error,
        "tflops": flops / ours / 1e12,
        "cudnn_tflops": flops / theirs / 1e12,
        "ratio": theirs / ours,
    }


def relative(o: torch.Tensor, expected: torch.Tensor) -> float:
    return ((o.float() - expected.float()).norm() / expected.float().norm()).item()


def decode_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    for shape in SHAPES:
        for config in DECODE:
            for docs in (0, 128, 512, 1024, 4096):
                case = {"shape": shape, "config": config, "docs": docs, "fp8": False}
                if config in DECODE[:2] or not docs:
                    yield "decode", case
    for shape in SHAPES[-2:]:
        for config in FP8:
            yield "decode", {"shape": shape, "config": config, "docs": 0, "fp8": True}
    for variant in ("rotate-k", "rematerialise", "merge", "unsplit"):
        for shape in SHAPES[1:] if variant == "merge" else SHAPES[1:2]:
            case = {"shape": shape, "config": DECODE[0], "docs": 512, "fp8": False}
            yield "decode", case | {"variant": variant}


def run_decode(case: dict[str, Any], only_compile: bool) -> dict[str, Any]:
    (batch, tokens), block = case["shape"], 16
    flash_decode.CONFIGS[128] = flash_decode.FP8_CONFIGS[128] = case["config"]
    cache_bytes = batch * tokens * 8 * 128 * (1 if case["fp8"] else 2) * 2
    sets = 1 if only_compile else min(12, max(1, -(-5 * L2_BYTES // cache_bytes)))
    blocks = batch * tokens // block
    caches = []
    for _ in range(sets):
        k, v = randn(blocks, block, 8, 128), randn(blocks, block, 8, 128)
        if case["fp8"]:
            k, v = k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn)
        caches.append((k, v, int32(torch.randperm(blocks).view(batch, -1))))
    q = randn(batch, 1, 32, 128)
    options: dict[str, Any] = {"kv_lens": int32([tokens] * batch)}
    kernel = load("lazy" if case["docs"] else "flash")
    if case["docs"]:
        count = tokens // case["docs"]
        options["doc_lens"] = int32([[case["docs"]] * count] * batch)
        options["doc_offsets"] = int32([[i * case["docs"] for i in range(count)]] * batch)
        options |= {"rope": ROPE, "variant": case.get("variant")}
    k, v, table = caches[0]
    plan = kernel.plan(q, k, v, **options, block_table=table)
    o = kernel.attention(q, k, v, **options, block_table=table, plan=plan)
    if only_compile:
        return {}
    calls = [
        lambda c=c: kernel.attention(q, c[0], c[1], **options, block_table=c[2], plan=plan)
        for c in caches
    ] * max(1, 12 // sets)
    seconds = graph_seconds(calls)
    error = None
    if not case["docs"] and not case["fp8"]:
        rows = [x[table.long()].flatten(1, 2).transpose(1, 2) for x in (k, v)]
        with sdpa_kernel([SDPBackend.MATH]) if batch == 1 else nullcontext():
            expected = scaled_dot_product_attention(q.transpose(1, 2), *rows, enable_gqa=True)
        error = relative(o, expected.transpose(1, 2))
    return {
        "error": error,
        "us": seconds * 1e6,
        "tb_per_s": cache_bytes / seconds / 1e12,
    }


def lazy_prefill_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    documents = ((0, 0), (4096, 5), (512, 40), (128, 160))
    for block, configs in ((16, PAGED), (64, PAGED), (0, [*PREFILL[128], (128, 64, 3, 8)])):
        for config in configs:
            for docs, count in documents:
                for variant in ("rotate-q", "rotate-k") if docs else (None,):
                    case = {"docs": docs, "count": count, "block": block, "config": config}
                    yield "lazy_prefill", case | {"variant": variant}


def run_lazy_prefill(case: dict[str, Any], only_compile: bool) -> dict[str, Any]:
    new, block = 2048, case["block"]
    count, length = case["count"] or 5, case["docs"] or 4096
    lens = [length] * count + [new]
    total = sum(lens)
    q = randn(1, new, 32, 128)
    if block:
        k, v = randn(total // block, block, 8, 128), randn(total // block, block, 8, 128)
    else:
        k, v = randn(1, total, 8, 128), randn(1, total, 8, 128)
    options: dict[str, Any] = {"kv_lens": int32([total])}
    if block:
        options["block_table"] = int32(torch.randperm(total // block)[None])
    if case["docs"]:
        offsets = [sum(lens[:i]) for i in range(len(lens))]
        options |= {"doc_lens": int32([lens]), "doc_offsets": int32([offsets]), "rope": ROPE}
        options["variant"] = case["variant"]
    flash_prefill.CONFIGS[128] = flash_prefill.PAGED_CONFIGS[128] = case["config"]
    kernel = load("lazy" if case["docs"] else "flash")
    plan = kernel.plan(q, k, v, **options)
    kernel.attention(q, k, v, **options, plan=plan)
    if only_compile:
        return {}
    seconds = graph_seconds([lambda: kernel.attention(q, k, v, **options, plan=plan)] * 4, 9)
    flops = 4 * 32 * 128 * new * (total - new / 2)
    return {"us": seconds * 1e6, "tflops": flops / seconds / 1e12}


RUN = {"prefill": run_prefill, "decode": run_decode, "lazy_prefill": run_lazy_prefill}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", default="prefill,decode,lazy_prefill")
    parser.add_argument("--match", default="", help="only cases whose text holds this")
    parser.add_argument("--compile", help="I/N: compile this share and exit")
    parser.add_argument("--out", type=Path, default=Path("tune.jsonl"))
    args = parser.parse_args()
    every = [*prefill_cases(), *decode_cases(), *lazy_prefill_cases()]
    wanted = args.groups.split(",")
    cases = [(g, case) for g, case in every if g in wanted and args.match in str(case)]
    if args.compile:
        share, shares = map(int, args.compile.split("/"))
        cases = cases[share::shares]
    with args.out.open("a") if not args.compile else nullcontext() as out:
        for group, case in cases:
            torch.manual_seed(0)
            try:
                row = RUN[group](case, bool(args.compile))
            except Exception as error:
                row = {"failed": f"{type(error).__name__}: {error}"[:160]}
            if out:
                figures = {n: round(x, 4) if isinstance(x, float) else x for n, x in row.items()}
                print(group, *case.values(), figures, flush=True)
                out.write(json.dumps({"group": group, **case, **row}) + "\n")
                out.flush()


if __name__ == "__main__":
    main()
