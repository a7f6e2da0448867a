"""vLLM: a start's settings as a case to size, and a finding for each of its figures.

Versions differ in their rules; `vllm_figures` holds what each figure is predicted from.
"""

from __future__ import annotations

from dataclasses import replace

from kvtool.auditing.findings import (
    Finding,
    Overrides,
    Prediction,
    best,
    judge,
    model_of,
    unknown,
    unknown_model,
    whole,
)
from kvtool.auditing.vllm_figures import OF_ALL_RANKS, PREDICTORS, Case
from kvtool.device import DeviceSpec
from kvtool.dtype import ALIASES
from kvtool.engines.base import Deployment
from kvtool.engines.logs import GIB, Figure, Start
from kvtool.engines.vllm_options import OPTIONS
from kvtool.engines.vllm_releases import RELEASES, find_release
from kvtool.errors import KvtoolError
from kvtool.model.spec import ModelSpec, Parallel, Recurrent

NAMES = ("model", "model_tag", "served_model_name")
# The log's spelling of the options that kvtool's adapter takes.
SWITCHES = {"True": "true", "False": "false"}
CANNOT = "the settings cannot be used"


def audit(start: Start, overrides: Overrides) -> list[Finding]:
    """A finding for every figure of `start`.

    A log without a version is held against the rules of every release, the newest first; those
    that explain most of its figures are taken.
    """
    model = model_of(start, overrides, NAMES)
    if model is None:
        return [_bookkeeping(figure, start) for figure in start.figures]
    candidates, note = _versions(start, overrides)
    return best(
        _audit(start, model, version, replace(overrides, options=options), note)
        for version in candidates
        for options in _modes(start, model, version, overrides)
    )


def _modes(
    start: Start, model: ModelSpec, version: str, overrides: Overrides
) -> list[dict[str, str]]:
    """Options of rival explanations: where prefixes of a hybrid are reused, older releases keep its
    states in one of two ways that the log does not name."""
    given = overrides.options_of(OPTIONS)
    recurrent = any(isinstance(state, Recurrent) for state in model.states())
    reuses = start.settings.get("enable_prefix_caching") == "True"
    named = "mamba_cache_mode" in {**start.settings, **given}
    release = find_release(version)[1]
    if not (recurrent and reuses) or named or release.hybrid_prefix_caching:
        return [given]
    return [given | {"mamba_cache_mode": mode} for mode in ("align", "all")]


def _versions(start: Start, overrides: Overrides) -> tuple[list[str], str]:
    """Versions whose rules may hold, the newest first, and what to say about it."""
    newest_first = [release.version for release in reversed(RELEASES)]
    version = overrides.version or start.settings.get("version")
    if start.settings.get("v0") == "true":
        return newest_first[-1:], "V0 engine: rules of"
    if version is None:
        return newest_first, "no version in the log: rules of"
    try:
        return [find_release(version)[0]], ""
    except KvtoolError:
        return newest_first, f"rules of version '{version[:40]}' are not known: those of"


def _audit(
    start: Start, model: ModelSpec, version: str, overrides: Overrides, note: str
) -> list[Finding]:
    try:
        case = _case(start, model, version, overrides)
        case.reserve()
    except KvtoolError as error:
        return [unknown(figure, f"{CANNOT}: {error}") for figure in start.figures]
    findings = []
    for figure in start.figures:
        found = _finding(case, figure)
        if note and found.prediction is not None:
            found = replace(found, why=f"{found.why} ({note} {version})")
        findings.append(found)
    return findings


