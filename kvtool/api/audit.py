"""The Python interface of `audit`: a log in, a Report of its figures and verdicts out."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from kvtool.api.size import engine_options
from kvtool.auditing import Finding, Overrides, audit_log
from kvtool.catalog import load_model
from kvtool.device import load_device
from kvtool.dtype import load_dtype
from kvtool.engines import load as load_engine
from kvtool.engines.base import Budget, parse_options
from kvtool.engines.logs import Log, Start, read_log
from kvtool.errors import UsageError, did_you_mean
from kvtool.model.spec import ModelSpec, Parallel
from kvtool.report.record import Report, Row
from kvtool.units import parse_tokens

CHUNK_BYTES = 1 << 20
# Engines whose start-up logs are read.
LOGGED = ("vllm", "sglang", "llamacpp", "trtllm")
VERDICTS = ("agree", "within-range", "differ", "unknown")
# Figures in neither bytes nor tokens nor counts.
RATIOS = frozenset({"concurrency"})


def audit(
    log: str | Iterable[bytes],
    *,
    model: str | ModelSpec | None = None,
    engine: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    ctx: int | str | None = None,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    engine_opt: Mapping[str, str] | Iterable[str] = (),
    gpu: str | None = None,
    gpu_fraction: float | None = None,
) -> Report:
    """A row for each figure that an engine printed at start-up, beside what its rules give.

    `log` is a path, `-` for standard input, or chunks of bytes. The other arguments say what the
    log leaves out, or correct it. `beside` counts lines and verdicts. Raises UsageError for a file
    that cannot be read and for arguments that cannot be.
    """
    name, version = _engine(engine)
    Parallel(1 if tp is None else tp, 1 if pp is None else pp)
    Budget(fraction=gpu_fraction)
    for given in (dtype, kv_dtype):
        if given not in (None, "auto"):
            load_dtype(str(given))
    settings = {
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": pp,
        "max_model_len": None if ctx is None else parse_tokens(str(ctx)),
        "dtype": dtype,
        "kv_cache_dtype": kv_dtype,
        "gpu_memory_utilization": gpu_fraction,
    }
    overrides = Overrides(
        model=load_model(model) if isinstance(model, str) else model,
        version=version,
        device=None if gpu is None else load_device(gpu),
        settings={key: str(value) for key, value in settings.items() if value is not None},
        options=_options(engine_opt),
    )
    source = log if isinstance(log, str) else "-"
    found = read_log(_chunks(log) if isinstance(log, str) else log)
    if name is not None:
        found.starts = [start for start in found.starts if start.engine == name]
    report = Report("audit", _inputs(source, engine, overrides), [])
    for number, (start, findings) in enumerate(
        zip(found.starts, audit_log(found, overrides), strict=True), start=1
    ):
        report.results += [_row(number, start, finding, overrides) for finding in findings]
    report.warnings += _warnings(found, report)
    report.beside = {"log": _counts(found), "verdicts": _verdicts(report)}
    return report


def _engine(text: str | None) -> tuple[str | None, str | None]:
    """Name and version of `engine@version`; the version is checked."""
    if text is None:
        return None, None
    name, _, version = text.strip().lower().partition("@")
    if name not in LOGGED:
        known = f"engines: {', '.join(LOGGED)}"
        raise UsageError(f"no log of an engine named '{name}'", did_you_mean(name, LOGGED, known))
    return name, load_engine(name, version).version if version else None


def _options(given: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    """Options of any engine with a log; UsageError for what none has, and for bad values."""
    options = {
        name.strip().lstrip("-").replace("-", "_").lower(): value
        for name, value in engine_options(given).items()
    }
    known = {name: import_module(f"kvtool.engines.{name}_options").OPTIONS for name in LOGGED}
    for name in options:
        if not any(name in theirs for theirs in known.values()):
            every = sorted({option for theirs in known.values() for option in theirs})
            raise UsageError(
                f"no engine has an option '{name}' here",
                did_you_mean(name, every, "see docs/engines for the options of each engine"),
            )
    for engine, theirs in known.items():
        parse_options({n: v for n, v in options.items() if n in theirs}, theirs, engine)
    return options


def _chunks(path: str) -> Iterator[bytes]:
    """The file in pieces; UsageError where it is none."""
    hint = "name a log file, or - for standard input"
    if path == "-":
        yield from iter(lambda: sys.stdin.buffer.read(CHUNK_BYTES), b"")
        return
    try:
        with Path(path).expanduser().open("rb") as file:
            yield from iter(lambda: file.read(CHUNK_BYTES), b"")
    except OSError as error:
        raise UsageError(f"cannot read '{path}': {error.strerror}", hint) from None


def _inputs(source: str, engine: str | None, overrides: Overrides) -> dict[str, Any]:
    return {
        "log": source,
        "model": overrides.model.name if overrides.model else None,
        "engine": engine,
        "gpu": overrides.device.name if overrides.device else None,
        "settings": dict(overrides.settings),
        "engine_opt": dict(overrides.options),
    }


def _row(number: int, start: Start, finding: Finding, overrides: Overrides) -> Row:
    figure, prediction = finding.figure, finding.prediction

    def shown(value: float) -> int | float:
        return float(value) if figure.name in RATIOS else round(value)

    value = None if prediction is None else shown(prediction.value)
    printed = shown(figure.value)
    difference = None if value is None else value - printed
    return {
        "start": number,
        "engine": start.engine,
        "engine_version": overrides.version or start.settings.get("version"),
        "model": _model_name(start, overrides),
        "rank": figure.rank or None,
        "line": figure.line,
        "figure": figure.name,
        "printed": printed,
        "predicted": value,
        "predicted_low": None if prediction is None else shown(prediction.low),
        "predicted_high": None if prediction is None else shown(prediction.high),
        "difference": difference,
        "relative": None if difference is None or not printed else difference / printed,
        "verdict": finding.verdict,
        "why": finding.why,
        "about": dict(figure.about),
    }


def _model_name(start: Start, overrides: Overrides) -> str | None:
    if overrides.model is not None:
        return overrides.model.name
    names = ("model", "model_path", "info:general.name", "meta:general.name", "info:arch")
    named = (start.settings[name].removeprefix("str ").strip() for name in names
             if name in start.settings)  # fmt: skip
    return next((text for text in named if text not in ("", "n/a", "None")), None)


def _warnings(log: Log, report: Report) -> Iterator[str]:
    if not report.results:
        yield "no figure of an engine's start-up was found"
    if log.starts_dropped:
        yield f"{log.starts_dropped:,} further starts are left out"
    dropped = sum(start.dropped for start in log.starts)
    if dropped:
        yield f"{dropped:,} further figures are left out"


def _counts(log: Log) -> dict[str, int]:
    return {
        "lines": log.lines,
        "used": log.used,
        "not_used": log.not_used,
        "cut": log.cut,
        "starts": len(log.starts),
    }


def _verdicts(report: Report) -> dict[str, int]:
    counts = Counter(row["verdict"] for row in report.results)
    return {verdict: counts[verdict] for verdict in VERDICTS}
