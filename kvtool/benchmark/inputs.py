"""Random tokens of a case, in the layouts in which different code wants them.

All contenders read the same tokens: unrotated queries and keys from one seed, drawn from a normal
distribution. A layout rotates, pages or quantises them, outside the clock:

    plain            q and k rotated to their positions, k and v contiguous
    prefix           the same with the queries of the whole prefix, for code without a cache
    paged            as plain, k and v in a pool of shuffled blocks
    documents        q untouched, keys rotated within their document, contiguous
    documents-paged  the same in a pool of shuffled blocks
    unrotated        q and k untouched, paged: for code that rotates every key itself
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kvtool.kernels.rope import Rope

LayoutName = Literal["plain", "prefix", "paged", "documents", "documents-paged", "unrotated"]
ROPE_THETA = 500_000.0
"""Base of the rotary frequencies, as in Llama 3's configuration; speed does not depend on it."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """One input set: q [B, T, H, D], k and v [B, S, Hkv, D], all unrotated, in the run's dtype.

    Sequence b holds `kv_lens[b]` <= S tokens, cut into documents of `doc_tokens`; its queries are
    the last T of them.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    kv_lens: tuple[int, ...]
    doc_tokens: int
    block_size: int
    kv_dtype: str
    causal: bool
    rope: Rope


@dataclass(frozen=True, slots=True)
class Layout:
    """Tensors for one call, and the options that tell a kernel what they mean."""

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any] = field(default_factory=dict)


def draw(
    *,
    kv_lens: tuple[int, ...],
    query_tokens: int,
    heads: tuple[int, int, int],
    dtype: str,
    kv_dtype: str,
    block_size: int,
    doc_tokens: int,
    causal: bool,
    device: torch.device,
    seed: int,
) -> Tokens:
    """Tokens from `seed`; `heads` is (query heads, key/value heads, head_dim)."""
    import torch

    from kvtool.kernels.rope import from_parameters

    num_q, num_kv, dim = heads
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator, device=device)
        return values.to(getattr(torch, dtype))

    batch, longest = len(kv_lens), max(kv_lens)
    return Tokens(
        q=normal(batch, query_tokens, num_q, dim),
        k=normal(batch, longest, num_kv, dim),
        v=normal(batch, longest, num_kv, dim),
        kv_lens=kv_lens,
        doc_tokens=doc_tokens,
        block_size=block_size,
        kv_dtype=kv_dtype,
        causal=causal,
        rope=from_parameters(dim, {"rope_theta": ROPE_THETA}),
    )


def arrange(tokens: Tokens, name: LayoutName) -> Layout:
    """`tokens` in the layout `name`."""
    return _LAYOUTS[name](tokens)


def _plain(tokens: Tokens) -> Layout:
    k, v, scales = _stored(tokens, _rotated_keys(tokens, by_document=False))
    return Layout(_rotated_queries(tokens), k, v, _lens(tokens) | scales)


def _prefix(tokens: Tokens) -> Layout:
    """Random queries for all earlier tokens, then those of `tokens`."""
    import torch

    batch, queries, heads, dim = tokens.q.shape
    earlier = (batch, tokens.k.shape[1] - queries, heads, dim)
    filler = torch.randn(earlier, dtype=tokens.q.dtype, device=tokens.q.device)
    return _plain(replace(tokens, q=torch.cat((filler, tokens.q), dim=1)))


def _paged(tokens: Tokens) -> Layout:
    plain = _plain(tokens)
    k, v, table = _pages(plain.k, plain.v, tokens)
    return Layout(plain.q, k, v, plain.options | {"block_table": table})


def _documents(tokens: Tokens) -> Layout:
    k, v, scales = _stored(tokens, _rotated_keys(tokens, by_document=True))
    return Layout(tokens.q, k, v, _lens(tokens) | scales | _document_options(tokens))


def _documents_paged(tokens: Tokens) -> Layout:
    documents = _documents(tokens)
    k, v, table = _pages(documents.k, documents.v, tokens)
    return Layout(documents.q, k, v, documents.options | {"block_table": table})


