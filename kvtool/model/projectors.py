"""Parameters between a tower and the text decoder, by section and model type.

A projector reads the configuration around the section (`owner`), the section itself and the hidden
size of the decoder. Counts equal those of transformers 5.24; remote code where noted.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from kvtool.model.counting import dense, extents, fraction, listed, mlp2, size
from kvtool.model.fields import Fields, as_integer

Projector = Callable[[Fields, Fields, int], int]


def none(owner: Fields, f: Fields, hidden: int) -> int:
    """The tower ends in the hidden size of the decoder."""
    return 0


def llava(owner: Fields, f: Fields, hidden: int) -> int:
    inp = size(f, "hidden_size") * listed(owner, "vision_feature_layer")
    return mlp2(inp, hidden, hidden, owner.flag("multimodal_projector_bias", True))


def llava_next(owner: Fields, f: Fields, hidden: int) -> int:
    """LLaVA's, and a token that ends a row of patches."""
    return llava(owner, f, hidden) + hidden


def vip_llava(owner: Fields, f: Fields, hidden: int) -> int:
    inp = size(f, "hidden_size") * listed(owner, "vision_feature_layer")
    return 2 * inp + mlp2(inp, hidden, hidden)


def gemma3(owner: Fields, f: Fields, hidden: int) -> int:
    width = size(f, "hidden_size")
    return width * hidden + width


def qwen2_audio(owner: Fields, f: Fields, hidden: int) -> int:
    return dense(hidden, size(f, "d_model"))


def hyperclovax(owner: Fields, f: Fields, hidden: int) -> int:
    return dense(hidden, size(f, "out_hidden_size"))


def mlp(owner: Fields, f: Fields, hidden: int) -> int:
    return mlp2(size(f, "hidden_size"), hidden, hidden)


def paligemma(owner: Fields, f: Fields, hidden: int) -> int:
    return dense(size(owner, "projection_dim"), size(f, "hidden_size"))


