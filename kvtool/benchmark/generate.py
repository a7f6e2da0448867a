"""Tokens per second of a small decoder under each kernel, and how the time grows.

Without a cache step t works off t tokens again: n (n + 1) / 2 query rows and O(n^3) scores for n
tokens. With one, n rows and O(n^2) scores. The counts are exact; the exponent is measured: the
time of a step's attention is fitted by c + a t^s, c being what a call costs anyhow, and the
sum over n steps then grows as n^(s + 1).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtool.benchmark.decoder import VOCABULARY, Attention, Decoder, Shape
from kvtool.benchmark.gate import RELATIVE_BOUND
from kvtool.benchmark.timing import quantile
from kvtool.errors import UsageError
from kvtool.roofline import AttentionTask, flops, recompute_flops

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GATE_TOKENS = 24
MIN_TOKENS = 8
BINS = 12
STEADY = 0.2
MIN_FIT_TOKENS = 64
MOSTLY_FIXED = 0.8
"""Above this share of fixed cost in the last steps an exponent would be noise."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Seconds of a step's attention at prefix t: fixed_s + slope_s * t ** power."""

    fixed_s: float
    slope_s: float
    power: float

    def at(self, tokens: float) -> float:
        grown: float = tokens**self.power
        return self.fixed_s + self.slope_s * grown

    def fixed_share(self, tokens: int) -> float:
        """How much of a step at `tokens` would be there without any keys."""
        return self.fixed_s / self.at(tokens)


@dataclass(frozen=True, slots=True)
class Steps:
    """Seconds of each step: in all, inside attention, and what the device worked there."""

    wall_s: tuple[float, ...]
    attention_s: tuple[float, ...]
    attention_device_s: tuple[float, ...]


def generate(
    kernels: Sequence[str],
    shape: Shape,
    *,
    tokens: int,
    frame_tokens: int,
    dtype: str,
    device: torch.device,
    seed: int,
) -> Iterator[dict[str, Any]]:
    """A row per kernel: it decodes `tokens` tokens from a prompt of one.

    The logits of the first steps are compared with those of a decoder whose attention is the
    float64 reference. They may be twice as far from it as under transformers' own eager
    attention in the same dtype, plus the bound of one call; beyond that there is no speed.
    """
    import torch

    if tokens < MIN_TOKENS:
        raise UsageError(
            f"--generate {tokens} is too short to time", f"generate at least {MIN_TOKENS} tokens"
        )
    torch_dtype: torch.dtype = getattr(torch, dtype)
    decoder = Decoder(shape, max_tokens=tokens + 1, dtype=torch_dtype, device=device, seed=seed)

    def attention(kernel: str) -> Attention:
        return Attention(
            kernel,
            shape,
            max_tokens=tokens,
            frame_tokens=frame_tokens,
            dtype=torch_dtype,
            device=device,
        )

    forced = torch.randint(
        VOCABULARY, (1, min(GATE_TOKENS, tokens)), generator=torch.Generator().manual_seed(seed)
    ).to(device)
    exact = _logits(decoder, attention("reference"), forced)
    allowed = 2 * _relative(decoder.eager(forced)[0], exact) + RELATIVE_BOUND[dtype]
    for kernel in kernels:
        candidate = attention(kernel)
        error = _relative(_logits(decoder, candidate, forced), exact)
        passed = error <= allowed
        steps = _decode(decoder, attention(kernel), tokens, device) if passed else None
        yield _row(kernel, candidate.path, shape, tokens, dtype, error, passed, steps)


def _logits(decoder: Decoder, attention: Attention, forced: Tensor) -> Tensor:
    """Logits [n, V] of given tokens, fed one at a time (without a cache: with all before it)."""
    import torch

    rows = []
    for position in range(forced.shape[1]):
        first = 0 if attention.kernel == "naive" else position
        rows.append(decoder.step(forced[:, first : position + 1], first, attention)[0, -1])
    return torch.stack(rows)


def _relative(out: Tensor, exact: Tensor) -> float:
    import torch

    difference = torch.linalg.vector_norm(out.double() - exact.double())
    return float(difference / torch.linalg.vector_norm(exact.double()))


def _decode(decoder: Decoder, attention: Attention, tokens: int, device: torch.device) -> Steps:
    """Greedy decoding from token 0; `tokens` steps, each over what the kernel needs again."""
    import torch

    ids = torch.zeros((1, tokens + 1), dtype=torch.long, device=device)
    wall, inside = [], []
    for position in range(tokens):
        first = 0 if attention.kernel == "naive" else position
        start = time.perf_counter()
        logits = decoder.step(ids[:, first : position + 1], first, attention)
        ids[:, position + 1] = logits[:, -1].argmax(dim=-1)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        wall.append(time.perf_counter() - start)
        inside.append(attention.clock.read())
    return Steps(tuple(wall), tuple(s.wall_s for s in inside), tuple(s.device_s for s in inside))


