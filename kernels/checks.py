"""The signature that all kernels share, and the checks before anything is launched.

`check` is the contract: its arguments are those of every `attention` and `plan`. It looks at
shapes, strides, dtypes and devices, which costs nothing; `host_plan` looks at values, which
needs them on the host, and is left to the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NotRequired, Required, TypedDict

import torch
from torch import Tensor

from kvtool.errors import DeviceError, ShapeError, UsageError
from kvtool.kernels.plan import Document, Plan
from kvtool.kernels.rope import Rope

QUERY_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
PATHS = ("triton", "torch", "hopper")


class Options(TypedDict, total=False):
    """The keyword arguments of `attention` and `plan`; `check` says what each means."""

    kv_lens: Required[Tensor]
    q_lens: NotRequired[Tensor | None]
    block_table: NotRequired[Tensor | None]
    doc_lens: NotRequired[Tensor | None]
    doc_offsets: NotRequired[Tensor | None]
    rope: NotRequired[Rope | None]
    causal: NotRequired[bool]
    window: NotRequired[int | None]
    sm_scale: NotRequired[float | None]
    k_scale: NotRequired[float | Tensor | None]
    v_scale: NotRequired[float | Tensor | None]
    sinks: NotRequired[Tensor | None]
    alibi_slopes: NotRequired[Tensor | None]
    variant: NotRequired[str | None]
    path: NotRequired[str | None]
    plan: NotRequired[Plan | None]
    out: NotRequired[Tensor | None]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One checked call: the tensors as given, the shape letters, and the defaults filled in."""

    q: Tensor
    k: Tensor
    v: Tensor
    kv_lens: Tensor
    q_lens: Tensor | None
    block_table: Tensor | None
    doc_lens: Tensor | None
    doc_offsets: Tensor | None
    rope: Rope | None
    causal: bool
    window: int | None
    sm_scale: float
    k_scale: float | Tensor
    v_scale: float | Tensor
    sinks: Tensor | None
    alibi_slopes: Tensor | None
    variant: str | None
    path: str | None
    plan: Plan | None
    out: Tensor | None

    @property
    def batch_size(self) -> int:
        return self.q.shape[0]

    @property
    def query_tokens(self) -> int:
        return self.q.shape[1]

    @property
    def num_q_heads(self) -> int:
        return self.q.shape[2]

    @property
    def num_kv_heads(self) -> int:
        return self.k.shape[2]

    @property
    def head_dim(self) -> int:
        return self.q.shape[3]

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.num_q_heads // self.num_kv_heads

    @property
    def block_size(self) -> int:
        """Tokens per block of the pool; 1 where keys and values are contiguous."""
        return 1 if self.block_table is None else self.k.shape[1]

    @property
    def max_kv_rows(self) -> int:
        """Key rows that one sequence can address."""
        if self.block_table is None:
            return self.k.shape[1]
        return self.block_table.shape[1] * self.block_size


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kv_lens: Tensor,
    q_lens: Tensor | None = None,
    block_table: Tensor | None = None,
    doc_lens: Tensor | None = None,
    doc_offsets: Tensor | None = None,
    rope: Rope | None = None,
    causal: bool = True,
    window: int | None = None,
    sm_scale: float | None = None,
    k_scale: float | Tensor | None = None,
    v_scale: float | Tensor | None = None,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    variant: str | None = None,
    path: str | None = None,
    plan: Plan | None = None,
    out: Tensor | None = None,
) -> Call:
    """A `Call` whose tensors fit together.

    q: [B, T, H, D] float16, bfloat16 or float32; rotated, or untouched where `rope` is given.
    k, v: [B, S, Hkv, D] contiguous in D, or pools [num_blocks, block_size, Hkv, D] with a
      `block_table`; of q's dtype, or float8_e4m3fn / float8_e5m2.
    kv_lens: [B] int32 keys per sequence (documents: the sum of their lengths).
    q_lens: [B] int32 queries per sequence, at most T; None: T for all. Row t of sequence b is
      its token kv_lens[b] - q_lens[b] + t; output rows from q_lens[b] on are zero.
    block_table: [B, max_blocks] int32, -1 past the end.
    doc_lens, doc_offsets: [B, N] int32 documents per sequence; length 0 past the last. Rows of
      document d follow those of d - 1, from a block of their own if paged. Its token i has the
      position doc_offsets[b, d] + i: mask, window, ALiBi and rotation all mean this position.
      Queries are the last tokens of the last document.
    rope: the rotation of q, and of the keys as it says; only together with documents (`lazy`,
      `reference`), since the other kernels take q and k rotated.
    causal: a query sees positions up to its own.  window: and only the last `window` of those.
    sm_scale: of the scores, default 1 / sqrt(D).  k_scale, v_scale: what stored values are
      multiplied by, a float or [Hkv] float32.
    sinks: [H] float32 logits added to each row's denominator.  alibi_slopes: [H] float32; adds
      slope * (key position - query position) to the scaled score.
    variant: of `lazy`.  path: "triton" or "torch"; None chooses by device.
    plan: what `plan()` returned for the same lengths, documents and rope; None makes one, which
      reads the lengths on the host.  out: [B, T, H, D] to write to, q.dtype.

    Raises ShapeError for shapes and strides, UsageError for values, DeviceError for devices.
    """
    call = Call(
        q, k, v, kv_lens, q_lens, block_table, doc_lens, doc_offsets, rope, causal, window,
        q.shape[-1] ** -0.5 if sm_scale is None else sm_scale,
        1.0 if k_scale is None else k_scale,
        1.0 if v_scale is None else v_scale,
        sinks, alibi_slopes, variant, path, plan, out,
    )  # fmt: skip
    _check_shapes(call)
    _check_dtypes(call)
    _check_devices(call)
    _check_values(call)
    return call


