"""kvtool: LLM inference capacity planning and benchmarking."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvtool.version import __version__

if TYPE_CHECKING:
    from kvtool.api.audit import audit
    from kvtool.api.bench import bench
    from kvtool.api.simulate import simulate
    from kvtool.api.size import size

__all__ = ["__version__", "audit", "bench", "simulate", "size"]


def __getattr__(name: str) -> Any:
    """The functions of the Python interface, imported when first used."""
    if name not in __all__:
        raise AttributeError(f"module 'kvtool' has no attribute '{name}'")
    return getattr(import_module(f"kvtool.api.{name}"), name)
