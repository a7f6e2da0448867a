"""A model is an embedding and a list of layers; each layer has weights and the state it keeps.

Nothing here knows a model family: the readers of configurations decide which states and which
weights a layer has, everything after them works on these records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Literal

from kvtool.dtype import DTYPES, KVFormat
from kvtool.errors import UsageError

Kind = Literal[
    "full", "sliding", "chunked", "latent", "index", "recurrent", "conv", "cross", "shared"
]


@dataclass(frozen=True, slots=True)
class Parallel:
    """Ranks of one deployment: tensor, pipeline, expert and decode-context parallelism."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dcp: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "ep", "dcp"):
            value = getattr(self, name)
            if not 1 <= value <= 65_536:
                raise UsageError(f"{name} is {value}", "parallelism runs from 1 to 65,536 ranks")
        if self.tp % self.dcp:
            raise UsageError(
                f"dcp {self.dcp} does not divide tp {self.tp}",
                "decode-context parallelism reuses the tensor-parallel ranks",
            )
        if self.ep % self.tp and self.tp % self.ep:
            raise UsageError(
                f"ep {self.ep} and tp {self.tp} do not fit into each other",
                "expert parallelism deals experts out over the tensor-parallel ranks, or over a"
                " multiple of them (data-parallel attention)",
            )


SINGLE = Parallel()


