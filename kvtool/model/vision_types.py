"""Which type of vision tower is built how (transformers 5.24; remote code where noted)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from kvtool.model.counting import Unstated, dense, extents, flat, listed, mlp2, patches, size, stack
from kvtool.model.fields import Fields
from kvtool.model.spec import Weight
from kvtool.model.vision import RATIO, Vit


def named(*names: str) -> Callable[[Fields], int]:
    """Learnt positions as a field counts them."""
    return lambda f: size(f, *names)


def kimi_positions(f: Fields) -> int:
    height = size(f, "init_pos_emb_height", "pos_emb_height")
    return height * size(f, "init_pos_emb_width", "pos_emb_width")


def molmo2_positions(f: Fields) -> int:
    """One for each patch, unless the section says how many."""
    name = "num_position_embeddings"
    return size(f, name) if f.present(name) else patches(f)


def hy4_positions(f: Fields) -> int:
    return (size(f, "max_image_size") // size(f, "patch_size")) ** 2 + 1


def radio_positions(f: Fields) -> int:
    return (size(f, "max_img_size") // size(f, "patch_size")) ** 2


def merger(f: Fields, width: int, norm: int, out: int) -> int:
    """Qwen's: a norm of each patch, then an MLP over the patches that make a token."""
    joined = width * size(f, "spatial_merge_size") ** 2
    return norm * width + mlp2(joined, joined, out)


def qwen2_tail(f: Fields) -> int:
    return merger(f, size(f, "embed_dim"), 2, size(f, "hidden_size"))


def qwen2_5_tail(f: Fields) -> int:
    return merger(f, size(f, "hidden_size"), 1, size(f, "out_hidden_size"))


def qwen3_tail(f: Fields) -> int:
    """The merger, and for each deepstack layer one whose norm spans the joined patches."""
    width, out = size(f, "hidden_size"), size(f, "out_hidden_size")
    joined = width * size(f, "spatial_merge_size") ** 2
    deep = len(f.integers("deepstack_visual_indexes") or ())
    return merger(f, width, 2, out) + deep * (2 * joined + mlp2(joined, joined, out))


def glm_merger(f: Fields, inner: int) -> int:
    """The last norm, a strided convolution, a projection with its norm, a gated MLP."""
    width, out = size(f, "hidden_size"), size(f, "out_hidden_size")
    down = dense(out, width * size(f, "spatial_merge_size") ** 2)
    return width + down + out * out + 2 * out + 3 * out * inner


def glm4v_tail(f: Fields) -> int:
    """The merger, and a norm behind the patches."""
    return glm_merger(f, size(f, "intermediate_size")) + size(f, "hidden_size")


def glm_ocr_tail(f: Fields) -> int:
    return glm_merger(f, size(f, "out_hidden_size") * size(f, "in_channels"))


def glm5_tail(f: Fields) -> int:
    return glm_merger(f, size(f, "projection_intermediate_size"))


def step_tail(f: Fields) -> int:
    """Two strided 3x3 convolutions, each of which doubles the channels."""
    width = size(f, "width", "hidden_size")
    return dense(2 * width, 9 * width) + dense(4 * width, 18 * width)


def llama4_tail(f: Fields) -> int:
    """The adapter behind the pixel shuffle."""
    out = size(f, "projector_output_dim")
    return size(f, "projector_input_dim") * size(f, "intermediate_size") + out * out


def radio_tail(f: Fields) -> int:
    """Class and register tokens; patches of several frames where there is video."""
    patch = size(f, "num_channels") * size(f, "patch_size") ** 2
    tokens = size(f, "num_cls_tokens", low=0) + size(f, "num_registers", low=0)
    frames = f.integer("video_temporal_patch_size", 0)
    return size(f, "hidden_size") * (frames * patch + tokens)


def internvl_tail(f: Fields) -> int:
    """A mask token, and a norm behind the last block where the tokens are not averaged."""
    rows = int(f.flag("use_mask_token")) + (0 if f.flag("use_mean_pooling", True) else 2)
    return rows * size(f, "hidden_size")


def minicpm_tail(f: Fields) -> int:
    """A merger inside the tower: attention in a window, then an MLP over its patches."""
    width = size(f, "hidden_size")
    window = prod(extents(f, "window_kernel_size"))
    joined, inner = window * width, window * size(f, "intermediate_size")
    return 4 * dense(width, width) + 2 * width + 2 * joined + mlp2(joined, inner, width)


