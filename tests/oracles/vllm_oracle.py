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
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

GOLDEN = Path(__file__).parent.parent / "golden"
MODELS = GOLDEN / "vllm_planner_models.json"
GIB = 1 << 30
Case = dict[str, Any]
DEFAULTS: Case = {
    "context": 32768, "tp": 1, "pp": 1, "dcp": 1, "kv_dtype": "auto", "block_size": 16,
    "max_num_batched_tokens": 8192, "async_scheduling": True, "hybrid": True,
    "mamba_cache_mode": "none", "num_speculative_tokens": 0, "mtp": False, "eagle_layers": 0,
    "encoder_tokens": None, "pool_bytes": 20 * GIB,
}  # fmt: skip


class Vllm:
    """The modules of one version."""

    def __init__(self, source: Path, version: str) -> None:
        sys.path.insert(0, str(source))
        import torch
        import vllm.v1.core.kv_cache_utils as utils
        import vllm.v1.kv_cache_interface as interface
        from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator

        logging.disable(logging.WARNING)
        self.version, self.torch, self.specs, self.utils = version, torch, interface, utils
        self.states = MambaStateShapeCalculator
        self.is_new = version >= "0.33"
        self.planner = utils
        if self.is_new:
            import vllm.v1.core.kv_cache_planning as planner

            self.planner = planner
        self.planner._check_enough_kv_cache_memory = lambda *_: None


