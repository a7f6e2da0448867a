"""How vLLM stores the state of each layer: one cache specification per state, before grouping.

A page is `block_size` rows of an attention layer, or the whole state of a recurrent one. Source:
`v1/kv_cache_interface.py`, `model_executor/layers/attention`, `platforms/interface.py` (raised
attention blocks) of the vLLM releases in `vllm_releases`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kvtool.dtype import DTYPES, DType, KVFormat
from kvtool.engines.vllm_releases import Release
from kvtool.errors import KvtoolError, UsageError
from kvtool.model.spec import (
    Attention,
    Index,
    Latent,
    Layer,
    ModelSpec,
    Parallel,
    Recurrent,
    Shared,
    State,
    shares,
    stages,
)

Mode = Literal["none", "align", "all"]

# Index keys beside plain attention (MiniMax-M3) are 16-bit, without scales (minimax_m3/indexer.py).
# fp8_ds_mla and nvfp4_ds_mla rows of sparse latent layers of width 512 + 64 (flashmla_sparse.py):
# 512 fp8 values, 4 float32 scales and 64 16-bit rotary values; 352 B in the 4-bit format.
SPARSE_LATENT_BYTES = {"fp8_e4m3": 656, "fp8_e5m2": 656, "nvfp4": 352}
SPARSE_LATENT_WIDTH = 576


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that decide specifications and blocks, with every default filled in.

    `in_flight` tokens extend a window or chunk, `retained` ones a window alone. `block_size` is the
    attention block before it is raised for recurrent layers. `checkpoints` are blocks a recurrent
    layer keeps beside its running ones in align mode, `block_multiple` what its attention block is
    a multiple of.
    """

    release: Release
    context_tokens: int
    parallel: Parallel
    kv: KVFormat
    block_size: int
    in_flight: int
    retained: int
    encoder_tokens: int
    hybrid: bool
    mode: Mode
    speculative_tokens: int
    checkpoints: int
    block_multiple: int
    state_chunk: int | None
    conv_dtype: str | None
    ssm_dtype: str | None


