"""GGUF metadata becomes the configuration that the file was converted from."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.dtype import DTYPES, KVFormat
from kvtool.errors import ModelError
from kvtool.model.gguf import PARTS, gguf_weight_bytes, read_gguf_config
from kvtool.model.gguf_families import FAMILIES
from kvtool.model.gguf_file import read_gguf
from kvtool.model.huggingface import known_types, read_config
from kvtool.model.spec import Layer, ModelSpec, Recurrent

Tensors = list[tuple[str, tuple[int, ...], gguf.GGMLQuantizationType]]
F16, F32 = gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.F32
Q4_K, Q6_K = gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q6_K
CACHE = KVFormat(DTYPES["bfloat16"], DTYPES["bfloat16"])


def write_gguf(
    path: Path, architecture: str, keys: dict[str, Any], tensors: Tensors | None = None
) -> Path:
    """A GGUF file with metadata and tensor descriptions, but no tensor data.

    Keys without a dot before their first word belong to the architecture. Shapes are (out, in).
    """
    writer = gguf.GGUFWriter(str(path), architecture)
    for name, value in keys.items():
        key = (
            name
            if name.startswith(("general.", "tokenizer.", "split."))
            else f"{architecture}.{name}"
        )
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, shape, kind in tensors or []:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        stored = int(np.prod(shape)) // block * size
        rows = (*shape[:-1], shape[-1] // block * size)
        writer.add_tensor_info(name, rows, np.dtype(np.uint8), stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return path


def elements_of(layer: Layer) -> int:
    return sum(weight.elements for weight in layer.weights)


def states_of(model: ModelSpec) -> list[list[object]]:
    """What every layer keeps, but for the element type of recurrent states."""
    return [
        [
            replace(state, dtype="") if isinstance(state, Recurrent) else state
            for state in layer.states
        ]
        for layer in model.layers
    ]


def faults_of(path: Path) -> tuple[str, ...]:
    try:
        read_gguf_config(path)
    except ModelError as error:
        return error.faults
    return ()


def spec_of(config: dict[str, Any]) -> ModelSpec:
    return read_config(config, "model", "config.json")[0]


# One row per way of caching: keys as llama.cpp's converter writes them, and the deciding fields of
# the published config.json (from the models' pages) that they came from.
LLAMA = {
    "block_count": 32, "context_length": 8192, "embedding_length": 4096,
    "feed_forward_length": 14336, "attention.head_count": 32, "attention.head_count_kv": 8,
    "rope.dimension_count": 128, "vocab_size": 128256,
}  # fmt: skip
LLAMA_HF = {
    "model_type": "llama", "num_hidden_layers": 32, "max_position_embeddings": 8192,
    "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Llama-3-8B": ("llama", LLAMA, LLAMA_HF),
    "Mixtral-8x7B": (
        "llama",
        LLAMA | {"context_length": 32768, "vocab_size": 32000, "expert_count": 8,
                 "expert_used_count": 2},
        LLAMA_HF | {"model_type": "mixtral", "max_position_embeddings": 32768,
                    "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
                    "sliding_window": None},
    ),
    "Qwen3-32B": (
        "qwen3",
        {"block_count": 64, "context_length": 40960, "embedding_length": 5120,
         "feed_forward_length": 25600, "attention.head_count": 64, "attention.head_count_kv": 8,
         "attention.key_length": 128, "attention.value_length": 128, "vocab_size": 151936},
        {"model_type": "qwen3", "num_hidden_layers": 64, "hidden_size": 5120,
         "max_position_embeddings": 40960, "intermediate_size": 25600, "num_attention_heads": 64,
         "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936},
    ),
    "Qwen3-30B-A3B": (
        "qwen3moe",
        {"block_count": 48, "context_length": 40960, "embedding_length": 2048,
         "feed_forward_length": 6144, "attention.head_count": 32, "attention.head_count_kv": 4,
         "attention.key_length": 128, "attention.value_length": 128, "vocab_size": 151936,
         "expert_count": 128, "expert_used_count": 8, "expert_feed_forward_length": 768},
        {"model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048,
         "max_position_embeddings": 40960, "intermediate_size": 6144, "num_attention_heads": 32,
         "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "num_experts": 128,
         "num_experts_per_tok": 8, "moe_intermediate_size": 768},
    ),
    "Gemma-2-9B": (
        "gemma2",
        {"block_count": 42, "context_length": 8192, "embedding_length": 3584,
         "feed_forward_length": 14336, "attention.head_count": 16, "attention.head_count_kv": 8,
         "attention.key_length": 256, "attention.value_length": 256, "vocab_size": 256000},
        {"model_type": "gemma2", "num_hidden_layers": 42, "hidden_size": 3584, "head_dim": 256,
         "max_position_embeddings": 8192, "intermediate_size": 14336, "num_attention_heads": 16,
         "num_key_value_heads": 8, "vocab_size": 256000, "sliding_window": 4096},
    ),
    "Gemma-3-27B": (
        "gemma3",
        {"block_count": 62, "context_length": 131072, "embedding_length": 5376,
         "feed_forward_length": 21504, "attention.head_count": 32, "attention.head_count_kv": 16,
         "attention.key_length": 128, "attention.value_length": 128, "vocab_size": 262144,
         "attention.sliding_window": 1024},
        {"model_type": "gemma3_text", "num_hidden_layers": 62, "hidden_size": 5376,
         "head_dim": 128, "max_position_embeddings": 131072, "intermediate_size": 21504,
         "num_attention_heads": 32, "num_key_value_heads": 16, "vocab_size": 262144,
         "sliding_window": 1024, "sliding_window_pattern": 6},
    ),
    "Gemma-3n-E4B": (
        "gemma3n",
        {"block_count": 35, "context_length": 32768, "embedding_length": 2048,
         "feed_forward_length": 16384, "attention.head_count": 8, "attention.head_count_kv": 2,
         "attention.key_length": 256, "attention.value_length": 256, "vocab_size": 262400,
         "attention.sliding_window": 512, "attention.shared_kv_layers": 15,
         "attention.sliding_window_pattern": [bool((i + 1) % 5) for i in range(35)],
         "embedding_length_per_layer_input": 256},
        {"model_type": "gemma3n_text", "num_hidden_layers": 35, "hidden_size": 2048,
         "head_dim": 256, "max_position_embeddings": 32768, "intermediate_size": 16384,
         "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 262400,
         "sliding_window": 512, "num_kv_shared_layers": 15, "hidden_size_per_layer_input": 256,
         "vocab_size_per_layer_input": 262400},
    ),
    "Gemma-4-26B-A4B": (
        "gemma4",
        {"block_count": 30, "context_length": 262144, "embedding_length": 2816,
         "feed_forward_length": 2112, "attention.head_count": 16,
         "attention.head_count_kv": [8 if (i + 1) % 6 else 2 for i in range(30)],
         "attention.key_length": 512, "attention.value_length": 512,
         "attention.key_length_swa": 256, "attention.value_length_swa": 256,
         "attention.sliding_window": 1024, "attention.shared_kv_layers": 0,
         "attention.sliding_window_pattern": [bool((i + 1) % 6) for i in range(30)],
         "embedding_length_per_layer_input": 0, "vocab_size": 262144, "expert_count": 128,
         "expert_used_count": 8, "expert_feed_forward_length": 704},
        {"model_type": "gemma4_text", "num_hidden_layers": 30, "hidden_size": 2816,
         "head_dim": 256, "global_head_dim": 512, "max_position_embeddings": 262144,
         "intermediate_size": 2112, "num_attention_heads": 16, "num_key_value_heads": 8,
         "num_global_key_value_heads": 2, "attention_k_eq_v": True, "vocab_size": 262144,
         "sliding_window": 1024, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
         "enable_moe_block": True, "num_experts": 128, "top_k_experts": 8,
         "moe_intermediate_size": 704},
    ),
    "gpt-oss-20b": (
        "gpt-oss",
        {"block_count": 24, "context_length": 131072, "embedding_length": 2880,
         "feed_forward_length": 2880, "attention.head_count": 64, "attention.head_count_kv": 8,
         "attention.key_length": 64, "attention.value_length": 64, "vocab_size": 201088,
         "attention.sliding_window": 128, "expert_count": 32, "expert_used_count": 4,
         "expert_feed_forward_length": 2880},
        {"model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "head_dim": 64,
         "max_position_embeddings": 131072, "intermediate_size": 2880, "num_attention_heads": 64,
         "num_key_value_heads": 8, "vocab_size": 201088, "sliding_window": 128,
         "num_local_experts": 32, "num_experts_per_tok": 4, "attention_bias": True},
    ),
    "Llama-4-Scout": (
        "llama4",
        {"block_count": 48, "context_length": 10485760, "embedding_length": 5120,
         "feed_forward_length": 16384, "attention.head_count": 40, "attention.head_count_kv": 8,
         "attention.key_length": 128, "attention.value_length": 128, "vocab_size": 202048,
         "expert_count": 16, "expert_used_count": 1, "expert_feed_forward_length": 8192,
         "interleave_moe_layer_step": 1},
        {"model_type": "llama4_text", "num_hidden_layers": 48, "hidden_size": 5120,
         "head_dim": 128, "max_position_embeddings": 10485760, "intermediate_size": 8192,
         "intermediate_size_mlp": 16384, "num_attention_heads": 40, "num_key_value_heads": 8,
         "vocab_size": 202048, "attention_chunk_size": 8192, "num_local_experts": 16,
         "num_experts_per_tok": 1, "interleave_moe_layer_step": 1},
    ),
    "Command-R7B": (
        "cohere2",
        {"block_count": 32, "context_length": 8192, "embedding_length": 4096,
         "feed_forward_length": 14336, "attention.head_count": 32, "attention.head_count_kv": 8,
         "attention.key_length": 128, "attention.value_length": 128, "vocab_size": 256000,
         "attention.sliding_window": 4096},
        {"model_type": "cohere2", "num_hidden_layers": 32, "hidden_size": 4096, "head_dim": 128,
         "max_position_embeddings": 8192, "intermediate_size": 14336, "num_attention_heads": 32,
         "num_key_value_heads": 8, "vocab_size": 256000, "sliding_window": 4096,
         "sliding_window_pattern": 4, "tie_word_embeddings": True},
    ),
    "EXAONE-4.0-32B": (
        "exaone4",
        {"block_count": 64, "context_length": 131072, "embedding_length": 5120,
         "feed_forward_length": 27392, "attention.head_count": 40, "attention.head_count_kv": 8,
         "attention.key_length": 128, "attention.value_length": 128, "vocab_size": 102400,
         "attention.sliding_window": 4096},
        {"model_type": "exaone4", "num_hidden_layers": 64, "hidden_size": 5120, "head_dim": 128,
         "max_position_embeddings": 131072, "intermediate_size": 27392,
         "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 102400,
         "sliding_window": 4096, "sliding_window_pattern": "LLLG"},
    ),
    "Falcon-7B": (
        "falcon",
        {"block_count": 32, "context_length": 2048, "embedding_length": 4544,
         "feed_forward_length": 18176, "attention.head_count": 71, "attention.head_count_kv": 1,
         "vocab_size": 65024},
        {"model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544,
         "max_position_embeddings": 2048, "num_attention_heads": 71, "multi_query": True,
         "vocab_size": 65024, "bias": False, "parallel_attn": True,
         "new_decoder_architecture": False},
    ),
    "DeepSeek-V3": (
        "deepseek2",
        {"block_count": 61, "context_length": 163840, "embedding_length": 7168,
         "feed_forward_length": 18432, "attention.head_count": 128, "attention.head_count_kv": 1,
         "attention.key_length": 576, "attention.value_length": 512,
         "attention.key_length_mla": 192, "attention.value_length_mla": 128,
         "attention.kv_lora_rank": 512, "attention.q_lora_rank": 1536,
         "rope.dimension_count": 64, "vocab_size": 129280, "leading_dense_block_count": 3,
         "expert_count": 256, "expert_used_count": 8, "expert_feed_forward_length": 2048,
         "expert_shared_count": 1, "expert_gating_func": 2},
        {"model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168,
         "max_position_embeddings": 163840, "intermediate_size": 18432,
         "num_attention_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536,
         "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
         "vocab_size": 129280, "first_k_dense_replace": 3, "moe_layer_freq": 1,
         "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
         "n_shared_experts": 1, "num_nextn_predict_layers": 0},
    ),
    "DeepSeek-V2-Lite, converted before 2025": (
        "deepseek2",
        {"block_count": 27, "context_length": 163840, "embedding_length": 2048,
         "feed_forward_length": 10944, "attention.head_count": 16, "attention.head_count_kv": 16,
         "attention.key_length": 192, "attention.value_length": 128,
         "attention.kv_lora_rank": 512, "rope.dimension_count": 64, "vocab_size": 102400,
         "leading_dense_block_count": 1, "expert_count": 64, "expert_used_count": 6,
         "expert_feed_forward_length": 1408, "expert_shared_count": 2},
        {"model_type": "deepseek_v2", "num_hidden_layers": 27, "hidden_size": 2048,
         "max_position_embeddings": 163840, "intermediate_size": 10944,
         "num_attention_heads": 16, "kv_lora_rank": 512, "q_lora_rank": None,
         "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
         "vocab_size": 102400, "first_k_dense_replace": 1, "moe_layer_freq": 1,
         "n_routed_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 1408,
         "n_shared_experts": 2},
    ),
    "GLM-5-like, with indexer and MTP layer": (
        "glm-dsa",
        {"block_count": 9, "nextn_predict_layers": 1, "context_length": 202752,
         "embedding_length": 6144, "feed_forward_length": 12288, "attention.head_count": 64,
         "attention.head_count_kv": 1, "attention.key_length": 576,
         "attention.value_length": 512, "attention.key_length_mla": 256,
         "attention.value_length_mla": 256, "attention.kv_lora_rank": 512,
         "attention.q_lora_rank": 2048, "rope.dimension_count": 64, "vocab_size": 154880,
         "leading_dense_block_count": 3, "expert_count": 256, "expert_used_count": 8,
         "expert_feed_forward_length": 2048, "expert_shared_count": 1,
         "attention.indexer.head_count": 32, "attention.indexer.key_length": 128,
         "attention.indexer.top_k": 2048,
         "attention.indexer.types": [True, True, True, False, False, False, True, False, True]},
        {"model_type": "glm_moe_dsa", "num_hidden_layers": 8, "num_nextn_predict_layers": 1,
         "hidden_size": 6144, "max_position_embeddings": 202752, "intermediate_size": 12288,
         "num_attention_heads": 64, "kv_lora_rank": 512, "q_lora_rank": 2048,
         "qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256,
         "vocab_size": 154880, "first_k_dense_replace": 3, "n_routed_experts": 256,
         "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1,
         "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 5, "index_head_dim": 128,
         "index_n_heads": 32, "index_topk": 2048,
         "indexer_types": ["full"] * 3 + ["shared"] * 3 + ["full", "shared"]},
    ),
    "Qwen3-Next-80B": (
        "qwen3next",
        {"block_count": 48, "context_length": 262144, "embedding_length": 2048,
         "feed_forward_length": 5120, "attention.head_count": 16, "attention.head_count_kv": 2,
         "attention.key_length": 256, "attention.value_length": 256, "vocab_size": 151936,
         "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 16,
         "ssm.time_step_rank": 32, "ssm.inner_size": 4096, "full_attention_interval": 4,
         "expert_count": 512, "expert_used_count": 10, "expert_feed_forward_length": 512,
         "expert_shared_feed_forward_length": 512},
        {"model_type": "qwen3_next", "num_hidden_layers": 48, "hidden_size": 2048,
         "max_position_embeddings": 262144, "head_dim": 256, "num_attention_heads": 16,
         "num_key_value_heads": 2, "full_attention_interval": 4, "linear_num_key_heads": 16,
         "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
         "linear_conv_kernel_dim": 4, "vocab_size": 151936, "num_experts": 512,
         "num_experts_per_tok": 10, "moe_intermediate_size": 512, "intermediate_size": 5120,
         "shared_expert_intermediate_size": 512, "torch_dtype": "float16"},
    ),
    "Qwen3.5-0.8B with its MTP layer": (
        "qwen35",
        {"block_count": 25, "nextn_predict_layers": 1, "context_length": 262144,
         "embedding_length": 1024, "feed_forward_length": 3584, "attention.head_count": 8,
         "attention.head_count_kv": 2, "attention.key_length": 256,
         "attention.value_length": 256, "vocab_size": 248320, "ssm.conv_kernel": 4,
         "ssm.state_size": 128, "ssm.group_count": 16, "ssm.time_step_rank": 16,
         "ssm.inner_size": 2048, "full_attention_interval": 4},
        {"model_type": "qwen3_5_text", "num_hidden_layers": 24, "mtp_num_hidden_layers": 1,
         "hidden_size": 1024, "max_position_embeddings": 262144, "intermediate_size": 3584,
         "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 2,
         "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
         "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
         "vocab_size": 248320, "mamba_ssm_dtype": "float32", "torch_dtype": "float16"},
    ),
    "Kimi-Linear-48B-like": (
        "kimi-linear",
        {"block_count": 8, "context_length": 1048576, "embedding_length": 2304,
         "feed_forward_length": 9216, "attention.head_count": 32,
         "attention.head_count_kv": [0, 0, 0, 1, 0, 0, 0, 1], "attention.key_length": 576,
         "attention.key_length_mla": 192, "attention.value_length_mla": 128,
         "attention.kv_lora_rank": 512, "rope.dimension_count": 64, "vocab_size": 163840,
         "ssm.conv_kernel": 4, "kda.head_dim": 128, "leading_dense_block_count": 1,
         "expert_count": 256, "expert_used_count": 8, "expert_feed_forward_length": 1024,
         "expert_shared_count": 1},
        {"model_type": "kimi_linear", "num_hidden_layers": 8, "hidden_size": 2304,
         "intermediate_size": 9216, "num_attention_heads": 32, "kv_lora_rank": 512,
         "q_lora_rank": None, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
         "v_head_dim": 128, "vocab_size": 163840, "model_max_length": 1048576,
         "linear_attn_config": {"full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7],
                                "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4},
         "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_experts": 256,
         "num_experts_per_token": 8, "moe_intermediate_size": 1024, "num_shared_experts": 1,
         "torch_dtype": "float16"},
    ),
    "Mamba-2.8B": (
        "mamba",
        {"block_count": 64, "context_length": 1048576, "embedding_length": 2560,
         "feed_forward_length": 0, "attention.head_count": 0, "ssm.conv_kernel": 4,
         "ssm.inner_size": 5120, "ssm.state_size": 16, "ssm.time_step_rank": 160,
         "ssm.dt_b_c_rms": False, "vocab_size": 50280},
        {"model_type": "mamba", "num_hidden_layers": 64, "hidden_size": 2560, "state_size": 16,
         "intermediate_size": 5120, "conv_kernel": 4, "time_step_rank": 160, "expand": 2,
         "vocab_size": 50280, "torch_dtype": "float16", "tie_word_embeddings": True},
    ),
    "Mamba-Codestral-7B": (
        "mamba2",
        {"block_count": 64, "context_length": 1048576, "embedding_length": 4096,
         "feed_forward_length": 0, "attention.head_count": 0, "ssm.conv_kernel": 4,
         "ssm.inner_size": 8192, "ssm.state_size": 128, "ssm.time_step_rank": 128,
         "ssm.group_count": 8, "vocab_size": 32768},
        {"model_type": "mamba2", "num_hidden_layers": 64, "hidden_size": 4096,
         "state_size": 128, "conv_kernel": 4, "num_heads": 128, "head_dim": 64, "n_groups": 8,
         "expand": 2, "vocab_size": 32768, "torch_dtype": "float16",
         "tie_word_embeddings": False},
    ),
    "Jamba-v0.1": (
        "jamba",
        {"block_count": 32, "context_length": 262144, "embedding_length": 4096,
         "feed_forward_length": 14336, "attention.head_count": 32,
         "attention.head_count_kv": [8 if i % 8 == 4 else 0 for i in range(32)],
         "ssm.conv_kernel": 4, "ssm.inner_size": 8192, "ssm.state_size": 16,
         "ssm.time_step_rank": 256, "vocab_size": 65536},
        {"model_type": "jamba", "num_hidden_layers": 32, "hidden_size": 4096,
         "intermediate_size": 14336, "max_position_embeddings": 262144, "mamba_expand": 2,
         "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_dt_rank": 256, "attn_layer_period": 8,
         "attn_layer_offset": 4, "num_attention_heads": 32, "num_key_value_heads": 8,
         "vocab_size": 65536, "num_experts": 0, "torch_dtype": "float16"},
    ),
    "Granite-4.0-h-tiny": (
        "granitehybrid",
        {"block_count": 40, "context_length": 1048576, "embedding_length": 1536,
         "feed_forward_length": 512, "attention.head_count": 12,
         "attention.head_count_kv": [4 if i in (5, 15, 25, 35) else 0 for i in range(40)],
         "ssm.conv_kernel": 4, "ssm.inner_size": 3072, "ssm.state_size": 128,
         "ssm.time_step_rank": 48, "ssm.group_count": 1, "vocab_size": 100352,
         "expert_count": 64, "expert_used_count": 6, "expert_shared_feed_forward_length": 1024},
        {"model_type": "granitemoehybrid", "num_hidden_layers": 40, "hidden_size": 1536,
         "intermediate_size": 512, "shared_intermediate_size": 1024, "mamba_expand": 2,
         "layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
         "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1,
         "mamba_n_heads": 48, "num_attention_heads": 12, "num_key_value_heads": 4,
         "vocab_size": 100352, "num_local_experts": 64, "num_experts_per_tok": 6,
         "max_position_embeddings": None, "torch_dtype": "float16"},
    ),
    "Nemotron-H-like": (
        "nemotron_h_moe",
        {"block_count": 6, "context_length": 1048576, "embedding_length": 2688,
         "feed_forward_length": [0, 1856, 0, 0, 0, 1856], "attention.head_count": 32,
         "attention.head_count_kv": [0, 0, 0, 2, 0, 0], "attention.key_length": 128,
         "attention.value_length": 128, "ssm.conv_kernel": 4, "ssm.inner_size": 4096,
         "ssm.state_size": 128, "ssm.time_step_rank": 64, "ssm.group_count": 8,
         "vocab_size": 131072, "expert_count": 128, "expert_used_count": 6,
         "expert_feed_forward_length": 1856, "expert_shared_feed_forward_length": 3712,
         "expert_shared_count": 1},
        {"model_type": "nemotron_h", "num_hidden_layers": 6, "hidden_size": 2688,
         "hybrid_override_pattern": "MEM*ME", "num_attention_heads": 32, "head_dim": 128,
         "num_key_value_heads": 2, "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8,
         "ssm_state_size": 128, "conv_kernel": 4, "mamba_ssm_cache_dtype": "float32",
         "vocab_size": 131072, "n_routed_experts": 128, "num_experts_per_tok": 6,
         "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
         "n_shared_experts": 1, "intermediate_size": 1856, "max_position_embeddings": None,
         "torch_dtype": "float16"},
    ),
    "Falcon-H1-0.5B": (
        "falcon-h1",
        {"block_count": 36, "context_length": 16384, "embedding_length": 1024,
         "feed_forward_length": 2048, "attention.head_count": 8, "attention.head_count_kv": 2,
         "attention.key_length": 64, "attention.value_length": 64, "ssm.conv_kernel": 4,
         "ssm.inner_size": 1536, "ssm.state_size": 128, "ssm.time_step_rank": 24,
         "ssm.group_count": 1, "vocab_size": 32784},
        {"model_type": "falcon_h1", "num_hidden_layers": 36, "hidden_size": 1024,
         "intermediate_size": 2048, "max_position_embeddings": 16384, "mamba_d_ssm": 1536,
         "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_n_heads": 24,
         "mamba_d_conv": 4, "head_dim": 64, "num_attention_heads": 8, "num_key_value_heads": 2,
         "vocab_size": 32784, "mamba_rms_norm": False, "torch_dtype": "float16"},
    ),
    "LFM2-1.2B": (
        "lfm2",
        {"block_count": 16, "context_length": 128000, "embedding_length": 2048,
         "feed_forward_length": 8192, "attention.head_count": 32,
         "attention.head_count_kv": [8 if i in (2, 5, 8, 10, 12, 14) else 0 for i in range(16)],
         "shortconv.l_cache": 3, "vocab_size": 65536},
        {"model_type": "lfm2", "num_hidden_layers": 16, "hidden_size": 2048,
         "max_position_embeddings": 128000, "intermediate_size": 12288,
         "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0,
         "block_multiple_of": 256, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
         "conv_L_cache": 3, "num_attention_heads": 32, "num_key_value_heads": 8,
         "vocab_size": 65536, "torch_dtype": "float16"},
    ),
    "RWKV-6-like": (
        "rwkv6",
        {"block_count": 24, "context_length": 1048576, "embedding_length": 2048,
         "feed_forward_length": 7168, "attention.head_count": 0, "wkv.head_size": 64,
         "vocab_size": 65536},
        {"model_type": "rwkv6", "num_hidden_layers": 24, "hidden_size": 2048, "head_size": 64,
         "vocab_size": 65536, "torch_dtype": "float16"},
    ),
    "MiMo-V2-Flash with its MTP layers": (
        "mimo2",
        {"block_count": 15, "nextn_predict_layers": 3, "context_length": 262144,
         "embedding_length": 4096, "feed_forward_length": 16384, "attention.head_count": 64,
         "attention.head_count_kv": [4 if i % 6 == 0 else 8 for i in range(12)] + [8] * 3,
         "attention.key_length": 192, "attention.value_length": 128, "vocab_size": 152576,
         "attention.sliding_window": 128,
         "attention.sliding_window_pattern": [int(i % 6 != 0) for i in range(12)] + [1] * 3,
         "expert_count": 256, "expert_used_count": 8, "expert_feed_forward_length": 2048,
         "leading_dense_block_count": 1},
        {"model_type": "mimo_v2_flash", "num_hidden_layers": 12, "num_nextn_predict_layers": 3,
         "hidden_size": 4096, "max_position_embeddings": 262144, "intermediate_size": 16384,
         "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 192,
         "v_head_dim": 128, "vocab_size": 152576, "sliding_window": 128,
         "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128,
         "layer_types": ["sliding_attention" if i % 6 else "full_attention" for i in range(12)],
         "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
         "moe_layer_freq": [0] + [1] * 11},
    ),
    "Nemotron-Super-49B-like": (
        "deci",
        {"block_count": 4, "context_length": 131072, "embedding_length": 8192,
         "feed_forward_length": [14336, 28672, 28672, 0],
         "attention.head_count": [64, 64, 0, 64], "attention.head_count_kv": [8, 8, 0, 0],
         "attention.key_length": 128, "attention.value_length": 128, "vocab_size": 128256},
        {"model_type": "nemotron-nas", "num_hidden_layers": 4, "hidden_size": 8192,
         "max_position_embeddings": 131072, "num_attention_heads": 64,
         "num_key_value_heads": None, "intermediate_size": None, "vocab_size": 128256,
         "block_configs": [
             {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 2.625}},
             {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 5.25}},
             {"attention": {"no_op": True}, "ffn": {"ffn_mult": 5.25}},
             {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}}]},
    ),
    "OpenELM-like": (
        "openelm",
        {"block_count": 3, "context_length": 2048, "embedding_length": 1280,
         "feed_forward_length": [768, 1024, 5120], "attention.head_count": [12, 16, 20],
         "attention.head_count_kv": [3, 4, 5], "attention.key_length": 64,
         "attention.value_length": 64, "vocab_size": 32000},
        {"model_type": "openelm", "num_transformer_layers": 3, "model_dim": 1280, "head_dim": 64,
         "num_query_heads": [12, 16, 20], "num_kv_heads": [3, 4, 5], "ffn_dim_divisor": 256,
         "ffn_multipliers": [0.5, 0.73, 4.0], "vocab_size": 32000, "max_context_length": 2048,
         "share_input_output_layers": False, "normalize_qk_projections": True},
    ),
    "FLAN-T5-large": (
        "t5",
        {"block_count": 24, "context_length": 512, "embedding_length": 1024,
         "feed_forward_length": 2816, "attention.head_count": 16, "attention.key_length": 64,
         "attention.value_length": 64, "decoder_block_count": 24, "vocab_size": 32128},
        {"model_type": "t5", "num_layers": 24, "num_decoder_layers": 24, "d_model": 1024,
         "d_ff": 2816, "d_kv": 64, "num_heads": 16, "n_positions": 512, "vocab_size": 32128,
         "feed_forward_proj": "relu"},
    ),
    "Granite-MoE-shared": (
        "granitemoe",
        {"block_count": 24, "context_length": 4096, "embedding_length": 1024,
         "feed_forward_length": 512, "attention.head_count": 16, "attention.head_count_kv": 8,
         "vocab_size": 49152, "expert_count": 32, "expert_used_count": 8,
         "expert_shared_feed_forward_length": 1024},
        {"model_type": "granitemoeshared", "num_hidden_layers": 24, "hidden_size": 1024,
         "intermediate_size": 512, "max_position_embeddings": 4096, "num_attention_heads": 16,
         "num_key_value_heads": 8, "vocab_size": 49152, "num_local_experts": 32,
         "num_experts_per_tok": 8, "shared_intermediate_size": 1024},
    ),
    "ERNIE-4.5-21B-A3B": (
        "ernie4_5-moe",
        {"block_count": 28, "context_length": 131072, "embedding_length": 2560,
         "feed_forward_length": 12288, "attention.head_count": 20, "attention.head_count_kv": 4,
         "attention.key_length": 128, "attention.value_length": 128, "vocab_size": 103424,
         "expert_count": 64, "expert_used_count": 6, "expert_feed_forward_length": 1536,
         "expert_shared_feed_forward_length": 3072, "interleave_moe_layer_step": 1,
         "leading_dense_block_count": 1},
        {"model_type": "ernie4_5_moe", "num_hidden_layers": 28, "hidden_size": 2560,
         "max_position_embeddings": 131072, "intermediate_size": 12288,
         "num_attention_heads": 20, "num_key_value_heads": 4, "head_dim": 128,
         "vocab_size": 103424, "moe_num_experts": 64, "moe_k": 6, "moe_intermediate_size": 1536,
         "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_interval": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_converted_model_keeps_the_layers_of_its_configuration(tmp_path: Path, name: str) -> None:
    architecture, keys, published = CASES[name]
    path = write_gguf(tmp_path / "model.gguf", architecture, keys)

    found, expected = (
        spec_of(read_gguf_config(path)),
        spec_of({"torch_dtype": "float16"} | published),
    )

    assert [layer.states for layer in found.layers] == [layer.states for layer in expected.layers]
    assert found.max_context == expected.max_context
    assert (found.hidden_size, found.vocab_size) == (expected.hidden_size, expected.vocab_size)
    assert [elements_of(layer) for layer in found.layers] == [
        elements_of(layer) for layer in expected.layers
    ]
    assert found.mtp_layers == expected.mtp_layers


# From tests/oracles/gguf_oracle.py: keys that llama.cpp's converter sets, fields they come from.
CONVERTED = json.loads((Path(__file__).parents[1] / "golden" / "gguf_converter.json").read_text())
# What the converter drops or writes a placeholder for.
LOST = {
    "nemotron_h_moe": {"max_position_embeddings": None},
    "starcoder2": {"sliding_window": None},
}
# Architectures whose parameters depend on tensors that are not described here: routers of Jamba,
# biases of ChatGLM, StableLM and StarCoder2, gates of T5, what Kimi K3 adds to Kimi Linear.
BY_TENSORS = {"chatglm", "jamba", "kimi-linear", "stablelm", "starcoder2", "t5"}


@pytest.mark.parametrize("architecture", CONVERTED)
def test_what_llama_cpps_converter_writes_is_the_model_it_was_given(
    tmp_path: Path, architecture: str
) -> None:
    row = CONVERTED[architecture]
    path = write_gguf(tmp_path / "model.gguf", architecture, row["keys"])
    published = {"torch_dtype": "float16"} | row["config"] | LOST.get(architecture, {})

    found, expected = spec_of(read_gguf_config(path)), spec_of(published)

    assert states_of(found) == states_of(expected)
    assert found.max_context == expected.max_context
    assert (found.hidden_size, found.vocab_size) == (expected.hidden_size, expected.vocab_size)
    if architecture not in BY_TENSORS:
        assert [elements_of(layer) for layer in found.layers] == [
            elements_of(layer) for layer in expected.layers
        ]


@pytest.mark.parametrize(
    ("name", "tokens", "expected"),
    [
        # 10 full layers of 62 grow, 52 keep 1,024 tokens (reference of Gemma 3's layout).
        ("Gemma-3-27B", 131_072, 11_173_625_856),
        # 61 layers x (512 + 64) x 2 B.
        ("DeepSeek-V3", 1, 70_272),
        # 12 layers x 2 x 2 x 256 x 2 B a token, 36 x (3 x 8192 + 32 x 128 x 128) x 2 B of state.
        ("Qwen3-Next-80B", 1, 24_576 + 39_518_208),
        ("Falcon-7B", 1, 8_192),
        # 64 x 2 x 8 x 128 x 2 B: the head is 128 wide, not 5120 / 64.
        ("Qwen3-32B", 32_768, 8_589_934_592),
    ],
)
def test_cache_bytes_of_a_file_are_those_of_the_model(
    tmp_path: Path, name: str, tokens: int, expected: int
) -> None:
    architecture, keys, _ = CASES[name]
    model = spec_of(read_gguf_config(write_gguf(tmp_path / "model.gguf", architecture, keys)))

    assert sum(state.bytes(tokens, CACHE) for state in model.states()) == expected


def test_every_architecture_leads_to_a_model_type_with_a_reader() -> None:
    assert {family.model_type for family in FAMILIES.values()} <= set(known_types())


def test_every_architecture_is_spelled_as_llama_cpp_spells_it() -> None:
    newer_than_the_package = {"deepseek32", "deepseek4"}

    assert set(FAMILIES) - newer_than_the_package <= set(gguf.MODEL_ARCH_NAMES.values())
    assert newer_than_the_package <= set(CONVERTED)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_no_architecture_stumbles_over_the_keys_of_another(
    tmp_path: Path, architecture: str
) -> None:
    path = write_gguf(tmp_path / "model.gguf", architecture, LLAMA)

    faults = faults_of(path)

    assert all(fault.startswith(f"model.gguf: {architecture}.") for fault in faults)
    assert faults or read_gguf_config(path)["model_type"] in known_types()


def test_vocabulary_is_counted_where_no_key_states_it(tmp_path: Path) -> None:
    keys = {name: value for name, value in LLAMA.items() if name != "vocab_size"}
    listed = keys | {"tokenizer.ggml.tokens": [f"t{i}" for i in range(77)]}
    stored: Tensors = [("token_embd.weight", (99, 4096), F16)]

    assert read_gguf_config(write_gguf(tmp_path / "a", "llama", listed))["vocab_size"] == 77
    assert read_gguf_config(write_gguf(tmp_path / "b", "llama", keys, stored))["vocab_size"] == 99


def test_long_arrays_are_counted_and_not_kept(tmp_path: Path) -> None:
    keys = LLAMA | {
        "tokenizer.ggml.tokens": ["x"] * 30_000,
        "tokenizer.ggml.scores": [0.5] * 30_000,
    }

    file = read_gguf(write_gguf(tmp_path / "model.gguf", "llama", keys))

    assert file.lengths == {"tokenizer.ggml.tokens": 30_000, "tokenizer.ggml.scores": 30_000}
    assert not [key for key in file.metadata if key.startswith("tokenizer.")]


@pytest.mark.parametrize(
    ("file_type", "dtype", "label"),
    [
        (gguf.LlamaFileType.MOSTLY_BF16, "bfloat16", "BF16"),
        (gguf.LlamaFileType.ALL_F32, "float32", "F32"),
        (gguf.LlamaFileType.MOSTLY_Q4_K_M, "float16", "Q4_K_M"),
        (9_999, "float16", None),
    ],
)
def test_quantisation_is_named_and_a_plain_float_is_the_dtype(
    tmp_path: Path, file_type: int, dtype: str, label: str | None
) -> None:
    path = write_gguf(
        tmp_path / "model.gguf", "llama", LLAMA | {"general.file_type": int(file_type)}
    )

    config = read_gguf_config(path)

    assert config["torch_dtype"] == dtype
    assert config["_gguf"] == {"architecture": "llama", "file_type": label}


def test_stored_tensors_tell_about_biases_and_tied_embeddings(tmp_path: Path) -> None:
    bare: Tensors = [("token_embd.weight", (128256, 4096), F16)]
    full: Tensors = [
        *bare,
        ("output.weight", (128256, 4096), F16),
        ("blk.3.attn_q.bias", (4096,), F32),
    ]

    tied = read_gguf_config(write_gguf(tmp_path / "a", "llama", LLAMA, bare))
    untied = read_gguf_config(write_gguf(tmp_path / "b", "llama", LLAMA, full))

    assert (tied["tie_word_embeddings"], tied["attention_bias"]) == (True, False)
    assert (untied["tie_word_embeddings"], untied["attention_bias"]) == (False, True)


def test_layers_with_a_stored_router_are_the_ones_with_experts(tmp_path: Path) -> None:
    architecture, keys, _ = CASES["Jamba-v0.1"]
    experts = keys | {"expert_count": 16, "expert_used_count": 2}
    routers: Tensors = [(f"blk.{i}.ffn_gate_inp.weight", (16, 4096), F32) for i in range(1, 32, 2)]

    model = spec_of(read_gguf_config(write_gguf(tmp_path / "m", architecture, experts, routers)))

    sparse = [any(w.part == "experts" for w in layer.weights) for layer in model.layers]
    assert sparse == [bool(i % 2) for i in range(32)]


def test_the_stored_shared_expert_says_how_wide_it_is(tmp_path: Path) -> None:
    architecture, keys, _ = CASES["Qwen3-Next-80B"]
    del (keys := dict(keys))["expert_shared_feed_forward_length"]
    stored: Tensors = [("blk.0.ffn_up_shexp.weight", (640, 2048), F16)]

    config = read_gguf_config(write_gguf(tmp_path / "model.gguf", architecture, keys, stored))

    assert config["shared_expert_intermediate_size"] == 640


def test_gemma4_layers_without_a_value_projection_use_their_keys(tmp_path: Path) -> None:
    architecture, keys, _ = CASES["Gemma-4-26B-A4B"]
    keys = keys | {"attention.head_count_kv": 8, "attention.shared_kv_layers": 6}
    sliding = keys["attention.sliding_window_pattern"]
    names = [f"blk.{i}.attn_v.weight" for i in range(24) if sliding[i]]
    every = [f"blk.{i}.attn_v.weight" for i in range(24)]

    def stored(names: list[str]) -> Tensors:
        return [(name, (2048, 2816), F16) for name in names]

    reused = read_gguf_config(write_gguf(tmp_path / "a", architecture, keys, stored(names)))
    plain = read_gguf_config(write_gguf(tmp_path / "b", architecture, keys, stored(every)))

    assert (reused["attention_k_eq_v"], reused["num_global_key_value_heads"]) == (True, 8)
    assert (plain["attention_k_eq_v"], plain["num_global_key_value_heads"]) == (False, None)


def test_olmo2_with_a_window_is_olmo3(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m", "olmo2", LLAMA | {"attention.sliding_window": 4096})

    config = read_gguf_config(path)

    assert config["model_type"] == "olmo3"
    assert config["layer_types"][:4] == ["sliding_attention"] * 3 + ["full_attention"]


def test_a_number_states_the_period_of_windows(tmp_path: Path) -> None:
    windows = {"attention.sliding_window": 512, "attention.sliding_window_pattern": 2}
    path = write_gguf(tmp_path / "m", "gemma3", LLAMA | windows)

    types = read_gguf_config(path)["layer_types"]

    assert types == ["sliding_attention", "full_attention"] * 16


def test_weight_bytes_are_summed_by_part_from_the_descriptions(tmp_path: Path) -> None:
    tensors: Tensors = [
        ("token_embd.weight", (1000, 256), Q4_K),  # 1000 x 144
        ("output_norm.weight", (256,), F32),  # 1024
        ("output.weight", (1000, 256), Q6_K),  # 1000 x 210
        ("rope_freqs.weight", (64,), F32),  # 256
        ("blk.0.attn_q.weight", (256, 256), Q4_K),  # 256 x 144
        ("blk.0.attn_norm.weight", (256,), F32),  # 1024
        ("blk.0.ffn_up.weight", (512, 256), Q4_K),  # 512 x 144
        ("blk.1.ffn_gate_inp.weight", (8, 256), F32),  # 8 x 1024
        ("blk.1.ffn_up_exps.weight", (8, 128, 256), Q4_K),  # 1024 x 144
        ("blk.1.ffn_up_shexp.weight", (128, 256), F16),  # 128 x 512
        ("blk.2.ssm_in.weight", (512, 256), F16),  # 512 x 512
        ("blk.2.attn_qkv.weight", (512, 256), F16),  # 512 x 512, of a delta net
        ("blk.3.attn_q.weight", (256, 256), F16),  # 256 x 512, of the MTP layer
    ]
    keys = LLAMA | {"block_count": 4, "nextn_predict_layers": 1}

    found = gguf_weight_bytes(write_gguf(tmp_path / "model.gguf", "qwen3next", keys, tensors))

    assert found == {
        "embedding": 144_000,
        "attention": 36_864,
        "recurrent": 524_288,
        "mlp": 73_728 + 65_536,
        "experts": 147_456,
        "router": 8_192,
        "norm": 2_048,
        "head": 210_000,
        "mtp": 131_072,
        "other": 256,
    }
    assert list(found) == [part for part in PARTS if part in found]


def test_a_split_model_is_read_from_its_first_part(tmp_path: Path) -> None:
    first = LLAMA | {"split.no": 0, "split.count": 2}
    write_gguf(tmp_path / "m-00001-of-00002.gguf", "llama", first, [("output.weight", (8, 8), F16)])
    write_gguf(
        tmp_path / "m-00002-of-00002.gguf",
        "llama",
        {"split.no": 1, "split.count": 2},
        [("token_embd.weight", (8, 8), F32)],
    )

    assert gguf_weight_bytes(tmp_path / "m-00001-of-00002.gguf") == {"embedding": 256, "head": 128}
    with pytest.raises(ModelError, match="one of 2 parts"):
        read_gguf_config(tmp_path / "m-00002-of-00002.gguf")


def test_a_missing_part_of_a_split_model_is_named(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m-00001-of-00002.gguf", "llama", LLAMA | {"split.no": 0, "split.count": 2}
    )

    with pytest.raises(ModelError, match=r"m-00002-of-00002\.gguf"):
        read_gguf_config(path)


@pytest.mark.parametrize(
    ("architecture", "keys", "fault"),
    [
        ("llamma", LLAMA, "general.architecture 'llamma'"),
        ("clip", {}, "vision or audio encoder"),
        ("llama", {"general.type": "adapter"}, "holds 'adapter', not a model"),
        ("llama", {}, "block_count is missing"),
        ("llama", LLAMA | {"block_count": 20_000}, "block_count is 20000, not a whole number"),
        ("llama", LLAMA | {"block_count": "32"}, "block_count is '32'"),
        ("llama", LLAMA | {"embedding_length": 0}, "embedding_length is 0"),
        ("llama", LLAMA | {"attention.head_count": 0}, "attention.head_count is 0"),
        ("llama", LLAMA | {"attention.head_count_kv": [8, 8]}, r"head_count_kv is \[8, 8\]"),
        ("llama", LLAMA | {"attention.head_count_kv": ["a"] * 32}, "head_count_kv is '32 entries'"),
        ("llama", LLAMA | {"expert_count": 8}, "expert_used_count is missing"),
        ("mamba2", LLAMA, "mamba2.ssm.inner_size is missing"),
        ("gemma4", LLAMA, "gemma4.attention.sliding_window_pattern is missing"),
        ("llama", LLAMA | {"nextn_predict_layers": 32}, "nextn_predict_layers is 32"),
    ],
)
def test_what_cannot_be_read_is_named_with_key_and_value(
    tmp_path: Path, architecture: str, keys: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ModelError, match=fault):
        read_gguf_config(write_gguf(tmp_path / "model.gguf", architecture, keys))


def test_an_unknown_architecture_brings_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read_gguf_config(write_gguf(tmp_path / "model.gguf", "qwen33", LLAMA))

    assert "'qwen3'" in caught.value.hint


def test_all_faults_of_a_file_are_named_at_once(tmp_path: Path) -> None:
    keys = LLAMA | {"embedding_length": "wide", "feed_forward_length": [1]}

    with pytest.raises(ModelError) as caught:
        read_gguf_config(write_gguf(tmp_path / "model.gguf", "llama", keys))

    assert [fault.split(" is ")[0] for fault in caught.value.faults] == [
        "model.gguf: llama.embedding_length",
        "model.gguf: llama.feed_forward_length",
    ]


def header(tensors: int = 0, keys: bytes = b"", count: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, count) + keys


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "empty"),
        (b"GGU", "begins with"),
        (b"PK\x03\x04" + b"0" * 40, "begins with"),
        (b"GGUF", "ends inside its header"),
        (header(version=1), "version 1"),
        (header(count=1 << 40), "1,099,511,627,776 keys"),
        (header(tensors=1 << 40), "1,099,511,627,776 tensors"),
        (header(count=1, keys=struct.pack("<Q", 1 << 62) + b"0" * 20), "bytes of a key"),
        (header(count=1, keys=text(b"a") + struct.pack("<I", 13) + b"0" * 8), "unknown type 13"),
        (
            header(count=1, keys=text(b"a") + struct.pack("<IIQ", 9, 8, 1 << 60) + b"0" * 8),
            "entries of 'a'",
        ),
        (
            header(count=1, keys=text(b"a") + struct.pack("<IIQ", 9, 9, 1) + b"0" * 8),
            "unknown type 9",
        ),
        (
            header(count=2, keys=(text(b"a") + struct.pack("<IB", 0, 1)) * 2 + b"0" * 20),
            "'a' twice",
        ),
        (
            header(count=1, keys=text(b"a") + struct.pack("<IIQQ", 9, 8, 1, 1 << 60) + b"0" * 8),
            "ends inside its header",
        ),
        (header(1, text(b"t") + struct.pack("<IQIQ", 1, 5, 8, 0)), "shape \\[5\\], Q8_0"),
        (header(1, text(b"t") + struct.pack("<IQIQ", 1, 5, 999, 0)), "unknown ggml type 999"),
        (header(1, text(b"t") + struct.pack("<IQQIQ", 2, 1 << 40, 1 << 40, 0, 0)), "shape"),
        (
            header(1, text(b"t") + struct.pack("<I", 1 << 30) + b"0" * 40),
            "1,073,741,824 dimensions",
        ),
        (header(2, (text(b"t") + struct.pack("<IQIQ", 1, 4, 0, 0)) * 2), "'t' twice"),
    ],
)
def test_a_hostile_or_broken_header_is_refused(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)

    with pytest.raises(ModelError, match=fault):
        read_gguf(path)


def test_a_missing_file_and_a_folder_are_errors(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone.gguf"):
        with pytest.raises(ModelError, match="cannot read"):
            read_gguf(path)


def test_versions_and_byte_orders_that_llama_cpp_wrote_are_read(tmp_path: Path) -> None:
    key = b"llama.block_count"
    old = header(count=1, keys=text(key) + struct.pack("<II", 4, 7), version=2)
    swapped = b"GGUF" + struct.pack(">IQQQ", 3, 0, 1, len(key)) + key + struct.pack(">II", 4, 7)

    for content in (old, swapped):
        (tmp_path / "model.gguf").write_bytes(content)
        assert read_gguf(tmp_path / "model.gguf").metadata == {"llama.block_count": 7}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    architecture, keys, _ = CASES["Gemma-4-26B-A4B"]
    tensors: Tensors = [
        ("token_embd.weight", (262144, 2816), Q6_K),
        ("blk.0.attn_v.weight", (2048, 2816), Q4_K),
        ("blk.0.ffn_gate_inp.weight", (128, 2816), F32),
    ]
    extra = {"tokenizer.ggml.tokens": ["a", "b"], "general.name": "sample"}
    folder = tmp_path_factory.mktemp("gguf")
    path = write_gguf(folder / "sample.gguf", architecture, keys | extra, tensors)
    return folder / "mutated.gguf", path.read_bytes()


def test_a_header_cut_off_anywhere_is_an_error(sample: tuple[Path, bytes]) -> None:
    path, content = sample
    end = len(content) - content.endswith(b"\0" * 32) * 32
    for length in range(0, end - 32, 7):
        path.write_bytes(content[:length])
        with pytest.raises(ModelError):
            read_gguf(path)


@settings(max_examples=300, deadline=None)
@given(edits=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), min_size=1, max_size=8))
def test_changed_bytes_give_a_configuration_or_an_error_but_no_traceback(
    sample: tuple[Path, bytes], edits: list[tuple[int, int]]
) -> None:
    path, content = sample
    changed = bytearray(content)
    for position, value in edits:
        changed[position % len(changed)] = value
    path.write_bytes(changed)

    try:
        config, weights = read_gguf_config(path), gguf_weight_bytes(path)
    except ModelError:
        return

    assert config["num_hidden_layers"] >= 1
    assert all(size > 0 for size in weights.values())
