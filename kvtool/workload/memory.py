"""What a run would take in memory, checked before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from kvtool.errors import KvtoolError
from kvtool.units import format_bytes

BYTES_PER_ACCESS = 260
"""Peak bytes of a run per document or block asked for, rounded up from the largest that
`benchmarks/simulate.py` and a document log with text ids show."""

BYTES_PER_CURVE_STEP = 32
"""Bytes that every further curve of a run keeps per access, at most."""


def available_bytes() -> int | None:
    """Memory the machine can still give, a container's limit included; None where unknown."""
    found = [
        value
        for value in (_meminfo(Path("/proc/meminfo")), _cgroup(Path("/sys/fs/cgroup")))
        if value is not None
    ]
    return min(found) if found else None


def _meminfo(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def _cgroup(folder: Path) -> int | None:
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = (folder / "memory.current").read_text().strip()
    except OSError:
        return None
    return max(0, int(limit) - int(used)) if limit.isdigit() else None


def check_fits(
    accesses: int, what: str, hint: str, *, curves: int = 1, available: int | None = None
) -> None:
    """KvtoolError when `accesses` look-ups would not fit into memory, with both figures.

    curves: how many are kept, one per rule, seed and exponent.  available: bytes, by default what
    the machine reports; nothing is refused where that is unknown.
    """
    if available is None:
        available = available_bytes()
    each = BYTES_PER_ACCESS + BYTES_PER_CURVE_STEP * (curves - 1)
    needed = accesses * each
    if available is not None and needed > available:
        raise KvtoolError(
            f"{what} has about {accesses:,} look-ups and would need {format_bytes(needed)} of "
            f"memory ({each} B each), but {format_bytes(available)} is available",
            hint,
        )
