"""How checkpoints pack their weights: formats, and what a quantisation config leaves unpacked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from reprlib import Repr
from typing import Any

from kvtool.dtype import DTYPES
from kvtool.errors import ModelError


@dataclass(frozen=True, slots=True)
class Packing:
    """Bytes of a packed matrix [.., out, in]: `weight` per element, scales by block.

    `block` is (rows, columns) that share one scale of `scale` bytes (and, with it, a zero point);
    0 stands for the whole extent. `column` bytes come once per input, `tensor` bytes once per
    matrix.
    """

    name: str
    weight: float
    block: tuple[int, int] = (0, 0)
    scale: float = 0
    tensor: int = 0
    column: int = 0

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
        values = int(out * inp * self.weight)
        return prod(copies) * (values + int(blocks * self.scale) + inp * self.column + self.tensor)


# Sources: the published checkpoints' own tensors. fp8: one float32 per 128 x 128 block (DeepSeek
# V3), one E8M0 byte (DeepSeek V4); int4: a float16 scale and a 4-bit zero per 128 inputs (AWQ,
# GPTQ); mxfp4, mxfp8: an E8M0 byte per 32 (OCP); nvfp4: an fp8 byte per 16 and one float32 (NVIDIA
# ModelOpt); nf4: a float32 per 64, or with double quantisation a byte per 64 and a float32 per 256
# of those (QLoRA, arXiv 2305.14314: 0.127 bits per parameter).
PACKINGS: dict[str, Packing] = {
    packing.name: packing
    for packing in (
        Packing("fp8", 1, (128, 128), 4),
        Packing("fp8-ue8m0", 1, (128, 128), 1),
        Packing("fp8-tensor", 1, tensor=4),
        Packing("fp8-channel", 1, (1, 0), 4),
        Packing("fp8-mx", 1, (1, 32), 1),
        Packing("int8", 1, (1, 0), 4),
        Packing("int4", 0.5, (1, 128), 2.5),
        Packing("mxfp4", 0.5, (1, 32), 1),
        Packing("nvfp4", 0.5, (1, 16), 1, 4),
        Packing("nf4-plain", 0.5, (1, 64), 4),
        Packing("nf4-double", 0.5, (1, 64), 1 + 4 / 256),
        *(
            Packing(name, d.block_bytes / d.block)
            for name, d in DTYPES.items()
            if name.startswith(("q", "iq"))
        ),
    )
}

# Matrices that stay in 16 bits whatever a configuration says of the linear layers. Sources: the
# tensors of DeepSeek V3 (eh_proj), V3.2 and V4 (the others); vLLM builds them without a scheme.
PLAIN = ("mtp.eh_proj", "indexer.weights_proj", "compressor.kv_proj", "compressor.gate_proj",
         "compressor.indexer.kv_proj", "compressor.indexer.gate_proj")  # fmt: skip

MAX_NAMES = 8192
SKIP_FIELDS = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "exclude",
               "llm_int8_skip_modules")  # fmt: skip

# NVIDIA ModelOpt's `quant_algo`.
ALGORITHMS = {
    "FP8": "fp8-tensor",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8-channel",
    "FP8_PB_WO": "fp8",
    "MXFP8": "fp8-mx",
    "MXFP4": "mxfp4",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "INT8_SQ": "int8",
    "W8A16": "int8",
}

Test = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Scheme:
    """A checkpoint's packing, the test for modules that it leaves as they are, and modules that
    are packed in another way."""

    packing: Packing
    skipped: Test
    others: tuple[tuple[Test, Packing], ...] = ()

    def packing_of(self, module: str) -> Packing | None:
        """The packing of a matrix by its module's full name; None where it stays plain."""
        if self.skipped(module):
            return None
        return next((packing for test, packing in self.others if test(module)), self.packing)


