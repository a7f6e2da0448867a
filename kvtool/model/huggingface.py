"""From a raw `config.json` to a ModelSpec: find the text model, choose its reader, check it."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvtool.errors import ModelError, did_you_mean
from kvtool.model.drafters import as_drafter
from kvtool.model.fields import (
    Fields,
    architectures,
    class_defaults,
    is_flat,
    section_defaults,
    section_type,
)
from kvtool.model.readers import Reader, known_types, reader_of
from kvtool.model.rotary import read_rotary
from kvtool.model.spec import ModelSpec

# Sections of a multimodal configuration that hold the text model, outermost first.
TEXT_SECTIONS = ("thinker_config", "text_config", "llm_config", "language_config", "decoder")

# Types of published configurations that name their class but no model_type.
ARCHITECTURES = {"MiniCPM3ForCausalLM": "minicpm3"}

# Decoders of configurations of the original LLaVA, by class.
FLAT_LLAVA = {"LlavaLlamaForCausalLM": "llava_llama", "LlavaMistralForCausalLM": "llava_mistral"}


def read_config(raw: object, name: str, where: str) -> tuple[ModelSpec, set[str]]:
    """The model that a configuration describes, and the names of the fields that decided it.

    `where` names the source in errors. Raises ModelError with every fault found: a value that is
    no whole number, a field that is missing, a type that nobody knows.
    """
    if not isinstance(raw, Mapping):
        raise ModelError(
            f"{where}: a configuration is a JSON object, not {type(raw).__name__}",
            "pass the config.json of a model",
        )
    root = Fields(raw, where, model_type=_root_type(raw))
    if root.model_type != raw.get("model_type"):
        root.used.add("architectures")
    text = _text_section(root)
    reader = reader_of(text.model_type)
    if reader is None:
        raise _unknown_type(text, where)
    dtype, notes = _dtype(root, text)
    text.dtype = dtype
    spec = as_drafter(_with_towers(_read(reader, text), root), text, architectures(raw))
    rotary = read_rotary(text, spec.states(), spec.max_context)
    quantization = _quantization(root, text)
    root.raise_faults()
    return (
        replace(
            spec,
            name=name,
            model_type=root.model_type or text.model_type,
            dtype=dtype,
            rotary=rotary,
            quantization=quantization,
            notes=spec.notes + notes + _assumed(text),
        ),
        root.used,
    )


def _assumed(text: Fields) -> tuple[str, ...]:
    """A note where a section leaves its size to its class, as LLaVA 1.5 does."""
    if not text.assumed:
        return ()
    names = ", ".join(sorted(text.assumed))
    return (f"{text.path.rstrip('.')} leaves {names} to {text.model_type}: defaults of the class",)


def _with_towers(spec: ModelSpec, root: Fields) -> ModelSpec:
    """`spec` with the vision and audio towers beside its decoder."""
    if isinstance(root.raw.get("mm_vision_tower"), str):
        root.used.add("mm_vision_tower")
        note = "parameters of the vision tower and its projector are not counted here"
        return replace(spec, weights_known=False, notes=(*spec.notes, note))
    nested = any(isinstance(value, Mapping) for value in root.raw.values())
    composite = section_type(root.model_type, "text_config") or root.model_type == "molmo"
    if not nested and not composite:
        return spec
    from kvtool.model.counting import part_type
    from kvtool.model.towers import towers

    weights, unknown = towers(root, spec.hidden_size)
    if not unknown:
        absent = [
            f"the configuration has no {name}: parameters of the text model alone"
            for name in ("vision_config", "audio_config")
            if part_type(root.model_type, name)[0] and not isinstance(root.raw.get(name), Mapping)
        ]
        notes = (*spec.notes, *absent) if not weights and not spec.encoder else spec.notes
        return replace(spec, encoder=spec.encoder + weights, notes=notes)
    return replace(
        spec,
        encoder=spec.encoder + weights,
        weights_known=False,
        notes=(*spec.notes, f"parameters of {', '.join(unknown)} are not counted here"),
    )


def _root_type(raw: Mapping[str, Any]) -> str:
    kind, saved_from = raw.get("model_type"), next(iter(architectures(raw)), "")
    if kind == "llava" and "text_config" not in raw:
        # The first LLaVA files hold the decoder's fields flat under a type that transformers nests.
        return FLAT_LLAVA.get(saved_from, "llava")
    if isinstance(kind, str) and kind:
        return kind
    return ARCHITECTURES.get(saved_from, "")


def _text_section(root: Fields) -> Fields:
    """The section that describes the text decoder: nested, or the root itself.

    A root that holds the text's fields beside other sections has the text class's defaults too.
    """
    section = root
    for name in TEXT_SECTIONS:
        if not isinstance(section.raw.get(name), Mapping):
            continue
        default = section_type(section.model_type, name)
        inner = section.child(name, model_type=default or section.model_type)
        if not default:
            inner.drop_sizes()
        inner.defaults = {**inner.defaults, **section_defaults(section.model_type, name)}
        _inherit_tying(section, inner)
        section = inner
    if section is root and is_flat(root.model_type, "text_config"):
        text = class_defaults(section_type(root.model_type, "text_config"))
        root.defaults = {**text, **root.defaults}
        root.drop_sizes()
    return section


def _inherit_tying(outer: Fields, inner: Fields) -> None:
    """Whether head and embedding are one tensor: the outer section says, then the inner one, then
    the outer section's class."""
    name = "tie_word_embeddings"
    if outer.raw.get(name) is not None:
        inner.raw = {**inner.raw, name: outer.flag(name)}
    elif name in outer.defaults:
        inner.defaults[name] = outer.defaults[name]


def _unknown_type(text: Fields, where: str) -> ModelError:
    if not text.model_type:
        return ModelError(
            f"{where}: {text.path}model_type is missing",
            "the configuration must say what it is; add its model_type",
        )
    return ModelError(
        f"{where}: model_type {reprlib.repr(text.model_type)} is not known",
        did_you_mean(text.model_type, known_types(), "kvtool does not guess how a model caches"),
    )


def _read(reader: Reader, text: Fields) -> ModelSpec:
    """What `reader` makes of the section; its faults first, whatever they lead to."""
    try:
        spec = reader(text)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        text.raise_faults()
        raise
    text.raise_faults()
    return spec


def _dtype(root: Fields, text: Fields) -> tuple[str, tuple[str, ...]]:
    """The model's element type; bfloat16, said so, where the configuration is silent."""
    for fields in (text, root):
        for name in ("torch_dtype", "dtype"):
            value = fields.raw.get(name)
            if value is None or value == "auto":
                continue
            fields.used.add(fields.path + name)
            if isinstance(value, str):
                return fields.dtype_name(name, value), ()
            fields.fault(name, value, "the name of a dtype")
    return "bfloat16", ("the configuration states no dtype; 16-bit weights and cache assumed",)


def _quantization(root: Fields, text: Fields) -> dict[str, object] | None:
    for fields in (root, text):
        for name in ("quantization_config", "compression_config"):
            value = fields.raw.get(name)
            if value is None or value == {}:
                continue
            if not isinstance(value, Mapping):
                fields.fault(name, value, "a mapping")
                return None
            fields.used.add(fields.path + name)
            return _expert_dtype(root, text) | dict(value)
    return None


def _expert_dtype(root: Fields, text: Fields) -> dict[str, object]:
    """DeepSeek V4 states its experts' type beside the scheme of everything else."""
    for fields in (root, text):
        if fields.raw.get("expert_dtype") is not None:
            fields.used.add(fields.path + "expert_dtype")
            return {"expert_dtype": fields.raw["expert_dtype"]}
    return {}
