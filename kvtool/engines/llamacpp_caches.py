"""The buffers of a llama.cpp context: cells, streams and bytes of each cache, as it logs them.

    bytes = layers x cells x streams x (row of K + row of V)
    state = layers x slots x (1 + snapshots) x elements x 4

A row is all key/value heads of one token in one layer. Rules were read in `llama-kv-cache*.cpp`,
`llama-memory-recurrent.cpp`, `llama-context.cpp` and `llama-model.cpp`, and run (tests/oracles).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kvtool.dtype import DTYPES, DType
from kvtool.engines.llamacpp_options import Settings, pad
from kvtool.engines.llamacpp_releases import CELLS
from kvtool.errors import UsageError
from kvtool.model.spec import Attention, Index, Latent, Layer, ModelSpec, Recurrent, State

# Architectures whose windows or chunks have a cache of their own (`swa_type` in src/models/*.cpp).
# The others store them in full: their converter drops the window, or the loader ignores it
# (Mistral, Qwen2, Phi-3, StarCoder2).
WINDOWED = frozenset({
    "afmoe", "cohere2", "cohere2_moe", "deepseek_ref", "deepseek_v4", "exaone4", "exaone_moe",
    "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text",
    "gpt_oss", "granite_swa", "laguna", "lfm3", "llama4", "llama4_text", "mellum",
    "mimo_v2", "mimo_v2_flash", "olmo3", "plamo3", "step3p5", "step3p7",
})  # fmt: skip
# Architectures whose index cache has values too (llama_kv_cache_msa).
INDEX_WITH_VALUES = frozenset({"minimax_m3"})
# MLA models that llama.cpp stores as heads of uncompressed attention.
UNCOMPRESSED = frozenset({"minicpm3"})
# Architectures that can return to earlier recurrent states (llm_arch_supports_rs_rollback).
ROLLS_BACK = frozenset({
    "deepseek_ref", "deepseek_v4", "kimi_k3", "lfm2", "lfm2_moe", "lfm3", "nemotron_h",
    "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp",
})  # fmt: skip
# A latent row ends with the rotary part of the key; what stands before it is the value.
ROTARY_TAIL = 64
STATE = DTYPES["float32"]
DRAFT = DTYPES["float16"]


@dataclass(frozen=True, slots=True)
class Cache:
    """A line of the log: layers with equal cells, bytes of keys and values over all of them.

    A recurrent cache has a cell per slot; its `k_bytes` are the convolution tails (R), its
    `v_bytes` the states (S).
    """

    kind: str
    cells: int
    streams: int
    layers: int
    k_bytes: int
    v_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.k_bytes + self.v_bytes


def rolls_back(model: ModelSpec) -> bool:
    """Whether the model has recurrent states that llama.cpp can roll back."""
    recurrent = any(isinstance(state, Recurrent) for state in model.states())
    return recurrent and model.model_type in ROLLS_BACK


@dataclass(frozen=True, slots=True)
class Buffers:
    """How one model's states are stored: its own layers, or those of a drafter (`is_draft`)."""

    model_type: str
    settings: Settings
    is_separate: bool
    value_row: int | None
    index_value: int
    is_draft: bool = False

    @classmethod
    def of(cls, model: ModelSpec, settings: Settings, *, is_draft: bool = False) -> Buffers:
        """UsageError for a cache type whose blocks do not fill a head."""
        states = [*model.states(), *(s for layer in model.mtp_layers for s in layer.states)]
        made = cls(
            model_type=model.model_type,
            settings=settings,
            is_separate=any(isinstance(s, Latent) and s.stride > 1 for s in states),
            value_row=_widest_value(states) if not settings.flash_attn else None,
            index_value=_index_value(model),
            is_draft=is_draft,
        )
        for state in set(states):
            made.check(state)
        return made

    @property
    def types(self) -> tuple[DType, DType]:
        if self.is_draft:
            return DRAFT, DRAFT
        return self.settings.kv.k, self.settings.kv.v

    @property
    def streams(self) -> int:
        """Compressed rows (DeepSeek V4) are kept per slot even in a unified cache."""
        return self.settings.n_seq_max if self.is_separate else self.settings.streams

    def check(self, state: State) -> None:
        """llama_init_from_model refuses packed types whose block does not divide a head, and two
        types for latent rows."""
        k, v = self.types
        widths = {"K": 0, "V": 0}
        if isinstance(state, Latent) and k != v and self.settings.release.equal_latent_types:
            raise UsageError(
                f"llama.cpp wants one type for latent rows, not {k.name} and {v.name}",
                "give --kv-dtype",
            )
        if isinstance(state, Attention):
            widths = {"K": state.head_dim, "V": state.v_head_dim}
        elif isinstance(state, Latent):
            widths = {"K": state.width, "V": 0}
        for (side, width), dtype in zip(widths.items(), (k, v), strict=True):
            if width % dtype.block:
                raise UsageError(
                    f"llama.cpp cannot store {side} heads of {width} as {dtype.name}",
                    f"its blocks have {dtype.block} elements; use float16",
                )

    def has_window(self, state: State) -> bool:
        """Whether the state has a cache as long as its window."""
        return (
            isinstance(state, Attention)
            and state.limit is not None
            and self.model_type in WINDOWED
            and self.settings.release.windows
        )

    def cells(self, state: State) -> int:
        """Cells of one stream."""
        settings = self.settings
        if isinstance(state, Recurrent):
            return settings.n_seq_max
        if isinstance(state, Latent | Index) and state.stride > 1:
            return pad(-(-settings.n_ctx_seq // state.stride), CELLS)
        if not self.has_window(state) or settings.swa_full:
            return settings.n_ctx_seq
        assert isinstance(state, Attention)
        assert state.limit is not None
        shared = settings.kv_unified and not self.is_separate
        batch = settings.window_batch
        needed = state.limit * (settings.n_seq_max if shared else 1) + batch
        release = settings.release
        multiple = release.cells_with_flash if settings.flash_attn else release.cells
        return min(settings.n_ctx_seq, pad(needed, multiple))

    def rows(self, state: State) -> tuple[int, int]:
        """Bytes of keys and of values of one cell in one layer (recurrent: tails and states)."""
        k, v = self.types
        if isinstance(state, Attention):
            if state.kind == "cross":
                return 0, 0
            value = state.num_kv_heads * state.v_head_dim
            if self.value_row is not None and value:
                value = self.value_row
            return k.row_bytes(state.num_kv_heads, state.head_dim), v.row_bytes(1, value)
        if isinstance(state, Latent):
            return self._latent_rows(state, k, v)
        if isinstance(state, Index):
            return k.row_bytes(1, state.width), v.row_bytes(1, self.index_value)
        if isinstance(state, Recurrent):
            elements = sum(count for count, _ in state.parts)
            size = STATE.row_bytes(1, elements)
            return (size, 0) if state.kind == "conv" else (0, size)
        return 0, 0

    def _latent_rows(self, state: Latent, k: DType, v: DType) -> tuple[int, int]:
        """A latent row, and beside it the values inside it once more where the release does so."""
        settings, release = self.settings, self.settings.release
        if self.model_type in UNCOMPRESSED or (release.is_fork and not settings.mla_attn):
            heads = state.num_q_heads
            return k.row_bytes(heads, state.qk_head_dim), v.row_bytes(heads, state.v_head_dim)
        doubled = release.latent_values
        if release.is_fork:
            doubled = settings.mla_attn == 1 and not settings.flash_attn
        values = state.width - ROTARY_TAIL if doubled and state.stride == 1 else 0
        return k.row_bytes(1, state.width), v.row_bytes(1, values)

    def sides(self, state: State) -> tuple[int, int]:
        """Bytes of one layer's keys and values over all cells, streams and snapshots."""
        k, v = self.rows(state)
        times = self.cells(state) * self.copies(state)
        return k * times, v * times

    def copies(self, state: State) -> int:
        """Streams of an attention cache; of a recurrent one the running state and snapshots."""
        if isinstance(state, Recurrent):
            return 1 + self.settings.snapshots
        return self.streams

    def caches(self, layers: Iterable[Layer]) -> list[Cache]:
        """The caches of `layers`, those of one kind and size together, in order of appearance."""
        found: dict[tuple[str, int], Cache] = {}
        for layer in layers:
            counted = set()
            for state in layer.states:
                k, v = self.sides(state)
                if not k + v:
                    continue
                key = (self._kind(state), self.cells(state))
                seen = found.get(key, Cache(*key, self.copies(state), 0, 0, 0))
                found[key] = replace(
                    seen,
                    layers=seen.layers + (key not in counted),
                    k_bytes=seen.k_bytes + k,
                    v_bytes=seen.v_bytes + v,
                )
                counted.add(key)
        return list(found.values())

    def _kind(self, state: State) -> str:
        if self.is_draft:
            return "draft"
        if isinstance(state, Recurrent):
            return "recurrent"
        if isinstance(state, Index):
            return "index"
        if isinstance(state, Latent) and state.stride > 1:
            return f"compressed {state.stride}"
        return "sliding" if self.has_window(state) else "full"


def _widest_value(states: Sequence[State]) -> int | None:
    """Without flash attention values are stored transposed and all layers as wide as the widest;
    None where they are equal anyway."""
    widths = {
        s.num_kv_heads * s.v_head_dim
        for s in states
        if isinstance(s, Attention) and s.kind != "cross"
    }
    return max(widths) if len(widths) > 1 else None


def _index_value(model: ModelSpec) -> int:
    """Elements of V in an index cache: one head of the layer's values in MiniMax-M3, else none."""
    if model.model_type not in INDEX_WITH_VALUES:
        return 0
    return max((s.v_head_dim for s in model.states() if isinstance(s, Attention)), default=0)


def device_layers(model: ModelSpec, devices: int) -> list[Sequence[Layer]]:
    """Layers of each device: equal shares of the layers and the head, which counts as one more.

    llama.cpp's own shares follow the free memory; these are those of equal devices.
    """
    count = len(model.layers)
    if devices > count:
        raise UsageError(
            f"{devices} devices leave some without a layer", f"the model has {count} layers"
        )
    home = [index * devices // (count + 1) for index in range(count)]
    return [
        [layer for layer, at in zip(model.layers, home, strict=True) if at == device]
        for device in range(devices)
    ]
