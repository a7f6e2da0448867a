"""Where a figure was taken: device, driver, versions, and the state of the clocks.

Clocks, power and throttle reasons come from NVML (`nvidia-ml-py`) and are None without it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtool.version import __version__

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "triton", "numpy", "transformers", "flashinfer-python", "flash-attn")
CPU_L2_BYTES = 32 << 20
"""Stands for the last-level cache of a CPU, which torch does not report."""

_THROTTLE_REASONS = {
    "nvmlClocksEventReasonSwPowerCap": "power cap",
    "nvmlClocksEventReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonSwThermalSlowdown": "thermal slowdown",
    "nvmlClocksEventReasonHwThermalSlowdown": "hardware thermal slowdown",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "power brake",
}


@dataclass(frozen=True, slots=True)
class DeviceState:
    """Clocks, power and temperature at one moment, and what holds the clocks down."""

    sm_clock_hz: int
    memory_clock_hz: int
    power_w: float
    temperature_c: int
    throttle_reasons: tuple[str, ...]


def describe(device: torch.device) -> dict[str, Any]:
    """Name, size and software of the device, as every record states them."""
    import torch

    described: dict[str, Any] = {
        "device_type": device.type,
        "kvtool": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": {name: v for name in PACKAGES if (v := _version(name))},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if device.type != "cuda":
        return described | {
            "device": _cpu_name(),
            "driver": None,
            "threads": torch.get_num_threads(),
            "l2_bytes": None,
        }
    properties = torch.cuda.get_device_properties(device)
    return described | {
        "device": properties.name,
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
    }


def l2_bytes(device: torch.device) -> int:
    """Bytes of cache that rotating inputs must exceed."""
    import torch

    if device.type != "cuda":
        return CPU_L2_BYTES
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def state(device: torch.device) -> DeviceState | None:
    """What NVML says now; None on a CPU or without `nvidia-ml-py`."""
    nvml = _nvml() if device.type == "cuda" else None
    if nvml is None:
        return None
    try:
        handle = _handle(nvml, device)
        held = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        return DeviceState(
            sm_clock_hz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1_000_000,
            memory_clock_hz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1_000_000,
            power_w=nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            temperature_c=nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            throttle_reasons=tuple(
                reason
                for name, reason in _THROTTLE_REASONS.items()
                if held & getattr(nvml, name, 0)
            ),
        )
    except nvml.NVMLError:
        return None


def _handle(nvml: Any, device: torch.device) -> Any:
    """The NVML device of a torch device, matched by UUID: the two number devices differently."""
    import torch

    uuid = torch.cuda.get_device_properties(device).uuid
    return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


def _nvml() -> Any | None:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def _driver() -> str | None:
    nvml = _nvml()
    return str(nvml.nvmlSystemGetDriverVersion()) if nvml else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    """The processor's own name on Linux, else what the platform says."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
