"""What transformers itself says: defaults of its config classes, parameters of its models.

Two files of this project are made here and never edited by hand:

- `kvtool/model/class_defaults.json` (`defaults`): what a config class supplies where a config.json
  is silent;
- `tests/golden/parameter_counts.json` (`counts --cards`): the parameters of the models of
  `model_configs/`, counted on the meta device, so that no weight is allocated.

With `--check` the committed file is compared with a fresh one; a difference is printed and ends in
exit code 1. `README.md` beside this file says what each field means. Nothing is downloaded and no
remote code runs.
"""

import argparse
import ast
import difflib
import inspect
import json
import logging
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Iterable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DEFAULTS_FILE = ROOT / "kvtool" / "model" / "class_defaults.json"
COUNTS_FILE = ROOT / "tests" / "golden" / "parameter_counts.json"
CARDS_FOLDER = ROOT / "model_configs"

# Tasks of transformers whose model types read or write text.
TASKS = (
    "CAUSAL_LM",
    "MASKED_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "TEXT_ENCODING",
    "RETRIEVAL",
)
TYPES_WITHOUT_TASK = ("embedding_gemma2", "glm_image")

# Keys of a composite config that hold the config of a part with text in it.
TEXT_KEYS = (
    "text_config",
    "thinker_config",
    "vlm_config",
    "decoder",
    "decoder_config",
    "encoder",
    "encoder_config",
    "text_encoder",
    "global_config",
    "patcher_config",
)
# Sections that are no model of their own (DBRX, MPT): listed inside the entry of their model.
SECTION_KEYS = ("attn_config", "ffn_config")

# Fields annotated as float decide nothing (rates, scales, epsilons), these excepted.
DECIDING_FLOATS = (
    "block_ffn_dim_multiplier",
    "ffn_proj_factor",
    "qk_dim_factor",
    "v_dim_factor",
)
# Strings that decide something; other string fields name functions and modes.
DECIDING_STRINGS = re.compile(r"type|feed_forward_proj|rank$|d_head$|gating|pattern|cache_mode")
# Of the rest, those whose name matches decide neither bytes of state nor parameters.
COSMETIC = re.compile(
    "|".join(
        (
            r"dropout|label|loss|jitter|mask_|classifier_(?!bias)|initiali|init_|summary|^seed$",
            r"^rope|rope_(theta|scal|inter)|rotary|_token(_|s?$)|_id$|_token_ids$|_token_index$",
            r"indicator_|^[a-z]{2,3}_index$|^(image|video|audio|vision)_(?!vocab)|speech_|speaker",
            r"visual|projector|vision|patch|spatial|merge|downsample|pixel|spectrogram|detectron",
            r"tdnn|xvector|codevector|vocoder|resblock|upsample|t2u_|unit_hifi|chroma|delay_",
            r"_act$|act_fn$|activation|^afn$|(_scale|scaling|multiplier|softcap|_soft_cap)$",
            r"use_cache|pretraining_tp|num_logits|upcast|fp32|float32|return_|output_(router|att)",
            r"kernels$|(step|wise|sequence)_kernel$|(alpha|beta)_factor$|norm_topk|topk_method",
            r"use_(mambapy|associative|fast|expectation|gumbel|mem_eff|weighted)|force_|freeze",
            r"scoring|router_(probs|weight)|expert_(capacity|selection|combination)|prioritized",
            r"second_expert|_overlap$|aggregation|average_|cell|select_one|reset_pos|quant_mode",
            r"pool(er|ing|_)|top_n$|n_top$|early_stopping|no_repeat|max_(length|inference)|mems_",
            r"^num_(beams|frames|negatives|inference_steps)$|legacy|same_length|clamp_len",
            r"slow_but|rescale|reuse_len|scale_(emb|att|depth|sqrt|by)|tuning$|n_floor|floor_scale",
            r"swiglu_limit|mup_enabled|safe_gate|neg_eigval|deterministic|onnx|tpu_|per_image",
            r"position_id_per|seconds_per|apply_spec|feat_extract|median_|sampling_rate|bi_data",
            r"query_pre_attn|languages|^langs$|default_language|(?<!cache)_mode$|^mode$|hash_seed",
            r"parallel_size|lsh_backward|samples_|prefix_lm|sparse_pred|adaptor_|sinkhorn|qformer",
            r"language_model|train_size|reorder|shape_for|is_vqa|is_folding|_ctc|ctc_|residual_in",
            r"correct_scale|active_idx|hidden_states_first|select_tail|local_blocks|topk_blocks",
        )
    )
)