def host_plan(call: Call, path: str, variant: str | None = None) -> Plan:
    """Lengths and documents of a batch, read on the host and checked; no tables yet.

    Raises ShapeError when a length exceeds what its tensor holds, or when document lengths do
    not add up to `kv_lens`.
    """
    kv_lens = tuple(call.kv_lens.tolist())
    q_lens = (
        (call.query_tokens,) * call.batch_size
        if call.q_lens is None
        else tuple(call.q_lens.tolist())
    )
    documents = tuple(_documents(call, kv_lens))
    for b, (keys, queries, docs) in enumerate(zip(kv_lens, q_lens, documents, strict=True)):
        rows = docs[-1].row + docs[-1].length
        if keys < 0 or rows > call.max_kv_rows:
            raise ShapeError(
                f"sequence {b} needs {rows} key rows, its cache has {call.max_kv_rows}",
                "lower kv_lens, or pass more rows or a wider block_table",
            )
        if not 0 <= queries <= call.query_tokens:
            raise ShapeError(
                f"q_lens[{b}] is {queries}, q has {call.query_tokens} rows per sequence",
                "q_lens must lie between 0 and q.shape[1]",
            )
        if sum(d.length for d in docs) != keys:
            raise ShapeError(
                f"doc_lens[{b}] add up to {sum(d.length for d in docs)}, kv_lens[{b}] is {keys}",
                "kv_lens counts the tokens of all documents of the request",
            )
    if call.block_table is not None:
        _check_blocks(call, documents)
    q_starts = tuple(
        docs[-1].offset + docs[-1].length - queries
        for docs, queries in zip(documents, q_lens, strict=True)
    )
    return Plan(path, variant, kv_lens, q_lens, q_starts, documents)


