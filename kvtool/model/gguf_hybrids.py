"""GGUF keys of models with recurrent, convolution or compressed layers, as Hugging Face fields.

llama.cpp names the sizes of every recurrent mixer with the `ssm.` keys of Mamba: `inner_size` is
the width of the values, `time_step_rank` the heads of Mamba 2 and of the delta net, `group_count`
the groups or key heads, `state_size` the state or key width. A layer is recurrent where its entry
of `attention.head_count_kv` is 0. Source: llama.cpp's converter and loader.
"""

from __future__ import annotations

from typing import Any

from kvtool.model.gguf_keys import Keys

Config = dict[str, Any]


def latent(keys: Keys, config: Config) -> None:
    """MLA. Converters since 2025 store it as one head, as wide as latent and rotary part together;
    older ones state the widths of a head of the uncompressed attention."""
    rank = keys.integer("attention.kv_lora_rank", low=1)
    if keys.value("attention.key_length_mla") is None:
        suffix, rope = "", keys.integer("rope.dimension_count", low=1)
    else:
        suffix, rope = "_mla", keys.integer("attention.key_length", low=rank) - rank
    key = keys.integer(f"attention.key_length{suffix}", low=rope)
    derived = config["hidden_size"] // config["num_attention_heads"]
    config["kv_lora_rank"] = rank
    config["q_lora_rank"] = keys.integer("attention.q_lora_rank", 0) or None
    config["qk_rope_head_dim"] = rope
    config["qk_nope_head_dim"] = key - rope
    config["v_head_dim"] = keys.integer(f"attention.value_length{suffix}", derived, low=1)
    config["num_key_value_heads"] = config["num_attention_heads"]
    config.pop("head_dim", None)
    config.setdefault("num_experts", 0)


def kimi_linear(keys: Keys, config: Config) -> None:
    """Layers with key/value heads are MLA, the others KDA; configurations count them from 1."""
    full = [bool(kv) for kv in keys.per_layer("attention.head_count_kv")]
    latent(keys, config)
    config["linear_attn_config"] = {
        "full_attn_layers": [i + 1 for i, layer in enumerate(full) if layer],
        "kda_layers": [i + 1 for i, layer in enumerate(full) if not layer],
        "head_dim": keys.integer("kda.head_dim", low=1),
        "num_heads": config["num_attention_heads"],
        "short_conv_kernel_size": keys.integer("ssm.conv_kernel", low=1),
    }
    config["num_shared_experts"] = config.pop("n_shared_experts", 0)


def delta_net(keys: Keys, config: Config) -> None:
    """The gated delta net of Qwen3-Next and Qwen3.5 beside full attention."""
    values = keys.integer("ssm.time_step_rank", low=1)
    config["linear_num_value_heads"] = values
    config["linear_num_key_heads"] = keys.integer("ssm.group_count", low=1)
    config["linear_key_head_dim"] = keys.integer("ssm.state_size", low=1)
    config["linear_value_head_dim"] = keys.divided(
        keys.integer("ssm.inner_size", low=1), values, "ssm.time_step_rank"
    )
    config["linear_conv_kernel_dim"] = keys.integer("ssm.conv_kernel", low=1)
    if keys.value("attention.recurrent_layers") is not None:
        linear = [bool(flag) for flag in keys.per_layer("attention.recurrent_layers")]
    else:
        every = keys.integer("full_attention_interval", 4, low=1)
        linear = [bool((i + 1) % every) for i in range(keys.layers)]
    config["layer_types"] = ["linear_attention" if state else "full_attention" for state in linear]
    if config["model_type"] != "qwen3_next":
        config["mamba_ssm_dtype"] = "float32"


def _without_context(config: Config) -> None:
    """The converter writes 2**20 where a model has no positions: not a limit of the model."""
    if config["max_position_embeddings"] == 1 << 20:
        config["max_position_embeddings"] = None


def mamba(keys: Keys, config: Config) -> None:
    if keys.flag("ssm.dt_b_c_rms", default=False):
        config["model_type"] = "falcon_mamba"
    inner = keys.integer("ssm.inner_size", low=1)
    config["intermediate_size"] = inner
    config["expand"] = keys.divided(inner, config["hidden_size"], "embedding_length")
    config["state_size"] = keys.integer("ssm.state_size", low=1)
    config["conv_kernel"] = keys.integer("ssm.conv_kernel", low=1)
    config["time_step_rank"] = keys.integer("ssm.time_step_rank", low=1)
    _without_context(config)


def mamba2(keys: Keys, config: Config) -> None:
    inner, heads, width = _heads(keys)
    config["expand"] = keys.divided(inner, config["hidden_size"], "embedding_length")
    config["intermediate_size"] = inner
    config["num_heads"] = heads
    config["head_dim"] = width
    config["n_groups"] = keys.integer("ssm.group_count", 1, low=1)
    config["state_size"] = keys.integer("ssm.state_size", low=1)
    config["conv_kernel"] = keys.integer("ssm.conv_kernel", low=1)
    _without_context(config)


