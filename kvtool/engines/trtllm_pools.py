"""What TensorRT-LLM stores per layer, and the pools that the layers' windows make.

    row    = 2 x kv_heads / tp x head_dim x bytes; latent rows once; states per request
    pools  = one per distinct window, each with an equal share of the bytes
    blocks = (budget - intercept) / pools / bytes of a token / tokens_per_block

Source: tensorrt_llm/_torch/pyexecutor/resource_manager.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtool.engines.trtllm_options import Settings
from kvtool.errors import KvtoolError
from kvtool.model.spec import Attention, Index, Latent, Layer, ModelSpec, Recurrent, State


@dataclass(frozen=True, slots=True)
class Row:
    """A state of one layer: the bytes of a token, or of the state; the tokens it keeps at most."""

    state: State
    bytes: int
    window: int | None


@dataclass(frozen=True, slots=True)
class WindowPool:
    """Layers with one window: bytes of a token of all of them, blocks of a request."""

    window: int | None
    token_bytes: int
    blocks: int


def layer_rows(
    model: ModelSpec, layers: Sequence[Layer], first: int, settings: Settings, context: int
) -> list[Row]:
    """Bytes of every state of `layers`, and the window its layer is given.

    `first` is the number of the first of them in the model, where the pattern of windows begins.
    Raises KvtoolError for states that are stored in a way not covered here.
    """
    kv, tp = settings.kv, settings.parallel.tp
    pattern = settings.attention_window
    found = []
    for i, layer in enumerate(layers, first):
        window = pattern[i % len(pattern)] if pattern else None
        window = window if window is not None and window < context else None
        latent = any(isinstance(state, Latent) for state in layer.states)
        for state in layer.states:
            if isinstance(state, Attention) and _has_one_width(state):
                found.append(Row(state, state.row_bytes(kv, tp), window))
            elif isinstance(state, Latent) and state.stride == 1:
                found.append(Row(state, kv.k.row_bytes(1, state.width), window))
            elif isinstance(state, Index) and latent:
                size = state.row_bytes() * (kv.k.block_bytes if kv.k.block == 1 else 1)
                found.append(Row(state, -(-size // state.stride), window))
            elif isinstance(state, Recurrent):
                found.append(Row(state, state.bytes(context, kv, settings.parallel), None))
            else:
                raise _uncovered(model, state)
    return found


def _uncovered(model: ModelSpec, state: State) -> KvtoolError:
    what = f"{state.kind} layers"
    if isinstance(state, Attention) and state.kind != "cross":
        what = f"keys of {state.head_dim} and values of {state.v_head_dim} elements"
    if isinstance(state, Latent):
        what = "compressed latent layers"
    return KvtoolError(
        f"the trtllm adapter does not cover the {what} of {model.name} yet",
        "use --engine logical for what the architecture keeps",
    )


def _has_one_width(state: Attention) -> bool:
    return state.kind != "cross" and state.head_dim == state.v_head_dim


def window_pools(rows: Sequence[Row], settings: Settings, context: int) -> list[WindowPool]:
    """A pool for every distinct window, the smallest first and full layers last."""
    sizes: dict[int | None, int] = {}
    for row in rows:
        if not isinstance(row.state, Recurrent):
            sizes[row.window] = sizes.get(row.window, 0) + row.bytes
    order = sorted(sizes, key=lambda window: context if window is None else window)
    return [
        WindowPool(window, sizes[window], _blocks(window, settings, context)) for window in order
    ]


def _blocks(window: int | None, settings: Settings, context: int) -> int:
    tokens = context if window is None else window
    return -(-tokens // settings.tokens_per_block) + (window is not None)


def paged_bytes(pools: Sequence[WindowPool], settings: Settings) -> int:
    """Bytes of the blocks that one request takes of all pools."""
    return sum(pool.blocks * pool.token_bytes for pool in pools) * settings.tokens_per_block


def state_bytes(rows: Sequence[Row]) -> int:
    """Bytes of the recurrent states of one request."""
    return sum(row.bytes for row in rows if isinstance(row.state, Recurrent))


def cut(budget: int, pools: Sequence[WindowPool], settings: Settings, state: int) -> list[int]:
    """Blocks of every pool: equal shares of what the intercept leaves."""
    left = max(budget - settings.max_batch_size * state, 0)
    found = []
    for pool in pools:
        tokens = left // len(pools) // pool.token_bytes
        if settings.max_tokens is not None and len(pools) == 1:
            tokens = min(tokens, settings.max_tokens)
        block = settings.tokens_per_block
        rounds_up = settings.release.rounds_up and len(pools) == 1
        found.append(-(-tokens // block) if rounds_up else tokens // block)
    return found


def concurrency(
    blocks: Sequence[int], pools: Sequence[WindowPool], settings: Settings, state: int
) -> float:
    """Requests of the context that the pools hold at once, no more than were asked for."""
    bounds = [held / pool.blocks for held, pool in zip(blocks, pools, strict=True)]
    if state and settings.batch_is_given:
        bounds.append(float(settings.max_batch_size))
    return min(bounds, default=float(settings.max_batch_size))


def largest_batch(
    room: int, blocks: Sequence[int], pools: Sequence[WindowPool], settings: Settings, state: int
) -> int:
    """Requests the pools hold; where their states are not counted yet, each brings its own."""
    if state and not settings.batch_is_given:
        return max(room, 0) // (paged_bytes(pools, settings) + state)
    return min(int(concurrency(blocks, pools, settings, state)), settings.max_batch_size)
