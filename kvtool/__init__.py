"""kvtool: LLM inference capacity planning and benchmarking."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvtool.version import __version__

if TYPE_CHECKING:
    from kvtool.api import size
    from kvtool.api_audit import audit
    from kvtool.api_bench import bench
    from kvtool.api_simulate import simulate

__all__ = ["__version__", "audit", "bench", "simulate", "size"]

_HOMES = {"size": "api", "audit": "api_audit", "simulate": "api_simulate", "bench": "api_bench"}


def __getattr__(name: str) -> Any:
    """The functions of the Python interface, imported when first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'kvtool' has no attribute '{name}'")
    return getattr(import_module(f"kvtool.{_HOMES[name]}"), name)
