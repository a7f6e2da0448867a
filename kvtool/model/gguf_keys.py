"""Checked access to the metadata of a GGUF model: every fault is kept, with key and value."""

from __future__ import annotations

from typing import Any

from kvtool.errors import ModelError
from kvtool.model.fields import MAX_LAYERS
from kvtool.model.gguf_file import GgufFile

MAX_VALUE = 1 << 40
_MISSING: Any = object()


class Keys:
    """The keys under a file's architecture, and what its tensors tell about the layers.

    llama.cpp appends multi-token-prediction layers to the blocks; `blocks` counts all of them,
    `layers` the decoder's own. A getter that meets a fault records it and returns a stand-in.
    """

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self.file = file
        self.architecture = architecture
        self.faults: list[str] = []
        self.tensors = {tensor.name: tensor for tensor in file.tensors}
        self.blocks = self.integer("block_count", low=1, high=MAX_LAYERS)
        self.mtp = self.integer("nextn_predict_layers", 0, high=self.blocks - 1)
        self.layers = self.blocks - self.mtp

    def fault(self, key: str, found: object, expected: str) -> None:
        name = key if key.startswith("tokenizer.") else f"{self.architecture}.{key}"
        self.faults.append(f"{self.file.path.name}: {name} is {_show(found)}, not {expected}")

    def raise_faults(self) -> None:
        if self.faults:
            raise ModelError.collect(
                dict.fromkeys(self.faults),
                "the file was written with other keys than llama.cpp's converter writes",
            )

    def value(self, key: str) -> Any:
        return self.file.metadata.get(f"{self.architecture}.{key}")

    def integer(
        self, key: str, default: Any = _MISSING, *, low: int = 0, high: int = MAX_VALUE
    ) -> int:
        """A whole number from `low` to `high`; `default` where absent, else a fault."""
        value = self.value(key)
        if value is None and default is not _MISSING:
            given: int = default
            return given
        if type(value) is not int or not low <= value <= high:
            missing = f"a whole number from {low:,} to {high:,}"
            self.fault(key, "missing" if value is None else value, missing)
            return max(low, 1)
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.value(key)
        return bool(value) if isinstance(value, bool | int) else default

    def per_layer(self, key: str, default: Any = _MISSING) -> list[int]:
        """A number for each of the decoder's layers, from one for all or an array of the blocks."""
        value = self.value(key)
        if not isinstance(value, list):
            length = self.file.lengths.get(f"{self.architecture}.{key}")
            if length is not None:
                self.fault(key, f"{length} entries", "an array of numbers")
                return [1] * self.layers
            return [self.integer(key, default)] * self.layers
        ok = all(isinstance(entry, int) and 0 <= entry <= MAX_VALUE for entry in value)
        if not ok or not self.layers <= len(value) <= MAX_LAYERS:
            self.fault(key, value, f"a whole number for each of the {self.blocks} blocks")
            return [1] * self.layers
        return [int(entry) for entry in value[: self.layers]]

    def divided(self, dividend: int, divisor: int, key: str) -> int:
        """`dividend / divisor`; a fault of `key` where that is no whole number."""
        if divisor and dividend % divisor == 0:
            return dividend // divisor
        self.fault(key, divisor, f"a divisor of {dividend:,}")
        return 1

    def layers_with(self, tensor: str) -> list[bool] | None:
        """Which layers store `blk.N.<tensor>`; None where the file lists no tensors."""
        if not self.tensors:
            return None
        return [f"blk.{i}.{tensor}" in self.tensors for i in range(self.layers)]

    def stores(self, *tensors: str) -> bool | None:
        """Whether any layer stores one of the tensors; None where the file lists no tensors."""
        if not self.tensors:
            return None
        return any(any(self.layers_with(tensor) or ()) for tensor in tensors)


def one(numbers: list[int]) -> int | list[int]:
    """The only positive number of the list, else the list: most models have one for all layers."""
    found = {number for number in numbers if number}
    return found.pop() if len(found) == 1 else numbers


def _show(value: object) -> str:
    text = value if isinstance(value, str) and value == "missing" else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
