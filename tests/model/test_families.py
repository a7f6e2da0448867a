"""Facts about published families that planners get wrong, one test per trap.

Configurations hold the deciding fields of the published config.json; figures are arithmetic on
them.
"""

from typing import Any

import pytest

from kvtool.dtype import BF16
from kvtool.errors import ModelError
from kvtool.model.huggingface import read_config
from kvtool.model.spec import Attention, Index, Latent, ModelSpec, Parallel, Shared

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


def bytes_at(config: dict[str, Any], tokens: int, **how: int) -> int:
    encoder = how.pop("encoder", 0)
    parallel = Parallel(**how)
    return sum(s.bytes(tokens, BF16, parallel, encoder) for s in read(config).states())


def per_token(config: dict[str, Any], at: int = 1 << 20, **how: int) -> int:
    return bytes_at(config, at, **how) - bytes_at(config, at - 1, **how)


def kinds(config: dict[str, Any]) -> list[str]:
    return [state.kind for state in read(config).states()]


def test_a_missing_kv_head_count_means_one_pair_per_query_head() -> None:
    """Llama-2-7B: 32 layers x 2 x 32 x 128 x 2 B."""
    assert per_token(LLAMA) == 524_288


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # Mistral-Nemo: 5120 / 32 would be 160.
        ({"model_type": "mistral", "num_hidden_layers": 40, "num_attention_heads": 32,
          "num_key_value_heads": 8, "hidden_size": 5120, "head_dim": 128,
          "sliding_window": None}, 163_840),
        # Qwen3-32B: 5120 / 64 would be 80 and 163,840 B.
        ({"model_type": "qwen3", "num_hidden_layers": 64, "num_attention_heads": 64,
          "num_key_value_heads": 8, "hidden_size": 5120, "head_dim": 128}, 262_144),
        # Gemma-7B: 3072 / 16 would be 192.
        ({"model_type": "gemma", "num_hidden_layers": 28, "num_attention_heads": 16,
          "num_key_value_heads": 16, "hidden_size": 3072, "head_dim": 256}, 458_752),
    ],
    ids=["mistral-nemo", "qwen3-32b", "gemma-7b"],
)  # fmt: skip
def test_head_dim_is_read_and_not_derived(fields: dict[str, Any], expected: int) -> None:
    assert per_token({**LLAMA, **fields}) == expected


