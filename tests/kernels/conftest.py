"""Batches, tolerances and devices for the kernel tests.

Without a GPU Triton runs in its interpreter, which tests/conftest.py asks for before any import.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the bench extra is not installed")

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"

MAX_RELATIVE_ERROR = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 5e-3}
"""Of ||o - reference|| / ||reference||, by dtype of the queries."""
MAX_ERROR = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Of any element, for values of unit variance."""


@dataclass(frozen=True)
class Batch:
    """Inputs of one call."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    options: dict[str, Any]


def make_batch(
    *,
    lens: list[int] | None = None,
    docs: list[list[int | tuple[int, int]]] | None = None,
    queries: int,
    heads: tuple[int, int] = (4, 2),
    dim: int = 32,
    block: int = 0,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    seed: int = 0,
    **options: Any,
) -> Batch:
    """Random inputs; unused rows of the cache hold NaN.

    lens: keys per sequence; or docs: documents per sequence, as lengths that follow each other,
    or as (length, offset).  block: tokens per shuffled block, 0 for a contiguous cache.
    """
    generator = torch.Generator().manual_seed(seed)
    if docs is not None:
        options |= _documents(docs)
        pads = options["doc_lens"] if not block else -(-options["doc_lens"] // block) * block
        rows = int(pads.sum(1).max())
        lens = options["doc_lens"].sum(1).tolist()
        used = [_used(d, block) for d in options["doc_lens"].tolist()]
    else:
        assert lens is not None
        rows = max(1, *lens) if not block else -(-max(1, *lens) // block) * block
        used = [list(range(n)) for n in lens]
    batch, (num_q, num_kv) = len(lens), heads
    shape = (batch, rows, num_kv, dim)
    k, v = (torch.full(shape, torch.nan) for _ in range(2))
    for b, index in enumerate(used):
        for cache in (k, v):
            cache[b, index] = torch.randn(len(index), num_kv, dim, generator=generator)
    if block:
        blocks = batch * rows // block
        order = torch.randperm(blocks, generator=generator)
        k, v = (c.reshape(blocks, block, num_kv, dim)[order.argsort()] for c in (k, v))
        options["block_table"] = order.view(batch, -1).int()
    q = torch.randn(batch, queries, num_q, dim, generator=generator)
    options["kv_lens"] = torch.tensor(lens, dtype=torch.int32)
    moved = {n: o.to(DEVICE) if isinstance(o, torch.Tensor) else o for n, o in options.items()}
    if "q_lens" in moved:
        moved["q_lens"] = torch.tensor(moved["q_lens"], dtype=torch.int32, device=DEVICE)
    stored = kv_dtype or dtype
    return Batch(q.to(DEVICE, dtype), k.to(DEVICE, stored), v.to(DEVICE, stored), moved)


def _documents(docs: list[list[int | tuple[int, int]]]) -> dict[str, torch.Tensor]:
    width = max(map(len, docs))
    lens, offsets = (torch.zeros(len(docs), width, dtype=torch.int32) for _ in range(2))
    for b, request in enumerate(docs):
        position = 0
        for i, document in enumerate(request):
            length, position = document if isinstance(document, tuple) else (document, position)
            lens[b, i], offsets[b, i] = length, position
            position += length
    return {"doc_lens": lens, "doc_offsets": offsets}


def _used(lens: list[int], block: int) -> list[int]:
    rows, start = [], 0
    for length in lens:
        rows += range(start, start + length)
        start += -(-length // block) * block if block else length
    return rows


def assert_close(o: torch.Tensor, expected: torch.Tensor) -> None:
    """o agrees with the float64 reference within the bounds of its dtype, everywhere."""
    error = (o.double() - expected).abs().max().item()
    relative = ((o.double() - expected).norm() / expected.norm()).item()

    assert error <= MAX_ERROR[o.dtype], f"largest error {error:.3g}"
    assert relative <= MAX_RELATIVE_ERROR[o.dtype], f"relative error {relative:.3g}"


@pytest.fixture
def batch() -> Callable[..., Batch]:
    """Makes inputs: see `make_batch`."""
    return make_batch


@pytest.fixture
def check() -> Callable[..., None]:
    """Runs a kernel into an output filled with NaN and compares it with the reference."""
    from kvtool.kernels import load

    assert HAS_GPU or os.environ.get("TRITON_INTERPRET") == "1"

    def run(name: str, inputs: Batch, **how: Any) -> None:
        expected = load("reference").attention(inputs.q, inputs.k, inputs.v, **inputs.options)
        out = torch.full_like(inputs.q, torch.nan)

        o = load(name).attention(inputs.q, inputs.k, inputs.v, **inputs.options, **how, out=out)

        assert o.data_ptr() == out.data_ptr()
        assert_close(o, expected)

    return run
