"""Pools that SGLang's own configurators cut: golden rows for the adapter.

    python tests/oracles/sglang_oracle.py FOLDER          # writes tests/golden/sglang_pools.json
    python tests/oracles/sglang_oracle.py FOLDER --check  # exit code 1 on drift

FOLDER holds the unpacked wheel of sglang (pip download --no-deps sglang==0.5.23). Two of its files
are run as they are, on a CPU with torch: `model_executor/pool_configurator.py` in full, and from
`mem_cache/kv_cache_configurator.py` the functions that price latent rows and share memory between
states and tokens. Everything they import is a stand-in that answers as a CUDA server with default
options would. Geometries are written out here and do not come from kvtool's readers.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.abc
import importlib.util
import json
import logging
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch

VERSION = "0.5.23"
GOLDEN = Path(__file__).parents[1] / "golden" / "sglang_pools.json"
GIB = 1 << 30
DTYPES = {"bfloat16": torch.bfloat16, "fp8_e4m3": torch.float8_e4m3fn}


@dataclass(frozen=True)
class Geometry:
    """A model as SGLang's configurators see it. `state` is elements of a request's convolution
    tails and matrices over all recurrent layers, on one rank at tp 1."""

    full: int
    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    swa: int = 0
    swa_kv_heads: int = 0
    swa_head_dim: int = 0
    swa_v_head_dim: int = 0
    window: int | None = None
    latent: tuple[int, int] | None = None
    sparse: bool = False
    state: tuple[int, int] = (0, 0)
    ranks: tuple[int, ...] = (1, 2, 4, 8)


def plain(layers: int, heads: int, width: int) -> Geometry:
    return Geometry(layers, heads, width, width)


def windowed(full: int, heads: int, width: int, swa: int, swa_heads: int, swa_width: int,
             window: int) -> Geometry:  # fmt: skip
    return Geometry(full, heads, width, width, swa, swa_heads, swa_width, swa_width, window)


# By the names of cards; figures from the models' published configurations.
MODELS = {
    "llama-3.1-8b": plain(32, 8, 128),
    "llama-3-70b": plain(80, 8, 128),
    "llama-2-7b": plain(32, 32, 128),
    "qwen3-32b": plain(64, 8, 128),
    "gemma-3-27b": plain(62, 16, 128),
    "deepseek-v3": Geometry(61, latent=(512, 64)),
    "deepseek-v3.2": Geometry(61, latent=(512, 64), sparse=True),
    "gpt-oss-120b": windowed(18, 8, 64, 18, 8, 64, 128),
    "gpt-oss-20b": windowed(12, 8, 64, 12, 8, 64, 128),
    "gemma-4-26b-a4b": windowed(5, 2, 512, 25, 8, 256, 1024),
    "mimo-v2-flash": Geometry(9, 4, 192, 128, 39, 8, 192, 128, 128),
    "llama-4-scout": windowed(12, 8, 128, 36, 8, 128, 8192),
    "qwen3-next-80b-a3b": Geometry(
        12, 2, 256, 256, state=(36 * 8192 * 3, 36 * 32 * 128 * 128), ranks=(1, 2, 4)
    ),
    "qwen3.5-27b": Geometry(
        16, 4, 256, 256, state=(48 * 10240 * 3, 48 * 48 * 128 * 128), ranks=(1, 2, 4)
    ),
}


@dataclass
class Server:
    """What the stand-ins answer for one case."""

    tp: int
    page_size: int
    radix_cache: bool = True
    running: int | None = None
    schedule: SimpleNamespace = field(init=False)

    def __post_init__(self) -> None:
        self.schedule = SimpleNamespace(
            max_total_tokens=None, page_size=self.page_size, swa_full_tokens_ratio=0.8,
            max_running_requests=self.running, chunked_prefill_size=8192,
            disable_overlap_schedule=False, max_mamba_cache_size=None,
            mamba_full_memory_ratio=0.9,
        )  # fmt: skip


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of sglang whose every name is a stand-in."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.split(".")[0] == "sglang":
            return importlib.util.spec_from_loader(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = lambda name: MagicMock(name=name)  # type: ignore[method-assign]


def answers(server: Server, geometry: Geometry) -> dict[str, Any]:
    """The names both files read, answered for one case."""
    parallel = SimpleNamespace(attn_tp_size=server.tp, attn_dcp_size=1)
    memory = SimpleNamespace(
        enable_unified_memory=False, enable_hisparse=False,
        disable_radix_cache=not server.radix_cache,
    )  # fmt: skip
    execution = SimpleNamespace(
        kernel=SimpleNamespace(dsa_prefill_backend="flashmla_kv", dsa_decode_backend="flashmla_kv"),
        mamba=SimpleNamespace(
            enable_linear_replayssm_spec=False, enable_mamba_extra_buffer=True,
            enable_mamba_extra_buffer_lazy=False,
        ),
    )  # fmt: skip
    setting = {"SGLANG_SWA_EVICTION_INTERVAL": 128}
    envs = MagicMock()
    for name in ("SGLANG_NPU_ENABLE_SPARSE_KV_OFFLOAD", "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"):
        setattr(envs, name, SimpleNamespace(get=lambda: False))
    for name, value in setting.items():
        setattr(envs, name, SimpleNamespace(get=lambda value=value: value))
    context = SimpleNamespace(
        override=lambda source, **values: vars(server.schedule).update(values)
    )
    speculative = SimpleNamespace(speculative_num_draft_tokens=None, speculative_algorithm=None)
    return {
        "get_parallel": lambda: parallel,
        "get_memory": lambda: memory,
        "get_exec": lambda: execution,
        "get_schedule": lambda: server.schedule,
        "get_spec": lambda: speculative,
        "get_disagg": lambda: SimpleNamespace(disaggregation_mode="null"),
        "get_context": lambda: context,
        "envs": envs,
        "is_deepseek_dsa": lambda config: geometry.sparse,
        "is_deepseek_v4": lambda config: False,
        "is_minimax_sparse": lambda config: False,
        "is_float4_e2m1fn_x2": lambda dtype: False,
        "mambaish_config": lambda model: mambaish(geometry, server.tp),
        "get_dsa_index_head_dim": lambda config: 128,
        "get_dsa_index_kpool": lambda config: 1,
        "dsa_layer_skips_topk": lambda config, layer: False,
        "compute_page_shard_scratch_bytes": lambda *args, **kwargs: 0,
        "ceil_div": lambda a, b: -(-a // b),
        "ceil_align": lambda a, b: -(-a // b) * b,
        "DSATokenToKVPool": SimpleNamespace(
            quant_block_size=128, rope_storage_dtype=torch.bfloat16,
            index_k_with_scale_buffer_dtype=torch.uint8,
        ),
        "AttentionArch": SimpleNamespace(MLA="mla"),
        "get_mamba_tracking_slots": lambda extra_buffer, overlap, lazy: 2,
        "logger": logging.getLogger("sglang"),
        "_is_hip": False, "_is_npu": False,
    }  # fmt: skip


def mambaish(geometry: Geometry, tp: int) -> Any:
    """Full layers and the bytes of a request's states: tails in 16 bits, matrices in float32."""
    if not geometry.state[1]:
        return None
    conv, matrix = (elements // tp for elements in geometry.state)
    parameters = SimpleNamespace(layers=range(100, 101), mamba_cache_per_req=conv * 2 + matrix * 4)
    return SimpleNamespace(
        full_attention_layer_ids=list(range(geometry.full)), mamba2_cache_params=parameters
    )


def configurator(geometry: Geometry, dtype: str, server: Server, state: Any) -> SimpleNamespace:
    """What the pool configurators call `kvc`."""
    never = SimpleNamespace(
        is_eagle=lambda: False, is_standalone=lambda: False, is_dflash_family=lambda: False,
        is_none=lambda: True,
    )  # fmt: skip

    def heads(total: int) -> Any:
        return lambda tp, dcp=1: max(1, total // (tp // dcp))

    model = SimpleNamespace(
        get_num_kv_heads=heads(geometry.kv_heads), head_dim=geometry.head_dim,
        v_head_dim=geometry.v_head_dim, get_swa_num_kv_heads=heads(geometry.swa_kv_heads),
        swa_head_dim=geometry.swa_head_dim, swa_v_head_dim=geometry.swa_v_head_dim,
        attention_arch="mla" if geometry.latent else "mha", hf_config=None, context_len=8192,
        kv_lora_rank=(geometry.latent or (0, 0))[0],
        qk_rope_head_dim=(geometry.latent or (0, 0))[1],
    )  # fmt: skip
    layers = SimpleNamespace(
        start_layer=0, end_layer=geometry.full + geometry.swa,
        num_effective_layers=geometry.full + geometry.swa,
        full_attention_layer_ids=list(range(geometry.full)),
        swa_attention_layer_ids=list(range(geometry.full, geometry.full + geometry.swa)),
    )  # fmt: skip
    return SimpleNamespace(
        kv_cache_dtype_str=dtype, kv_cache_dtype=DTYPES[dtype], model_config=model,
        layer_info=layers, is_draft_worker=False, spec_algorithm=never, pp_size=1,
        use_mla_backend=geometry.latent is not None, is_hybrid_swa=bool(geometry.swa),
        sliding_window_size=geometry.window, page_size=server.page_size, attn_dp_size=1,
        fused_entry_bytes=lambda name: None, mambaish_config=state,
        server_args=SimpleNamespace(enable_hisparse=False), extra_mamba_cache_bytes_per_req=0,
        hybrid_gdn_config=None, hybrid_kda_config=None,
    )  # fmt: skip


def load(folder: Path, server: Server, geometry: Geometry) -> tuple[dict[str, Any], dict[str, Any]]:
    """Namespaces of the two files with the stand-ins' answers in place."""
    root = folder / "sglang" / "srt"
    known = answers(server, geometry)
    shared: dict[str, Any] = {"math": math, "torch": torch, **known}
    tree = ast.parse((root / "mem_cache" / "kv_cache_configurator.py").read_text("utf-8"))
    wanted = ("calculate_mla_kv_cache_dim", "_handle_max_mamba_cache", "_calculate_mamba_ratio",
              "_pd_prefill_skips_mamba_spec_state")  # fmt: skip
    body: list[ast.stmt] = [
        node
        for node in ast.walk(tree)
        if (isinstance(node, ast.FunctionDef) and node.name in wanted)
        or (isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "")[:6] == "MAMBA_")
    ]
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module(future + body, []), "kv_cache_configurator.py", "exec"), shared)

    caches = sys.modules["sglang.srt.mem_cache.kv_cache_configurator"]
    caches.calculate_mla_kv_cache_dim = shared["calculate_mla_kv_cache_dim"]  # type: ignore[attr-defined]
    caches._should_elide_dsa_index_k = lambda is_draft_worker: False  # type: ignore[attr-defined]
    context = sys.modules["sglang.srt.layers.cp.utils"]
    context.get_glm_dsa_layer_split_effective_num_layers = lambda kvc, layers: layers  # type: ignore[attr-defined]
    sparse = sys.modules["sglang.srt.layers.attention.qsa.config"]
    sparse.parse_qsa_profile = lambda config: None  # type: ignore[attr-defined]

    source = (root / "model_executor" / "pool_configurator.py").read_text("utf-8")
    pools: dict[str, Any] = {"__name__": "pool_configurator"}
    sys.modules["pool_configurator"] = ModuleType("pool_configurator")
    exec(compile(source, "pool_configurator.py", "exec"), pools)
    pools.update(known)
    return pools, shared


