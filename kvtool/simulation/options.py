"""What can be asked of a simulation, and the plan it settles into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from kvtool.catalog import load_model
from kvtool.dtype import kv_format
from kvtool.errors import UsageError, did_you_mean
from kvtool.kvcache import check_parallel
from kvtool.model.spec import Parallel
from kvtool.reuse import BlockRules, chain_keys, is_tree
from kvtool.simulation.plan import LOOKUPS, CacheBytes, Plan, refuse_recurrent
from kvtool.workload.documents import DUPLICATES, ORDERS, DocumentWorkload
from kvtool.workload.lengths import Lengths
from kvtool.workload.memory import check_fits
from kvtool.workload.presets import GIB, PRESETS, Preset
from kvtool.workload.requests import BlockRequests, DocumentRequests
from kvtool.workload.trace import Trace, load_trace

DEFAULT_BUDGETS = tuple(GIB << power for power in range(2, 7))
DEFAULT_RULES = ("prefix", "position-aware", "lazy")
DEFAULT_WARMUP = 0.2
DEFAULT_SEEDS = 5
PAGE_TOKENS = 16
CHAINED = (
    "ids of the trace stand behind different ids: they are taken as hashes of single blocks, and a "
    "hit needs the same blocks before"
)


@dataclass(frozen=True, slots=True)
class Options:
    """What can be asked, under the names of the command line; None is the preset's or the default.

    Tokens, bytes and counts are numbers here. `engine_opt` overrides `BlockRules` on block traces.
    """

    model: str = "llama-3.1-8b"
    kv_dtype: str = "auto"
    tp: int = 1
    zipf: Sequence[float] | None = None
    docs: int | None = None
    docs_per_request: int | None = None
    doc_tokens: Lengths | int | None = None
    cold: int | None = None
    order: str | None = None
    duplicates: str | None = None
    lookup: str | None = None
    requests: int | None = None
    warmup: float | None = None
    seed: int = 0
    seeds: int | None = None
    budget: Sequence[int] | None = None
    num_blocks: Sequence[int] | None = None
    curve: bool = False
    reuse: Sequence[str] | None = None
    policy: Sequence[str] = ("lru",)
    trace: str | None = None
    block_size: int | None = None
    engine_opt: Mapping[str, int | bool] = field(default_factory=dict)
    target_hit: float | None = None
    fit_zipf: bool = False
    preset: str | None = None


@dataclass(frozen=True, slots=True)
class Study:
    """A plan and what it came from.

    plan: its budgets are empty where they follow from what the run finds.  trace: the file's format
    and requests.  inputs: the settings as understood, in the words of the command line.
    notes: what was done to the requests, for the reader.
    """

    options: Options
    plan: Plan
    preset: Preset | None
    trace: Trace | None
    inputs: dict[str, Any]
    notes: tuple[str, ...] = ()


def settle(options: Options) -> Study:
    """The study that `options` ask for; UsageError for what cannot be, before anything runs."""
    preset = _preset(options.preset)
    model = load_model(options.model)
    kv = kv_format(model.dtype if options.kv_dtype == "auto" else options.kv_dtype)
    parallel = Parallel(tp=options.tp)
    check_parallel(model, parallel)
    trace = None
    notes: tuple[str, ...] = ()
    sources: tuple[Any, ...]
    if options.trace is None:
        sources = _workloads(options, preset)
        if options.fit_zipf:
            raise UsageError("--fit-zipf needs a trace", "give one with --trace FILE")
    else:
        trace, requests, notes = _trace(options, options.trace)
        sources = (requests,)
    blocks = isinstance(sources[0], BlockRequests)
    rules = tuple(options.reuse or _default_rules(preset, blocks=blocks))
    plan = Plan(
        sources=sources,
        rules=_unique(rules),
        policies=_unique(tuple(options.policy)),
        budgets=(),
        entry_bytes=CacheBytes(model, kv, parallel),
        whole_request=_choice("--lookup", options.lookup, LOOKUPS, _lookup(preset)) == "request",
        warmup=_first(options.warmup, preset and preset.warmup, 0.0 if trace else DEFAULT_WARMUP),
        seed=options.seed,
        seeds=_first(options.seeds, preset and preset.seeds, DEFAULT_SEEDS) if not trace else 1,
        page_tokens=_page_tokens(options, preset, blocks=blocks),
        block_rules=_block_rules(options, blocks=blocks),
    )
    refuse_recurrent(model, plan.rules)
    _refuse_what_does_not_fit(plan)
    plan = replace(plan, budgets=_budgets(options, preset, plan))
    inputs = _inputs(options, plan, trace, preset, kv.k.name)
    return Study(options, plan, preset, trace, inputs, notes)


def _trace(
    options: Options, file: str
) -> tuple[Trace, DocumentRequests | BlockRequests, tuple[str, ...]]:
    """A trace, its requests as they are simulated, and notes on the difference."""
    _refuse_with_trace(options)
    trace = load_trace(Path(file).expanduser(), options.block_size)
    requests = _without_repeats(trace.requests, options.duplicates)
    if isinstance(requests, BlockRequests) and not is_tree(requests.ids, requests.starts):
        chained = chain_keys(requests.ids, requests.starts)
        return trace, replace(requests, ids=chained), (CHAINED,)
    return trace, requests, ()


def _inputs(
    options: Options, plan: Plan, trace: Trace | None, preset: Preset | None, kv_dtype: str
) -> dict[str, Any]:
    """Every setting as understood, in the words of the command line."""
    inputs: dict[str, Any] = {"model": options.model, "kv_dtype": kv_dtype, "tp": options.tp}
    source = plan.sources[0]
    if isinstance(source, DocumentWorkload):
        skews = [s.skew for s in plan.sources if isinstance(s, DocumentWorkload)]
        inputs |= {
            "zipf": skews[0] if len(skews) == 1 else skews,
            "docs": source.docs,
            "docs_per_request": source.docs_per_request,
            "doc_tokens": source.lengths.fixed or str(source.lengths),
            "cold": source.cold,
            "order": source.order,
            "duplicates": source.duplicates,
            "requests": source.requests,
            "seed": plan.seed,
            "seeds": plan.seeds,
        }
    elif trace is not None:
        inputs |= {"trace": options.trace, "format": trace.format, "requests": source.requests}
        if isinstance(source, DocumentRequests):
            inputs["duplicates"] = options.duplicates or "keep"
    if isinstance(source, BlockRequests):
        rules = plan.block_rules
        inputs |= {
            "block_size": source.block_size,
            "tail_first": rules.tail_first,
            "full_blocks_only": rules.full_blocks_only,
            "reserve_last_token": rules.reserve_last_token,
            "cache_outputs": rules.cache_outputs,
            "pinned": rules.pinned,
        }
    else:
        inputs["block_size"] = plan.page_tokens
    inputs |= {
        "lookup": "request" if plan.whole_request else "each",
        "warmup": plan.warmup,
        "reuse": list(plan.rules),
        "policy": list(plan.policies),
    }
    if options.curve:
        inputs["curve"] = True
    if options.target_hit is not None:
        inputs["target_hit"] = options.target_hit
    if preset is not None:
        inputs |= {"preset": options.preset, "about": preset.about}
    return inputs


def _preset(name: str | None) -> Preset | None:
    if name is None:
        return None
    if name not in PRESETS:
        raise UsageError(
            f"no preset named '{name}'",
            did_you_mean(name, PRESETS, f"presets: {', '.join(PRESETS)}"),
        )
    return PRESETS[name]


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _unique(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _choice(option: str, value: str | None, known: Sequence[str], default: str) -> str:
    if value is not None and value not in known:
        raise UsageError(
            f"{option} '{value}' is not one of {', '.join(known)}",
            did_you_mean(value, known, f"use {', '.join(known)}"),
        )
    return value or default


def _lookup(preset: Preset | None) -> str:
    return preset.lookup if preset else "request"


def _default_rules(preset: Preset | None, *, blocks: bool) -> tuple[str, ...]:
    if blocks:
        return ("prefix",)
    return preset.rules if preset else DEFAULT_RULES


def _workloads(options: Options, preset: Preset | None) -> tuple[DocumentWorkload, ...]:
    base = preset.workload if preset else DocumentWorkload()
    names = {"docs", "docs_per_request", "cold", "requests"}
    given = {n: getattr(options, n) for n in names if getattr(options, n) is not None}
    if options.doc_tokens is not None:
        length = options.doc_tokens
        given["lengths"] = length if isinstance(length, Lengths) else Lengths(length, length)
    given["order"] = _choice("--order", options.order, ORDERS, base.order)
    given["duplicates"] = _choice("--duplicates", options.duplicates, DUPLICATES, base.duplicates)
    skews = options.zipf or (preset.skews if preset else (base.skew,))
    return tuple(replace(base, skew=float(skew), **given) for skew in dict.fromkeys(skews))


def _refuse_what_does_not_fit(plan: Plan) -> None:
    """KvtoolError for a workload whose seeds and rules would not fit into memory."""
    workload = plan.sources[0]
    if isinstance(workload, DocumentWorkload):
        check_fits(
            workload.requests * workload.docs_per_request,
            "each seed of this workload",
            "lower --requests, --docs-per-request or --seeds",
            curves=len(plan.sources) * len(plan.rules) * plan.seeds,
        )


_ZIPF_ONLY = (
    "zipf",
    "docs",
    "docs_per_request",
    "doc_tokens",
    "cold",
    "order",
    "requests",
    "seeds",
)


def _refuse_with_trace(options: Options) -> None:
    for name in (*_ZIPF_ONLY, "preset"):
        if getattr(options, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise UsageError(
                f"{flag} does not go with --trace",
                "a trace brings its own requests; leave one of the two out",
            )


def _without_repeats(
    requests: DocumentRequests | BlockRequests, duplicates: str | None
) -> DocumentRequests | BlockRequests:
    """A log's requests: repeats stay in (and never hit) unless `duplicates` is `drop`."""
    if isinstance(requests, BlockRequests):
        if duplicates is not None:
            raise UsageError("--duplicates does not go with a block trace", "leave it out")
        return requests
    if duplicates not in (None, "keep", "drop"):
        raise UsageError(
            f"--duplicates '{duplicates}' does not go with a trace",
            "keep counts repeats as look-ups that never hit (the default), drop leaves them out",
        )
    if duplicates != "drop":
        return requests
    kept = ~requests.repeats
    ends = np.concatenate(([0], np.cumsum(kept)))
    return DocumentRequests(
        requests.docs[kept], requests.tokens[kept], ends[requests.starts], requests.repeats[kept]
    )


