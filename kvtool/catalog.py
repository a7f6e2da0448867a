"""Where models come from: cards, config.json files, GGUF files, hub ids."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvtool.errors import KvtoolError, ModelError, UsageError, did_you_mean
from kvtool.model.huggingface import read_config
from kvtool.model.spec import ModelSpec

MAX_CONFIG_BYTES = 16 << 20
MAX_CARD_BYTES = 256 << 10
CARD_KEYS = {"name", "aliases", "source", "note", "config"}


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model by name: the deciding fields of its published configuration, and their source."""

    name: str
    aliases: tuple[str, ...]
    source: str
    config: Mapping[str, Any]
    note: str = ""

    def spec(self) -> ModelSpec:
        return read_config(self.config, self.name, f"card {self.name}")[0]


def load_model(name: str) -> ModelSpec:
    """The model called `name`: a card or alias, a config.json or its folder, a .gguf file, a card
    file, `-` (a config on stdin), or `hf:org/name` (the only one that uses the network).

    UsageError for a name that is none of these, ModelError for content that cannot be read.

    >>> load_model("llama-3-70b").hidden_size
    8192
    """
    card = find_card(name)
    if card is not None:
        return card.spec()
    if name == "-":
        return _from_json(_standard_input(), "standard input", "stdin")
    if name.startswith("hf:"):
        return _from_hub(name)
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            return _from_folder(path)
        if path.exists():
            return _from_file(path)
    except OSError as error:
        raise ModelError(f"cannot read '{name}': {error.strerror}", "check the path") from None
    raise _unknown(name)


def _unknown(name: str) -> UsageError:
    hint = "`kvtool models` lists the cards; a path to a config.json or .gguf file also works"
    if "/" in name and not name.startswith((".", "/", "~")) and name.count("/") == 1:
        hint += f"; hf:{name} asks the hub"
    known = [*card_names(), *_aliases()]
    shown = name if len(name) <= 60 else f"{name[:57]}.."
    return UsageError(f"no model card named '{shown}'", did_you_mean(name[:200], known, hint))


def _from_folder(path: Path) -> ModelSpec:
    """The model of a checkpoint's folder, with the bytes that its weights are stored in."""
    from kvtool.model.checkpoint import read_checkpoint

    config = path / "config.json"
    if not config.is_file():
        raise UsageError(
            f"no config.json in folder '{path}'", "pass the folder of a downloaded checkpoint"
        )
    spec = replace(_from_file(config), name=path.resolve().name)
    found = read_checkpoint(path)
    return spec if found is None else replace(spec, stored_bytes=found.total_bytes)


def _from_file(path: Path) -> ModelSpec:
    if path.suffix == ".gguf":
        from kvtool.model.gguf import gguf_weight_bytes, read_gguf_config

        spec = read_config(read_gguf_config(path), path.stem, str(path))[0]
        return replace(spec, stored_bytes=sum(gguf_weight_bytes(path).values()))
    data = _read_bounded(path)
    if path.suffix in (".yaml", ".yml"):
        return _card(data, str(path), path.stem).spec()
    return _from_json(data, str(path), _name_of(path))


def _standard_input() -> bytes:
    if sys.stdin is None:
        raise ModelError("standard input is closed", "pipe a config.json into the command")
    return sys.stdin.buffer.read(MAX_CONFIG_BYTES + 1)


def _read_bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_CONFIG_BYTES + 1)


def _from_json(data: bytes, where: str, name: str) -> ModelSpec:
    return read_config(parse_json(data, where), name, where)[0]


def parse_json(data: bytes, where: str) -> object:
    """The JSON value in `data`; ModelError for anything else, for more than 16 MiB and for nesting
    without end."""
    return _parse(data, where, json.loads, "JSON")


