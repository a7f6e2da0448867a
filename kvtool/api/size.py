"""The Python interface: the commands' names and values in, a Report out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from kvtool import fit
from kvtool.catalog import load_model
from kvtool.device import load_device
from kvtool.engines import NAMES as ENGINES
from kvtool.engines import load as load_engine
from kvtool.engines.base import Budget, Deployment, Engine
from kvtool.errors import KvtoolError, UsageError, did_you_mean
from kvtool.model.spec import ModelSpec, Parallel
from kvtool.report.record import Report
from kvtool.solve import solve as solved
from kvtool.units import MAX_COUNT, parse_bytes, parse_count, parse_list, parse_tokens

Numbers = int | str | Sequence[int]
MAX_ROWS = 100_000


def size(
    model: str | ModelSpec | Sequence[str | ModelSpec],
    *,
    ctx: Numbers | None = None,
    batch: Numbers = 1,
    encoder_tokens: int | str | None = None,
    kv_dtype: str = "auto",
    k_dtype: str | None = None,
    v_dtype: str | None = None,
    dtype: str = "auto",
    tp: int | None = None,
    pp: int | None = None,
    ep: int = 1,
    dcp: int = 1,
    mtp: bool = False,
    draft: str | ModelSpec | None = None,
    engine: str = fit.LOGICAL,
    engine_opt: Mapping[str, str] | Iterable[str] = (),
    gpu: str | None = None,
    gpus: int | None = None,
    gpu_fraction: float | None = None,
    pool: int | str | None = None,
    num_blocks: int | None = None,
    solve: str | None = None,
    explain: bool = False,
) -> Report:
    """Bytes of cache and weights of each combination of model, engine, context and batch.

    Numbers may be given as on the command line ("32k", "4k..128k*2"); `explain` adds to each row
    the formulas with their numbers. Raises UsageError for what
    cannot be, ModelError for a model that cannot be read.

    >>> size("llama-3-70b", ctx="32k").results[0]["sequence_bytes"]
    10737418240
    """
    models = [_model(m) for m in ([model] if isinstance(model, str | ModelSpec) else model)]
    if not models:
        raise UsageError("no model given", "name one or more; `kvtool models` lists the cards")
    parallel = _parallel(tp, pp, ep, dcp, gpus)
    deployment = Deployment(
        parallel=parallel,
        kv_dtype=kv_dtype,
        k_dtype=k_dtype,
        v_dtype=v_dtype,
        dtype=dtype,
        encoder_tokens=_optional(encoder_tokens, parse_tokens),
        mtp=mtp,
        draft=None if draft is None else _model(draft),
        options=engine_options(engine_opt),
    )
    budget = Budget(
        device=None if gpu is None else load_device(gpu),
        fraction=gpu_fraction,
        pool_bytes=_optional(pool, parse_bytes),
        num_blocks=num_blocks,
    )
    if solve is not None and solve not in ("ctx", "batch", "gpus"):
        raise UsageError(f"cannot solve for '{solve}'", "solve for ctx, batch or gpus")
    if num_blocks is not None and not 0 <= num_blocks <= MAX_COUNT:
        raise UsageError(
            f"'{num_blocks}' is not a number of blocks",
            f"--num-blocks runs from 0 to {MAX_COUNT:,}",
        )
    batches = _numbers(batch, lambda text: parse_count(text, what="sequences"))
    asked = None if ctx is None else _numbers(ctx, parse_tokens)
    report = Report("size", _inputs(locals()), [])
    everyone = "all" in [name.strip().lower() for name in engine.split(",")]
    for spec, found in product(models, _engines(engine)):
        contexts = asked or _own_context(spec, solve)
        if len(contexts) * len(batches) > MAX_ROWS:
            raise UsageError(f"more than {MAX_ROWS:,} combinations", "use larger steps")
        cases = [
            fit.Case(spec, context, sequences, found, deployment, budget)
            for context, sequences in product(contexts, batches)
        ]
        try:
            sized = [_sized(case, solve, explain) for case in cases]
        except KvtoolError as error:
            # `all` asks every engine what it knows; one that does not cover a model says so.
            if found is None or not everyone:
                raise
            report.warnings.append(f"{found.name}: {error}")
            continue
        for one in sized:
            report.results.append(one.row)
            report.warnings += _new_warnings(report, one.warnings, spec.name, len(models) > 1)
    return report


def _sized(case: fit.Case, solve: str | None, explain: bool) -> fit.Sized:
    """The row of a case, solved for what was sought and explained if asked."""
    if solve is not None:
        case = solved(case, solve)
    sized = fit.size(case)
    if explain:
        from kvtool.explain import explain as explanations

        sized.row["explain"] = explanations(case, sized.row)
    return sized


def _new_warnings(report: Report, warnings: Iterable[str], model: str, several: bool) -> list[str]:
    """Warnings not said yet; with several models each names its own."""
    named = [w if not several or model in w else f"{model}: {w}" for w in warnings]
    return [warning for warning in named if warning not in report.warnings]


def _inputs(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked, as understood: plain values in the order of the options."""
    deployment, budget, parallel = given["deployment"], given["budget"], given["parallel"]
    return {
        "model": [spec.name for spec in given["models"]],
        "ctx": given["asked"],
        "batch": given["batches"],
        "encoder_tokens": deployment.encoder_tokens,
        "kv_dtype": deployment.kv_dtype,
        "k_dtype": deployment.k_dtype,
        "v_dtype": deployment.v_dtype,
        "dtype": deployment.dtype,
        "tp": parallel.tp,
        "pp": parallel.pp,
        "ep": parallel.ep,
        "dcp": parallel.dcp,
        "mtp": deployment.mtp,
        "draft": deployment.draft.name if deployment.draft else None,
        "engine": given["engine"],
        "engine_opt": dict(deployment.options),
        "gpu": budget.device.name if budget.device else None,
        "gpu_fraction": budget.fraction,
        "gpu_memory_bytes": budget.device.memory_bytes if budget.device else None,
        "pool": budget.pool_bytes,
        "num_blocks": budget.num_blocks,
        "solve": given["solve"],
    }