def scheme_of(config: Mapping[str, Any], where: str) -> Scheme:
    """The scheme of a `quantization_config`; ModelError naming the field for one not known here."""
    nested = config.get("quantization")
    if isinstance(nested, Mapping):
        config = nested
    skipped = _skipped(config, where)
    if "quant_algo" not in config and config.get("quant_method") == "compressed-tensors":
        return _compressed(config, skipped, where)
    packing = _packing(config, where)
    experts = config.get("expert_dtype")
    if experts is None or experts == "fp8":
        return Scheme(packing, skipped)
    if experts != "fp4" or packing.block != (128, 128):
        raise _unknown("expert_dtype", experts, where)
    others = ((lambda module: ".experts." in module, PACKINGS["mxfp4"]),)
    return Scheme(PACKINGS["fp8-ue8m0"], skipped, others)


def _unknown(field: str, value: object, where: str) -> ModelError:
    short = Repr()
    short.maxstring = short.maxother = 80
    return ModelError(
        f"{where}: quantization_config.{field} {short.repr(value)} is not known",
        "give the format of the weights with --dtype",
    )


def _packing(config: Mapping[str, Any], where: str) -> Packing:
    method, algorithm = config.get("quant_method"), config.get("quant_algo")
    if algorithm is not None:
        return _modelopt(config, algorithm, where)
    if method == "fp8":
        return _fp8(config, where)
    if method in ("awq", "gptq"):
        return _integers(config, method, where)
    if method in ("auto-round", "intel/auto-round"):
        return _auto_round(config, where)
    if method in ("mxfp4", "nvfp4"):
        return PACKINGS[method]
    if method == "fbgemm_fp8":
        return PACKINGS["fp8-channel"]
    if method == "bitsandbytes":
        return _bitsandbytes(config, where)
    raise _unknown("quant_method", method, where)


def _modelopt(config: Mapping[str, Any], algorithm: object, where: str) -> Packing:
    if algorithm in ("W4A16_AWQ", "W4A8_AWQ"):
        return _int(4, config.get("group_size", 128), bool(config.get("has_zero_point")), where)
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise _unknown("quant_algo", algorithm, where)
    return PACKINGS[ALGORITHMS[algorithm]]


def _fp8(config: Mapping[str, Any], where: str) -> Packing:
    """Scales by block; without `weight_block_size` one for each tensor."""
    value = config.get("weight_block_size")
    return PACKINGS["fp8-tensor"] if value is None else _fp8_blocks(value, where)


def _fp8_blocks(value: object, where: str) -> Packing:
    if not isinstance(value, list) or len(value) != 2 or not all(_whole(v, 65_536) for v in value):
        raise _unknown("weight_block_size", value, where)
    return Packing("fp8", 1, (value[0], value[1]), 4)


