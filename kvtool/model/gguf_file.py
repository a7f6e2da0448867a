"""A GGUF file's header: metadata and tensor descriptions, without a byte of tensor data.

Layout (versions 2 and 3): magic, version, tensor count, key count; the keys, each a name, a type
and a value; then per tensor a name, its extents, a ggml type and an offset. The `gguf` package
supplies the block sizes of types. Its reader (0.19) is not used: it makes array objects for every
vocabulary entry and maps the tensors, so that a vocabulary of 250,000 took it 13 s and 1 GB, and a
file cut off behind its header fails. Here long arrays are skipped and only their length is kept.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from kvtool.errors import ModelError

MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_ITEMS = 1 << 25
MAX_KEPT = 20_000
MAX_KEY_BYTES = 1 << 16
MAX_TEXT_BYTES = 1 << 16
MAX_ELEMENTS = 1 << 48

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
# GGUF value types that are numbers, as `struct` codes (`gguf.GGUFValueType`).
_NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_HINT = "the file may be cut off or damaged; `gguf-dump FILE` shows where"


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A stored tensor. `shape` is (.., out, in): slowest extent first, unlike in the file."""

    name: str
    shape: tuple[int, ...]
    ggml_type: str
    stored_bytes: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Metadata and tensors of a model; of a model in several files, the tensors of all.

    `metadata` holds scalars and short arrays of numbers; `lengths` the length of every array.
    """

    path: Path
    metadata: dict[str, Any]
    lengths: dict[str, int]
    tensors: tuple[GgufTensor, ...]


def read_gguf(path: Path) -> GgufFile:
    """The header of the GGUF model that begins with the file `path`.

    A model split by llama.cpp (`name-00001-of-00003.gguf`) is read from its first file, the others
    lying beside it. Raises ModelError for what is no GGUF, cut off before its tensors, or lacks
    a part.
    """
    first = _read_one(path)
    shards = first.metadata.get("split.count", 1)
    if not isinstance(shards, int) or shards <= 1:
        return first
    match = _SHARD.fullmatch(path.name)
    if match is None or int(match[2]) != 1 or int(match[3]) != shards:
        raise ModelError(
            f"'{path.name}' is one of {shards} parts of a model",
            "name the first part, called ..-00001-of-NNNNN.gguf, with the others beside it",
        )
    tensors = list(first.tensors)
    for number in range(2, shards + 1):
        tensors += _read_one(path.with_name(f"{match[1]}-{number:05d}-of-{match[3]}.gguf")).tensors
    return GgufFile(path, first.metadata, first.lengths, tuple(tensors))


def _read_one(path: Path) -> GgufFile:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Header(data, path).read()
    except OSError as error:
        raise ModelError(f"cannot read '{path}': {error.strerror}", _HINT) from error
    except (struct.error, IndexError) as error:
        raise ModelError(f"'{path.name}' ends inside its header", _HINT) from error
    except ValueError as error:
        raise ModelError(f"'{path.name}' is not a GGUF file: it is empty", _HINT) from error


class _Header:
    """A position in the bytes of a file, moving forward as values are read."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.position = 0
        self.items = 0
        self.unpack: dict[str, Callable[[Any, int], tuple[Any, ...]]] = {}
        self.sizes: dict[str, int] = {}

    def read(self) -> GgufFile:
        self._set_order("<")
        if self.data[:4] != _MAGIC:
            self.refuse(f"begins with {self.data[:4]!r}, not with {_MAGIC!r}")
        self.position = 4
        version = self.number("I")
        if version & 0xFFFF == 0:  # written on a machine of the other byte order
            self._set_order(">")
            version = struct.unpack(">I", struct.pack("<I", version))[0]
        if version not in _VERSIONS:
            self.refuse(f"has GGUF version {version}, not {' or '.join(map(str, _VERSIONS))}")
        tensors = self.count(MAX_TENSORS, 24, "tensors")
        keys = self.count(MAX_KEYS, 13, "keys")
        metadata: dict[str, Any] = {}
        lengths: dict[str, int] = {}
        for _ in range(keys):
            self._key(metadata, lengths)
        return GgufFile(self.path, metadata, lengths, self._tensors(tensors))

    def refuse(self, what: str) -> NoReturn:
        raise ModelError(f"'{self.path.name}' {what}", _HINT)

    def _set_order(self, order: str) -> None:
        formats = {code: struct.Struct(order + code) for code in "BbHhIifQqd?"}
        self.unpack = {code: form.unpack_from for code, form in formats.items()}
        self.sizes = {code: form.size for code, form in formats.items()}
        self.order = order

    def number(self, code: str) -> Any:
        value = self.unpack[code](self.data, self.position)[0]
        self.position += self.sizes[code]
        return value

    def count(self, most: int, least_bytes: int, what: str) -> int:
        """A number of things of `least_bytes` each; more than the file can hold are refused."""
        value: int = self.number("Q")
        if value > most or value * least_bytes > len(self.data) - self.position:
            self.refuse(f"claims {value:,} {what}, more than it can hold")
        return value

    def text(self, most: int, what: str) -> str:
        """A string; of one longer than `most` the beginning."""
        length = self.count(len(self.data), 1, f"bytes of {what}")
        found = bytes(self.data[self.position : self.position + min(length, most)])
        self.position += length
        return found.decode("utf-8", "replace")

    def _key(self, metadata: dict[str, Any], lengths: dict[str, int]) -> None:
        key = self.text(MAX_KEY_BYTES, "a key")
        if key in metadata or key in lengths:
            self.refuse(f"has the key '{key[:80]}' twice")
        kind = self.number("I")
        if kind == _ARRAY:
            lengths[key], values = self._array(key)
            if values is not None:
                metadata[key] = values
        elif kind == _STRING:
            metadata[key] = self.text(MAX_TEXT_BYTES, f"'{key[:80]}'")
        else:
            metadata[key] = self.number(self._code(kind, key))

    def _code(self, kind: int, key: str) -> str:
        if kind not in _NUMBERS:
            self.refuse(f"has a value of unknown type {kind} for the key '{key[:80]}'")
        return _NUMBERS[kind]

    def _array(self, key: str) -> tuple[int, list[Any] | None]:
        """Length and, for numbers and short arrays, values."""
        kind = self.number("I")
        code = "Q" if kind == _STRING else self._code(kind, key)
        length = self.count(MAX_ITEMS, self.sizes[code], f"entries of '{key[:80]}'")
        self.items += length
        if self.items > MAX_ITEMS:
            self.refuse(f"claims more than {MAX_ITEMS:,} array entries")
        if kind == _STRING:
            self._skip_strings(length)
            return length, None
        start, self.position = self.position, self.position + length * self.sizes[code]
        if length > MAX_KEPT:
            return length, None
        return length, list(struct.unpack_from(f"{self.order}{length}{code}", self.data, start))

    def _skip_strings(self, length: int) -> None:
        unpack, data, position = self.unpack["Q"], self.data, self.position
        end = len(data)
        for _ in range(length):
            position += 8 + unpack(data, position)[0]
            if position > end:
                raise IndexError
        self.position = position

    def _tensors(self, count: int) -> tuple[GgufTensor, ...]:
        from gguf.constants import GGML_QUANT_SIZES

        sizes = {int(kind): (kind.name, *size) for kind, size in GGML_QUANT_SIZES.items()}
        found: dict[str, GgufTensor] = {}
        for _ in range(count):
            tensor = self._tensor(sizes)
            if tensor.name in found:
                self.refuse(f"has the tensor '{tensor.name[:80]}' twice")
            found[tensor.name] = tensor
        return tuple(found.values())

    def _tensor(self, sizes: dict[int, tuple[str, int, int]]) -> GgufTensor:
        name = self.text(MAX_KEY_BYTES, "a tensor's name")
        dimensions = self.number("I")
        if dimensions > 8:
            self.refuse(f"gives the tensor '{name[:80]}' {dimensions:,} dimensions")
        extents = [self.number("Q") for _ in range(dimensions)]
        kind = self.number("I")
        self.number("Q")
        if kind not in sizes:
            self.refuse(f"has the tensor '{name[:80]}' in the unknown ggml type {kind}")
        ggml_type, block, block_bytes = sizes[kind]
        if not all(extents) or prod(extents) > MAX_ELEMENTS or (extents or [1])[0] % block:
            self.refuse(f"has the tensor '{name[:80]}' in the shape {extents}, {ggml_type}")
        stored = prod(extents) // block * block_bytes
        return GgufTensor(name, tuple(reversed(extents)), ggml_type, stored)
