"""Which code runs: Triton on CUDA devices, torch elsewhere; decode or prefill by shape.

Prefill on Hopper has a path of its own, `hopper`, taken on request where
`worklist.hopper_applies` says so.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import torch
from torch import Tensor

from kvtool.errors import DeviceError, ShapeError
from kvtool.kernels.checks import Call, host_plan
from kvtool.kernels.launch import Tables
from kvtool.kernels.plan import Plan
from kvtool.kernels.tiled import tiled

MAX_HEAD_DIM = 256
"""Of the Triton kernels; the torch path takes any."""


def make_plan(call: Call, variant: str | None) -> Plan:
    """Lengths read and checked, the path chosen, its tables on the device of q.

    Raises DeviceError where Triton cannot run, ShapeError for shapes its kernels do not take.
    """
    return with_tables(call, host_plan(call, choose_path(call), variant))


def choose_path(call: Call) -> str:
    """The path asked for, else Triton where it can run."""
    return call.path or ("triton" if call.q.is_cuda and find_spec("triton") else "torch")


def with_tables(call: Call, plan: Plan) -> Plan:
    """The plan with what its path keeps on the device; a torch plan as it is."""
    if plan.path == "torch":
        return plan
    tables = _triton_tables(call, plan)
    path = "hopper" if tables.phase == "hopper" else "triton"
    return replace(plan, path=path, tables=tables)


def run(call: Call, plan: Plan, lse: Tensor | None = None) -> Tensor:
    """o: [B, T, H, D] in q.dtype, by the path of the plan.

    lse: [B, T, H] float32, filled with the base 2 log-sum-exp of each row, except by a
      Triton decode.
    """
    if plan.path == "torch":
        return tiled(call, plan, lse)
    o = torch.empty_like(call.q) if call.out is None else call.out
    if min(plan.q_lens) < call.query_tokens:
        o.zero_()
    if plan.tables.phase == "decode":
        from kvtool.kernels.flash_decode import decode

        decode(call, plan, o)
    elif plan.tables.phase == "hopper":
        from kvtool.kernels.flash_hopper import hopper

        hopper(call, plan, o)
    else:
        from kvtool.kernels.flash_prefill import prefill

        prefill(call, plan, o, lse)
    return o


def _triton_tables(call: Call, plan: Plan) -> Tables:
    from kvtool.kernels import flash_decode, flash_prefill
    from kvtool.kernels.launch import check_cache
    from kvtool.kernels.worklist import decode_tables, is_decode, prefill_tables

    _check_device(call)
    if call.k.dtype == torch.float8_e4m3fn and _is_older_than(call, (8, 9)):
        raise DeviceError(
            "float8_e4m3fn needs compute capability 8.9 or later in Triton",
            "store the cache as float8_e5m2, or pass path='torch'",
        )
    if call.head_dim > MAX_HEAD_DIM:
        raise ShapeError(
            f"head_dim {call.head_dim} is beyond the {MAX_HEAD_DIM} of the Triton kernels",
            "pass path='torch'",
        )
    check_cache(call)
    if is_decode(call):
        config = flash_decode.config(call, plan.variant)
        return decode_tables(call, plan, config, _multiprocessors(call))
    hopper = _hopper_tables(call, plan)
    if hopper is not None:
        return hopper
    if call.path == "hopper":
        raise DeviceError(
            "path 'hopper' does not take this call", "leave path out, and it is used where it can"
        )
    return prefill_tables(call, plan, flash_prefill.config(call))


def _hopper_tables(call: Call, plan: Plan) -> Tables | None:
    """The work list of the Hopper path; None where it does not apply, or Triton is too old."""
    from kvtool.kernels.worklist import hopper_applies, hopper_tables

    if call.path != "hopper" or not _is_hopper(call) or not hopper_applies(call, plan):
        return None
    try:
        from kvtool.kernels import flash_hopper
    except ImportError:
        return None
    return hopper_tables(call, plan, flash_hopper.config(call), _multiprocessors(call))


def _is_hopper(call: Call) -> bool:
    return call.q.is_cuda and torch.cuda.get_device_capability(call.q.device)[0] == 9


def _check_device(call: Call) -> None:
    if find_spec("triton") is None:
        raise DeviceError(
            "path 'triton' needs Triton, which is not installed", "pip install triton"
        )
    import triton

    if not call.q.is_cuda and not triton.knobs.runtime.interpret:
        raise DeviceError(
            f"path 'triton' cannot run on {call.q.device}",
            "use a CUDA device, or path='torch', which runs anywhere",
        )


def _is_older_than(call: Call, capability: tuple[int, int]) -> bool:
    return call.q.is_cuda and torch.cuda.get_device_capability(call.q.device) < capability


def _multiprocessors(call: Call) -> int:
    from kvtool.kernels.worklist import INTERPRETER_SMS

    if not call.q.is_cuda:
        return INTERPRETER_SMS
    return int(torch.cuda.get_device_properties(call.q.device).multi_processor_count)