def shares(units: int, tp: int) -> int:
    """Of `units` equal parts, those that the fullest of `tp` ranks holds: one at least."""
    return -(-units // tp)


@dataclass(frozen=True, slots=True)
class Attention:
    """Keys and values of an attention layer: one row of each per stored token.

    `kind` is full, sliding (a row for each of the last `limit` tokens), chunked (the current chunk
    of `limit` tokens) or cross (a row per encoder or image token, none per context token).
    """

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    kind: Kind = "full"
    limit: int | None = None

    def tokens(self, context: int, encoder: int, dcp: int = 1) -> int:
        if self.kind == "cross":
            return encoder
        if self.limit is not None:
            return min(context, self.limit)
        return -(-context // dcp)

    def row_bytes(self, kv: KVFormat, tp: int = 1) -> int:
        """Bytes of the keys and values of one token on one rank."""
        heads = shares(self.num_kv_heads, tp)
        return kv.k.row_bytes(heads, self.head_dim) + kv.v.row_bytes(heads, self.v_head_dim)

    def bytes(
        self, context: int, kv: KVFormat, parallel: Parallel = SINGLE, encoder: int = 0
    ) -> int:
        return self.row_bytes(kv, parallel.tp) * self.tokens(context, encoder, parallel.dcp)


@dataclass(frozen=True, slots=True)
class Latent:
    """Compressed rows shared by all heads (MLA): key and value in one, never sharded by TP.

    One row of `width` elements for each `stride` tokens. The head counts and widths of the
    uncompressed attention are kept for the comparison with multi-head attention.
    """

    width: int
    num_q_heads: int
    qk_head_dim: int
    v_head_dim: int
    stride: int = 1
    kind: Kind = field(default="latent", init=False)

    def tokens(self, context: int, encoder: int, dcp: int = 1) -> int:
        return -(-(context // self.stride) // dcp)

    def row_bytes(self, kv: KVFormat, tp: int = 1) -> int:
        return kv.k.row_bytes(1, self.width)

    def bytes(
        self, context: int, kv: KVFormat, parallel: Parallel = SINGLE, encoder: int = 0
    ) -> int:
        return self.row_bytes(kv) * self.tokens(context, encoder, parallel.dcp)


@dataclass(frozen=True, slots=True)
class Index:
    """Keys of a sparse indexer: `width` fp8 elements and a float32 scale per 128 of them.

    132 B per token at width 128, whatever the dtype of the cache (DeepSeek V3.2).
    """

    width: int
    stride: int = 1
    kind: Kind = field(default="index", init=False)

    def tokens(self, context: int, encoder: int, dcp: int = 1) -> int:
        return -(-(context // self.stride) // dcp)

    def row_bytes(self, kv: KVFormat | None = None, tp: int = 1) -> int:
        return self.width + 4 * -(-self.width // 128)

    def bytes(
        self, context: int, kv: KVFormat, parallel: Parallel = SINGLE, encoder: int = 0
    ) -> int:
        return self.row_bytes() * self.tokens(context, encoder, parallel.dcp)


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A state that does not grow: recurrent matrices, or the tail of a short convolution.

    `parts` are (elements, units): TP deals `elements` out in `units` equal shares (heads, groups,
    channels); a share is copied where ranks outnumber units. `units` 0 means on every rank.
    `tail` is the number of tokens whose columns a convolution keeps, 0 where engines need not know.
    """

    kind: Kind
    parts: tuple[tuple[int, int], ...]
    dtype: str
    tail: int = 0

    def tokens(self, context: int, encoder: int, dcp: int = 1) -> int:
        return 0

    def bytes(
        self, context: int, kv: KVFormat, parallel: Parallel = SINGLE, encoder: int = 0
    ) -> int:
        elements = sum(
            elements // units * shares(units, parallel.tp) if units else elements
            for elements, units in self.parts
        )
        return DTYPES[self.dtype].row_bytes(1, elements)


@dataclass(frozen=True, slots=True)
class Shared:
    """A layer that reads the keys and values of another one and stores nothing."""

    kind: Kind = field(default="shared", init=False)

    def tokens(self, context: int, encoder: int, dcp: int = 1) -> int:
        return 0

    def bytes(
        self, context: int, kv: KVFormat, parallel: Parallel = SINGLE, encoder: int = 0
    ) -> int:
        return 0


State = Attention | Latent | Index | Recurrent | Shared

Part = Literal[
    "embedding", "attention", "recurrent", "mlp", "experts", "router", "norm", "head", "encoder"
]


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter tensor.

    `name` is the module inside its layer, as quantisation configs spell it. `shape` is
    (.., out, in); of an expert tensor the first extent counts the experts, of which a token uses
    `active`. TP deals the elements out in `units` equal shares; 0 means a copy on every rank.
    `linear` marks the matrices that weight quantisation may pack.
    """

    name: str
    part: Part
    shape: tuple[int, ...]
    units: int = 0
    linear: bool = False
    active: int | None = None

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def share(self, parallel: Parallel) -> int:
        """Elements on the fullest rank: whole experts dealt out by EP, the rest sliced by TP."""
        tp, elements = parallel.tp, self.elements
        if self.active is not None and parallel.ep > 1:
            elements = elements // self.shape[0] * shares(self.shape[0], parallel.ep)
            tp = max(1, tp // parallel.ep)
        return elements // self.units * shares(self.units, tp) if self.units else elements

    @property
    def active_elements(self) -> int:
        """Elements that one token is multiplied with: the chosen experts, else all."""
        if self.active is None:
            return self.elements
        return self.elements // self.shape[0] * min(self.active, self.shape[0])


@dataclass(frozen=True, slots=True)
class Rotary:
    """A table: `width` rotated elements of a head, for a model made for `positions` positions.

    `scaling` is default, linear, dynamic, yarn, llama3, longrope, ..; `factor` stretches, from
    `original` positions where the scaling counts from those. `sections` marks positions in
    several dimensions (time, height, width), `theta` the base of the angles.
    """

    width: int
    positions: int
    theta: float | None = None
    scaling: str = "default"
    factor: float = 1.0
    original: int | None = None
    sections: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """What a layer keeps per sequence, and its parameters."""

    states: tuple[State, ...]
    weights: tuple[Weight, ...] = ()


def stages(layers: Sequence[Layer], pp: int) -> list[Sequence[Layer]]:
    """Layers of each pipeline stage: equal shares, the remainder from the last but one backwards.

    vLLM's rule (`get_pp_indices`): the last stage also holds the head, so it gets no extra layer.
    """
    if pp > len(layers):
        raise UsageError(
            f"pp {pp} leaves stages without a layer", f"the model has {len(layers)} layers"
        )
    share, rest = divmod(len(layers), pp)
    sizes = [share] * pp
    for i in range(rest):
        sizes[-2 - i] += 1
    cuts = [sum(sizes[:i]) for i in range(pp + 1)]
    return [layers[a:b] for a, b in pairwise(cuts)]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model, as far as memory and arithmetic are concerned.

    `encoder` holds what stands beside the decoder (encoder layers, vision and audio towers);
    `mtp_layers` the model's own multi-token-prediction layers, counted apart. `weights_known` is
    false where a part of the parameters has no formula here; `notes` then says which.
    `stored_bytes` are the weights' bytes in the checkpoint that the model was read from.
    """

    name: str
    model_type: str
    dtype: str
    layers: tuple[Layer, ...]
    max_context: int | None = None
    hidden_size: int = 0
    vocab_size: int = 0
    embedding: tuple[Weight, ...] = ()
    head: tuple[Weight, ...] = ()
    tied: bool = False
    encoder: tuple[Weight, ...] = ()
    mtp_layers: tuple[Layer, ...] = ()
    encoder_tokens: int | None = None
    rotary: tuple[Rotary, ...] = ()
    quantization: dict[str, object] | None = None
    stored_bytes: int | None = None
    weights_known: bool = True
    notes: tuple[str, ...] = ()

    def states(self) -> Iterator[State]:
        for layer in self.layers:
            yield from layer.states

    @property
    def attention_kinds(self) -> tuple[str, ...]:
        """What users filter by: mha, gqa, mqa, mla, sliding, chunked, sparse, recurrent, .."""
        found = {label for state in self.states() for label in _labels(state)}
        if "recurrent" in found and found & {"mha", "gqa", "mqa", "mla"}:
            found.add("hybrid")
        return tuple(label for label in ATTENTION_KINDS if label in found)


ATTENTION_KINDS = (
    "mha",
    "gqa",
    "mqa",
    "mla",
    "hybrid",
    "recurrent",
    "sliding",
    "chunked",
    "sparse",
    "cross",
    "shared",
)


def _labels(state: State) -> Iterable[str]:
    if isinstance(state, Attention):
        if state.kind in ("sliding", "chunked", "cross"):
            yield state.kind
        if state.num_kv_heads == state.num_q_heads:
            yield "mha"
        else:
            yield "mqa" if state.num_kv_heads == 1 else "gqa"
    elif isinstance(state, Latent):
        yield "mla" if state.stride == 1 else "sparse"
    elif isinstance(state, Index):
        yield "sparse"
    elif isinstance(state, Recurrent):
        yield "recurrent"
    else:
        yield "shared"
