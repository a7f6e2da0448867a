"""SGLang's options as its server spells them, and the settings that a deployment comes to."""

from __future__ import annotations

from dataclasses import dataclass

from kvtool.device import DeviceSpec
from kvtool.dtype import KVFormat, kv_format, load_dtype
from kvtool.engines.base import Deployment, Option, choice, parse_options, share, switch, whole
from kvtool.engines.sglang_releases import (
    OVERLAPPED,
    STATE_RATIO,
    WINDOW_POOLS,
    WINDOW_RATIO,
    Release,
)
from kvtool.errors import UsageError
from kvtool.model.spec import Attention, Index, Latent, ModelSpec, Parallel

OPTIONS: dict[str, Option] = {
    "page_size": Option(whole(1, 1 << 16), "tokens per page"),
    "mem_fraction_static": Option(share, "share of the memory for weights and pools"),
    "max_total_tokens": Option(whole(1), "upper bound of the pool in tokens"),
    "max_running_requests": Option(whole(1, 1 << 20), "requests that run at once"),
    "chunked_prefill_size": Option(whole(1), "tokens of a prefill step"),
    "cuda_graph_max_bs": Option(whole(1, 1 << 16), "largest batch with a CUDA graph"),
    "swa_full_tokens_ratio": Option(share, "window tokens per full token of the pools"),
    "disable_hybrid_swa_memory": Option(switch, "windows stored in full"),
    "disable_radix_cache": Option(switch, "no reuse of prefixes"),
    "disable_overlap_schedule": Option(switch, "one batch in flight"),
    "mamba_full_memory_ratio": Option(share, "bytes of states per byte of keys and values"),
    "mamba_ssm_dtype": Option(choice("float32", "bfloat16", "float16"), "recurrent states"),
    "max_mamba_cache_size": Option(whole(1, 1 << 24), "slots of recurrent states"),
    "speculative_num_draft_tokens": Option(whole(1, 1024), "tokens a drafter proposes"),
    "language_model_only": Option(switch, "no room for images"),
}

BASE_STATES = 3
DRAFT_REQUESTS = 48
CACHE_DTYPES = ("bfloat16", "float16", "float32", "fp8_e4m3", "fp8_e5m2", "nvfp4")

