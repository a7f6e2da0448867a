"""What each GGUF architecture is called in Hugging Face configurations, and how its keys differ.

Sources: llama.cpp's converter (which configuration field a key comes from) and its loader (window
schedules and defaults that no key states), gguf 0.19's key names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvtool.model import gguf_hybrids as hybrids
from kvtool.model.gguf_keys import Keys, one

Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """How one architecture becomes a configuration.

    `adapt` adds to or changes the fields that all architectures have in common. `period` is the
    schedule of sliding windows where no key states it: full attention on every period-th layer.
    """

    model_type: str
    adapt: Callable[[Keys, Config], None] | None = None
    period: int = 0


def _llama(keys: Keys, config: Config) -> None:
    if keys.integer("expert_count", 0):
        config["model_type"] = "mixtral"


def _falcon(keys: Keys, config: Config) -> None:
    kv, heads = config["num_key_value_heads"], config["num_attention_heads"]
    config["num_kv_heads"] = kv
    config["multi_query"] = kv == 1
    config["new_decoder_architecture"] = kv not in (1, heads)
    config["num_ln_in_parallel_attn"] = 1 if keys.stores("attn_norm_2.weight") is False else 2
    config["bias"] = bool(keys.stores("attn_qkv.bias"))


def _multi_query(keys: Keys, config: Config) -> None:
    config["multi_query"] = config["num_key_value_heads"] == 1


def _chatglm(keys: Keys, config: Config) -> None:
    config["multi_query_attention"] = True
    config["multi_query_group_num"] = config["num_key_value_heads"]
    config["add_qkv_bias"] = bool(keys.stores("attn_qkv.bias", "attn_q.bias"))


def _stablelm(keys: Keys, config: Config) -> None:
    config["use_qkv_bias"] = bool(keys.stores("attn_q.bias", "attn_qkv.bias"))
    config["qk_layernorm"] = bool(keys.stores("attn_q_norm.weight"))
    config["use_parallel_residual"] = keys.stores("ffn_norm.weight") is False


def _qk_norm(keys: Keys, config: Config) -> None:
    config["use_qk_norm"] = bool(keys.stores("attn_q_norm.weight"))


def _bias(keys: Keys, config: Config) -> None:
    config["use_bias"] = config["bias"] = bool(keys.stores("attn_q.bias", "attn_qkv.bias"))


def _olmo2(keys: Keys, config: Config) -> None:
    if config["sliding_window"]:
        config["model_type"] = "olmo3"


def _granite_moe(keys: Keys, config: Config) -> None:
    if shared := keys.integer("expert_shared_feed_forward_length", 0):
        config["model_type"] = "granitemoeshared"
        config["shared_intermediate_size"] = shared


def _ernie_moe(keys: Keys, config: Config) -> None:
    _bias(keys, config)
    config["moe_layer_start_index"] = keys.integer("leading_dense_block_count", 0)
    config["moe_layer_interval"] = keys.integer("interleave_moe_layer_step", 1, low=1)


def _llama4(keys: Keys, config: Config) -> None:
    """The chunk is a constant of llama.cpp's loader; a window of 0 switches it off."""
    config["intermediate_size_mlp"] = config["intermediate_size"]
    if expert := keys.integer("expert_feed_forward_length", 0):
        config["intermediate_size"] = expert
    config["interleave_moe_layer_step"] = keys.integer("interleave_moe_layer_step", 1)
    chunked = keys.value("attention.sliding_window") != 0
    config["attention_chunk_size"] = 8192 if chunked else None
    config["sliding_window"] = None
    config["layer_types"] = [
        "chunked_attention" if chunked and (i + 1) % 4 else "full_attention"
        for i in range(keys.layers)
    ]


def _gpt_oss(keys: Keys, config: Config) -> None:
    config["attention_bias"] = True


def _deepseek2(keys: Keys, config: Config) -> None:
    hybrids.latent(keys, config)
    if keys.value("expert_gating_func") == 2 or keys.stores("exp_probs_b.bias"):
        config["model_type"] = "deepseek_v3"


def _indexer(keys: Keys, config: Config) -> None:
    config["index_head_dim"] = keys.integer("attention.indexer.key_length", low=1)
    config["index_n_heads"] = keys.integer("attention.indexer.head_count", low=1)
    config["index_topk"] = keys.integer("attention.indexer.top_k", low=1)


