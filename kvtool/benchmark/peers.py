"""Other people's attention on the same inputs: what is there, what is not, and how to get it.

Peers are called through their public interface and none of their source is here. Compilation and
planning happen before the clock starts; inputs that a peer needs in another shape are made
there too, and what that spares it is said in `note`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtool.benchmark.cases import Case, Phase
from kvtool.benchmark.contenders import Contender, Prepared
from kvtool.benchmark.inputs import ROPE_THETA, Layout, LayoutName
from kvtool.errors import UsageError, did_you_mean
from kvtool.roofline import flops, rotation_flops

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FLASHINFER_WORKSPACE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer by the name that `--peers` takes.

    package: what must be importable.  get: how to install it.  devices: where it runs.
    compiles: whether its first call takes long (it is then left out of `auto`).
    """

    name: str
    package: str
    get: str
    devices: tuple[str, ...]
    compiles: bool
    note: str
    build: Callable[[], list[Contender]]

    def missing(self, device_type: str) -> str | None:
        """Why the peer cannot run here, with what to do; None when it can."""
        if device_type not in self.devices:
            return f"runs on {' and '.join(self.devices)} only"
        if importlib.util.find_spec(self.package) is None:
            return f"not installed: {self.get}"
        return None


def select(names: Sequence[str], device_type: str) -> tuple[list[Contender], list[str]]:
    """Contenders for peers by name, and a line for each one that is left out.

    `auto` stands for all that are installed and need no long compilation; `none` for no peer.
    A peer that is asked for by name and cannot run is an error.
    """
    if "none" in names:
        return [], []
    known = [peer.name for peer in PEERS]
    for name in names:
        if name != "auto" and name not in known:
            raise UsageError(
                f"no peer named '{name}'",
                did_you_mean(name, known, f"peers: auto, none, {', '.join(known)}"),
            )
    chosen: list[Contender] = []
    left_out: list[str] = []
    for peer in PEERS:
        missing = peer.missing(device_type)
        if peer.name in names and missing:
            raise UsageError(f"peer '{peer.name}' cannot run: {missing}", "leave it out of --peers")
        if peer.name in names or ("auto" in names and not missing and not peer.compiles):
            chosen += peer.build()
        elif "auto" in names and device_type in peer.devices:
            reason = missing or f"compiles for a while; ask for it with --peers auto,{peer.name}"
            left_out.append(f"{peer.name}: {reason}")
    return chosen, left_out


def _task_flops(case: Case, variant: str | None) -> int:
    return flops(case.task)


def _needs_16_bit(case: Case) -> str | None:
    if case.dtype == "float32" or case.kv_dtype != case.dtype:
        return "takes 16-bit queries and a cache of the same dtype"
    return None


def _same_dtype(case: Case) -> str | None:
    return None if case.kv_dtype == case.dtype else "takes a cache of the queries' dtype"


