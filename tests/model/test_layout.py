"""Which layers do what: windows, chunks, schedules in every spelling, layers that share.

Configurations hold the deciding fields of the published config.json; figures are arithmetic on
them.
"""

from typing import Any

import pytest

from kvtool.dtype import BF16
from kvtool.errors import ModelError
from kvtool.model.huggingface import read_config
from kvtool.model.spec import ModelSpec

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


def kinds(config: dict[str, Any]) -> list[str]:
    return [state.kind for state in read(config).states()]


def test_a_window_that_is_switched_off_limits_nothing() -> None:
    """Qwen2.5 carries sliding_window with use_sliding_window false."""
    config = {**LLAMA, "model_type": "qwen2", "num_key_value_heads": 8, "sliding_window": 131072,
              "use_sliding_window": False, "max_window_layers": 28}  # fmt: skip

    assert set(kinds(config)) == {"full"}


@pytest.mark.parametrize("value", [0, -1, None])
def test_zero_minus_one_and_null_are_no_windows(value: int | None) -> None:
    config = {**LLAMA, "model_type": "mistral", "num_key_value_heads": 8, "sliding_window": value}

    assert set(kinds(config)) == {"full"}


def test_prediction_layers_have_the_kind_that_is_listed_for_them() -> None:
    """Step-3.5-Flash: entry 46 of layer_types, behind the 45 layers, is that of a window."""
    config = {**LLAMA, "num_hidden_layers": 3, "sliding_window": 512}
    listed = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    spec = read({**config, "layer_types": listed, "num_nextn_predict_layers": 1})

    assert [state.kind for state in spec.mtp_layers[0].states] == ["sliding"]


def test_qwen2_windows_begin_at_max_window_layers() -> None:
    config = {**LLAMA, "model_type": "qwen2", "num_key_value_heads": 8, "sliding_window": 4096,
              "use_sliding_window": True, "max_window_layers": 28}  # fmt: skip

    assert kinds(config) == ["full"] * 28 + ["sliding"] * 4


def test_a_window_wider_than_the_context_limits_nothing_within_it() -> None:
    """Phi-3.5-mini: sliding_window 262144 beside 131072 positions."""
    config = {**LLAMA, "model_type": "phi3", "hidden_size": 3072, "sliding_window": 262144,
              "max_position_embeddings": 131072}  # fmt: skip

    assert per_token(config, at=131_072) == 32 * 2 * 3072 * 2


def test_mistral_01_is_bounded_by_its_window_and_02_is_not() -> None:
    """4096 rows of 131,072 B; v0.2 sets sliding_window to null."""
    config = {**LLAMA, "model_type": "mistral", "num_key_value_heads": 8}

    assert bytes_at({**config, "sliding_window": 4096}, 32_768) == 536_870_912
    assert bytes_at({**config, "sliding_window": None}, 32_768) == 32_768 * 131_072


GEMMA3_27B: dict[str, Any] = {
    "model_type": "gemma3_text", "num_hidden_layers": 62, "num_attention_heads": 32,
    "num_key_value_heads": 16, "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504,
    "sliding_window": 1024, "vocab_size": 262208, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_gemma3_27b_has_ten_full_layers_of_62() -> None:
    """Every sixth layer, not 62 / 6 rounded up; 131,072 tokens, windows of 1024 on 52 layers."""
    assert bytes_at(GEMMA3_27B, 131_072) == 11_173_625_856


PERIODS = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "exaone4", "layer_types": PERIODS * 8},
        {"model_type": "exaone4", "sliding_window_pattern": "LLLG"},
        {"model_type": "cohere2", "sliding_window_pattern": 4},
        {"model_type": "cohere2"},
        {"model_type": "olmo3"},
        {"model_type": "afmoe", "global_attn_every_n_layers": 4, "moe_intermediate_size": 64,
         "num_experts": 8, "num_experts_per_tok": 2},
        {"model_type": "mimo_v2_flash", "hybrid_layer_pattern": [1, 1, 1, 0] * 8,
         "swa_num_key_value_heads": 8, "n_routed_experts": 8, "num_experts_per_tok": 2,
         "moe_intermediate_size": 64},
    ],
    ids=["list", "letters", "number", "cohere2", "olmo3", "afmoe", "flags"],
)  # fmt: skip
def test_a_pattern_reads_the_same_in_every_spelling(fields: dict[str, Any]) -> None:
    config = {**LLAMA, "num_key_value_heads": 8, "head_dim": 128, "sliding_window": 4096, **fields}

    assert kinds(config) == ["sliding", "sliding", "sliding", "full"] * 8


