"""Attention in tiles with a running maximum and sum: scores never leave the chip.

Prefill walks the keys tile by tile for a tile of queries (`flash_prefill`); decode splits a
sequence's keys over the whole GPU and merges the parts (`flash_decode`). Without a GPU the same
idea runs in torch (`tiled`). Source: FlashAttention, arXiv 2205.14135; FlashAttention-2, arXiv
2307.08691; Flash-Decoding, Stanford CRFM, October 2023.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from kvtool.errors import UsageError
from kvtool.kernels.checks import Call, Options, check
from kvtool.kernels.paths import make_plan, run
from kvtool.kernels.plan import Plan


def attention(q: Tensor, k: Tensor, v: Tensor, **options: Unpack[Options]) -> Tensor:
    """o: [B, T, H, D] in q.dtype; sums are float32; arguments as in `check`, without documents."""
    call = check(q, k, v, **options)
    return run(call, call.plan or _plan(call))


def plan(q: Tensor, k: Tensor, v: Tensor, **options: Unpack[Options]) -> Plan:
    """Lengths read and checked, the path chosen, and its tables built on the device of q."""
    return _plan(check(q, k, v, **options))


def _plan(call: Call) -> Plan:
    if call.doc_lens is not None:
        raise UsageError("'flash' takes keys at their final positions, not documents", "use 'lazy'")
    if call.variant is not None:
        raise UsageError(f"'flash' has no variant '{call.variant}'", "leave variant out")
    return make_plan(call, None)
