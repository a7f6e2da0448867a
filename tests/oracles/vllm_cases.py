"""The cases that `vllm_oracle.py` lets vLLM plan: a table, runs, a sweep, and special ones."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Case = dict[str, Any]
GIB = 1 << 30
MODELS = Path(__file__).parent.parent / "golden" / "vllm_planner_models.json"
DEFAULTS: Case = {
    "context": 32768, "tp": 1, "pp": 1, "dcp": 1, "kv_dtype": "auto", "block_size": 16,
    "max_num_batched_tokens": 8192, "async_scheduling": True, "hybrid": True,
    "mamba_cache_mode": "none", "num_speculative_tokens": 0, "mtp": False, "eagle_layers": 0,
    "encoder_tokens": None, "pool_bytes": 20 * GIB, "layers": None, "ssm_dtype": "auto",
    "flashinfer_delta": False,
}  # fmt: skip


def cases(version: str) -> Iterator[Case]:
    """The cases of one version, each with the name of its model; unlisted options are DEFAULTS."""
    yield from TABLE
    yield from _runs(version)
    models = json.loads(MODELS.read_text("utf-8"))
    for number, name in enumerate(models):
        yield from _sweep(name, models[name]["config"], number)
    yield from SPECIAL
    modes = ("align",) if version >= "0.33" else ("align", "all")
    for model, mode, context, tokens in itertools.product(
        RECURRENT, modes, (8192, 100_000), (0, 2)
    ):
        if mode != "all" or model in ("nemotron-h-56b", "jamba-v0.1", "attention-beside-mamba2"):
            yield {"model": model, "mamba_cache_mode": mode, "context": context,
                   "num_speculative_tokens": tokens}  # fmt: skip
    if version >= "0.33":
        for model, context in itertools.product(("qwen3-next-80b", "qwen3.5-27b"), (8192, 100_000)):
            yield {"model": model, "mamba_cache_mode": "align", "context": context,
                   "flashinfer_delta": True}  # fmt: skip


def _runs(version: str) -> Iterator[Case]:
    """The pools of ten runs on an H200; 0.33 keeps two states of a hybrid by default."""
    hybrids = ("qwen3-next-80b", "lfm2-1.2b")
    for model, context, blocks, block_bytes, layers in RUNS:
        case: Case = {
            "model": model, "context": context, "layers": layers, "max_num_batched_tokens": 16384,
            "pool_bytes": blocks * block_bytes,
        }  # fmt: skip
        if version >= "0.33" and model in hybrids:
            case["mamba_cache_mode"] = "align"
        yield case


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
    {"model": "qwen3-next-80b", "ssm_dtype": "float32"},
    {"model": "whisper-large-v3", "context": 448, "encoder_tokens": 1500},
]
# Runs of vLLM 0.22.1 on one H200: model, max_model_len, blocks, bytes per block, layers kept.
RUNS = (
    ("llama-3.1-8b", 8192, 55742, 2_097_152, None),
    ("llama-3.1-8b", 8192, 55585, 2_097_152, None),
    ("gemma-3-12b", 8192, 103_256, 1_048_576, None),
    ("gpt-oss-20b", 8192, 302_956, 393_216, None),
    ("gpt-oss-120b", 131_072, 108_962, 589_824, None),
    ("mistral-7b-v0.1", 32768, 56514, 2_097_152, None),
    ("deepseek-v2-lite", 32768, 203_596, 497_664, None),
    ("qwen3-next-80b", 32768, 17443, 4_456_448, 16),
    ("lfm2-1.2b", 32768, 668_299, 196_608, None),
    ("mamba-2.8b", 8192, 10307, 12_451_840, None),
)
RECURRENT = (
    "qwen3-next-80b", "qwen3.5-27b", "nemotron-h-56b", "jamba-v0.1", "lfm2-1.2b", "kda-and-latent",
    "attention-beside-mamba2",
)  # fmt: skip
SPECIAL: list[Case] = [
    *({"model": "llama-3-70b", "tp": tp, "pp": pp} for tp in (1, 2) for pp in (2, 3, 7)),
    *({"model": "gpt-oss-20b", "pp": pp, "context": 131_072} for pp in (2, 5)),
    *({"model": "gemma-3-27b", "pp": pp, "context": 65536} for pp in (2, 4)),
    *({"model": "qwen3-next-80b", "pp": pp} for pp in (2, 3)),
    *({"model": "qwen3-235b-a22b", "tp": 8, "dcp": 2, "context": n} for n in (8192, 100_003)),
    *({"model": "deepseek-v3", "tp": 8, "dcp": d, "block_size": 64} for d in (2, 4, 8)),
    *({"model": "glm-5", "tp": 8, "mtp": on, "block_size": 64, "kv_dtype": "fp8_ds_mla"}
      for on in (True, False)),
    *({"model": "qwen3-next-80b", "eagle_layers": 1, "num_speculative_tokens": n}
      for n in (1, 2, 3)),
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
