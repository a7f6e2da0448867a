"""The Gluon prefill on a Hopper GPU: shapes, masks and documents that end anywhere, and races."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvtool.errors import DeviceError
from kvtool.kernels import load
from kvtool.kernels.rope import from_parameters

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9,
        reason="needs a Hopper GPU",
    ),
]

BF16, FP16 = torch.bfloat16, torch.float16
UNEVEN = [1500, 1001]
FLASH: dict[str, dict[str, Any]] = {
    "even": {"lens": [256, 256], "queries": 256},
    "even-64": {"lens": [256, 256], "queries": 256, "dim": 64},
    "odd": {"lens": [1000, 1000], "queries": 1000},
    "odd-64": {"lens": [1000, 1000], "queries": 1000, "dim": 64},
    "shorter-than-a-tile": {"lens": [77, 5], "queries": 70, "q_lens": [70, 5]},
    "ragged": {"lens": [1500, 1001, 77], "queries": 600, "q_lens": [600, 300, 77]},
    "ragged-64": {
        "lens": [1500, 1001, 77],
        "queries": 600,
        "q_lens": [600, 300, 77],
        "dim": 64,
        "heads": (8, 8),
    },
    "fewer-queries": {"lens": UNEVEN, "queries": 300},
    "full": {"lens": UNEVEN, "queries": 300, "causal": False},
    "full-64": {"lens": [*UNEVEN, 5], "queries": 300, "dim": 64, "causal": False},
    "window": {"lens": UNEVEN, "queries": 700, "window": 200},
    "window-64": {"lens": UNEVEN, "queries": 1000, "dim": 64, "window": 77},
    "window-of-one": {"lens": UNEVEN, "queries": 1000, "heads": (32, 1), "window": 1},
    "96": {"lens": UNEVEN, "queries": 700, "dim": 96},
    "256": {"lens": UNEVEN, "queries": 700, "dim": 256},
    "256-full": {"lens": UNEVEN, "queries": 700, "dim": 256, "heads": (8, 8), "causal": False},
    "mqa": {"lens": UNEVEN, "queries": 700, "heads": (32, 1)},
    "mha": {"lens": UNEVEN, "queries": 700, "heads": (8, 8)},
    "groups-of-three": {"lens": UNEVEN, "queries": 700, "heads": (6, 2), "dim": 64, "dtype": FP16},
    "many-items": {"lens": [4096, 3000], "queries": 3000, "heads": (32, 8)},
    "many-items-64": {"lens": [4096, 3000], "queries": 3000, "heads": (32, 32), "dim": 64},
}
DOCS = [[512] * 5 + [640], [256, 256, 1024, 1024]]
UNEVEN_DOCS = [[(700, 0), (300, 1000), (129, 1_000_000)], [1, 1, 127, 128, 900]]
LAZY: dict[str, dict[str, Any]] = {
    "one": {"docs": [[1024]], "queries": 256},
    "several": {"docs": DOCS, "queries": 400},
    "mha": {"docs": DOCS, "queries": 400, "heads": (8, 8)},
    "mqa": {"docs": DOCS, "queries": 400, "heads": (32, 1)},
    "full": {"docs": DOCS, "queries": 400, "causal": False},
    "64": {"docs": DOCS, "queries": 400, "dim": 64},
    "64-mha-full": {
        "docs": DOCS,
        "queries": 400,
        "heads": (8, 8),
        "dim": 64,
        "causal": False,
    },
    "64-mqa": {"docs": DOCS, "queries": 400, "heads": (32, 1), "dim": 64},
    "uneven": {"docs": UNEVEN_DOCS, "queries": 129},
    "uneven-64": {"docs": UNEVEN_DOCS, "queries": 129, "dim": 64},
    "window": {"docs": DOCS, "queries": 400, "window": 300},
    "many": {"docs": [[128] * 40, [64] * 80], "queries": 120},
    "float16": {"docs": DOCS, "queries": 400, "dtype": FP16},
    "many-items": {"docs": [[1024] * 8, [512] * 16], "queries": 2048, "heads": (32, 8)},
}
CASES = [("flash", name) for name in FLASH] + [("lazy", name) for name in LAZY]


@pytest.mark.parametrize(("kernel", "case"), CASES, ids=[f"{k}-{n}" for k, n in CASES])
def test_hopper_agrees_with_the_reference_and_repeats_itself(batch, check, kernel, case):
    shape = {"heads": (8, 2), "dim": 128, "dtype": BF16}
    shape |= (FLASH if kernel == "flash" else LAZY)[case]
    if kernel == "lazy":
        shape["rope"] = from_parameters(shape["dim"], {"rope_theta": 500000.0})
    inputs = batch(**shape)

    check(kernel, inputs, path="hopper")

    arguments = (inputs.q, inputs.k, inputs.v)
    plan = load(kernel).plan(*arguments, **inputs.options, path="hopper")
    assert plan.path == "hopper"
    runs = [
        load(kernel).attention(*arguments, **inputs.options, path="hopper", plan=plan)
        for _ in range(20)
    ]
    assert all(torch.equal(o, runs[0]) for o in runs)


def test_a_call_that_the_path_does_not_take_is_refused(batch):
    inputs = batch(lens=[500], queries=500, heads=(8, 2), dim=64, block=16, dtype=BF16)

    with pytest.raises(DeviceError, match="hopper"):
        load("flash").plan(inputs.q, inputs.k, inputs.v, **inputs.options, path="hopper")