# Memory in GiB below which (first row that fits): tokens of a prefill step, largest graph batch
# below tp 4 and from tp 4 on (arg_groups/memory_hook.py).
BATCHES = (
    (20, 2048, 8, 8),
    (35, 4096, 48, 160),
    (60, 4096, 32, 160),
    (90, 8192, 256, 512),
    (160, 8192, 256, 512),
    (1 << 30, 16384, 512, 512),
)
UNKNOWN_DEVICE = (4096, 160)


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides cells and pools, with every default filled in.

    `states_per_request` are the recurrent states of a running request. `raw_rows`: sparse latent
    rows in fp8 carry no scales. `tokens_limit` and `slots` are None where memory decides.
    """

    release: Release
    kv: KVFormat
    parallel: Parallel
    page_size: int
    fraction: float | None
    tokens_limit: int | None
    max_running_requests: int | None
    chunked_prefill_size: int
    graph_batch: int
    window_ratio: float
    has_window_pool: bool
    radix_cache: bool
    overlap: bool
    state_ratio: float
    state_dtype: str
    slots: int | None
    states_per_request: int
    draft_tokens: int
    raw_rows: bool
    is_multimodal: bool

    def shown(self) -> dict[str, object]:
        """What results name as the settings they hold for."""
        return {
            "page_size": self.page_size,
            "mem_fraction_static": self.fraction,
            "chunked_prefill_size": self.chunked_prefill_size,
            "cuda_graph_max_bs": self.graph_batch,
            "max_running_requests": self.max_running_requests,
            "swa_full_tokens_ratio": self.window_ratio if self.has_window_pool else None,
            "disable_radix_cache": not self.radix_cache,
        }


def settle(
    model: ModelSpec, deployment: Deployment, release: Release, device: DeviceSpec | None
) -> Settings:
    """Every setting of a deployment, defaults of SGLang's server filled in.

    Raises UsageError for options, dtypes and ranks that it has not.
    """
    given = parse_options(deployment.options, OPTIONS, "sglang")
    parallel = deployment.parallel
    if parallel.dcp > 1:
        raise UsageError(
            "decode-context parallelism is not covered by the sglang adapter yet",
            "leave --dcp at 1, or use --engine vllm",
        )
    chunk, graphs = _batches(device, parallel.tp)
    major = _major(device)
    drafts = deployment.mtp or deployment.draft is not None
    running = given.get("max_running_requests", DRAFT_REQUESTS if drafts else None)
    radix = not given.get("disable_radix_cache", False)
    overlap = not given.get("disable_overlap_schedule", False)
    copies = release.state_copies if overlap else min(release.state_copies, 1)
    states = BASE_STATES + (copies if model.model_type in OVERLAPPED else 0)
    fraction = given.get("mem_fraction_static")
    graph_batch = _whole(given.get("cuda_graph_max_bs")) or min(graphs, _whole(running) or graphs)
    return Settings(
        release=release,
        kv=_kv(model, deployment, major),
        parallel=parallel,
        page_size=_whole(given.get("page_size")) or _page(model, major),
        fraction=None if fraction is None else float(str(fraction)),
        tokens_limit=_whole(given.get("max_total_tokens")),
        max_running_requests=_whole(running),
        chunked_prefill_size=_whole(given.get("chunked_prefill_size")) or chunk,
        graph_batch=graph_batch,
        window_ratio=float(
            str(given.get("swa_full_tokens_ratio", WINDOW_RATIO.get(model.model_type, 0.8)))
        ),
        has_window_pool=model.model_type in WINDOW_POOLS
        and not given.get("disable_hybrid_swa_memory", False),
        radix_cache=radix,
        overlap=overlap,
        state_ratio=float(
            str(given.get("mamba_full_memory_ratio", STATE_RATIO.get(model.model_type, 0.9)))
        ),
        state_dtype=str(given.get("mamba_ssm_dtype", "float32")),
        slots=_whole(given.get("max_mamba_cache_size")),
        states_per_request=states if radix else 1,
        draft_tokens=(_whole(given.get("speculative_num_draft_tokens")) or 4) if drafts else 0,
        raw_rows=major >= 10,
        is_multimodal=bool(model.encoder) and not given.get("language_model_only", False),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _major(device: DeviceSpec | None) -> int:
    """The generation of an NVIDIA device: 9 is Hopper, 10 Blackwell; 9 where none is named."""
    if device is None:
        return 9
    return int((device.compute_capability or "0").split(".")[0])


def _batches(device: DeviceSpec | None, tp: int) -> tuple[int, int]:
    if device is None:
        return UNKNOWN_DEVICE
    row = next(row for row in BATCHES if device.memory_bytes < row[0] << 30)
    return row[1], row[2] if tp < 4 else row[3]


def _page(model: ModelSpec, major: int) -> int:
    """1; 64 where the default kernels need it: an index page of 64 keys for sparse latent layers,
    TensorRT-LLM's attention on data-centre Blackwell (keys and values of equal width)."""
    states = set(model.states())
    strides = [state.stride for state in states if isinstance(state, Index)]
    if strides and _is_latent(model):
        return 64 * max(strides)
    widths = [(s.head_dim, s.v_head_dim) for s in states if isinstance(s, Attention)]
    paged = _is_latent(model) or (widths and all(k == v for k, v in widths))
    return 64 if major == 10 and paged else 1


def _is_latent(model: ModelSpec) -> bool:
    return any(isinstance(state, Latent) for state in model.states())


def _kv(model: ModelSpec, deployment: Deployment, major: int) -> KVFormat:
    """Cache formats: the model's type by default; sparse latent models fp8 on Blackwell."""
    sides = [side or deployment.kv_dtype for side in (deployment.k_dtype, deployment.v_dtype)]
    sparse = _is_latent(model) and any(isinstance(s, Index) for s in model.states())
    auto = "fp8_e4m3" if sparse and major >= 10 else model.dtype
    names = [load_dtype(auto if side == "auto" else side).name for side in sides]
    if names[0] != names[1]:
        raise UsageError(
            "SGLang stores keys and values in one type", "give --kv-dtype instead of two types"
        )
    if names[0] not in CACHE_DTYPES:
        raise UsageError(
            f"SGLang has no {names[0]} cache", f"its types here: {', '.join(CACHE_DTYPES)}"
        )
    return kv_format(names[0])
