"""Configurations found in public repositories that once were read wrongly, each with its source."""

from __future__ import annotations

import pytest

from kvtool.dtype import BF16
from kvtool.errors import ModelError
from kvtool.kvcache import growing_bytes_per_token, sequence_bytes
from kvtool.model.huggingface import read_config
from kvtool.model.spec import ModelSpec
from kvtool.model.weights import parameters


def read(config: dict[str, object]) -> ModelSpec:
    return read_config(config, "found", "config.json")[0]


# ByteDance-Seed/VeOmni, tests/toy_config/deepseek_v4_toy/config.json.
DEEPSEEK_V4_TOY = {
    "model_type": "deepseek_v4",
    "vocab_size": 1024,
    "hidden_size": 256,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "q_lora_rank": 64,
    "num_experts_per_tok": 2,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "max_position_embeddings": 4096,
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 32},
    "hc_mult": 4,
    "sliding_window": 32,
    "o_groups": 2,
    "o_lora_rank": 64,
    "index_n_heads": 8,
    "index_head_dim": 128,
    "num_nextn_predict_layers": 0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def test_compress_rates_set_the_tokens_per_entry_of_deepseek_v4():
    """The field was not read: heavily compressed layers kept a row for 128 tokens, here it is 32.

    Layers 0 to 2 are heavily compressed, 3 is sparse: 3 x 128 B / 32 + (128 + 132) B / 4 = 77 B.
    """
    spec = read(DEEPSEEK_V4_TOY)

    assert growing_bytes_per_token(spec.layers) == 77


def test_compress_rates_set_the_parameters_of_the_compressor():
    """transformers 5.24 on the meta device counts the same."""
    assert parameters(read(DEEPSEEK_V4_TOY)) == 5_170_045


def test_the_older_scalar_rates_of_deepseek_v4_mean_the_same():
    """The class folds `compress_rate_hca` into `compress_rates` (transformers 5.24)."""
    config = {k: v for k, v in DEEPSEEK_V4_TOY.items() if k != "compress_rates"}

    spec = read({**config, "compress_rate_hca": 32})

    assert growing_bytes_per_token(spec.layers) == 77


# pytorch/executorch, examples/mediatek/models/llm_models/weights/gemma3_1b_it/config.json: the
# window has a name of the exporter's own.
GEMMA_3_1B_MEDIATEK = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3",
    "head_dim": 256,
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "sliding_window_attention_size": 512,
    "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16",
    "vocab_size": 262144,
}


def test_layers_that_slide_without_a_window_are_refused():
    """They were read as full attention: 832 MiB at 32,768 tokens instead of 139 MiB."""
    with pytest.raises(ModelError, match="sliding_window is missing"):
        read(GEMMA_3_1B_MEDIATEK)


def test_the_same_configuration_is_read_once_the_window_has_its_name():
    """4 full and 22 sliding layers of 1,024 B a token."""
    spec = read({**GEMMA_3_1B_MEDIATEK, "sliding_window": 512})

    assert sequence_bytes(spec, 32_768) == 4 * 32_768 * 1024 + 22 * 512 * 1024


# intel/intel-extension-for-pytorch, tests/cpu/hf_configs/llava/config.json: llava-v1.5-7b as first
# published, cut to one layer of 16 heads.
LLAVA_FIRST = {
    "architectures": ["LlavaLlamaForCausalLM"],
    "model_type": "llava",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "mm_hidden_size": 1024,
    "mm_projector_type": "mlp2x_gelu",
    "mm_vision_tower": "openai/clip-vit-large-patch14-336",
    "num_attention_heads": 16,
    "num_hidden_layers": 1,
    "num_key_value_heads": 16,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vocab_size": 32000,
}


def test_the_first_llava_files_are_read_as_their_decoder():
    """Type llava with flat fields was refused. 2 x 16 heads x 256 x 2 B = 16,384 B."""
    spec, used = read_config(LLAVA_FIRST, "llava", "config.json")

    assert growing_bytes_per_token(spec.layers) == 16_384
    assert not spec.weights_known
    assert {"architectures", "mm_vision_tower"} <= used


def test_a_flat_llava_of_an_unknown_class_stays_unknown():
    with pytest.raises(ModelError, match="model_type 'llava' is not known"):
        read({**LLAVA_FIRST, "architectures": ["LlavaOtherForCausalLM"]})


# sgl-project/SpecForge, configs/qwen3-8b-eagle3.json.
QWEN3_8B_EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "num_attention_heads": 32,
    "num_hidden_layers": 1,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
    "draft_vocab_size": 32000,
}


def test_an_eagle3_drafter_has_its_own_parameters():
    """It was counted as a plain Llama of one layer, 1,437,609,984.

    q 4,096 x 8,192, k and v 1,024 x 8,192 each, o 4,096 x 4,096; a gated MLP; three norms; fc
    4,096 x 12,288; a final norm; the head over 32,000 tokens, the embedding over all.
    """
    spec = read(QWEN3_8B_EAGLE3)

    attention = (4096 + 2 * 1024) * 8192 + 4096 * 4096
    layer = attention + 3 * 4096 * 12288 + 3 * 4096
    assert parameters(spec) == layer + 4096 * 12288 + 4096 + (32000 + 151936) * 4096
    assert spec.weights_known