def inkling2_tail(f: Fields) -> int:
    """An MLP over the patches of a token."""
    joined = size(f, "hidden_size") * size(f, "spatial_merge_size") ** 2
    inner, bias = size(f, "projection_hidden_dim"), f.flag("projector_bias")
    return mlp2(joined, inner, size(f, "text_hidden_size"), bias)


def hy4_tail(f: Fields) -> int:
    """A norm, a strided convolution, a projection, a token that ends a row of patches."""
    width, out = size(f, "hidden_size"), size(f, "out_hidden_size")
    joined = width * size(f, "spatial_merge_size") ** 2
    return width + mlp2(joined, joined, out) + out


def mllama_tail(f: Fields) -> int:
    """Global layers with two gates each; position tables of tiles by aspect ratio, gated too."""
    width, inner = size(f, "hidden_size"), size(f, "intermediate_size")
    layer = 4 * width * width + mlp2(width, inner, width) + 4 * width + 2
    tiles = (1 + _ratios(f)) * size(f, "max_num_tiles")
    tables = tiles * (patches(f) + 1) * width + 1 + 2 * (tiles * width + 1)
    return size(f, "num_global_layers", low=0) * layer + tables


def _ratios(f: Fields) -> int:
    """Aspect ratios of an image's tiles: eight for the four tiles of the published models."""
    f.used.add(f.path + "supported_aspect_ratios")
    ratios = f.raw.get("supported_aspect_ratios")
    return len(ratios) if isinstance(ratios, list) else 8


def gemma4_unified(f: Fields, name: str) -> tuple[Weight, ...]:
    """No tower: merged patches through norms and one matrix, positions in two directions."""
    width = size(f, "mm_embed_dim")
    patch = 3 * (size(f, "patch_size") * size(f, "pooling_kernel_size")) ** 2
    rows = 2 * size(f, "mm_posemb_size") + 4
    return flat(name, 2 * patch + dense(width, patch) + rows * width)


def lfm3(f: Fields, name: str) -> tuple[Weight, ...]:
    """Gated short convolutions over the plane, grouped attention between, gated MLPs."""
    width, inner = size(f, "hidden_size"), size(f, "intermediate_size")
    heads = size(f, "num_attention_heads")
    head = width // heads
    kv = size(f, "num_key_value_heads") * head
    attention = 2 * width * width + 2 * width * kv + 2 * head
    convolution = 4 * width * width + width * size(f, "conv_kernel_size") ** 2
    kinds = f.strings("layer_types")
    if kinds is None or len(kinds) != size(f, "num_hidden_layers"):
        raise Unstated("layer_types")
    full = kinds.count("full_attention")
    mixers = full * attention + (len(kinds) - full) * convolution
    patch = size(f, "in_channels") * size(f, "temporal_patch_size") * size(f, "patch_size") ** 2
    layers = stack(f"{name}.layers", len(kinds), 3 * width * inner + 2 * width)
    return (*layers, *flat(f"{name}.mixers", mixers), *flat(name, width * patch + width))


def molmo2_adapter(f: Fields, name: str) -> tuple[Weight, ...]:
    """Attention that pools the features of several layers, and a gated MLP into the decoder."""
    width, inner = size(f, "hidden_size"), size(f, "intermediate_size")
    head, features = size(f, "head_dim"), width * listed(f, "vision_feature_layer")
    q, kv = size(f, "num_attention_heads") * head, size(f, "num_key_value_heads") * head
    bias = f.flag("attention_bias")
    attention = dense(q + 2 * kv, features, bias) + dense(width, q, bias)
    mlp = dense(2 * inner, width, f.flag("mlp_bias")) + size(f, "text_hidden_size") * inner
    return flat(name, attention + mlp)


SIGLIP = Vit(positions=patches)
GLM = Vit(
    inner=("out_hidden_size",), norm=1, ends=0, gated=True, qkv_bias="attention_bias",
    out_bias=False, mlp_bias=False, positions=patches, tail=glm4v_tail,
)  # fmt: skip
GLM_OCR = Vit(
    norm=1, ends=0, gated=True, qkv_bias="attention_bias", out_bias="attention_bias",
    mlp_bias="attention_bias", head_norm=True, tail=glm_ocr_tail,
)  # fmt: skip
QWEN2_5 = Vit(norm=1, ends=0, gated=True, patch_bias=False, tail=qwen2_5_tail)
QWEN3 = Vit(ends=0, positions=named("num_position_embeddings"), tail=qwen3_tail)
KIMI = Vit(width=("vt_hidden_size", "hidden_size"), positions=kimi_positions)
INTERN = Vit(ends=0, scales=2, positions=patches, class_token=True)