@dataclass(frozen=True, slots=True)
class _Bin:
    """Neighbouring steps as one point: the middle prefix, steady seconds, how many steps."""

    prefix: float
    seconds: float
    steps: int


def fit(seconds: Sequence[float]) -> Growth | None:
    """Growth of step times, seconds[t - 1] at prefix t; None when nothing grows, or too few.

    Geometric bins are represented by their faster steps (`STEADY` quantile), since other work on
    the machine only ever adds time. For each power on a grid the two other parameters follow by
    least squares on relative errors, a bin counting as often as it has steps, both held
    non-negative.
    """
    if len(seconds) < MIN_FIT_TOKENS:
        return None
    bins = _binned(seconds)
    best: tuple[float, Growth] | None = None
    for step in range(10, 301):
        candidate = _linear_fit(bins, step / 100)
        loss = sum(b.steps * (1 - candidate.at(b.prefix) / b.seconds) ** 2 for b in bins)
        if best is None or loss < best[0]:
            best = (loss, candidate)
    return best[1] if best and best[1].slope_s > 0 else None


def _binned(seconds: Sequence[float]) -> list[_Bin]:
    """Bins whose edges grow by a constant factor."""
    count = len(seconds)
    edges = sorted({round(count ** (i / BINS)) for i in range(BINS + 1)} | {0})
    return [
        _Bin((low + 1 + high) / 2, quantile(seconds[low:high], STEADY), high - low)
        for low, high in itertools.pairwise(edges)
    ]


def _linear_fit(bins: Sequence[_Bin], power: float) -> Growth:
    """fixed_s and slope_s for a given power, neither below zero."""
    w = [b.steps / b.seconds**2 for b in bins]
    x = [b.prefix**power for b in bins]
    y = [b.seconds for b in bins]
    sw, sx, sy = math.fsum(w), _dot(w, x), _dot(w, y)
    sxx = math.fsum(a * b * b for a, b in zip(w, x, strict=True))
    sxy = math.fsum(a * b * c for a, b, c in zip(w, x, y, strict=True))
    slope = max(0.0, (sw * sxy - sx * sy) / (sw * sxx - sx * sx))
    fixed = (sy - slope * sx) / sw
    if fixed < 0:
        return Growth(0.0, sxy / sxx, power)
    return Growth(fixed, slope, power)


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def operations(kernel: str, tokens: int) -> dict[str, int]:
    """Rows and scores of decoding `tokens` tokens from one, per layer and query head, exactly.

    >>> operations("naive", 100)["query_rows"], operations("cached", 100)["query_rows"]
    (5050, 100)
    """
    triangle = tokens * (tokens + 1) // 2
    if kernel == "naive":
        squares = tokens * (tokens + 1) * (2 * tokens + 1) // 6
        return {"query_rows": triangle, "key_rows": triangle, "scores": squares}
    return {"query_rows": tokens, "key_rows": tokens, "scores": triangle}


def _row(
    kernel: str,
    path: str,
    shape: Shape,
    tokens: int,
    dtype: str,
    error: float,
    passed: bool,
    steps: Steps | None,
) -> dict[str, Any]:
    heads = shape.heads
    tasks = [
        AttentionTask((t,), 1, heads.num_q_heads, heads.num_kv_heads, heads.head_dim)
        for t in range(1, tokens + 1)
    ]
    executed = recompute_flops if kernel == "naive" else flops
    return {
        "kernel": kernel,
        "implementation": kernel,
        "path": path,
        "phase": "generate",
        "tokens": tokens,
        "layers": shape.layers,
        "hidden_size": shape.hidden_size,
        "num_q_heads": heads.num_q_heads,
        "num_kv_heads": heads.num_kv_heads,
        "head_dim": heads.head_dim,
        "dtype": dtype,
        **operations(kernel, tokens),
        "flops": shape.layers * sum(map(flops, tasks)),
        "executed_flops": shape.layers * sum(map(executed, tasks)),
        "relative_error": error,
        "gate": "pass" if passed else "fail",
        **_speeds(steps, tokens),
    }


def _speeds(steps: Steps | None, tokens: int) -> dict[str, Any]:
    if steps is None:
        return dict.fromkeys(
            (
                "tokens_per_s",
                "total_s",
                "attention_s",
                "attention_exponent",
                "attention_fixed_share",
                "samples_s",
                "attention_samples_s",
                "attention_device_samples_s",
            )
        )
    growth = fit(steps.attention_device_s)
    share = growth.fixed_share(tokens) if growth else 1.0
    return {
        "tokens_per_s": tokens / math.fsum(steps.wall_s),
        "total_s": math.fsum(steps.wall_s),
        "attention_s": math.fsum(steps.attention_s),
        "attention_exponent": growth.power + 1 if growth and share < MOSTLY_FIXED else None,
        "attention_fixed_share": share,
        "samples_s": list(steps.wall_s),
        "attention_samples_s": list(steps.attention_s),
        "attention_device_samples_s": list(steps.attention_device_s),
    }