def _sparse_latent(keys: Keys, config: Config) -> None:
    """Sparse attention over MLA; a layer without an indexer of its own reuses an earlier choice."""
    hybrids.latent(keys, config)
    _indexer(keys, config)
    stored = keys.layers_with("indexer.attn_k.weight")
    if keys.value("attention.indexer.types") is not None:
        stored = [bool(kind) for kind in keys.per_layer("attention.indexer.types")]
    if stored and any(stored):
        config["indexer_types"] = ["full" if own else "shared" for own in stored]


def _deepseek4(keys: Keys, config: Config) -> None:
    """DeepSeek V4: windows, and entries that compress 4 or 128 tokens."""
    _indexer(keys, config)
    config["compress_ratios"] = keys.per_layer("attention.compress_ratios")
    config["q_lora_rank"] = keys.integer("attention.q_lora_rank", low=1)
    config["o_lora_rank"] = keys.integer("attention.output_lora_rank", low=1)
    config["o_groups"] = keys.integer("attention.output_group_count", low=1)
    config["hc_mult"] = keys.integer("hyper_connection.count", low=1)
    config["qk_rope_head_dim"] = keys.integer("rope.dimension_count", low=1)


def _sliding(keys: Keys, config: Config) -> list[bool]:
    """Which layers slide, for architectures that must say so."""
    if "layer_types" not in config:
        keys.fault("attention.sliding_window_pattern", "missing", "which layers slide")
        return [False] * keys.layers
    return [kind == "sliding_attention" for kind in config["layer_types"]]


def _gemma3n(keys: Keys, config: Config) -> None:
    """The number of sharing layers is a constant (all but 20) in files older than its key."""
    shared = keys.integer("attention.shared_kv_layers", max(0, keys.layers - 20), high=keys.layers)
    config["num_kv_shared_layers"] = shared
    _per_layer_inputs(keys, config)


def _per_layer_inputs(keys: Keys, config: Config) -> None:
    table = keys.tensors.get("per_layer_token_embd.weight")
    rows = table.shape[0] if table is not None and table.shape else config["vocab_size"]
    config["hidden_size_per_layer_input"] = keys.integer("embedding_length_per_layer_input", 0)
    config["vocab_size_per_layer_input"] = rows


def _gemma4(keys: Keys, config: Config) -> None:
    """Global layers have heads and widths of their own, and may use the keys as values."""
    config["global_head_dim"] = config["head_dim"]
    config["head_dim"] = keys.integer("attention.key_length_swa", low=1)
    config.pop("v_head_dim", None)
    kv = keys.per_layer("attention.head_count_kv")
    sliding = _sliding(keys, config)
    local = [heads for heads, inside in zip(kv, sliding, strict=True) if inside]
    whole = [heads for heads, inside in zip(kv, sliding, strict=True) if not inside]
    config["num_key_value_heads"] = one(local or kv)
    shared = keys.integer("attention.shared_kv_layers", 0, high=keys.layers)
    values = keys.layers_with("attn_v.weight") or [True] * keys.layers
    own = keys.layers - shared
    reused = any(not (v or inside) for v, inside in zip(values[:own], sliding[:own], strict=True))
    config["attention_k_eq_v"] = reused or bool(local and whole and local[0] != whole[0])
    config["num_global_key_value_heads"] = (
        one(whole) if whole and config["attention_k_eq_v"] else None
    )
    config["num_kv_shared_layers"] = shared
    _per_layer_inputs(keys, config)
    widths = keys.per_layer("feed_forward_length")
    config["intermediate_size"] = min(widths) or None
    config["use_double_wide_mlp"] = max(widths) == 2 * min(widths)
    if "num_experts" in config:
        config["enable_moe_block"] = True
        config["top_k_experts"] = config.pop("num_experts_per_tok")
        del config["mlp_layer_types"]


