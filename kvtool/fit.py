"""One row of `size`: what a model keeps, what its weights take, whether it fits; the inverse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvtool import kvcache
from kvtool.dtype import KVFormat, load_dtype
from kvtool.engines.advice import Question, advise
from kvtool.engines.base import Budget, Deployment, Engine, Estimate, Reserve
from kvtool.engines.deployed import stored_weights
from kvtool.errors import ModelError, UsageError
from kvtool.model import weights
from kvtool.model.spec import SINGLE, Layer, ModelSpec
from kvtool.units import MAX_TOKENS

LOGICAL = "logical"
LOGICAL_FRACTION = 0.9


@dataclass(frozen=True, slots=True)
class Case:
    """One combination to size. `engine` None stands for the logical bytes."""

    model: ModelSpec
    context_tokens: int
    batch_size: int = 1
    engine: Engine | None = None
    deployment: Deployment = field(default_factory=Deployment)
    budget: Budget = field(default_factory=Budget)


@dataclass(frozen=True, slots=True)
class Sized:
    """A row of results, with what a person should know about it."""

    row: dict[str, Any]
    warnings: tuple[str, ...]


def kv_of(model: ModelSpec, deployment: Deployment) -> KVFormat:
    """Formats of keys and values as asked for; `auto` is the model's own element type."""

    def named(side: str | None) -> str:
        name = side or deployment.kv_dtype
        return model.dtype if name == "auto" else name

    return KVFormat(load_dtype(named(deployment.k_dtype)), load_dtype(named(deployment.v_dtype)))


def with_drafter(model: ModelSpec, deployment: Deployment) -> ModelSpec:
    """`model` with the layers of its drafter where its MTP layers stand, on the last stage."""
    if deployment.draft is None:
        return model
    own = model.mtp_layers if deployment.mtp else ()
    return replace(model, mtp_layers=(*own, *deployment.draft.layers))


def size(case: Case) -> Sized:
    """Every figure of `kvtool size` for one combination; see docs/commands/size.md for the keys.

    UsageError for ranks that do not divide the model's heads, for a cache format whose blocks do
    not fill a row, for cross-attention over an input of unknown length.
    """
    deployment, context = case.deployment, case.context_tokens
    model = with_drafter(case.model, deployment)
    parallel, extra = deployment.parallel, deployment.mtp or deployment.draft is not None
    kvcache.check_parallel(model, parallel)
    encoder = kvcache.encoder_tokens(model, deployment.encoder_tokens)
    reserve = None if case.engine is None else case.engine.reserve(
        case.model, context, case.batch_size, deployment, case.budget
    )  # fmt: skip
    kv = kv_of(model, deployment) if reserve is None else reserve.kv
    layers = kvcache.fullest_stage(model, context, kv, parallel, encoder, extra)

    def at(tokens: int, spec: ModelSpec = model) -> int:
        return kvcache.sequence_bytes(spec, tokens, kv, parallel, encoder, extra)

    sequence = at(context)
    row: dict[str, Any] = {
        "model": model.name,
        "model_type": model.model_type,
        "engine": LOGICAL if reserve is None else reserve.engine,
        "engine_version": None if reserve is None else reserve.version,
        "context_tokens": context,
        "model_context_tokens": model.max_context,
        "batch_size": case.batch_size,
        "kv_dtype": kv.k.name if kv.k == kv.v else None,
        "k_dtype": kv.k.name,
        "v_dtype": kv.v.name,
        "dtype": deployment.dtype if deployment.dtype != "auto" else model.dtype,
        "tp": parallel.tp,
        "pp": parallel.pp,
        "ep": parallel.ep,
        "dcp": parallel.dcp,
        "sequence_bytes": sequence,
        "bytes_per_token": sequence - at(context - 1),
        "growing_bytes_per_token": kvcache.growing_bytes_per_token(
            layers, kv, parallel, model.max_context
        ),
        "fixed_bytes": kvcache.fixed_bytes(layers, kv, parallel, encoder),
        "components": _components(layers, case, kv, encoder),
        **_twins(model, context, at),
        **_weights(case),
    }
    if reserve is None:
        row |= _logical(case, row, at, extra, kv, encoder)
    else:
        row |= _reserved(case, reserve)
    return Sized(row, _warnings(case, row, reserve))


