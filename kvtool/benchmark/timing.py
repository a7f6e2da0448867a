"""Time of one call: samples, and the quantiles that are reported.

On a GPU each contender's calls are captured in a CUDA graph that walks over several input sets,
together larger than five times the L2 cache, so that launch gaps and warm caches stay out. A
sample is one replay divided by its calls. On a CPU a sample is one call, or as many as
make it long enough for the clock. Contenders take turns, and every second round runs backwards,
so that a drifting clock or a warming chip favours nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

COLD_FACTOR = 5
MIN_SAMPLE_S = 1e-3
MIN_SAMPLES = 10
WIDE_SPREAD = 0.1

Call = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call: every sample, and how it was taken (`cuda-graph`, `cuda-events`,
    `cpu-clock`)."""

    samples_s: tuple[float, ...]
    timer: str
    calls_per_sample: int
    input_sets: int

    @property
    def median_s(self) -> float:
        return quantile(self.samples_s, 0.5)

    @property
    def p20_s(self) -> float:
        return quantile(self.samples_s, 0.2)

    @property
    def p80_s(self) -> float:
        return quantile(self.samples_s, 0.8)


def quantile(values: Sequence[float], share: float) -> float:
    """The value at `share` of the sorted samples, linear between neighbours.

    >>> quantile([4.0, 1.0, 2.0, 3.0], 0.5)
    2.5
    """
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def input_sets_needed(set_bytes: int, l2_bytes: int) -> int:
    """Input sets to rotate so that a set has left the L2 cache before its turn comes again.

    >>> input_sets_needed(16_777_216, 60_000_000), input_sets_needed(1 << 30, 60_000_000)
    (18, 2)
    """
    return max(2, -(-COLD_FACTOR * l2_bytes // set_bytes))


@dataclass(slots=True)
class _Contender:
    sample: Clock
    timer: str
    calls: int
    input_sets: int


def measure(
    contenders: Mapping[str, Sequence[Call]],
    *,
    device: torch.device,
    budget_s: float,
    max_samples: int,
) -> dict[str, Timing]:
    """Timings of contenders that take turns; each is a list of calls, one for each input set.

    Every contender has been called before (compiled, checked). Each gets at least `MIN_SAMPLES`
    samples, then more until its own samples have taken `budget_s` or there are `max_samples`.
    """
    prepare = _graph_contender if device.type == "cuda" else _clock_contender
    entries = {name: prepare(calls) for name, calls in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in entries}
    spent = dict.fromkeys(entries, 0.0)
    for round_number in range(max_samples):
        turns = [n for n in entries if round_number < MIN_SAMPLES or spent[n] < budget_s]
        if not turns:
            break
        for name in turns if round_number % 2 == 0 else reversed(turns):
            sample = entries[name].sample()
            samples[name].append(sample)
            spent[name] += sample * entries[name].calls
    return {
        name: Timing(tuple(samples[name]), entry.timer, entry.calls, entry.input_sets)
        for name, entry in entries.items()
    }


def _clock_contender(calls: Sequence[Call]) -> _Contender:
    def run(repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            for call in calls:
                call()
        return time.perf_counter() - start

    repeats = _repeats(run)
    total = repeats * len(calls)
    return _Contender(lambda: run(repeats) / total, "cpu-clock", total, len(calls))


def _graph_contender(calls: Sequence[Call]) -> _Contender:
    """Calls in a CUDA graph; in the open, between two events, where they cannot be captured.

    Work that synchronises with the host cannot be captured; its launch gaps then count, and the
    row says `cuda-events`.
    """
    import torch

    def walk() -> None:
        for call in calls:
            call()

    replay: Call
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        walk()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream):
            walk()
        replay, timer = graph.replay, "cuda-graph"
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        torch.cuda.synchronize()
        replay, timer = walk, "cuda-events"

    def run(repeats: int) -> float:
        first, last = event(), event()
        torch.cuda.synchronize()
        first.record()
        for _ in range(repeats):
            replay()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    repeats = _repeats(run)
    total = repeats * len(calls)
    return _Contender(lambda: run(repeats) / total, timer, total, len(calls))


def event() -> Any:
    """A CUDA event that keeps the time."""
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _repeats(run: Callable[[int], float]) -> int:
    """Passes over the input sets that make a sample of at least `MIN_SAMPLE_S`."""
    run(1)
    return max(1, int(-(-MIN_SAMPLE_S // max(run(1), 1e-9))))
