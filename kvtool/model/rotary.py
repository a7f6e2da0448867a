"""The tables of rotary positions that a model's layers share: how many rows, how wide, how scaled.

Engines keep the cosines and sines of every position in memory, one table for each distinct width,
base and scaling. How many rows a table has is the engine's rule; what decides it stands here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvtool.model.fields import Fields
from kvtool.model.spec import Attention, Latent, Rotary

# Types whose attention has no rotary positions: learned, ALiBi, relative, or none at all.
WITHOUT = frozenset(
    ("bart", "bert", "blenderbot", "bloom", "codegen2", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_sw3",
     "jamba", "m2m_100", "mamba", "mamba2", "falcon_mamba", "marian", "mbart", "mpt", "mt5",
     "nemotron_h", "opt", "pegasus", "roberta", "rwkv", "rwkv5", "rwkv6", "rwkv7", "t5", "umt5",
     "whisper", "xglm")
)  # fmt: skip

MAX_BASE = 1e18  # Falcon-H1 turns with a base of 1e11


def read_rotary(f: Fields, states: Iterable[object], positions: int | None) -> tuple[Rotary, ...]:
    """The distinct tables of the layers that keep `states`; none without rotary positions."""
    if positions is None or f.model_type in WITHOUT or f.flag("alibi", False):
        return ()
    return tuple(dict.fromkeys(_tables(f, positions, _widths(f, states))))


def _widths(f: Fields, states: Iterable[object]) -> dict[str, int]:
    """Head widths by kind of layer: full, sliding, chunked, or latent (its rotary part alone)."""
    widths: dict[str, int] = {}
    for state in states:
        if isinstance(state, Latent):
            widths["latent"] = f.integer("qk_rope_head_dim", 0, low=0)
        elif isinstance(state, Attention) and state.kind != "cross":
            widths[state.kind] = state.head_dim
    return {kind: width for kind, width in widths.items() if width}


def _tables(f: Fields, positions: int, widths: Mapping[str, int]) -> Iterator[Rotary]:
    nested = f.mapping("rope_parameters")
    by_type = {name: value for name, value in nested.items() if isinstance(value, Mapping)}
    shared = {**f.mapping("rope_scaling"), **({} if by_type else nested)}
    for kind, width in widths.items():
        own = by_type.get(f"{kind}_attention", shared)
        base = own.get("rope_theta", _base(f, "rope_theta"))
        if kind == "sliding" and kind + "_attention" not in by_type:
            local = _base(f, "rope_local_base_freq") or _base(f, "swa_rope_theta")
            own, base = ({}, local) if local is not None else (own, base)
        partial = own.get("partial_rotary_factor", _partial(f)) if kind != "latent" else 1.0
        part = _positive(f, "partial_rotary_factor", partial, 1.0)
        yield _table(f, own, base, int(width * part), positions)


def _base(f: Fields, name: str) -> float | None:
    return f.number(name, high=MAX_BASE) if f.has(name) else None


def _partial(f: Fields) -> float:
    for name in ("partial_rotary_factor", "rotary_pct"):
        if f.has(name):
            return f.number(name)
    return 1.0


def _table(f: Fields, own: Mapping[str, Any], base: object, width: int, positions: int) -> Rotary:
    scaling = own.get("rope_type", own.get("type", "default"))
    stated = own.get("original_max_position_embeddings")
    original = int(_positive(f, "original_max_position_embeddings", stated, 0.0))
    return Rotary(
        width=width,
        positions=positions,
        theta=_positive(f, "rope_theta", base, 0.0, MAX_BASE) or None,
        scaling="default" if scaling == "mrope" else str(scaling)[:40],
        factor=_positive(f, "rope_scaling.factor", own.get("factor"), 1.0),
        original=original if 0 < original <= positions else None,
        sections="mrope_section" in own,
    )


def _positive(f: Fields, name: str, value: object, absent: float, high: float = 1e9) -> float:
    """`value`, or `absent` for None; a fault where it is no positive number below `high`."""
    if value is None:
        return absent
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < high:
        return float(value)
    f.fault(name, value, "a positive number")
    return absent