def _components(
    layers: Sequence[Layer], case: Case, kv: KVFormat, encoder: int
) -> list[dict[str, Any]]:
    found = kvcache.components(layers, case.context_tokens, kv, case.deployment.parallel, encoder)
    return [
        {"kind": c.kind, "layers": c.layers, "tokens": c.tokens, "bytes": c.bytes} for c in found
    ]


def _twins(model: ModelSpec, context: int, at: Callable[..., int]) -> dict[str, Any]:
    """Bytes of the same sequence with a key/value head per query head, and with one for all."""
    rows: dict[str, Any] = {}
    for variant in ("mha", "mqa"):
        twin = kvcache.with_kv_heads(model, variant)
        try:
            rows[f"{variant}_sequence_bytes"] = at(context, twin) if twin else None
        except UsageError:
            rows[f"{variant}_sequence_bytes"] = None
    return rows


def _weights(case: Case) -> dict[str, Any]:
    model, deployment = case.model, case.deployment
    known = model.weights_known and (deployment.draft is None or deployment.draft.weights_known)
    if not known:
        names = ("weight_params", "active_params", "mtp_params", "weight_bytes")
        alone = deployment.dtype == "auto" and deployment.parallel == SINGLE
        stored = model.stored_bytes if alone and deployment.draft is None else None
        return dict.fromkeys(names) | {"weight_bytes": stored}
    return {
        "weight_params": weights.parameters(model),
        "active_params": weights.active_parameters(model),
        "mtp_params": weights.mtp_parameters(model),
        "weight_bytes": stored_weights(model, deployment),
    }


def _logical(
    case: Case, row: dict[str, Any], at: Callable[..., int], extra: bool, kv: KVFormat, encoder: int
) -> dict[str, Any]:
    """Fit by bytes alone: weights and cache against a share of the device, activations left out."""
    parallel, batch = case.deployment.parallel, case.batch_size
    model = with_drafter(case.model, case.deployment)
    one = kvcache.cluster_sequence_bytes(model, case.context_tokens, kv, parallel, encoder, extra)
    pool = logical_pool(case.budget, row["weight_bytes"])
    held = row["sequence_bytes"]
    found: dict[str, Any] = {
        "request_bytes": held,
        "cache_bytes": held * batch,
        "cluster_bytes": one * batch,
        "loaded_bytes": None,
        "block_size": None,
        "pool_bytes": None if pool is None else max(pool, 0),
        "num_blocks": None,
        "pool_tokens": None,
        "max_concurrency": None,
        "max_context_tokens": None,
        "max_batch_size": None,
        "fits": None,
        "missing_bytes": None,
    }
    if pool is None:
        return found
    concurrency = max(pool, 0) / held if held else None
    return found | {
        "max_concurrency": concurrency,
        "pool_tokens": None if concurrency is None else int(concurrency * case.context_tokens),
        "max_context_tokens": largest(lambda tokens: at(tokens) * batch <= pool, MAX_TOKENS),
        "max_batch_size": max(pool, 0) // held if held else None,
        "fits": held * batch <= pool,
        "missing_bytes": max(held * batch - pool, 0),
    }


def logical_pool(budget: Budget, weight_bytes: int | None) -> int | None:
    """Bytes left for the cache: as given, or a fraction of the device less the weights (it can be
    negative); None when neither a pool nor a device with known weights is there."""
    if budget.num_blocks is not None:
        raise UsageError("logical bytes have no blocks", "give --pool, or an engine with --engine")
    if budget.pool_bytes is not None:
        return budget.pool_bytes
    if budget.device is None or weight_bytes is None:
        return None
    share = LOGICAL_FRACTION if budget.fraction is None else budget.fraction
    return int(budget.device.memory_bytes * share) - weight_bytes