def _documents(call: Call, kv_lens: tuple[int, ...]) -> list[tuple[Document, ...]]:
    if call.doc_lens is None or call.doc_offsets is None:
        return [(Document(0, keys, 0),) for keys in kv_lens]
    every = []
    for b, (lens, offsets) in enumerate(
        zip(call.doc_lens.tolist(), call.doc_offsets.tolist(), strict=True)
    ):
        row, docs = 0, []
        for length, offset in zip(lens, offsets, strict=True):
            if length < 0 or offset < 0:
                raise UsageError(
                    f"a document of sequence {b} has length {length} and offset {offset}",
                    "document lengths and offsets are not negative",
                )
            if length:
                docs.append(Document(row, length, offset))
                row += -(-length // call.block_size) * call.block_size
        every.append(tuple(docs) or (Document(0, 0, 0),))
    return every


def _check_blocks(call: Call, documents: tuple[tuple[Document, ...], ...]) -> None:
    assert call.block_table is not None
    table = call.block_table.cpu()
    for b, docs in enumerate(documents):
        used = table[b, : -(-(docs[-1].row + docs[-1].length) // call.block_size)]
        if used.numel() and (int(used.min()) < 0 or int(used.max()) >= call.k.shape[0]):
            raise ShapeError(
                f"block_table[{b}] names a block outside the pool of {call.k.shape[0]}",
                "entries up to the last key must lie between 0 and num_blocks - 1",
            )


def _check_shapes(call: Call) -> None:
    q, k, v = call.q, call.k, call.v
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise ShapeError(
                f"{name} has {tensor.dim()} dimensions, not 4",
                "q is [B, T, H, D]; k and v are [B, S, Hkv, D] or [num_blocks, block_size, Hkv, D]",
            )
        if tensor.stride(-1) != 1:
            raise ShapeError(
                f"the last dimension of {name} has stride {tensor.stride(-1)}, not 1",
                f"pass {name}.contiguous()",
            )
    if k.shape != v.shape:
        raise ShapeError(
            f"k is {tuple(k.shape)} and v is {tuple(v.shape)}", "k and v have one shape"
        )
    if k.shape[3] != q.shape[3]:
        raise ShapeError(
            f"head_dim of q is {q.shape[3]} and of k {k.shape[3]}", "q, k and v share head_dim"
        )
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise ShapeError(
            f"{q.shape[2]} query heads are not a multiple of {k.shape[2]} key/value heads",
            "each key/value head serves the same number of query heads",
        )
    if call.block_table is None and k.shape[0] != q.shape[0]:
        raise ShapeError(
            f"q holds {q.shape[0]} sequences and k {k.shape[0]}",
            "pass a block_table where k and v are pools of blocks",
        )
    batch = (call.batch_size,)
    _expect("kv_lens", call.kv_lens, batch)
    _expect("q_lens", call.q_lens, batch)
    _expect("sinks", call.sinks, (call.num_q_heads,))
    _expect("alibi_slopes", call.alibi_slopes, (call.num_q_heads,))
    for name, scale in (("k_scale", call.k_scale), ("v_scale", call.v_scale)):
        _expect(name, scale if isinstance(scale, Tensor) else None, (call.num_kv_heads,))
    if call.block_table is not None:
        _expect("block_table", call.block_table, (call.batch_size, call.block_table.shape[-1]))
    if (call.doc_lens is None) != (call.doc_offsets is None):
        raise UsageError(
            "doc_lens and doc_offsets come together", "pass both [B, N] tensors, or neither"
        )
    if call.doc_lens is not None and call.doc_offsets is not None:
        _expect("doc_lens", call.doc_lens, (call.batch_size, call.doc_lens.shape[-1]))
        _expect("doc_offsets", call.doc_offsets, tuple(call.doc_lens.shape))
    _expect("out", call.out, tuple(q.shape))


def _expect(name: str, tensor: Tensor | None, shape: tuple[int, ...]) -> None:
    if tensor is not None and tuple(tensor.shape) != shape:
        raise ShapeError(f"{name} is {tuple(tensor.shape)}, expected {shape}", "see `check`")


def _check_dtypes(call: Call) -> None:
    if call.q.dtype not in QUERY_DTYPES:
        raise UsageError(f"q is {call.q.dtype}", "q is float16, bfloat16 or float32")
    if call.k.dtype != call.v.dtype or call.k.dtype not in (call.q.dtype, *FP8_DTYPES):
        raise UsageError(
            f"q is {call.q.dtype}, k {call.k.dtype} and v {call.v.dtype}",
            "k and v share q's dtype or one of float8_e4m3fn, float8_e5m2",
        )
    if call.out is not None and call.out.dtype != call.q.dtype:
        raise UsageError(f"out is {call.out.dtype}, q is {call.q.dtype}", "out has q's dtype")
    integers = (
        ("kv_lens", call.kv_lens),
        ("q_lens", call.q_lens),
        ("block_table", call.block_table),
        ("doc_lens", call.doc_lens),
        ("doc_offsets", call.doc_offsets),
    )
    for name, tensor in integers:
        if tensor is not None and tensor.dtype != torch.int32:
            raise UsageError(f"{name} is {tensor.dtype}", f"pass {name} as int32")
    floats = (
        ("sinks", call.sinks),
        ("alibi_slopes", call.alibi_slopes),
        ("k_scale", call.k_scale),
        ("v_scale", call.v_scale),
    )
    for name, value in floats:
        if isinstance(value, Tensor) and value.dtype != torch.float32:
            raise UsageError(f"{name} is {value.dtype}", f"pass {name} as float32")


def _check_devices(call: Call) -> None:
    for name in (
        "k", "v", "kv_lens", "q_lens", "block_table", "doc_lens", "doc_offsets",
        "sinks", "alibi_slopes", "k_scale", "v_scale", "out",
    ):  # fmt: skip
        tensor = getattr(call, name)
        if isinstance(tensor, Tensor) and tensor.device != call.q.device:
            raise DeviceError(
                f"q is on {call.q.device} and {name} on {tensor.device}",
                f"move {name} to the device of q",
            )


def _check_values(call: Call) -> None:
    if call.window is not None and (call.window < 1 or not call.causal):
        raise UsageError(
            f"window {call.window} with causal={call.causal}",
            "a window counts at least one token, the query's own, and needs causal=True",
        )
    if call.sm_scale <= 0:
        raise UsageError(f"sm_scale is {call.sm_scale}", "the scale of the scores is positive")
    if call.path is not None and call.path not in PATHS:
        raise UsageError(f"no path named '{call.path}'", f"paths: {', '.join(PATHS)}")
    if call.rope is not None:
        if call.doc_lens is None:
            raise UsageError(
                "rope without documents",
                "without doc_lens and doc_offsets, q and k are passed rotated",
            )
        if call.rope.rotary_dim > call.head_dim:
            raise ShapeError(
                f"rope turns {call.rope.rotary_dim} of {call.head_dim} dimensions",
                "rotary_dim is at most head_dim",
            )
