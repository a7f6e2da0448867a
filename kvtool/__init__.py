"""kvtool: LLM inference capacity planning and benchmarking."""

from kvtool.version import __version__

__all__ = ["__version__"]
