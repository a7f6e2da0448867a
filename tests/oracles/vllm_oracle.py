"""Golden values from vLLM's own KV-cache planner, run on a CPU.

    vllm_oracle.py --source DIR --version 0.22.1 [--output FILE | --check FILE]

DIR holds the Python modules of one vLLM wheel: `pip download --no-deps vllm==VERSION`, then unpack
its `.py` files there. No compiled part of vLLM is used. The interpreter needs torch (the CPU build
serves), transformers and the pure-Python dependencies that `import vllm.config` asks for: numpy,
pydantic, msgspec, cloudpickle, psutil, pyzmq, cachetools, regex, requests, py-cpuinfo, blake3,
prometheus_client, einops, pillow, fastapi, aiohttp, openai, orjson, protobuf, sentencepiece,
partial-json-parser, jsonschema, cbor2, pybase64, setproctitle, python-json-logger, depyf,
watchfiles, tiktoken, compressed-tensors, opentelemetry-api, opentelemetry-sdk, uvloop,
openai-harmony, llguidance, xgrammar, apache-tvm-ffi.

vLLM does the arithmetic: page sizes, states, raised attention blocks, grouping, blocks, concurrency
and tokens. This script does what a model class of vLLM does when it is built: it gives every layer
of a configuration its cache specification.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm_cases import DEFAULTS, MODELS, Case, cases
from vllm_layers import Build, Vllm

GOLDEN = MODELS.parent


def plan(vllm: Vllm, case: Case, config: dict[str, Any]) -> dict[str, Any]:
    """What vLLM plans for `case`: groups, blocks, blocks per request, tokens and concurrency."""
    build = Build(vllm, case, config)
    layers = build.layers()
    padded = getattr(build, "padded", None)
    if padded:
        layers = [
            [replace(s, page_size_padded=padded) if hasattr(s, "shapes") else s for s in layer]
            for layer in layers
        ]
    stages = _stages(layers, case["pp"])
    workers: list[dict[str, Any]] = []
    number = itertools.count()
    for stage in stages:
        workers.append(
            {f"layers.{next(number)}.{j}": s for layer in stage for j, s in enumerate(layer)}
        )
    encoder = case["encoder_tokens"] or case["max_num_batched_tokens"]
    concurrent = case["pp"] if case["pp"] > 1 else 1
    if case["async_scheduling"]:
        concurrent = case["pp"] + 1
    vllm_config = SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=case["context"], original_max_model_len=case["context"],
            supports_kv_cache_grouping=False,
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=case["dcp"], prefill_context_parallel_size=1,
            tensor_parallel_size=case["tp"],
        ),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=case["max_num_batched_tokens"],
            max_num_encoder_input_tokens=encoder,
            disable_hybrid_kv_cache_manager=not case["hybrid"],
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=None, mamba_cache_mode=case["mamba_cache_mode"],
            prefix_cache_retention_interval=None, kv_cache_layout="LBHNC",
            get_resolved_kv_cache_layout=lambda: _layout("LBHNC"),
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None, num_prefill_lookahead_tokens=0, kv_events_config=None,
        max_in_flight_tokens=concurrent * case["max_num_batched_tokens"],
    )  # fmt: skip
    memory = [case["pool_bytes"]] * len(workers)
    if vllm.is_new:
        groups = vllm.planner.get_global_kv_cache_groups(vllm_config, workers)
        configs = vllm.planner.get_kv_cache_configs(vllm_config, workers, memory, groups)
    else:
        configs = vllm.planner.get_kv_cache_configs(vllm_config, workers, memory)
    first = configs[0]
    concurrency = vllm.utils.get_max_concurrency_for_kv_cache_config(vllm_config, first)
    per_request = round(first.num_blocks / concurrency) if first.num_blocks else None
    bytes_per_block = max(_pool_bytes(vllm, c) // max(c.num_blocks, 1) for c in configs)
    return {
        "groups": [
            [
                [len(c.kv_cache_groups[i].layer_names) for c in configs],
                _block(group.kv_cache_spec), _page(group.kv_cache_spec),
            ]
            for i, group in enumerate(first.kv_cache_groups)
        ],
        "bytes_per_block": bytes_per_block,
        "num_blocks": first.num_blocks,
        "blocks_per_request": per_request,
        "request_bytes": per_request and per_request * bytes_per_block,
        "pool_tokens": int(concurrency * case["context"]),
        "max_concurrency": concurrency,
    }  # fmt: skip


def _pool_bytes(vllm: Vllm, config: Any) -> int:
    """Bytes of a worker's pool: 0.33 states the whole pool in every tensor, 0.22 a part."""
    sizes = [tensor.size for tensor in config.kv_cache_tensors]
    return max(sizes) if vllm.is_new else sum(sizes)


def _block(spec: Any) -> int:
    return int(spec.block_size)


def _page(spec: Any) -> int:
    return int(spec.page_size_bytes)


def _layout(name: str) -> Any:
    from vllm.v1.kv_cache_layout import KVCacheLayout

    return KVCacheLayout[name]


def _stages(layers: list[list[Any]], pp: int) -> list[list[list[Any]]]:
    from vllm.distributed.utils import get_pp_indices

    return [layers[slice(*get_pp_indices(len(layers), rank, pp))] for rank in range(pp)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--source", type=Path, required=True, help="unpacked modules of the wheel")
    parser.add_argument("--version", required=True, help="their vLLM version")
    parser.add_argument(
        "--output", type=Path, help="default: tests/golden/vllm_planner_VERSION.json"
    )
    parser.add_argument("--check", action="store_true", help="compare instead, exit 1 on drift")
    options = parser.parse_args()
    output = options.output or GOLDEN / f"vllm_planner_{options.version}.json"
    logging.disable(logging.WARNING)
    vllm = Vllm(options.source.resolve(), options.version)
    models = json.loads(MODELS.read_text("utf-8"))
    rows, failed = [], 0
    for case in cases(options.version):
        try:
            result = plan(vllm, {**DEFAULTS, **case}, models[case["model"]]["config"])
        except (AssertionError, NotImplementedError, ValueError) as error:
            failed += 1
            result = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        shown = {k: v for k, v in case.items() if v != DEFAULTS.get(k)}
        rows.append(json.dumps({**shown, **result}))
    text = (
        f'{{"vllm": "{options.version}", "defaults": {json.dumps(DEFAULTS)}, "rows": [\n'
        + ",\n".join(rows) + "\n]}\n"
    )  # fmt: skip
    print(f"{len(rows)} rows, {failed} that vLLM refuses", file=sys.stderr)
    if not options.check:
        output.write_text(text, "utf-8")
        return 0
    drift = sorted(set(text.splitlines()) ^ set(output.read_text("utf-8").splitlines()))
    for line in drift:
        print(line)
    return 1 if drift else 0


if __name__ == "__main__":
    sys.exit(main())