def _unrotated(tokens: Tokens) -> Layout:
    k, v, scales = _stored(tokens, tokens.k)
    k, v, table = _pages(k, v, tokens)
    whole = _document_options(replace(tokens, doc_tokens=tokens.k.shape[1]))
    whole["rope"] = replace(tokens.rope, keys="unrotated")
    return Layout(tokens.q, k, v, _lens(tokens) | scales | whole | {"block_table": table})


_LAYOUTS: dict[LayoutName, Callable[[Tokens], Layout]] = {
    "plain": _plain,
    "prefix": _prefix,
    "paged": _paged,
    "documents": _documents,
    "documents-paged": _documents_paged,
    "unrotated": _unrotated,
}


def _lens(tokens: Tokens) -> dict[str, Any]:
    import torch

    lens = torch.tensor(tokens.kv_lens, dtype=torch.int32, device=tokens.q.device)
    return {"kv_lens": lens, "causal": tokens.causal}


def _rotated_queries(tokens: Tokens) -> Tensor:
    import torch

    from kvtool.kernels.rope import rotate

    rows = torch.arange(tokens.q.shape[1], device=tokens.q.device) - tokens.q.shape[1]
    turned = [
        rotate(q, rows + length, tokens.rope)
        for q, length in zip(tokens.q, tokens.kv_lens, strict=True)
    ]
    return torch.stack(turned)


def _rotated_keys(tokens: Tokens, *, by_document: bool) -> Tensor:
    import torch

    from kvtool.kernels.rope import rotate

    positions = torch.arange(tokens.k.shape[1], device=tokens.k.device)
    if by_document:
        positions %= tokens.doc_tokens
    return torch.stack([rotate(k, positions, tokens.rope) for k in tokens.k])


def _document_options(tokens: Tokens) -> dict[str, Any]:
    """doc_lens and doc_offsets [B, N]: whole documents, then what is left."""
    import torch

    size, device = tokens.doc_tokens, tokens.q.device
    most = -(-max(tokens.kv_lens) // size)
    offsets = torch.arange(most, dtype=torch.int32, device=device) * size
    ends = torch.tensor(tokens.kv_lens, dtype=torch.int32, device=device)[:, None]
    return {
        "doc_lens": (ends - offsets).clamp(0, size),
        "doc_offsets": offsets.expand(len(tokens.kv_lens), most).contiguous(),
        "rope": tokens.rope,
    }


def _stored(tokens: Tokens, k: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Keys and values in the cache's dtype; fp8 with one scale each, from the largest element."""
    import torch

    fp8 = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}.get(tokens.kv_dtype)
    if fp8 is None:
        dtype = getattr(torch, tokens.kv_dtype)
        return k.to(dtype), tokens.v.to(dtype), {}
    largest = torch.finfo(fp8).max
    k_scale = float(k.abs().max()) / largest
    v_scale = float(tokens.v.abs().max()) / largest
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    return (k.float() / k_scale).to(fp8), (tokens.v.float() / v_scale).to(fp8), scales


def _pages(k: Tensor, v: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
    """k and v [B, S, Hkv, D] cut into blocks that lie in the pool in shuffled order.

    Returns pools [num_blocks, block_size, Hkv, D] and block_table [B, max_blocks] int32.
    Neighbouring blocks of a sequence are as far apart as in a pool that has been in use.
    """
    import torch

    batch, rows, heads, dim = k.shape
    blocks = -(-rows // tokens.block_size)
    missing = blocks * tokens.block_size - rows
    generator = torch.Generator(k.device).manual_seed(batch * blocks)
    place = torch.randperm(batch * blocks, generator=generator, device=k.device)

    def pool(cache: Tensor) -> Tensor:
        bits = cache.view(torch.uint8) if cache.element_size() == 1 else cache
        cut = torch.nn.functional.pad(bits, (0, 0, 0, 0, 0, missing))
        shape = (batch * blocks, tokens.block_size, heads, dim)
        shuffled = torch.empty(shape, dtype=bits.dtype, device=bits.device)
        shuffled[place] = cut.reshape(shape)
        return shuffled.view(cache.dtype)

    return pool(k), pool(v), place.view(batch, blocks).to(torch.int32)
