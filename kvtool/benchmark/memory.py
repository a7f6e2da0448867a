"""The device's memory and its queue: what is free, handing back, running out, waiting."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def free_bytes(device: torch.device) -> int:
    """Memory that nothing holds; where a system does not say, all that it has."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    name = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")


def release(device: torch.device) -> None:
    """Hand the memory of a finished case back."""
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on the device or on the host."""
    import torch

    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        "can't allocate memory" in str(error)
    )


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
