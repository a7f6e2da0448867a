"""Which function reads which model type; a family's module is imported when a model asks for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

from kvtool.model import decoder
from kvtool.model.fields import Fields
from kvtool.model.spec import ModelSpec
from kvtool.model.styles import SAME_AS, STYLES

Reader = Callable[[Fields], ModelSpec]

# Model type -> "module.function" of kvtool.model. Types of STYLES are read by `decoder`.
READERS: dict[str, str] = {
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa", "glm4_moe_lite",
         "mistral_large_3", "minicpm3", "youtu", "axk1", "deepseek_vl_v2", "mistral4",
         "sarvam_mla"),
        "latent.read",
    ),
    "axk2": "sparse_mla.read_axk2",
    **dict.fromkeys(("hy_v4", "hy_v4_vl_text"), "sparse_mla.read_hy4"),
    **dict.fromkeys(("mistral_large4", "mistral_large4_text"), "sparse_mla.read_mistral_large4"),
    **dict.fromkeys(("dots3_note", "dots3_note_text"), "sparse_mla.read_dots3"),
    **dict.fromkeys(("deepseek_v4", "deepseek_ref"), "latent.read_v4"),
    **dict.fromkeys(("longcat_flash", "longcat_flash_ngram"), "latent.read_longcat"),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
        "recurrent.read_delta",
    ),
    "olmo_hybrid": "recurrent.read_olmo_hybrid",
    **dict.fromkeys(("kimi_linear", "kimi_k3"), "kda.read_kda"),
    "bailing_hybrid": "remote.read_bailing_hybrid",
    **dict.fromkeys(("glm5_next", "glm5_next_text"), "kda.read_glm5_next"),
    "xlstm": "rwkv.read_xlstm",
    "dory": "loops.read_dory",
    "hrm_text": "loops.read_hrm",
    "inkling_text": "inkling.read_inkling",
    **dict.fromkeys(("inkling2_text", "inkling2_loop_text"), "inkling.read_inkling2"),
    "zamba": "zamba.read_zamba",
    "zamba2": "zamba.read_zamba2",
    "zaya": "zamba.read_zaya",
    **dict.fromkeys(("minimax", "minimax_text_01", "minimax_m1"), "recurrent.read_lightning"),
    **dict.fromkeys(("lfm2", "lfm2_moe", "lfm3"), "recurrent.read_lfm2"),
    "lara_mini": "recurrent.read_lara",
    **dict.fromkeys(("qwen4_exp", "qwen4_exp_text"), "recurrent.read_qwen4"),
    "recurrent_gemma": "recurrent.read_griffin",
    **dict.fromkeys(("rwkv", "rwkv5", "rwkv6", "rwkv7"), "rwkv.read_rwkv"),
    **dict.fromkeys(("mamba", "falcon_mamba"), "mamba.read_mamba1"),
    "mamba2": "mamba.read_mamba2",
    "jamba": "mamba.read_jamba",
    "bamba": "mamba.read_bamba",
    "falcon_h1": "mamba.read_falcon_h1",
    "granitemoehybrid": "mamba.read_granite_hybrid",
    "nemotron_h": "mamba.read_nemotron_h",
    **dict.fromkeys(
        ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text", "diffusion_gemma_text"),
        "gemma.read_gemma4",
    ),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), "gemma.read_gemma3n"),
    **dict.fromkeys(
        ("t5", "mt5", "umt5", "longt5", "switch_transformers"), "encdec.read_t5"
    ),
    **dict.fromkeys(("t5_gemma_module", "t5gemma2_decoder"), "encdec.read_t5gemma"),
    "whisper": "encdec.read_whisper",
    **dict.fromkeys(("mllama", "mllama_text_model"), "crossvision.read_mllama"),
    "jetmoe": "experts.read_jetmoe",
    **dict.fromkeys(("muse_spark", "muse_spark_text"), "experts.read_muse_spark"),
    **dict.fromkeys(("ernie4_5_vl_moe_text", "ernie4_5_moe_vl"), "experts.read_ernie_vl"),
    "doge": "experts.read_doge",
    **dict.fromkeys(
        ("codeshell", "cpmant", "ctrl", "gpt_neox_japanese", "phi3small", "step3p5", "step3p7",
         "xglm"),
        "special.read_renamed",
    ),
    "gpt_neo": "special.read_gpt_neo",
    "modernbert-decoder": "special.read_modernbert",
    "bailing_moe_linear": "remote.read_ring",
    **dict.fromkeys(("step3_text", "step3_vl", "step3"), "remote.read_step3"),
    **dict.fromkeys(
        ("hunyuan", "hunyuan_v1_moe", "hunyuan_v1_dense", "hunyuan_vl_text"), "remote.read_hunyuan"
    ),
    **dict.fromkeys(("RefinedWeb", "RefinedWebModel"), "remote.read_refined_web"),
    **dict.fromkeys(("iquestloopcoder", "iquest_loopcoder"), "remote.read_loopcoder"),
    "hf_olmo": "remote.read_hf_olmo",
    "openelm": "special.read_openelm",
    "nemotron-nas": "special.read_nas",
    "dbrx": "special.read_dbrx",
    "mpt": "special.read_mpt",
}  # fmt: skip

# Tables of types that one function reads, where it stands: (module, table, function).
TABLES = (
    ("encdec", "BARTS", "read_bart"),
    ("encdec", "LONG_BARTS", "read_long_bart"),
    ("encoders", "ENCODERS", "read_encoder"),
    ("refused", "REASONS", "read"),
)


def known_types() -> list[str]:
    """Every model type that is read, sorted; not those that are refused with a reason."""
    tables = [name for name in TABLES if name[0] != "refused"]
    listed = {kind for module, table, _ in tables for kind in getattr(_module(module), table)}
    return sorted({*READERS, *STYLES, *SAME_AS, *listed})


def reader_of(model_type: str) -> Reader | None:
    """The reader of a model type; None for one that nobody knows."""
    if model_type in READERS:
        module, _, function = READERS[model_type].partition(".")
        return _function(module, function)
    style = STYLES.get(SAME_AS.get(model_type, model_type))
    if style is not None:
        return partial(decoder.read, style=style)
    for module, table, function in TABLES:
        if model_type in getattr(_module(module), table):
            return _function(module, function)
    return None


def _module(name: str) -> object:
    return import_module(f"kvtool.model.{name}")


def _function(module: str, name: str) -> Reader:
    reader: Reader = getattr(_module(module), name)
    return reader