def _case(start: Start, model: ModelSpec, version: str, overrides: Overrides) -> Case:
    """The settings of a start; what the log does not say is as vLLM's server defaults."""
    said = {**start.settings, **overrides.settings}
    parallel = Parallel(
        tp=whole(said.get("tensor_parallel_size")) or 1,
        pp=whole(said.get("pipeline_parallel_size")) or 1,
        dcp=whole(said.get("decode_context_parallel_size")) or 1,
    )
    context = whole(said.get("max_model_len")) or whole(said.get("max_seq_len"))
    if context is None:
        context = model.max_context or 8192
    dtype = _dtype(said.get("dtype"))
    kv = said.get("kv_cache_dtype", "auto").lower()
    if kv == "auto" and dtype is not None and dtype != model.dtype:
        kv = dtype
    weights = "auto"
    if said.get("quantization") == "fp8" and model.quantization is None:
        weights = "fp8"
    elif dtype == "float32" and model.quantization is None:
        weights = dtype
    deployment = Deployment(
        parallel=parallel,
        kv_dtype=kv,
        dtype=weights,
        mtp="mtp" in said.get("speculative_config", "").lower(),
        options={**_options(said), **overrides.options_of(OPTIONS)},
    )
    exact = _fraction(said.get("gpu_memory_utilization"))
    return Case(
        start=start,
        model=model,
        version=version,
        context=context,
        deployment=deployment,
        device=_device(said, overrides.device),
        fraction=exact or _fraction(said.get(ROUNDED)),
        fraction_half=0.0 if exact else 0.005,
        packing=_packing(said, model),
    )


ROUNDED = "gpu_memory_utilization_rounded"


def _packing(said: dict[str, str], model: ModelSpec) -> str | None:
    """A quantisation that the log names and the model has not; fp8 at load time is known."""
    named = said.get("quantization", "none").lower()
    if named in ("none", "fp8") or model.quantization is not None:
        return None
    return named


def _fraction(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value <= 1 else None


def _dtype(text: str | None) -> str | None:
    name = (text or "auto").removeprefix("torch.").lower()
    return None if name == "auto" else ALIASES.get(name, name)


def _options(said: dict[str, str]) -> dict[str, str]:
    """The settings that are options of the adapter; None and auto are left to its defaults."""
    found = {}
    for name in OPTIONS:
        value = said.get(name)
        value = SWITCHES.get(value or "", value)
        if value in (None, "", "None", "auto") or name == "gpu_memory_utilization":
            continue
        found[name] = str(value)
    return found


def _device(said: dict[str, str], device: DeviceSpec | None) -> DeviceSpec | None:
    """The device as the user names it, with the total memory that the log prints."""
    try:
        total = int(float(said["device_memory_gib"]) * GIB)
    except (KeyError, ValueError, OverflowError):
        return device
    if total <= 0:
        return device
    if device is None:
        return DeviceSpec("of the log", (), "", total, total, None, {}, None, {})
    nominal = max(total, device.memory_nominal_bytes)
    return replace(device, memory_usable_bytes=total, memory_nominal_bytes=nominal)


def _finding(case: Case, figure: Figure) -> Finding:
    predict = PREDICTORS.get(figure.name)
    if predict is None:
        return unknown(figure, "no rule for this figure")
    try:
        found = predict(case, figure)
    except KvtoolError as error:
        return unknown(figure, f"{CANNOT}: {error}")
    if isinstance(found, str):
        return unknown(figure, found)
    judged = judge(figure, found, mixed=case.is_parallel and figure.name in OF_ALL_RANKS)
    return _doubt(case, judged) if judged.verdict == "differ" else judged


def _doubt(case: Case, finding: Finding) -> Finding:
    """A difference is no fault where the log leaves out the setting that decides the figure."""
    assert finding.prediction is not None
    name = finding.figure.name
    deciding: tuple[str, ...] = ()
    if finding.prediction.is_estimate and name != "weights":
        deciding = DECIDING
    elif name == "cpu_blocks":
        deciding = ("swap_space",)
    said = {**case.start.settings, **case.deployment.options}
    left_out = [setting for setting in deciding if setting not in said]
    if not left_out:
        return finding
    return unknown(finding.figure, f"the log does not say {' and '.join(left_out)}")


# Settings that the estimate of activations hangs on.
DECIDING = ("max_num_batched_tokens", "max_num_seqs")


def _bookkeeping(figure: Figure, start: Start) -> Finding:
    """What can be said without a model: concurrency is tokens over context, where it is."""
    tokens = [f for f in start.figures if f.name == "tokens" and f.line <= figure.line]
    context = whole(figure.about.get("context"))
    if figure.name == "concurrency" and tokens and context:
        value = tokens[-1].value / context
        bounds = Prediction(value, value, value + 1 / context, "tokens printed above / context")
        found = judge(figure, bounds)
        if found.verdict == "agree":
            return found
    return unknown(figure, unknown_model(start, NAMES))
