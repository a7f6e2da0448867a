"""Tokens per second of a small decoder under each kernel, and how the time grows.

Without a cache step t works off t tokens again: n (n + 1) / 2 query rows and O(n^3) scores for n
tokens. With one, n rows and O(n^2) scores. The counts are exact; the exponent is measured: the
attention of a step is timed alone at several prefixes t, in graphs on a GPU, and fitted by
c + a t^s, c being what a call costs anyhow. The sum over n steps then grows as n^(s + 1).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtool.benchmark.decoder import VOCABULARY, Attention, Decoder, Shape
from kvtool.benchmark.gate import RELATIVE_BOUND
from kvtool.benchmark.memory import synchronize
from kvtool.benchmark.timing import measure
from kvtool.errors import UsageError
from kvtool.roofline import AttentionTask, flops, recompute_flops

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GATE_TOKENS = 24
MIN_TOKENS = 8
SHORTEST_PREFIX = 8
HALVINGS = 6
FIT_BUDGET_S = 0.1
FIT_SAMPLES = 50
MIN_FIT_TOKENS = 64
MOSTLY_FIXED = 0.8
"""Above this share of fixed cost in the last step an exponent would be noise."""


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
    """Seconds of each step, in all and inside attention; and of attention alone by prefix."""

    wall_s: tuple[float, ...]
    attention_s: tuple[float, ...]
    by_prefix: tuple[tuple[int, float], ...]


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
        steps = _decode(decoder, attention, kernel, tokens) if passed else None
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


def _decode(decoder: Decoder, make: Callable[[str], Attention], kernel: str, tokens: int) -> Steps:
    """Greedy decoding from token 0, each step over what the kernel needs again."""
    import torch

    attention = make(kernel)
    ids = torch.zeros((1, tokens + 1), dtype=torch.long, device=decoder.device)
    wall, inside = [], []
    for position in range(tokens):
        first = 0 if kernel == "naive" else position
        start = time.perf_counter()
        logits = decoder.step(ids[:, first : position + 1], first, attention)
        ids[:, position + 1] = logits[:, -1].argmax(dim=-1)
        synchronize(decoder.device)
        wall.append(time.perf_counter() - start)
        inside.append(attention.clock.read())
    return Steps(tuple(wall), tuple(inside), by_prefix(lambda: make(kernel), tokens))


def prefixes(tokens: int) -> list[int]:
    """Prefix lengths to time: `tokens`, its halves, and a short one for the fixed cost.

    >>> prefixes(512)
    [8, 16, 32, 64, 128, 256, 512]
    """
    halves = {tokens >> i for i in range(HALVINGS)} | {SHORTEST_PREFIX}
    return sorted(t for t in halves if SHORTEST_PREFIX <= t <= tokens)


def by_prefix(make: Callable[[], Attention], tokens: int) -> tuple[tuple[int, float], ...]:
    """(prefix, seconds) of a step's attention in one layer: the 20th percentile, caches warm.

    Other work on the machine only ever adds time, so the faster samples are the truer ones.
    """
    attentions = {prefix: make() for prefix in prefixes(tokens)}
    timings = measure(
        {str(prefix): [attention.call_at(prefix)] for prefix, attention in attentions.items()},
        device=next(iter(attentions.values())).device,
        budget_s=FIT_BUDGET_S,
        max_samples=FIT_SAMPLES,
    )
    return tuple((prefix, timings[str(prefix)].p20_s) for prefix in attentions)


def fit(points: Sequence[tuple[int, float]]) -> Growth | None:
    """Growth of (prefix, seconds); None when nothing grows, or below `MIN_FIT_TOKENS`.

    For each power on a grid the two other parameters follow by least squares on relative errors,
    both held non-negative.
    """
    if max(prefix for prefix, _ in points) < MIN_FIT_TOKENS:
        return None
    best: tuple[float, Growth] | None = None
    for step in range(10, 301):
        candidate = _linear_fit(points, step / 100)
        loss = math.fsum((1 - candidate.at(t) / s) ** 2 for t, s in points)
        if best is None or loss < best[0]:
            best = (loss, candidate)
    return best[1] if best and best[1].slope_s > 0 else None


def _linear_fit(points: Sequence[tuple[int, float]], power: float) -> Growth:
    """fixed_s and slope_s for a given power, neither below zero."""
    y = [s for _, s in points]
    w = [1 / s**2 for s in y]
    x = [float(t**power) for t, _ in points]
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
                "attention_by_prefix_s",
            )
        )
    growth = fit(steps.by_prefix)
    share = growth.fixed_share(tokens) if growth else 1.0
    return {
        "tokens_per_s": tokens / math.fsum(steps.wall_s),
        "total_s": math.fsum(steps.wall_s),
        "attention_s": math.fsum(steps.attention_s),
        "attention_exponent": growth.power + 1 if growth and share < MOSTLY_FIXED else None,
        "attention_fixed_share": share,
        "samples_s": list(steps.wall_s),
        "attention_samples_s": list(steps.attention_s),
        "attention_by_prefix_s": [list(point) for point in steps.by_prefix],
    }
