"""What an engine printed at start-up against what its rules say: one finding per figure.

Each figure is predicted from the log's settings and from the figures printed above it, so that a
wrong term shows where it is and not in everything below. Figures that are exact must agree to their
printed rounding; estimates must lie in their range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvtool.auditing.findings import Finding, Overrides
from kvtool.engines.logs import Log, Start

__all__ = ["Finding", "Overrides", "audit_log"]

Auditor = Callable[[Start, Overrides], "list[Finding]"]


def audit_log(log: Log, overrides: Overrides) -> list[list[Finding]]:
    """The findings of each start of `log`, in its order.

    Figures whose prediction lacks something are `unknown` and say what; UsageError only for what
    `overrides` cannot be.
    """
    from kvtool.auditing import llamacpp, sglang, trtllm, vllm

    auditors: dict[str, Auditor] = {
        "vllm": vllm.audit,
        "llamacpp": llamacpp.audit,
        "sglang": sglang.audit,
        "trtllm": trtllm.audit,
    }
    known: dict[object, list[Finding]] = {}
    found = []
    for start in log.starts:
        start.figures = llamacpp.without_shares(start.figures)
        key = _content(start)
        if key not in known:
            known[key] = auditors[start.engine](start, overrides)
        pairs = zip(start.figures, known[key], strict=True)
        found.append([replace(finding, figure=figure) for figure, finding in pairs])
    return found


def _content(start: Start) -> object:
    """What findings follow from: restarts of a server print the same again."""
    figures = tuple(
        (f.name, f.value, f.half, f.rank, tuple(f.about.items())) for f in start.figures
    )
    return start.engine, tuple(start.settings.items()), figures
