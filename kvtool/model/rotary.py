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
        yield _table(own, base, int(width * _positive(partial, 1.0)), positions)


def _base(f: Fields, name: str) -> float | None:
    return f.number(name) if f.has(name) else None


def _partial(f: Fields) -> float:
    for name in ("partial_rotary_factor", "rotary_pct"):
        if f.has(name):
            return f.number(name)
    return 1.0


def _table(own: Mapping[str, Any], base: object, width: int, positions: int) -> Rotary:
    scaling = own.get("rope_type", own.get("type", "default"))
    original = own.get("original_max_position_embeddings")
    return Rotary(
        width=width,
        positions=positions,
        theta=_positive(base, 0.0) or None,
        scaling="default" if scaling == "mrope" else str(scaling)[:40],
        factor=_positive(own.get("factor"), 1.0),
        original=original if isinstance(original, int) and 0 < original <= positions else None,
        sections="mrope_section" in own,
    )


def _positive(value: object, otherwise: float) -> float:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and 0 < value < 1e9 else otherwise  # type: ignore[arg-type, operator]