@pytest.mark.parametrize(
    "fields",
    [{"attention_types": [[["global", "local"], 2]]},
     {"attention_layers": ["global", "local", "global", "local"]}],
    ids=["turns", "list"],
)  # fmt: skip
def test_gpt_neo_alternates_global_and_local_layers(fields: dict[str, Any]) -> None:
    """GPT-Neo: window_size 256 on every second layer."""
    config = {**LLAMA, **fields, "model_type": "gpt_neo", "num_hidden_layers": 4,
              "max_position_embeddings": 2048, "window_size": 256}  # fmt: skip

    assert kinds(config) == ["full", "sliding"] * 2
    assert bytes_at(config, 1000) == 2 * (1000 + 256) * 2 * 4096 * 2


@pytest.mark.parametrize("kind", ["cwm", "granite_swa"])
def test_some_families_put_the_full_layer_first(kind: str) -> None:
    config = {**LLAMA, "model_type": kind, "num_key_value_heads": 8, "sliding_window": 128}

    assert kinds(config) == ["full", "sliding", "sliding", "sliding"] * 8


def test_muse_counts_its_full_layers_from_the_last() -> None:
    config = {**LLAMA, "model_type": "muse_glimmer_text", "num_hidden_layers": 6, "head_dim": 128,
              "sliding_window": 2048}  # fmt: skip

    assert kinds(config) == ["sliding", "full", "sliding", "sliding", "sliding", "full"]


def test_gemma4_forces_its_last_layer_to_attend_in_full() -> None:
    config = {"model_type": "gemma4_text", "num_hidden_layers": 4, "num_attention_heads": 8,
              "num_key_value_heads": 2, "hidden_size": 2560, "intermediate_size": 10240,
              "layer_types": ["sliding_attention"] * 4, "torch_dtype": "bfloat16"}  # fmt: skip

    assert kinds(config) == ["sliding", "sliding", "sliding", "full"]


def test_llama4_is_bounded_by_its_chunk_on_three_layers_of_four() -> None:
    """Llama-4-Scout: 36 chunked layers of 8192 and 12 full ones."""
    config = {"model_type": "llama4_text", "num_hidden_layers": 48, "num_attention_heads": 40,
              "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 5120,
              "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_local_experts": 16,
              "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "vocab_size": 202048,
              "attention_chunk_size": 8192, "no_rope_layers": [], "torch_dtype": "bfloat16",
              }  # fmt: skip

    assert bytes_at(config, 131_072) == 7_650_410_496


def test_gpt_oss_alternates_windows_of_128() -> None:
    """gpt-oss-120b: 18 windows and 18 full layers of 8 pairs 64 wide (2880 / 64 would be 45)."""
    config = {"model_type": "gpt_oss", "num_hidden_layers": 36, "num_attention_heads": 64,
              "num_key_value_heads": 8, "head_dim": 64, "hidden_size": 2880,
              "intermediate_size": 2880, "num_local_experts": 128, "num_experts_per_tok": 4,
              "sliding_window": 128, "vocab_size": 201088, "torch_dtype": "bfloat16"}  # fmt: skip

    assert per_token(config) == 36_864
    assert bytes_at(config, 32_768) == 1_212_678_144


