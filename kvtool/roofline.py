"""Operations, bytes, and the time no attention kernel can beat.

An attention task has a least amount of work: every score that the mask keeps costs two
multiply-adds per head dimension (QK and PV), and q, k, v and o each cross the memory bus once.
Its floor is the larger of operations over the arithmetic rate and bytes over the bandwidth.
Not counted: softmax, page tables, padding, partial results of split kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvtool.errors import ShapeError

Bound = Literal["compute", "memory"]


@dataclass(frozen=True, slots=True)
class AttentionTask:
    """One attention call: the queries of each sequence against the keys it holds.

    The queries are the last `query_tokens` of each sequence, so a causal mask is aligned to the
    bottom right. `kv_lens` has one entry per sequence; `window` is the number of keys a causal
    query sees, its own included, and None means all. Element sizes are in bytes.
    """

    kv_lens: tuple[int, ...]
    query_tokens: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    element_bytes: int = 2
    kv_element_bytes: int = 2
    causal: bool = True
    window: int | None = None

    def __post_init__(self) -> None:
        sizes = (self.query_tokens, self.num_q_heads, self.num_kv_heads, self.head_dim)
        if not self.kv_lens or min(*sizes, *self.kv_lens) < 1:
            raise ShapeError(
                f"an attention task needs at least one token, head and dimension, not {self}",
                "every length, head count and head_dim is 1 or more",
            )
        if self.num_q_heads % self.num_kv_heads:
            raise ShapeError(
                f"{self.num_q_heads} query heads do not divide among {self.num_kv_heads} "
                "key/value heads",
                "the query heads must be a multiple of the key/value heads",
            )
        if self.window is not None and (self.window < 1 or not self.causal):
            raise ShapeError(
                f"a window of {self.window} tokens with causal={self.causal}",
                "a window counts at least the query's own token, and needs a causal mask",
            )
        if self.causal and min(self.kv_lens) < self.query_tokens:
            raise ShapeError(
                f"{self.query_tokens} causal queries against {min(self.kv_lens)} keys",
                "a causal query needs its own key: the context must hold the queries",
            )

    @property
    def batch_size(self) -> int:
        return len(self.kv_lens)


@dataclass(frozen=True, slots=True)
class Roof:
    """What a device can do at most: dense operations and bytes, each per second."""

    flops_per_s: float
    bandwidth_bytes_per_s: float


def scores(task: AttentionTask) -> int:
    """Query-key pairs of one head that the mask keeps, over all sequences.

    >>> scores(AttentionTask((4,), 4, 1, 1, 1))
    10
    """
    return sum(_sequence_scores(task, length) for length in task.kv_lens)


def _sequence_scores(task: AttentionTask, length: int) -> int:
    """The sum over queries of the keys each one sees, in closed form."""
    queries = task.query_tokens
    if not task.causal:
        return queries * length
    first = length - queries + 1
    if task.window is None or task.window >= length:
        return (first + length) * queries // 2
    growing = max(0, task.window - first)
    return (first + first + growing - 1) * growing // 2 + (queries - growing) * task.window


def flops(task: AttentionTask) -> int:
    """Operations of the task: 4 x head_dim for each score of each query head.

    A multiply-add counts as two. Prefill over n tokens is 4 B H D n (n + 1) / 2: the exact count,
    which the usual "half of the square" approaches from above.
    """
    return 4 * task.num_q_heads * task.head_dim * scores(task)


def materialised_flops(task: AttentionTask) -> int:
    """Operations of code that computes every score and masks afterwards."""
    pairs = task.query_tokens * sum(task.kv_lens)
    return 4 * task.num_q_heads * task.head_dim * pairs


def recompute_flops(task: AttentionTask) -> int:
    """Operations of code that has no cache: the whole prefix is queried again, with all scores."""
    squares = sum(length * length for length in task.kv_lens)
    return 4 * task.num_q_heads * task.head_dim * squares


def rotation_flops(rows: int, num_heads: int, rotary_dim: int) -> int:
    """Operations to turn `rows` vectors of each head by an angle: 3 for each rotated element.

    A pair takes four multiplications and two additions (arXiv 2606.04302, section 3.1).
    """
    return 3 * rows * num_heads * rotary_dim


def bytes_moved(task: AttentionTask) -> int:
    """Bytes of q and o, and of the keys and values in sight, each once and as stored.

    >>> bytes_moved(AttentionTask((32768,), 1, 32, 8, 128))
    134234112
    """
    queries = 2 * task.batch_size * task.query_tokens * task.num_q_heads * task.head_dim
    rows = sum(_rows_in_sight(task, length) for length in task.kv_lens)
    cache = 2 * rows * task.num_kv_heads * task.head_dim
    return queries * task.element_bytes + cache * task.kv_element_bytes


def _rows_in_sight(task: AttentionTask, length: int) -> int:
    """Keys of one sequence that at least one query sees."""
    if task.window is None:
        return length
    return min(length, task.window + task.query_tokens - 1)


def floor_seconds(task: AttentionTask, roof: Roof) -> float:
    """The time that no kernel beats: the longer of arithmetic and traffic."""
    return max(_seconds(task, roof))


def bound(task: AttentionTask, roof: Roof) -> Bound:
    """Which side of the roof limits the task."""
    compute, memory = _seconds(task, roof)
    return "compute" if compute > memory else "memory"


def _seconds(task: AttentionTask, roof: Roof) -> tuple[float, float]:
    return flops(task) / roof.flops_per_s, bytes_moved(task) / roof.bandwidth_bytes_per_s


def intensity(task: AttentionTask) -> float:
    """Operations per byte; below the roof's ridge the task is bound by memory."""
    return flops(task) / bytes_moved(task)


def ridge(roof: Roof) -> float:
    """Operations per byte at which the two sides of the roof meet."""
    return roof.flops_per_s / roof.bandwidth_bytes_per_s
