"""What transformers says about vision and audio towers: class defaults, and their parameters.

- `defaults` writes `kvtool/model/tower_defaults.json`: what the classes supply for the sections
  and types that `kvtool.model.towers` knows, where a published configuration is silent; with
  `--check` the committed file is compared and a difference ends in exit code 1.
- `count TYPE` prints the parameters of the modules beside the text decoder of a default
  configuration of TYPE, on the meta device; `--set JSON` gives its sections. The figures of
  `tests/model/test_towers.py` were made with it.

Nothing is downloaded and no remote code runs.
"""

import argparse
import ast
import inspect
import json
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

from kvtool.model import audio, counting, projectors, speech, towers, vision, vision_types

FILE = Path(__file__).parents[2] / "kvtool" / "model" / "tower_defaults.json"
INNER_SECTIONS = ("dit_config", "bigvgan_config")

# The text of the decoder: modules and parameters that are not counted here.
TEXT = re.compile(
    r"(^|\.)(language_model|text_model|lm_head)\.|^model\.(embed_tokens\.|layers\.|norm\.)"
)
HEADS = ("ImageTextToText", "MultimodalLM", "CausalLM", "TextToWaveform")


def transformers_offline() -> Any:
    """The transformers package, silent and kept from the network."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.logging.set_verbosity(logging.CRITICAL)
    return transformers


def named_fields() -> set[str]:
    """Every string in the modules that hold the formulas: the fields that these read are among."""
    modules = (audio, counting, projectors, speech, towers, vision, vision_types)
    trees = [ast.parse(inspect.getsource(module)) for module in modules]
    constants = [n.value for t in trees for n in ast.walk(t) if isinstance(n, ast.Constant)]
    return {value for value in constants if isinstance(value, str)}


def deciding(config: Any, names: set[str]) -> dict[str, Any]:
    """The values of a default configuration that a formula may read."""
    values = {name: value for name, value in config.to_dict().items() if name in names}
    lists = {name: list(value) for name, value in values.items() if isinstance(value, tuple)}
    return {
        name: value
        for name, value in {**values, **lists}.items()
        if isinstance(value, bool | int | float | list)
    }


def defaults_text() -> str:
    """The content of `tower_defaults.json`, a line for each type."""
    transformers = transformers_offline()
    names = named_fields()
    parts: dict[str, Any] = {}
    types: dict[str, Any] = {}
    owners = {owner for owners in projectors.PROJECTORS.values() for owner in owners}
    for owner in sorted(owners & set(transformers.CONFIG_MAPPING)):
        config_class = transformers.CONFIG_MAPPING[owner]
        types[owner] = deciding(config_class(), names)
        for name, spec in config_class.sub_configs_defaults.items():
            if owner not in projectors.PROJECTORS.get(name, ()):
                continue
            fixed = spec.config_class.__name__ != "AutoConfig"
            parts.setdefault(owner, {})[name] = {"model_type": spec.model_type, "fixed": fixed}
            if fixed:
                section = spec.config_class()
                types[spec.model_type] = deciding(section, names)
                for inner in INNER_SECTIONS:
                    if (nested := getattr(section, inner, None)) is not None:
                        types[nested.model_type] = deciding(nested, names)
    for kind in set(towers.TOWERS) & set(transformers.CONFIG_MAPPING):
        types[kind] = deciding(transformers.CONFIG_MAPPING[kind](), names)
    header = {"transformers": transformers.__version__, "made_by": "tests/oracles/towers_oracle.py"}
    blocks = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in header.items()]
    for title, entries in (("parts", parts), ("types", types)):
        lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(entries[k])}" for k in sorted(entries))
        blocks.append(f"{json.dumps(title)}: {{\n{lines}\n}}")
    return "{" + ",\n".join(blocks) + "}\n"


def build(kind: str, given: dict[str, Any]) -> Any:
    """The model of a configuration of `kind`, on the meta device."""
    import torch

    transformers = transformers_offline()
    config = transformers.CONFIG_MAPPING[kind].from_dict({"model_type": kind, **given})
    for head in (*(f"AutoModelFor{name}" for name in HEADS), "AutoModel"):
        if (auto := getattr(transformers, head, None)) is None:
            continue
        found = auto._model_mapping.get(type(config), None)
        if found is not None:
            with torch.device("meta"):
                return (found[0] if isinstance(found, tuple) else found)(config)
    raise LookupError(f"no model class for {kind!r}")


def count(kind: str, given: dict[str, Any]) -> dict[str, int]:
    """Parameters outside the text decoder, by module, and their sum."""
    found: dict[str, int] = {}
    for name, parameter in build(kind, given).named_parameters():
        if not TEXT.search(name):
            module = ".".join(name.split(".")[:2])
            found[module] = found.get(module, 0) + parameter.numel()
    return {**found, "sum": sum(found.values())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("defaults").add_argument("--check", action="store_true")
    counting = commands.add_parser("count")
    counting.add_argument("type")
    counting.add_argument("--set", type=json.loads, default={})
    arguments = parser.parse_args()
    if arguments.command == "count":
        print(json.dumps(count(arguments.type, arguments.set), indent=1))
        return 0
    text = defaults_text()
    if arguments.check:
        same = FILE.read_text("utf-8") == text
        print("equal" if same else f"{FILE} differs; run `defaults` and look at git diff")
        return 0 if same else 1
    FILE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
