"""What each figure of a vLLM log is predicted from: the settings, and the figures above it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvtool import fit
from kvtool.auditing.findings import Prediction, whole
from kvtool.device import DeviceSpec
from kvtool.engines import vllm
from kvtool.engines.base import Budget, Deployment, Pool, Reserve
from kvtool.engines.logs import GIB, Figure, Start
from kvtool.engines.vllm_releases import find_release
from kvtool.engines.vllm_weights import loaded_bytes
from kvtool.model.spec import ModelSpec

SWAP_BYTES = 4 * GIB


@dataclass(frozen=True, slots=True)
class Case:
    """One start as a version of vLLM would see it."""

    start: Start
    model: ModelSpec
    version: str
    context: int
    deployment: Deployment
    device: DeviceSpec | None
    fraction: float | None

    @property
    def is_parallel(self) -> bool:
        return self.deployment.parallel.tp * self.deployment.parallel.pp > 1

    def reserve(self, budget: Budget | None = None) -> Reserve:
        return vllm.load(self.version).reserve(self.model, self.context, 1, self.deployment, budget)

    def pool(self, budget: Budget) -> Pool | None:
        return self.reserve(budget).pool


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
    release = find_release(case.version)[1]
    stages = range(case.deployment.parallel.pp)
    named = figure.rank.partition("PP")[2].partition("_")[0]
    if named.isdecimal() and int(named) in stages:
        stages = range(int(named), int(named) + 1)
    sizes = [loaded_bytes(case.model, case.deployment, release, stage) for stage in stages]
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
    """The share of the device less what was printed above; else less what is estimated."""
    printed = {name: _above(case, figure, name) for name in ("weights", "activation", "non_torch")}
    terms = [term for term in printed.values() if term is not None]
    if case.device is not None and case.fraction is not None and len(terms) == len(printed):
        return _from_terms(case, figure, terms)
    if case.device is None:
        return "the device's memory is not in the log; give it with --gpu"
    if case.fraction is None:
        return "the memory fraction is not in the log; give it with --gpu-fraction"
    pool = case.pool(Budget(case.device, case.fraction))
    if pool is None:
        return f"the parameters of {case.model.name} are not all counted"
    value = pool.pool_bytes
    why = "fraction x memory - weights - activation - other, estimated"
    return Prediction(value.value, value.low, value.high, why, is_estimate=True)


def _from_terms(case: Case, figure: Figure, terms: list[Figure]) -> Prediction:
    assert case.device is not None
    assert case.fraction is not None
    graphs = _above(case, figure, "graphs")
    budget = case.device.memory_bytes * case.fraction
    rounding = 0.005 * GIB * case.fraction
    value = budget - sum(term.value for term in terms)
    half = rounding + sum(term.half for term in terms)
    why = "fraction x memory - the terms printed above"
    release = find_release(case.version)[1]
    if graphs is not None and release.graphs_subtracted:
        value, half, why = value - graphs.value, half + graphs.half, why + " - graphs"
    return Prediction(value, value - half, value + half, why)


def _pool_above(case: Case, figure: Figure) -> tuple[Pool, Pool, Pool, str] | None:
    """The pool that the figures above give, at the printed value and the ends of its rounding."""
    blocks = _above(case, figure, "blocks")
    if blocks is not None and blocks is not figure and blocks.name != figure.name:
        given = case.pool(Budget(num_blocks=int(blocks.value)))
        return None if given is None else (given, given, given, "blocks printed above")
    pool = _above(case, figure, "pool")
    if pool is None:
        return None
    ends = [
        case.pool(Budget(pool_bytes=max(int(end), 0))) for end in (pool.value, pool.low, pool.high)
    ]
    if any(end is None for end in ends):
        return None
    value, low, high = (end for end in ends if end is not None)
    return value, low, high, "pool printed above"


_NO_POOL = "neither the pool nor its blocks are printed above"


def _of_pool(read: Callable[[Pool], float], why: str) -> Callable[[Case, Figure], Prediction | str]:
    def predict(case: Case, figure: Figure) -> Prediction | str:
        pools = _pool_above(case, figure)
        if pools is None:
            return _NO_POOL
        value, low, high, source = pools
        return Prediction(read(value), read(low), read(high), f"{why}, from the {source}")

    return predict


_tokens_of_pool = _of_pool(
    lambda pool: pool.pool_tokens.value, "tokens as this version counts them"
)
_blocks_of_pool = _of_pool(lambda pool: pool.num_blocks.value, "pool // bytes per block")


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
    release = find_release(case.version)[1]
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
    except ValueError:
        space = SWAP_BYTES
    return Prediction.exact(space // case.reserve().bytes_per_block, "swap space // block")


def _estimated_term(name: str) -> Callable[[Case, Figure], Prediction | str]:
    """A term of the memory estimate, which needs a device."""

    def predict(case: Case, figure: Figure) -> Prediction | str:
        if case.device is None:
            return "the device is not in the log; give it with --gpu"
        pool = case.pool(Budget(case.device, case.fraction or 0.9))
        found = {term.name: term for term in (pool.terms if pool else ())}
        if name not in found:
            return "no estimate of this term for this version"
        size = found[name].bytes
        return Prediction(size.value, size.low, size.high, found[name].text, is_estimate=True)

    return predict


PREDICTORS: dict[str, Callable[[Case, Figure], Prediction | str]] = {
    "weights": _weights,
    "pool": _pool_bytes,
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
}
