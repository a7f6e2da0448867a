"""Exact sizes of a checkpoint from its own headers.

A safetensors file is an 8-byte length, a JSON header that gives every tensor's dtype, shape and
place, and the data; only the header is read. `model.safetensors.index.json` names the files of a
checkpoint in several parts and states their bytes, so that a folder without the parts still gives
the total. Nothing of a checkpoint is executed: pickled weights are not opened.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from kvtool.errors import ModelError
from kvtool.model.fields import as_integer

MAX_HEADER_BYTES = 100_000_000
MAX_ELEMENTS = 1 << 48

# Bits per element, by the names of the safetensors format.
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# Which files make a checkpoint, in the order engines look for them.
_PATTERNS = (
    "model.safetensors",
    "model-*.safetensors",
    "consolidated*.safetensors",
    "*.safetensors",
)
_POINTER = b"version https://git-lfs"
_DAMAGED = "the file may be cut off or damaged; download it again"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as stored: packed formats count the elements of their container (U8, I32)."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def stored_bytes(self) -> int:
        return self.elements * DTYPE_BITS[self.dtype] // 8


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Sizes of all weights. `tensors` is empty where only an index was at hand."""

    total_bytes: int
    tensors: tuple[StoredTensor, ...] = ()

    @property
    def parameters(self) -> int | None:
        """Elements as stored; None where only the total is known."""
        return sum(tensor.elements for tensor in self.tensors) if self.tensors else None


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The sizes of the weights in `folder`; None where it holds neither index nor safetensors.

    The headers decide where all files of the checkpoint are there, else the index's total. Raises
    ModelError for a file that is cut off or contradicts itself.
    """
    for name in _INDEXES:
        if (folder / name).is_file():
            return _from_index(folder, folder / name)
    for pattern in _PATTERNS:
        found = sorted(
            path
            for path in folder.glob(pattern)
            if path.is_file() and not path.name.startswith("adapter")
        )
        if found:
            return _from_files(found)
    return None


def read_safetensors(path: Path) -> tuple[StoredTensor, ...]:
    """The tensors that the header of one safetensors file lists, in order of their names."""
    header = _header(path)
    tensors, end = [], 0
    for name, entry in header.items():
        if name != "__metadata__":
            tensor, last = stored_tensor(path.name, name, entry)
            tensors.append(tensor)
            end = max(end, last)
    size, start = path.stat().st_size, _prefix(path) + 8
    if size != start + end:
        raise ModelError(
            f"'{path.name}' has {size:,} bytes, its header says {start + end:,}", _DAMAGED
        )
    return tuple(sorted(tensors, key=lambda tensor: tensor.name))


def _from_index(folder: Path, index: Path) -> Checkpoint:
    content = json_object(index, MAX_HEADER_BYTES)
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        raise ModelError(f"'{index.name}' has no weight_map", _DAMAGED)
    names = {name if isinstance(name, str) else "" for name in weight_map.values()}
    for name in names:
        if not name or Path(name).name != name or name in (".", ".."):
            raise ModelError(
                f"'{index.name}' names the file {name!r} in its weight_map",
                "files of a checkpoint lie in its own folder",
            )
    files = [folder / name for name in sorted(names)]
    if all(name.endswith(".safetensors") and _is_stored(folder / name) for name in names):
        return _from_files(files)
    metadata = content.get("metadata")
    total = as_integer(metadata.get("total_size")) if isinstance(metadata, Mapping) else None
    if total is None or not 0 < total < MAX_ELEMENTS * 8:
        raise ModelError(
            f"'{index.name}' states no metadata.total_size and its files are not all here",
            "download the files of the checkpoint, or remove the index",
        )
    return Checkpoint(total)


def _is_stored(path: Path) -> bool:
    """Whether the file is there itself, not the pointer that Git LFS leaves in its place."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_POINTER)) != _POINTER


