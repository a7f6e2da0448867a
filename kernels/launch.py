"""What the Triton paths share on the host: device tables of a plan, and kernel arguments."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kvtool.errors import ShapeError
from kvtool.kernels.checks import FP8_DTYPES, Call
from kvtool.kernels.plan import Plan
from kvtool.kernels.rope import Rope, rows

MAX_SEGMENTS = 32
"""Of one decode item: their records are held in registers, one a lane."""
LOG2_E = math.log2(math.e)


class Config(NamedTuple):
    """Tile sizes and resources of a launch.

    registers: cap per thread, None for the compiler's choice.  programs: per multiprocessor,
    what a decode plan aims at.
    """

    block_m: int
    block_n: int
    stages: int
    warps: int
    registers: int | None = None
    programs: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Work lists and rotation rows on the device.

    phase: "prefill", "hopper" (prefill on that path) or "decode".  config: of the launch.
    items: [n, 8] int32, one program each (and one per kv head in decode).
      Prefill: sequence, kv head, first row, queries, position of the first query, first segment,
      segments, tokens of the first.  Decode: sequence, segments, 0, queries, position of the
      first query, first segment, 0, tiles.
    segments: int32, [m, 4] in prefill: first key row, tokens, position of the first token, and
      its index within the document; [m, 8] in decode: the same and its first tile in the item.
    several: in decode, whether some item has several segments; else item i is segment i.
    query_rows: rotation rows of queries, [B, T, 2, D] by position in prefill, [m, T, 2, D] by
      position less document offset in decode.  doc_rows: [m, 2, D] by document offset.
    key_rows: [longest document, 2, D] by index, for unrotated keys.
    first_items: [B + 1] the items of each sequence; None when each sequence is one item.
    most_items: of any sequence.
    queries: [B] queries per sequence.
    starts: [programs + 1] the items of each program of the Hopper path, whose items are: sequence,
      first query head, first query, queries, position of the first query of the sequence, first
      segment, segments, tokens of the first; and its segments: first key row, tokens, position of
      the first token, document.
    tail: there, whether some document ends within a tile.
    """

    phase: str
    config: Config
    items: Tensor
    segments: Tensor
    several: bool = False
    query_rows: Tensor | None = None
    doc_rows: Tensor | None = None
    key_rows: Tensor | None = None
    first_items: Tensor | None = None
    most_items: int = 1
    queries: Tensor | None = None
    starts: Tensor | None = None
    tail: bool = False


def padded_dim(head_dim: int) -> int:
    """head_dim, or the next power of two, which tiles must have."""
    return max(16, 1 << (head_dim - 1).bit_length())


def shared_bytes(call: Call) -> int:
    """Shared memory that one program can have; what Hopper has where there is no GPU."""
    if not call.q.is_cuda:
        return 227 << 10
    from triton.runtime import driver

    return int(driver.active.utils.get_device_properties(call.q.device.index)["max_shared_mem"])


def rotation_rows(rope: Rope, positions: Tensor, head_dim: int) -> Tensor:
    """[*positions.shape, 2, D] float32: cosines, then signed sines; angles are float64."""
    return torch.stack(rows(rope, positions, head_dim), dim=-2).float()


def key_turn(call: Call, variant: str | None) -> int:
    """How `tiles.attend` turns keys: 0 not at all, 1 by document offset, 2 by token."""
    if call.rope is None:
        return 0
    if call.rope.keys == "unrotated":
        return 2
    return 1 if variant == "rotate-k" else 0


def check_cache(call: Call) -> None:
    """Raises ShapeError unless keys and values share the strides that the kernels step by."""
    if call.k.stride() != call.v.stride():
        raise ShapeError(
            f"k has strides {call.k.stride()} and v {call.v.stride()}",
            "lay keys and values out alike, or pass contiguous copies",
        )


