"""vLLM's options as its server spells them, and the rules that a deployment comes to with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvtool.device import DeviceSpec
from kvtool.dtype import KVFormat, kv_format, load_dtype
from kvtool.engines.base import Deployment, Option, choice, parse_options, share, switch, whole
from kvtool.engines.vllm_releases import GIB, Release
from kvtool.engines.vllm_specs import Mode, Rules, sparse_index
from kvtool.errors import UsageError
from kvtool.kvcache import encoder_tokens
from kvtool.model.spec import Index, Latent, ModelSpec, Recurrent

_STATE_DTYPES = ("auto", "float32", "float16", "bfloat16")

OPTIONS: dict[str, Option] = {
    "block_size": Option(whole(1, 1 << 16), "tokens per block"),
    "max_num_batched_tokens": Option(whole(1), "tokens of one step"),
    "max_num_seqs": Option(whole(1, 1 << 20), "sequences of one step"),
    "enforce_eager": Option(switch, "no CUDA graphs"),
    "async_scheduling": Option(switch, "two steps in flight"),
    "disable_hybrid_kv_cache_manager": Option(switch, "windows stored in full"),
    "enable_prefix_caching": Option(switch, "reuse of prefixes"),
    "mamba_cache_mode": Option(choice("none", "align", "all"), "recurrent states kept"),
    "mamba_block_size": Option(whole(1, 1 << 24), "chunk of recurrent kernels"),
    "mamba_cache_dtype": Option(choice(*_STATE_DTYPES), "type of convolution tails"),
    "mamba_ssm_cache_dtype": Option(choice(*_STATE_DTYPES), "type of recurrent states"),
    "gdn_prefill_backend": Option(choice("auto", "triton", "flashinfer"), "delta-net kernels"),
    "num_speculative_tokens": Option(whole(0, 1024), "tokens a drafter proposes"),
    "max_num_encoder_input_tokens": Option(whole(1), "encoder tokens of one step"),
    "language_model_only": Option(switch, "vision and audio towers are not loaded"),
    "gpu_memory_utilization": Option(share, "fraction of the device's memory"),
    "kv_cache_memory_bytes": Option(whole(1, 1 << 60), "the pool itself"),
    "num_gpu_blocks_override": Option(whole(1), "blocks of the pool"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The rules of specifications, and what the memory estimate needs beside them."""

    rules: Rules
    max_num_batched_tokens: int
    max_num_seqs: int
    enforce_eager: bool
    language_model_only: bool
    fraction: float | None
    pool_bytes: int | None
    num_blocks: int | None
    warnings: tuple[str, ...]

    def shown(self) -> dict[str, object]:
        """What results name as the settings they hold for."""
        rules = self.rules
        return {
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_num_seqs": self.max_num_seqs,
            "enforce_eager": self.enforce_eager,
            "disable_hybrid_kv_cache_manager": not rules.hybrid,
            "mamba_cache_mode": rules.mode,
            "num_speculative_tokens": rules.speculative_tokens,
            "in_flight_tokens": rules.in_flight,
        }


