"""Layers that keep a state of fixed size, beside layers that keep rows.

Configurations hold the deciding fields of the published config.json; figures are arithmetic on
them.
"""

from typing import Any

import pytest

from kvtool.dtype import BF16
from kvtool.model.huggingface import read_config
from kvtool.model.spec import ModelSpec, Recurrent

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}


def read(config: dict[str, Any]) -> ModelSpec:
    return read_config(config, "test", "config.json")[0]


def bytes_at(config: dict[str, Any], tokens: int) -> int:
    return sum(state.bytes(tokens, BF16) for state in read(config).states())


def per_token(config: dict[str, Any], at: int = 1 << 20) -> int:
    return bytes_at(config, at) - bytes_at(config, at - 1)


QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next", "num_hidden_layers": 48, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "hidden_size": 2048, "intermediate_size": 5120,
    "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "vocab_size": 151936, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_qwen3_next_caches_rows_on_twelve_layers_of_48() -> None:
    """24,576 B per token and 39,518,208 B fixed; 48 layers would give 98,304."""
    assert per_token(QWEN3_NEXT) == 24_576
    assert bytes_at(QWEN3_NEXT, 0) == 39_518_208


def test_the_dtype_of_a_state_is_a_field_and_no_constant() -> None:
    """2,097,152 B of matrices a layer in float32 beside 49,152 B of convolution: 77,266,944 B."""
    assert bytes_at({**QWEN3_NEXT, "mamba_ssm_dtype": "float32"}, 0) == 77_266_944


def test_kda_states_are_float32_by_nature() -> None:
    config = {"model_type": "kimi_linear", "num_hidden_layers": 4, "num_attention_heads": 32,
              "num_key_value_heads": 32, "hidden_size": 2304, "intermediate_size": 9216,
              "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
              "v_head_dim": 128, "q_lora_rank": None, "vocab_size": 163840,
              "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3],
                                     "num_heads": 32, "head_dim": 128,
                                     "short_conv_kernel_size": 4},
              "torch_dtype": "bfloat16"}  # fmt: skip

    assert per_token(config) == 576 * 2
    assert bytes_at(config, 0) == 3 * (3 * 4096 * 3 * 2 + 32 * 128 * 128 * 4)


def test_jamba_attends_on_one_layer_of_eight() -> None:
    config = {"model_type": "jamba", "num_hidden_layers": 32, "num_attention_heads": 32,
              "num_key_value_heads": 8, "hidden_size": 4096, "intermediate_size": 14336,
              "attn_layer_period": 8, "attn_layer_offset": 4, "vocab_size": 65536,
              "torch_dtype": "bfloat16"}  # fmt: skip

    assert per_token(config) == 4 * 2 * 8 * 128 * 2


NEMOTRON: dict[str, Any] = {
    "model_type": "nemotron_h", "num_attention_heads": 32, "num_key_value_heads": 2,
    "head_dim": 128, "hidden_size": 2688, "intermediate_size": 1856, "mamba_num_heads": 64,
    "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712, "vocab_size": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"num_hidden_layers": 6, "hybrid_override_pattern": "ME*EM-"},
        {"layers_block_type": ["mamba", "moe", "attention", "moe", "mamba", "mlp"]},
    ],
    ids=["letters", "list-without-a-layer-count"],
)
def test_nemotron_h_caches_on_its_attention_blocks_alone(fields: dict[str, Any]) -> None:
    """Nemotron 3 Ultra publishes no num_hidden_layers at all."""
    spec = read({**NEMOTRON, **fields})

    assert len(spec.layers) == 6
    assert [s.kind for s in spec.states()] == ["conv", "recurrent", "full", "conv", "recurrent"]


@pytest.mark.parametrize(
    "fields",
    [
        {"full_attn_idxs": [2]},
        {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    ],
    ids=["indices", "list"],
)
def test_lfm2_keeps_two_columns_per_convolution(fields: dict[str, Any]) -> None:
    config = {"model_type": "lfm2", "num_hidden_layers": 4, "num_attention_heads": 32,
              "num_key_value_heads": 8, "hidden_size": 2048, "intermediate_size": 8192,
              "conv_L_cache": 3, "vocab_size": 65536, "torch_dtype": "bfloat16"}  # fmt: skip

    assert per_token({**config, **fields}) == 2 * 8 * 64 * 2
    assert bytes_at({**config, **fields}, 0) == 3 * 2048 * 2 * 2


def test_minimax_01_keeps_a_matrix_per_head_on_seven_layers_of_eight() -> None:
    config = {"model_type": "minimax_text_01", "num_hidden_layers": 8, "num_attention_heads": 64,
              "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 6144,
              "intermediate_size": 9216, "attn_type_list": [0] * 7 + [1], "vocab_size": 200064,
              "num_local_experts": 32, "num_experts_per_tok": 2, "torch_dtype": "bfloat16",
              }  # fmt: skip

    assert per_token(config) == 2 * 8 * 128 * 2
    assert bytes_at(config, 0) == 7 * 64 * 128 * 128 * 2


def test_ring_linear_keeps_rows_on_the_last_layer_of_each_group() -> None:
    """Ring-mini-linear-2.0: groups of five layers."""
    config = {"model_type": "bailing_moe_linear", "num_hidden_layers": 20, "head_dim": 128,
              "num_attention_heads": 16, "num_key_value_heads": 4, "hidden_size": 2048,
              "intermediate_size": 5120, "moe_intermediate_size": 512, "num_experts": 256,
              "num_experts_per_tok": 8, "num_shared_experts": 1, "first_k_dense_replace": 1,
              "layer_group_size": 5, "vocab_size": 157184, "torch_dtype": "bfloat16",
              }  # fmt: skip

    assert per_token(config) == 4 * 2 * 4 * 128 * 2
    assert bytes_at(config, 0) == 16 * 16 * 128 * 128 * 2


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "rwkv", "xlstm"])
def test_models_without_attention_do_not_grow(kind: str) -> None:
    fields = {"state_size": 16, "num_heads": 8, "head_dim": 1024, "attention_hidden_size": 4096}

    assert per_token({**LLAMA, "model_type": kind, **fields}) == 0
    assert all(
        isinstance(s, Recurrent) for s in read({**LLAMA, "model_type": kind, **fields}).states()
    )


def test_loops_keep_rows_for_every_pass() -> None:
    """Dory: the middle layers run twice and keep each pass, unless only the last is asked for."""
    config = {**LLAMA, "model_type": "dory", "num_hidden_layers": 4, "head_dim": 128,
              "num_key_value_heads": 32, "n_input_layers": 1, "n_recurrent_layers": 2,
              "n_output_layers": 1,
              "n_recurrent_loops": 2, "layer_types": ["full_attention"] * 4,
              "sliding_window": 1024}  # fmt: skip
    row = 2 * 4096 * 2

    assert per_token(config) == 6 * row
    assert per_token({**config, "recurrent_kv_cache_mode": "last_loop"}) == 4 * row
