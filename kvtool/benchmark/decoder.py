"""A small decoder whose attention is one of our kernels, and the cache that goes with it.

The model is transformers' Llama with random weights and the attention shape of a card; our kernels
enter through `AttentionInterface.register` and keep keys and values themselves, in
one preallocated buffer per layer, so a step costs no copy of the past. `naive` keeps nothing.
`lazy` keeps keys in frames of `frame_tokens` tokens, each as if it began at position 0, and hands
the frames' offsets to the kernel; the decoder's own rotation is switched off for it.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtool.benchmark.cases import Heads
from kvtool.benchmark.inputs import ROPE_THETA
from kvtool.benchmark.timing import event

if TYPE_CHECKING:
    import torch
    from torch import Tensor

REGISTERED = "kvtool_bench"
VOCABULARY = 1024


@dataclass(frozen=True, slots=True)
class Shape:
    """The decoder: attention heads, layers, and the width of its feed-forward part."""

    heads: Heads
    layers: int = 2
    intermediate_size: int = 1024

    @property
    def hidden_size(self) -> int:
        return self.heads.num_q_heads * self.heads.head_dim


class Attention:
    """One kernel with its cache, called by every layer of the decoder.

    `kernel` is a name of `kvtool.kernels`, `reference` included; the reference keeps the
    same cache as `cached`.
    """

    def __init__(
        self,
        kernel: str,
        shape: Shape,
        *,
        max_tokens: int,
        frame_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        import torch

        from kvtool.kernels import load

        self.kernel, self.module, self.shape = kernel, load(kernel), shape
        self.frame_tokens, self.max_tokens, self.device = frame_tokens, max_tokens, device
        heads = shape.heads
        rows = 0 if kernel == "naive" else max_tokens
        size = (shape.layers, 1, rows, heads.num_kv_heads, heads.head_dim)
        self.k = torch.zeros(size, dtype=dtype, device=device)
        self.v = torch.zeros(size, dtype=dtype, device=device)
        self.clock = Clock(device)
        self.path = ""
        self._rope = _rope(heads.head_dim)
        self._plan: Any = None
        self._options: dict[str, Any] = {}
        self._first = 0

    @property
    def turns_keys(self) -> bool:
        """Whether keys are rotated here and not by the decoder."""
        return self.kernel == "lazy"

    def begin(self, first: int, tokens: int) -> None:
        """Announce a step over positions first to first + tokens - 1."""
        import torch

        end = first + tokens
        lens = torch.tensor([end], dtype=torch.int32, device=self.device)
        self._first, self._plan = first, None
        self._options = {"kv_lens": lens, "causal": True}
        if self.turns_keys:
            starts = range(0, end, self.frame_tokens)
            sizes = [min(self.frame_tokens, end - start) for start in starts]
            self._options |= {
                "doc_lens": torch.tensor([sizes], dtype=torch.int32, device=self.device),
                "doc_offsets": torch.tensor([list(starts)], dtype=torch.int32, device=self.device),
                "rope": self._rope,
            }

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """o: [1, T, H, D] of a layer's new rows q, k, v: [1, T, heads, D]."""
        if self.kernel != "naive":
            k, v = self._keep(layer, k, v)
        if self._plan is None:
            self._plan = self.module.plan(q, k, v, **self._options)
            self.path = self._plan.path
        with self.clock:
            o: Tensor = self.module.attention(q, k, v, plan=self._plan, **self._options)
        return o.to(q.dtype)

    def call_at(self, prefix: int) -> Callable[[], Tensor]:
        """One step's attention of one layer at a prefix of so many tokens, on random inputs."""
        import torch

        new = prefix if self.kernel == "naive" else 1
        self.begin(prefix - new, new)
        heads, dim, dtype = self.shape.heads, self.shape.heads.head_dim, self.k.dtype
        q = torch.randn(1, new, heads.num_q_heads, dim, dtype=dtype, device=self.device)
        if self.kernel == "naive":
            k, v = torch.randn(
                2, 1, prefix, heads.num_kv_heads, dim, dtype=dtype, device=self.device
            )
        else:
            k, v = self.k[0].normal_(), self.v[0].normal_()
        options = self._options
        plan = self.module.plan(q, k, v, **options)

        def call() -> Tensor:
            o: Tensor = self.module.attention(q, k, v, plan=plan, **options)
            return o

        return call

    def _keep(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Appends k and v to the layer's cache, and returns the whole cache."""
        import torch

        from kvtool.kernels.rope import rotate

        last = self._first + k.shape[1]
        if self.turns_keys:
            positions = torch.arange(self._first, last, device=k.device) % self.frame_tokens
            k = rotate(k, positions, self._rope)
        self.k[layer, :, self._first : last] = k
        self.v[layer, :, self._first : last] = v
        return self.k[layer], self.v[layer]


class Clock:
    """Adds up the time spent inside `with`; on a GPU between events, read when asked for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pairs: list[tuple[Any, Any]] = []
        self._seconds = 0.0
        self._start: Any = None

    def __enter__(self) -> None:
        if self.device.type == "cuda":
            self._start = event()
            self._start.record()
        else:
            self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            stop = event()
            stop.record()
            self._pairs.append((self._start, stop))
        else:
            self._seconds += time.perf_counter() - self._start

    def read(self) -> float:
        """Seconds since the last reading."""
        for start, stop in self._pairs:
            stop.synchronize()
            self._seconds += start.elapsed_time(stop) / 1e3
        seconds, self._seconds = self._seconds, 0.0
        self._pairs.clear()
        return seconds


class Decoder:
    """The model, run step by step with an `Attention` of choice."""

    def __init__(
        self, shape: Shape, *, max_tokens: int, dtype: torch.dtype, device: torch.device, seed: int
    ) -> None:
        import torch

        transformers: Any = importlib.import_module("transformers")
        transformers.AttentionInterface.register(REGISTERED, _interface)
        heads = shape.heads
        config = transformers.LlamaConfig(
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=shape.layers,
            num_attention_heads=heads.num_q_heads,
            num_key_value_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            vocab_size=VOCABULARY,
            max_position_embeddings=max_tokens,
            rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
            attn_implementation=REGISTERED,
        )
        torch.manual_seed(seed)
        self.model = transformers.LlamaForCausalLM(config).to(device=device, dtype=dtype).eval()
        self.device = device
        self._rotary = self.model.model.rotary_emb
        self._still = _still_rotary(heads.head_dim)

    def step(self, tokens: Tensor, first: int, attention: Attention) -> Tensor:
        """Logits [1, T, V] of tokens [1, T] at positions from `first` on."""
        import torch

        positions = torch.arange(first, first + tokens.shape[1], device=self.device)[None]
        attention.begin(first, tokens.shape[1])
        self.model.model.rotary_emb = self._still if attention.turns_keys else self._rotary
        with torch.inference_mode():
            logits: Tensor = self.model(
                input_ids=tokens, position_ids=positions, use_cache=False, kernel=attention
            ).logits
        return logits

    def eager(self, tokens: Tensor) -> Tensor:
        """Logits [1, T, V] under transformers' own eager attention, in the model's dtype."""
        import torch

        self.model.model.rotary_emb = self._rotary
        self.model.set_attn_implementation("eager")
        try:
            with torch.inference_mode():
                logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        finally:
            self.model.set_attn_implementation(REGISTERED)
        return logits


def _interface(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    kernel: Attention,
    **_: object,
) -> tuple[Tensor, None]:
    """What transformers calls; tensors come as [B, heads, T, D] and leave as [B, T, H, D]."""
    q, k, v = (x.transpose(1, 2).contiguous() for x in (query, key, value))
    return kernel(module.layer_idx, q, k, v), None


def _rope(head_dim: int) -> Any:
    from kvtool.kernels.rope import from_parameters

    return from_parameters(head_dim, {"rope_theta": ROPE_THETA})


def _still_rotary(head_dim: int) -> Any:
    """A rotary embedding that turns nothing."""
    import torch

    class Still(torch.nn.Module):
        def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
            size = (*position_ids.shape, head_dim)
            return x.new_ones(size), x.new_zeros(size)

    return Still()
