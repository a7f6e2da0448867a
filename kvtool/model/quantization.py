"""How checkpoints pack their weights: formats, and what a quantisation config leaves unpacked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from kvtool.dtype import DTYPES
from kvtool.errors import ModelError

MAX_PATTERNS = 4096


@dataclass(frozen=True, slots=True)
class Packing:
    """Bytes of a packed matrix [.., out, in]: `weight` per element, scales by block.

    `block` is (rows, columns) that share one scale of `scale` bytes (and, with `zero`, a zero
    point); 0 stands for the whole extent. `tensor` bytes come once per matrix.
    """

    name: str
    weight: float
    block: tuple[int, int] = (0, 0)
    scale: float = 0
    tensor: int = 0

    def bytes(self, shape: Sequence[int]) -> int:
        """Bytes of one tensor of that shape; leading extents count separate matrices.

        >>> PACKINGS["fp8"].bytes((128, 256)), PACKINGS["mxfp4"].bytes((2, 32, 64))
        (32776, 2176)
        """
        *copies, out, inp = (1, *shape) if len(shape) == 1 else shape
        rows, columns = (
            side or extent for side, extent in zip(self.block, (out, inp), strict=True)
        )
        blocks = -(-out // rows) * -(-inp // columns)
        return prod(copies) * (
            int(out * inp * self.weight) + int(blocks * self.scale) + self.tensor
        )


# Sources: the published checkpoints' own tensors. fp8: one float32 per 128 x 128 block (DeepSeek
# V3); int4: a float16 scale and a 4-bit zero per 128 inputs (AWQ, GPTQ); mxfp4: an E8M0 byte per
# 32 (OCP); nvfp4: an fp8 byte per 16 and one float32 (NVIDIA ModelOpt).
PACKINGS: dict[str, Packing] = {
    packing.name: packing
    for packing in (
        Packing("fp8", 1, (128, 128), 4),
        Packing("fp8-tensor", 1, tensor=4),
        Packing("fp8-channel", 1, (1, 0), 4),
        Packing("int8", 1, (1, 0), 4),
        Packing("int4", 0.5, (1, 128), 2.5),
        Packing("mxfp4", 0.5, (1, 32), 1),
        Packing("nvfp4", 0.5, (1, 16), 1, 4),
        *(
            Packing(name, d.block_bytes / d.block)
            for name, d in DTYPES.items()
            if name.startswith(("q", "iq"))
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Scheme:
    """A checkpoint's packing, and the test for modules that it leaves as they are."""

    packing: Packing
    skipped: Callable[[str], bool]


def scheme_of(config: Mapping[str, Any], where: str) -> Scheme:
    """The scheme of a `quantization_config`; ModelError naming the field for one not known here."""
    skipped = _skipped(config, where)
    if _method(config, where) == "fp8" and config.get("quant_method") != "compressed-tensors":
        return Scheme(_fp8(config), skipped)
    return Scheme(_packing(config, where), skipped)


def _method(config: Mapping[str, Any], where: str) -> str:
    algorithm = config.get("quant_algo")
    if isinstance(algorithm, str):
        known = {"FP8": "fp8", "NVFP4": "nvfp4", "FP8_PB_WO": "fp8", "W4A16_AWQ": "awq"}
        if algorithm in known:
            return known[algorithm]
        raise _unknown("quant_algo", algorithm, where)
    method = config.get("quant_method")
    if not isinstance(method, str):
        raise _unknown("quant_method", method, where)
    return method


def _unknown(field: str, value: object, where: str) -> ModelError:
    return ModelError(
        f"{where}: quantization_config.{field} {value!r} is not known",
        "give the format of the weights with --dtype",
    )


def _fp8(config: Mapping[str, Any]) -> Packing:
    block = config.get("weight_block_size")
    if (
        isinstance(block, list)
        and len(block) == 2
        and all(isinstance(b, int) and b > 0 for b in block)
    ):
        return Packing("fp8", 1, (block[0], block[1]), 4)
    return PACKINGS["fp8-tensor"]


def _packing(config: Mapping[str, Any], where: str) -> Packing:
    method = _method(config, where)
    if method in ("awq", "gptq"):
        return _int(config.get("bits", 4), config.get("group_size", 128), True, where)
    if method in ("mxfp4", "nvfp4"):
        return PACKINGS[method]
    if method == "compressed-tensors":
        return _compressed(config, where)
    if method in ("bitsandbytes", "bitsandbytes_4bit"):
        raise _unknown("quant_method", method, where)
    raise _unknown("quant_method", method, where)


def _int(bits: object, group: object, zero: bool, where: str) -> Packing:
    if bits not in (4, 8) or not isinstance(group, int) or not (group == -1 or 8 <= group <= 65536):
        raise _unknown("bits, group_size", (bits, group), where)
    width = int(bits) / 8  # type: ignore[call-overload]
    return Packing(f"int{bits}-g{group}", width, (1, max(group, 0)), 2 + (width if zero else 0))


def _compressed(config: Mapping[str, Any], where: str) -> Packing:
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise _unknown("config_groups", groups, where)
    group = next(iter(groups.values()))
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise _unknown("config_groups.weights", weights, where)
    bits, kind, size = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    if kind == "int":
        strategy = weights.get("strategy")
        group_size = size if strategy == "group" else -1
        return _int(bits, group_size, weights.get("symmetric") is False, where)
    if (kind, bits) == ("float", 8):
        return PACKINGS["fp8-channel" if weights.get("strategy") == "channel" else "fp8-tensor"]
    if (kind, bits, size) == ("float", 4, 16):
        return PACKINGS["nvfp4"]
    if (kind, bits, size) == ("float", 4, 32):
        return PACKINGS["mxfp4"]
    raise _unknown("config_groups.weights", dict(weights), where)


def _skipped(config: Mapping[str, Any], where: str) -> Callable[[str], bool]:
    """Whether a module's full name is among those that stay unpacked."""
    patterns: list[str] = []
    for name in ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules"):
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, list) or len(value) > MAX_PATTERNS:
            raise _unknown(name, value, where)
        patterns += [p for p in value if isinstance(p, str)]
    tests = [piece for pattern in patterns for piece in _pieces(pattern)]
    return lambda module: any(_contains(module, pieces, whole) for pieces, whole in tests)


def _pieces(pattern: str) -> list[tuple[list[str], bool]]:
    """A pattern as literal pieces that must follow one another, without running it as a regex.

    `re:` patterns may hold `.*`, escaped dots, anchors and one group of alternatives; `*` stands
    for anything. A pattern without wildcards names a module and everything inside it.
    """
    if pattern.startswith("re:"):
        text = pattern[3:].strip("^$")
        group = re.search(r"\(([^()]*)\)", text)
        options = group[1].split("|") if group else [""]
        whole = (
            [text[: group.start()] + o + text[group.end() :] for o in options] if group else [text]
        )
        return [([p.replace("\\.", ".") for p in w.split(".*") if p], True) for w in whole]
    return [([p for p in pattern.split("*") if p], "*" in pattern)]


def _contains(module: str, pieces: list[str], anywhere: bool) -> bool:
    if not anywhere:
        name = pieces[0] if pieces else ""
        return f".{name}." in f".{module}."
    at = 0
    for piece in pieces:
        at = module.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return bool(pieces)
