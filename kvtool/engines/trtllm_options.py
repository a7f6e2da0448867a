"""TensorRT-LLM's releases and options, and the settings that a deployment comes to."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvtool.dtype import KVFormat, kv_format, load_dtype
from kvtool.engines.base import Deployment, Option, parse_options, share, whole
from kvtool.errors import UsageError
from kvtool.model.spec import Index, Latent, ModelSpec, Parallel


@dataclass(frozen=True, slots=True)
class Release:
    """Rules of one release. `rounds_up`: a pool's last block may hang over the budget."""

    version: str
    rounds_up: bool


# Sources, tensorrt_llm/_torch/pyexecutor: `resource_manager.py` (calculate_max_num_blocks rounds
# up before 1.3, logs of 2025 agree) and `_util.py` (CacheCost) of the repository.
RELEASES = (Release("1.0.0", rounds_up=True), Release("1.3.0", rounds_up=False))
NEWEST = "1.2.1"


def windows(text: str) -> tuple[int, ...]:
    """Windows of the layers in turn, as in `max_attention_window`: 128,131072."""
    try:
        found = tuple(int(part) for part in text.strip("[] ").split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise ValueError("whole numbers of tokens with commas between: 128,131072")
    return found


OPTIONS: dict[str, Option] = {
    "free_gpu_memory_fraction": Option(share, "share of the memory that is free after a dry run"),
    "tokens_per_block": Option(whole(1, 1024), "tokens per block, a power of two"),
    "max_tokens": Option(whole(1), "upper bound of the pool in tokens"),
    "max_batch_size": Option(whole(1, 1 << 20), "requests that run at once"),
    "max_num_tokens": Option(whole(1), "tokens of one step"),
    "max_attention_window": Option(windows, "windows of the layers, repeated"),
}
FRACTION, BLOCK, BATCH, STEP_TOKENS = 0.9, 32, 2048, 8192
SPARSE_BLOCK = 64
CACHE_DTYPES = ("bfloat16", "float16", "float32", "fp8_e4m3", "nvfp4")


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides blocks and pools, with every default filled in."""

    release: Release
    kv: KVFormat
    parallel: Parallel
    fraction: float
    tokens_per_block: int
    max_tokens: int | None
    max_batch_size: int
    batch_is_given: bool
    max_num_tokens: int
    attention_window: tuple[int, ...] | None

    def shown(self) -> dict[str, object]:
        """What results name as the settings they hold for."""
        return {
            "free_gpu_memory_fraction": self.fraction,
            "tokens_per_block": self.tokens_per_block,
            "max_batch_size": self.max_batch_size,
            "max_num_tokens": self.max_num_tokens,
            "max_attention_window": self.attention_window,
        }


def find_release(version: str | None) -> tuple[str, Release]:
    """The version as a full name and the release whose rules it follows, the newest when None.

    Raises UsageError for what is no version, or older than the table.

    >>> find_release("1.2")[1].version
    '1.0.0'
    """
    text = NEWEST if version is None else version.strip().removeprefix("v")
    parts = re.fullmatch(
        r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:(?:rc|\.post|\+)[\w.]{1,20})?", text
    )
    if parts is None:
        raise UsageError(f"'{version}' is not a TensorRT-LLM version", "write trtllm@1.2.1")
    number = tuple(int(part or 0) for part in parts.groups())
    older = [r for r in RELEASES if tuple(map(int, r.version.split("."))) <= number]
    if not older:
        raise UsageError(
            f"the rules of TensorRT-LLM {text} are not known",
            f"known from {RELEASES[0].version}, its PyTorch backend",
        )
    return text, older[-1]


def settle(
    model: ModelSpec,
    deployment: Deployment,
    release: Release,
    batch_size: int,
    fraction: float | None,
) -> Settings:
    """Every setting of a deployment, defaults of the LLM API filled in.

    `max_batch_size` of a model with recurrent states is the batch asked for: states of the
    default 2,048 requests are reserved at start and fit no device.
    """
    given = parse_options(deployment.options, OPTIONS, "trtllm")
    if deployment.parallel.dcp > 1:
        raise UsageError(
            "decode-context parallelism is not covered by the trtllm adapter yet",
            "leave --dcp at 1, or use --engine vllm",
        )
    states = set(model.states())
    sparse = any(isinstance(s, Index) for s in states) and any(
        isinstance(s, Latent) for s in states
    )
    block = given.get("tokens_per_block", SPARSE_BLOCK if sparse else BLOCK)
    assert isinstance(block, int)
    if block & (block - 1):
        raise UsageError(f"tokens_per_block {block} is not a power of two", "use 16, 32, 64 or 128")
    keeps_states = any(state.kind in ("recurrent", "conv") for state in states)
    window = given.get("max_attention_window")
    return Settings(
        release=release,
        kv=_kv(model, deployment),
        parallel=deployment.parallel,
        fraction=fraction or float(str(given.get("free_gpu_memory_fraction", FRACTION))),
        tokens_per_block=block,
        max_tokens=_whole(given.get("max_tokens")),
        max_batch_size=_whole(given.get("max_batch_size"))
        or (batch_size if keeps_states else BATCH),
        batch_is_given="max_batch_size" in given,
        max_num_tokens=_whole(given.get("max_num_tokens")) or STEP_TOKENS,
        attention_window=window if isinstance(window, tuple) else None,
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _kv(model: ModelSpec, deployment: Deployment) -> KVFormat:
    sides = [side or deployment.kv_dtype for side in (deployment.k_dtype, deployment.v_dtype)]
    names = [load_dtype(model.dtype if side == "auto" else side).name for side in sides]
    if names[0] != names[1]:
        raise UsageError(
            "TensorRT-LLM stores keys and values in one type",
            "give --kv-dtype instead of two types",
        )
    if names[0] not in CACHE_DTYPES:
        raise UsageError(
            f"TensorRT-LLM has no {names[0]} cache", f"its types here: {', '.join(CACHE_DTYPES)}"
        )
    return kv_format(names[0])
