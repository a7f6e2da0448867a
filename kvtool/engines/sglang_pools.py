"""The pools SGLang cuts from a budget of bytes, and what a request takes of them.

    states  = budget x r / (1 + r) // slot bytes - 1           (r: 0.9; models with states)
    tokens  = rest // (full + ratio x window cells)            down to whole pages
    windows = tokens x ratio                                   (0.8)

Buffers hold one page, and one slot, more than these figures say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtool.engines.sglang_cells import Cell
from kvtool.engines.sglang_options import Settings

# Tokens a window keeps beyond its own before they are freed (SGLANG_SWA_EVICTION_INTERVAL).
EVICTION_INTERVAL = 128


@dataclass(frozen=True, slots=True)
class Demand:
    """Bytes of a token in each pool and of a slot, and what a request of the context takes."""

    context_tokens: int
    full_bytes: int
    window_bytes: int
    state_bytes: int
    full_layers: int
    window_layers: int
    window: int | None
    full_tokens: int
    window_tokens: int
    states: int

    @property
    def request_bytes(self) -> int:
        return (
            self.full_tokens * self.full_bytes
            + self.window_tokens * self.window_bytes
            + self.states * self.state_bytes
        )


@dataclass(frozen=True, slots=True)
class Pools:
    """Tokens of the full and of the window pool, slots of recurrent states.

    `tokens` is the log's `max_total_num_tokens`; both are equal where all layers are windows.
    """

    tokens: int
    window_tokens: int
    slots: int


def demand(cells: Sequence[Cell], settings: Settings, context: int) -> Demand:
    """What a request of `context` tokens takes, in whole pages.

    A window is admitted with a page beside it: min(context, window) + page tokens.
    """
    page = settings.page_size
    windows = [cell for cell in cells if cell.pool == "window"]
    full = [cell for cell in cells if cell.pool == "full"]
    states = sum(cell.bytes for cell in cells if cell.pool == "state")
    window = max((cell.limit for cell in windows if cell.limit is not None), default=None)
    return Demand(
        context_tokens=context,
        full_bytes=sum(cell.bytes for cell in full),
        window_bytes=sum(cell.bytes for cell in windows),
        state_bytes=states,
        full_layers=len(full),
        window_layers=len(windows),
        window=window,
        full_tokens=_pages(context, page) if full else 0,
        window_tokens=0 if window is None else _pages(min(context, window), page) + page,
        states=settings.states_per_request if states else 0,
    )


def _pages(tokens: int, page: int) -> int:
    return -(-tokens // page) * page


def cut(budget: int, demand: Demand, settings: Settings) -> Pools:
    """The pools of `budget` bytes, weights and other memory already taken off."""
    page = settings.page_size
    slots, budget = _slots(budget, demand, settings)
    if _caps_window(demand, settings):
        window = _pages(_window_cap(demand, settings), page)
        tokens = (budget - window * demand.window_bytes) // demand.full_bytes
        tokens = _limited(max(tokens, 0), settings)
        return Pools(tokens, min(window, tokens), slots)
    cell = _cell(demand, settings)
    tokens = int(max(budget, 0) // cell) if cell else demand.context_tokens
    return _split(_limited(tokens, settings), demand, slots, settings)


def _limited(tokens: int, settings: Settings) -> int:
    """Whole pages, no more than the option allows."""
    if settings.tokens_limit is not None:
        tokens = min(tokens, settings.tokens_limit)
    return tokens // settings.page_size * settings.page_size


def _split(tokens: int, demand: Demand, slots: int, settings: Settings) -> Pools:
    ratio = settings.window_ratio if demand.full_layers else 1
    page = settings.page_size
    return Pools(tokens, int(tokens * ratio) // page * page if demand.window_layers else 0, slots)


def of_tokens(tokens: int, demand: Demand, settings: Settings) -> Pools:
    """The pools of a server that logs `tokens`, with the slots that the ratio of bytes implies."""
    share = settings.state_ratio * tokens * _cell(demand, settings)
    slots = int(share // demand.state_bytes) if demand.state_bytes else 0
    return _split(_limited(tokens, settings), demand, settings.slots or slots, settings)


def _cell(demand: Demand, settings: Settings) -> float:
    """Bytes per token of `max_total_num_tokens`.

    Up to 0.5.22 all layers are priced like a full one, then dealt out by their numbers.
    """
    if not demand.window_layers or not demand.full_layers:
        return demand.full_bytes + demand.window_bytes
    if settings.release.split_by_layers:
        row = demand.full_bytes / demand.full_layers
        return row * (demand.full_layers + settings.window_ratio * demand.window_layers)
    return demand.full_bytes + settings.window_ratio * demand.window_bytes


def _slots(budget: int, demand: Demand, settings: Settings) -> tuple[int, int]:
    """Slots of recurrent states, and the bytes they leave."""
    per, drafts = demand.state_bytes, settings.draft_tokens
    if not per:
        return 0, budget
    padding, states = settings.release.padding_slot, settings.states_per_request
    running = settings.max_running_requests
    slots = settings.slots
    if slots is None and not settings.radix_cache and running is not None:
        slots = running
    if slots is None:
        share = budget * settings.state_ratio / (1 + settings.state_ratio)
        own = per * (1 + drafts / states)
        slots = max(int((share - padding * per * (1 + drafts)) // own), 0)
    at_once = min(running or slots, slots // states)
    taken = (slots + padding) * per + drafts * per * (at_once + padding if drafts else 0)
    return slots, budget - taken


def _caps_window(demand: Demand, settings: Settings) -> bool:
    """Without reuse of prefixes and with a stated number of requests the window pool is theirs."""
    return bool(
        demand.window_layers
        and demand.full_layers
        and not settings.radix_cache
        and settings.max_running_requests
        and not settings.release.split_by_layers
    )


def _window_cap(demand: Demand, settings: Settings) -> int:
    page, window = settings.page_size, demand.window or 0
    request = window + EVICTION_INTERVAL + 2 * page
    chunks = 2 if settings.overlap else 1
    running = settings.max_running_requests or 1
    return request * running + chunks * settings.chunked_prefill_size + page


def concurrency(pools: Pools, demand: Demand, page_size: int) -> float:
    """Requests of the context that the pools hold at once; 0 where a window pool is too small for
    one (SGLang then refuses to start)."""
    bounds = []
    if demand.full_tokens:
        bounds.append(pools.tokens / demand.full_tokens)
    if demand.window is not None:
        if pools.window_tokens <= demand.window + page_size:
            return 0.0
        bounds.append(pools.window_tokens / demand.window_tokens)
    if demand.states:
        bounds.append(pools.slots / demand.states)
    return min(bounds, default=0.0)


def running_requests(pools: Pools, demand: Demand, settings: Settings) -> int:
    """The log's `max_running_requests`: as given, else 2,048 to 4,096 by the pool's size; bounded
    by half the pool's tokens and by the state slots."""
    estimate = max(min(int(pools.tokens / demand.context_tokens * 512), 4096), 2048)
    allowed = min(settings.max_running_requests or estimate, pools.tokens // 2)
    if demand.state_bytes:
        allowed = min(allowed, pools.slots // settings.states_per_request)
    return allowed