# Published model types that are another type of transformers under a name of their own.
SAME_TYPE = {"kimi_k2": "deepseek_v3", "phi4": "phi3"}
DECODERS = (
    "AutoModelForCausalLM",
    "AutoModelForImageTextToText",
    "AutoModelForMultimodalLM",
    "AutoModel",
)
COMPOSITES = ("AutoModelForImageTextToText", "AutoModelForMultimodalLM", *DECODERS)
ENCODER_DECODERS = ("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq", *COMPOSITES)


def transformers_offline() -> Any:
    """The transformers package, silent and kept from the network."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.filterwarnings("ignore", module="transformers")
    import transformers

    transformers.logging.set_verbosity(logging.CRITICAL)
    return transformers


def is_auto(spec: Any) -> bool:
    """Whether a nested config is read by its own `model_type` and not by a fixed class."""
    return bool(spec.config_class.__name__ == "AutoConfig")


def text_parts(config_class: Any) -> list[tuple[str, Any]]:
    """Key and specification of the nested configs with text in them."""
    parts = config_class.sub_configs_defaults
    return [(key, parts[key]) for key in TEXT_KEYS if key in parts]


def text_classes() -> dict[str, Any]:
    """Config classes by model type: those with a task of `TASKS`, and their text parts."""
    transformers = transformers_offline()
    from transformers.models.auto import modeling_auto

    mapping = transformers.CONFIG_MAPPING
    names = {
        name for task in TASKS for name in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")
    }
    waiting = [mapping[name] for name in (*names, *TYPES_WITHOUT_TASK)]
    found: dict[str, Any] = {}
    while waiting:
        config_class = waiting.pop()
        if config_class.model_type in found:
            continue
        found[config_class.model_type] = config_class
        for _, spec in text_parts(config_class):
            waiting.append(mapping[spec.model_type] if is_auto(spec) else spec.config_class)
    return found


def decides(name: str) -> bool:
    """Whether a field can change bytes of state or the number of parameters."""
    return name == "_remove_final_layer_norm" or not (name[0] == "_" or COSMETIC.search(name))


def static_defaults(config_class: Any, ignored: Iterable[str]) -> dict[str, Any]:
    """Deciding fields with the default of the class body; null where that says None."""
    found: dict[str, Any] = {}
    for field in fields(config_class):
        default = None if field.default is MISSING else field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        is_float = re.search(r"\bfloat\b", str(field.type)) and field.name not in DECIDING_FLOATS
        is_word = isinstance(default, str) and not DECIDING_STRINGS.search(field.name)
        is_nested = field.name.endswith("_config")
        if decides(field.name) and not (is_float or is_word or is_nested or field.name in ignored):
            found[field.name] = default
    return found


def legacy_keys(config_class: Any) -> dict[str, Any]:
    """Keys that are no fields but that the class takes from the config, with its default for them.

    Found in the source of the class, as `kwargs.pop(key, default)`, `.get` and `.setdefault`. Null
    is also said where the default is no literal.
    """
    found: dict[str, Any] = {}
    for owner in reversed(config_class.__mro__):
        if ".models." not in owner.__module__:
            continue
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(owner)))):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name("kwargs"), attr="pop" | "get" | "setdefault"),
                    args=[ast.Constant(str(key)), *rest],
                ) if decides(key) and not key.endswith(("_dt_min", "_dt_max", "_dt_limit")):
                    default = rest[0] if rest else None
                    found[key] = default.value if isinstance(default, ast.Constant) else None
    return found


def build(config_class: Any, **values: Any) -> Any:
    """An instance, or None when the class refuses these values."""
    try:
        return config_class(**values)
    except Exception:  # each class has checks of its own
        return None


def read(config: Any, name: str) -> Any:
    """An attribute of a config; None where it is missing or has a value per layer."""
    try:
        return getattr(config, name, None)
    except Exception:  # a value per layer raises when it is asked for as one
        return None


def derived_names(config_class: Any, defaults: dict[str, Any], ignored: set[str]) -> list[str]:
    """Deciding names the class computes: not the static default, or not a field at all."""
    config = build(config_class)
    if config is None:
        return []
    per_layer = config.per_layer_attributes or set() if config.is_heterogeneous else set()
    properties = {n for n, v in inspect.getmembers(config_class) if isinstance(v, property)}
    others = (set(vars(config)) | properties) - ignored - {f.name for f in fields(config_class)}
    values = {
        name: plain(read(config, name))
        for name in (set(defaults) | others) - per_layer
        if decides(name) and not name.endswith("_config")
    }
    return sorted(
        name
        for name, value in values.items()
        if (value is None or isinstance(value, bool | int | str | list))
        and value != plain(defaults.get(name))
    )


def plain(value: Any) -> Any:
    """Tuples as lists, as JSON has it."""
    return list(value) if isinstance(value, tuple) else value


def head_dim_rule(config_class: Any, defaults: dict[str, Any]) -> str | None:
    """How `head_dim` comes about; None for a class without attention heads.

    `static`: the default of the class. `quotient`: hidden_size // num_attention_heads unless given.
    `optional`: the class has no such field, the model reads the key when it is there and else takes
    the quotient. `ignored`: the quotient always. `qk_rope_head_dim`: a copy of that field (MLA).
    """
    config = build(config_class)
    width, heads = read(config, "hidden_size"), read(config, "num_attention_heads")
    if not isinstance(width, int) or not isinstance(heads, int):
        return None
    given = read(config, "head_dim") or defaults.get("head_dim")
    if given is None:
        return "optional" if reads_head_dim(config_class) else "ignored"
    if "qk_rope_head_dim" in defaults and given == defaults["qk_rope_head_dim"]:
        return "qk_rope_head_dim"
    doubled = build(config_class, hidden_size=2 * width)
    return "quotient" if read(doubled, "head_dim") == 2 * given else "static"


def reads_head_dim(config_class: Any) -> bool:
    """Whether the model code asks the config for a `head_dim` that may be missing."""
    folder = Path(inspect.getfile(config_class)).parent
    sources = [path.read_text(encoding="utf-8") for path in folder.glob("modeling_*.py")]
    return any(re.search(r"getattr\(\s*(self\.)?config, \"head_dim\"", text) for text in sources)


def is_overruled(config_class: Any, name: str, value: Any) -> bool:
    """Whether the class holds something else although the config gives `value`."""
    config = build(config_class, **{name: value})
    return read(config, name) not in (None, value)


def part_entry(config_class: Any, key: str, spec: Any) -> dict[str, Any]:
    """How a composite class reads one nested config; what is empty is left out."""
    values = {
        name: value
        for name, value in spec.init_kwargs.items()
        if decides(name) and not isinstance(value, float) and name != "model_type"
    }
    short = read(build(config_class, **{key: {"model_type": spec.model_type}}), key)
    kept = bool(values) and all(plain(read(short, n)) == plain(v) for n, v in values.items())
    flat = read(read(build(config_class, vocab_size=99_999), key), "vocab_size") == 99_999
    entry = {
        "model_type": spec.model_type,
        "fixed": not is_auto(spec),
        "optional": spec.optional,
        "flat": flat,
        "defaults" if kept else "when_absent": values,
    }
    return {name: value for name, value in entry.items() if value}


def class_entry(config_class: Any, ignored: set[str]) -> dict[str, Any]:
    """One line of the table; what is empty is left out."""
    config = build(config_class)
    defaults = static_defaults(config_class, ignored)
    for key in SECTION_KEYS:
        if (section := read(config, key)) is not None:
            defaults[key] = static_defaults(type(section), ignored)
    if read(config, "is_encoder_decoder"):
        defaults["is_encoder_decoder"] = True
    rule = head_dim_rule(config_class, defaults)
    heterogeneous = config is not None and config.is_heterogeneous
    entry = {
        "defaults": defaults,
        "derived": derived_names(config_class, defaults, ignored),
        "per_layer": sorted(config.per_layer_attributes or ()) if heterogeneous else [],
        "legacy": legacy_keys(config_class),
        "aliases": {k: v for k, v in config_class.attribute_map.items() if decides(k)},
        "head_dim": rule,
        "head_dim_overruled": rule not in (None, "optional", "ignored")
        and is_overruled(config_class, "head_dim", 24),
        "forced": {"tie_word_embeddings": True}
        if is_overruled(config_class, "tie_word_embeddings", False)
        else {},
        "parts": {key: part_entry(config_class, key, s) for key, s in text_parts(config_class)},
    }
    return {name: value for name, value in entry.items() if value}


def defaults_text() -> str:
    """The content of `class_defaults.json`."""
    transformers = transformers_offline()
    base = transformers.PreTrainedConfig
    ignored = {name for name, _ in inspect.getmembers(base)} | set(vars(base()))
    types = text_classes()
    entries = {name: class_entry(types[name], ignored) for name in sorted(types)}
    return json_lines(transformers.__version__, types=entries)


def json_lines(version: str, **sections: dict[str, Any]) -> str:
    """JSON with one line per entry, so that a difference names the entry."""
    header = {"transformers": version, "made_by": "tests/oracles/transformers_oracle.py"}
    blocks = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in header.items()]
    for title, entries in sections.items():
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entries[name])}" for name in entries)
        blocks.append(f"{json.dumps(title)}: {{\n{lines}\n}}")
    return "{" + ",\n".join(blocks) + "}\n"


def without_noise(raw: Any) -> Any:
    """A raw config without notes on its source and without quantisation, at every depth."""
    if not isinstance(raw, dict):
        return raw
    return {
        key: without_noise(value)
        for key, value in raw.items()
        if key != "quantization_config" and not key.startswith("_source")
    }


def named_class(raw: dict[str, Any]) -> Any:
    """The model class that `architectures` names, if transformers has it."""
    transformers = transformers_offline()
    names = raw.get("architectures") or ()
    return next((c for n in names if (c := getattr(transformers, n, None)) is not None), None)


def load_config(raw: dict[str, Any]) -> Any:
    """The config object of a raw config. Raises LookupError for a type that transformers lacks."""
    transformers = transformers_offline()
    name = raw.get("model_type")
    name = SAME_TYPE.get(name, name) if isinstance(name, str) else name
    named = named_class(raw)
    nested = [key for key in TEXT_KEYS if isinstance(raw.get(key), dict)]
    if name in transformers.CONFIG_MAPPING:
        config_class = transformers.CONFIG_MAPPING[name]
        misnamed = any(key not in config_class.sub_configs_defaults for key in nested)
        if not (misnamed and named):
            return config_class.from_dict(raw)
    elif name is not None or named is None:
        raise LookupError(f"model_type {name!r} is not in transformers")
    return named.config_class.from_dict(raw)


def model_class(config: Any, raw: dict[str, Any]) -> Any:
    """The class that `architectures` names, else the first that fits the kind of model."""
    transformers = transformers_offline()
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

    named = named_class(raw)
    if named is not None and type(config) is named.config_class:
        return named
    order: tuple[str, ...] = COMPOSITES if text_parts(type(config)) else DECODERS
    if config.is_encoder_decoder:
        order = ENCODER_DECODERS
    elif config.model_type in MASKED and not read(config, "is_decoder"):
        order = ("AutoModel",)
    for name in order:
        found = getattr(transformers, name)._model_mapping.get(type(config), None)
        if found is not None:
            return found[0] if isinstance(found, tuple) else found
    raise LookupError(f"no model class for {type(config).__name__}")


def count_config(raw: dict[str, Any]) -> dict[str, Any]:
    """Parameters of the model of a raw config.

    Where a tower needs a package that is not installed, those of the text model, without a total.
    """
    import torch

    config = load_config(raw)
    with torch.device("meta"):
        try:
            return count_parameters(config, model_class(config, raw)(config))
        except ImportError:
            text = config.get_text_config(decoder=True)
            return {**count_parameters(text, model_class(text, {})(text)), "total": None}


def nested_configs(config: Any) -> list[Any]:
    """All configs inside a config, at every depth."""
    direct = [c for key in config.sub_configs if (c := getattr(config, key, None)) is not None]
    return direct + [inner for part in direct for inner in nested_configs(part)]


def text_roots(config: Any, model: Any) -> list[str]:
    """Names of the outermost modules built from the text config; the model itself if it is all."""
    from transformers import PreTrainedModel

    text = config.get_text_config(decoder=True)
    if not any(text is part for part in nested_configs(config)):
        return [""]
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, PreTrainedModel) and module.config is text
    ]
    return [n for n in names if not any(n.startswith(f"{o}.") for o in names)]


def outermost_lists(model: Any, inside: tuple[str, ...]) -> dict[str, Any]:
    """Module lists of the text part that stand in no other module list, by name."""
    import torch

    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and f"{name}.".startswith(inside)
    }
    return {n: m for n, m in lists.items() if not any(n.startswith(f"{o}.") for o in lists)}


def runs(counts: Iterable[int]) -> list[list[int]]:
    """Equal neighbours counted together: [1, 1, 2] is [[1, 2], [2, 1]]."""
    found: list[list[int]] = []
    for count in counts:
        if found and found[-1][0] == count:
            found[-1][1] += 1
        else:
            found.append([count, 1])
    return found


def is_expert(name: str, modules: dict[str, Any]) -> bool:
    """Whether a parameter belongs to routed experts, by the name or the class of its module."""
    path = name.split(".")
    kinds = [type(modules[".".join(path[:i])]).__name__ for i in range(1, len(path))]
    return "experts" in path or any("Experts" in k and "Shared" not in k for k in kinds)


def head_tensors(model: Any, roots: list[str]) -> set[int]:
    """Identities of the tensors of the output heads: of the text modules and of what holds them."""
    holders = {""}
    for root in roots:
        path = root.split(".")
        holders |= {".".join(path[: i + 1]) for i in range(len(path))}
    modules = [model.get_submodule(name) for name in holders]
    heads = [m.get_output_embeddings() for m in modules if hasattr(m, "get_output_embeddings")]
    return {id(p) for head in heads if head is not None for p in head.parameters()}


def count_parameters(config: Any, model: Any) -> dict[str, Any]:
    """Parameters of a model by part; each tensor once, under the first name it has."""
    import torch

    modules = dict(model.named_modules())
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    roots = text_roots(config, model)
    inside = tuple(f"{root}." if root else "" for root in roots)
    heads = head_tensors(model, roots)
    head_names = {name for name, p in model.named_parameters() if id(p) in heads}
    text = {n: s for n, s in sizes.items() if n.startswith(inside) or n in head_names}
    lists = outermost_lists(model, inside)
    embedding = {
        n
        for n in text
        if isinstance(modules[n.rpartition(".")[0]], torch.nn.Embedding)
        and not n.startswith(tuple(f"{name}." for name in lists))
    }
    stacks = pick_stacks(
        {
            name: [
                sum(s for n, s in text.items() if n.startswith(f"{name}.{i}."))
                for i in range(len(module))
            ]
            for name, module in lists.items()
        }
    )
    parts = {
        "embedding": sum(text[n] for n in embedding),
        "head": sum(text[n] for n in head_names - embedding),
    }
    counted = sum(parts.values()) + sum(sum(stack) for stack in stacks.values())
    kept = set(model.state_dict())
    return {
        "class": type(model).__name__,
        "total": sum(sizes.values()),
        "text": sum(text.values()),
        **parts,
        "other": sum(text.values()) - counted,
        **{name: runs(stack) for name, stack in stacks.items()},
        "experts": sum(s for n, s in text.items() if is_expert(n, modules)),
        "buffers": sum(b.numel() for n, b in model.named_buffers() if n in kept),
    }


def pick_stacks(stacks: dict[str, list[int]]) -> dict[str, list[int]]:
    """The largest stack as `layers`; beside a decoder the encoder as `encoder_layers`."""
    encoders = [n for n in stacks if "encoder" in n.split(".")]
    decoders = [n for n in stacks if n not in encoders] or encoders
    found = {}
    if decoders:
        found["layers"] = max((stacks[n] for n in decoders), key=sum)
    if encoders and decoders is not encoders:
        found["encoder_layers"] = max((stacks[n] for n in encoders), key=sum)
    return found


def counts_text(configs: dict[str, dict[str, Any]]) -> str:
    """The content of `parameter_counts.json`: counts by name, and why the others failed."""
    models: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for name in sorted(configs):
        try:
            models[name] = count_config(without_noise(configs[name]))
        except Exception as error:  # any class may refuse any config
            failures[name] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
    return json_lines(transformers_offline().__version__, models=models, failures=failures)


def card_configs() -> dict[str, dict[str, Any]]:
    """The `config` mapping of each model card, by file name."""
    import yaml

    cards = {p.stem: yaml.safe_load(p.read_text("utf-8")) for p in CARDS_FOLDER.glob("*.yaml")}
    return {name: card["config"] for name, card in cards.items()}


def folder_configs(folder: Path) -> dict[str, dict[str, Any]]:
    """The configurations of a folder of JSON files, by file name."""
    return {p.stem: json.loads(p.read_text("utf-8")) for p in folder.glob("*.json")}


def deliver(text: str, file: Path, check: bool) -> int:
    """Write the file, or compare it and print the difference; returns the exit code."""
    if not check:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        print(f"wrote {file} ({len(text)} bytes)")
        return 0
    committed = file.read_text("utf-8") if file.exists() else ""
    lines = difflib.unified_diff(
        committed.splitlines(),
        text.splitlines(),
        f"{file.name} (committed)",
        "transformers",
        n=0,
        lineterm="",
    )
    difference = "\n".join(lines)
    print(difference or f"{file.name} agrees with transformers")
    return 1 if difference else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    defaults = verbs.add_parser("defaults", help="make kvtool/model/class_defaults.json")
    counts = verbs.add_parser("counts", help="count parameters on the meta device")
    source = counts.add_mutually_exclusive_group(required=True)
    source.add_argument("--cards", action="store_true", help="the cards of model_configs/")
    source.add_argument("--configs", type=Path, metavar="DIR", help="a folder of JSON configs")
    for verb, file in ((defaults, DEFAULTS_FILE), (counts, COUNTS_FILE)):
        verb.add_argument("--check", action="store_true", help="compare, exit with 1 on a change")
        verb.add_argument("--output", type=Path, default=file, metavar="FILE")
    asked = parser.parse_args(arguments)
    if asked.verb == "defaults":
        return deliver(defaults_text(), asked.output, asked.check)
    configs = card_configs() if asked.cards else folder_configs(asked.configs)
    return deliver(counts_text(configs), asked.output, asked.check)


if __name__ == "__main__":
    sys.exit(main())
