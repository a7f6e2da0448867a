"""vLLM's rules and constants by release: what changed, when, and where that was read or measured.

A release holds for itself and for every later version up to the next one in the table. Rules were
read in the source of the two releases marked so and hold for others as far as logs show. Constants
of the memory estimate are fitted on runs; they carry the range within which they are known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kvtool.errors import UsageError

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Release:
    """Rules of one vLLM release.

    `tokens_follow_concurrency`: "GPU KV cache size" is concurrency x max_model_len; before that
    num_blocks // groups x the smallest block. `batches_in_flight`: a window is extended by the
    batches that run at once; before that by one batch. `hybrid_prefix_caching`: on by default for
    models with recurrent layers. `pads_pages`: a page that does not divide the largest is padded;
    before that it is an error. `graphs_subtracted`: estimated CUDA graphs leave the pool.
    `splits_segments`: the allocator of its torch gives rests above 1 MiB to other tensors.
    `large_device_bytes`: from this much memory on a server batches 16,384 tokens by default.
    `window_extra`: tokens a model type's window is longer. `speculative_conv_types`: convolution
    tails grow with speculative tokens. `checkpoint_types`: align mode keeps one state more;
    `delta_types`: likewise, with FlashInfer's kernels, `bounded_kda_types` with FlashKDA.
    `shares_indexes`: a sparse latent layer that reads another one's index stores none. `unserved`:
    model types that vLLM has no class for.
    """

    version: str
    tokens_follow_concurrency: bool
    batches_in_flight: bool
    hybrid_prefix_caching: bool
    pads_pages: bool
    latent_block_multiple: int
    graphs_subtracted: bool
    splits_segments: bool
    default_fraction: float
    large_device_bytes: int | None
    window_extra: tuple[tuple[str, int], ...]
    speculative_conv_types: tuple[str, ...]
    checkpoint_types: tuple[str, ...]
    delta_types: tuple[str, ...]
    bounded_kda_types: tuple[str, ...]
    has_int4: bool
    shares_indexes: bool
    unserved: tuple[str, ...]


# Gated delta nets in Qwen's class; Olmo Hybrid's own class exports no checkpoints.
_DELTA = (
    "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "minicpmv4_6",
)  # fmt: skip
_SPECULATIVE_MAMBA2 = ("nemotron_h", "mamba2", "granitemoehybrid", "falcon_h1", "zamba2")
_MAMBA2 = ("mamba2", "nemotron_h", "bamba", "granitemoehybrid", "falcon_h1", "zamba2")
# No class, and none of transformers' that vLLM could run instead (models/registry.py).
_UNSERVED = ("rwkv", "rwkv5", "rwkv6", "rwkv7", "t5", "mt5", "umt5", "mllama")

# Sources: 0.22.1 and 0.33.0, the `vllm` package: v1/kv_cache_interface.py,
# v1/core/kv_cache_utils.py (0.33: kv_cache_planning.py), platforms/interface.py,
# engine/arg_utils.py, config/vllm.py, models/*.py. 0.11 to 0.20: start-up logs of those versions.
_V0_11 = Release(
    version="0.11.0",
    tokens_follow_concurrency=False,
    batches_in_flight=False,
    hybrid_prefix_caching=False,
    pads_pages=False,
    latent_block_multiple=1,
    graphs_subtracted=False,
    splits_segments=True,
    default_fraction=0.9,
    large_device_bytes=None,
    window_extra=(),
    speculative_conv_types=(*_DELTA, "olmo_hybrid", "nemotron_h", "mamba2"),
    checkpoint_types=(),
    delta_types=(),
    bounded_kda_types=(),
    has_int4=False,
    shares_indexes=False,
    unserved=_UNSERVED,
)
# The rules of 0.11; the memory of sampling changed (`vllm_memory.CONSTANTS`).
_V0_17 = replace(_V0_11, version="0.17.0")
_V0_21 = replace(
    _V0_17,
    version="0.21.0",
    tokens_follow_concurrency=True,
    graphs_subtracted=True,
    splits_segments=False,
    default_fraction=0.92,
    unserved=(*_UNSERVED, "kimi_k3", "minimax_m3", "step3p7"),
)
_V0_33 = replace(
    _V0_21,
    version="0.33.0",
    batches_in_flight=True,
    hybrid_prefix_caching=True,
    pads_pages=True,
    latent_block_multiple=128,
    large_device_bytes=160 * GIB,
    window_extra=(("cohere2", 1),),
    speculative_conv_types=(
        *_DELTA,
        *_SPECULATIVE_MAMBA2,
        "olmo_hybrid",
        "kimi_linear",
        "kimi_k3",
    ),
    checkpoint_types=_MAMBA2,
    delta_types=_DELTA,
    bounded_kda_types=("kimi_k3",),
    has_int4=True,
    shares_indexes=True,
    unserved=(*_UNSERVED, "minimax", "minimax_text_01", "minimax_m1", "bamba", "plamo2"),
)
RELEASES = (_V0_11, _V0_17, _V0_21, _V0_33)
NEWEST = "0.33.0"
CHECKED = ("0.22.1", "0.33.0")


def find_release(version: str | None) -> tuple[str, Release]:
    """The version as a full name and the release whose rules it follows.

    None is the newest known. Raises UsageError for what is no version, or older than the table.

    >>> find_release("0.22.1")[1].version
    '0.21.0'
    """
    text = NEWEST if version is None else version.strip().removeprefix("v")
    suffix = r"(?:(?:a|b|rc|\.post|\.dev|\+)[\w.+]{1,40})?"
    parts = re.fullmatch(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?" + suffix, text)
    if parts is None:
        raise UsageError(f"'{version}' is not a vLLM version", "write vllm@0.22.1")
    number = tuple(int(part or 0) for part in parts.groups())
    older = [release for release in RELEASES if _number(release) <= number]
    if not older:
        raise UsageError(
            f"the rules of vLLM {text} are not known",
            f"known from {RELEASES[0].version}; checked against its code: {', '.join(CHECKED)}",
        )
    return text, older[-1]


def _number(release: Release) -> tuple[int, ...]:
    return tuple(int(part) for part in release.version.split("."))