def _sdpa(backend: str, *, expand: bool, layout: Layout) -> Prepared:
    """`scaled_dot_product_attention` on one backend; any other is forbidden inside the call."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    groups = layout.q.shape[2] // layout.k.shape[2]
    k, v = layout.k, layout.v
    if expand and groups > 1:
        k, v = k.repeat_interleave(groups, dim=2), v.repeat_interleave(groups, dim=2)
    q, k, v = (x.transpose(1, 2) for x in (layout.q, k, v))
    chosen = getattr(SDPBackend, backend)
    is_causal = layout.options["causal"] and q.shape[2] > 1

    def call() -> Tensor:
        with sdpa_kernel([chosen]):
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=is_causal, enable_gqa=groups > 1 and not expand
            )
        return out.transpose(1, 2)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch explains at length why a backend refuses
        call()
    return Prepared(call, "peer")


_CONTIGUOUS: dict[Phase, LayoutName] = {"prefill": "plain", "decode": "plain"}


def _sdpa_contender(name: str, backend: str, refuses: Any, *, expand: bool = False) -> Contender:
    return Contender(
        name=name,
        layouts=_CONTIGUOUS,
        prepare=lambda layout: _sdpa(backend, expand=expand, layout=layout),
        executed_flops=_task_flops,
        refuses=refuses,
    )


def _flex(layout: Layout) -> Prepared:
    """FlexAttention, compiled for these lengths; the block mask is made beforehand."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = (x.transpose(1, 2) for x in (layout.q, layout.k, layout.v))
    queries, keys = q.shape[2], k.shape[2]

    def causal(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return row + (keys - queries) >= column

    mask = (
        create_block_mask(causal, None, None, queries, keys, device=str(q.device))
        if layout.options["causal"] and queries > 1
        else None
    )
    compiled = torch.compile(flex_attention, dynamic=False)

    def call() -> Tensor:
        out = compiled(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        assert isinstance(out, torch.Tensor)
        return out.transpose(1, 2)

    return Prepared(call, "peer")


def _flashinfer(mode: str, layout: Layout) -> Prepared:
    """Paged decode with tensor cores; `mode` is NONE or ROPE_LLAMA."""
    import torch

    flashinfer = importlib.import_module("flashinfer")

    q, table = layout.q[:, 0], layout.options["block_table"]
    page = layout.k.shape[1]
    lens = layout.options["kv_lens"].cpu()
    pages = (lens + page - 1) // page
    indptr = torch.nn.functional.pad(pages.cumsum(0), (1, 0)).to(torch.int32)
    indices = torch.cat([row[:n] for row, n in zip(table, pages.tolist(), strict=True)])
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        _workspace(q.device), "NHD", use_tensor_cores=True
    )
    wrapper.plan(
        indptr.to(q.device),
        indices,
        ((lens - 1) % page + 1).to(torch.int32).to(q.device),
        q.shape[1],
        layout.k.shape[2],
        q.shape[2],
        page,
        pos_encoding_mode=mode,
        q_data_type=q.dtype,
        kv_data_type=layout.k.dtype,
        rope_theta=ROPE_THETA,
    )
    scales = {
        name: layout.options[name] for name in ("k_scale", "v_scale") if name in layout.options
    }
    out = torch.full_like(q, torch.nan)

    def call() -> Tensor:
        result: Tensor = wrapper.run(q, (layout.k, layout.v), out=out, **scales)
        return result[:, None]

    return Prepared(call, "peer")


@functools.cache
def _workspace(device: torch.device) -> Any:
    """One scratch buffer for all wrappers: calls follow each other on one stream."""
    import torch

    return torch.zeros(FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def _flashinfer_flops(case: Case, variant: str | None) -> int:
    """With ROPE_LLAMA every key is turned, and the query once."""
    heads, batch = case.heads, case.batch_size
    keys = rotation_flops(batch * case.context_tokens, heads.num_kv_heads, heads.head_dim)
    return flops(case.task) + keys + rotation_flops(batch, heads.num_q_heads, heads.head_dim)


def _flashinfer_refuses(case: Case) -> str | None:
    if case.dtype == "float32":
        return "takes 16-bit queries"
    if case.heads.head_dim not in (64, 128, 256):
        return "takes head dims 64, 128 and 256"
    return None


def _flashinfer_contenders() -> list[Contender]:
    return [
        Contender(
            name="flashinfer",
            layouts={"decode": "paged"},
            prepare=functools.partial(_flashinfer, "NONE"),
            executed_flops=_task_flops,
            refuses=_flashinfer_refuses,
            ragged=True,
        ),
        Contender(
            name="flashinfer-rope",
            layouts={"decode": "unrotated"},
            prepare=functools.partial(_flashinfer, "ROPE_LLAMA"),
            executed_flops=_flashinfer_flops,
            refuses=lambda case: _flashinfer_refuses(case) or _same_dtype(case),
            ragged=True,
        ),
    ]


def _flash_attn(layout: Layout) -> Prepared:
    """The flash-attn package: its forward for prefill, its cache kernel (contiguous) for decode."""
    flash_attn = importlib.import_module("flash_attn")
    q, k, v = layout.q, layout.k, layout.v
    lens, causal = layout.options["kv_lens"], layout.options["causal"]

    def prefill() -> Tensor:
        out: Tensor = flash_attn.flash_attn_func(q, k, v, causal=causal)
        return out

    def decode() -> Tensor:
        out: Tensor = flash_attn.flash_attn_with_kvcache(q, k, v, cache_seqlens=lens, causal=True)
        return out

    return Prepared(prefill if q.shape[1] > 1 else decode, "peer")


def _one(contender: Contender) -> Callable[[], list[Contender]]:
    return lambda: [contender]


_TORCH = "part of torch"

PEERS: tuple[Peer, ...] = (
    Peer(
        "sdpa-cudnn", "torch", _TORCH, ("cuda",), False,
        "torch SDPA, cuDNN backend; contiguous cache",
        _one(_sdpa_contender("sdpa-cudnn", "CUDNN_ATTENTION", _needs_16_bit)),
    ),
    Peer(
        "sdpa-flash", "torch", _TORCH, ("cuda", "cpu"), False,
        "torch SDPA, FlashAttention backend (on a CPU its C++ code); contiguous cache",
        _one(_sdpa_contender("sdpa-flash", "FLASH_ATTENTION", _same_dtype)),
    ),
    Peer(
        "sdpa-efficient", "torch", _TORCH, ("cuda",), False,
        "torch SDPA, memory-efficient backend; it knows no GQA, keys are repeated before the clock",
        _one(_sdpa_contender("sdpa-efficient", "EFFICIENT_ATTENTION", _same_dtype, expand=True)),
    ),
    Peer(
        "flex", "torch", _TORCH, ("cuda",), True,
        "torch FlexAttention, compiled for the shape; contiguous cache",
        _one(Contender("flex", _CONTIGUOUS, _flex, _task_flops, refuses=_same_dtype, odd=False)),
    ),
    Peer(
        "flashinfer", "flashinfer", "pip install flashinfer-python (needs nvcc)", ("cuda",), True,
        "paged decode on tensor cores; flashinfer-rope beside it turns every key (ROPE_LLAMA)",
        _flashinfer_contenders,
    ),
    Peer(
        "flash-attn", "flash_attn", "pip install flash-attn --no-build-isolation", ("cuda",), False,
        "the flash-attn package; contiguous cache",
        _one(Contender("flash-attn", _CONTIGUOUS, _flash_attn, _task_flops, refuses=_needs_16_bit)),
    ),
)  # fmt: skip