def _heads(keys: Keys) -> tuple[int, int, int]:
    """Inner width, heads and head width of a Mamba 2 mixer; `time_step_rank` counts its heads."""
    inner = keys.integer("ssm.inner_size", low=1)
    heads = keys.integer("ssm.time_step_rank", low=1)
    return inner, heads, keys.divided(inner, heads, "ssm.time_step_rank")


def _prefixed_mamba2(keys: Keys, config: Config) -> None:
    inner, heads, width = _heads(keys)
    config["mamba_d_ssm"] = inner
    config["mamba_n_heads"] = heads
    config["mamba_d_head"] = width
    config["mamba_n_groups"] = keys.integer("ssm.group_count", 1, low=1)
    config["mamba_d_state"] = keys.integer("ssm.state_size", low=1)
    config["mamba_d_conv"] = keys.integer("ssm.conv_kernel", low=1)


def falcon_h1(keys: Keys, config: Config) -> None:
    _prefixed_mamba2(keys, config)
    config["mamba_rms_norm"] = bool(keys.stores("ssm_norm.weight"))


def granite_hybrid(keys: Keys, config: Config) -> None:
    _prefixed_mamba2(keys, config)
    config["mamba_expand"] = keys.divided(
        config.pop("mamba_d_ssm"), config["hidden_size"], "embedding_length"
    )
    kv = keys.per_layer("attention.head_count_kv")
    config["layer_types"] = ["attention" if heads else "mamba" for heads in kv]
    config["num_local_experts"] = config.pop("num_experts", 0)
    shared = keys.integer("expert_shared_feed_forward_length", 0)
    config["shared_intermediate_size"] = shared or config["intermediate_size"]
    _without_context(config)


def jamba(keys: Keys, config: Config) -> None:
    inner = keys.integer("ssm.inner_size", low=1)
    config["mamba_expand"] = keys.divided(inner, config["hidden_size"], "embedding_length")
    config["mamba_d_state"] = keys.integer("ssm.state_size", low=1)
    config["mamba_d_conv"] = keys.integer("ssm.conv_kernel", low=1)
    config["mamba_dt_rank"] = keys.integer("ssm.time_step_rank", low=1)
    kv = keys.per_layer("attention.head_count_kv")
    config["layer_types"] = ["attention" if heads else "mamba" for heads in kv]
    config.setdefault("num_experts", 0)


def nemotron_h(keys: Keys, config: Config) -> None:
    """One mixer per layer: attention, MLP (`-`), experts (`E`) or Mamba 2, told by the arrays."""
    kv = keys.per_layer("attention.head_count_kv")
    mlp = keys.per_layer("feed_forward_length")
    plain = "E" if keys.integer("expert_count", 0) else "-"
    config["hybrid_override_pattern"] = "".join(
        "*" if heads else plain if width else "M" for heads, width in zip(kv, mlp, strict=True)
    )
    inner, heads, width = _heads(keys)
    config["expand"] = max(1, inner // config["hidden_size"])
    config["mamba_num_heads"] = heads
    config["mamba_head_dim"] = width
    config["n_groups"] = keys.integer("ssm.group_count", 1, low=1)
    config["ssm_state_size"] = keys.integer("ssm.state_size", low=1)
    config["conv_kernel"] = keys.integer("ssm.conv_kernel", low=1)
    config["mamba_ssm_cache_dtype"] = "float32"
    config.pop("mlp_layer_types", None)
    if "num_experts" in config:
        config["n_routed_experts"] = config.pop("num_experts")
        config["moe_shared_expert_intermediate_size"] = config.pop(
            "shared_expert_intermediate_size", 0
        )
    if latent := keys.integer("moe_latent_size", 0):
        config["moe_latent_size"] = latent
    _without_context(config)


def lfm2(keys: Keys, config: Config) -> None:
    """Layers without key/value heads are short convolutions; `feed_forward_length` is final."""
    kv = keys.per_layer("attention.head_count_kv")
    config["layer_types"] = ["full_attention" if heads else "conv" for heads in kv]
    config["conv_L_cache"] = keys.integer("shortconv.l_cache", low=1)
    config["block_auto_adjust_ff_dim"] = False
    if "num_experts" in config:
        config["num_dense_layers"] = keys.integer("leading_dense_block_count", 0)


def rwkv(keys: Keys, config: Config) -> None:
    config["head_size"] = config["head_dim"] = keys.integer("wkv.head_size", low=1)
    config["attention_hidden_size"] = config["hidden_size"]
    _without_context(config)
