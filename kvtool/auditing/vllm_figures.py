"""What each figure of a vLLM log is predicted from: the settings, and the figures above it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvtool import fit
from kvtool.auditing.findings import Prediction, whole
from kvtool.device import DeviceSpec
from kvtool.engines import vllm
from kvtool.engines.base import Budget, Deployment, Estimate, Pool, Reserve
from kvtool.engines.logs import GIB, Figure, Start
from kvtool.engines.vllm_releases import Release, find_release
from kvtool.engines.vllm_weights import loaded_bytes, without_towers
from kvtool.model.spec import ModelSpec

SWAP_BYTES = 4 * GIB


@dataclass(frozen=True, slots=True)
class Case:
    """One start as a version of vLLM would see it.

    `fraction_half` is half a unit of the fraction's last digit where it was rounded for the log.
    `packing` names a quantisation of the weights that the model's card does not have.
    """

    start: Start
    model: ModelSpec
    version: str
    context: int
    deployment: Deployment
    device: DeviceSpec | None
    fraction: float | None
    fraction_half: float
    packing: str | None

    @property
    def is_parallel(self) -> bool:
        return self.deployment.parallel.tp * self.deployment.parallel.pp > 1

    @property
    def is_eager(self) -> bool:
        return self.deployment.options.get("enforce_eager") == "true"

    @property
    def release(self) -> Release:
        return find_release(self.version)[1]

    def reserve(self, budget: Budget | None = None) -> Reserve:
        """What the adapter says; the device decides defaults even where the pool is given."""
        budget = replace(budget or Budget(), device=self.device)
        return vllm.load(self.version).reserve(self.model, self.context, 1, self.deployment, budget)

    def pool(self, budget: Budget) -> Pool | None:
        return self.reserve(budget).pool

    def estimated_pool(self) -> Pool | None:
        """The pool by the device and its fraction; None where a part of it is not known, as is the
        memory of V0 engines."""
        is_v0 = self.start.settings.get("v0") == "true"
        if self.device is None or self.fraction is None or self.packing is not None or is_v0:
            return None
        return self.pool(Budget(fraction=self.fraction))


# Figures that follow from the smallest rank's pool, and may stand beside another rank's.
OF_ALL_RANKS = ("blocks", "tokens", "concurrency", "estimated_max_model_len", "pool")


def _above(case: Case, figure: Figure, name: str) -> Figure | None:
    """The figure called `name` printed above, of the same worker, else the smallest of all."""
    found = [f for f in case.start.figures if f.name == name and f.line <= figure.line]
    same = [f for f in found if f.rank == figure.rank]
    if same and (figure.rank or len(found) == len(same)):
        return same[-1]
    return min(found, key=lambda f: f.value, default=None)


def _weights(case: Case, figure: Figure) -> Prediction | str:
    """What loading allocates; of the stage that the worker names, else of any."""
    if case.packing is not None:
        return f"the card of {case.model.name} does not have the log's '{case.packing}' weights"
    model = case.model
    if case.deployment.options.get("language_model_only") == "true":
        model = without_towers(model)
    stages = range(case.deployment.parallel.pp)
    named = figure.rank.partition("PP")[2].partition("_")[0]
    if named.isdecimal() and int(named) in stages:
        stages = range(int(named), int(named) + 1)
    sizes = [loaded_bytes(model, case.deployment, case.release, stage) for stage in stages]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return f"the parameters of {case.model.name} are not all counted"
    value = min(known, key=lambda size: abs(size.value - figure.value)).value
    return Prediction(
        value,
        min(size.low for size in known),
        max(size.high for size in known),
        "parameters as stored, rotary tables, rounding of the allocator",
        is_estimate=True,
    )


def _pool_bytes(case: Case, figure: Figure) -> Prediction | str:
    """The share of the device less what was printed above, and the estimate of what was not."""
    if case.start.settings.get("pool_is_given") == "true":
        return "given by kv_cache_memory_bytes, not found"
    if case.device is None:
        return "the device's memory is not in the log; give it with --gpu"
    if case.fraction is None:
        return "the memory fraction is not in the log; give it with --gpu-fraction"
    terms = _terms(case, figure)
    if isinstance(terms, str):
        return terms
    memory = case.device.memory_bytes
    value = memory * case.fraction - sum(term.value for term in terms)
    low = value - sum(term.high - term.value for term in terms)
    high = value + sum(term.value - term.low for term in terms)
    rounding = memory * case.fraction_half + 0.005 * GIB * case.fraction
    estimated = any(term.is_estimate for term in terms)
    why = "fraction x memory - " + " - ".join(term.why for term in terms)
    return Prediction(value, low - rounding, high + rounding, why, is_estimate=estimated)


def _terms(case: Case, figure: Figure) -> list[Prediction] | str:
    """What leaves the pool: weights, activation, other memory and graphs, printed or estimated."""
    names = {"weights": "weights", "activation": "activation", "non_torch": "other"}
    found = []
    for name, said, rest in JOINED:
        joined = _above(case, figure, name)
        if joined is not None:
            found, names = [_printed(joined, said)], {name: names[name] for name in rest}
    if case.release.graphs_subtracted and not case.is_eager:
        names["graphs"] = "graphs"
    missing = []
    for name, called in names.items():
        printed = _above(case, figure, name)
        if printed is None:
            missing.append(called)
        else:
            found.append(_printed(printed, called))
    pool = case.estimated_pool() if missing else None
    if missing and pool is None:
        return f"{', '.join(missing)}: neither printed above nor known for {case.model.name}"
    for term in pool.terms if pool else ():
        if term.name in missing:
            size = term.bytes
            why = f"{term.name} (estimated)"
            found.append(Prediction(size.value, size.low, size.high, why, is_estimate=True))
    return found


# Figures that two terms are printed as: their name, what they are, the terms that are left.
JOINED = (
    ("peak_torch", "weights and activation", ("non_torch",)),
    ("consumed", "weights and other", ("activation",)),
)


def _printed(figure: Figure, why: str) -> Prediction:
    return Prediction(figure.value, figure.low, figure.high, why)


def _pool_above(case: Case, figure: Figure) -> tuple[Pool, Pool, Pool, str] | None:
    """The pool that the figures above give, at the printed value and the ends of its rounding;
    without such figures the estimate, whose ends are in the pool itself."""
    blocks = _above(case, figure, "blocks")
    if blocks is not None and figure.name != "blocks":
        given = case.pool(Budget(num_blocks=int(blocks.value)))
        return None if given is None else (given, given, given, "blocks printed above")
    pool = _above(case, figure, "pool")
    if pool is None:
        return None
    sizes = (pool.value, pool.low, pool.high)
    found = [case.pool(Budget(pool_bytes=max(int(size), 0))) for size in sizes]
    ends = [end for end in found if end is not None]
    return (ends[0], ends[1], ends[2], "pool printed above") if len(ends) == len(sizes) else None


_NO_POOL = "neither the pool nor its blocks are printed above"


def _of_pool(
    read: Callable[[Pool], Estimate], why: str
) -> Callable[[Case, Figure], Prediction | str]:
    """A predictor of a figure that follows from the pool."""

    def predict(case: Case, figure: Figure) -> Prediction | str:
        pools = _pool_above(case, figure)
        if pools is not None:
            value, low, high = (read(pool).value for pool in pools[:3])
            return Prediction(value, low, high, f"{why}, from the {pools[3]}")
        estimated = case.estimated_pool()
        if estimated is None:
            return _NO_POOL
        size = read(estimated)
        return Prediction(
            size.value, size.low, size.high, f"{why}, from the estimated pool", is_estimate=True
        )

    return predict


_tokens_of_pool = _of_pool(lambda pool: pool.pool_tokens, "tokens as this version counts them")
_blocks_of_pool = _of_pool(lambda pool: pool.num_blocks, "pool // bytes per block")


def _concurrency(case: Case, figure: Figure) -> Prediction | str:
    """Blocks over the blocks of a request; else the tokens above over the context."""
    context = whole(figure.about.get("context")) or case.context
    at = replace(case, context=context)
    pools = _pool_above(at, figure)
    tokens = _above(case, figure, "tokens")
    if pools is not None:
        middle, low, high, source = pools
        return Prediction(
            middle.max_concurrency,
            low.max_concurrency,
            high.max_concurrency,
            f"blocks / blocks of a request of {context:,} tokens, from the {source}",
        )
    if tokens is None:
        return _NO_POOL
    one = at.reserve()
    release = case.release
    if len(one.groups) > 1 and not release.tokens_follow_concurrency:
        return "several groups: the tokens do not tell the concurrency in this version"
    value = tokens.value / context
    if not release.tokens_follow_concurrency:
        value = tokens.value / (
            one.blocks_per_request * one.block_size * case.deployment.parallel.dcp
        )
    return Prediction(value, value, value + 1 / context, "tokens printed above / context")


def _needed(case: Case, figure: Figure) -> Prediction | str:
    """What a request of the longest context takes."""
    held = case.reserve().request_bytes
    return Prediction.exact(held, f"a request of {case.context:,} tokens")


def _estimated_length(case: Case, figure: Figure) -> Prediction | str:
    pool = _above(case, figure, "pool")
    if pool is None:
        return _NO_POOL

    def longest(size: float) -> int:
        def fits(tokens: int) -> bool:
            reserve = replace(case, context=tokens).reserve()
            return reserve.request_bytes <= size

        return fit.largest(fits, 1 << 40) or 0

    why = "the longest context whose request fits the pool printed above"
    return Prediction(longest(pool.value), longest(pool.low), longest(pool.high), why)


def _attention_block(case: Case, figure: Figure) -> Prediction | str:
    return Prediction.exact(case.reserve().block_size, "a page that holds a recurrent state")


def _padding_layers(case: Case, figure: Figure) -> Prediction | str:
    """Layers that fill up the groups of one kind: the width of all groups less what they hold."""
    groups = case.reserve().groups
    width = max((group.layers for group in groups), default=0)
    kinds = {(group.kind, group.page_bytes) for group in groups}
    missing = [
        sum(width - g.layers for g in groups if (g.kind, g.page_bytes) == kind) for kind in kinds
    ]
    value = min(missing, key=lambda n: abs(n - figure.value), default=0)
    return Prediction.exact(value, f"groups of {width} layers")


def _cpu_blocks(case: Case, figure: Figure) -> Prediction | str:
    """Blocks of the swap space of V0, 4 GiB unless the log says otherwise."""
    try:
        space = int(float(case.start.settings.get("swap_space", "4")) * GIB)
    except (ValueError, OverflowError):
        space = SWAP_BYTES
    return Prediction.exact(space // case.reserve().bytes_per_block, "swap space // block")


def _estimated_term(name: str) -> Callable[[Case, Figure], Prediction | str]:
    """A term of the memory estimate, which needs a device."""

    def predict(case: Case, figure: Figure) -> Prediction | str:
        if case.device is None:
            return "the device is not in the log; give it with --gpu"
        if case.deployment.parallel.pp > 1:
            return "not estimated for each pipeline stage"
        pool = replace(case, fraction=case.fraction or 1.0).estimated_pool()
        found = {term.name: term for term in (pool.terms if pool else ())}
        if name not in found:
            return "no estimate of this term"
        size = found[name].bytes
        return Prediction(size.value, size.low, size.high, found[name].text, is_estimate=True)

    return predict


def _consumed(case: Case, figure: Figure) -> Prediction | str:
    """Weights as printed above, and the estimate of what is not torch's."""
    weights = _above(case, figure, "weights")
    other = _estimated_term("other")(case, figure)
    if weights is None:
        return "the weights are not printed above"
    if isinstance(other, str):
        return other
    return Prediction(
        weights.value + other.value,
        weights.low + other.low,
        weights.high + other.high,
        "weights printed above + memory outside torch, estimated",
        is_estimate=True,
    )


PREDICTORS: dict[str, Callable[[Case, Figure], Prediction | str]] = {
    "weights": _weights,
    "pool": _pool_bytes,
    "pool_in_use": _pool_bytes,
    "blocks": _blocks_of_pool,
    "cpu_blocks": _cpu_blocks,
    "tokens": _tokens_of_pool,
    "concurrency": _concurrency,
    "needed": _needed,
    "estimated_max_model_len": _estimated_length,
    "attention_block": _attention_block,
    "padding_layers": _padding_layers,
    "activation": _estimated_term("activation"),
    "non_torch": _estimated_term("other"),
    "graphs": _estimated_term("graphs"),
    "consumed": _consumed,
}