def _reserved(case: Case, reserve: Reserve) -> dict[str, Any]:
    pool = reserve.pool
    found: dict[str, Any] = {
        "request_bytes": reserve.request_bytes,
        "cache_bytes": reserve.cache_bytes,
        "cluster_bytes": reserve.cluster_bytes,
        **_estimate("loaded_bytes", reserve.loaded_bytes),
        "block_size": reserve.block_size or None,
        **_estimate("pool_bytes", pool.pool_bytes if pool else None),
        **_estimate("num_blocks", pool.num_blocks if pool and reserve.block_size else None),
        **_estimate("pool_tokens", pool.pool_tokens if pool else None),
        "max_concurrency": pool and pool.max_concurrency,
        "max_concurrency_low": pool and pool.max_concurrency_low,
        "max_concurrency_high": pool and pool.max_concurrency_high,
        "max_context_tokens": _engine_context(case) if pool else None,
        "max_batch_size": pool and pool.max_batch_size,
        "fits": pool and pool.fits,
        "missing_bytes": pool and max(reserve.cache_bytes - pool.pool_bytes.value, 0),
        "blocks_per_request": reserve.blocks_per_request or None,
        "bytes_per_block": reserve.bytes_per_block or None,
        "groups": [
            {
                "kind": g.kind,
                "layers": g.layers,
                "block_size": g.block_size,
                "page_bytes": g.page_bytes,
                "blocks": g.blocks,
            }
            for g in reserve.groups
        ],
        "reasons": [{"name": r.name, "bytes": r.bytes, "text": r.text} for r in reserve.reasons],
        "terms": [
            {"name": t.name, **_estimate("bytes", t.bytes), "text": t.text}
            for t in (pool.terms if pool else ())
        ],
        "settings": dict(reserve.settings),
        "advice": _advice(case, reserve),
    }
    if reserve.weight_bytes is not None:
        found["weight_bytes"] = reserve.weight_bytes
    return found


def _advice(case: Case, reserve: Reserve) -> list[dict[str, Any]]:
    engine = case.engine
    assert engine is not None
    question = Question(
        engine, case.model, case.context_tokens, case.batch_size, case.deployment, case.budget,
        reserve,
    )  # fmt: skip
    return [
        {
            "name": a.name,
            "text": a.text,
            "option": a.option,
            "figure": a.figure,
            "before": a.before,
            "after": a.after,
        }
        for a in advise(question)
    ]


def _estimate(name: str, value: Estimate | None) -> dict[str, int | None]:
    if value is None:
        return {name: None}
    if value.is_exact:
        return {name: value.value}
    return {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}


def _engine_context(case: Case) -> int | None:
    engine = case.engine
    assert engine is not None

    def fits(tokens: int) -> bool:
        try:
            found = engine.reserve(
                case.model, tokens, case.batch_size, case.deployment, case.budget
            )
        except UsageError:  # an option bounds the context, such as max_cache_len
            return False
        return found.pool is not None and found.pool.fits

    return largest(fits, MAX_TOKENS)


def largest(fits: Callable[[int], bool], limit: int) -> int | None:
    """The largest n >= 0 for which `fits` holds, by doubling and halving; None when `limit` fits.

    `fits` must not become true again once it was false; 0 stands for "not even 1".
    """
    if not fits(1):
        return 0
    low, high = 1, 2
    while high < limit and fits(high):
        low, high = high, 2 * high
    if high >= limit and fits(limit):
        return None
    high = min(high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _unread_format(case: Case) -> str:
    """Why the bytes of the weights are not known."""
    drafts = [case.deployment.draft] if case.deployment.draft else []
    try:
        weights.weight_scheme(case.model, case.deployment.dtype)
        for draft in drafts:
            weights.weight_scheme(draft, "auto")
    except ModelError as error:
        return error.faults[0]
    return f"the weight format of {case.model.name} is not known"


def _warnings(case: Case, row: dict[str, Any], reserve: Reserve | None) -> tuple[str, ...]:
    model = case.model
    found = list(model.notes)
    if model.max_context is not None and case.context_tokens > model.max_context:
        found.append(
            f"{case.context_tokens:,} tokens are more than the {model.max_context:,}"
            f" {model.name} was made for"
        )
    draft = case.deployment.draft
    uncounted = [m for m in (model, draft) if m is not None and not m.weights_known]
    if uncounted and row["weight_bytes"] is None:
        names = " and ".join(m.name for m in uncounted)
        found.append(f"the parameters of {names} are not counted: no weights, no fit by device")
    elif row["weight_bytes"] is None:
        found.append(f"{_unread_format(case)}; give the format of the weights with --dtype")
    device = case.budget.device
    if device is not None and device.memory_is_nominal:
        found.append(f"only the nominal memory of {device.name} is known; the driver shows less")
    if reserve is not None:
        found += reserve.warnings
    return tuple(dict.fromkeys(found))