def _from_files(files: list[Path]) -> Checkpoint:
    tensors: list[StoredTensor] = []
    for path in files:
        tensors += read_safetensors(path)
    return checkpoint_of(tensors)


def checkpoint_of(tensors: list[StoredTensor]) -> Checkpoint:
    """The checkpoint that stores `tensors`; ModelError when a name comes twice."""
    name, copies = (
        Counter(tensor.name for tensor in tensors).most_common(1)[0] if tensors else ("", 0)
    )
    if copies > 1:
        raise ModelError(
            f"the checkpoint stores '{name[:80]}' in {copies} files",
            "remove the files of the other copy",
        )
    return Checkpoint(sum(tensor.stored_bytes for tensor in tensors), tuple(tensors))


def _prefix(path: Path) -> int:
    with path.open("rb") as file:
        start = file.read(len(_POINTER))
    if start == _POINTER:
        raise ModelError(f"'{path.name}' is a Git LFS pointer", "run `git lfs pull` in its folder")
    if len(start) < 8:
        raise ModelError(f"'{path.name}' ends inside its header", _DAMAGED)
    length: int = struct.unpack("<Q", start[:8])[0]
    return length


def _header(path: Path) -> dict[str, Any]:
    try:
        length, size = _prefix(path), path.stat().st_size
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise ModelError(
                f"'{path.name}' claims a header of {length:,} bytes in a file of {size:,}", _DAMAGED
            )
        with path.open("rb") as file:
            file.seek(8)
            text = file.read(length)
    except OSError as error:
        raise ModelError(f"cannot read '{path}': {error.strerror}", _DAMAGED) from error
    return _parse(text, path.name)


def json_object(path: Path, most: int) -> dict[str, Any]:
    """The JSON object in a file of `most` bytes at the most; ModelError for anything else."""
    try:
        with path.open("rb") as file:
            text = file.read(most + 1)
    except OSError as error:
        raise ModelError(f"cannot read '{path}': {error.strerror}", _DAMAGED) from error
    if len(text) > most:
        raise ModelError(f"'{path.name}' is larger than {most:,} bytes", _DAMAGED)
    return _parse(text, path.name)


def _parse(text: bytes, name: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"'{name}' does not hold JSON", _DAMAGED) from error
    if not isinstance(content, dict):
        raise ModelError(f"'{name}' holds {type(content).__name__}, not a JSON object", _DAMAGED)
    return content


def stored_tensor(where: str, name: str, entry: object) -> tuple[StoredTensor, int]:
    """A tensor from its header entry, and where its data ends."""
    dtype, shape, offsets = (
        (entry.get("dtype"), entry.get("shape"), entry.get("data_offsets"))
        if isinstance(entry, Mapping)
        else (None, None, None)
    )
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise ModelError(f"'{where}': tensor '{name[:80]}' has dtype {dtype!r:.60}", _DAMAGED)
    extents = _whole_numbers(shape)
    begin_end = _whole_numbers(offsets)
    if extents is None or begin_end is None or len(begin_end) != 2:
        raise ModelError(
            f"'{where}': tensor '{name[:80]}' has shape {shape!r:.60}, offsets {offsets!r:.60}",
            _DAMAGED,
        )
    bits = prod(extents) * DTYPE_BITS[dtype]
    begin, end = begin_end
    if prod(extents) > MAX_ELEMENTS or bits != 8 * (end - begin):
        raise ModelError(
            f"'{where}': tensor '{name[:80]}' of shape {shape!r:.60} in {dtype} takes"
            f" {bits / 8:.6g} bytes, its offsets {begin} to {end} say otherwise",
            _DAMAGED,
        )
    return StoredTensor(name, dtype, tuple(extents)), end


def _whole_numbers(values: object) -> list[int] | None:
    if not isinstance(values, list | tuple) or len(values) > 16:
        return None
    numbers = [v for v in values if type(v) is int and 0 <= v <= MAX_ELEMENTS * 8]
    return numbers if len(numbers) == len(values) else None
