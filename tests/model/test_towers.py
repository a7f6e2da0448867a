"""Parameters beside the text decoder, against transformers 5.24 on the meta device.

The figures of CLASSES and of PUBLISHED come from tests/oracles/towers_oracle.py (`count`): the
parameters of a model outside its text decoder. A section that is `{}` is that of the class.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtool.model.fields import Fields
from kvtool.model.spec import Weight
from kvtool.model.towers import towers

CLASSES = [
    ("aria", {"vision_config": {}}, 4096, 184_816_000),
    ("audioflamingo3", {"audio_config": {}}, 4096, 658_997_248),
    (
        "aya_vision",
        {
            "vision_config": {
                "inkling2_loop": {"vision_config": {"text_hidden_size": 2304}},
                "model_type": "siglip_vision_model",
                "hidden_size": 1152,
                "num_attention_heads": 16,
            }
        },
        8192,
        233_638_272,
    ),
    ("cohere2_vision", {"vision_config": {}}, 8192, 357_170_432),
    ("cosmos3_edge", {"vision_config": {}}, 2048, 489_342_704),
    ("cosmos3_omni", {"vision_config": {}}, 4096, 566_949_104),
    ("deepseek_vl", {"vision_config": {}}, 4096, 112_815_360),
    ("ernie4_5_vl_moe", {"vision_config": {}}, 2560, 774_658_560),
    ("exaone4_5", {"vision_config": {}}, 4096, 2_671_868_672),
    ("gemma3", {"vision_config": {}}, 2304, 94_654_464),
    ("gemma4", {"vision_config": {}, "audio_config": {}}, 2304, 477_497_632),
    ("gemma4_unified", {"vision_config": {}, "audio_config": {}}, 2304, 45_498_624),
    ("glm46v", {"vision_config": {}}, 4096, 892_498_432),
    ("glm4v", {"vision_config": {}}, 4096, 892_498_432),
    ("glm4v_moe", {"vision_config": {}}, 4096, 892_498_432),
    ("glm5_next", {"vision_config": {}}, 4096, 460_072_448),
    ("glm_ocr", {"vision_config": {}}, 1024, 434_120_192),
    ("glmasr", {"audio_config": {}}, 2048, 664_415_232),
    ("glmga", {"vision_config": {}}, 4096, 892_498_432),
    ("hy_v4_vl", {"vision_config": {}}, 6144, 1_235_126_784),
    ("hyperclovax_vision_v2", {"vision_config": {}}, 4096, 3_097_709_312),
    ("idefics3", {"vision_config": {}}, 4096, 171_270_144),
    ("inkling2", {"vision_config": {}}, 4608, 327_693_312),
    ("inkling2_loop", {"vision_config": {"text_hidden_size": 2304}}, 2304, 318_256_128),
    ("internvl", {"vision_config": {}}, 4096, 337_509_376),
    ("kimi_k25", {"vision_config": {}}, 7168, 471_143_920),
    ("lfm2_vl", {"vision_config": {}}, 2560, 107_359_488),
    ("lfm3_vl", {"vision_config": {}}, 2048, 189_380_352),
    ("lighton_ocr", {"vision_config": {}}, 1024, 409_782_272),
    ("llama4", {"vision_config": {}}, 5120, 455_178_240),
    ("llava", {"vision_config": {}}, 4096, 107_387_136),
    ("llava_next", {"vision_config": {}}, 4096, 107_391_232),
    ("llava_next_video", {"vision_config": {}}, 4096, 107_391_232),
    ("llava_onevision", {"vision_config": {}}, 4096, 112_819_456),
    ("minicpm_ocr", {"vision_config": {}}, 4096, 157_399_552),
    ("minicpmv4_6", {"vision_config": {}}, 4096, 157_399_552),
    ("minicpmv4_7", {"vision_config": {}}, 4096, 157_399_552),
    ("minimax_m3_vl", {"vision_config": {}}, 6144, 865_567_232),
    ("mistral3", {"vision_config": {}}, 5120, 439_142_400),
    ("mistral_large4", {"vision_config": {}}, 6144, 451_725_312),
    ("mllama", {"vision_config": {}}, 4096, 867_749_395),
    ("molmo2", {"vision_config": {}, "adapter_config": {}}, 4096, 503_342_544),
    ("moss_transcribe_diarize", {"audio_config": {}}, 1024, 312_463_360),
    ("muse_glimmer", {"vision_config": {}}, 6656, 1_921_845_760),
    ("muse_spark", {"vision_config": {}, "audio_config": {}}, 8192, 2_045_977_600),
    (
        "musicflamingo",
        {"audio_config": {"model_type": "audioflamingo3_encoder"}},
        4096,
        658_997_248,
    ),
    ("nemotron_h_omni", {"vision_config": {"video_temporal_patch_size": 2}}, 4096, 691_447_296),
    ("paddleocr_vl", {"vision_config": {}}, 1024, 438_947_440),
    ("paligemma", {"vision_config": {}}, 2048, 94_459_136),
    ("phi4_multimodal", {"vision_config": {}, "audio_config": {}}, 3072, 907_982_272),
    ("qianfan_ocr", {"vision_config": {}}, 4096, 337_583_104),
    ("qwen2_5_omni_thinker", {"vision_config": {}, "audio_config": {}}, 3584, 3_722_672_384),
    ("qwen2_5_vl", {"vision_config": {}}, 8192, 3_083_025_152),
    ("qwen2_audio", {"audio_config": {}}, 4096, 642_215_936),
    ("qwen2_vl", {"vision_config": {}}, 8192, 675_759_104),
    ("qwen3_5", {"vision_config": {}}, 4096, 453_650_672),
    ("qwen3_5_moe", {"vision_config": {}}, 2048, 453_650_672),
    ("qwen3_asr", {"audio_config": {}}, 2048, 319_051_904),
    ("qwen3_omni_moe_thinker", {"vision_config": {}, "audio_config": {}}, 2048, 1_216_843_888),
    ("qwen3_vl", {"vision_config": {}}, 4096, 566_949_104),
    ("qwen3_vl_moe", {"vision_config": {}}, 2048, 566_949_104),
    ("shieldgemma2", {"vision_config": {}}, 2304, 94_654_464),
    ("smolvlm", {"vision_config": {}}, 4096, 171_270_144),
    ("step3p7", {"vision_config": {}}, 4096, 1_981_014_784),
    ("video_llama_3", {"vision_config": {}}, 4096, 105_577_728),
    ("vipllava", {"vision_config": {}}, 4096, 119_977_728),
    ("voxtral", {"audio_config": {}}, 3072, 662_134_784),
    ("voxtral_realtime", {"audio_config": {}}, 3072, 995_561_216),
]

SIGLIP_SO400M = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "image_size": 896,
    "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14,
    "vision_use_head": False,
}  # fmt: skip
QWEN3_SO400M = {
    "deepstack_visual_indexes": [8, 16, 24], "depth": 27, "hidden_size": 1152, "in_channels": 3,
    "intermediate_size": 4304, "num_heads": 16, "num_position_embeddings": 2304,
    "out_hidden_size": 4096, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
MLLAMA = {
    "attention_heads": 16, "hidden_size": 1280, "image_size": 560, "intermediate_size": 5120,
    "max_num_tiles": 4, "num_global_layers": 8, "num_hidden_layers": 32, "patch_size": 14,
    "vision_output_dim": 7680,
}  # fmt: skip
KIMI = {
    "init_pos_emb_height": 64, "init_pos_emb_width": 64, "merge_kernel_size": [2, 2],
    "mm_hidden_size": 1152, "patch_size": 14, "vt_hidden_size": 1152,
    "vt_intermediate_size": 4304, "vt_num_attention_heads": 16, "vt_num_hidden_layers": 27,
}  # fmt: skip
GEMMA4_VISION = {
    "head_dim": 72, "hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16,
    "num_hidden_layers": 27, "num_key_value_heads": 16, "patch_size": 16,
    "position_embedding_size": 10240, "use_clipped_linears": False,
}  # fmt: skip
GEMMA4_SMALL = {
    "head_dim": 64, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
    "num_hidden_layers": 16, "num_key_value_heads": 12, "patch_size": 16,
    "position_embedding_size": 10240, "use_clipped_linears": True,
}  # fmt: skip
GEMMA4_AUDIO = {
    "hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 12,
    "output_proj_dims": 1536, "subsampling_conv_channels": [128, 32], "conv_kernel_size": 5,
}  # fmt: skip
PIXTRAL = {
    "model_type": "pixtral", "head_dim": 64, "hidden_size": 1024, "image_size": 1540,
    "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14,
}  # fmt: skip
WHISPER_LARGE = {
    "model_type": "qwen2_audio_encoder", "num_mel_bins": 128, "encoder_layers": 32,
    "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "d_model": 1280,
    "max_source_positions": 1500,
}  # fmt: skip
CLIP_LARGE = {
    "model_type": "clip_vision_model", "hidden_size": 1024, "image_size": 336,
    "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14,
}  # fmt: skip

# Deciding fields of published configurations, decoder width, and tower and projector apart.
PUBLISHED = [
    ("llava", {"vision_config": CLIP_LARGE}, 4096, 303_507_456 + 20_979_712),
    ("gemma3", {"vision_config": SIGLIP_SO400M}, 2560, 416_866_032 + 2_950_272),
    ("gemma4", {"vision_config": GEMMA4_VISION, "audio_config": None}, 5376,
     569_548_080 + 6_193_152),
    ("gemma4", {"vision_config": GEMMA4_SMALL, "audio_config": GEMMA4_AUDIO}, 1536,
     167_364_608 + 1_179_648 + 304_824_608 + 2_359_296),
    ("qwen2_vl", {"vision_config": {"hidden_size": 1536, "in_chans": 3}}, 1536, 665_271_296),
    ("qwen2_5_vl", {"vision_config": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420,
                                      "num_heads": 16, "out_hidden_size": 3584}},
     3584, 676_550_144),
    ("qwen3_vl_moe", {"vision_config": QWEN3_SO400M}, 4096, 576_388_336),
    ("qwen3_5", {"vision_config": {"deepstack_visual_indexes": [], "depth": 12, "hidden_size": 768,
                                   "intermediate_size": 3072, "num_heads": 12,
                                   "num_position_embeddings": 2304, "out_hidden_size": 1024}},
     1024, 100_592_896),
    ("mllama", {"vision_config": MLLAMA}, 4096, 863_567_379 + 31_461_376),
    ("mllama", {"vision_config": MLLAMA}, 8192, 863_567_379 + 62_922_752),
    ("mistral3", {"vision_config": PIXTRAL}, 5120, 403_305_472 + 35_652_608),
    ("kimi_k25", {"vision_config": KIMI}, 7168, 416_866_032 + 54_277_888),
    ("qwen2_audio", {"audio_config": WHISPER_LARGE}, 4096, 636_968_960 + 5_246_976),
]  # fmt: skip


def counted(model_type: str, raw: dict[str, object], hidden: int) -> tuple[int, tuple[str, ...]]:
    root = Fields({"model_type": model_type, **raw}, "test", model_type=model_type)
    weights, unknown = towers(root, hidden)
    root.raise_faults()
    return sum(weight.elements for weight in weights), unknown


@pytest.mark.parametrize(
    ("model_type", "sections", "hidden", "parameters"), CLASSES, ids=[case[0] for case in CLASSES]
)
def test_sections_of_the_class_count_as_transformers_does(model_type, sections, hidden, parameters):
    assert counted(model_type, sections, hidden) == (parameters, ())


@pytest.mark.parametrize(("model_type", "sections", "hidden", "parameters"), PUBLISHED)
def test_published_sections_count_as_transformers_does(model_type, sections, hidden, parameters):
    assert counted(model_type, sections, hidden) == (parameters, ())


def test_qwen_omni_counts_towers_talker_and_vocoder():
    """Qwen2.5-Omni-7B: 10,732,225,408 parameters, of which the text decoder has 7,615,616,512."""
    audio = {
        "num_mel_bins": 128, "encoder_layers": 32, "encoder_ffn_dim": 5120, "d_model": 1280,
        "output_dim": 3584,
    }  # fmt: skip
    vision = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 3584}
    talker = {
        "embedding_size": 3584, "head_dim": 128, "hidden_size": 896, "intermediate_size": 18944,
        "num_attention_heads": 12, "num_hidden_layers": 24, "num_key_value_heads": 4,
        "vocab_size": 8448,
    }  # fmt: skip
    raw = {
        "thinker_config": {"audio_config": audio, "vision_config": vision},
        "talker_config": talker,
        "token2wav_config": {"dit_config": {}, "bigvgan_config": {}},
    }

    assert counted("qwen2_5_omni", raw, 3584) == (10_732_225_408 - 7_615_616_512, ())


def test_a_muted_model_has_no_talker():
    raw = {"enable_audio_output": False, "talker_config": {}, "token2wav_config": {}}

    assert counted("qwen2_5_omni", raw, 3584) == (0, ())


INTERN_VIT_300M = {
    "hidden_size": 1024, "intermediate_size": 4096, "norm_type": "layer_norm",
    "num_attention_heads": 16, "num_hidden_layers": 24, "qk_normalization": False,
    "qkv_bias": True,
}  # fmt: skip
INTERN_VIT_6B = {
    "hidden_size": 3200, "intermediate_size": 12800, "norm_type": "rms_norm",
    "num_attention_heads": 25, "num_hidden_layers": 45, "qk_normalization": True,
    "qkv_bias": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("vision", "hidden", "checkpoint", "text"),
    [
        (INTERN_VIT_300M, 2048, 2_205_754_368, 1_889_146_880),
        (INTERN_VIT_6B, 6144, 25_514_186_112, 19_861_260_288),
    ],
    ids=["InternVL2-2B", "InternVL2.5-26B"],
)
def test_internvl_of_the_first_releases_counts_as_its_checkpoint(vision, hidden, checkpoint, text):
    """Parameters of the published checkpoints, less those of their InternLM2 decoders."""
    section = {**vision, "model_type": "intern_vit_6b", "image_size": 448, "patch_size": 14}

    assert counted("internvl_chat", {"vision_config": section}, hidden) == (checkpoint - text, ())


MINICPM_V = {
    "model_type": "siglip", "hidden_size": 1152, "image_size": 980, "intermediate_size": 4304,
    "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14,
}  # fmt: skip


def test_minicpm_v_counts_as_its_checkpoint():
    """MiniCPM-V 2.6 holds 8,099,175,152 parameters, 7,612,763,648 of them in Qwen2."""
    raw = {"version": 2.6, "query_num": 64, "vision_config": MINICPM_V}

    assert counted("minicpmv", raw, 3584) == (8_099_175_152 - 7_612_763_648, ())


def test_another_release_of_minicpm_v_is_named_unknown():
    raw = {"version": 4.5, "query_num": 64, "vision_config": MINICPM_V}

    assert counted("minicpmv", raw, 3584) == (0, ("vision_config",))


@pytest.mark.parametrize(
    "raw",
    [{}, {"vision_config": None, "audio_config": None}, {"text_config": {"hidden_size": 1024}}],
    ids=["text", "null", "text-part"],
)
def test_a_configuration_without_sections_has_no_towers(raw):
    assert counted("gemma4", raw, 1024) == (0, ())


@pytest.mark.parametrize(
    ("model_type", "raw", "unknown"),
    [
        ("kimi_k3", {"vision_config": {"vt_hidden_size": 1024}}, ("vision_config",)),
        ("gemma3n", {"vision_config": {}, "audio_config": {}}, ("vision_config", "audio_config")),
        ("qwen3_omni_moe", {"talker_config": {}, "code2wav_config": {}},
         ("talker_config", "code2wav_config")),
        ("llava", {"vision_config": {"model_type": "timm_wrapper"}}, ("vision_config",)),
        ("kimi_vl", {"vision_config": {"model_type": "moonvit"}}, ("vision_config",)),
        ("qwen2_5_omni", {"thinker_config": {"vision_config": {}, "speech_config": {}}},
         ("thinker_config.speech_config",)),
        ("molmo", {}, ("vision tower",)),
    ],
    ids=["kimi-k3", "gemma-3n", "talker", "tower", "unstated", "nested", "no-section"],
)  # fmt: skip
def test_what_has_no_formula_is_named(model_type, raw, unknown):
    assert counted(model_type, raw, 1024)[1] == unknown


def test_a_known_tower_is_counted_beside_an_unknown_one():
    elements, unknown = counted("llava", {"vision_config": CLIP_LARGE, "audio_config": {}}, 4096)

    assert elements == 303_507_456 + 20_979_712
    assert unknown == ("audio_config",)


def test_a_fixed_class_reads_its_section_whatever_that_calls_itself():
    given = {"depth": 12, "model_type": "qwen3_5"}

    assert counted("qwen3_5", {"vision_config": given}, 1024) == counted(
        "qwen3_5", {"vision_config": {"depth": 12}}, 1024
    )


def test_towers_are_whole_on_every_rank():
    root = Fields({"vision_config": CLIP_LARGE}, "test", model_type="llava")

    weights, _ = towers(root, 4096)

    assert weights == (
        Weight("vision.layers", "encoder", (24, 12_596_224)),
        Weight("vision", "encoder", (303_507_456 - 24 * 12_596_224,)),
        Weight("vision.projector", "encoder", (20_979_712,)),
    )


def test_a_value_that_is_no_number_is_a_fault_with_its_field():
    root = Fields({"vision_config": {"hidden_size": "wide"}}, "test", model_type="llava")

    towers(root, 4096)

    assert set(root.faults) == {
        "test: vision_config.hidden_size is 'wide', not a whole number from 1 to 16,777,216"
    }


def test_fields_that_decide_are_noted_for_a_card():
    root = Fields({"vision_config": {**CLIP_LARGE, "hidden_act": "gelu"}}, "t", model_type="llava")

    towers(root, 4096)

    assert {"vision_config", "vision_config.model_type", "vision_config.image_size"} <= root.used
    assert "vision_config.hidden_act" not in root.used


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 10**30), st.floats(), st.text(max_size=3),
    st.lists(st.integers(-1, 4096), max_size=3), st.just({}),
)  # fmt: skip
FIELDS = (
    "hidden_size", "embed_dim", "depth", "layers", "num_hidden_layers", "intermediate_size",
    "mlp_ratio", "num_attention_heads", "image_size", "patch_size", "spatial_merge_size",
    "merge_kernel_size", "norm_type", "model_type", "deepstack_visual_indexes", "head_dim",
)  # fmt: skip


@given(
    st.sampled_from(CLASSES).map(lambda case: case[0]),
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4),
)
def test_odd_sections_end_in_faults_or_whole_counts(model_type, section):
    root = Fields(
        {"vision_config": section, "audio_config": section}, "test", model_type=model_type
    )

    weights, _ = towers(root, 4096)

    assert root.faults or all(weight.elements > 0 for weight in weights)
