"""The shared signature: names, what is refused before a launch, and what importing costs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from kvtool.errors import DeviceError, ShapeError, UsageError
from kvtool.kernels import NAMES, VARIANTS, load
from kvtool.kernels.checks import check
from kvtool.kernels.rope import from_parameters


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def tensors(**changed: object) -> dict[str, object]:
    """Arguments of a valid call, some of them changed."""
    q, k = torch.zeros(2, 3, 4, 16), torch.zeros(2, 8, 2, 16)
    return {"q": q, "k": k, "v": k.clone(), "kv_lens": int32(8, 5)} | changed


def test_every_name_loads_a_kernel_with_one_signature():
    for name in (*NAMES, "reference"):
        kernel = load(name)
        arguments = tensors()
        plan = kernel.plan(**arguments) if name != "lazy" else None

        assert callable(kernel.attention)
        assert plan is None or plan.kv_lens == (8, 5)

    assert set(VARIANTS) == set(NAMES)


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(UsageError, match="no kernel named 'flahs'") as error:
        load("flahs")

    assert "flash" in error.value.hint


def test_names_and_variants_come_without_torch_and_torch_paths_without_triton():
    code = (
        "import sys; import kvtool.kernels as k; assert 'torch' not in sys.modules;"
        "[k.load(n) for n in (*k.NAMES, 'reference')]; assert 'triton' not in sys.modules;"
        "import torch; x = torch.zeros(1, 3, 2, 16); n = torch.tensor([3], dtype=torch.int32);"
        "k.load('flash').attention(x, x, x, kv_lens=n); assert 'triton' not in sys.modules"
    )

    subprocess.run([sys.executable, "-P", "-c", code], check=True)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"q": torch.zeros(3, 4, 16)}, "q has 3 dimensions"),
        ({"v": torch.zeros(2, 8, 1, 16)}, "v is"),
        ({"q": torch.zeros(2, 3, 4, 32)}, "head_dim of q is 32 and of k 16"),
        ({"q": torch.zeros(2, 3, 5, 16)}, "5 query heads are not a multiple of 2"),
        ({"q": torch.zeros(3, 3, 4, 16)}, "q holds 3 sequences and k 2"),
        ({"q": torch.zeros(2, 3, 16, 4).transpose(2, 3)}, "stride"),
        ({"kv_lens": int32(8)}, "kv_lens is"),
        ({"sinks": torch.zeros(2)}, "sinks is"),
        ({"k_scale": torch.zeros(4)}, "k_scale is"),
        ({"block_table": int32(0, 1)}, "block_table is"),
        ({"out": torch.zeros(2, 3, 4, 8)}, "out is"),
    ],
)
def test_shapes_that_do_not_fit_are_named(changed, message):
    with pytest.raises(ShapeError, match=message):
        check(**tensors(**changed))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"q": torch.zeros(2, 3, 4, 16).double()}, "q is torch.float64"),
        ({"k": torch.zeros(2, 8, 2, 16).half()}, "k torch.float16"),
        ({"kv_lens": torch.tensor([8, 5])}, "kv_lens is torch.int64"),
        ({"sinks": torch.zeros(4).half()}, "sinks is torch.float16"),
        ({"out": torch.zeros(2, 3, 4, 16).half()}, "out is torch.float16"),
        ({"window": 0}, "window 0"),
        ({"window": 5, "causal": False}, "causal=False"),
        ({"sm_scale": 0.0}, "sm_scale is 0.0"),
        ({"path": "cuda"}, "no path named 'cuda'"),
        ({"doc_lens": int32(8, 5)[:, None]}, "doc_lens and doc_offsets come together"),
        ({"rope": from_parameters(16, {"rope_theta": 1e4})}, "rope without documents"),
    ],
)
def test_values_and_dtypes_that_make_no_sense_are_named(changed, message):
    with pytest.raises(UsageError, match=message):
        check(**tensors(**changed))


def test_tensors_on_two_devices_are_refused():
    with pytest.raises(DeviceError, match="q is on cpu and k on meta"):
        check(**tensors(k=torch.zeros(2, 8, 2, 16, device="meta")))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kv_lens": int32(9, 5)}, "sequence 0 needs 9 key rows, its cache has 8"),
        ({"kv_lens": int32(8, -1)}, "sequence 1"),
        ({"q_lens": int32(4, 1)}, r"q_lens\[0\] is 4"),
        (
            {"doc_lens": int32(4, 5)[:, None], "doc_offsets": int32(0, 0)[:, None]},
            r"doc_lens\[0\] add up to 4, kv_lens\[0\] is 8",
        ),
    ],
)
def test_lengths_that_exceed_their_tensors_are_named(changed, message):
    with pytest.raises(ShapeError, match=message):
        load("reference").plan(**tensors(**changed))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the refusal is for machines without CUDA")
def test_triton_without_a_gpu_is_refused():
    code = (
        "import torch; from kvtool.kernels import load; from kvtool.errors import DeviceError\n"
        "x = torch.zeros(1, 3, 2, 16); n = torch.tensor([3], dtype=torch.int32)\n"
        "try: load('flash').plan(x, x, x, kv_lens=n, path='triton')\n"
        "except DeviceError as e: print(e, e.exit_code)"
    )
    environment = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}

    run = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True
    )

    assert run.stdout == "path 'triton' cannot run on cpu 4\n"


def test_blocks_outside_the_pool_are_named():
    pool = torch.zeros(3, 16, 2, 16)
    table = int32(0, 1, 2, 3).view(2, 2)

    with pytest.raises(ShapeError, match=r"block_table\[1\] names a block outside the pool of 3"):
        load("flash").plan(**tensors(k=pool, v=pool, block_table=table, kv_lens=int32(20, 20)))


def test_triton_refuses_shapes_that_its_kernels_do_not_take():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k = (torch.zeros(1, n, 2, 512, device=device) for n in (1, 8))
    v = torch.zeros(1, 2, 8, 16, device=device).transpose(1, 2)
    plan, lens = load("flash").plan, int32(8).to(device)

    with pytest.raises(ShapeError, match="head_dim 512"):
        plan(q, k, k, kv_lens=lens, path="triton")
    with pytest.raises(ShapeError, match="strides"):
        plan(q[..., :16].contiguous(), k[..., :16], v, kv_lens=lens, path="triton")
