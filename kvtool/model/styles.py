"""Decoder-only families as data: how each model type differs from Llama.

A row states what the configuration does not: norms per layer, biases, gating, the shape of
experts, how windows are scheduled. Source: the modeling code of transformers 5.24 for the types
it has, the published remote code for the others; parameter counts are checked against both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Style:
    """Differences from Llama. A string stands for the configuration field that decides.

    `inner` is the MLP's width as a multiple of the hidden size where the configuration leaves it
    out; `positions` the rows of learned positions beyond the configured ones (None: no table);
    `head_gate` a gate per head on the attention's output; `activation` learned parameters of the
    activation function; `rule` the schedule of `layout.layer_kinds`; `dense` the leading layers
    without experts where no field says; `post_norms` the switch of two more norms; `extra_rows`
    rows of the embedding beyond the vocabulary; `indexed` layers with a sparse side index; `tied`
    whether the head shares the embedding where no field says.
    """

    norms: int = 2
    norm_bias: bool = False
    final_norm: bool = True
    embedding_norm: bool = False
    qkv_bias: bool | str = False
    o_bias: bool | str = False
    mlp_bias: bool | str = False
    head_bias: bool | str = False
    gated: bool | str = True
    qk_norm: str = ""
    qk_norm_flag: str = ""
    qk_norm_bias: bool = False
    sinks: bool = False
    head_gate: bool | str = False
    activation: int = 0
    output_gate: bool = False
    rule: str = "full"
    inner: int = 0
    positions: int | None = None
    expert_bias: bool = False
    router_bias: bool | str = False
    shared_gate: bool = False
    shared: str = ""
    dense: int = 0
    post_norms: str = ""
    extra_rows: int | str = 0
    indexed: bool = False
    tied: bool = False


LLAMA = Style(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias")
PLAIN = Style()
QWEN2 = Style(qkv_bias=True, rule="switch")
QWEN3 = Style(qkv_bias="attention_bias", o_bias="attention_bias", qk_norm="head", rule="switch")
CLASSIC = Style(norm_bias=True, qkv_bias=True, o_bias=True, mlp_bias=True, gated=False, inner=4)
GEMMA = replace(LLAMA, mlp_bias=False, norms=4)

STYLES: dict[str, Style] = {
    # Llama's own layout, with or without optional biases
    "llama": LLAMA,
    "code_llama": LLAMA,
    "yi": LLAMA,
    "aquila": PLAIN,
    "internlm": replace(PLAIN, qkv_bias="bias", o_bias="bias"),
    "internlm2": replace(PLAIN, qkv_bias="bias", o_bias="bias"),
    "internlm3": replace(PLAIN, qkv_bias="qkv_bias", o_bias="bias", mlp_bias="bias"),
    "baichuan": PLAIN,
    "xverse": PLAIN,
    "orion": replace(PLAIN, norm_bias=True),
    "minicpm": PLAIN,
    "telechat2": replace(PLAIN, o_bias=True),
    "telechat3": LLAMA,
    "teleflm": LLAMA,
    "step1": LLAMA,
    "skywork": LLAMA,
    "jais": replace(CLASSIC, gated=True),
    "plamo3": replace(PLAIN, norms=4, qk_norm="head", rule="listed"),
    "pangu_embedded": replace(PLAIN, qkv_bias="bias", o_bias="bias"),
    "mimo": replace(PLAIN, qkv_bias=True),
    "qwen": replace(PLAIN, qkv_bias=True),
    "chatglm": replace(PLAIN, qkv_bias="add_qkv_bias"),
    "mistral": replace(PLAIN, rule="sliding"),
    "ministral": replace(PLAIN, rule="sliding"),
    "ministral3": replace(PLAIN, rule="sliding"),
    "granite": LLAMA,
    "helium": replace(LLAMA, o_bias=False),
    "smollm3": replace(LLAMA, rule="full"),
    "seed_oss": replace(LLAMA, o_bias="attention_out_bias"),
    "ernie4_5": replace(PLAIN, qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias"),
    "hunyuan_v1_dense": replace(LLAMA, mlp_bias=False, qk_norm="head"),
    "exaone": PLAIN,
    "solar": LLAMA,
    "apertus": replace(LLAMA, gated=False, qk_norm="head", activation=2),
    "arcee": replace(LLAMA, gated=False),
    "deepseek_llm": LLAMA,
    "nanochat": replace(PLAIN, norms=0, final_norm=False, gated=False),
    "phi3": replace(PLAIN, rule="sliding"),
    "phi4": replace(PLAIN, rule="sliding"),
    "gemma": replace(LLAMA, mlp_bias=False),
    "gemma2": replace(GEMMA, rule="even"),
    "gemma3_text": replace(GEMMA, qk_norm="head", rule="period:6"),
    "vaultgemma": replace(GEMMA, norms=2, rule="even"),
    "glm": replace(PLAIN, qkv_bias="attention_bias"),
    "glm4": replace(PLAIN, qkv_bias="attention_bias", norms=4),
    "exaone4": replace(PLAIN, qk_norm="head", rule="period:4"),
    "apertus1p5_text": replace(LLAMA, gated=False, qk_norm="head", activation=2),
    "bitnet": replace(LLAMA, mlp_bias=False),
    "cwm": replace(LLAMA, rule="first:4"),
    "granite_swa": replace(LLAMA, sinks=True, rule="first:4"),
    "hyperclovax": replace(LLAMA, post_norms="use_post_norm"),
    "diffllama": replace(LLAMA, mlp_bias=False),
    "doge": replace(LLAMA, norms=4, qk_norm="head"),
    "cosmos3_edge_text": replace(LLAMA, gated=False),
    "glm4v_text": replace(PLAIN, qkv_bias=True, norms=4),
    "glm_ocr_text": replace(PLAIN, norms=4),
    "muse_glimmer_text": replace(LLAMA, norms=4, output_gate=True, rule="backward:4"),
    "molmo2_text": replace(PLAIN, qk_norm="head", extra_rows="additional_vocab_size"),
    "voxtral_realtime_text": replace(PLAIN, rule="sliding"),
    "chameleon": replace(LLAMA, qk_norm="per_head", qk_norm_bias=True),
    "moshi": replace(PLAIN, rule="sliding", extra_rows=1),
    "olmo": replace(LLAMA, mlp_bias=False, norms=0, final_norm=False),
    "olmo2": replace(LLAMA, mlp_bias=False, qk_norm="full"),
    "olmo3": replace(LLAMA, mlp_bias=False, qk_norm="full", rule="period:4"),
    "cohere": replace(
        LLAMA, mlp_bias=False, norms=1, qk_norm="per_head", qk_norm_flag="use_qk_norm"
    ),
    "cohere2": replace(LLAMA, mlp_bias=False, norms=1, rule="period:4"),
    "cohere_compass_text": replace(LLAMA, mlp_bias=False, norms=1),
    "stablelm": replace(
        PLAIN, norm_bias=True, qkv_bias="use_qkv_bias", qk_norm="per_head",
        qk_norm_flag="qk_layernorm",
    ),
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    # GPT's layout: LayerNorm with biases, two-matrix MLP, often learned positions
    "gpt2": replace(CLASSIC, positions=0),
    "gpt_sw3": replace(CLASSIC, positions=0),
    "gpt_bigcode": replace(CLASSIC, positions=0),
    "gpt_neo": replace(CLASSIC, qkv_bias=False, positions=0),
    "gptj": replace(CLASSIC, norms=1, qkv_bias=False, o_bias=False, head_bias=True),
    "codegen": replace(CLASSIC, norms=1, qkv_bias=False, o_bias=False, head_bias=True),
    "gpt_neox": replace(CLASSIC, qkv_bias="attention_bias", o_bias="attention_bias"),
    "opt": replace(CLASSIC, positions=2),
    "bloom": replace(CLASSIC, embedding_norm=True),
    "mpt": replace(CLASSIC, norm_bias=False, qkv_bias=False, o_bias=False, mlp_bias=False),
    "falcon": replace(CLASSIC, qkv_bias="bias", o_bias="bias", mlp_bias="bias"),
    "phi": replace(CLASSIC, norms=1, head_bias=True),
    "phi-msft": replace(CLASSIC, norms=1, head_bias=True),
    "starcoder2": replace(
        CLASSIC, qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", rule="sliding",
    ),
    "nemotron": replace(
        CLASSIC, qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias",
    ),
    "persimmon": replace(CLASSIC, qk_norm="head", qk_norm_bias=True),
    "biogpt": replace(CLASSIC, positions=2),
    "codeshell": CLASSIC,
    "phi3small": replace(CLASSIC, gated=True, tied=True),
    "xglm": CLASSIC,
    "jais2": replace(
        CLASSIC, qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias",
    ),
    "openai-gpt": replace(CLASSIC, positions=0, final_norm=False),
    "ctrl": replace(CLASSIC, head_bias=True),
    "gpt_neox_japanese": replace(CLASSIC, qkv_bias=False, o_bias=False, mlp_bias=False),
    "cpmant": PLAIN,
    # experts
    "mixtral": replace(PLAIN, rule="sliding"),
    "phimoe": replace(
        PLAIN, norm_bias=True, qkv_bias="attention_bias", o_bias="attention_bias",
        head_bias="lm_head_bias", rule="sliding",
    ),
    "qwen2_moe": replace(QWEN2, qkv_bias="qkv_bias", shared="gated", shared_gate=True),
    "qwen3_moe": replace(QWEN3),
    "olmoe": replace(LLAMA, mlp_bias=False, qk_norm="full"),
    "flex_olmo": replace(LLAMA, mlp_bias=False, qk_norm="full"),
    "granitemoe": replace(LLAMA, mlp_bias=False),
    "granitemoeshared": replace(LLAMA, mlp_bias=False, shared="gated"),
    "dbrx": replace(PLAIN),
    "deepseek": replace(LLAMA, mlp_bias=False, shared="gated"),
    "glm4_moe": replace(
        PLAIN, qkv_bias="attention_bias", qk_norm="head", qk_norm_flag="use_qk_norm",
        shared="gated",
    ),
    "dots1": replace(LLAMA, mlp_bias=False, qk_norm="head", shared="gated", rule="switch"),
    "ernie4_5_moe": replace(
        PLAIN, qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", shared="gated",
        router_bias=True,
    ),
    "hunyuan_v1_moe": replace(LLAMA, mlp_bias=False, qk_norm="head", shared="gated"),
    "minimax_m2": replace(PLAIN, qk_norm="full"),
    "gpt_oss": replace(
        PLAIN, qkv_bias="attention_bias", o_bias="attention_bias", sinks=True, rule="even",
        expert_bias=True, router_bias=True,
    ),
    "llama4_text": replace(LLAMA, mlp_bias=False, rule="chunked", shared="llama4"),
    "afmoe": replace(
        LLAMA, mlp_bias=False, norms=4, qk_norm="head", output_gate=True, rule="period:4",
        shared="gated", router_bias=True, dense=1,
    ),
    "beam": replace(
        LLAMA, mlp_bias=False, norms=4, qk_norm="head", output_gate=True, rule="period_last:6",
        dense=3,
    ),
    "cohere2_moe": replace(LLAMA, mlp_bias=False, norms=1, rule="period:4", shared="gated"),
    "deepseek_ocr2_text": replace(LLAMA, shared="gated", dense=1),
    "flint": replace(
        QWEN3, sinks=True, rule="flint", shared="gated", dense=2,
    ),
    "granitemoe_swa": replace(LLAMA, mlp_bias=False, sinks=True, rule="first:4", shared="gated"),
    "hy_v3": replace(
        LLAMA, qk_norm="head", shared="gated", dense=1,
    ),
    "kolibri1": replace(PLAIN, norms=4, qk_norm="head", rule="period:5", shared="gated"),
    "laguna": replace(
        LLAMA, mlp_bias=False, qk_norm="head", shared="gated", head_gate="gating",
        router_bias=True, dense=1,
    ),
    "mellum": replace(QWEN3, rule="full"),
    "exaone_moe": replace(PLAIN, qk_norm="head", rule="period:4", shared="gated"),
    "bailing_moe": replace(
        PLAIN, qkv_bias="use_qkv_bias", o_bias="use_bias", mlp_bias="use_bias", qk_norm="head",
        qk_norm_flag="use_qk_norm", shared="gated", router_bias="moe_router_enable_expert_bias",
    ),
    "arctic": PLAIN,
    "solar_open": replace(
        PLAIN, qkv_bias="attention_bias", qk_norm="head", qk_norm_flag="use_qk_norm",
        shared="gated",
    ),
    "step3p7": replace(PLAIN, qk_norm="head", shared="gated", head_gate=True),
    "aria_text": replace(LLAMA, shared="gated"),
    "minimax_m3": replace(PLAIN, qk_norm="head", shared="gated", indexed=True),
    "mimo_v2_flash": replace(PLAIN, qkv_bias="attention_bias", sinks=True, shared="gated"),
}  # fmt: skip

# Sections and variants that share another type's decoder.
SAME_AS = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_5_omni_text": "qwen2",
    "qwen2_5_omni_talker": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_omni_moe_text": "qwen3_moe",
    "glm4v": "glm4v_text",
    "exaone4_5_text": "exaone4",
    "qwen3_asr_text": "qwen3",
    "glm4v_moe_text": "glm4_moe",
    "sarvam_moe": "glm4_moe",
    "iquestcoder": "llama",
    "emu3_text_model": "llama",
    "granite4_vision_text": "granite",
    "granite_docling_text": "granite",
    "hunyuan_vl_text": "hunyuan_v1_dense",
    "paddleocr_vl_text": "ernie4_5",
    "minimax_m3_text": "minimax_m3",
    "minimax_m3_vl_text": "minimax_m3",
    "minimax_m3_vl": "minimax_m3",
    "unlimited_ocr_text": "deepseek_ocr2_text",
    "minicpmv": "qwen2",
    "molmo": "qwen2",
    "deepseek_vl": "llama",
    "telechat": "telechat2",
    "bailing_moe_v2": "bailing_moe",
    "param2moe": "bailing_moe",
    "hunyuan": "hunyuan_v1_moe",
    "mimo_v2": "mimo_v2_flash",
    "Yi": "llama",
    "aquila3": "llama",
    "deci": "llama",
    "decilm": "llama",
    "nanbeige": "llama",
    "llava_llama": "llama",
    "llava_mistral": "mistral",
    "llava_qwen": "qwen2",
    "dots_ocr": "qwen2",
    "kimi_audio": "qwen2",
    "minicpmo": "qwen2",
    "keye": "qwen3",
    "Keye": "qwen3",
    "KeyeVL1_5": "qwen3",
    "isaac": "qwen3",
    "phi3_v": "phi3",
    "phi4-siglip": "phi3",
    "stablelm_epoch": "stablelm",
    "PanguEmbedded": "pangu_embedded",
    "phi4mm": "phi3",
    "phi4_multimodal": "phi3",
    "mistral3": "mistral",
    "step3p5": "step3p7",
    "internlm2_5": "internlm2",
    "smolvlm": "llama",
    "cohere2_vision": "cohere2",
}