def _whole(value: object, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= high


def _integers(config: Mapping[str, Any], method: str, where: str) -> Packing:
    """AWQ and GPTQ: zeros are stored; GPTQ keeps each input's group too when it reorders."""
    bits = config.get("bits", config.get("w_bit", 4))
    group = config.get("group_size", config.get("q_group_size", 128))
    if config.get("dynamic"):
        raise _unknown("dynamic", config["dynamic"], where)
    column = 4 if method == "gptq" and config.get("desc_act") is True else 0
    return _int(bits, group, True, where, column)


def _auto_round(config: Mapping[str, Any], where: str) -> Packing:
    """Intel's AutoRound, packed as AWQ or GPTQ would; each input's group is kept in the form of
    GPTQModel alone. Source: `auto_round/export/export_to_autoround/export.py`."""
    form, kind = config.get("packing_format"), config.get("data_type", "int")
    if kind != "int":
        raise _unknown("data_type", kind, where)
    if not isinstance(form, str) or not form.startswith("auto_round"):
        raise _unknown("packing_format", form, where)
    column = 4 if "gptqmodel" in form else 0
    return _int(config.get("bits"), config.get("group_size"), True, where, column)


def _int(bits: object, group: object, zero: bool, where: str, column: int = 0) -> Packing:
    if bits not in (4, 8):
        raise _unknown("bits", bits, where)
    if group != -1 and not _whole(group, 65_536):
        raise _unknown("group_size", group, where)
    assert isinstance(bits, int | float)
    assert isinstance(group, int)
    width = bits / 8
    scale = 2 + (width if zero else 0)
    return Packing(f"int{int(bits)}-g{group}", width, (1, max(group, 0)), scale, column=column)


def _bitsandbytes(config: Mapping[str, Any], where: str) -> Packing:
    if config.get("load_in_8bit") is True or config.get("_load_in_8bit") is True:
        return PACKINGS["int8"]
    if config.get("load_in_4bit") is True or config.get("_load_in_4bit") is True:
        return PACKINGS["nf4-double" if config.get("bnb_4bit_use_double_quant") else "nf4-plain"]
    raise _unknown("load_in_4bit", config.get("load_in_4bit"), where)


def _compressed(config: Mapping[str, Any], skipped: Test, where: str) -> Scheme:
    """The groups of compressed-tensors: names first, then those that take every linear layer."""
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not 1 <= len(groups) <= 16:
        raise _unknown("config_groups", groups, where)
    named: list[tuple[Test, Packing]] = []
    everything: list[Packing] = []
    for group in groups.values():
        targets = group.get("targets") if isinstance(group, Mapping) else None
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            raise _unknown("config_groups.weights", weights, where)
        packing = _compressed_weights(weights, where)
        targets = ["Linear"] if targets is None else targets
        names = _names("config_groups.targets", targets, where)
        if any(
            "." not in name and not name.startswith("re:") and name != "Linear" for name in names
        ):
            raise _unknown("config_groups.targets", targets, where)
        if "Linear" in names:
            everything.append(packing)
        named.append((_matcher("config_groups.targets", names, where), packing))
    if everything:
        return Scheme(everything[0], skipped, tuple(named))
    return Scheme(
        named[0][1],
        lambda module: skipped(module) or not any(test(module) for test, _ in named),
        tuple(named),
    )


def _compressed_weights(weights: Mapping[str, Any], where: str) -> Packing:
    bits, kind, size = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    strategy = weights.get("strategy")
    if kind == "int":
        group = size if strategy == "group" else -1
        return _int(bits, group, weights.get("symmetric") is False, where)
    if (kind, bits) == ("float", 8):
        if strategy == "block":
            return _fp8_blocks(weights.get("block_structure"), where)
        if strategy == "group" and size == 32:
            return PACKINGS["fp8-mx"]
        if strategy in ("channel", "tensor", None):
            return PACKINGS["fp8-channel" if strategy == "channel" else "fp8-tensor"]
    if (kind, bits, size) == ("float", 4, 16):
        return PACKINGS["nvfp4"]
    if (kind, bits, size) == ("float", 4, 32):
        return PACKINGS["mxfp4"]
    raise _unknown("config_groups.weights", dict(weights), where)


def _skipped(config: Mapping[str, Any], where: str) -> Test:
    """Whether a module's full name is among those that stay unpacked."""
    named: list[str] = []
    for field in SKIP_FIELDS:
        if (value := config.get(field)) is not None:
            named += _names(field, value, where)
    named += _left_out(config.get("extra_config"), where)
    return _matcher("modules to leave out", [*PLAIN, *named], where)


def _left_out(settings: object, where: str) -> list[str]:
    """Modules that AutoRound's `extra_config` leaves in 16 bits or more; other settings of single
    modules are not known here."""
    if settings is None:
        return []
    if not isinstance(settings, Mapping):
        raise _unknown("extra_config", settings, where)
    for name, setting in settings.items():
        bits = setting.get("bits") if isinstance(setting, Mapping) else None
        if bits not in (16, 32):
            raise _unknown("extra_config", {name: setting}, where)
    return _names("extra_config", list(settings), where)


def _names(field: str, value: object, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise _unknown(field, value, where)
    if len(value) > MAX_NAMES:
        raise ModelError(
            f"{where}: quantization_config.{field} has {len(value):,} entries",
            f"up to {MAX_NAMES:,} are read; give the format of the weights with --dtype",
        )
    return value


def _matcher(field: str, names: list[str], where: str) -> Test:
    from kvtool.model.modules import NotUnderstood, matcher  # most models are not quantised

    try:
        return matcher(names)
    except NotUnderstood as error:
        raise _unknown(field, str(error), where) from None