@dataclass(frozen=True, slots=True)
class Spec:
    """The cache of one layer's state: what makes two of them equal, and the bytes of a page.

    `row_bytes` are those of one token, of a recurrent layer those of its whole state.
    `identity` holds the widths: specifications with equal pages and other widths do not merge.
    """

    kind: str
    identity: tuple[int, ...]
    row_bytes: int
    block_size: int
    limit: int | None = None
    padded_bytes: int | None = None

    @property
    def real_bytes(self) -> int:
        """Bytes of a page without padding."""
        return self.row_bytes if self.kind == "recurrent" else self.row_bytes * self.block_size

    @property
    def page_bytes(self) -> int:
        return self.padded_bytes or self.real_bytes

    def tokens(self, rules: Rules) -> int:
        """Tokens for which a request of the rules' context holds rows on this device."""
        context = rules.context_tokens
        if self.kind == "sliding":
            return min((self.limit or 0) - 1 + rules.retained + rules.in_flight, context)
        if self.kind == "chunked":
            return min((self.limit or 0) + rules.in_flight, context)
        if self.kind == "cross":
            return rules.encoder_tokens
        return -(-context // rules.parallel.dcp)

    def blocks(self, rules: Rules) -> int:
        """Blocks one request takes: a window may begin inside a block and gets one more."""
        if self.kind == "recurrent":
            return self._state_blocks(rules)
        return -(-self.tokens(rules) // self.block_size) + (self.kind == "sliding")

    def _state_blocks(self, rules: Rules) -> int:
        if rules.mode == "all":
            return -(-rules.context_tokens // self.block_size) + rules.speculative_tokens
        if rules.mode == "align":
            return 2 + rules.speculative_tokens + rules.checkpoints
        return 1 + rules.speculative_tokens


@dataclass(frozen=True, slots=True)
class Entry:
    """One state of one layer: the stage that holds it, its specification, its logical self.

    `states` is empty for rows that the engine reserves and the architecture has no use for.
    """

    stage: int
    spec: Spec
    states: tuple[State, ...]


def entries(model: ModelSpec, rules: Rules, extra: Sequence[Layer]) -> list[Entry]:
    """The specifications of all layers in order, `extra` ones (MTP, drafter) on the last stage.

    Attention blocks are raised until a page holds a recurrent state of the model, and the states
    padded to that page. A sparse latent layer that reads another one's index has rows for its own
    before 0.33, and in MTP layers always.
    """
    index = sparse_index(model)
    made: dict[tuple[int, bool], list[tuple[Spec, tuple[State, ...]]]] = {}

    def of(stage: int, layers: Iterable[Layer], indexed: bool) -> Iterator[Entry]:
        for layer in layers:
            key = id(layer), indexed
            if key not in made:
                made[key] = list(_layer_specs(model, layer, rules, index, indexed))
            yield from (Entry(stage, spec, states) for spec, states in made[key])

    parts = stages(model.layers, rules.parallel.pp)
    indexed = not rules.release.shares_indexes
    found = [entry for stage, layers in enumerate(parts) for entry in of(stage, layers, indexed)]
    raised = _raised_block(found, rules)
    found += of(rules.parallel.pp - 1, extra, indexed=True)
    return found if raised is None else [_on_block(entry, *raised, rules) for entry in found]


def sparse_index(model: ModelSpec) -> Index | None:
    """The index of a model whose latent layers are sparse, all of them; None for other models."""
    states = tuple(model.states())
    if not any(isinstance(state, Latent) for state in states):
        return None
    return next((state for state in states if isinstance(state, Index)), None)


def _layer_specs(
    model: ModelSpec, layer: Layer, rules: Rules, index: Index | None, indexed: bool
) -> Iterable[tuple[Spec, tuple[State, ...]]]:
    """The specifications of a layer with the states they hold.

    Where `indexed`, a latent layer of a model with an `index` has its rows even without one of its
    own: they hold no state.
    """
    recurrent = tuple(state for state in layer.states if isinstance(state, Recurrent))
    latent = any(isinstance(state, Latent) for state in layer.states)
    owns = any(isinstance(state, Index) for state in layer.states)
    for state in layer.states:
        if isinstance(state, Attention):
            yield _attention_spec(model, state, rules), (state,)
        elif isinstance(state, Latent):
            yield _latent_spec(model, state, rules, sparse=index is not None), (state,)
        elif isinstance(state, Index):
            row = state.row_bytes() if latent else 2 * state.width
            yield Spec("index", (row,), row, rules.block_size), (state,)
        elif not isinstance(state, Recurrent | Shared):
            raise _uncovered(model, state.kind)
    if index is not None and indexed and latent and not owns:
        row = index.row_bytes()
        yield Spec("index", (row,), row, rules.block_size), ()
    if recurrent:
        yield _state_spec(model, recurrent, rules), recurrent


def _uncovered(model: ModelSpec, what: str) -> KvtoolError:
    return KvtoolError(
        f"the vllm adapter does not cover the {what} layers of {model.name} yet",
        "use --engine logical for what the architecture keeps",
    )


def vector_bytes(dtype: DType, heads: int, width: int, release: Release) -> int:
    """Bytes of one token's keys or values. vLLM's int4 has a float32 scale per head vector.

    Raises UsageError for a dtype that vLLM has no cache format for.
    """
    if dtype.name == "int4" and release.has_int4:
        return heads * (width // 2 + 4)
    if dtype.name not in _CACHE_DTYPES:
        raise UsageError(
            f"vLLM has no {dtype.name} cache",
            f"its cache dtypes here: {', '.join(sorted(_CACHE_DTYPES))}",
        )
    return dtype.row_bytes(heads, width)


_CACHE_DTYPES = ("float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2", "int8", "nvfp4")


def _attention_spec(model: ModelSpec, state: Attention, rules: Rules) -> Spec:
    heads = max(1, state.num_kv_heads // rules.parallel.tp)
    k, v = rules.kv.k, rules.kv.v
    row = vector_bytes(k, heads, state.head_dim, rules.release)
    row += vector_bytes(v, heads, state.v_head_dim, rules.release)
    limit = state.limit
    if state.kind == "sliding" and limit is not None:
        limit += dict(rules.release.window_extra).get(model.model_type, 0)
    identity = (heads, state.head_dim, state.v_head_dim)
    return Spec(state.kind, identity, row, rules.block_size, limit)


def _latent_spec(model: ModelSpec, state: Latent, rules: Rules, *, sparse: bool) -> Spec:
    if state.stride != 1:
        raise _uncovered(model, "compressed latent")
    dtype = rules.kv.k
    if sparse and dtype.name in SPARSE_LATENT_BYTES:
        row = SPARSE_LATENT_BYTES[dtype.name]
        if state.width != SPARSE_LATENT_WIDTH or (row == 352 and not rules.release.has_int4):
            raise UsageError(
                f"vLLM packs {dtype.name} rows of sparse latent layers at width"
                f" {SPARSE_LATENT_WIDTH} only",
                f"{model.name} has width {state.width}: use --kv-dtype bfloat16",
            )
    elif dtype.name in ("float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"):
        row = dtype.row_bytes(1, state.width)
    else:
        raise UsageError(
            f"vLLM has no {dtype.name} cache for latent layers", "use fp8, bfloat16 or float16"
        )
    return Spec("latent", (state.width,), row, rules.block_size)


def _state_spec(model: ModelSpec, states: tuple[Recurrent, ...], rules: Rules) -> Spec:
    """Convolution tail and recurrent matrices of a layer are one page.

    With speculative tokens the tail is longer by one column each in the classes that say so.
    """
    longer = rules.speculative_tokens and model.model_type in rules.release.speculative_conv_types
    sizes = []
    for state in states:
        elements = sum(
            count // units * shares(units, rules.parallel.tp) if units else count
            for count, units in state.parts
        )
        if longer and state.kind == "conv":
            if not state.tail:
                raise _uncovered(model, "speculative recurrent")
            elements = elements // state.tail * (state.tail + rules.speculative_tokens)
        sizes.append(DTYPES[_state_dtype(state, states, rules)].row_bytes(1, elements))
    block = rules.context_tokens if rules.mode == "none" else rules.block_size
    return Spec("recurrent", tuple(sizes), sum(sizes), block)


def _state_dtype(state: Recurrent, states: tuple[Recurrent, ...], rules: Rules) -> str:
    """The element type of one of a layer's `states` (mamba_utils.py, `MambaStateDtypeCalculator`).

    `mamba_cache_dtype` sets convolution tails and states without a tail (lightning attention), and
    a state that is of its tail's type; `mamba_ssm_cache_dtype` sets the state beside a tail.
    """
    tail = next((other.dtype for other in states if other.kind == "conv"), None)
    if state.kind == "conv" or tail is None:
        return rules.conv_dtype or state.dtype
    follows = rules.conv_dtype if state.dtype == tail else None
    return rules.ssm_dtype or follows or state.dtype


def _raised_block(found: list[Entry], rules: Rules) -> tuple[int, int] | None:
    """The attention block that holds a recurrent state, and its page; None without both."""
    states = [e.spec.row_bytes for e in found if e.spec.kind == "recurrent"]
    attention = next((e.spec for e in found if e.spec.kind in ("full", "latent", "sliding")), None)
    if not states or attention is None:
        return None
    row, step = attention.row_bytes, rules.block_size
    if attention.kind == "latent":
        step = max(step, rules.release.latent_block_multiple)
    step = math.lcm(step, rules.block_multiple)
    if rules.mode == "all":
        if rules.state_chunk is None:
            raise UsageError(
                "mamba_cache_mode 'all' needs the chunk of the model's kernels",
                "give it as --engine-opt mamba_block_size=256, or what the engine logs",
            )
        step = math.lcm(step, rules.state_chunk)
    block = max(rules.block_size, step * -(-max(states) // (step * row)))
    return block, block * row


def _on_block(entry: Entry, block: int, page: int, rules: Rules) -> Entry:
    """`entry` with the raised block, a recurrent state padded to its page."""
    spec = entry.spec
    if spec.kind != "recurrent":
        return replace(entry, spec=replace(spec, block_size=block))
    own = spec.block_size if rules.mode == "none" else block
    return replace(entry, spec=replace(spec, block_size=own, padded_bytes=page))
