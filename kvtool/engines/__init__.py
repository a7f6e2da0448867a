"""Inference engines: what each reserves for a request, by release."""

from __future__ import annotations

from importlib import import_module

from kvtool.engines.base import Engine
from kvtool.errors import UsageError, did_you_mean

NAMES = ("vllm", "sglang", "llamacpp", "trtllm", "transformers")


def load(name: str, version: str | None = None) -> Engine:
    """The adapter of the engine `name` for `version`, the newest known when None.

    Raises UsageError for an engine or a version that is not known.

    >>> load("vllm", "0.22.1").version
    '0.22.1'
    """
    plain = name.strip().lower()
    if plain not in NAMES:
        raise UsageError(
            f"no engine named '{name}'", did_you_mean(plain, NAMES, f"engines: {', '.join(NAMES)}")
        )
    adapter: Engine = import_module(f"kvtool.engines.{plain}").load(version)
    return adapter
