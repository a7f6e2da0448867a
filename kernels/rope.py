"""Rotary position embedding: the frequencies of a model, and rotation rows in float64.

Pair j of a head turns by position * inv_freq[j]. Since (R_m q).(R_n k) = q.(R_{n-m} k), a
document's keys may stay in a frame of their own (token i at angle i) and the query is turned by
m - S instead, S being the document's offset: one rotation for a whole document. This holds only
while inv_freq does not depend on the request, so scalings that switch frequencies with length
(dynamic NTK, LongRoPE) are refused by name.

Angles are computed in float64 and their cosines stored in float32: at position 1,000,000 a
float32 angle is off by up to 0.03. Source: RoFormer, arXiv 2104.09864; LazyAttention, arXiv
2606.04302, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvtool.errors import UsageError

REFUSED = {
    "dynamic": "dynamic NTK changes its frequencies with the length of the request",
    "longrope": "LongRoPE switches between two sets of frequencies with the length of the request",
    "su": "LongRoPE switches between two sets of frequencies with the length of the request",
    "mrope": "M-RoPE has one position per section, a document has one offset",
}
SUPPORTED = ("default", "linear", "ntk", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class Rope:
    """How queries turn, and how the stored keys were turned.

    inv_freq: radians per position of each pair; 2 * len(inv_freq) = rotary_dim leading
      dimensions turn, the rest pass.
    interleaved: pairs are (2j, 2j + 1), as in GPT-J; else (j, j + rotary_dim / 2), as in NeoX.
    attention_factor: YaRN's factor on cosine and sine of a *position*. It multiplies queries and
      keys once each and is never part of a change of offset.
    keys: "local": rotated by their position within the document (and scaled by
      attention_factor), as a model that reads the document alone stores them; "unrotated": raw.
    """

    inv_freq: tuple[float, ...]
    interleaved: bool = False
    attention_factor: float = 1.0
    keys: Literal["local", "unrotated"] = "local"

    @property
    def rotary_dim(self) -> int:
        return 2 * len(self.inv_freq)

    @property
    def query_factor(self) -> float:
        """What the turning part of an untouched query is multiplied by, keys being as stored."""
        return self.attention_factor ** (1 if self.keys == "local" else 2)


def from_parameters(
    head_dim: int,
    parameters: Mapping[str, Any],
    *,
    max_position_embeddings: int | None = None,
    interleaved: bool = False,
    keys: Literal["local", "unrotated"] = "local",
) -> Rope:
    """The Rope of a model's `rope_parameters` (or `rope_scaling` with `rope_theta` added).

    Knows the types default, linear, ntk (fixed), llama3 and yarn under transformers' names.
    Raises UsageError for types whose frequencies depend on the request, and for unknown ones.
    """
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if parameters.get("mrope_section"):
        kind = "mrope"
    if kind in REFUSED:
        raise UsageError(
            f"rope type '{kind}' cannot serve documents at several offsets",
            f"{REFUSED[kind]}; a cached document would be wrong for other requests",
        )
    if kind not in SUPPORTED:
        raise UsageError(f"rope type '{kind}' is unknown", f"known: {', '.join(SUPPORTED)}")
    theta = float(parameters["rope_theta"])
    rotary_dim = int(head_dim * float(parameters.get("partial_rotary_factor", 1.0)))
    if kind == "ntk":
        theta *= float(parameters["factor"]) ** (rotary_dim / (rotary_dim - 2))
    inv_freq = [theta ** (-2 * j / rotary_dim) for j in range(rotary_dim // 2)]
    factor = 1.0
    if kind == "linear":
        inv_freq = [f / float(parameters["factor"]) for f in inv_freq]
    elif kind == "llama3":
        inv_freq = [_llama3(f, parameters, max_position_embeddings) for f in inv_freq]
    elif kind == "yarn":
        inv_freq = _yarn(inv_freq, theta, parameters, max_position_embeddings)
        factor = _yarn_factor(parameters)
    return Rope(tuple(inv_freq), interleaved, factor, keys)


def _original_length(parameters: Mapping[str, Any], fallback: int | None) -> float:
    length = parameters.get("original_max_position_embeddings") or fallback
    if length is None:
        raise UsageError(
            "original_max_position_embeddings is missing from the rope parameters",
            "llama3 and yarn scaling are defined by the length before scaling",
        )
    return float(length)


def _llama3(inv_freq: float, parameters: Mapping[str, Any], fallback: int | None) -> float:
    """Long wavelengths slow down by `factor`, short ones stay, those between are blended."""
    factor = float(parameters["factor"])
    low = float(parameters["low_freq_factor"])
    high = float(parameters["high_freq_factor"])
    turns = _original_length(parameters, fallback) * inv_freq / (2 * math.pi)
    share = min(1.0, max(0.0, (turns - low) / (high - low)))
    return inv_freq * ((1 - share) / factor + share)


def _yarn(
    inv_freq: list[float], theta: float, parameters: Mapping[str, Any], fallback: int | None
) -> list[float]:
    """Pairs below `beta_slow` turns over the original length slow down, above `beta_fast` stay.

    Source: YaRN, arXiv 2309.00071, section 3.2; `truncate` as in transformers.
    """
    dim = 2 * len(inv_freq)
    length = _original_length(parameters, fallback)

    def pair_that_turns(times: float) -> float:
        return dim * math.log(length / (times * 2 * math.pi)) / (2 * math.log(theta))

    low = pair_that_turns(float(parameters.get("beta_fast") or 32))
    high = pair_that_turns(float(parameters.get("beta_slow") or 1))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    factor = float(parameters["factor"])
    scaled = []
    for j, frequency in enumerate(inv_freq):
        slowed = min(1.0, max(0.0, (j - low) / (high - low)))
        scaled.append(frequency * (slowed / factor + 1 - slowed))
    return scaled


def _yarn_factor(parameters: Mapping[str, Any]) -> float:
    """attention_factor if stated, else from `mscale` and `mscale_all_dim`, else 0.1 ln(f) + 1."""
    stated = parameters.get("attention_factor")
    if stated is not None:
        return float(stated)

    def magnitude(mscale: float) -> float:
        scale = float(parameters["factor"])
        return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0

    mscale, all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if mscale and all_dim:
        return magnitude(float(mscale)) / magnitude(float(all_dim))
    return magnitude(1.0)


def rows(rope: Rope, positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Unit-norm rotation rows (c, s) of `positions`, both [*positions.shape, head_dim] float64.

    Dimension d of a rotated head is x[d] * c[d] + x[partner(d)] * s[d]: the sine carries its
    sign, and c = 1, s = 0 where nothing turns. Kernels take the rows as float32.
    """
    frequencies = torch.tensor(rope.inv_freq, dtype=torch.float64, device=positions.device)
    angle = positions.to(torch.float64)[..., None] * frequencies
    cos, sin = angle.cos(), angle.sin()
    if rope.interleaved:
        c = cos.repeat_interleave(2, dim=-1)
        s = torch.stack((-sin, sin), dim=-1).flatten(-2)
    else:
        c, s = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    rest = head_dim - rope.rotary_dim
    return pad(c, (0, rest), value=1.0), pad(s, (0, rest))


def partner(rope: Rope, head_dim: int) -> Tensor:
    """For each of `head_dim` dimensions the other one of its pair, itself if it does not turn."""
    d = torch.arange(head_dim)
    half = rope.rotary_dim // 2
    other = d ^ 1 if rope.interleaved else torch.where(d < half, d + half, d - half)
    return torch.where(d < rope.rotary_dim, other, d)


def rotate(x: Tensor, positions: Tensor, rope: Rope, factor: float = 1.0) -> Tensor:
    """x turned by `positions`, its turning part scaled by `factor`; in x's dtype.

    x: [..., S, heads, D].  positions: [S], may be negative.  Computed in float32, or float64
    for float64 x.
    """
    work = torch.float64 if x.dtype == torch.float64 else torch.float32
    c, s = (row.to(work)[:, None] for row in rows(rope, positions, x.shape[-1]))
    other = x[..., partner(rope, x.shape[-1]).to(x.device)]
    turned = x.to(work) * c + other.to(work) * s
    if factor != 1.0:
        turned[..., : rope.rotary_dim] *= factor
    return turned.to(x.dtype)