def settle(
    model: ModelSpec,
    context: int,
    deployment: Deployment,
    release: Release,
    device: DeviceSpec | None,
) -> Settings:
    """Every setting of a deployment, defaults of vLLM's server filled in."""
    given = parse_options(deployment.options, OPTIONS, "vllm")
    seqs, batched = _batch_defaults(device, release)
    seqs = _integer(given, "max_num_seqs", seqs)
    batched = _integer(given, "max_num_batched_tokens", min(batched, seqs * context))
    if "max_num_seqs" not in given:
        seqs = min(seqs, batched)
    kv, warnings = _kv(model, deployment)
    mode = _mode(model, given, release)
    delta = _delta_backend(model, given, release, device)
    aligned = mode == "align"
    encoder = _integer(given, "max_num_encoder_input_tokens", 0)
    rules = Rules(
        release=release,
        context_tokens=context,
        parallel=deployment.parallel,
        kv=kv,
        block_size=_integer(given, "block_size", _block_size(model, kv, device)),
        in_flight=batched * _batches(given, deployment, release),
        retained=_retained(model, given, deployment, release),
        encoder_tokens=encoder or encoder_tokens(model, deployment.encoder_tokens),
        hybrid=_hybrid(model, given, deployment),
        mode=mode,
        speculative_tokens=_integer(given, "num_speculative_tokens", 0),
        checkpoints=int(
            aligned
            and (
                model.model_type in release.checkpoint_types
                or delta == "flashinfer"
                or _runs_flash_kda(model, release, device)
            )
        ),
        block_multiple=64 if aligned and delta == "flashinfer" else 1,
        state_chunk=_optional(given, "mamba_block_size"),
        conv_dtype=_state_dtype(given, "mamba_cache_dtype"),
        ssm_dtype=_state_dtype(given, "mamba_ssm_cache_dtype"),
    )
    fraction = given.get("gpu_memory_utilization")
    return Settings(
        rules=rules,
        max_num_batched_tokens=batched,
        max_num_seqs=seqs,
        enforce_eager=bool(given.get("enforce_eager", False)),
        language_model_only=bool(given.get("language_model_only", False)),
        fraction=fraction if isinstance(fraction, float) else None,
        pool_bytes=_optional(given, "kv_cache_memory_bytes"),
        num_blocks=_optional(given, "num_gpu_blocks_override"),
        warnings=warnings + _device_warnings(device),
    )


def _device_warnings(device: DeviceSpec | None) -> tuple[str, ...]:
    if device is None or device.vendor == "nvidia":
        return ()
    return (f"vLLM's defaults and memory are known on NVIDIA devices: {device.name} is a guess",)


def _integer(given: Mapping[str, object], name: str, default: int) -> int:
    value = given.get(name)
    return value if isinstance(value, int) else default


def _optional(given: Mapping[str, object], name: str) -> int | None:
    value = given.get(name)
    return value if isinstance(value, int) else None


def _state_dtype(given: Mapping[str, object], name: str) -> str | None:
    value = given.get(name)
    return value if isinstance(value, str) and value != "auto" else None


def _batch_defaults(device: DeviceSpec | None, release: Release) -> tuple[int, int]:
    """Sequences and tokens of a step on the server, by the device's memory (arg_utils.py).

    Without a device those of a large one (70 GiB or more, no A100).
    """
    if device is None:
        return 1024, 8192
    if release.large_device_bytes and device.memory_bytes >= release.large_device_bytes:
        return 1024, 16384
    is_large = device.memory_bytes >= 70 * GIB and device.compute_capability not in ("8.0", "12.1")
    return (1024, 8192) if is_large else (256, 2048)


def _batches(given: Mapping[str, object], deployment: Deployment, release: Release) -> int:
    """Steps whose tokens hold their blocks at once: one for each pipeline stage, one more when
    the scheduler runs ahead; a single one before the release that counts them."""
    if not release.batches_in_flight:
        return 1
    return deployment.parallel.pp + bool(given.get("async_scheduling", True))


def _retained(
    model: ModelSpec, given: Mapping[str, object], deployment: Deployment, release: Release
) -> int:
    """Tokens a window keeps for several MTP modules in a row, which read ahead one each (0.33)."""
    tokens = _integer(given, "num_speculative_tokens", 0)
    modules = len(model.mtp_layers) if deployment.mtp else 0
    return tokens - 1 if release.batches_in_flight and min(modules, tokens) > 1 else 0


def _hybrid(model: ModelSpec, given: Mapping[str, object], deployment: Deployment) -> bool:
    """Whether windows and chunks free what they passed: not when switched off, nor for chunks
    with a drafter. UsageError for windows under decode-context parallelism, which vLLM lacks."""
    kinds = {state.kind for state in model.states()}
    if "sliding" in kinds and deployment.parallel.dcp > 1:
        raise UsageError(
            f"vLLM has no decode-context parallelism for the sliding windows of {model.name}",
            "leave --dcp at 1",
        )
    drafted = deployment.draft is not None or (deployment.mtp and bool(model.mtp_layers))
    off = given.get("disable_hybrid_kv_cache_manager", False)
    return not off and not (drafted and "chunked" in kinds)


