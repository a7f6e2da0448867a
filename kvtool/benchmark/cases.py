"""What is timed: one shape, one phase, one dtype; and the lists that a command line stands for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvtool.dtype import DTYPES
from kvtool.errors import UsageError
from kvtool.model.spec import Attention, Latent, ModelSpec
from kvtool.roofline import AttentionTask

Phase = Literal["prefill", "decode"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")
MASKS = ("causal", "full")
QUERY_DTYPES = ("bfloat16", "float16", "float32")
FP8_DTYPES = ("fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention shape of one layer on one device, and where it comes from."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    origin: str

    def __post_init__(self) -> None:
        if min(self.num_q_heads, self.num_kv_heads, self.head_dim) < 1:
            raise UsageError(
                f"{self.num_q_heads} query heads, {self.num_kv_heads} key/value heads of "
                f"{self.head_dim} are not a shape",
                "each is 1 or more",
            )
        if self.num_q_heads % self.num_kv_heads:
            raise UsageError(
                f"{self.num_q_heads} query heads do not divide among {self.num_kv_heads} "
                "key/value heads",
                "--heads must be a multiple of --kv-heads",
            )

    def sharded(self, tp: int) -> Heads:
        """The share of one of `tp` devices; KV heads are copied once there are fewer than devices.

        >>> Heads(32, 8, 128, "llama-3-8b").sharded(16)
        Heads(num_q_heads=2, num_kv_heads=1, head_dim=128, origin='llama-3-8b, TP 16')
        """
        if tp == 1:
            return self
        kv = self.num_kv_heads
        if tp < 1 or self.num_q_heads % tp or (kv % tp and tp % kv):
            raise UsageError(
                f"{self.num_q_heads} query and {kv} key/value heads do not divide over TP {tp}",
                "--tp must divide the query heads, and divide the key/value heads or be a "
                "multiple of them",
            )
        return Heads(
            self.num_q_heads // tp, max(1, kv // tp), self.head_dim, f"{self.origin}, TP {tp}"
        )


def heads_of(model: ModelSpec) -> tuple[Heads, str | None]:
    """The shape of the model's first full attention layer, and a remark where that is not all.

    UsageError for models without plain attention: `bench` has no kernel for latent or recurrent
    layers.
    """
    attention = [state for state in model.states() if isinstance(state, Attention)]
    full = [state for state in attention if state.kind == "full"]
    if not attention:
        kind = "MLA" if any(isinstance(s, Latent) for s in model.states()) else "recurrent"
        raise UsageError(
            f"{kind} models such as '{model.name}' are not supported by `bench` yet",
            "name a model with plain attention, or a shape: --heads 32 --kv-heads 8 --head-dim 128",
        )
    first = (full or attention)[0]
    heads = Heads(first.num_q_heads, first.num_kv_heads, first.head_dim, model.name)
    if first.v_head_dim != first.head_dim:
        raise UsageError(
            f"'{model.name}' has keys of {first.head_dim} and values of {first.v_head_dim} "
            "dimensions, which is not supported by `bench` yet",
            "name a shape: --heads 32 --kv-heads 8 --head-dim 128",
        )
    if len(set(attention)) == 1 and first.kind == "full":
        return heads, None
    return heads, (
        f"{model.name} has layers of several kinds; a full attention layer of {first.num_q_heads} "
        f"query and {first.num_kv_heads} key/value heads is timed"
    )


@dataclass(frozen=True, slots=True)
class Case:
    """One shape to time. Prefill queries the whole context, decode its last token.

    `mask` is causal, or full for encoders; a decoded token sees everything under both.

    `doc_tokens` is the length of a document for the lazy kernel (the last one is shorter where it
    does not divide); every other contender sees the same tokens as one sequence.
    """

    phase: Phase
    batch_size: int
    context_tokens: int
    heads: Heads
    dtype: str
    kv_dtype: str
    block_size: int
    doc_tokens: int
    mask: str = "causal"
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.batch_size, self.context_tokens, self.block_size, self.doc_tokens) < 1:
            raise UsageError(
                f"batch {self.batch_size}, context {self.context_tokens}, block size "
                f"{self.block_size}, documents of {self.doc_tokens} tokens",
                "each is 1 or more",
            )
        if self.doc_tokens % self.block_size:
            raise UsageError(
                f"documents of {self.doc_tokens} tokens do not fill blocks of {self.block_size}",
                "--doc-tokens must be a multiple of --block-size, so that lazy and plain rows "
                "read the same blocks",
            )

    @property
    def query_tokens(self) -> int:
        return self.context_tokens if self.phase == "prefill" else 1

    @property
    def documents(self) -> int:
        """Documents in each sequence."""
        return -(-self.context_tokens // self.doc_tokens)

    @property
    def task(self) -> AttentionTask:
        return AttentionTask(
            kv_lens=(self.context_tokens,) * self.batch_size,
            query_tokens=self.query_tokens,
            num_q_heads=self.heads.num_q_heads,
            num_kv_heads=self.heads.num_kv_heads,
            head_dim=self.heads.head_dim,
            element_bytes=DTYPES[self.dtype].block_bytes,
            kv_element_bytes=DTYPES[self.kv_dtype].block_bytes,
            causal=self.mask == "causal",
        )

    @property
    def label(self) -> str:
        """`decode B32 S4096 q32 kv8 d128 bfloat16`, with cache dtype and mask where they differ."""
        h = self.heads
        kv = "" if self.kv_dtype == self.dtype else f"/{self.kv_dtype}"
        return (
            f"{self.phase} B{self.batch_size} S{self.context_tokens} q{h.num_q_heads} "
            f"kv{h.num_kv_heads} d{h.head_dim} {self.dtype}{kv}"
            f"{'' if self.mask == 'causal' else ' full mask'}"
        )


@dataclass(frozen=True, slots=True)
class Defaults:
    """Shapes of a run that names none: (batch, context) by phase."""

    dtype: str
    shapes: dict[Phase, tuple[tuple[int, int], ...]]
    heads: Heads | None


GPU_DEFAULTS = Defaults(
    dtype="bfloat16",
    shapes={"prefill": ((1, 4096),), "decode": ((1, 4096), (1, 32768), (32, 4096))},
    heads=None,
)
"""Decode with one sequence, short enough for `naive` and then long, and with many sequences."""

CPU_DEFAULTS = Defaults(
    dtype="float32",
    shapes={"prefill": ((1, 256),), "decode": ((1, 512), (4, 128))},
    heads=Heads(8, 2, 64, "small shape for a CPU"),
)


def sweep(
    *,
    phases: Sequence[Phase],
    batches: Sequence[int] | None,
    contexts: Sequence[int] | None,
    shapes: Sequence[tuple[int, int]] | None,
    heads: Heads,
    dtypes: Sequence[str],
    kv_dtypes: Sequence[str],
    block_sizes: Sequence[int],
    doc_tokens: Sequence[int] | None,
    masks: Sequence[str],
    defaults: Defaults,
    seed: int,
) -> list[Case]:
    """One case per combination, in the order in which the lists were typed.

    `shapes` are pairs of batch and context; else every batch is combined with every context.
    Without any of them the shapes are those of `defaults`; with only batches or contexts, the
    other is the contexts of the defaults, or 1 sequence. `auto` as cache dtype is the dtype
    of the run. Documents default to 1024 tokens, less where a context holds fewer than two.
    """
    cases: list[Case] = []
    for phase in phases:
        pairs = shapes or _shapes(phase, batches, contexts, defaults)
        for (batch, context), dtype, kv_dtype, block, doc, mask in itertools.product(
            pairs,
            dtypes,
            kv_dtypes,
            block_sizes,
            doc_tokens or (None,),
            masks if phase == "prefill" else ("causal",),
        ):
            cases.append(
                Case(
                    phase=phase,
                    batch_size=batch,
                    context_tokens=context,
                    heads=heads,
                    dtype=dtype,
                    kv_dtype=dtype if kv_dtype == "auto" else kv_dtype,
                    block_size=block,
                    doc_tokens=doc or default_doc_tokens(context, block),
                    mask=mask,
                    seed=seed,
                )
            )
    return cases


def _shapes(
    phase: Phase, batches: Sequence[int] | None, contexts: Sequence[int] | None, defaults: Defaults
) -> list[tuple[int, int]]:
    if batches is None and contexts is None:
        return list(defaults.shapes[phase])
    known = list(dict.fromkeys(context for _, context in defaults.shapes[phase]))
    return list(itertools.product(batches or (1,), contexts or known))


def default_doc_tokens(context_tokens: int, block_size: int) -> int:
    """1024, or about a quarter of a shorter context, in whole blocks.

    >>> default_doc_tokens(32768, 16), default_doc_tokens(256, 16), default_doc_tokens(1, 16)
    (1024, 64, 16)
    """
    wanted = min(1024, max(1, context_tokens // 4))
    return max(1, wanted // block_size) * block_size
