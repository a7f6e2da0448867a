"""What transformers makes of its own class defaults: parameters on the meta device, cached layers.

    python tests/oracles/class_counts.py            # writes tests/golden/class_counts.json
    python tests/oracles/class_counts.py --check    # exit code 1 when the committed file differs

One entry per model type that generates text and can be built without a checkpoint: the deciding
fields of its class-default configuration (completed by `GIVEN` where the class leaves something
open), the parameters of the language model (decoder, encoder where it reads text, output head;
towers for images and audio are left out), and how many layers `DynamicCache` gives each kind of
cache. No weight is allocated and nothing is downloaded.
"""

import argparse
import json
import logging
import re
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, DynamicCache
from transformers.models.auto import modeling_auto

FILE = Path(__file__).parents[1] / "golden" / "class_counts.json"

# In this order a type's class is looked up, and language models are taken from.
TASKS = ("SEQ_TO_SEQ_CAUSAL_LM", "CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")
SPEECH = {"whisper": "WhisperForConditionalGeneration"}

# Composites whose language model cannot be told from the rest, or is that of a type of its own.
COMPOSITES = (
    "encoder-decoder", "florence2", "phi4_multimodal", "qwen2_5_omni", "speech-encoder-decoder",
    "vision-encoder-decoder",
)  # fmt: skip

# What a class leaves to its checkpoints, without which no model can be built; values of a published
# checkpoint or small ones.
GIVEN: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4}
            for kind in ("full_attention", "sliding_attention")
        },
    },
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 8, "moe_topk": 2},
    "lfm2_moe": {"layer_types": (["conv"] * 3 + ["full_attention"]) * 8},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "qwen4_exp_text": {
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 128,
        "indexer_budget": 2048, "indexer_compress_ratio": 4,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25,
        },
    },
}  # fmt: skip

# Fields that decide neither bytes nor parameters.
NOISE = re.compile(
    r"token_id|drop|initializer|epsilon|_eps$|^eps|init_std|output_|return_dict|problem_type|label"
    r"|transformers_version|architectures|name_or_path|aux|use_cache|rope|pretraining|_act$"
    r"|activation|scaling|jitter|multiplier|softcap|summary|attn_implementation|chunk_size_feed"
    r"|time_step|^z_|swiglu|norm_topk|topk_group|n_group|layer_norm_e"
)

LABELS = {
    "DynamicLayer": "full",
    "DynamicIndexedLayer": "indexed",
    "DynamicSlidingWindowLayer": "sliding",
    "LinearAttentionLayer": "linear",
    "LinearAttentionAndFullAttentionLayer": "linear+full",
    "LinearAttentionAndSlidingWindowAttentionLayer": "linear+sliding",
    "DummyLayer": "none",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    text = render(collect())
    if not check:
        FILE.write_text(text, "utf-8")
    elif text != FILE.read_text("utf-8"):
        print(f"{FILE} differs from what transformers {transformers.__version__} says")
        sys.exit(1)


def collect() -> tuple[dict[str, Any], dict[str, str]]:
    """Entries by model type, and why the others could not be built."""
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}
    kinds = dict.fromkeys(kind for task in TASKS for kind in sorted(mapping(task)))
    for model_type in (*kinds, *SPEECH):
        if model_type in COMPOSITES:
            continue
        try:
            name, entry = entry_of(model_type)
        except Exception as error:  # whatever a class-default configuration breaks in transformers
            failed[model_type] = f"{type(error).__name__}: {error}".strip().split("\n")[0][:100]
            continue
        found.setdefault(name, entry)
    return found, {kind: why for kind, why in failed.items() if kind not in found}


def mapping(task: str) -> dict[str, Any]:
    names: dict[str, Any] = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")
    return names


def entry_of(model_type: str) -> tuple[str, dict[str, Any]]:
    """The type of the language model that `model_type` holds, and its entry."""
    config = CONFIG_MAPPING[model_type](**GIVEN.get(model_type, {}))
    text = config.get_text_config(decoder=True)
    whole = text is config or getattr(config, "is_encoder_decoder", False)
    model = build(model_type, config)
    if whole:
        parts = [model]
        text = config
    else:
        parts = [model.get_decoder(), model.get_output_embeddings()]
    counted = {id(p): p.numel() for part in parts if part is not None for p in part.parameters()}
    entry: dict[str, Any] = {"parameters": sum(counted.values()), "config": compact(text)}
    tied = getattr(config, "tie_word_embeddings", None)
    if not whole and tied is not None:
        entry["config"]["tie_word_embeddings"] = tied
    try:
        entry["cache"] = cache_layers(config.get_text_config(decoder=True))
    except (AttributeError, KeyError, TypeError, ValueError):
        entry["cache"] = None  # the class has a cache of its own
    return text.model_type, entry


def build(model_type: str, config: Any) -> Any:
    names = [SPEECH.get(model_type), *(mapping(task).get(model_type) for task in TASKS)]
    name = next(filter(None, names))
    cls = getattr(transformers, name if isinstance(name, str) else name[0])
    with torch.device("meta"):
        return cls._from_config(config)


def compact(config: Any) -> dict[str, Any]:
    """The deciding fields of a configuration, sections of other models left out."""
    raw = json.loads(json.dumps(config.to_dict(), default=str))
    return {
        key: value
        for key, value in raw.items()
        if not NOISE.search(key) and value is not None and not key.endswith(SECTIONS)
    }


SECTIONS = ("vision_config", "audio_config", "text_config", "quantization_config")


def cache_layers(config: Any) -> dict[str, int]:
    """Layers by kind of cache; sliding kinds carry their window."""
    labels: Counter[str] = Counter()
    for layer in DynamicCache(config=config).layers:
        label = LABELS.get(type(layer).__name__, type(layer).__name__)
        window = getattr(layer, "sliding_window", None)
        labels[f"{label} {window}" if "sliding" in label else label] += 1
    return dict(sorted(labels.items()))


def render(collected: tuple[dict[str, Any], dict[str, str]]) -> str:
    """One line per entry, so that a difference names its type."""
    entries, failed = collected
    lines = [f'{{"transformers": "{transformers.__version__}",', '"types": {']
    lines.append(
        ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(entries.items()))
    )
    lines.append('},\n"not_built": {')
    lines.append(",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(failed.items())))
    return "\n".join(lines) + "\n}}\n"


if __name__ == "__main__":
    main()
