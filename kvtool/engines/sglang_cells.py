"""What SGLang stores for each layer: bytes per token of a pool, or per slot of a state.

A *cell* is a token's rows of all layers of a pool. Rows:

    attention    max(1, kv_heads // tp) x (head_dim + v_head_dim) x bytes
    latent       (kv_lora_rank + rope) x bytes, on every tensor rank
    sparse fp8   656 B: 512 values, 4 float32 scales, 64 rotary values in 16 bits; 576 B raw
    index        132 B (128 fp8 values and a scale) of layers that compute their own choice
    recurrent    convolution tail in bfloat16, matrices in float32, a slot each

Source: `pool_configurator.py`, `kv_cache_configurator.py`, `configs/mamba_utils.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from kvtool.dtype import DTYPES
from kvtool.engines.deployed import owner
from kvtool.engines.sglang_options import Settings
from kvtool.errors import KvtoolError
from kvtool.model.spec import (
    Attention,
    Index,
    Latent,
    Layer,
    ModelSpec,
    Recurrent,
    Shared,
    State,
    shares,
)

PoolName = Literal["full", "window", "state"]
SPARSE_ROW_BYTES = 656
SPARSE_WIDTH = 576


@dataclass(frozen=True, slots=True)
class Cell:
    """One state of one layer in its pool: bytes of a token, or of a slot in the state pool.

    `limit` is the window of a row in the window pool. `state` is the logical state, None for a
    layer that reads another one's rows and has a pool of its own all the same.
    """

    pool: PoolName
    kind: str
    bytes: int
    limit: int | None
    state: State | None


def cells(model: ModelSpec, layers: Sequence[Layer], settings: Settings) -> list[Cell]:
    """The cells of `layers`, the layers of one stage.

    Raises KvtoolError for states that SGLang stores in a way not covered here.
    """
    found: list[Cell] = []
    for layer in layers:
        found += _layer_cells(model, layer, settings)
    return found


def _layer_cells(model: ModelSpec, layer: Layer, settings: Settings) -> Iterator[Cell]:
    sparse = any(isinstance(state, Index) for state in layer.states)
    latent = any(isinstance(state, Latent) for state in layer.states)
    for state in layer.states:
        if isinstance(state, Attention) and state.kind != "cross":
            yield _attention(state, settings, state)
        elif isinstance(state, Latent) and state.stride == 1:
            size = _latent_bytes(state, settings, sparse=sparse)
            yield Cell("full", "latent", size, None, state)
        elif isinstance(state, Index) and latent:
            yield Cell("full", "index", -(-state.row_bytes() // state.stride), None, state)
        elif isinstance(state, Recurrent):
            yield Cell("state", state.kind, _state_bytes(state, settings), None, state)
        elif isinstance(state, Shared):
            read = owner(layer, model.layers)
            if read is None:
                raise _uncovered(model, "shared")
            yield _attention(read, settings, None)
        else:
            what = "compressed latent" if isinstance(state, Latent) else state.kind
            raise _uncovered(model, what)


def _uncovered(model: ModelSpec, what: str) -> KvtoolError:
    return KvtoolError(
        f"the sglang adapter does not cover the {what} layers of {model.name} yet",
        "use --engine logical for what the architecture keeps",
    )


def _attention(state: Attention, settings: Settings, owned: State | None) -> Cell:
    heads = max(1, state.num_kv_heads // settings.parallel.tp)
    size = settings.kv.k.row_bytes(heads, state.head_dim)
    size += settings.kv.v.row_bytes(heads, state.v_head_dim)
    windowed = state.limit is not None and settings.has_window_pool
    pool: PoolName = "window" if windowed else "full"
    return Cell(pool, state.kind, size, state.limit if windowed else None, owned)


def _latent_bytes(state: Latent, settings: Settings, *, sparse: bool) -> int:
    packed = sparse and settings.kv.k.name == "fp8_e4m3" and not settings.raw_rows
    if packed and state.width == SPARSE_WIDTH:
        return SPARSE_ROW_BYTES
    return settings.kv.k.row_bytes(1, state.width)


def _state_bytes(state: Recurrent, settings: Settings) -> int:
    dtype = "bfloat16" if state.kind == "conv" else settings.state_dtype
    elements = sum(
        count // units * shares(units, settings.parallel.tp) if units else count
        for count, units in state.parts
    )
    return DTYPES[dtype].row_bytes(1, elements)
