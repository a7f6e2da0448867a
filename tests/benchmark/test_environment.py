"""What a record says about the machine, with NVML, without it, and with a broken one."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from kvtool.benchmark.environment import describe, l2_bytes, state

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class NVMLError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch):
    """A driver that reports fixed figures and a power cap."""
    module = ModuleType("pynvml")
    module.NVMLError = NVMLError
    module.NVML_CLOCK_SM, module.NVML_CLOCK_MEM, module.NVML_TEMPERATURE_GPU = 1, 2, 0
    module.nvmlClocksEventReasonSwPowerCap = 4
    module.nvmlClocksEventReasonHwSlowdown = 8
    module.nvmlInit = lambda: None
    module.nvmlDeviceGetHandleByUUID = lambda uuid: uuid
    module.nvmlDeviceGetClockInfo = lambda handle, clock: {1: 1755, 2: 3201}[clock]
    module.nvmlDeviceGetPowerUsage = lambda handle: 650_000
    module.nvmlDeviceGetTemperature = lambda handle, sensor: 61
    module.nvmlDeviceGetCurrentClocksEventReasons = lambda handle: 4
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="abc")
    )
    return module


def test_nvml_figures_come_in_base_units(nvml):
    found = state(GPU)

    assert found.sm_clock_hz == 1_755_000_000
    assert found.memory_clock_hz == 3_201_000_000
    assert found.power_w == 650
    assert found.temperature_c == 61
    assert found.throttle_reasons == ("power cap",)


def test_a_device_that_does_not_answer_has_no_state(nvml):
    def refuse(handle):
        raise NVMLError

    nvml.nvmlDeviceGetPowerUsage = refuse

    assert state(GPU) is None


def test_without_nvml_there_is_no_state(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert state(GPU) is None


def test_a_cpu_has_no_state_and_asks_no_driver(nvml):
    nvml.nvmlInit = lambda: pytest.fail("the driver was asked")

    assert state(CPU) is None


def test_a_description_names_device_versions_and_date():
    found = describe(CPU)

    assert found["device"]
    assert found["versions"]["torch"] == torch.__version__
    assert found["date"].endswith("+00:00")
    assert l2_bytes(CPU) > 0
