"""The Python side of `kvtool simulate`: values as typed or as numbers in, a Report out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import fields
from typing import Any

from kvtool.device import load_device
from kvtool.errors import UsageError, did_you_mean
from kvtool.report.hitrate import report_of
from kvtool.report.record import Report
from kvtool.reuse import BlockRules
from kvtool.simulation.options import Options
from kvtool.simulation.study import simulate as run_study
from kvtool.units import parse_bytes, parse_count, parse_list
from kvtool.workload.lengths import Lengths, parse_lengths
from kvtool.workload.zipf import check_skew

Numbers = int | str | Sequence[int]
Names = str | Sequence[str]


def simulate(
    *,
    model: str = "llama-3.1-8b",
    kv_dtype: str = "auto",
    tp: int = 1,
    zipf: float | str | Sequence[float] | None = None,
    docs: int | str | None = None,
    docs_per_request: int | str | None = None,
    doc_tokens: Lengths | int | str | None = None,
    cold: int | str | None = None,
    order: str | None = None,
    duplicates: str | None = None,
    lookup: str | None = None,
    requests: int | str | None = None,
    warmup: float | None = None,
    seed: int = 0,
    seeds: int | str | None = None,
    budget: Numbers | None = None,
    num_blocks: Numbers | None = None,
    curve: bool = False,
    reuse: Names | None = None,
    policy: Names = "lru",
    trace: str | None = None,
    block_size: int | None = None,
    engine_opt: Mapping[str, Any] | Iterable[str] = (),
    target_hit: float | None = None,
    fit_zipf: bool = False,
    preset: str | None = None,
    gpu: str = "h100-sxm",
    explain: bool = False,
    executor: Executor | None = None,
) -> Report:
    """Hit rates per reuse rule, policy and budget; the names are those of `kvtool simulate`.

    Numbers may be given as on the command line ("8GiB,16GiB", "100k"); None is the default or the
    preset's. `executor`: anything with the interface of `concurrent.futures`; without one, all
    runs here. Raises UsageError for what cannot be, KvtoolError for a trace that cannot be read.

    >>> simulate(zipf=1.2, budget="8GiB", reuse="lazy").results[0]["budget_entries"]
    64
    """
    asked = locals()
    device = load_device(gpu)
    return report_of(run_study(options_of(asked), executor), device, explain=explain)


def options_of(asked: Mapping[str, Any]) -> Options:
    """The options among `asked`, read from what is typed; UsageError for no number, list or name.

    Every field of `Options` is in `asked`; None is its default, and other names are left alone.
    """
    names = [one.name for one in fields(Options)]
    given = {name: asked[name] for name in names if asked[name] is not None}
    read = {name: _READERS[name](value) for name, value in given.items() if name in _READERS}
    return Options(**given | read)


def _skews(value: float | str | Sequence[float]) -> list[float]:
    parts: Sequence[Any]
    if isinstance(value, str):
        parts = value.split(",")
    else:
        parts = [value] if isinstance(value, int | float) else value
    found = []
    for part in parts:
        try:
            found.append(check_skew(float(part)))
        except ValueError:
            raise UsageError(
                f"'{part}' is not a Zipf exponent", "examples: 0 (uniform), 0.8, 1.2"
            ) from None
    return found


def _count(what: str, low: int = 1) -> Callable[[int | str], int]:
    return lambda value: parse_count(str(value), low=low, what=what)


def _lengths(value: Lengths | int | str) -> Lengths:
    return value if isinstance(value, Lengths) else parse_lengths(str(value))


def _block_size(value: int) -> int:
    if not 1 <= value <= 1 << 20:
        raise UsageError(f"a block size of '{value}' is not possible", "use 1 to 1,048,576")
    return value


def _numbers(value: Numbers, parse: Callable[[str], int]) -> list[int]:
    if isinstance(value, str):
        return parse_list(value, parse)
    return [parse(str(one)) for one in ([value] if isinstance(value, int) else value)]


def _names(value: Names) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else value
    return [part.strip().lower() for part in parts]


def _engine_options(given: Mapping[str, Any] | Iterable[str]) -> dict[str, int | bool]:
    """Switches of `BlockRules` by name; text is read as true, false or a number."""
    known = {one.name: one.type for one in fields(BlockRules)}
    pairs = given.items() if isinstance(given, Mapping) else map(_pair, given)
    found: dict[str, int | bool] = {}
    for name, value in pairs:
        if name not in known:
            raise UsageError(
                f"no engine option named '{name}'",
                did_you_mean(name, known, f"options: {', '.join(known)}"),
            )
        if known[name] == "bool":
            found[name] = _truth(name, value)
        else:
            found[name] = parse_count(str(value), low=0, what="requests in flight")
    return found


def _pair(entry: str) -> tuple[str, str]:
    name, equals, value = entry.partition("=")
    if not equals:
        raise UsageError(f"'{entry}' is not an engine option", "write --engine-opt pinned=4")
    return name.strip(), value.strip()


def _truth(name: str, value: Any) -> bool:
    text = str(value).lower()
    if text not in ("true", "false"):
        raise UsageError(f"{name} is '{value}'", "use true or false")
    return text == "true"


# How each option is read that may be typed or given as a value.
_READERS: dict[str, Callable[[Any], Any]] = {
    "zipf": _skews,
    "docs": _count("documents"),
    "docs_per_request": _count("documents"),
    "doc_tokens": _lengths,
    "cold": _count("documents", low=0),
    "requests": _count("requests"),
    "seeds": _count("seeds"),
    "budget": lambda value: _numbers(value, parse_bytes),
    "num_blocks": lambda value: _numbers(value, _count("blocks")),
    "reuse": _names,
    "policy": _names,
    "block_size": _block_size,
    "engine_opt": _engine_options,
}
