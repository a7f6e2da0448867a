"""What the cache classes of transformers hold after real steps of tiny random models.

    python tests/oracles/transformers_cache_oracle.py          # adds the rows of this version
    python tests/oracles/transformers_cache_oracle.py --check  # exit code 1 on drift

For each configuration a model is made with random weights, reads a prompt of 40 tokens and writes
three; the cache then holds 42 tokens (the last one is not read yet). `bytes` sums the tensors that
the cache object holds, as shaped; a view counts as its own shape. `static` and `fp8` ask the cache
class by name. Rows of other versions stay in the file: each is made by an interpreter that has that
version, with its tokenizers and huggingface-hub and the CPU build of torch.

Models that a version does not know, or cannot run, have no row; the latter are printed. Not run:
caches quantised by quanto or hqq, which are packages of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden" / "transformers_cache.json"
PROMPT, WRITTEN = 40, 3

PLAIN = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 64, "vocab_size": 128, "max_position_embeddings": 256,
}  # fmt: skip
NO_HEAD_DIM = {key: value for key, value in PLAIN.items() if key != "head_dim"}
LATENT = {
    **NO_HEAD_DIM, "num_key_value_heads": 4, "moe_intermediate_size": 16, "kv_lora_rank": 32,
    "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
DELTA = {
    **PLAIN, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}  # fmt: skip
SHARING = {
    **PLAIN, "num_hidden_layers": 6, "sliding_window": 16, "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 128,
}  # fmt: skip
MAMBA2 = {
    "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_d_head": 16,
    "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 8,
}  # fmt: skip
MIXED = ["sliding_attention"] * 3 + ["full_attention"]

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **PLAIN},
    "mistral": {"model_type": "mistral", **PLAIN, "sliding_window": 16},
    "gemma2": {"model_type": "gemma2", **PLAIN, "sliding_window": 16},
    "gemma3_text": {"model_type": "gemma3_text", **PLAIN, "sliding_window": 16,
                    "layer_types": MIXED},
    "gemma3n_text": {"model_type": "gemma3n_text", **SHARING, "laurel_rank": 8,
                     "activation_sparsity_pattern": [0.0] * 6},
    "gemma4_text": {"model_type": "gemma4_text", **SHARING, "global_head_dim": 32},
    "gpt_oss": {"model_type": "gpt_oss", **PLAIN, "sliding_window": 16, "num_local_experts": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "num_experts_per_tok": 2},
    "cohere2": {"model_type": "cohere2", **NO_HEAD_DIM, "sliding_window": 16,
                "layer_types": MIXED},
    "llama4_text": {"model_type": "llama4_text", **PLAIN, "intermediate_size_mlp": 64,
                    "attention_chunk_size": 16, "num_local_experts": 2, "num_experts_per_tok": 1},
    "qwen2": {"model_type": "qwen2", **NO_HEAD_DIM, "use_sliding_window": True,
              "sliding_window": 16, "max_window_layers": 2},
    "phi3": {"model_type": "phi3", **NO_HEAD_DIM, "pad_token_id": 0, "sliding_window": 16},
    "deepseek_v2": {"model_type": "deepseek_v2", **LATENT},
    "deepseek_v3": {"model_type": "deepseek_v3", **LATENT},
    "deepseek_v32": {"model_type": "deepseek_v32", **LATENT, "index_head_dim": 128,
                     "index_n_heads": 2, "index_topk": 8},
    "qwen3_next": {"model_type": "qwen3_next", **DELTA, "num_experts": 4,
                   "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                   "shared_expert_intermediate_size": 16},
    "qwen3_5_text": {"model_type": "qwen3_5_text", **DELTA},
    "mamba": {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8,
              "vocab_size": 128, "intermediate_size": 128, "conv_kernel": 4, "expand": 2,
              "time_step_rank": 4},
    "mamba2": {"model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8,
               "vocab_size": 128, "conv_kernel": 4, "expand": 2, "num_heads": 8, "head_dim": 16,
               "n_groups": 2, "chunk_size": 8},
    "jamba": {"model_type": "jamba", **NO_HEAD_DIM, "attn_layer_period": 4,
              "attn_layer_offset": 2, "expert_layer_period": 2, "expert_layer_offset": 1,
              "num_experts": 2, "num_experts_per_tok": 1, "mamba_d_state": 8, "mamba_d_conv": 4,
              "mamba_expand": 2, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    "lfm2": {"model_type": "lfm2", **NO_HEAD_DIM, "conv_L_cache": 3, "block_ff_dim": 64,
             "layer_types": ["conv", "conv", "full_attention", "conv"],
             "block_multiple_of": 16},
    "granitemoehybrid": {"model_type": "granitemoehybrid", **NO_HEAD_DIM, **MAMBA2,
                         "layer_types": ["mamba", "mamba", "attention", "mamba"],
                         "shared_intermediate_size": 64, "num_local_experts": 2,
                         "num_experts_per_tok": 1},
    "falcon_h1": {"model_type": "falcon_h1", **PLAIN, **MAMBA2, "mamba_d_ssm": 128},
    "nemotron_h": {"model_type": "nemotron_h", **PLAIN, "hybrid_override_pattern": "M*M-",
                   "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2,
                   "ssm_state_size": 8, "conv_kernel": 4, "chunk_size": 8},
    "t5": {"model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 64, "num_layers": 2,
           "num_decoder_layers": 3, "num_heads": 4, "vocab_size": 128,
           "decoder_start_token_id": 0},
}  # fmt: skip
STATIC = ("llama", "gemma3_text", "gpt_oss", "cohere2")
MAX_CACHE_LEN = 64


def rows() -> Iterator[dict[str, Any]]:
    """The rows of the installed version."""
    import torch
    import transformers

    for name, config in CONFIGS.items():
        if config["model_type"] not in transformers.CONFIG_MAPPING:
            continue
        for cache in ("dynamic", "static", "fp8"):
            wanted = cache == "dynamic" or (cache == "static" and name in STATIC)
            if not (wanted or (cache == "fp8" and name == "llama")):
                continue
            torch.manual_seed(0)
            try:
                held = run(config, cache)
            except (KeyError, IndexError, ValueError) as error:
                print(f"{name}, {cache}: {error!r}", file=sys.stderr)
                continue
            if held:
                yield {
                    "version": transformers.__version__,
                    "config": name,
                    "cache": cache,
                    "tokens": held[0],
                    "encoder_tokens": PROMPT if config["model_type"] == "t5" else None,
                    "bytes": held[1],
                }


def run(config: dict[str, Any], cache: str) -> tuple[int, int] | None:
    """Tokens and bytes of the cache after three written tokens; None without such a cache."""
    import torch
    import transformers

    made = transformers.CONFIG_MAPPING[config["model_type"]](
        **{key: value for key, value in config.items() if key != "model_type"}
    )
    is_pair = config["model_type"] == "t5"
    kind = transformers.AutoModelForSeq2SeqLM if is_pair else transformers.AutoModelForCausalLM
    model = kind.from_config(made).to(torch.bfloat16).eval()
    held: Any = None
    if cache == "static":
        if not hasattr(transformers, "StaticCache"):
            return None
        try:
            held = transformers.StaticCache(config=made, max_cache_len=MAX_CACHE_LEN)
        except TypeError:
            return None
    elif cache == "fp8":
        try:
            held = transformers.QuantizedCache("fp8", made)
        except (AttributeError, TypeError, ValueError):
            return None
    prompt = torch.randint(1, 120, (1, PROMPT))
    if held is not None:
        with torch.no_grad():
            for part in (prompt, *prompt[:, : WRITTEN - 1].split(1, dim=1)):
                model(part, past_key_values=held, use_cache=True)
        return PROMPT + WRITTEN - 1, sum(tensor_bytes(held, set()))
    out = model.generate(
        prompt, max_new_tokens=WRITTEN, do_sample=False, return_dict_in_generate=True,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    held = getattr(out, "past_key_values", None)
    if held is None:
        return None
    tokens = WRITTEN if is_pair else PROMPT + WRITTEN - 1
    return tokens, sum(tensor_bytes(held, set()))


def tensor_bytes(thing: Any, seen: set[int]) -> Iterator[int]:
    """Bytes of the tensors inside a cache object, each object once; scalars and configs are none.

    `shared_layers` of older versions are references for the step's own use, not kept state.
    """
    import torch

    if id(thing) in seen:
        return
    seen.add(id(thing))
    if torch.is_tensor(thing):
        if thing.numel() > 1:
            yield thing.numel() * thing.element_size()
    elif isinstance(thing, list | tuple):
        for part in thing:
            yield from tensor_bytes(part, seen)
    elif isinstance(thing, dict):
        for part in thing.values():
            yield from tensor_bytes(part, seen)
    elif hasattr(thing, "__dict__") and "onfig" not in type(thing).__name__:
        for name, part in vars(thing).items():
            if name not in ("config", "shared_layers"):
                yield from tensor_bytes(part, seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    warnings.filterwarnings("ignore")
    import transformers

    made = list(rows())
    known = json.loads(GOLDEN.read_text("utf-8")) if GOLDEN.exists() else {"rows": []}
    mine = [row for row in known["rows"] if row["version"] == transformers.__version__]
    if arguments.check:
        if made != mine:
            different = [row for row in made if row not in mine]
            sys.exit(f"transformers {transformers.__version__} differs: {different}")
        return
    others = [row for row in known["rows"] if row["version"] != transformers.__version__]
    everything = sorted(
        [*others, *made], key=lambda row: tuple(map(int, row["version"].split(".")))
    )
    lines = ",\n".join(f"  {json.dumps(row)}" for row in everything)
    configs = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in CONFIGS.items())
    GOLDEN.write_text(
        f'{{\n "configs": {{\n{configs}\n }},\n "rows": [\n{lines}\n ]\n}}\n', "utf-8"
    )


if __name__ == "__main__":
    main()
