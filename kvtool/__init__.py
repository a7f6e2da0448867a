"""kvtool: LLM inference capacity planning and benchmarking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtool.version import __version__

if TYPE_CHECKING:
    from kvtool.api import size

__all__ = ["__version__", "size"]


def __getattr__(name: str) -> Any:
    """The functions of the Python interface, imported when first used."""
    if name in ("size",):
        from kvtool import api

        return getattr(api, name)
    raise AttributeError(f"module 'kvtool' has no attribute '{name}'")