def test_gemma_3n_stores_twenty_layers_of_thirty_five() -> None:
    """Gemma-3n-E4B: 15 layers read the rows of earlier ones; 16 of the 20 have windows of 512."""
    config = {"model_type": "gemma3n_text", "num_hidden_layers": 35, "num_attention_heads": 8,
              "num_key_value_heads": 2, "head_dim": 256, "hidden_size": 2048,
              "intermediate_size": 16384, "sliding_window": 512, "num_kv_shared_layers": 15,
              "vocab_size": 262400, "torch_dtype": "bfloat16"}  # fmt: skip

    assert kinds(config).count("shared") == 15
    assert kinds(config).count("sliding") == 16
    assert bytes_at(config, 2) - bytes_at(config, 1) == 40_960


def test_hunyuan_large_stores_every_second_layer() -> None:
    """use_cla with cla_share_factor 2: 64 layers, 32 of them with rows."""
    config = {**LLAMA, "model_type": "hunyuan", "num_hidden_layers": 64, "use_cla": True,
              "cla_share_factor": 2, "num_key_value_heads": 8, "num_experts": 16, "moe_topk": 1,
              "num_shared_expert": 1}  # fmt: skip

    assert kinds(config) == ["full", "shared"] * 32


def test_hunyuan_a13b_shares_nothing_though_it_carries_a_factor() -> None:
    """use_cla false beside cla_share_factor 2; experts given as lists with an entry per layer."""
    config = {**LLAMA, "model_type": "hunyuan_v1_moe", "use_cla": False, "cla_share_factor": 2,
              "num_key_value_heads": 8, "head_dim": 128, "num_experts": 64, "moe_topk": [8] * 32,
              "num_shared_expert": [1] * 32, "moe_intermediate_size": [3072] * 32}  # fmt: skip

    assert set(kinds(config)) == {"full"}


GEMMA4_31B: dict[str, Any] = {
    "model_type": "gemma4_text", "num_hidden_layers": 60, "num_attention_heads": 32,
    "num_key_value_heads": 16, "head_dim": 256, "hidden_size": 5376, "intermediate_size": 21504,
    "sliding_window": 1024, "vocab_size": 262144, "torch_dtype": "bfloat16",
    "hidden_size_per_layer_input": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"global_head_dim": 512, "num_global_key_value_heads": 4, "attention_k_eq_v": True},
        {"attention_k_eq_v": True, "per_layer_config": {
            str(i): {"head_dim": 512, "num_key_value_heads": 4} for i in range(5, 60, 6)}},
    ],
    ids=["published", "saved-by-transformers-5"],
)  # fmt: skip
def test_gemma4_full_layers_have_heads_and_widths_of_their_own(fields: dict[str, Any]) -> None:
    """Gemma-4-31B: 10 full layers of 4 x 512, never 16 x 512."""
    assert per_token({**GEMMA4_31B, **fields}) == 10 * 2 * 4 * 512 * 2


def test_mimo_v2_has_wide_keys_and_more_pairs_in_windows() -> None:
    """MiMo-V2-Flash: keys 192 and values 128 wide, 4 pairs on full layers, 8 on sliding ones."""
    config = {**LLAMA, "model_type": "mimo_v2_flash", "num_hidden_layers": 2,
              "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 192,
              "v_head_dim": 128, "swa_num_key_value_heads": 8, "swa_head_dim": 192,
              "swa_v_head_dim": 128, "sliding_window": 128, "hybrid_layer_pattern": [0, 1],
              "n_routed_experts": 8, "num_experts_per_tok": 2,
              "moe_intermediate_size": 64}  # fmt: skip

    assert per_token(config) == 4 * (192 + 128) * 2
    assert bytes_at(config, 128) == 128 * (4 + 8) * (192 + 128) * 2


