"""The kernels compile for GPUs that are not here, within what those GPUs have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SHARED_BYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
"""Shared memory that a program can have, by compute capability (CUDA programming guide)."""


@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_kernels_compile_within_the_resources_of(capability):
    pytest.importorskip("triton")
    script = Path(__file__).with_name("compile_offline.py")
    environment = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}

    run = subprocess.run(
        [sys.executable, "-P", str(script), str(capability)],
        capture_output=True,
        text=True,
        env=environment,
    )

    assert run.returncode == 0, run.stderr[-2000:]
    kernels = [json.loads(line) for line in run.stdout.splitlines()]
    names = {"prefill_kernel", "decode_kernel", "merge_kernel"}
    assert {k["kernel"] for k in kernels} == names | (
        {"hopper_kernel"} if capability == 90 else set()
    )
    assert all(k["shared"] <= SHARED_BYTES[capability] for k in kernels)
    assert all(k["spilled"] <= 64 for k in kernels)