def pools_of(
    folder: Path, name: str, dtype: str, budget: int, server: Server
) -> dict[str, int | None]:
    """Tokens, window tokens and slots of one case."""
    geometry = MODELS[name]
    pools, shared = load(folder, server, geometry)
    kvc = configurator(geometry, dtype, server, mambaish(geometry, server.tp))
    kvc._calculate_mamba_ratio = lambda: shared["_calculate_mamba_ratio"](kvc)
    left = budget
    if geometry.state[1]:
        left = int(shared["_handle_max_mamba_cache"](kvc, budget / GIB) * GIB)
    try:
        config = pools["create_memory_pool_configurator"](kvc).calculate_pool_sizes(
            left, server.page_size
        )
    except (ValueError, RuntimeError):
        return {"tokens": 0, "window": 0, "slots": None}
    return {
        "tokens": config.max_total_num_tokens,
        "window": config.swa_max_total_num_tokens,
        "slots": server.schedule.max_mamba_cache_size,
    }


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    for name, geometry in MODELS.items():
        for tp in geometry.ranks:
            for dtype in DTYPES:
                for page in (1, 64) if not geometry.sparse else (64,):
                    for budget in (3 * GIB + 12_345, 41_234_567_890):
                        server = Server(tp, page)
                        found = pools_of(folder, name, dtype, budget, server)
                        yield {"model": name, "tp": tp, "kv": dtype, "page": page,
                               "budget": budget, "capped": None, **found}  # fmt: skip
        if geometry.swa:
            for running in (4, 64):
                server = Server(1, 1, radix_cache=False, running=running)
                found = pools_of(folder, name, "bfloat16", 41_234_567_890, server)
                yield {"model": name, "tp": 1, "kv": "bfloat16", "page": 1,
                       "budget": 41_234_567_890, "capped": running, **found}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    sys.meta_path.insert(0, StandIns())
    for name in ("mem_cache.kv_cache_configurator", "layers.cp.utils",
                 "layers.attention.qsa.config"):  # fmt: skip
        importlib.import_module(f"sglang.srt.{name}")
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows(arguments.folder))
    text = f'{{\n "version": "{VERSION}",\n "rows": [\n{lines}\n ]\n}}\n'
    if arguments.check:
        if text != GOLDEN.read_text("utf-8"):
            sys.exit(f"the pools of {arguments.folder} differ from {GOLDEN.name}")
        return
    GOLDEN.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