class Build:
    """The cache specifications that one case gives to the layers of a configuration."""

    def __init__(self, vllm: Vllm, case: Case, config: dict[str, Any]) -> None:
        self.vllm, self.case, self.outer = vllm, case, config
        self.config = config.get("text_config", config)
        self.tp = case["tp"]
        self.block = case["block_size"]
        torch = vllm.torch
        name = self.config.get("torch_dtype") or self.config.get("dtype")
        name = name or config.get("torch_dtype") or config.get("dtype") or "bfloat16"
        self.model_dtype = getattr(torch, name)
        one_byte = case["kv_dtype"] in ("fp8", "int8_per_token_head", "fp8_ds_mla", "nvfp4")
        self.dtype = torch.uint8 if one_byte else self.model_dtype
        self.quant = vllm.specs.get_kv_quant_mode(case["kv_dtype"])

    def heads(self, total: int) -> int:
        return max(1, total // self.tp)

    def packed(self, spec: Any) -> Any:
        """`spec` as the backend stores it: since 0.33 quantised layouts are the backend's own.

        int8 asks vLLM's Triton backend. FlashInfer's backend imports a compiled package, so its
        rule for nvfp4 is stated here: K and V are head slots of `nvfp4_kv_cache_full_dim` bytes.
        """
        from dataclasses import replace

        if self.vllm.is_new and self.quant.is_per_token_head:
            from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend

            return TritonAttentionBackend.customize_spec(spec)
        if self.vllm.is_new and self.quant.is_nvfp4:
            from vllm.utils.torch_utils import nvfp4_kv_cache_full_dim as full_dim

            return replace(
                spec,
                num_head_slots=2 * spec.num_kv_heads,
                state_content_bytes=full_dim(spec.head_size),
            )
        return spec

    def attention(self, heads: int, dim: int, v_dim: int | None = None, window: int | None = None,
                  chunk: int | None = None, block: int | None = None) -> Any:  # fmt: skip
        specs = self.vllm.specs
        common: dict[str, Any] = {
            "block_size": block or self.block, "num_kv_heads": self.heads(heads), "head_size": dim,
            "dtype": self.dtype, "kv_quant_mode": self.quant,
        }  # fmt: skip
        if chunk:
            return self.packed(
                specs.ChunkedLocalAttentionSpec(**common, attention_chunk_size=chunk)
            )
        if window:
            spec = specs.SlidingWindowSpec(
                **common, head_size_v=v_dim or dim, sliding_window=window,
            )  # fmt: skip
            return self.packed(spec)
        return self.packed(specs.FullAttentionSpec(**common, head_size_v=v_dim or dim))

    def latent(self, width: int) -> Any:
        name = self.case["kv_dtype"]
        extra: dict[str, Any] = {}
        if self.vllm.is_new and name == "fp8_ds_mla":
            extra["state_content_bytes"] = 656
        return self.vllm.specs.MLAAttentionSpec(
            block_size=self.block, num_kv_heads=1, head_size=width, dtype=self.dtype,
            cache_dtype_str=name, **extra,
        )  # fmt: skip

    def index(self, width: int) -> Any:
        extra: dict[str, Any] = {}
        if self.vllm.is_new:
            extra["cache_role"] = self.vllm.specs.SparseCacheRole.INDEXER
        return self.vllm.specs.MLAAttentionSpec(
            block_size=self.block, num_kv_heads=1, head_size=width + width // 128 * 4,
            dtype=self.vllm.torch.uint8, **extra,
        )  # fmt: skip

    def cross(self, heads: int, dim: int) -> Any:
        return self.vllm.specs.CrossAttentionSpec(
            block_size=self.block, num_kv_heads=self.heads(heads), head_size=dim, dtype=self.dtype
        )

    def state(self, shapes: Any, dtypes: tuple[Any, ...], checkpoint: int = 0) -> Any:
        mode = self.case["mamba_cache_mode"]
        extra = {"num_prefill_checkpoint_blocks": checkpoint} if self.vllm.is_new else {}
        return self.vllm.specs.MambaSpec(
            shapes=tuple(shapes), dtypes=dtypes, mamba_cache_mode=mode,
            block_size=self.case["context"] if mode == "none" else self.block,
            num_speculative_blocks=self.case["num_speculative_tokens"], **extra,
        )  # fmt: skip

    def layers(self) -> list[list[Any]]:
        """For every decoder layer the specifications it registers, in order."""
        c, kind = self.config, self.config["model_type"]
        if kind.startswith(("deepseek_v", "glm_moe_dsa", "kimi_k2")):
            return self._latent_layers()
        if (
            kind in ("mamba", "mamba2", "jamba", "lfm2", "nemotron_h")
            or "linear_num_key_heads" in c
        ):
            return list(self._recurrent_layers())
        if kind == "whisper":
            heads, dim = c["decoder_attention_heads"], c["d_model"] // c["decoder_attention_heads"]
            return [[self.attention(heads, dim), self.cross(heads, dim)]] * c["decoder_layers"]
        return list(self._attention_layers())

    def _latent_layers(self) -> list[list[Any]]:
        c = self.config
        layer = [self.latent(c["kv_lora_rank"] + c["qk_rope_head_dim"])]
        if "index_head_dim" in c:
            layer.append(self.index(c["index_head_dim"]))
        extra = c.get("num_nextn_predict_layers", 0) if self.case["mtp"] else 0
        return [layer] * (c["num_hidden_layers"] + extra)

    def _recurrent_layers(self) -> Iterator[list[Any]]:
        c, kind = self.config, self.config["model_type"]
        spec_tokens, states = self.case["num_speculative_tokens"], self.vllm.states
        n = c["num_hidden_layers"]
        model, float32 = self.model_dtype, self.vllm.torch.float32
        new = self.vllm.is_new
        if kind == "mamba":
            shapes = states.mamba1_state_shape(
                self.tp, c["intermediate_size"], c["state_size"], c["conv_kernel"]
            )
            dtypes, marks, checkpoint = (model, model), "M" * n, 0
        elif kind == "jamba":
            shapes = states.mamba1_state_shape(
                self.tp, c["mamba_expand"] * c["hidden_size"], c["mamba_d_state"],
                c["mamba_d_conv"],
            )  # fmt: skip
            dtypes, checkpoint = (model, model), 0
            period, offset = c["attn_layer_period"], c["attn_layer_offset"]
            marks = "".join("*" if i % period == offset else "M" for i in range(n))
        elif kind == "mamba2":
            shapes = states.mamba2_state_shape(
                self.tp, c["num_heads"] * c["head_dim"], c["n_groups"], c["num_heads"],
                c["head_dim"], c["state_size"], c["conv_kernel"],
            )  # fmt: skip
            dtypes, marks, checkpoint = (model, model), "M" * n, int(new)
        elif kind == "nemotron_h":
            shapes = states.mamba2_state_shape(
                self.tp, c["mamba_num_heads"] * c["mamba_head_dim"], c["n_groups"],
                c["mamba_num_heads"], c["mamba_head_dim"], c["ssm_state_size"], c["conv_kernel"],
                spec_tokens,
            )  # fmt: skip
            dtypes, marks, checkpoint = (model, float32), c["hybrid_override_pattern"], int(new)
        elif kind == "lfm2":
            shapes = states.short_conv_state_shape(self.tp, c["conv_dim"], c["conv_L_cache"])
            dtypes, checkpoint = (model,), 0
            marks = "".join("*" if i in c["full_attn_idxs"] else "M" for i in range(n))
        else:
            shapes = states.gated_delta_net_state_shape(
                self.tp, c["linear_num_key_heads"], c["linear_num_value_heads"],
                c["linear_key_head_dim"], c["linear_value_head_dim"], c["linear_conv_kernel_dim"],
                spec_tokens,
            )  # fmt: skip
            ssm = getattr(self.vllm.torch, c.get("mamba_ssm_dtype") or str(model).split(".")[1])
            dtypes, checkpoint = (model, ssm), 0
            period = c["full_attention_interval"]
            marks = "".join("M" if (i + 1) % period else "*" for i in range(n))
        heads = c.get("num_key_value_heads", 0)
        dim = c.get("attention_head_dim") or c.get("head_dim")
        if "*" in marks:
            dim = dim or c["hidden_size"] // c["num_attention_heads"]
            self._raise_block(heads, dim, shapes, dtypes)
        state = self.state(shapes, dtypes, checkpoint)
        for mark in marks:
            yield [state] if mark == "M" else [self.attention(heads, dim)] if mark == "*" else []
        for _ in range(self.case["mtp"] + self.case["eagle_layers"]):
            yield [self.attention(heads, dim)]

    def _raise_block(self, heads: int, dim: int, shapes: Any, dtypes: tuple[Any, ...]) -> None:
        """vLLM's own alignment of attention blocks and state pages, on a FlashAttention backend."""
        from vllm.model_executor.models import ModelRegistry
        from vllm.platforms.interface import Platform
        from vllm.v1.attention.backend import MultipleOf

        cache = SimpleNamespace(
            cache_dtype=self.case["kv_dtype"], block_size=self.block,
            mamba_cache_mode=self.case["mamba_cache_mode"], mamba_block_size=None,
            user_specified_mamba_block_size=False, mamba_page_size_padded=None,
            kv_cache_dtype_skip_layers=[],
        )  # fmt: skip
        model = SimpleNamespace(
            use_mla=False, dtype=self.model_dtype, architecture="",
            get_num_kv_heads=lambda _: self.heads(heads), get_head_size=lambda: dim,
            get_mamba_chunk_size=lambda: 256,
        )  # fmt: skip
        config = SimpleNamespace(
            cache_config=cache, model_config=model, parallel_config=None,
            compilation_config=SimpleNamespace(static_forward_context={}),
        )  # fmt: skip
        states = SimpleNamespace(
            get_mamba_state_shape_from_config=lambda _: shapes,
            get_mamba_state_dtype_from_config=lambda _: dtypes,
        )
        backend = SimpleNamespace(
            get_supported_kernel_block_sizes=lambda: [MultipleOf(16)],
            customize_spec=self.packed,
        )
        saved = ModelRegistry.resolve_model_cls
        ModelRegistry.resolve_model_cls = lambda *_, **__: (states, "")
        platform = type("Aligned", (Platform,), {"_find_non_ssm_backends": lambda *_: [backend]})
        import vllm.config.vllm as vllm_config_module

        entered = vllm_config_module.set_current_vllm_config
        vllm_config_module.set_current_vllm_config = _no_config
        try:
            platform._align_hybrid_block_size(config, backend)
        finally:
            ModelRegistry.resolve_model_cls = saved
            vllm_config_module.set_current_vllm_config = entered
        self.block, self.padded = cache.block_size, cache.mamba_page_size_padded

    def _attention_layers(self) -> Iterator[list[Any]]:
        c, kind = self.config, self.config["model_type"]
        n = c.get("num_hidden_layers") or c["n_layer"]
        q_heads = c.get("num_attention_heads") or c["n_head"]
        heads = 1 if c.get("multi_query") else c.get("num_key_value_heads", q_heads)
        dim = c.get("head_dim") or c["hidden_size"] // q_heads
        v_dim = c.get("v_head_dim")
        stored = n - c.get("num_kv_shared_layers", 0)
        window = c.get("sliding_window") if c.get("use_sliding_window", True) else None
        if kind == "cohere2" and self.vllm.is_new:
            window += 1
        for i in range(stored):
            if kind == "llama4_text":
                chunk = c["attention_chunk_size"] if (i + 1) % 4 else None
                yield [self.attention(heads, dim, chunk=chunk)]
            elif not self._slides(i, window):
                full_heads = c.get("num_global_key_value_heads") or heads
                yield [self.attention(full_heads, c.get("global_head_dim") or dim, v_dim)]
            elif kind == "mimo_v2_flash":
                yield [
                    self.attention(
                        c["swa_num_key_value_heads"], c["swa_head_dim"], c["swa_v_head_dim"], window
                    )
                ]
            else:
                yield [self.attention(heads, dim, window=window)]
        for _ in range(self.case["eagle_layers"]):
            yield [self.attention(heads, dim)]

    def _slides(self, i: int, window: int | None) -> bool:
        c, kind = self.config, self.config["model_type"]
        if window is None:
            return False
        if "layer_types" in c:
            return bool(c["layer_types"][i] == "sliding_attention")
        if kind == "gemma2":
            return i % 2 == 0
        if kind == "mimo_v2_flash":
            return bool(c["hybrid_layer_pattern"][i])
        if isinstance(c.get("sliding_window_pattern"), int):
            return bool((i + 1) % c["sliding_window_pattern"])
        return True


class _no_config:
    """Stands in for vLLM's context manager: no global configuration is needed here."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...


def plan(vllm: Vllm, case: Case, config: dict[str, Any]) -> dict[str, Any]:
    """What vLLM plans for `case`: groups, blocks, blocks per request, tokens and concurrency."""
    build = Build(vllm, case, config)
    layers = build.layers()
    padded = getattr(build, "padded", None)
    from dataclasses import replace

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


def cases(version: str) -> Iterator[Case]:
    """The cases of one version, each with the name of its model; unlisted options are DEFAULTS."""
    yield from TABLE
    models = json.loads(MODELS.read_text("utf-8"))
    for number, name in enumerate(models):
        yield from _sweep(name, models[name]["config"], number)
    yield from SPECIAL
    modes = ("align",) if version >= "0.33" else ("align", "all")
    for model, mode, context, tokens in itertools.product(
        RECURRENT, modes, (8192, 100_000), (0, 2)
    ):
        if (mode, model) != ("all", "lfm2-1.2b"):
            yield {"model": model, "mamba_cache_mode": mode, "context": context,
                   "num_speculative_tokens": tokens}  # fmt: skip


def _sweep(name: str, config: dict[str, Any], number: int) -> Iterator[Case]:
    """Nine cases for a model, spread over the product of lengths, ranks, dtypes and budgets."""
    c = config.get("text_config", config)
    heads = c.get("num_attention_heads") or c.get("decoder_attention_heads") or c.get("n_head") or 8
    kv_heads = c.get("num_global_key_value_heads") or c.get("num_key_value_heads") or heads
    latent = "kv_lora_rank" in c
    ranks = [
        tp for tp in (1, 2, 4, 8)
        if heads % tp == 0 and (latent or kv_heads % tp == 0 or tp % kv_heads == 0)
    ]  # fmt: skip
    dtypes = ["auto"] if latent or "max_target_positions" in c else ["auto", "fp8"]
    if "index_head_dim" in c:
        dtypes = ["fp8_ds_mla", "auto"]
    elif latent:
        dtypes.append("fp8")
    encoders = [1500] if "max_target_positions" in c else [None]
    sizes = [64] if latent else [16, 32, 64]
    product = list(
        itertools.product((4096, 8192, 32768, 131_072, 100_001), ranks, dtypes, sizes,
                          (2048, 8192, 16384), (True, False), encoders)
    )  # fmt: skip
    for context, tp, kv, block, batched, overlap, encoder in random.Random(number).sample(
        product, 9
    ):
        yield {
            "model": name, "context": context, "tp": tp, "kv_dtype": kv, "block_size": block,
            "max_num_batched_tokens": batched, "async_scheduling": overlap,
            "encoder_tokens": encoder, "pool_bytes": 60 * GIB + number * 12_345_677,
        }  # fmt: skip


# The rows of the table of planner results in the reference of this project.
TABLE: list[Case] = [
    {"model": "llama-3-70b"},
    {"model": "llama-3-70b", "tp": 8},
    {"model": "llama-3-70b", "tp": 16},
    {"model": "llama-3.1-8b", "context": 8192, "pool_bytes": 62_395_137_393},
    *({"model": "gpt-oss-120b", "context": n} for n in (8192, 131_072)),
    {"model": "gpt-oss-120b", "context": 131_072, "hybrid": False},
    {"model": "gpt-oss-20b", "context": 131_072, "eagle_layers": 1},
    *({"model": "gemma-3-27b", "context": n} for n in (8192, 32768, 131_072)),
    *({"model": "gemma-3-27b", "context": n, "hybrid": False} for n in (8192, 131_072)),
    {"model": "gemma-3-27b", "context": 131_072, "max_num_batched_tokens": 16384},
    {"model": "gemma-2-9b", "context": 8192},
    {"model": "gemma-4-31b", "context": 131_072},
    {"model": "gemma-3n-e4b"},
    *({"model": "llama-4-scout", "context": 131_072, "hybrid": on} for on in (True, False)),
    {"model": "mistral-7b-v0.1"},
    {"model": "deepseek-v3", "block_size": 64},
    {"model": "deepseek-v3", "block_size": 64, "kv_dtype": "fp8"},
    {"model": "deepseek-v3.2", "block_size": 64, "kv_dtype": "fp8_ds_mla"},
    {"model": "qwen3-next-80b"},
    {"model": "whisper-large-v3", "context": 448, "encoder_tokens": 1500},
]
RECURRENT = ("qwen3-next-80b", "qwen3.5-27b", "nemotron-h-56b", "jamba-v0.1", "lfm2-1.2b")
SPECIAL: list[Case] = [
    *({"model": "llama-3-70b", "tp": tp, "pp": pp} for tp in (1, 2) for pp in (2, 3, 7)),
    *({"model": "gpt-oss-20b", "pp": pp, "context": 131_072} for pp in (2, 5)),
    *({"model": "gemma-3-27b", "pp": pp, "context": 65536} for pp in (2, 4)),
    *({"model": "qwen3-next-80b", "pp": pp} for pp in (2, 3)),
    *({"model": "qwen3-235b-a22b", "tp": 8, "dcp": 2, "context": n} for n in (8192, 100_003)),
    *({"model": "deepseek-v3", "tp": 8, "dcp": d, "block_size": 64} for d in (2, 4, 8)),
    *({"model": "glm-5", "tp": 8, "mtp": on, "block_size": 64, "kv_dtype": "fp8_ds_mla"}
      for on in (True, False)),
    *({"model": "qwen3-next-80b", "eagle_layers": 1, "num_speculative_tokens": n} for n in (1, 2, 3)),
    *({"model": "qwen3.5-27b", "mtp": True, "num_speculative_tokens": n} for n in (1, 3)),
    *({"model": m, "eagle_layers": 1, "context": n}
      for m in ("llama-3.1-8b", "gpt-oss-120b", "command-r7b") for n in (8192, 65536)),
    *({"model": m, "hybrid": False, "context": n}
      for m in ("gpt-oss-20b", "command-r7b", "olmo-3.1-32b", "llama-4-scout", "gemma-3-12b")
      for n in (8192, 65536)),
    *({"model": m, "kv_dtype": kv, "tp": tp}
      for m in ("llama-3.1-8b", "qwen3-32b", "command-r7b")
      for kv in ("int8_per_token_head", "nvfp4") for tp in (1, 2)),
]  # fmt: skip


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
