"""Devices: memory as the driver reports it, bandwidth and dense peak rates, each with its source.

A card in `kvtool/devices/` states what a data sheet promises (`memory_nominal_bytes`) and what a
program is given (`memory_usable_bytes`): an H100 sold with 80 GB shows 79.19 GiB. Vendors count
device memory in units of 2**30 bytes and bandwidth in powers of ten. Peak rates are dense: figures
published with structured sparsity are halved in the card, with a note. A figure without a
trustworthy source is null.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvtool.errors import KvtoolError, UsageError, did_you_mean

PEAK_DTYPES = ("fp32", "bf16", "fp16", "fp8", "int8", "fp4")
VENDORS = ("amd", "google", "intel", "nvidia", "other")

_FIGURES = ("memory_nominal_bytes", "memory_usable_bytes", "bandwidth_bytes_per_s")
_KEYS = ("name", "aliases", "vendor", "compute_capability", *_FIGURES, "peak_flops_per_s")
_MAX_CARD_BYTES = 1 << 16
_MAX_FIGURE = 1 << 60
_HINT = "see docs/devices.md for the fields of a device card"


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One device as software sees it.

    `peak_flops_per_s` maps a name of `PEAK_DTYPES` to dense operations per second: matrix units
    for all but `fp32`, which is the vector rate. `sources` maps a field (`peak_flops_per_s.bf16`
    for a rate) to where its figure comes from. Raises ValueError on impossible figures.
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    memory_nominal_bytes: int
    memory_usable_bytes: int | None
    bandwidth_bytes_per_s: int | None
    peak_flops_per_s: Mapping[str, int]
    compute_capability: str | None
    sources: Mapping[str, str]

    def __post_init__(self) -> None:
        if (self.memory_usable_bytes or 0) > self.memory_nominal_bytes:
            raise ValueError("more memory usable than there is")

    @property
    def memory_bytes(self) -> int:
        """Bytes to plan with: usable where known, else nominal (see `memory_is_nominal`)."""
        return self.memory_usable_bytes or self.memory_nominal_bytes

    @property
    def memory_is_nominal(self) -> bool:
        """Whether `memory_bytes` is the data sheet's figure, a few per cent above the real one."""
        return self.memory_usable_bytes is None


def device_names() -> list[str]:
    """The names of the shipped cards, sorted; no card is read."""
    return sorted(_card_texts())


def load_device(name: str) -> DeviceSpec:
    """The device called `name`: a card's name or alias in any case, or a path to a `.yaml` card.

    Raises UsageError with close matches for an unknown name, KvtoolError for a faulty card.

    >>> load_device("H200").memory_bytes
    150109880320
    """
    wanted = _plain(name)
    if wanted in _card_texts():
        return _shipped(wanted)
    path = Path(name)
    if path.suffix.lower() in {".yaml", ".yml"} and path.is_file():
        return read_device(path)
    known = {_plain(alias): card for card in device_names() for alias in _shipped(card).aliases}
    if wanted in known:
        return _shipped(known[wanted])
    raise UsageError(
        f"no device card named '{name}'",
        did_you_mean(
            wanted,
            [*known, *device_names()],
            "`kvtool devices` lists the cards; a path to a card also works",
        ),
    )


def read_device(path: Path) -> DeviceSpec:
    """The device that the card at `path` describes; raises KvtoolError with all its faults."""
    try:
        with path.open("rb") as card:
            text = card.read(_MAX_CARD_BYTES + 1)
    except OSError as error:
        raise KvtoolError(f"cannot read '{path}': {error.strerror}", _HINT) from error
    return _parse_card(text, path.name)


def _plain(name: str) -> str:
    """`name` in lower case with one dash between words: 'RTX 4090' and 'rtx_4090' are the same."""
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


@cache
def _card_texts() -> dict[str, Any]:
    """Card name -> its resource, from the file names alone."""
    return {
        entry.name.removesuffix(".yaml"): entry
        for entry in files("kvtool.devices").iterdir()
        if entry.name.endswith(".yaml")
    }


@cache
def _shipped(name: str) -> DeviceSpec:
    return _parse_card(_card_texts()[name].read_bytes(), f"{name}.yaml")