def _parse(data: bytes, where: str, parse: Callable[[str], object], language: str) -> object:
    hint = "a model's config.json is a small JSON object"
    if len(data) > MAX_CONFIG_BYTES:
        raise ModelError(f"{where}: larger than {MAX_CONFIG_BYTES >> 20} MiB", hint)
    try:
        return parse(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ModelError(f"{where}: not UTF-8 text", hint) from None
    except RecursionError:
        raise ModelError(f"{where}: nested too deeply", hint) from None
    except ValueError as error:
        reason = str(error).splitlines()[0][:120]
        raise ModelError(f"{where}: not {language}: {reason}", hint) from None


def _from_hub(name: str) -> ModelSpec:
    """A model of the hub, with the bytes its weights are stored in where their headers say."""
    from kvtool.model.hub import fetch_hub_checkpoint, fetch_hub_config

    repo, _, revision = name.removeprefix("hf:").partition("@")
    spec = read_config(fetch_hub_config(repo, revision or None), repo, name)[0]
    try:
        found = fetch_hub_checkpoint(repo, revision or None)
    except KvtoolError as error:
        return replace(spec, notes=(*spec.notes, f"weights as computed, not as stored: {error}"))
    return spec if found is None else replace(spec, stored_bytes=found.total_bytes)


@cache
def card_names() -> tuple[str, ...]:
    """Names of all cards, sorted."""
    folder = files("kvtool.model_configs")
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml")))


@cache
def load_card(name: str) -> ModelCard:
    """The card of that exact name; ModelError naming every fault in it."""
    data = files("kvtool.model_configs").joinpath(f"{name}.yaml").read_bytes()
    return _card(data, f"{name}.yaml", name)


def find_card(name: str) -> ModelCard | None:
    """The card with that name or alias, in any case; None when there is none."""
    lowered = name.lower()
    if re.fullmatch(r"[a-z0-9][a-z0-9._-]*", lowered) and lowered in card_names():
        return load_card(lowered)
    found = _aliases().get(lowered)
    return load_card(found) if found else None


@cache
def _aliases() -> dict[str, str]:
    """Every alias, in lower case, with the name of its card; reads only the cards' heads."""
    found: dict[str, str] = {}
    for name in card_names():
        text = files("kvtool.model_configs").joinpath(f"{name}.yaml").read_text("utf-8")
        head = _yaml(text.split("\nconfig:", 1)[0])
        if isinstance(head, Mapping):
            for alias in head.get("aliases") or ():
                found.setdefault(str(alias).lower(), name)
    return found


def _yaml(text: str) -> object:
    """The YAML value in `text`; ValueError for anything else."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if "&" in text and any(isinstance(t, yaml.AliasToken) for t in yaml.scan(text, loader)):
            raise ValueError("anchors and aliases have no place in a card")
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _card(data: bytes, where: str, name: str) -> ModelCard:
    hint = "a card has name, aliases, source and config"
    if len(data) > MAX_CARD_BYTES:
        raise ModelError(f"{where}: larger than {MAX_CARD_BYTES >> 10} KiB", hint)
    raw = _parse(data, where, _yaml, "YAML")
    if not isinstance(raw, Mapping):
        raise ModelError(f"{where}: a card is a mapping, not {type(raw).__name__}", hint)
    faults = [f"{where}: unknown key '{key}'" for key in raw if key not in CARD_KEYS]
    config, aliases = raw.get("config"), raw.get("aliases") or []
    if not isinstance(config, Mapping):
        faults.append(f"{where}: config is missing or no mapping")
    if not isinstance(aliases, list) or not all(isinstance(a, str) for a in aliases):
        faults.append(f"{where}: aliases is no list of names")
    if not isinstance(raw.get("source"), str):
        faults.append(f"{where}: source is missing")
    if raw.get("name", name) != name:
        faults.append(f"{where}: name is '{raw['name']}', the file says '{name}'")
    if faults:
        raise ModelError.collect(faults, hint)
    assert isinstance(config, Mapping)
    return ModelCard(name, tuple(aliases), raw["source"], config, str(raw.get("note") or ""))


def make_card(
    raw: object, name: str, source: str, aliases: tuple[str, ...] = (), where: str | None = None
) -> ModelCard:
    """A card with those fields of a raw configuration that decide its cache and weights.

    `where` says in errors what was read; by default it is the name.
    """
    _, used = read_config(raw, name, where or name)
    assert isinstance(raw, Mapping)
    return ModelCard(name, aliases, source, _keep(raw, used, ""))


def import_card(path: str, name: str | None = None) -> ModelCard:
    """A card made from the config.json at `path` (`-`: standard input); errors as `load_model`."""
    if path == "-":
        data, where, own = _standard_input(), "standard input", "model"
    else:
        file = Path(path).expanduser()
        file = file / "config.json" if file.is_dir() else file
        if not file.is_file():
            raise UsageError(f"no file '{path}'", "pass the config.json of a model, or its folder")
        data, where, own = _read_bounded(file), str(file), _name_of(file)
    raw = parse_json(data, where)
    return make_card(raw, name or own.lower(), "config.json given by the user", where=where)


def _name_of(path: Path) -> str:
    return path.resolve().parent.name if path.name == "config.json" else path.stem


def _keep(raw: Mapping[str, Any], used: set[str], path: str) -> dict[str, Any]:
    kept: dict[str, Any] = {"model_type": raw["model_type"]} if "model_type" in raw else {}
    for key, value in raw.items():
        full = f"{path}{key}"
        nested = any(name.startswith(f"{full}.") for name in used)
        if isinstance(value, Mapping) and nested:
            kept[key] = _keep(value, used, f"{full}.")
        elif full in used or full == "model_type":
            kept[key] = value
    return kept


def card_text(card: ModelCard) -> str:
    """The card as its YAML file: a field per line, lists on one."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.add_representer(
        list, lambda d, v: d.represent_sequence("tag:yaml.org,2002:seq", v, flow_style=True)
    )
    content: dict[str, Any] = {"name": card.name}
    if card.aliases:
        content["aliases"] = list(card.aliases)
    content["source"] = card.source
    if card.note:
        content["note"] = card.note
    content["config"] = dict(card.config)
    text: str = yaml.dump(
        content, Dumper=Dumper, sort_keys=False, width=100, default_flow_style=False,
        allow_unicode=True,
    )  # fmt: skip
    return text
