"""What SGLang leaves for its pools: a share of the memory that is free before loading.

    budget = free before loading x fraction - weights - what stands beside them

The default fraction is (memory - reserve) / memory with a reserve for activations, graphs and
ranks. Source: `_profile_available_bytes` in `mem_cache/kv_cache_configurator.py`,
`handle_gpu_memory_settings` in `arg_groups/memory_hook.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvtool.device import DeviceSpec
from kvtool.engines.base import Deployment, Estimate, Term
from kvtool.engines.deployed import stored_weights
from kvtool.engines.sglang_options import Settings
from kvtool.model.spec import Latent, ModelSpec

MIB = 1 << 20
GIB = 1 << 30

# nvidia-smi's total, by which the fraction is computed, lies 0.4 to 0.9 % above torch's.
DRIVER_TOTAL = 1.005
# Memory taken before weights are loaded: context and libraries, with several ranks NCCL's buffers.
# H100, one rank: 78.32 to 78.81 GiB of 79.19 free ("Load weight begin. avail mem").
CONTEXT = Estimate(int(0.7 * GIB), int(0.35 * GIB), int(1.0 * GIB))
CONTEXT_RANKS = Estimate(int(1.7 * GIB), int(0.35 * GIB), int(3.0 * GIB))
# Loading against the checkpoint's bytes: +0.4 % (Qwen3-30B-A3B-FP8), +0.9 % (Llama-3.1-8B),
# +2.4 % (Kimi-K2.5, tp 8), -1.7 % (Gemma-4-26B).
LOADED = (1.008, 0.98, 1.03)
# Vision: 0.95 x (1.1 - 0.1 x size), size 1 being ViT-L/14 (24 layers of width 1,024), the factor
# between 0.8 and 1.05. A layer of width w has about 12 w x w parameters.
VISION_FACTOR = 0.95
VISION_PARAMETERS = 12 * 24 * 1024**2


def capture_sizes(max_tokens: int) -> int:
    """How many prefill graphs are captured: up to 1,024 tokens 38 sizes, wider steps beyond."""
    steps = (
        range(4, 33, 4), range(48, 257, 16), range(288, 513, 32), range(576, 1025, 64),
        range(1280, 4097, 256), range(4608, max_tokens + 1, 512),
    )  # fmt: skip
    return sum(size <= max_tokens for step in steps for size in step)


def reserve_mb(model: ModelSpec, settings: Settings, memory_mb: float) -> float:
    """MiB that the default fraction leaves: 512 + 1.5 per prefill token + 128 per rank + graphs,
    10 GiB at least on devices above 60 GiB."""
    release = settings.release
    ranks = settings.parallel.tp * settings.parallel.pp
    total = 512 + 1.5 * max(settings.chunked_prefill_size, 2048) + ranks / 8 * 1024
    total += 2 * settings.graph_batch
    if release.prefill_graphs:
        latent = any(isinstance(state, Latent) for state in model.states())
        total += 1536 if latent else 8 * capture_sizes(settings.chunked_prefill_size)
    if memory_mb > 60 * 1024:
        total = max(total, 10 * 1024)
    return total + (release.draft_mb if settings.draft_tokens else 0)


def default_fraction(model: ModelSpec, settings: Settings, device: DeviceSpec) -> float:
    """mem_fraction_static as the server chooses it, to three decimals; lower for vision models."""
    memory_mb = device.memory_bytes * DRIVER_TOTAL / MIB
    fraction = round((memory_mb - reserve_mb(model, settings, memory_mb)) / memory_mb, 3)
    if not settings.is_multimodal:
        return fraction
    size = sum(weight.elements for weight in model.encoder) / VISION_PARAMETERS
    return fraction * VISION_FACTOR * max(0.8, min(1.05, 1.1 - 0.1 * size))


def terms(
    model: ModelSpec, deployment: Deployment, settings: Settings, device: DeviceSpec
) -> tuple[Term, ...] | None:
    """Where the device's memory goes besides the pools; None where the weights are not known."""
    loaded, fraction = loaded_bytes(model, deployment), settings.fraction
    if loaded is None or fraction is None:
        return None
    context = CONTEXT if settings.parallel.tp * settings.parallel.pp == 1 else CONTEXT_RANKS
    free = Estimate(
        device.memory_bytes - context.value,
        int(device.memory_bytes * (0.97 if device.memory_is_nominal else 1)) - context.high,
        device.memory_bytes - context.low,
    )
    ends = ((free.value, fraction), (free.low, fraction + 0.001), (free.high, fraction - 0.001))
    left = [int(end * max(1 - share, 0)) for end, share in ends]
    found = [
        Term("context", context, "taken before weights are loaded: driver, libraries, NCCL"),
        Term("weights", loaded, "as loaded"),
        Term(
            "headroom",
            Estimate(left[0], min(left), max(left)),
            f"{1 - fraction:.3f} of what is free before loading: activations, CUDA graphs",
        ),
    ]
    if settings.is_multimodal and settings.release.vision_cache_mb:
        held = Estimate.exact(settings.release.vision_cache_mb * MIB)
        found.append(Term("images", held, "cache of image embeddings"))
    return tuple(found)


def loaded_bytes(model: ModelSpec, deployment: Deployment) -> Estimate | None:
    """Bytes after loading on the fullest device; None where parameters or format are unknown."""
    held = stored_weights(model, deployment)
    return None if held is None else Estimate(*(int(held * factor) for factor in LOADED))


def left(device: DeviceSpec, taken: Iterable[Term]) -> Estimate:
    """What the terms leave of the device's memory; the range adds up all their ends."""
    taken = tuple(taken)
    low = int(device.memory_bytes * (0.97 if device.memory_is_nominal else 1))
    ends = (
        device.memory_bytes - sum(term.bytes.value for term in taken),
        low - sum(term.bytes.high for term in taken),
        device.memory_bytes - sum(term.bytes.low for term in taken),
    )
    return Estimate(*(max(end, 0) for end in ends))