def common_arguments(
    call: Call, plan: Plan, o: Tensor, block_n: int
) -> tuple[dict[str, Any], bool]:
    """Arguments that prefill and decode share, and whether k_src and v_src are TMA descriptors."""
    tables: Tables = plan.tables
    dim, turn = padded_dim(call.head_dim), key_turn(call, plan.variant)
    tma = tables.phase == "prefill" and turn == 0 and _tma_applies(call, dim)
    head_scales = isinstance(call.k_scale, Tensor) or isinstance(call.v_scale, Tensor)
    k_scale, v_scale = _scales(call, head_scales)
    fp8 = call.k.dtype in FP8_DTYPES and call.q.dtype != torch.float32
    unused = call.q
    arguments = {
        "q_ptr": call.q,
        "k_src": _descriptor(call.k, block_n, dim) if tma else call.k,
        "v_src": _descriptor(call.v, block_n, dim) if tma else call.v,
        "o_ptr": o,
        "table_ptr": unused if call.block_table is None else call.block_table,
        "items_ptr": tables.items,
        "segments_ptr": tables.segments,
        "query_rows_ptr": unused if tables.query_rows is None else tables.query_rows,
        "doc_rows_ptr": unused if tables.doc_rows is None else tables.doc_rows,
        "key_rows_ptr": unused if tables.key_rows is None else tables.key_rows,
        "slopes_ptr": unused if call.alibi_slopes is None else call.alibi_slopes,
        "sinks_ptr": unused if call.sinks is None else call.sinks,
        "k_scale_ptr": k_scale if isinstance(k_scale, Tensor) else unused,
        "v_scale_ptr": v_scale if isinstance(v_scale, Tensor) else unused,
        "scale": call.sm_scale * LOG2_E * (1.0 if isinstance(k_scale, Tensor) else k_scale),
        "v_scale": 1.0 if isinstance(v_scale, Tensor) else v_scale,
        "window": call.window or 0,
        "max_blocks": 0 if call.block_table is None else call.block_table.stride(0),
        "stride_qb": call.q.stride(0),
        "stride_qt": call.q.stride(1),
        "stride_qh": call.q.stride(2),
        "stride_ob": o.stride(0),
        "stride_ot": o.stride(1),
        "stride_oh": o.stride(2),
        "stride_kb": call.k.stride(0),
        "stride_kn": call.k.stride(1),
        "stride_kh": call.k.stride(2),
        "G": call.group_size,
        "D": call.head_dim,
        "DP": dim,
        "R": 0 if call.rope is None else call.rope.rotary_dim,
        "INTERLEAVED": call.rope is not None and call.rope.interleaved,
        "FACTOR": 1.0 if call.rope is None else call.rope.query_factor,
        "BLOCK_SIZE": 0 if call.block_table is None else call.block_size,
        "CAUSAL": call.causal,
        "WINDOW": call.window is not None,
        "ALIBI": call.alibi_slopes is not None,
        "SINKS": call.sinks is not None,
        "HEAD_SCALES": head_scales,
        "FP8": fp8,
        "PACKED": fp8 and _converts_pairs(call),
        "DOCUMENTS": call.doc_lens is not None,
        "QUERY_TURN": call.rope is not None,
        "KEY_TURN": turn,
        "PRECISION": "ieee" if call.q.dtype == torch.float32 else "tf32",
    }
    return arguments, tma


def _scales(call: Call, head_scales: bool) -> tuple[float | Tensor, float | Tensor]:
    """Both scales as floats, or both as [Hkv] tensors."""
    if not head_scales:
        return call.k_scale, call.v_scale
    return tuple(
        s
        if isinstance(s, Tensor)
        else call.q.new_full((call.num_kv_heads,), s, dtype=torch.float32)
        for s in (call.k_scale, call.v_scale)
    )  # type: ignore[return-value]


def _converts_pairs(call: Call) -> bool:
    """Devices with an instruction from two fp8 values to two float16: sm_89 and later."""
    return call.q.is_cuda and torch.cuda.get_device_capability(call.q.device) >= (8, 9)


def _tma_applies(call: Call, dim: int) -> bool:
    """Contiguous 16-bit caches on Hopper and later whose strides the copy engine can follow."""
    return (
        call.q.is_cuda
        and torch.cuda.get_device_capability(call.q.device) >= (9, 0)
        and call.block_table is None
        and call.k.dtype not in FP8_DTYPES
        and call.k.element_size() == 2
        and call.head_dim == dim
        and all(s % 8 == 0 for s in call.k.stride()[:3])
        and call.k.data_ptr() % 16 == 0
        and call.v.data_ptr() % 16 == 0
    )


def _descriptor(cache: Tensor, block_n: int, dim: int) -> Any:
    """A TMA descriptor of [B, Hkv, S, D] in tiles of block_n tokens of one head."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    view = cache.permute(0, 2, 1, 3)
    return TensorDescriptor(view, list(view.shape), list(view.stride()), [1, 1, block_n, dim])