VITS: dict[str, Vit] = {
    "clip_vision_model": Vit(
        positions=patches, class_token=True, patch_bias=False, ends=4
    ),
    "siglip_vision_model": Vit(positions=patches, pooling_head="vision_use_head"),
    "siglip2_vision_model": Vit(positions=named("num_patches"), pooling_head="vision_use_head"),
    "cosmos3_edge_vision": Vit(positions=named("num_patches")),
    "siglip": SIGLIP,  # MiniCPM-V: remote code, without the pooling head
    "phi4_multimodal_vision": Vit(positions=patches, pooling_head=True),
    **dict.fromkeys(("idefics3_vision", "smolvlm_vision", "paddleocr_vl_vision"), SIGLIP),
    "video_llama_3_vision": Vit(),
    **dict.fromkeys(
        ("minicpmv4_6_vision", "minicpmv4_7_vision", "minicpm_ocr_vision"),
        Vit(positions=patches, tail=minicpm_tail),
    ),
    "molmo2_vision": Vit(
        ends=0, qkv_bias="attention_bias", out_bias="attention_bias", grouped=True,
        positions=molmo2_positions,
    ),
    "pixtral": Vit(
        norm=1, ends=1, gated=True, patch_bias=False, qkv_bias=False, out_bias=False,
        mlp_bias=False,
    ),
    "qwen2_vl_vision": Vit(
        width=("embed_dim",), inner=(RATIO,), ends=0, patch_bias=False, tail=qwen2_tail
    ),
    **dict.fromkeys(("qwen2_5_vl_vision", "qwen2_5_omni_vision_encoder"), QWEN2_5),
    "exaone4_5_vision": replace(QWEN2_5, grouped=True),
    **dict.fromkeys(
        ("qwen3_vl_vision", "qwen3_vl_moe_vision", "qwen3_omni_moe_vision_encoder",
         "qwen3_5_vision", "qwen3_5_moe_vision"),
        QWEN3,
    ),
    **dict.fromkeys(("glm4v_vision", "glm4v_moe_vision"), GLM),
    "glm_ocr_vision": GLM_OCR,
    "glm5_next_vision": replace(GLM_OCR, tail=glm5_tail),
    "gemma4_vision": Vit(
        norm=1, norms=4, ends=0, gated=True, grouped=True, head_norm=True, patch_bias=False,
        qkv_bias=False, out_bias=False, mlp_bias=False,
        positions=lambda f: 2 * size(f, "position_embedding_size"),
    ),
    "hy_v4_vl_vision": Vit(ends=0, positions=hy4_positions, tail=hy4_tail),
    "inkling2_vision": Vit(
        inner=("intermediate_size", RATIO), scales=2, patch_bias=False, class_token=True,
        positions=lambda f: size(f, "posemb_grid_size") ** 2, tail=inkling2_tail,
    ),
    **dict.fromkeys(
        ("muse_glimmer_vision", "muse_spark_vision"),
        Vit(ends=4, patch_bias=False, positions=kimi_positions),
    ),
    "kimi_k25_vision": KIMI,
    "moonvit": KIMI,  # Kimi-VL: remote code
    "step3p5_vision": Vit(
        width=("width", "hidden_size"), inner=(RATIO,), scales=2, patch_bias=False,
        positions=patches, tail=step_tail,
    ),
    "ernie4_5_vl_moe_vision": Vit(patch_bias=False),
    "minimax_m3_vl_vision": Vit(patch_bias=False),
    "radio": Vit(
        inner=(RATIO,), ends=0, scales=2, qkv_bias="qkv_bias", patch_bias=False,
        positions=radio_positions, tail=radio_tail,
    ),
    "mllama_vision_model": Vit(
        ends=4, patch_bias=False, qkv_bias=False, out_bias=False, positions=patches,
        class_token=True, tail=mllama_tail,
    ),
    "llama4_vision_model": Vit(
        ends=4, patch_bias=False, positions=patches, class_token=True, tail=llama4_tail
    ),
    **dict.fromkeys(
        ("internvl_vision", "qianfan_ocr_vision"),
        replace(
            INTERN, qkv_bias="attention_bias", qk_norm="use_qk_norm", tail=internvl_tail
        ),
    ),
    # InternVL's own code, which its first releases run.
    "intern_vit_6b": replace(INTERN, qkv_bias="qkv_bias", qk_norm="qk_normalization"),
}  # fmt: skip
