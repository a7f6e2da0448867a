"""`kvtool.bench`: the options of the command in, a Report out, growing case by case."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvtool.benchmark.cases import Case, default_doc_tokens
from kvtool.benchmark.ceilings import Ceilings
from kvtool.benchmark.decoder import Shape
from kvtool.benchmark.generate import generate as decode
from kvtool.benchmark.records import Row, advice, remarks, with_baseline
from kvtool.benchmark.run import Result
from kvtool.benchmark.session import Options, Session, open_session
from kvtool.errors import UsageError
from kvtool.kernels import NAMES
from kvtool.report.record import Report
from kvtool.units import parse_count, parse_list, parse_tokens

Names = str | Sequence[str]
Numbers = int | str | Sequence[int]
Starting = Callable[[Case], None]
Finished = Callable[[Report, Result], None]


def _ignore(*_: object) -> None:
    return None


def bench(
    *,
    kernel: Names = NAMES,
    variant: Names = (),
    phase: Names = ("prefill", "decode"),
    generate: int | str | None = None,
    model: str | None = None,
    tp: int = 1,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    ctx: Numbers | None = None,
    batch: Numbers | None = None,
    shapes: Sequence[tuple[int, int]] | None = None,
    doc_tokens: Numbers | None = None,
    block_size: Numbers = 16,
    dtype: Names | None = None,
    kv_dtype: Names = "auto",
    mask: Names = "causal",
    peers: Names = "auto",
    device: str = "auto",
    baseline: str | None = None,
    samples: int | None = None,
    seed: int = 0,
    command: str = "kvtool.bench(..)",
    ceilings: Ceilings | None = None,
    starting: Starting = _ignore,
    finished: Finished = _ignore,
) -> Report:
    """Kernels and peers, gated against float64 and then timed; one row per contender and case.

    Lists may be given as on the command line ("flash,lazy", "4k..32k*2"); `shapes` are pairs of
    batch and context, instead of all combinations. `starting` is called
    with each case and `finished` with the report so far and the case's result, so that a
    caller can show progress and keep what is done. `ceilings` are measured unless they are known
    from an earlier call of the same process. Rows that fail their gate have no speed.
    Raises UsageError for what cannot be, DeviceError where a GPU is asked for and missing.
    """
    if generate is not None and baseline is not None:
        raise UsageError(
            "--generate has no baseline", "--baseline compares cases of prefill and decode"
        )
    earlier = None if baseline is None else read_baseline(baseline)
    session = open_session(
        Options(
            kernel=_names(kernel),
            variant=_names(variant),
            phase=_names(phase),
            model=model,
            tp=tp,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            ctx=_tokens(ctx),
            batch=_counts(batch, "sequences"),
            shapes=shapes,
            doc_tokens=_tokens(doc_tokens),
            block_size=_counts(block_size, "tokens per block") or (),
            dtype=None if dtype is None else _names(dtype),
            kv_dtype=_names(kv_dtype),
            mask=_names(mask),
            peers=("none",) if generate is not None else _names(peers),
            device=device,
            samples=samples,
            seed=seed,
        ),
        command=command,
    )
    if ceilings is not None:
        session.know_ceilings(ceilings)
    report = _report(session)
    if generate is not None:
        return _generated(session, report, parse_count(str(generate), what="tokens"), kernel)
    for result in session.results(starting):
        _add(report, result, earlier, baseline)
        finished(report, result)
    report.warnings += advice(report.results)
    return report


def _report(session: Session) -> Report:
    return Report(
        "bench",
        session.inputs,
        [],
        warnings=[*session.warnings, *(f"peer {line}" for line in session.left_out_peers)],
        beside={"environment": session.environment},
    )


def _add(
    report: Report,
    result: Result,
    earlier: Sequence[Mapping[str, Any]] | None,
    baseline: str | None,
) -> None:
    rows = result.rows
    if earlier is not None and baseline is not None:
        rows = with_baseline(rows, earlier, Path(baseline).name)
    report.results += rows
    report.warnings += [f"left out: {line}" for line in result.left_out]
    report.warnings += [f"lost: {line}" for line in result.lost]
    report.warnings += remarks(rows)


def _generated(session: Session, report: Report, tokens: int, kernel: Names) -> Report:
    """Rows of `--generate`, one per kernel, on the session's device and shape."""
    session.measure_ceilings()
    report.results += decode(
        _names(kernel),
        Shape(session.heads),
        tokens=tokens,
        frame_tokens=default_doc_tokens(tokens, 16),
        dtype=session.dtype,
        device=session.device,
        seed=session.seed,
    )
    return report


def read_baseline(path: str) -> list[Row]:
    """The rows of an earlier `--json` or `--format jsonl` result.

    UsageError when the file cannot be read or holds no rows of `bench`.
    """
    hint = "name a file that `kvtool bench --output FILE.json` wrote"
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read '{path}': {error}", hint) from None
    try:
        whole = json.loads(text)
    except ValueError:
        whole = _json_lines(text)
    rows = whole.get("results") if isinstance(whole, dict) else whole
    if not isinstance(rows, list) or not all(_is_row(row) for row in rows) or not rows:
        raise UsageError(f"'{path}' holds no result of `kvtool bench`", hint)
    return rows


def _json_lines(text: str) -> Any:
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError:
        return None


def _is_row(row: Any) -> bool:
    return isinstance(row, dict) and {"implementation", "phase", "median_s"} <= set(row)


def _names(names: Names) -> tuple[str, ...]:
    parts = names.split(",") if isinstance(names, str) else names
    return tuple(part.strip().lower() for part in parts)


def _tokens(value: Numbers | None) -> list[int] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return parse_list(value, parse_tokens)
    return [parse_tokens(str(v)) for v in ([value] if isinstance(value, int) else value)]


def _counts(value: Numbers | None, what: str) -> list[int] | None:
    if value is None:
        return None

    def parse(text: str) -> int:
        return parse_count(text, what=what)

    if isinstance(value, str):
        return parse_list(value, parse)
    return [parse(str(v)) for v in ([value] if isinstance(value, int) else value)]
