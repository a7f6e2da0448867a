"""Compiles the Triton kernels for a GPU that is not there: `compile_offline.py CAPABILITY`.

Runs the launchers on CPU tensors with a driver that only names its target, and prints a JSON
line per kernel: name, shared memory, registers and spills, as the assembler reports them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kvtool.kernels import flash_decode, flash_prefill, launch, load, paths
from kvtool.kernels.rope import from_parameters

CAPABILITY = int(sys.argv[1])
COMPILE = JITFunction.run


class Driver:
    """As much of a driver as compiling needs."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", CAPABILITY, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def is_active(self) -> bool:
        return True


def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
    """Stands for a launch."""
    kernel = COMPILE(self, *args, grid=grid, warmup=True, **options)
    row = {"kernel": self.fn.__name__, "shared": kernel.metadata.shared} | usage(kernel)
    print(json.dumps(row))
    return kernel


def usage(kernel: Any) -> dict[str, int]:
    """Registers and spilled bytes of a compiled kernel."""
    ptxas = get_ptxas(CAPABILITY).path
    target = f"--gpu-name=sm_{CAPABILITY}{'a' if CAPABILITY >= 90 else ''}"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(kernel.asm["ptx"])
        command = [ptxas, "-v", target, source, "-o", source.with_suffix(".cubin")]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    spills = re.search(r"(\d+) bytes spill stores", done.stderr)
    registers = re.search(r"Used (\d+) registers", done.stderr)
    assert spills
    assert registers
    return {"registers": int(registers[1]), "spilled": int(spills[1])}


def attend(
    queries: int,
    block: int,
    doc: int,
    kv_dtype: torch.dtype = torch.bfloat16,
    dim: int = 128,
    **options: Any,
) -> None:
    """One call over 4096 tokens with the heads of llama-3-8b."""
    tokens, options = 4096, {"path": "triton"} | options
    q = torch.empty(2, queries, 32, dim, dtype=torch.bfloat16)
    if block:
        k = torch.empty(2 * tokens // block, block, 8, dim, dtype=kv_dtype)
        options["block_table"] = torch.arange(len(k), dtype=torch.int32).view(2, -1)
    else:
        k = torch.empty(2, tokens, 8, dim, dtype=kv_dtype)
    if doc:
        offsets = torch.arange(0, tokens, doc, dtype=torch.int32).repeat(2, 1)
        options |= {"doc_lens": torch.full_like(offsets, doc), "doc_offsets": offsets}
        options["rope"] = from_parameters(dim, {"rope_theta": 500000.0})
    lens = torch.full((2,), tokens, dtype=torch.int32)
    load("lazy" if doc else "flash").attention(q, k, k.clone(), kv_lens=lens, **options)


def main() -> None:
    driver.set_active(Driver())
    JITFunction.run = compile_only
    paths._check_device = lambda call: None
    paths._multiprocessors = lambda call: 132
    flash_decode._overlaps = lambda call: CAPABILITY >= 90
    flash_prefill.shared_bytes = lambda call: (227 if CAPABILITY >= 90 else 163) << 10
    launch._converts_pairs = lambda call: CAPABILITY >= 89
    launch._tma_applies = lambda call, dim: CAPABILITY >= 90 and call.block_table is None
    attend(1024, 0, 0)
    attend(1024, 0, 0, dim=256)
    attend(1024, 16, 512)
    attend(1, 16, 0)
    attend(1, 16, 512)
    attend(1, 16, 0, torch.float8_e4m3fn if CAPABILITY >= 89 else torch.float8_e5m2)
    if CAPABILITY == 90:
        hopper()


def hopper() -> None:
    """The Gluon kernel: each head dim, and each way to mask."""
    paths._is_hopper = lambda call: True
    attend(1024, 0, 0, path="hopper")
    attend(1024, 0, 0, path="hopper", causal=False)
    attend(1024, 0, 0, path="hopper", dim=64, window=1000)
    attend(1024, 0, 0, path="hopper", dim=256)
    attend(1024, 0, 512, path="hopper")
    attend(1024, 0, 512, path="hopper", dim=64)


if __name__ == "__main__":
    main()