def test_zamba2_keeps_rows_at_every_use_of_its_shared_block() -> None:
    """Zamba2-2.7B: nine uses of one attention block that is twice as wide as the model, whose
    weights count once."""
    config = {"model_type": "zamba2", "num_hidden_layers": 54, "num_attention_heads": 32,
              "hidden_size": 2560, "vocab_size": 32000, "mamba_ngroups": 1, "n_mamba_heads": 80,
              "mamba_d_state": 64, "torch_dtype": "bfloat16"}  # fmt: skip

    assert per_token(config) == 9 * 2 * 32 * 160 * 2


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"layer_types": ["linear_attention"] * 32}, "linear_attention"),
        ({"layer_types": ["indexed_attention"] * 32}, "indexed_attention"),
        ({"layer_types": ["hashed_attention"] * 32}, "hashed_attention"),
        ({"layer_types": ["full_attention"] * 31}, "layer_types"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"num_attention_heads": 33}, "head_dim"),
    ],
    ids=["linear", "indexed", "unknown", "too-short", "no-divisor", "no-width"],
)
def test_layers_that_a_family_does_not_have_are_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        read({**LLAMA, **fields})


STEP3 = {
    **LLAMA, "model_type": "step3p5", "num_hidden_layers": 6, "num_attention_heads": 32,
    "num_attention_groups": 8, "head_dim": 128, "moe_num_experts": 8, "moe_top_k": 2,
    "moe_intermediate_size": 1024, "share_expert_dim": 1024,
}  # fmt: skip


def test_layers_with_experts_may_be_listed_in_one_string() -> None:
    """Entries behind a space were dropped without a word."""
    spec = read({**STEP3, "moe_layers_enum": "3, 4, 5"})

    sparse = [any(w.part == "experts" for w in layer.weights) for layer in spec.layers]
    assert sparse == [False, False, False, True, True, True]


def test_a_list_of_layers_with_anything_but_numbers_is_refused() -> None:
    with pytest.raises(ModelError, match=r"moe_layers_enum is '3,four', not layer numbers"):
        read({**STEP3, "moe_layers_enum": "3,four"})


def test_an_unknown_type_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="retnet9"):
        read({**LLAMA, "model_type": "retnet9"})


def test_a_type_that_does_not_fit_the_states_is_refused_with_its_reason() -> None:
    with pytest.raises(ModelError, match="'hymba' is not supported: its heads mix"):
        read({**LLAMA, "model_type": "hymba"})


GRANITE: dict[str, Any] = {
    **LLAMA, "model_type": "granitemoehybrid", "num_hidden_layers": 4, "num_local_experts": 0,
    "shared_intermediate_size": 8192, "mamba_n_heads": 128, "mamba_d_state": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"layers_block_type": ["mamba", "attention"]}, "one entry for each of the 4 layers"),
        ({"layers_block_type": ["mamba"] * 3 + ["conv"]}, "one of attention, mamba"),
    ],
    ids=["short", "unknown"],
)
def test_granite_blocks_that_cannot_be_are_refused(fields: dict[str, Any], named: str) -> None:
    """A list of another length made every layer recurrent without a word."""
    with pytest.raises(ModelError, match=named):
        read({**GRANITE, **fields})


@pytest.mark.parametrize("section", ["vision_config", "audio_config"])
@pytest.mark.parametrize("value", ["a name", [1]], ids=["text", "list"])
def test_a_section_that_is_no_mapping_is_refused(section: str, value: object) -> None:
    text = {**LLAMA, "model_type": "llama"}
    config = {"model_type": "llava", "text_config": text, section: value}

    with pytest.raises(ModelError, match=f"{section} is .*, not a mapping"):
        read(config)


def test_tying_has_to_be_true_or_false() -> None:
    config = {"model_type": "llava", "text_config": LLAMA, "tie_word_embeddings": "no"}

    with pytest.raises(ModelError, match="tie_word_embeddings is 'no', not true or false"):
        read(config)