def _parse_card(text: bytes, origin: str) -> DeviceSpec:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    if len(text) > _MAX_CARD_BYTES:
        raise KvtoolError(f"{origin} is larger than {_MAX_CARD_BYTES:,} bytes", _HINT)
    try:
        card = yaml.load(text, Loader=loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise KvtoolError(f"{origin} is not YAML: {reason}", _HINT) from error
    if not isinstance(card, dict):
        raise KvtoolError(f"{origin} holds {reprlib.repr(card)}, not a device card", _HINT)
    faults = [f"{origin}: {fault}" for fault in _faults(card)]
    if faults:
        raise KvtoolError.collect(faults, _HINT)
    return _spec(card)


def _faults(card: dict[Any, Any]) -> Iterator[str]:
    """What is wrong with a card, field by field."""
    for key in card:
        if key not in _KEYS:
            yield f"unknown field {reprlib.repr(key)}"
    if not isinstance(card.get("name"), str) or not card["name"]:
        yield f"name is {reprlib.repr(card.get('name'))}, not a name"
    aliases = card.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        yield f"aliases is {reprlib.repr(aliases)}, not a list of names"
    if card.get("vendor") not in VENDORS:
        yield f"vendor is {reprlib.repr(card.get('vendor'))}, not one of {', '.join(VENDORS)}"
    capability = card.get("compute_capability")
    if capability is not None and not re.fullmatch(r"[0-9]{1,2}\.[0-9]", str(capability)):
        yield f"compute_capability is {reprlib.repr(capability)}, not like '9.0'"
    elif capability is not None and not isinstance(capability, str):
        yield f"compute_capability is {capability}: put it in quotes"
    for field in _FIGURES:
        optional = field != "memory_nominal_bytes"
        yield from _figure_faults(field, card.get(field), optional=optional)
    yield from _rate_faults(card.get("peak_flops_per_s"))
    usable, nominal = (_value(card.get(f"memory_{kind}_bytes")) for kind in ("usable", "nominal"))
    if isinstance(usable, int) and isinstance(nominal, int) and usable > nominal:
        yield f"memory_usable_bytes {usable} is more than memory_nominal_bytes {nominal}"


def _rate_faults(rates: object) -> Iterator[str]:
    if not isinstance(rates, dict):
        yield f"peak_flops_per_s is {reprlib.repr(rates)}, not rates by dtype"
        return
    for dtype, figure in rates.items():
        if dtype not in PEAK_DTYPES:
            yield f"peak_flops_per_s has {reprlib.repr(dtype)}, not one of {', '.join(PEAK_DTYPES)}"
        yield from _figure_faults(f"peak_flops_per_s.{dtype}", figure, optional=True)


def _figure_faults(field: str, figure: object, *, optional: bool) -> Iterator[str]:
    """Faults of one figure: `{value: INTEGER, source: TEXT}`, or null where `optional`."""
    if figure is None and optional:
        return
    if not isinstance(figure, dict) or set(figure) != {"value", "source"}:
        yield f"{field} is {reprlib.repr(figure)}, not a value with its source"
        return
    value, source = figure["value"], figure["source"]
    if type(value) is not int or not 0 < value < _MAX_FIGURE:
        yield f"{field} has value {reprlib.repr(value)}, not a positive integer"
    if not isinstance(source, str) or not source.strip():
        yield f"{field} has source {reprlib.repr(source)}, not a text"


def _value(figure: object) -> object:
    return figure.get("value") if isinstance(figure, dict) else None


def _spec(card: dict[str, Any]) -> DeviceSpec:
    """The record of a card without faults."""
    figures = {field: card[field] for field in _FIGURES if card.get(field)}
    rates = {dtype: rate for dtype, rate in card["peak_flops_per_s"].items() if rate}
    return DeviceSpec(
        name=card["name"],
        aliases=tuple(card.get("aliases", ())),
        vendor=card["vendor"],
        memory_nominal_bytes=card["memory_nominal_bytes"]["value"],
        memory_usable_bytes=figures.get("memory_usable_bytes", {}).get("value"),
        bandwidth_bytes_per_s=figures.get("bandwidth_bytes_per_s", {}).get("value"),
        peak_flops_per_s={dtype: rate["value"] for dtype, rate in rates.items()},
        compute_capability=card.get("compute_capability"),
        sources={field: figure["source"] for field, figure in figures.items()}
        | {f"peak_flops_per_s.{dtype}": rate["source"] for dtype, rate in rates.items()},
    )