def _mimo2(keys: Keys, config: Config) -> None:
    """Sliding and full layers differ in their key/value heads."""
    kv = keys.per_layer("attention.head_count_kv")
    sliding = _sliding(keys, config)
    config["num_key_value_heads"] = one(
        [heads for heads, inside in zip(kv, sliding, strict=True) if not inside] or kv
    )
    config["swa_num_key_value_heads"] = one(
        [heads for heads, inside in zip(kv, sliding, strict=True) if inside] or kv
    )
    config["swa_num_attention_heads"] = config["num_attention_heads"]
    config["swa_head_dim"] = config["head_dim"]
    config["swa_v_head_dim"] = config.get("v_head_dim", config["head_dim"])


def _step35(keys: Keys, config: Config) -> None:
    config["share_expert_dim"] = config.pop("shared_expert_intermediate_size", 0)


def _deci(keys: Keys, config: Config) -> None:
    """Layers differ in groups and MLP width; some have no attention or no MLP."""
    heads = keys.per_layer("attention.head_count")
    kv = keys.per_layer("attention.head_count_kv", 0)
    mlp = keys.per_layer("feed_forward_length")
    total = max(heads)
    config["num_attention_heads"] = total
    config["num_key_value_heads"] = None
    config["intermediate_size"] = None
    config["block_configs"] = [
        {
            "attention": {
                "no_op": not q,
                "replace_with_linear": bool(q and not k),
                "n_heads_in_group": keys.divided(q, k, "attention.head_count_kv") if k else None,
            },
            "ffn": {"no_op": not width, "replace_with_linear": False, "intermediate_size": width},
        }
        for q, k, width in zip(heads, kv, mlp, strict=True)
    ]


def _openelm(keys: Keys, config: Config) -> None:
    config["num_transformer_layers"] = config["num_hidden_layers"]
    config["model_dim"] = config["hidden_size"]
    config["num_query_heads"] = keys.per_layer("attention.head_count")
    config["num_kv_heads"] = keys.per_layer("attention.head_count_kv")
    widths = keys.per_layer("feed_forward_length")
    config["ffn_multipliers"] = [width / config["hidden_size"] for width in widths]
    config["ffn_dim_divisor"] = 1
    config["normalize_qk_projections"] = keys.stores("attn_q_norm.weight") is not False


def _t5(keys: Keys, config: Config) -> None:
    gated = any(".ffn_gate." in name for name in keys.tensors)
    config["d_model"] = config.pop("hidden_size")
    config["d_ff"] = config.pop("intermediate_size")
    config["d_kv"] = config.pop("head_dim")
    config["num_heads"] = config.pop("num_attention_heads")
    config["num_layers"] = config.pop("num_hidden_layers")
    config["num_decoder_layers"] = keys.integer("decoder_block_count", keys.blocks, low=1)
    config["feed_forward_proj"] = "gated-gelu" if gated else "relu"
    config["is_encoder_decoder"] = True
    for name in ("num_key_value_heads", "sliding_window"):
        config.pop(name, None)


def _bloom(keys: Keys, config: Config) -> None:
    """The converter writes the width where a configuration states no length."""
    if config["max_position_embeddings"] == config["hidden_size"]:
        config["max_position_embeddings"] = None


def _mpt(keys: Keys, config: Config) -> None:
    config["expansion_ratio"] = keys.divided(
        keys.integer("feed_forward_length", low=1), config["hidden_size"], "embedding_length"
    )
    config["attn_config"] = {"kv_n_heads": config["num_key_value_heads"]}


def _dbrx(keys: Keys, config: Config) -> None:
    config["attn_config"] = {"kv_n_heads": config["num_key_value_heads"]}
    config["ffn_config"] = {
        "ffn_hidden_size": config["intermediate_size"],
        "moe_num_experts": config.get("num_experts", 0),
        "moe_top_k": config.get("num_experts_per_tok", 0),
    }


