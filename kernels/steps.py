"""Decoding token by token through one attention layer, with its operations counted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Projections:
    """Weights of one layer without positions. q: [E, H, D].  k, v: [E, Hkv, D]."""

    q: Tensor
    k: Tensor
    v: Tensor

    def apply(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v of hidden states x: [B, T, E]."""
        return tuple(torch.einsum("bte,ehd->bthd", x, w) for w in (self.q, self.k, self.v))  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Operations:
    """What decoding cost, per sequence.

    query_rows: rows that went through attention.  key_rows: keys (and as many values) computed.
    scores: entries of the score matrices, per query head.
    """

    query_rows: int = 0
    key_rows: int = 0
    scores: int = 0

    def plus(self, query_rows: int, key_rows: int, scores: int) -> Operations:
        """These operations and some more."""
        return Operations(
            self.query_rows + query_rows, self.key_rows + key_rows, self.scores + scores
        )
