"""Element types: bytes of a row, blocks that must be filled."""

from __future__ import annotations

import pytest

from kvtool.dtype import DTYPES, kv_format, load_dtype
from kvtool.errors import UsageError


@pytest.mark.parametrize(
    ("name", "row"),
    [
        # 8 heads of 128: plain types, then docs/concepts/kv-cache.md, then gguf's GGML_QUANT_SIZES
        ("float32", 4096),
        ("float16", 2048),
        ("bfloat16", 2048),
        ("fp8_e4m3", 1024),
        ("fp8_e5m2", 1024),
        ("int8", 1024 + 8 * 4),
        ("int4", 1024 // 64 * 36),
        ("nvfp4", 8 * 72),
        ("mxfp4", 1024 // 32 * 17),
        ("q8_0", 1024 // 32 * 34),
        ("q5_1", 1024 // 32 * 24),
        ("q5_0", 1024 // 32 * 22),
        ("q4_1", 1024 // 32 * 20),
        ("q4_0", 1024 // 32 * 18),
        ("iq4_nl", 1024 // 32 * 18),
    ],
)
def test_bytes_of_a_row(name, row):
    assert load_dtype(name).row_bytes(8, 128) == row


def test_every_dtype_is_in_the_table_of_rows():
    assert len(DTYPES) == 15


@pytest.mark.parametrize(
    ("alias", "name"),
    [("fp16", "float16"), ("f16", "float16"), ("bf16", "bfloat16"), ("FP8", "fp8_e4m3"),
     ("torch.bfloat16", "bfloat16"), ("F32", "float32")],
)  # fmt: skip
def test_aliases(alias, name):
    assert load_dtype(alias).name == name


def test_unknown_dtype_suggests_the_close_one():
    with pytest.raises(UsageError) as caught:
        load_dtype("bfloat61")

    assert "did you mean 'bfloat16'" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "heads", "width"), [("q8_0", 1, 80), ("int4", 1, 96), ("nvfp4", 1, 72)]
)
def test_a_row_that_does_not_fill_blocks_is_refused(name, heads, width):
    with pytest.raises(UsageError, match="do not fill a row"):
        load_dtype(name).row_bytes(heads, width)


def test_keys_and_values_may_differ():
    kv = kv_format("q8_0", "q4_0")

    assert (kv.k.name, kv.v.name) == ("q8_0", "q4_0")


def test_a_vector_without_elements_has_no_scale():
    """DeepSeek V4 keeps keys that serve as values; with int8 the missing side cost 4 bytes."""
    assert DTYPES["int8"].row_bytes(1, 0) == 0