def _kv(model: ModelSpec, deployment: Deployment) -> tuple[KVFormat, tuple[str, ...]]:
    """The cache dtype: as given, fp8 for sparse latent models, else the model's own."""
    k = deployment.k_dtype or deployment.kv_dtype
    v = deployment.v_dtype or deployment.kv_dtype
    if (load_dtype(k) if k != "auto" else k) != (load_dtype(v) if v != "auto" else v):
        raise UsageError(f"vLLM stores keys and values alike, not {k} and {v}", "give --kv-dtype")
    if k != "auto":
        return kv_format(k), ()
    if sparse_index(model) is not None:
        note = "vLLM documents fp8 as cache default of sparse latent models; --kv-dtype overrides"
        return kv_format("fp8"), (note,)
    return kv_format(model.dtype), ()


def _block_size(model: ModelSpec, kv: KVFormat, device: DeviceSpec | None) -> int:
    """16; 128 with an index beside plain attention; with latent layers what their kernels take:
    FlashAttention 16 (16-bit), FlashMLA 64 (fp8 and sparse), FlashInfer on Blackwell 32."""
    kinds = {type(state) for state in model.states()}
    if Latent not in kinds:
        return 128 if Index in kinds else 16
    if sparse_index(model) is not None:
        return 64
    major = (device.compute_capability or "9.0").split(".")[0] if device else "9"
    if major == "10":
        return 32
    return 64 if kv.k.name.startswith("fp8") and major == "9" else 16


def _mode(model: ModelSpec, given: Mapping[str, object], release: Release) -> Mode:
    """How many recurrent states a request keeps: one, two for prefix caching, or one per block."""
    recurrent = any(isinstance(state, Recurrent) for state in model.states())
    hybrid = recurrent and any(not isinstance(state, Recurrent) for state in model.states())
    caching = given.get("enable_prefix_caching")
    mode = given.get("mamba_cache_mode")
    if mode == "all" and release.hybrid_prefix_caching:
        raise UsageError(
            "mamba_cache_mode 'all' is gone from this vLLM", "use none or align, or vllm@0.22.1"
        )
    if mode in ("none", "align", "all"):
        return mode
    if not recurrent or caching is False:
        return "none"
    if caching is True and not release.hybrid_prefix_caching:
        raise UsageError(
            "enable_prefix_caching alone does not decide the states this vLLM keeps",
            "add --engine-opt mamba_cache_mode=align or all, as the engine logs it",
        )
    return "align" if caching is True or (hybrid and release.hybrid_prefix_caching) else "none"


def _delta_backend(
    model: ModelSpec, given: Mapping[str, object], release: Release, device: DeviceSpec | None
) -> str | None:
    """Kernels of gated delta nets where they decide about checkpoints: FlashInfer's on Hopper and
    Blackwell by default, Triton's where no device is named; None for other models."""
    if model.model_type not in release.delta_types:
        return None
    choice_ = given.get("gdn_prefill_backend", "auto")
    if choice_ != "auto":
        return str(choice_)
    return "flashinfer" if _is_hopper_or_later(device) else "triton"


def _runs_flash_kda(model: ModelSpec, release: Release, device: DeviceSpec | None) -> bool:
    """Whether FlashKDA serves Kimi delta attention with a bounded gate (Kimi K3): it exports a
    checkpoint and asks for no other block size (kimi_k3/nvidia/kda.py)."""
    return model.model_type in release.bounded_kda_types and _is_hopper_or_later(device)


def _is_hopper_or_later(device: DeviceSpec | None) -> bool:
    """Whether a named device is Hopper or Blackwell; False without one."""
    capability = device.compute_capability or "" if device else ""
    return capability.split(".")[0] in ("9", "10", "12")
