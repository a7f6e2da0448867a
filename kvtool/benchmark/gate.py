"""The gate: no speed without agreement.

An output passes when both hold against float64 on the same (rounded) inputs:

    max|out - ref|  <= 2 max|same - ref| + 2 max|(ref + 0.3) - 0.3 - ref| + 8 e max|ref|
    ||out - ref|| / ||ref|| <= the bound of the dtype

`same` is an eager implementation in the dtype of the run (FlashAttention's rule, as in its
`hopper/test_flash_attn.py`: a fused kernel may be twice as wrong as plain torch, no more). The
next term is the rounding of the output's own dtype. The last, with e the float32 epsilon, is
that of float32 sums in another order; it decides only in float32, where the largest of
few elements is a matter of luck. Before each call all uninitialised memory
is filled with NaN, so a row that is never written cannot pass; and the same input must give
the same bits twenty times, which is how a race shows. Peers may add in an order of their own each
time: each of their repeats must hold both bounds, and those that differ are counted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

REPEATS = 20
SUM_ROUNDING = 8
RELATIVE_BOUND = {"float32": 5e-6, "float16": 1e-3, "bfloat16": 5e-3}
"""Bounds of ||out - ref|| / ||ref|| for code that keeps scores in float32.

Fused code stays near 3e-7, 3e-4 and 2.5e-3; code that writes scores in the dtype of the run adds
their rounding and may take `ROUNDED_SCORES` times as much: eager torch reaches 5.3e-3 in bfloat16.
"""
ROUNDED_SCORES = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """Largest absolute error against float64, its allowance, the relative norm, and what failed.

    The errors are None where the output cannot be compared at all. `differing_repeats` counts the
    repeats whose bits are not those of the first call.
    """

    max_error: float | None
    allowed_error: float | None
    relative_error: float | None
    faults: tuple[str, ...]
    differing_repeats: int = 0

    @property
    def passed(self) -> bool:
        return not self.faults

    @property
    def gate(self) -> str:
        return "pass" if self.passed else "fail"


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill every freshly allocated torch tensor with NaN (integers: their maximum) inside."""
    import torch

    mode, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic.*")
            yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)


def judge(
    out: torch.Tensor,
    reference: torch.Tensor,
    same_dtype: torch.Tensor,
    dtype: str,
    *,
    rounds_scores: bool = False,
) -> Verdict:
    """Compare one output with float64 and with the eager code in its own dtype."""
    import torch

    if out.shape != reference.shape:
        return _incomparable(f"shape {tuple(out.shape)} instead of {tuple(reference.shape)}")
    if not bool(torch.isfinite(out).all()):
        return _incomparable(f"{int((~torch.isfinite(out)).sum())} elements are not finite")
    exact = reference.double()
    difference = out.double() - exact
    max_error = float(difference.abs().max())
    relative = float(torch.linalg.vector_norm(difference) / torch.linalg.vector_norm(exact))
    allowed = 2 * float((same_dtype.double() - exact).abs().max()) + _rounding(exact, out.dtype)
    allowed += SUM_ROUNDING * torch.finfo(torch.float32).eps * float(exact.abs().max())
    faults = []
    if not max_error <= allowed:
        faults.append(f"error {max_error:.2e} exceeds {allowed:.2e}")
    bound = RELATIVE_BOUND[dtype] * (ROUNDED_SCORES if rounds_scores else 1)
    if not relative <= bound:
        faults.append(f"relative error {relative:.2e} exceeds {bound:.0e}")
    return Verdict(max_error, allowed, relative, tuple(faults))


def _incomparable(fault: str) -> Verdict:
    return Verdict(None, None, None, (fault,))


def _rounding(exact: torch.Tensor, dtype: torch.dtype) -> float:
    """2 max|(ref + 0.3) - 0.3 - ref| in `dtype`."""
    rounded = exact.to(dtype)
    return 2 * float(((rounded + 0.3 - 0.3).double() - rounded.double()).abs().max())


def check(
    call: Callable[[], torch.Tensor],
    reference: torch.Tensor,
    same_dtype: torch.Tensor,
    dtype: str,
    *,
    rounds_scores: bool = False,
    same_bits: bool = True,
    repeats: int = REPEATS,
) -> Verdict:
    """The whole gate on one input: poisoned output, both bounds, then `repeats` more calls.

    Repeats must equal the first output bit by bit. Without `same_bits` one that does not is judged
    like the first: it is how peers are treated, which may add in no fixed order.
    """
    import torch

    def judged(out: torch.Tensor) -> Verdict:
        return judge(out, reference, same_dtype, dtype, rounds_scores=rounds_scores)

    with poisoned():
        first = call().clone()
    verdict = judged(first)
    if not verdict.passed:
        return verdict
    different = 0
    for _ in range(repeats):
        out = call()
        if not torch.equal(out, first):
            different += 1
            if not same_bits and not (again := judged(out)).passed:
                return again
    fault = f"{different} of {repeats} repeats differ from the first"
    return replace(
        verdict,
        differing_repeats=different,
        faults=(fault,) if different and same_bits else (),
    )
