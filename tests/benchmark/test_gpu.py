"""The same claims on a GPU, with graphs, cold caches and the peers that ship with torch."""

import pytest
import torch

from kvtool.api.bench import bench
from kvtool.benchmark import timing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHAPE = {"heads": 8, "kv_heads": 2, "head_dim": 128, "samples": 10, "device": "cuda"}


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_kernels_and_torch_peers_pass_and_run_in_graphs(phase, dtype):
    report = bench(phase=phase, ctx=1024, batch=2, dtype=dtype, **SHAPE)

    assert [row["faults"] for row in report.results] == [[]] * len(report.results)
    assert {"naive", "cached", "flash", "lazy", "sdpa-cudnn", "sdpa-flash"} <= {
        row["implementation"] for row in report.results
    }
    assert {row["timer"] for row in report.results} == {"cuda-graph"}


def test_rotating_inputs_are_larger_than_five_times_the_cache():
    (row,) = bench(kernel="flash", phase="decode", ctx=4096, peers="none", **SHAPE).results

    cache = torch.cuda.get_device_properties(0).L2_cache_size
    assert row["input_sets"] * row["bytes"] >= timing.COLD_FACTOR * cache


def test_an_fp8_cache_passes_the_gate():
    report = bench(
        kernel="flash,lazy", phase="decode", ctx=1024, kv_dtype="fp8", peers="none", **SHAPE
    )

    assert [row["faults"] for row in report.results] == [[], []]


def test_no_row_is_faster_than_the_measured_roof():
    report = bench(kernel="flash", phase="decode", ctx=32768, batch=8, peers="none", **SHAPE)

    assert 0.2 < report.results[0]["roof_fraction"] < 1.05


def test_generation_agrees_under_every_kernel():
    report = bench(generate=64, **SHAPE)

    assert [row["gate"] for row in report.results] == ["pass"] * 4