def _model(model: str | ModelSpec) -> ModelSpec:
    return load_model(model) if isinstance(model, str) else model


def _optional(value: int | str | None, parse: Callable[[str], int]) -> int | None:
    return None if value is None else parse(str(value))


def _numbers(value: Numbers, parse: Callable[[str], int]) -> list[int]:
    if isinstance(value, str):
        return parse_list(value, parse)
    return [parse(str(v)) for v in ([value] if isinstance(value, int) else value)]


def _own_context(model: ModelSpec, solve: str | None) -> list[int]:
    """The model's own maximum, required unless the context is what is sought."""
    if model.max_context is None:
        if solve == "ctx":
            return [1]
        raise UsageError(
            f"the configuration of {model.name} states no maximum context", "give one with --ctx"
        )
    return [model.max_context]


def _parallel(tp: int | None, pp: int | None, ep: int, dcp: int, gpus: int | None) -> Parallel:
    if gpus is not None and tp is None and pp is None:
        tp = gpus
    parallel = Parallel(1 if tp is None else tp, 1 if pp is None else pp, ep, dcp)
    if gpus is not None and gpus != parallel.tp * parallel.pp:
        raise UsageError(
            f"{gpus} devices are not tp {parallel.tp} x pp {parallel.pp}",
            "leave out --tp and --pp, or make them agree with --gpus",
        )
    return parallel


def _engines(names: str) -> list[Engine | None]:
    """Engines by name, `name@version`, `all`; None stands for the logical bytes."""
    found: list[Engine | None] = []
    known = (fit.LOGICAL, *ENGINES, "all")
    for entry in names.split(","):
        name, _, version = entry.strip().lower().partition("@")
        if name == "all":
            found += [None, *(load_engine(engine) for engine in ENGINES)]
        elif name == fit.LOGICAL:
            found.append(None)
        elif name in ENGINES:
            found.append(load_engine(name, version or None))
        else:
            raise UsageError(
                f"no engine named '{name}'",
                did_you_mean(name, known, f"engines: {', '.join(known)}"),
            )
    return found


def engine_options(given: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    """Engine options by name, from a mapping or from texts `name=value`; UsageError for others."""
    if isinstance(given, Mapping):
        return {name: str(value) for name, value in given.items()}
    found = {}
    for entry in given:
        name, equals, value = entry.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise UsageError(
                f"'{entry}' is not an engine option", "write --engine-opt block_size=32"
            )
        found[name.strip()] = value.strip()
    return found
