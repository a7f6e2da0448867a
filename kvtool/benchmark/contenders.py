"""Who runs: our kernels under the shape that every contender has.

A contender takes a layout, does whatever may be done once (plans, views, compilation), and hands
back a call without arguments. Peers have the same shape (`peers`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtool.benchmark.cases import Case, Phase
from kvtool.benchmark.inputs import Layout, LayoutName
from kvtool.errors import UsageError, did_you_mean
from kvtool.kernels import NAMES, VARIANTS, load
from kvtool.roofline import flops, materialised_flops, recompute_flops, rotation_flops

if TYPE_CHECKING:
    from torch import Tensor

UNFUSED = ("naive", "cached")
SCORE_BYTES = 14
"""Bytes per score that unfused code holds at its peak: the product in 16 bits, a float32 copy and
its softmax, and the mask."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call ready to be timed, which returns [B, T, H, D]; the path and variant it takes."""

    call: Callable[[], Tensor]
    path: str
    variant: str | None = None


@dataclass(frozen=True, slots=True)
class Contender:
    """One implementation.

    layouts: what it reads in each phase; a phase that is missing it does not do.
    prepare: everything that happens once.  refuses: why it cannot run a case, or None.
    executed_flops: operations of its algorithm, by variant.  scratch_bytes: memory beside the
    inputs.  ragged: whether sequences may differ in length.  rounds_scores: whether scores are
    written in the dtype of the run, which costs accuracy.  odd: whether it is checked on odd
    lengths, which costs a compilation each where lengths are compiled in.
    """

    name: str
    layouts: Mapping[Phase, LayoutName]
    prepare: Callable[[Layout], Prepared]
    executed_flops: Callable[[Case, str | None], int]
    kernel: str | None = None
    variant: str | None = None
    refuses: Callable[[Case], str | None] = lambda case: None
    scratch_bytes: Callable[[Case], int] = lambda case: 0
    ragged: bool = False
    rounds_scores: bool = False
    odd: bool = True


def ours(kernels: Sequence[str], variants: Sequence[str] = ()) -> list[Contender]:
    """Contenders for kernels by name; `variants` are those of `lazy`, none means its own choice.

    Raises UsageError for an unknown kernel or variant, and for variants without their kernel.
    """
    for name in kernels:
        if name not in NAMES:
            raise UsageError(
                f"no kernel named '{name}'",
                did_you_mean(name, NAMES, f"kernels: {', '.join(NAMES)}"),
            )
    known = {variant: name for name, own in VARIANTS.items() for variant in own}
    for variant in variants:
        if variant not in known:
            raise UsageError(
                f"no variant named '{variant}'",
                did_you_mean(variant, known, f"variants: {', '.join(known)}"),
            )
        if known[variant] not in kernels:
            raise UsageError(
                f"'{variant}' is a variant of '{known[variant]}', which is not in the run",
                f"add it: --kernel {','.join([*kernels, known[variant]])}",
            )
    chosen: list[Contender] = []
    for name in dict.fromkeys(kernels):
        mine = [variant for variant in variants if known[variant] == name]
        chosen += [_ours(name, variant) for variant in mine or (None,)]
    return chosen


_LAYOUTS: dict[str, dict[Phase, LayoutName]] = {
    "naive": {"prefill": "plain", "decode": "prefix"},
    "cached": {"prefill": "plain", "decode": "plain"},
    "flash": {"prefill": "plain", "decode": "paged"},
    "lazy": {"prefill": "documents", "decode": "documents-paged"},
}


def _ours(name: str, variant: str | None) -> Contender:
    def prepare(layout: Layout) -> Prepared:
        import torch

        kernel = load(name)
        plan = kernel.plan(layout.q, layout.k, layout.v, variant=variant, **layout.options)
        out = torch.full_like(layout.q, torch.nan)

        def call() -> Tensor:
            o: Tensor = kernel.attention(
                layout.q, layout.k, layout.v, variant=variant, plan=plan, out=out, **layout.options
            )
            return o

        return Prepared(call, plan.path, plan.variant)

    return Contender(
        name=name if variant is None else f"{name} {variant}",
        layouts=_LAYOUTS[name],
        prepare=prepare,
        executed_flops=_EXECUTED[name],
        kernel=name,
        variant=variant,
        scratch_bytes=_SCRATCH.get(name, lambda case: 0),
        ragged=True,
        rounds_scores=name in UNFUSED,
    )


def _naive_scratch(case: Case) -> int:
    return SCORE_BYTES * case.batch_size * case.heads.num_q_heads * case.context_tokens**2


def _cached_scratch(case: Case) -> int:
    scores = case.query_tokens * case.context_tokens
    return SCORE_BYTES * case.batch_size * case.heads.num_q_heads * scores


_SCRATCH: dict[str, Callable[[Case], int]] = {"naive": _naive_scratch, "cached": _cached_scratch}


def _lazy_flops(case: Case, variant: str | None) -> int:
    """Scores, and the rotations: of queries once per document in sight, or of every key."""
    heads = case.heads
    if variant in ("rotate-k", "rematerialise"):
        rows = case.batch_size * case.context_tokens
        return flops(case.task) + rotation_flops(rows, heads.num_kv_heads, heads.head_dim)
    rows = case.batch_size * _documents_in_sight(case)
    return flops(case.task) + rotation_flops(rows, heads.num_q_heads, heads.head_dim)


def _documents_in_sight(case: Case) -> int:
    """Documents that begin at or before each query, summed over the queries of a sequence."""
    starts = range(0, case.context_tokens, case.doc_tokens)
    first = case.context_tokens - case.query_tokens
    return sum(case.context_tokens - max(start, first) for start in starts)


_EXECUTED: dict[str, Callable[[Case, str | None], int]] = {
    "naive": lambda case, variant: recompute_flops(case.task),
    "cached": lambda case, variant: materialised_flops(case.task),
    "flash": lambda case, variant: flops(case.task),
    "lazy": _lazy_flops,
}