def aya(owner: Fields, f: Fields, hidden: int) -> int:
    """A norm over the joined patches, then a gated MLP."""
    joined = size(f, "hidden_size") * size(owner, "downsample_factor") ** 2
    inner = owner.integer("alignment_intermediate_size", hidden)
    return 2 * joined + dense(inner, joined) + dense(hidden, inner // 2)


def cohere2(owner: Fields, f: Fields, hidden: int) -> int:
    joined = size(f, "hidden_size") * size(owner, "downsample_factor") ** 2
    inner = size(owner, "alignment_intermediate_size")
    return dense(inner, joined) + dense(hidden, inner // 2)


def lfm2(owner: Fields, f: Fields, hidden: int) -> int:
    joined = size(f, "hidden_size") * size(owner, "downsample_factor") ** 2
    norm = 2 * joined if owner.flag("projector_use_layernorm") else 0
    inner = size(owner, "projector_hidden_size")
    return norm + mlp2(joined, inner, hidden, owner.flag("projector_bias"))


def lfm3(owner: Fields, f: Fields, hidden: int) -> int:
    """A norm of each patch, then an MLP over those of a token."""
    width = size(f, "hidden_size")
    joined, inner = width * size(f, "spatial_merge_size") ** 2, size(owner, "projector_hidden_size")
    return 2 * width + mlp2(joined, inner, hidden, owner.flag("projector_bias"))


def idefics3(owner: Fields, f: Fields, hidden: int) -> int:
    return hidden * size(f, "hidden_size") * size(owner, "scale_factor") ** 2


def mistral3(owner: Fields, f: Fields, hidden: int) -> int:
    """A norm, a merger of patches, and an MLP."""
    width = size(f, "hidden_size")
    merge = width + width * width * size(owner, "spatial_merge_size") ** 2
    bias = owner.flag("multimodal_projector_bias")
    return merge + mlp2(width * listed(owner, "vision_feature_layer"), hidden, hidden, bias)


def kimi(owner: Fields, f: Fields, hidden: int) -> int:
    """A norm of each patch, then an MLP over those of a token."""
    width = size(f, "vt_hidden_size", "hidden_size")
    joined = width * prod(extents(f, "merge_kernel_size"))
    return 2 * width + mlp2(joined, joined, hidden)


def step(owner: Fields, f: Fields, hidden: int) -> int:
    return dense(hidden, 4 * size(f, "width", "hidden_size"), owner.flag("projector_bias"))


def ernie(owner: Fields, f: Fields, hidden: int) -> int:
    """MLPs over the patches of a token in space, then in time; a last projection and norm."""
    joined = size(f, "hidden_size") * size(f, "spatial_merge_size") ** 2
    space = mlp2(joined, joined, joined) + 2 * joined
    time = mlp2(joined * size(f, "temporal_merge_size"), joined, joined) + 2 * joined
    return space + time + dense(hidden, joined) + hidden


def minimax(owner: Fields, f: Fields, hidden: int) -> int:
    """An MLP for each patch, then one over the patches of a token."""
    inner = size(owner, "projector_hidden_size")
    joined = hidden * size(f, "spatial_merge_size") ** 2
    return mlp2(size(f, "hidden_size"), inner, hidden) + mlp2(joined, inner, hidden)


def shuffled(owner: Fields, width: int) -> int:
    """Width of a token made of the patches that `downsample_ratio` joins."""
    return width * int(1 / fraction(owner, "downsample_ratio", 0.5)) ** 2


def internvl(owner: Fields, f: Fields, hidden: int) -> int:
    joined = shuffled(owner, size(f, "hidden_size"))
    return 2 * joined + mlp2(joined, hidden, hidden)


def nemotron(owner: Fields, f: Fields, hidden: int) -> int:
    """A norm over the joined patches and an MLP; a norm behind the tower beside MTP layers."""
    width = size(owner, "vision_hidden_size", "vit_hidden_size")
    joined = shuffled(owner, width)
    text = owner.mapping("text_config") or owner.mapping("llm_config")
    last = 2 * width if text.get("num_nextn_predict_layers") else 0
    return last + joined + mlp2(joined, size(owner, "projector_hidden_size"), hidden, bias=False)


def mllama(owner: Fields, f: Fields, hidden: int) -> int:
    return dense(hidden, size(f, "vision_output_dim"))


def aria(owner: Fields, f: Fields, hidden: int) -> int:
    """Learnt queries that attend to the patches, a norm and an MLP."""
    width = size(f, "hidden_size")
    table = owner.mapping("projector_patch_to_query_dict")
    queries = max((n for v in table.values() if (n := as_integer(v))), default=256)
    attention = 3 * width * width + 4 * dense(width, width) + dense(width, width) + 4 * width
    mlp = width * hidden + hidden * hidden
    return queries * width + attention + 2 * width + mlp


def cosmos(owner: Fields, f: Fields, hidden: int) -> int:
    width = size(f, "hidden_size")
    joined = width * size(f, "spatial_merge_size") ** 2
    return 2 * width + mlp2(joined, size(owner, "projector_hidden_size"), hidden)


def muse(owner: Fields, f: Fields, hidden: int) -> int:
    """An adapter over the patches of a token, and a projection."""
    inner = size(owner, "projector_hidden_size")
    return mlp2(size(owner, "out_hidden_size"), inner, inner, bias=False) + inner * hidden


def matrix(name: str) -> Projector:
    """One matrix without bias, from a width that the section names."""
    return lambda owner, f, hidden: hidden * size(f, name)


def paddle(owner: Fields, f: Fields, hidden: int) -> int:
    width = size(f, "hidden_size")
    joined = width * size(f, "spatial_merge_size") ** 2
    return 2 * width + mlp2(joined, joined, hidden)


def phi4_vision(owner: Fields, f: Fields, hidden: int) -> int:
    """An MLP, and two separators."""
    return mlp(owner, f, hidden) + 2 * size(f, "hidden_size")


def phi4_audio(owner: Fields, f: Fields, hidden: int) -> int:
    """An MLP for speech alone, and one for speech beside images."""
    inp = size(f, "hidden_size") * size(f, "downsample_rate")
    return 2 * mlp2(inp, hidden, hidden)


def voxtral(owner: Fields, f: Fields, hidden: int) -> int:
    """An MLP over the frames of a token, as wide together as the tower's own MLP."""
    return mlp2(size(f, "intermediate_size"), hidden, hidden, bias=False)


def voxtral_realtime(owner: Fields, f: Fields, hidden: int) -> int:
    joined = size(f, "hidden_size") * size(owner, "downsample_factor")
    return mlp2(joined, hidden, hidden, bias=False)


def flamingo(owner: Fields, f: Fields, hidden: int) -> int:
    return mlp2(size(f, "hidden_size"), hidden, hidden, owner.flag("projector_bias"))


def qwen3_asr(owner: Fields, f: Fields, hidden: int) -> int:
    width = size(f, "d_model")
    return mlp2(width, width, size(f, "output_dim"))


def glmasr(owner: Fields, f: Fields, hidden: int) -> int:
    return mlp2(size(f, "intermediate_size"), 2 * hidden, hidden)


def moss(owner: Fields, f: Fields, hidden: int) -> int:
    """An MLP over the frames of a token, and a norm."""
    joined = size(f, "hidden_size") * size(owner, "audio_merge_size")
    return mlp2(joined, hidden, hidden, owner.flag("projector_bias")) + 2 * hidden


def minicpmv4(owner: Fields, f: Fields, hidden: int) -> int:
    """Mergers of four patches in a row, each a norm and an MLP; the last into the decoder."""
    joined = 4 * size(f, "hidden_size")
    times = size(owner, "merger_times")
    last = 2 * joined + mlp2(joined, joined, hidden)
    return (times - 1) * (2 * joined + mlp2(joined, joined, size(f, "hidden_size"))) + last


def minicpmv(owner: Fields, f: Fields, hidden: int) -> int:
    """MiniCPM-V 2.6, remote code: learnt queries that attend to the patches, and a projection."""
    queries = size(owner, "query_num") * hidden
    attention = dense(3 * hidden, hidden) + dense(hidden, hidden)
    return queries + hidden * size(f, "hidden_size") + attention + 6 * hidden + hidden * hidden


# By section, then by the type of the configuration around it.
PROJECTORS: dict[str, dict[str, Projector]] = {
    "vision_config": {
        "llava": llava,
        **dict.fromkeys(("llava_next", "llava_next_video", "llava_onevision"), llava_next),
        "vipllava": vip_llava,
        **dict.fromkeys(("gemma3", "shieldgemma2"), gemma3),
        "paligemma": paligemma,
        "aya_vision": aya,
        "cohere2_vision": cohere2,
        **dict.fromkeys(("deepseek_vl", "video_llama_3"), mlp),
        "lfm2_vl": lfm2,
        "lfm3_vl": lfm3,
        **dict.fromkeys(("idefics3", "smolvlm"), idefics3),
        **dict.fromkeys(("mistral3", "ministral3", "mistral_large4", "lighton_ocr"), mistral3),
        **dict.fromkeys(
            ("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni_thinker", "qwen3_vl", "qwen3_vl_moe",
             "qwen3_omni_moe_thinker", "qwen3_5", "qwen3_5_moe", "exaone4_5", "glm4v", "glm4v_moe",
             "glm46v", "glmga", "glm_ocr", "glm5_next", "hy_v4_vl", "inkling2", "inkling2_loop",
             "cosmos3_omni", "molmo2"),
            none,
        ),
        "hyperclovax_vision_v2": hyperclovax,
        **dict.fromkeys(("kimi_k25", "kimi_vl"), kimi),
        "step3p7": step,
        "aria": aria,
        "cosmos3_edge": cosmos,
        **dict.fromkeys(("muse_glimmer", "muse_spark"), muse),
        "ernie4_5_vl_moe": ernie,
        "minimax_m3_vl": minimax,
        **dict.fromkeys(("internvl", "qianfan_ocr", "internvl_chat"), internvl),
        "nemotron_h_omni": nemotron,
        "mllama": mllama,
        "llama4": matrix("vision_output_dim"),
        "gemma4": matrix("hidden_size"),
        "gemma4_unified": matrix("output_proj_dims"),
        "paddleocr_vl": paddle,
        "phi4_multimodal": phi4_vision,
        **dict.fromkeys(("minicpmv4_6", "minicpmv4_7", "minicpm_ocr"), minicpmv4),
        "minicpmv": minicpmv,
    },
    "audio_config": {
        **dict.fromkeys(("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker", "muse_spark"), none),
        "gemma4": matrix("output_proj_dims"),
        "gemma4_unified": matrix("audio_embed_dim"),
        "phi4_multimodal": phi4_audio,
        "qwen2_audio": qwen2_audio,
        "voxtral": voxtral,
        "voxtral_realtime": voxtral_realtime,
        **dict.fromkeys(("audioflamingo3", "musicflamingo"), flamingo),
        "qwen3_asr": qwen3_asr,
        "glmasr": glmasr,
        "moss_transcribe_diarize": moss,
    },
    "adapter_config": {"molmo2": none},
    "talker_config": {"qwen2_5_omni": none},
    "token2wav_config": {"qwen2_5_omni": none},
}  # fmt: skip
