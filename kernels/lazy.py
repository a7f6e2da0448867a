"""Attention over documents cached in frames of their own: the offset is applied in the kernel.

A document's keys are stored once, as if it began at position 0 (or unrotated); a request places
it at doc_offsets. Since rotation scores depend on distance alone, turning the query by
m - offset once per document equals turning every key forward by the offset. Variants:

  rotate-q        the query turned once per document, from its untouched self in float32
  rotate-k        each key tile turned by its document's offset
  rematerialise   a copy of the cache with keys turned to their positions, then flash
  merge           one attention per document, merged by log-sum-exp
  unsplit         rotate-q with one program per sequence and kv head and one block of 16 tokens
                  at a time, as the paper's public decode kernel works; Triton decode only

Exact, up to rounding, against copying and re-rotating the cache; documents do not attend to each
other, so it is not full attention over their concatenation. Source: LazyAttention, arXiv
2606.04302.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from kvtool.errors import UsageError, did_you_mean
from kvtool.kernels import VARIANTS
from kvtool.kernels.checks import Call, Options, check
from kvtool.kernels.merge import merge, plan_merge
from kvtool.kernels.paths import choose_path, make_plan, run
from kvtool.kernels.plan import Plan
from kvtool.kernels.rematerialise import plan_copy, rematerialise
from kvtool.kernels.worklist import is_decode

DEFAULT_VARIANT = "rotate-q"
"""Faster than rotate-k at every document length measured: docs/kernels/lazy.md."""


def attention(q: Tensor, k: Tensor, v: Tensor, **options: Unpack[Options]) -> Tensor:
    """o: [B, T, H, D] in q.dtype; sums are float32; arguments as in `check`, documents required.

    q is untouched by rotation where `rope` is given. Without `rope` (ALiBi, no positions)
    documents only place keys for mask, window and bias.
    """
    call = check(q, k, v, **options)
    plan = call.plan or _plan(call)
    if plan.variant == "rematerialise":
        return rematerialise(call, plan)
    if plan.variant == "merge":
        return merge(call, plan)
    return run(call, plan)


def plan(q: Tensor, k: Tensor, v: Tensor, **options: Unpack[Options]) -> Plan:
    """Lengths read and checked, path and variant chosen, their tables built on the device of q."""
    return _plan(check(q, k, v, **options))


def _plan(call: Call) -> Plan:
    if call.doc_lens is None:
        raise UsageError(
            "'lazy' needs doc_lens and doc_offsets", "a plain sequence is one document at offset 0"
        )
    variant = call.variant or DEFAULT_VARIANT
    known = VARIANTS["lazy"]
    if variant not in known:
        raise UsageError(
            f"'lazy' has no variant '{variant}'",
            did_you_mean(variant, known, f"variants: {', '.join(known)}"),
        )
    if variant == "rotate-k" and call.rope is not None and call.rope.keys == "unrotated":
        raise UsageError(
            "'rotate-k' is for keys stored in their document's frame",
            "unrotated keys are turned in the kernel whatever the variant; leave it out",
        )
    if variant == "unsplit" and (choose_path(call) != "triton" or not is_decode(call)):
        raise UsageError(
            "'unsplit' is a way to decode in Triton", "use it with few queries on a CUDA device"
        )
    if variant == "rematerialise":
        return plan_copy(call)
    if variant == "merge":
        return plan_merge(call)
    return make_plan(call, variant)
