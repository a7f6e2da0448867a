"""Reuse rules: which cached bytes count as the same, as keys over one stream of requests.

- `lazy`: one copy per document, at any position: the key is the document.
- `position-aware`: one copy per document and position: (document, token offset of its first token,
  page padding included).
- `two-copy`: as `lazy`, but a document is charged twice its bytes (a canonical and a rotated copy).
- `prefix`: the chain of everything before; a hit needs the unbroken run from the prompt's start.

A repeat of a document inside one prompt is looked up, never hits and is not touched again. Block
traces name blocks by their prefix, so only `prefix` is defined on them; `BlockRules` are the
engine's switches for it, with vLLM's values as defaults (vllm/v1/core/kv_cache_manager.py: full
blocks are hashed, a hit is at most prompt - 1 tokens, blocks are freed tail first, and those of the
output are cached like others).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvtool.workload.requests import (
    BlockRequests,
    Bools,
    DocumentRequests,
    Ints,
    by_position,
    position_in_request,
    request_of_access,
)

RULES = ("prefix", "position-aware", "two-copy", "lazy")


@dataclass(frozen=True, slots=True)
class BlockRules:
    """How an engine treats the blocks of a request.

    tail_first: within a request the last block is the least recent.  full_blocks_only: a partial
    last block takes room, is not looked up and never hits.  reserve_last_token: at most prompt - 1
    tokens hit, so the last block of a prompt that fills it is computed again.  cache_outputs:
    generated tokens take blocks too, which no later prompt of the trace names.  pinned: requests in
    flight whose blocks cannot be evicted.
    """

    tail_first: bool = True
    full_blocks_only: bool = True
    reserve_last_token: bool = True
    cache_outputs: bool = True
    pinned: int = 1


@dataclass(frozen=True, slots=True)
class Accesses:
    """What a cache sees, in prompt order.

    keys: [n] the entries each request touches, no key twice in a request.  sizes: [n] bytes, or one
    number for all.  starts: [R + 1].  can_hit: [n] false for what is never found.  tokens: [n]
    prompt tokens that a hit saves.  lookups, request_tokens: [R] what the rates are shares of.
    unbroken: a key behind a missing one of the same request is not found.
    tail_first: a request's keys are touched from its end, else from its start.
    """

    keys: Ints
    sizes: Ints | int
    starts: Ints
    can_hit: Bools
    tokens: Ints
    lookups: Ints
    request_tokens: Ints
    unbroken: bool
    tail_first: bool = True

    @property
    def largest(self) -> int:
        """Bytes of the largest entry; 0 without entries."""
        if isinstance(self.sizes, int):
            return self.sizes
        return int(self.sizes.max()) if len(self.sizes) else 0


def touch_order(accesses: Accesses) -> Ints:
    """[n] where each touch stands in the prompts; its own inverse."""
    order = np.arange(len(accesses.keys), dtype=np.int64)
    if not accesses.tail_first:
        return order
    starts = accesses.starts
    mirrored: Ints = (starts[:-1] + starts[1:] - 1)[request_of_access(starts)] - order
    return mirrored


def document_accesses(
    rule: str,
    requests: DocumentRequests,
    document_bytes: Callable[[Ints], Ints],
    page_tokens: int,
) -> Accesses:
    """The accesses of document requests under a reuse rule.

    document_bytes: bytes of documents from their padded token counts, [n] to [n].
    page_tokens: documents are padded to whole pages, for their bytes and their offsets.
    """
    padded = -(-requests.tokens // page_tokens) * page_tokens
    keys = _document_keys(rule, requests, padded)
    first = ~requests.repeats
    lengths = np.diff(requests.starts)
    request = request_of_access(requests.starts)
    kept = np.bincount(request[first], minlength=requests.requests)
    copies = 2 if rule == "two-copy" else 1
    tokens = np.concatenate(([0], np.cumsum(requests.tokens)))
    return Accesses(
        keys=keys[first],
        sizes=_sizes(padded[first], document_bytes, copies),
        starts=np.concatenate(([0], np.cumsum(kept))).astype(np.int64),
        can_hit=np.ones(int(first.sum()), dtype=np.bool_),
        tokens=requests.tokens[first],
        lookups=lengths,
        request_tokens=tokens[requests.starts[1:]] - tokens[requests.starts[:-1]],
        unbroken=rule == "prefix",
    )


def _sizes(padded: Ints, document_bytes: Callable[[Ints], Ints], copies: int) -> Ints | int:
    """Bytes of each document, one number where all are as long; each length is asked for once."""
    if len(padded) and int(padded.min()) == int(padded.max()):
        return int(document_bytes(padded[:1])[0]) * copies
    distinct, which = np.unique(padded, return_inverse=True)
    return document_bytes(distinct)[which] * copies


def _document_keys(rule: str, requests: DocumentRequests, padded: Ints) -> Ints:
    if rule in ("lazy", "two-copy"):
        return requests.docs
    if rule == "position-aware":
        before = np.concatenate(([0], np.cumsum(padded)))[:-1]
        offset = before - np.repeat(before[requests.starts[:-1]], np.diff(requests.starts))
        return _pair(requests.docs, offset)
    if rule == "prefix":
        return chain_keys(requests.docs, requests.starts)
    raise AssertionError(rule)


def _pair(first: Ints, second: Ints) -> Ints:
    """One number for each pair of numbers from 0 up, equal for equal pairs."""
    if not len(first):
        return first
    width = int(second.max()) + 1
    if (int(first.max()) + 1) * width > 1 << 62:
        first = np.unique(first, return_inverse=True)[1]
        second = np.unique(second, return_inverse=True)[1]
        width = int(second.max()) + 1
    paired: Ints = first * width + second
    return paired


def chain_keys(ids: Ints, starts: Ints) -> Ints:
    """One number per chain of ids from a request's start, equal for equal chains.

    Position by position: the chain up to an id is the pair of the chain before it and the id.
    """
    keys = np.empty(len(ids), dtype=np.int64)
    used = 0
    for slot, here in enumerate(by_position(starts)):
        chain = _pair(keys[here - 1], ids[here]) if slot else ids[here]
        unique, inverse = np.unique(chain, return_inverse=True)
        keys[here] = inverse + used
        used += len(unique)
    return keys


def is_tree(ids: Ints, starts: Ints) -> bool:
    """Whether an id always stands behind one and the same id, and once per request."""
    parent = np.empty(len(ids), dtype=np.int64)
    parent[1:] = ids[:-1]
    filled = starts[:-1][np.diff(starts) > 0]
    parent[filled] = -1
    unique, first = np.unique(ids, return_index=True)
    expected = parent[first][np.searchsorted(unique, ids)]
    return bool((parent == expected).all())


def block_accesses(
    requests: BlockRequests, rules: BlockRules, block_bytes: int, *, alone: bool
) -> Accesses:
    """The accesses of a block trace under `prefix` and an engine's rules.

    alone: every block is an object of its own, found whatever stands before it (what a simulator
    of independent objects counts). Ids that are no prefix hashes are chained first.
    """
    block = requests.block_size
    ids = requests.ids
    if not is_tree(ids, requests.starts):
        ids = chain_keys(ids, requests.starts)
    lengths = np.diff(requests.starts)
    full = requests.input_tokens // block
    named = np.minimum(lengths, full) if rules.full_blocks_only else lengths
    ending = requests.input_tokens + (requests.output_tokens if rules.cache_outputs else 0)
    blocks = np.maximum(-(-ending // block), named)
    starts = np.concatenate(([0], np.cumsum(blocks))).astype(np.int64)
    position = position_in_request(starts)
    request = request_of_access(starts)
    is_named = position < named[request]
    keys = np.empty(len(position), dtype=np.int64)
    keys[is_named] = ids[(requests.starts[:-1][request] + position)[is_named]]
    fresh = int(ids.max()) + 1 if len(ids) else 0
    keys[~is_named] = fresh + np.arange(int((~is_named).sum()))
    prompt = requests.input_tokens[request]
    tokens = np.clip(prompt - position * block, 0, block)
    can_hit = is_named
    if rules.reserve_last_token and rules.full_blocks_only:
        can_hit = is_named & ((position + 1) * block < prompt)
    elif rules.reserve_last_token:
        tokens = tokens - ((position + 1) * block >= prompt)
        can_hit = is_named & (tokens > 0)
    return Accesses(
        keys=keys,
        sizes=block_bytes,
        starts=starts,
        can_hit=can_hit,
        tokens=tokens,
        lookups=named,
        request_tokens=requests.input_tokens,
        unbroken=not alone,
        tail_first=rules.tail_first,
    )
