"""What a contender is judged by: float64, and eager torch in the dtype of the run.

Both see the tokens as the contender's layout stores them (rounded, quantised, rotated within a
document), so the error is that of the code and not of the storage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvtool.benchmark.inputs import Layout, LayoutName, Tokens, arrange

if TYPE_CHECKING:
    from torch import Tensor

MAX_SCORE_BYTES = 2 << 30
SCORE_BYTES = 14
JUDGED_AS: dict[LayoutName, LayoutName] = {
    "prefix": "plain",
    "paged": "plain",
    "documents-paged": "documents",
}
"""Layouts that hold the same numbers as a simpler one."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """[B, T, H, D] the float64 output and the eager one, for all layouts of the same numbers."""

    reference: Tensor
    eager: Tensor


def judgement(tokens: Tokens, name: LayoutName) -> Judgement:
    """The outputs that a contender reading layout `name` is compared with."""
    from kvtool.kernels import load

    layout = arrange(tokens, JUDGED_AS.get(name, name))
    reference: Tensor = load("reference").attention(layout.q, layout.k, layout.v, **layout.options)
    return Judgement(reference, _eager(tokens, layout))


def _eager(tokens: Tokens, layout: Layout) -> Tensor:
    """Two matmuls and a softmax in the run's dtype, in slices that fit in memory."""
    import torch

    plain = layout if "doc_lens" not in layout.options else _at_positions(tokens, layout)
    out = torch.zeros_like(layout.q)
    for b, length in enumerate(tokens.kv_lens):
        _eager_sequence(plain, b, length, out[b])
    return out


def _eager_sequence(layout: Layout, b: int, length: int, out: Tensor) -> None:
    """Writes the rows of sequence b. out: [T, H, D]. A causal slice leaves later keys out."""
    import torch

    from kvtool.kernels import load

    queries = layout.q.shape[1]
    heads = layout.q.shape[2]
    step = max(1, MAX_SCORE_BYTES // (SCORE_BYTES * heads * length))
    causal = layout.options["causal"]
    scales = {s: layout.options[s] for s in ("k_scale", "v_scale") if s in layout.options}
    for first in range(0, queries, step):
        last = min(first + step, queries)
        keys = length - queries + last if causal else length
        out[first:last] = load("cached").attention(
            layout.q[b : b + 1, first:last],
            layout.k[b : b + 1, :keys],
            layout.v[b : b + 1, :keys],
            kv_lens=torch.tensor([keys], dtype=torch.int32, device=out.device),
            causal=causal,
            **scales,
        )[0]


def _at_positions(tokens: Tokens, layout: Layout) -> Layout:
    """Documents copied and rotated to their positions: what a cache without offsets would hold."""
    import torch

    from kvtool.kernels.rope import rotate

    plain = arrange(tokens, "plain")
    if layout.options["rope"].keys == "unrotated":
        return plain
    positions = torch.arange(layout.k.shape[1], device=layout.k.device)
    offsets = positions // tokens.doc_tokens * tokens.doc_tokens
    k, v = _dequantised(layout, "k"), _dequantised(layout, "v")
    turned = torch.stack([rotate(row, offsets, tokens.rope) for row in k])
    kept = {name: layout.options[name] for name in ("kv_lens", "causal")}
    return Layout(plain.q, turned, v, kept)


def _dequantised(layout: Layout, name: Literal["k", "v"]) -> Tensor:
    """Keys or values in the queries' dtype."""
    stored = layout.k if name == "k" else layout.v
    if stored.dtype == layout.q.dtype:
        return stored
    scale: float = layout.options[f"{name}_scale"]
    return (stored.float() * scale).to(layout.q.dtype)