def test_an_eagle3_drafter_keeps_one_layer_of_the_decoders_cache():
    assert growing_bytes_per_token(read(QWEN3_8B_EAGLE3).layers, BF16) == 2 * 8 * 128 * 2


def test_an_eagle3_drafter_of_a_biased_type_has_no_biases():
    """configs/qwq-32B-eagle3.json has type qwen2; the drafter's class has no bias."""
    biased = read({**QWEN3_8B_EAGLE3, "model_type": "qwen2"})

    assert parameters(biased) == parameters(read(QWEN3_8B_EAGLE3))


def test_a_wider_target_widens_the_projection_of_its_features():
    """The class reads `target_hidden_size`, and the hidden size where it is absent."""
    wider = read({**QWEN3_8B_EAGLE3, "target_hidden_size": 5120})

    assert parameters(wider) - parameters(read(QWEN3_8B_EAGLE3)) == 3 * 1024 * 4096


def test_a_dflash_drafter_has_the_embedding_and_head_of_its_target():
    """sgl-project/SpecForge, configs/qwen3-8b-dflash.json: five layers of Qwen3-8B's shape and a
    projection of five features. It was counted with an embedding and a head of its own."""
    config = {k: v for k, v in QWEN3_8B_EAGLE3.items() if k != "draft_vocab_size"}
    spec = read(
        {
            **config,
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "num_hidden_layers": 5,
            "dflash_config": {"target_layer_ids": [1, 9, 17, 25, 33]},
        }
    )

    layer = 2 * (4096 + 1024) * 4096 + 3 * 4096 * 12288 + 2 * 128 + 2 * 4096
    assert parameters(spec) == 5 * layer + 5 * 4096 * 4096 + 2 * 4096
    assert growing_bytes_per_token(spec.layers) == 5 * 4096


@pytest.mark.parametrize("name", ["DFlashDraftModel", "PEagleDraftModel", "EagleLlamaForCausalLM"])
def test_other_drafters_say_that_their_parameters_are_not_counted(name):
    spec = read({**QWEN3_8B_EAGLE3, "architectures": [name]})

    assert not spec.weights_known
    assert f"parameters of the drafter {name} are not counted here" in spec.notes


def test_a_vision_model_called_eagle_is_no_drafter():
    spec = read({**QWEN3_8B_EAGLE3, "architectures": ["Eagle2_5_VLForConditionalGeneration"]})

    assert spec.weights_known


# allenai/OLMo, test_fixtures/test-olmo-model/config.json.
OLMO_FIXTURE = {
    "model_type": "hf_olmo",
    "activation_type": "swiglu",
    "attention_layer_norm": False,
    "bias_for_layer_norm": None,
    "d_model": 32,
    "embedding_size": 50304,
    "include_bias": True,
    "layer_norm_with_affine": True,
    "max_sequence_length": 1024,
    "mlp_hidden_size": None,
    "mlp_ratio": 4,
    "multi_query_attention": False,
    "n_heads": 1,
    "n_kv_heads": None,
    "n_layers": 1,
    "rope": False,
    "vocab_size": 50257,
    "weight_tying": True,
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 2 * 32 * 2),
        ({"n_heads": 4}, 2 * 4 * 8 * 2),
        ({"n_heads": 4, "multi_query_attention": True}, 2 * 1 * 8 * 2),
        ({"n_heads": 4, "n_kv_heads": 2, "multi_query_attention": None}, 2 * 2 * 8 * 2),
    ],
    ids=["fixture", "four heads", "multi-query", "grouped"],
)
def test_olmo_in_its_authors_own_format_is_read(changes, expected):
    """Type hf_olmo was refused."""
    spec = read({**OLMO_FIXTURE, **changes})

    assert growing_bytes_per_token(spec.layers) == expected
    assert spec.max_context == 1024


def test_parameters_of_olmo_7b_are_those_of_its_later_type():
    """allenai/OLMo, configs/official-0724/OLMo-7B.yaml: 32 layers of width 4,096, an MLP of 11,008
    (half of 22,016, which holds gate and up), 50,304 rows twice.

    32 x (4 x 4,096 x 4,096 + 3 x 4,096 x 11,008) + 2 x 50,304 x 4,096.
    """
    spec = read(
        {
            **OLMO_FIXTURE,
            "d_model": 4096,
            "n_heads": 32,
            "n_layers": 32,
            "mlp_hidden_size": 22016,
            "include_bias": False,
            "layer_norm_with_affine": False,
            "rope": True,
            "weight_tying": False,
        }
    )

    assert parameters(spec) == 6_888_095_744
    assert spec.weights_known


def test_olmo_with_gains_says_that_they_are_not_counted():
    assert not read(OLMO_FIXTURE).weights_known


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [("gla", "gated linear attention"), ("yuan", "filters keep the last inputs")],
)
def test_known_types_that_do_not_fit_are_refused_with_a_reason(model_type, reason):
    """fla-org/flash-linear-attention, legacy/training/configs/gla_7B.json; intel/ipex-llm,
    .../yuan2/yuan2-2B-instruct/config.json."""
    with pytest.raises(ModelError, match=reason):
        read({"model_type": model_type, "hidden_size": 2048, "num_hidden_layers": 24})