FAMILIES: dict[str, Family] = {
    "apertus": Family("apertus"),
    "arcee": Family("arcee"),
    "baichuan": Family("baichuan"),
    "bert": Family("bert"),
    "bloom": Family("bloom", _bloom),
    "chatglm": Family("chatglm", _chatglm),
    "cohere2": Family("cohere2", period=4),
    "command-r": Family("cohere", _qk_norm),
    "dbrx": Family("dbrx", _dbrx),
    "deci": Family("nemotron-nas", _deci),
    "deepseek": Family("deepseek"),
    "deepseek2": Family("deepseek_v2", _deepseek2),
    "deepseek32": Family("deepseek_v32", _sparse_latent),
    "deepseek4": Family("deepseek_v4", _deepseek4),
    "dots1": Family("dots1"),
    "ernie4_5": Family("ernie4_5", _bias),
    "ernie4_5-moe": Family("ernie4_5_moe", _ernie_moe),
    "exaone": Family("exaone"),
    "exaone-moe": Family("exaone_moe", period=4),
    "exaone4": Family("exaone4", period=4),
    "falcon": Family("falcon", _falcon),
    "falcon-h1": Family("falcon_h1", hybrids.falcon_h1),
    "gemma": Family("gemma"),
    "gemma2": Family("gemma2", period=2),
    "gemma3": Family("gemma3_text", period=6),
    "gemma3n": Family("gemma3n_text", _gemma3n, period=5),
    "gemma4": Family("gemma4_text", _gemma4),
    "glm-dsa": Family("glm_moe_dsa", _sparse_latent),
    "glm4": Family("glm4"),
    "glm4moe": Family("glm4_moe", _qk_norm),
    "gpt-oss": Family("gpt_oss", _gpt_oss, period=2),
    "gpt2": Family("gpt2"),
    "gptj": Family("gptj"),
    "gptneox": Family("gpt_neox"),
    "granite": Family("granite"),
    "granitehybrid": Family("granitemoehybrid", hybrids.granite_hybrid),
    "granitemoe": Family("granitemoe", _granite_moe),
    "hunyuan-dense": Family("hunyuan_v1_dense"),
    "hunyuan-moe": Family("hunyuan_v1_moe"),
    "internlm2": Family("internlm2", _bias),
    "jamba": Family("jamba", hybrids.jamba),
    "kimi-linear": Family("kimi_linear", hybrids.kimi_linear),
    "lfm2": Family("lfm2", hybrids.lfm2),
    "lfm2moe": Family("lfm2_moe", hybrids.lfm2),
    "llama": Family("llama", _llama),
    "llama4": Family("llama4_text", _llama4),
    "mamba": Family("mamba", hybrids.mamba),
    "mamba2": Family("mamba2", hybrids.mamba2),
    "mimo2": Family("mimo_v2_flash", _mimo2),
    "minicpm": Family("minicpm"),
    "minicpm3": Family("minicpm3", hybrids.latent),
    "minimax-m2": Family("minimax_m2", _qk_norm),
    "mistral3": Family("ministral3"),
    "modern-bert": Family("modernbert", period=3),
    "mpt": Family("mpt", _mpt),
    "nemotron": Family("nemotron"),
    "nemotron_h": Family("nemotron_h", hybrids.nemotron_h),
    "nemotron_h_moe": Family("nemotron_h", hybrids.nemotron_h),
    "nomic-bert": Family("nomic_bert"),
    "olmo": Family("olmo"),
    "olmo2": Family("olmo2", _olmo2, period=4),
    "olmoe": Family("olmoe"),
    "openelm": Family("openelm", _openelm),
    "orion": Family("orion"),
    "phi2": Family("phi"),
    "phi3": Family("phi3"),
    "phimoe": Family("phimoe"),
    "qwen": Family("qwen"),
    "qwen2": Family("qwen2"),
    "qwen2moe": Family("qwen2_moe"),
    "qwen2vl": Family("qwen2_vl_text"),
    "qwen3": Family("qwen3"),
    "qwen35": Family("qwen3_5_text", hybrids.delta_net),
    "qwen35moe": Family("qwen3_5_moe_text", hybrids.delta_net),
    "qwen3moe": Family("qwen3_moe"),
    "qwen3next": Family("qwen3_next", hybrids.delta_net),
    "qwen3vl": Family("qwen3_vl_text"),
    "qwen3vlmoe": Family("qwen3_vl_moe_text"),
    "rwkv6": Family("rwkv6", hybrids.rwkv),
    "rwkv7": Family("rwkv7", hybrids.rwkv),
    "seed_oss": Family("seed_oss"),
    "smollm3": Family("smollm3"),
    "stablelm": Family("stablelm", _stablelm),
    "starcoder": Family("gpt_bigcode", _multi_query),
    "starcoder2": Family("starcoder2", _bias),
    "step35": Family("step3p5", _step35),
    "t5": Family("t5", _t5),
    "xverse": Family("xverse"),
}
