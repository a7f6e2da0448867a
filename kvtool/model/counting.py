"""How the parameters of a module outside the text decoder are counted: sizes, matrices, records.

Engines keep vision and audio modules whole on every rank unless told otherwise, so a record here
has no TP units, and all tensors of equal layers go into one.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from math import prod
from typing import Any

from kvtool.model.fields import Fields
from kvtool.model.spec import Weight


@cache
def _table() -> dict[str, Any]:
    text = files("kvtool.model").joinpath("tower_defaults.json").read_text("utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def with_defaults(f: Fields, kind: str) -> Fields:
    """The same section, with what the class of `kind` supplies for its towers behind it.

    The table is generated from transformers by tests/oracles/towers_oracle.py.
    """
    found = Fields(f.raw, f.where, model_type=kind, path=f.path, faults=f.faults, used=f.used)
    found.defaults.update(_table()["types"].get(kind, {}))
    return found


def section(owner: Fields, name: str, kind: str) -> Fields:
    """The nested section `name`, read as `kind` whatever it calls itself."""
    return with_defaults(owner.child(name), kind)


def part_type(owner_type: str, name: str) -> tuple[str, bool]:
    """The type of a section of `owner_type`, and whether that stands whatever the section says."""
    part = _table()["parts"].get(owner_type, {}).get(name, {})
    return str(part.get("model_type", "")), bool(part.get("fixed", False))


class Unstated(Exception):
    """A section lacks a field that no class supplies: its parameters cannot be counted."""


def size(f: Fields, *names: str, low: int = 1) -> int:
    """The first of `names` that the section holds, else the first that its class supplies.

    Raises Unstated when neither does.
    """
    held = next((n for n in names if f.raw.get(n) is not None), None)
    supplied = next((n for n in names if f.defaults.get(n) is not None), None)
    if (name := held or supplied) is None:
        raise Unstated(names[0])
    return f.integer(name, low=low)


def fraction(f: Fields, name: str, default: float | None = None, *, high: float = 1.0) -> float:
    """A ratio of two sizes, at least 0.01 and at most `high`."""
    value = f.number(name) if default is None else f.number(name, default)
    if not 0.01 <= value <= high:
        f.fault(name, value, f"a number from 0.01 to {high:g}")
        return 1.0
    return value


def extents(f: Fields, name: str) -> list[int]:
    """Height and width, given as a pair or as one number for both."""
    value = f.raw.get(name, f.defaults.get(name))
    if not isinstance(value, list):
        return [size(f, name)] * 2
    pair = f.integers(name, low=1) or []
    if pair and len(pair) != 2:
        f.fault(name, value, "a height and a width")
    return pair if len(pair) == 2 else [1, 1]


def listed(f: Fields, name: str) -> int:
    """How many layers `name` lists; 1 for a single index, which may be negative."""
    value = f.raw.get(name, f.defaults.get(name))
    f.used.add(f.path + name)
    return len(value) if isinstance(value, list) else 1


def patches(f: Fields) -> int:
    """Patches of an image."""
    sides = zip(extents(f, "image_size"), extents(f, "patch_size"), strict=True)
    return prod(whole // patch for whole, patch in sides)


def dense(out: int, inp: int, bias: bool = True) -> int:
    """A matrix [out, inp] and its bias."""
    return out * inp + (out if bias else 0)


def mlp2(inp: int, inner: int, out: int, bias: bool = True) -> int:
    """Two matrices with an activation between."""
    return dense(inner, inp, bias) + dense(out, inner, bias)


def flat(name: str, elements: int) -> tuple[Weight, ...]:
    """One record for all tensors of a module."""
    return (Weight(name, "encoder", (elements,)),) if elements else ()


def stack(name: str, layers: int, each: int) -> tuple[Weight, ...]:
    """One record for `layers` equal layers of `each` elements."""
    return (Weight(name, "encoder", (layers, each)),) if layers else ()
