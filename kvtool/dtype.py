"""Element types: their bits, and how a row of cached keys or values is stored in them."""

from __future__ import annotations

from dataclasses import dataclass

from kvtool.errors import UsageError, did_you_mean


@dataclass(frozen=True, slots=True)
class DType:
    """A storage format: `block` elements take `block_bytes`, each head vector `vector_bytes` more.

    `vector_bytes` holds scales that belong to one token, head and side (int8). A row whose
    elements do not fill whole blocks cannot be stored in the format.
    """

    name: str
    block: int
    block_bytes: int
    vector_bytes: int = 0

    def row_bytes(self, num_heads: int, width: int) -> int:
        """Bytes of `num_heads` vectors of `width` elements stored for one token; 0 for no width.

        Raises UsageError when the elements of the row are not a multiple of the block.

        >>> DTYPES["q8_0"].row_bytes(8, 128), DTYPES["int8"].row_bytes(8, 128)
        (1088, 1056)
        """
        elements = num_heads * width
        if elements % self.block:
            raise UsageError(
                f"'{self.name}' stores blocks of {self.block} elements, which do not fill a row of"
                f" {num_heads} x {width} = {elements}",
                "use a dtype with a smaller block, such as fp8 or bfloat16",
            )
        scales = num_heads * self.vector_bytes if width else 0
        return elements // self.block * self.block_bytes + scales

    @property
    def bits(self) -> float:
        """Bits per element, block scales included, vector scales not."""
        return self.block_bytes * 8 / self.block


# Sources: IEEE and OCP for plain types; int8, int4, nvfp4 as this project defines them (docs);
# the last six are GGML_QUANT_SIZES of the gguf package.
DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType("float32", 1, 4),
        DType("float16", 1, 2),
        DType("bfloat16", 1, 2),
        DType("fp8_e4m3", 1, 1),
        DType("fp8_e5m2", 1, 1),
        DType("int8", 1, 1, vector_bytes=4),
        DType("int4", 64, 36),
        DType("nvfp4", 16, 9),
        DType("mxfp4", 32, 17),
        DType("q8_0", 32, 34),
        DType("q5_1", 32, 24),
        DType("q5_0", 32, 22),
        DType("q4_1", 32, 20),
        DType("q4_0", 32, 18),
        DType("iq4_nl", 32, 18),
    )
}

ALIASES = {
    "fp32": "float32",
    "f32": "float32",
    "float": "float32",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}


def load_dtype(name: str) -> DType:
    """The dtype of that name or alias, in any case; UsageError with suggestions otherwise."""
    lowered = name.strip().lower().removeprefix("torch.")
    dtype = DTYPES.get(ALIASES.get(lowered, lowered))
    if dtype is None:
        raise UsageError(
            f"no dtype named '{name}'",
            did_you_mean(name, [*DTYPES, *ALIASES], f"dtypes: {', '.join(DTYPES)}"),
        )
    return dtype


@dataclass(frozen=True, slots=True)
class KVFormat:
    """Storage of cached keys and values. Latent (MLA) rows follow `k`."""

    k: DType
    v: DType


def kv_format(k: str, v: str | None = None) -> KVFormat:
    """The formats named `k` and `v` (default: both `k`)."""
    return KVFormat(load_dtype(k), load_dtype(v or k))


BF16 = kv_format("bfloat16")
