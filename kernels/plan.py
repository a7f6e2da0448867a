"""What a call must know about its lengths before anything is launched.

Lengths live in tensors, perhaps on a GPU, and reading them there stalls it. A plan reads them
once, checks their values, and serves every later call with the same lengths, also inside a CUDA
graph. Tables that a path needs on the device (work lists, rotation rows) hang on the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Document(NamedTuple):
    """A run of keys with consecutive positions; a plain sequence is one document at offset 0.

    row: where it begins among the sequence's key rows (a multiple of the block size if paged).
    length: tokens.  offset: the position of its first token within the request.
    """

    row: int
    length: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The host's view of one batch.

    path: "triton" or "torch", the code that will run.  variant: of the kernel, by name, or None.
    kv_lens, q_lens: tokens per sequence.  q_starts: the position of each first query; queries
    are the last tokens of their sequence.  documents: per sequence, in order of their rows.
    tables: what the path keeps on the device.
    """

    path: str
    variant: str | None
    kv_lens: tuple[int, ...]
    q_lens: tuple[int, ...]
    q_starts: tuple[int, ...]
    documents: tuple[tuple[Document, ...], ...]
    tables: Any = None
