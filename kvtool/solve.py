"""The inverse questions: the largest context or batch that fits, the fewest devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvtool.errors import KvtoolError, UsageError
from kvtool.fit import Case, size
from kvtool.units import format_bytes

MAX_SOLVED_TP = 1024


def solve(case: Case, what: str) -> Case:
    """`case` with the largest context or batch that fits, or the fewest devices as TP.

    KvtoolError with the numbers when nothing fits, or when memory sets no bound.
    """
    if case.budget.device is None and not case.budget.is_given:
        raise UsageError(
            f"--solve {what} needs memory to fit into",
            "give --gpu NAME, --pool BYTES or --num-blocks N",
        )
    if what == "gpus":
        return _fewest(case)
    row = size(case).row
    key = "max_context_tokens" if what == "ctx" else "max_batch_size"
    found = row[key]
    if found is None:
        sought = "context" if what == "ctx" else "batch"
        raise KvtoolError(
            f"memory sets no bound on the {sought} of {case.model.name}",
            "its cache does not grow, or its weights are not known",
        )
    if found == 0:
        raise KvtoolError(_nothing_fits(case, row), "use more or larger devices, or smaller types")
    name = "context_tokens" if what == "ctx" else "batch_size"
    return replace(case, **{name: found})


def _fewest(case: Case) -> Case:
    if case.budget.device is None:
        raise UsageError(
            "--solve gpus needs a device", "give --gpu NAME; `kvtool devices` lists them"
        )
    tp, last = 1, None
    while tp <= MAX_SOLVED_TP:
        ranks = replace(case.deployment.parallel, tp=tp)
        trial = replace(case, deployment=replace(case.deployment, parallel=ranks))
        try:
            row = size(trial).row
        except UsageError:
            row = None
        if row and row["fits"]:
            return trial
        if row and row["fits"] is None:
            raise KvtoolError(
                f"the weights of {case.model.name} are not known", "give the pool with --pool"
            )
        last = row or last
        tp *= 2
    reason = _nothing_fits(case, last) if last else f"no tp divides the heads of {case.model.name}"
    raise KvtoolError(reason, "lower the context or the batch, or use smaller types")


def _nothing_fits(case: Case, row: dict[str, Any]) -> str:
    device = case.budget.device
    held, cache = row["weight_bytes"], row["cache_bytes"]
    memory = format_bytes(device.memory_bytes) if device else "the pool"
    taken = f"weights {format_bytes(held)}, " if held is not None else ""
    return (
        f"{case.model.name} does not fit into {memory} a device at tp {row['tp']}:"
        f" {taken}cache {format_bytes(cache)}"
    )