def test_gemma3_takes_heads_and_pattern_from_its_class() -> None:
    """google/gemma-3-4b-it publishes neither heads nor head_dim: 8 heads, 4 pairs 256 wide, every
    sixth of 34 layers full (5)."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
            "num_hidden_layers": 34, "sliding_window": 1024}  # fmt: skip
    config = {"model_type": "gemma3", "text_config": text, "torch_dtype": "bfloat16"}

    assert per_token(config) == 5 * 2 * 4 * 256 * 2
    assert kinds(config).count("sliding") == 29


FALCON = {
    "model_type": "falcon", "num_hidden_layers": 32, "num_attention_heads": 71,
    "hidden_size": 4544, "vocab_size": 65024, "bias": False, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_falcon_7b_has_one_pair_whatever_num_kv_heads_says() -> None:
    """multi_query without the new decoder: re-saved copies carry num_kv_heads 71 (581,632 B)."""
    config = {**FALCON, "multi_query": True, "new_decoder_architecture": False, "num_kv_heads": 71}

    assert per_token(config) == 8192


def test_falcon_40b_has_eight_pairs() -> None:
    config = {**FALCON, "num_hidden_layers": 60, "num_attention_heads": 128, "hidden_size": 8192,
              "new_decoder_architecture": True, "multi_query": True, "num_kv_heads": 8}  # fmt: skip

    assert per_token(config) == 60 * 2 * 8 * 64 * 2


def test_falcon_rw_without_multi_query_has_a_pair_per_head() -> None:
    config = {**FALCON, "num_hidden_layers": 24, "num_attention_heads": 32, "hidden_size": 2048,
              "multi_query": False, "new_decoder_architecture": False, "alibi": True}  # fmt: skip

    assert per_token(config) == 24 * 2 * 2048 * 2


def test_falcon_reads_the_same_under_its_first_names() -> None:
    config = {"model_type": "RefinedWeb", "n_layer": 60, "n_head": 128, "n_head_kv": 8,
              "hidden_size": 8192, "vocab_size": 65024, "torch_dtype": "bfloat16"}  # fmt: skip

    assert per_token(config) == 60 * 2 * 8 * 64 * 2


def test_starcoder_has_one_pair_without_a_field_for_it() -> None:
    config = {"model_type": "gpt_bigcode", "n_layer": 40, "n_head": 48, "n_embd": 6144,
              "n_inner": 24576, "n_positions": 8192, "vocab_size": 49152, "multi_query": True,
              "torch_dtype": "bfloat16"}  # fmt: skip

    assert per_token(config) == 40 * 2 * 128 * 2


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "chatglm", "num_layers": 28, "num_attention_heads": 32,
          "multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 128,
          "hidden_size": 4096, "ffn_hidden_size": 13696, "padded_vocab_size": 65024,
          "add_qkv_bias": True, "seq_length": 32768, "torch_dtype": "float16"},
         28 * 2 * 2 * 128 * 2),
        ({"model_type": "mpt", "n_layers": 32, "n_heads": 32, "d_model": 4096,
          "vocab_size": 50432, "max_seq_len": 2048, "torch_dtype": "bfloat16"},
         32 * 2 * 4096 * 2),
        ({"model_type": "dbrx", "n_layers": 40, "n_heads": 48, "d_model": 6144,
          "vocab_size": 100352, "max_seq_len": 32768, "torch_dtype": "bfloat16",
          "attn_config": {"kv_n_heads": 8},
          "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}},
         40 * 2 * 8 * 128 * 2),
        ({"model_type": "bloom", "n_layer": 70, "num_attention_heads": 112, "n_embed": 14336,
          "vocab_size": 250880, "torch_dtype": "bfloat16"}, 70 * 2 * 14336 * 2),
        ({"model_type": "bloom", "n_layer": 24, "n_head": 16, "hidden_size": 2048,
          "vocab_size": 250880, "torch_dtype": "float16"}, 24 * 2 * 2048 * 2),
        ({"model_type": "telechat", "n_layer": 30, "n_head": 32, "hidden_size": 4096,
          "ffn_hidden_size": 12288, "vocab_size": 131072, "torch_dtype": "bfloat16"},
         30 * 2 * 4096 * 2),
    ],
    ids=["chatglm2", "mpt-7b", "dbrx", "bloom-176b", "bloom-1b7", "telechat2"],
)  # fmt: skip
def test_old_spellings_name_the_same_fields(config: dict[str, Any], expected: int) -> None:
    assert per_token(config) == expected


def test_openelm_has_heads_per_layer() -> None:
    config = {"model_type": "openelm", "num_transformer_layers": 2, "model_dim": 1280,
              "head_dim": 64, "num_query_heads": [12, 20], "num_kv_heads": [3, 5],
              "ffn_multipliers": [0.5, 4.0], "ffn_dim_divisor": 256, "vocab_size": 32000,
              "torch_dtype": "bfloat16"}  # fmt: skip

    assert per_token(config) == 2 * (3 + 5) * 64 * 2


def test_decilm_has_pairs_per_layer() -> None:
    """DeciLM-7B: num_key_value_heads_per_layer beside 32 query heads."""
    config = {**LLAMA, "num_hidden_layers": 4, "num_key_value_heads_per_layer": [4, 4, 2, 1]}

    assert per_token(config) == 2 * 11 * 128 * 2


def test_nemotron_nas_drops_attention_from_some_blocks() -> None:
    """Llama-3.3-Nemotron-Super: n_heads_in_group 8 of 64 heads are 8 pairs; no_op keeps nothing."""
    mlp = {"intermediate_size": 1024}
    config = {"model_type": "nemotron-nas", "num_hidden_layers": 2, "num_attention_heads": 64,
              "hidden_size": 8192, "vocab_size": 128256, "torch_dtype": "bfloat16",
              "block_configs": [{"attention": {"n_heads_in_group": 8}, "ffn": mlp},
                                {"attention": {"no_op": True}, "ffn": mlp}]}  # fmt: skip

    assert per_token(config) == 2 * 8 * 128 * 2


def test_step_35_names_its_pairs_attention_groups() -> None:
    """Step-3.5-Flash: 12 full layers of 8 pairs; layer_types goes on with its prediction layers."""
    config = {"model_type": "step3p5", "num_hidden_layers": 45, "num_attention_heads": 64,
              "num_attention_groups": 8, "head_dim": 128, "hidden_size": 4096,
              "intermediate_size": 11264, "vocab_size": 128896, "sliding_window": 512,
              "attention_other_setting": {"attention_type": "sliding_attention",
                                          "num_attention_heads": 96,
                                          "num_attention_groups": 8, "head_dim": 128},
              "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 12,
              "num_nextn_predict_layers": 3, "moe_num_experts": 288, "moe_top_k": 8,
              "moe_intermediate_size": 1280, "share_expert_dim": 1280,
              "torch_dtype": "bfloat16"}  # fmt: skip

    assert per_token(config) == 12 * 2 * 8 * 128 * 2
    assert {s.num_q_heads for s in read(config).states() if isinstance(s, Attention)} == {64, 96}


def test_step_3_keeps_one_pair_256_wide() -> None:
    """Step-3: num_attention_groups 1, head_dim 256, 61 layers."""
    text = {"model_type": "step3_text", "num_hidden_layers": 61, "num_attention_heads": 64,
            "num_attention_groups": 1, "head_dim": 256, "share_q_dim": 2048, "hidden_size": 7168,
            "intermediate_size": 18432, "vocab_size": 128815, "moe_num_experts": 48,
            "moe_top_k": 3, "moe_intermediate_size": 5120, "share_expert_dim": 5120,
            "moe_layers_enum": ",".join(str(i) for i in range(4, 60))}  # fmt: skip
    config = {"model_type": "step3_vl", "text_config": text, "torch_dtype": "bfloat16"}

    assert per_token(config) == 61 * 2 * 256 * 2


def test_jetmoe_keeps_the_pairs_that_its_expert_queries_share() -> None:
    """JetMoE-8B: 24 layers of 16 pairs 128 wide; its 32 query heads come from two experts."""
    config = {"model_type": "jetmoe", "num_hidden_layers": 24, "num_key_value_heads": 16,
              "kv_channels": 128, "hidden_size": 2048, "ffn_hidden_size": 5632,
              "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
              "torch_dtype": "bfloat16"}  # fmt: skip

    assert per_token(config) == 24 * 2 * 16 * 128 * 2


DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "n_shared_experts": 1, "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "vocab_size": 129280,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def test_latent_rows_ignore_head_dim_and_pairs() -> None:
    """61 x (512 + 64) x 2: neither 128 heads, nor the rotary part lost, nor key and value twice."""
    assert per_token({**DEEPSEEK_V3, "head_dim": 64}) == 70_272


def test_latent_rows_are_the_same_on_every_tensor_parallel_rank() -> None:
    assert per_token(DEEPSEEK_V3, tp=8) == per_token(DEEPSEEK_V3)


def test_a_deepseek_type_that_switches_mla_off_keeps_plain_pairs() -> None:
    """DeepSeek-OCR: use_mla false, ranks null, widths 0, ten heads 128 wide on 12 layers."""
    config = {"model_type": "deepseek_v2", "num_hidden_layers": 12, "num_attention_heads": 10,
              "num_key_value_heads": 10, "hidden_size": 1280, "intermediate_size": 6848,
              "moe_intermediate_size": 896, "n_routed_experts": 64, "n_shared_experts": 2,
              "num_experts_per_tok": 6, "first_k_dense_replace": 1, "kv_lora_rank": None,
              "q_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0,
              "use_mla": False, "vocab_size": 129280, "torch_dtype": "bfloat16"}  # fmt: skip

    assert per_token(config) == 12 * 2 * 10 * 128 * 2


def test_sparse_attention_stores_every_row_and_an_index_key() -> None:
    """DeepSeek V3.2 reads 2048 rows per token and stores all: 61 x (1152 + 132) B."""
    config = {**DEEPSEEK_V3, "model_type": "deepseek_v32", "index_head_dim": 128,
              "index_n_heads": 64, "index_topk": 2048}  # fmt: skip

    assert per_token(config) == 61 * (1152 + 132)


@pytest.mark.parametrize(
    "schedule",
    [
        {"indexer_types": ["full", "full", "full", "shared", "shared", "shared", "full", "shared"]},
        {"index_topk_pattern": "FFFSSSFS"},
        {"index_topk_freq": 4, "index_skip_topk_offset": 3},
    ],
    ids=["list", "letters", "frequency"],
)
def test_glm_keeps_index_keys_on_some_layers_only(schedule: dict[str, Any]) -> None:
    """GLM-5.2: 21 of its 78 layers, seen in two llama.cpp logs; here the first eight."""
    config = {**DEEPSEEK_V3, **schedule, "model_type": "glm_moe_dsa", "num_hidden_layers": 8,
              "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048}  # fmt: skip
    found = [any(isinstance(s, Index) for s in layer.states) for layer in read(config).layers]

    assert found == [True, True, True, False, False, False, True, False]


def test_minimax_m3_has_an_index_beside_plain_pairs() -> None:
    config = {"model_type": "minimax_m3", "num_hidden_layers": 3, "num_attention_heads": 64,
              "num_key_value_heads": 4, "head_dim": 128, "hidden_size": 6144,
              "intermediate_size": 3072, "dense_intermediate_size": 12288, "vocab_size": 200064,
              "num_local_experts": 128, "num_experts_per_tok": 4, "moe_layer_freq": [0, 1, 1],
              "torch_dtype": "bfloat16",
              "sparse_attention_config": {"use_sparse_attention": True, "sparse_index_dim": 128,
                                          "sparse_num_index_heads": 4,
                                          "sparse_attention_freq": [0, 1, 1],
                                          "sparse_disable_index_value": [1, 1, 1]}}  # fmt: skip

    assert per_token(config) == 3 * 2 * 4 * 128 * 2 + 2 * 132


def test_mistral_large_4_shares_rows_between_layers() -> None:
    """Layer 1 reads the rows of layer 0; layer 3 uses no positions and keeps 512 elements."""
    config = {**DEEPSEEK_V3, "model_type": "mistral_large4_text", "num_hidden_layers": 4,
              "kv_source_layers": [0, 0, 2, 3], "index_head_dim": 128, "index_n_heads": 32,
              "q_lora_rank": None}  # fmt: skip
    states = list(read(config).states())

    assert [s.width for s in states if isinstance(s, Latent)] == [576, 576, 512]
    assert sum(isinstance(s, Shared) for s in states) == 1


def test_whisper_keeps_1500_encoder_frames_behind_every_layer() -> None:
    """Whisper-large-v3: 245,760,000 B of cross-attention a request, 163,840 B per token."""
    config = {"model_type": "whisper", "decoder_layers": 32, "encoder_layers": 32,
              "decoder_attention_heads": 20, "encoder_attention_heads": 20, "d_model": 1280,
              "decoder_ffn_dim": 5120, "encoder_ffn_dim": 5120, "max_source_positions": 1500,
              "max_target_positions": 448, "num_mel_bins": 128, "vocab_size": 51866,
              "torch_dtype": "float16"}  # fmt: skip

    assert bytes_at(config, 0, encoder=1500) == 245_760_000
    assert per_token(config) == 163_840
    assert read(config).encoder_tokens == 1500


def test_t5_heads_are_as_wide_as_d_kv() -> None:
    """FLAN-T5-XXL: 64 heads of 64 beside d_model 1024; the decoder has its own layer count."""
    config = {"model_type": "t5", "num_layers": 24, "num_decoder_layers": 12, "num_heads": 64,
              "d_kv": 64, "d_model": 4096, "d_ff": 10240, "vocab_size": 32128,
              "feed_forward_proj": "gated-gelu", "torch_dtype": "bfloat16"}  # fmt: skip

    assert per_token(config) == 12 * 2 * 64 * 64 * 2
    assert bytes_at(config, 0, encoder=1) == 12 * 2 * 64 * 64 * 2


def test_mllama_sizes_cross_layers_by_images_and_not_by_text() -> None:
    config = {"model_type": "mllama_text_model", "num_hidden_layers": 40,
              "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
              "intermediate_size": 14336, "vocab_size": 128256,
              "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
              "torch_dtype": "bfloat16"}  # fmt: skip

    assert per_token(config) == 32 * 2 * 8 * 128 * 2
    assert bytes_at(config, 0, encoder=1) == 8 * 2 * 8 * 128 * 2


def test_encoders_keep_nothing() -> None:
    config = {"model_type": "bert", "num_hidden_layers": 12, "num_attention_heads": 12,
              "hidden_size": 768, "intermediate_size": 3072, "vocab_size": 30522,
              "max_position_embeddings": 512}  # fmt: skip

    assert bytes_at(config, 512) == 0


def test_a_bert_that_decodes_is_refused() -> None:
    config = {"model_type": "bert", "num_hidden_layers": 12, "num_attention_heads": 12,
              "hidden_size": 768, "intermediate_size": 3072, "vocab_size": 30522,
              "is_decoder": True}  # fmt: skip

    with pytest.raises(ModelError, match="is_decoder"):
        read(config)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: {"model_type": "llava", "text_config": text},
        lambda text: {"model_type": "internvl_chat", "llm_config": text},
        lambda text: {"model_type": "qwen3_omni_moe", "thinker_config": {"text_config": text}},
        lambda text: {"model_type": "kimi_vl", "text_config": text, "num_hidden_layers": 27},
    ],
    ids=["text_config", "llm_config", "thinker", "tower-at-the-root"],
)
def test_the_text_section_decides_wherever_it_stands(wrap: Any) -> None:
    """A root num_hidden_layers may be absent or that of the vision tower."""
    assert per_token(wrap(LLAMA)) == 524_288


def test_llava_15_takes_its_text_sizes_from_llama_class() -> None:
    """llava-hf/llava-1.5-7b-hf states no layers and no heads: 32 of each, 4096 wide."""
    text = {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064,
            "torch_dtype": "float16"}  # fmt: skip

    assert per_token({"model_type": "llava", "text_config": text}) == 524_288


def test_text_fields_at_the_root_beside_a_vision_section_are_read() -> None:
    """Files of Qwen2.5-VL written by transformers 4.4x."""
    config = {**LLAMA, "model_type": "qwen2_5_vl", "num_key_value_heads": 4,
              "vision_config": {"depth": 32, "hidden_size": 1280}}  # fmt: skip

    assert per_token(config) == 32 * 2 * 4 * 128 * 2


@pytest.mark.parametrize("name", ["torch_dtype", "dtype"])
def test_the_dtype_is_read_under_both_names(name: str) -> None:
    config = {key: value for key, value in LLAMA.items() if key != "torch_dtype"}

    assert read({**config, name: "float16"}).dtype == "float16"


def test_a_parent_in_name_or_path_decides_nothing() -> None:
    """Merges keep the parent's name with other layer counts (Falcon-180B copies of 140 layers)."""
    config = {**LLAMA, "_name_or_path": "meta-llama/Llama-2-70b-hf"}

    assert per_token(config) == 524_288


def test_pairs_are_copied_when_ranks_outnumber_them() -> None:
    """Llama-3-70B: 40,960 B per token and device at TP 8 and at TP 16."""
    config = {**LLAMA, "num_hidden_layers": 80, "num_attention_heads": 64,
              "num_key_value_heads": 8, "hidden_size": 8192}  # fmt: skip

    assert per_token(config, tp=8) == 40_960
    assert per_token(config, tp=16) == 40_960


def test_active_experts_do_not_reduce_what_is_stored() -> None:
    config = {**LLAMA, "model_type": "mixtral", "num_key_value_heads": 8, "num_local_experts": 8}
    counts = [
        sum(w.elements for layer in read({**config, "num_experts_per_tok": k}).layers
            for w in layer.weights)
        for k in (1, 8)
    ]  # fmt: skip

    assert counts[0] == counts[1]


def test_prediction_layers_are_kept_apart() -> None:
    spec = read({**DEEPSEEK_V3, "num_nextn_predict_layers": 1})

    assert len(spec.layers) == 61
    assert len(spec.mtp_layers) == 1
