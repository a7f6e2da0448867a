"""The roof of this device, measured in the run that is judged by it.

Three figures: a device copy (bytes read and written), a read (a reduction over the same
buffer), and a large matrix product on random data. The memory roof is the better of the first
two, and each figure is the one that a fifth of the samples beat: a second of matrix products heats
the chip, and a roof measured at its slowest would flatter the rows. Zeros would be faster than
random data and are not used.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtool.benchmark.timing import event, quantile
from kvtool.roofline import Roof

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the probes are, and how long each one runs."""

    buffer_bytes: int
    matrix_side: int
    seconds: float


GPU_SIZES = Sizes(buffer_bytes=2 << 30, matrix_side=8192, seconds=1.0)
CPU_SIZES = Sizes(buffer_bytes=128 << 20, matrix_side=1024, seconds=0.3)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured rates: bytes per second of a copy and of a read, operations per second of a
    matrix product in `dtype`."""

    copy_bytes_per_s: float
    read_bytes_per_s: float
    matmul_flops_per_s: float
    dtype: str

    @property
    def roof(self) -> Roof:
        return Roof(self.matmul_flops_per_s, max(self.copy_bytes_per_s, self.read_bytes_per_s))


def measure(device: torch.device, dtype: torch.dtype, sizes: Sizes | None = None) -> Ceilings:
    """Copy, read and matmul of `device` now; about three times `sizes.seconds` in all."""
    sizes = sizes or (GPU_SIZES if device.type == "cuda" else CPU_SIZES)
    copy_s, read_s = _transfer_s(device, sizes)
    return Ceilings(
        copy_bytes_per_s=2 * sizes.buffer_bytes / copy_s,
        read_bytes_per_s=sizes.buffer_bytes / read_s,
        matmul_flops_per_s=2 * sizes.matrix_side**3 / _matmul_s(device, dtype, sizes),
        dtype=str(dtype).removeprefix("torch."),
    )


def _transfer_s(device: torch.device, sizes: Sizes) -> tuple[float, float]:
    """Seconds to copy the buffer, and to add it up."""
    import torch

    source = torch.randn(sizes.buffer_bytes // 4, device=device)
    target = torch.empty_like(source)
    copy_s = _steady(lambda: target.copy_(source), device, sizes.seconds)
    return copy_s, _steady(lambda: torch.sum(source), device, sizes.seconds)


def _matmul_s(device: torch.device, dtype: torch.dtype, sizes: Sizes) -> float:
    import torch

    side = (sizes.matrix_side, sizes.matrix_side)
    a, b = torch.randn(side, device=device).to(dtype), torch.randn(side, device=device).to(dtype)
    out = torch.empty_like(a)
    return _steady(lambda: torch.matmul(a, b, out=out), device, sizes.seconds)


def _steady(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    """The 20th percentile of `call`'s time over `seconds`, after one that warms up."""
    call()
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < 3 or time.perf_counter() < end:
        if device.type == "cuda":
            first, last = event(), event()
            first.record()
            call()
            last.record()
            last.synchronize()
            samples.append(first.elapsed_time(last) / 1e3)
        else:
            start = time.perf_counter()
            call()
            samples.append(time.perf_counter() - start)
    return quantile(samples, 0.2)
