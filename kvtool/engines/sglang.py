"""SGLang: what a request takes of its pools, and how many tokens they hold.

SGLang cuts its memory into pools of tokens, not of blocks: one for layers that keep every token,
one for windows where the model type has it, slots for recurrent states. `sglang_cells` prices a
token, `sglang_pools` cuts the budget, `sglang_memory` estimates it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvtool import kvcache
from kvtool.engines import sglang_memory as memory
from kvtool.engines import sglang_pools as pools
from kvtool.engines.base import Budget, Deployment, Estimate, Group, Pool, Reason, Reserve, Term
from kvtool.engines.deployed import extra_layers
from kvtool.engines.sglang_cells import Cell, cells
from kvtool.engines.sglang_options import Settings, settle
from kvtool.engines.sglang_releases import CHECKED, Release, find_release
from kvtool.model.spec import Attention, Latent, ModelSpec, stages

NAME = "sglang"

TEXTS = {
    "packed_rows": "rows are packed by the kernels, not as the bare dtype would be",
    "window_stored_in_full": "this model type has no window pool: windows are stored in full",
    "window_page": "a window is admitted with one page beside it",
    "shared_layers": "layers that read another layer's rows have rows of their own all the same",
    "state_dtype": "recurrent matrices in another type than the model's, tails in 16 bits",
    "state_copies": "states kept beside the running one: prefix reuse, overlapped scheduling",
    "page_rounding": "the last page is not full",
}


@dataclass(frozen=True, slots=True)
class Sglang:
    """The adapter for one version."""

    version: str
    release: Release
    name: str = NAME

    def reserve(
        self,
        model: ModelSpec,
        context_tokens: int,
        batch_size: int = 1,
        deployment: Deployment = Deployment(),
        budget: Budget | None = None,
    ) -> Reserve:
        """What a request of `context_tokens` takes, and what the pools of `budget` hold.

        Raises UsageError for options, dtypes and ranks that cannot be, KvtoolError for layers that
        this adapter does not cover.
        """
        kvcache.check_parallel(model, deployment.parallel)
        device = budget.device if budget else None
        settings = settle(model, deployment, self.release, device)
        if device is not None and not (budget and budget.is_given):
            chosen = (budget.fraction if budget else None) or settings.fraction
            chosen = chosen or memory.default_fraction(model, settings, device)
            settings = replace(settings, fraction=chosen)
        extra = extra_layers(model, deployment)
        whole = replace(model, mtp_layers=extra)
        layers = kvcache.fullest_stage(
            whole, context_tokens, settings.kv, deployment.parallel, 0, bool(extra)
        )
        found = cells(whole, layers, settings)
        wanted = pools.demand(found, settings, context_tokens)
        one_pool = not wanted.window_layers and not wanted.states and wanted.full_layers
        every = [*stages(model.layers, deployment.parallel.pp)]
        every[-1] = [*every[-1], *extra]
        of_stages = [
            pools.demand(cells(whole, stage, settings), settings, context_tokens) for stage in every
        ]
        return Reserve(
            engine=self.name,
            version=self.version,
            kv=settings.kv,
            context_tokens=context_tokens,
            batch_size=batch_size,
            block_size=settings.page_size,
            bytes_per_block=wanted.full_bytes * settings.page_size if one_pool else 0,
            blocks_per_request=wanted.full_tokens // settings.page_size if one_pool else 0,
            request_bytes=wanted.request_bytes,
            cache_bytes=batch_size * wanted.request_bytes,
            cluster_bytes=batch_size
            * deployment.parallel.tp
            * sum(stage.request_bytes for stage in of_stages),
            groups=_groups(found, wanted, settings),
            reasons=(
                *_reasons(found, wanted, settings, context_tokens),
                *_notes(found, wanted, settings),
            ),
            settings=settings.shown(),
            loaded_bytes=memory.loaded_bytes(model, deployment),
            pool=_pool(model, deployment, settings, wanted, batch_size, budget),
            warnings=self._warnings(),
        )

    def _warnings(self) -> tuple[str, ...]:
        if self.version in CHECKED:
            return ()
        return (f"SGLang {self.version}: the rules of {self.release.version} on, not checked here",)


def load(version: str | None = None) -> Sglang:
    """The adapter for `version`, the newest known when None; UsageError for an unknown one."""
    return Sglang(*find_release(version))


def _groups(found: Sequence[Cell], wanted: pools.Demand, settings: Settings) -> tuple[Group, ...]:
    """Layers of each pool with equal rows: pages of the pool, or slots of a state."""
    page = settings.page_size
    counts = Counter((cell.pool, cell.kind, cell.bytes) for cell in found)
    blocks = {
        "full": wanted.full_tokens // page,
        "window": wanted.window_tokens // page,
        "state": wanted.states,
    }
    return tuple(
        Group(kind, layers, wanted.context_tokens, size, blocks[pool])
        if pool == "state"
        else Group(kind, layers, page, size * page, blocks[pool])
        for (pool, kind, size), layers in counts.items()
    )


def _reasons(
    found: Sequence[Cell], wanted: pools.Demand, settings: Settings, context: int
) -> list[Reason]:
    """Why a request takes more than its logical bytes; their sum is exactly the difference."""
    totals = dict.fromkeys(TEXTS, 0)
    for cell in found:
        for name, difference in _differences(cell, wanted, settings, context):
            totals[name] += difference
    return [Reason(name, count, TEXTS[name]) for name, count in totals.items() if count]


def _differences(
    cell: Cell, wanted: pools.Demand, settings: Settings, context: int
) -> Iterator[tuple[str, int]]:
    if cell.state is None:
        tokens = wanted.window_tokens if cell.pool == "window" else wanted.full_tokens
        yield "shared_layers", cell.bytes * tokens
        return
    logical = cell.state.bytes(context, settings.kv, settings.parallel)
    if cell.pool == "state":
        yield "state_dtype", cell.bytes - logical
        yield "state_copies", (wanted.states - 1) * cell.bytes
        return
    stored = cell.state.tokens(context, 0)
    if cell.kind == "index":
        yield "packed_rows", cell.bytes * context - logical
        stored = context
    else:
        yield "packed_rows", cell.bytes * stored - logical
    if cell.pool == "window":
        yield "window_page", (wanted.window_tokens - stored) * cell.bytes
        return
    yield "window_stored_in_full", (context - stored) * cell.bytes
    yield "page_rounding", (wanted.full_tokens - context) * cell.bytes


def _notes(found: Sequence[Cell], wanted: pools.Demand, settings: Settings) -> Iterator[Reason]:
    """Facts about pools and cluster, which take no bytes of a request."""
    tp = settings.parallel.tp
    if tp > 1 and any(isinstance(cell.state, Latent) for cell in found):
        yield Reason("replicated_rows", 0, f"latent rows are on each of the {tp} tensor ranks")
    heads = {c.state.num_kv_heads for c in found if isinstance(c.state, Attention)}
    for count in sorted(heads):
        if count < tp:
            text = f"{count} key/value heads on {tp} ranks: each is kept {tp // count} times"
            yield Reason("replicated_heads", 0, text)
    if wanted.window_layers and wanted.full_layers:
        text = (
            f"the window pool holds {settings.window_ratio:g} of the full pool's tokens, whatever"
            " the requests need of it"
        )
        yield Reason("fixed_split", 0, text)
    if wanted.full_layers or wanted.window_layers:
        text = "buffers hold one page of tokens more than the log says"
        yield Reason("extra_page", 0, text)


def _pool(
    model: ModelSpec,
    deployment: Deployment,
    settings: Settings,
    wanted: pools.Demand,
    batch_size: int,
    budget: Budget | None,
) -> Pool | None:
    """The pools as given, else estimated from the device; None without either.

    A pool in bytes is what SGLang has left for pools and states before it cuts them; in blocks
    it is the pages of `max_total_num_tokens`.
    """
    if budget is None or not (wanted.request_bytes and (budget.is_given or budget.device)):
        return None
    if budget.num_blocks is not None:
        held = pools.of_tokens(budget.num_blocks * settings.page_size, wanted, settings)
        page = settings.page_size
        size = (held.tokens + page) * wanted.full_bytes * bool(wanted.full_layers)
        size += (held.window_tokens + page) * wanted.window_bytes
        size += (held.slots + settings.release.padding_slot) * wanted.state_bytes
        return _filled(Estimate.exact(size), (held,) * 3, settings, wanted, batch_size, ())
    taken: tuple[Term, ...] = ()
    if budget.pool_bytes is not None:
        room = Estimate.exact(budget.pool_bytes)
    else:
        assert budget.device is not None
        terms = memory.terms(model, deployment, settings, budget.device)
        if terms is None:
            return None
        room, taken = memory.left(budget.device, terms), terms
    ends = tuple(pools.cut(end, wanted, settings) for end in (room.value, room.low, room.high))
    return _filled(room, ends, settings, wanted, batch_size, taken)


def _filled(
    room: Estimate,
    ends: Sequence[pools.Pools],
    settings: Settings,
    wanted: pools.Demand,
    batch_size: int,
    terms: tuple[Term, ...],
) -> Pool:
    """The pool's figures at its value, low and high end."""
    at_once = [pools.concurrency(end, wanted, settings.page_size) for end in ends]
    largest = min(int(at_once[0]), pools.running_requests(ends[0], wanted, settings))
    return Pool(
        pool_bytes=room,
        num_blocks=Estimate(*(end.tokens // settings.page_size for end in ends)),
        pool_tokens=Estimate(*(end.tokens for end in ends)),
        max_concurrency=at_once[0],
        max_concurrency_low=at_once[1],
        max_concurrency_high=at_once[2],
        fits=batch_size <= largest,
        max_batch_size=largest,
        terms=terms,
    )
