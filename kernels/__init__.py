"""Attention kernels, importable as `kvtool.kernels`: one name each, one signature for all.

    kernel = load("flash")
    plan = kernel.plan(q, k, v, kv_lens=kv_lens, causal=True)    # reads lengths, once
    o = kernel.attention(q, k, v, kv_lens=kv_lens, causal=True, plan=plan)

`kvtool.kernels.checks.check` spells out the signature; this module imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from kvtool.errors import UsageError, did_you_mean

NAMES = ("naive", "cached", "flash", "lazy")
"""The kernels to compare; `load` also knows `reference`, the judge of them all."""

VARIANTS: dict[str, tuple[str, ...]] = {
    "naive": (),
    "cached": (),
    "flash": (),
    "lazy": ("rotate-q", "rotate-k", "rematerialise", "merge", "unsplit"),
}
"""The variants of each kernel, by name; without one the kernel chooses by shape."""


def load(name: str) -> ModuleType:
    """The module of one kernel: `attention(q, k, v, **options)` and `plan(q, k, v, **options)`.

    Raises UsageError for a name that is neither in `NAMES` nor `reference`.
    """
    known = (*NAMES, "reference")
    if name not in known:
        raise UsageError(
            f"no kernel named '{name}'",
            did_you_mean(name, known, f"kernels: {', '.join(NAMES)}"),
        )
    return import_module(f"kvtool.kernels.{name}")