def _page_tokens(options: Options, preset: Preset | None, *, blocks: bool) -> int:
    default = preset.page_tokens if preset else PAGE_TOKENS
    return options.block_size if options.block_size and not blocks else default


def _block_rules(options: Options, *, blocks: bool) -> BlockRules:
    if options.engine_opt and not blocks:
        raise UsageError(
            f"--engine-opt {next(iter(options.engine_opt))} is for block traces",
            "documents follow --reuse, --lookup and --block-size",
        )
    known = [one.name for one in fields(BlockRules)]
    for name in options.engine_opt:
        if name not in known:
            raise UsageError(
                f"no engine option named '{name}'",
                did_you_mean(name, known, f"options: {', '.join(known)}"),
            )
    given: dict[str, Any] = dict(options.engine_opt)
    return BlockRules(**given)


def _budgets(options: Options, preset: Preset | None, plan: Plan) -> tuple[int, ...]:
    """The budgets asked for, rising; none where they follow from the workload itself."""
    if options.target_hit is not None and not 0 < options.target_hit <= 1:
        raise UsageError(
            f"a hit rate of '{options.target_hit:g}' is not possible",
            "--target-hit is above 0 and at most 1",
        )
    asked = [bool(options.budget), bool(options.num_blocks), options.curve]
    if options.target_hit is not None:
        asked.append(True)
        if plan.policies != ("lru",):
            raise UsageError("--target-hit is answered for lru only", "leave --policy out")
    if sum(asked) > 1:
        raise UsageError(
            "more than one of --budget, --num-blocks, --curve and --target-hit",
            "each of them says which cache sizes to look at: keep one",
        )
    if options.budget:
        return tuple(sorted(set(options.budget)))
    if options.num_blocks:
        source = plan.sources[0]
        tokens = source.block_size if isinstance(source, BlockRequests) else plan.page_tokens
        block = int(plan.entry_bytes(np.array([tokens], dtype=np.int64))[0])
        return tuple(sorted({blocks * block for blocks in options.num_blocks}))
    if options.curve or options.target_hit is not None:
        return ()
    if preset:
        return preset.budgets
    return DEFAULT_BUDGETS if isinstance(plan.sources[0], DocumentWorkload) else ()
