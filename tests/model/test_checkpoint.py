"""Sizes of checkpoints from their headers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.errors import ModelError
from kvtool.model.checkpoint import (
    DTYPE_BITS,
    Checkpoint,
    StoredTensor,
    read_checkpoint,
    read_safetensors,
)

TENSORS = {
    "model.embed_tokens.weight": ("BF16", (100, 8)),
    "model.layers.0.mlp.up_proj.weight": ("F8_E4M3", (16, 8)),
    "model.layers.0.mlp.up_proj.weight_scale_inv": ("F32", (1, 1)),
    "model.layers.1.mlp.up_proj.weight": ("F8_E4M3", (16, 8)),
    "model.norm.weight": ("BF16", (8,)),
    "step": ("I64", ()),
}


def header_of(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> dict[str, Any]:
    """A safetensors header that places the tensors one behind the other."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + StoredTensor(name, dtype, shape).stored_bytes
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    return entries


def write_safetensors(
    path: Path, tensors: dict[str, tuple[str, tuple[int, ...]]], *, data: int | None = None
) -> Path:
    text = json.dumps(header_of(tensors)).encode()
    stored = sum(StoredTensor(name, *rest).stored_bytes for name, rest in tensors.items())
    size = stored if data is None else data
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * size)
    return path


def write_raw(path: Path, header: object) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    return path


def test_a_single_file_gives_exact_bytes_and_parameters(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", TENSORS)

    found = read_checkpoint(tmp_path)

    assert found is not None
    assert found.total_bytes == 1600 + 128 + 4 + 128 + 16 + 8
    assert found.parameters == 800 + 128 + 1 + 128 + 8 + 1


def write_shards(folder: Path, *, total: object = 1884) -> None:
    halves = [dict(list(TENSORS.items())[:3]), dict(list(TENSORS.items())[3:])]
    weight_map: dict[str, str] = {}
    for number, half in enumerate(halves, start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        write_safetensors(folder / file, half)
        weight_map |= dict.fromkeys(half, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards_are_read_by_their_headers_not_by_what_the_index_claims(tmp_path: Path) -> None:
    write_shards(tmp_path, total=1)

    found = read_checkpoint(tmp_path)

    assert found is not None
    assert (found.total_bytes, found.parameters, len(found.tensors)) == (1884, 1066, 6)


def test_an_index_alone_gives_the_total(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()

    assert read_checkpoint(tmp_path) == Checkpoint(1884)


def test_a_git_lfs_pointer_is_not_taken_for_a_shard(tmp_path: Path) -> None:
    write_shards(tmp_path)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1884\n"
    (tmp_path / "model-00001-of-00002.safetensors").write_text(pointer)

    assert read_checkpoint(tmp_path) == Checkpoint(1884)


def test_an_index_of_pickled_weights_gives_the_total_and_nothing_is_unpickled(
    tmp_path: Path,
) -> None:
    index = {"metadata": {"total_size": 26.0}, "weight_map": {"a": "pytorch_model-1.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (tmp_path / "pytorch_model-1.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")

    assert read_checkpoint(tmp_path) == Checkpoint(26)


def test_one_copy_is_counted_where_a_folder_holds_two(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"a": ("F16", (4,))})
    write_safetensors(tmp_path / "consolidated.safetensors", {"b": ("F16", (4,))})
    write_safetensors(tmp_path / "adapter_model.safetensors", {"c": ("F16", (4,))})

    found = read_checkpoint(tmp_path)

    assert found == Checkpoint(8, (StoredTensor("a", "F16", (4,)),))


def test_a_folder_without_weights_gives_none(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "adapter_model.safetensors", {"c": ("F16", (4,))})

    assert read_checkpoint(tmp_path) is None


def test_packed_four_bit_floats_take_half_a_byte(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "model.safetensors", {"a": ("F4", (3, 32))})

    assert read_safetensors(path)[0].stored_bytes == 48


@pytest.mark.parametrize("dtype", DTYPE_BITS)
def test_every_dtype_of_the_format_is_read(tmp_path: Path, dtype: str) -> None:
    path = write_safetensors(tmp_path / "model.safetensors", {"a": (dtype, (8, 4))})

    assert read_safetensors(path) == (StoredTensor("a", dtype, (8, 4)),)


def test_the_safetensors_package_and_kvtool_agree(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    package = pytest.importorskip("safetensors.numpy")
    arrays = {"b": numpy.zeros((3, 5), numpy.float16), "a": numpy.zeros((), numpy.int32)}
    package.save_file(arrays, tmp_path / "model.safetensors")

    found = read_checkpoint(tmp_path)

    assert found == Checkpoint(34, (StoredTensor("a", "I32", ()), StoredTensor("b", "F16", (3, 5))))


ENTRY = {"dtype": "F16", "shape": [4], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        ([], "holds list, not a JSON object"),
        ({"a": ENTRY | {"dtype": "F17"}}, "tensor 'a' has dtype 'F17'"),
        ({"a": ENTRY | {"dtype": ["F16"]}}, "tensor 'a' has dtype"),
        ({"a": 1}, "tensor 'a' has dtype None"),
        ({"a": ENTRY | {"shape": [-4]}}, r"has shape \[-4\]"),
        ({"a": ENTRY | {"shape": [True]}}, "has shape"),
        ({"a": ENTRY | {"shape": [4.0]}}, "has shape"),
        ({"a": ENTRY | {"shape": None}}, "has shape None"),
        ({"a": ENTRY | {"shape": [1] * 17}}, "has shape"),
        ({"a": ENTRY | {"shape": [1 << 48, 1 << 48]}}, "say otherwise"),
        ({"a": ENTRY | {"data_offsets": [0]}}, r"offsets \[0\]"),
        ({"a": ENTRY | {"data_offsets": [8, 0]}}, "offsets 8 to 0 say otherwise"),
        ({"a": ENTRY | {"data_offsets": [0, 9]}}, "takes 8 bytes"),
        ({"a": ENTRY}, "its header says"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(
    tmp_path: Path, header: object, fault: str
) -> None:
    write_raw(tmp_path / "model.safetensors", header)

    with pytest.raises(ModelError, match=fault):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "ends inside its header"),
        (b"\0" * 7, "ends inside its header"),
        (b"\0" * 8, "header of 0 bytes"),
        (struct.pack("<Q", 1 << 62) + b"{}", "header of 4,611,686,018,427,387,904 bytes"),
        (struct.pack("<Q", 100) + b"{}", "header of 100 bytes in a file of 10"),
        (struct.pack("<Q", 3) + b"{,}", "does not hold JSON"),
        (struct.pack("<Q", 3) + b"\xff\xfe\xfd", "does not hold JSON"),
        (struct.pack("<Q", 20_000) + b"[" * 20_000, "does not hold JSON"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    ],
    ids=["empty", "cut", "zero", "huge", "past the end", "syntax", "not text", "deep", "pointer"],
)
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes, fault: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)

    with pytest.raises(ModelError, match=fault):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("data", [0, 1883, 1885])
def test_a_file_with_too_little_or_too_much_data_is_refused(tmp_path: Path, data: int) -> None:
    write_safetensors(tmp_path / "model.safetensors", TENSORS, data=data)

    with pytest.raises(ModelError, match="bytes, its header says"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("index", "fault"),
    [
        ("{", "does not hold JSON"),
        ("[]", "holds list"),
        ("{}", "no weight_map"),
        ('{"weight_map": {"a": "../secret.safetensors"}}', "names the file '../secret"),
        ('{"weight_map": {"a": 3}}', "names the file ''"),
        ('{"weight_map": {"a": "x.safetensors"}}', "states no metadata.total_size"),
        (
            '{"weight_map": {"a": "x.safetensors"}, "metadata": {"total_size": -1}}',
            "states no metadata.total_size",
        ),
        (
            '{"weight_map": {"a": "x.safetensors"}, "metadata": {"total_size": "9"}}',
            "states no metadata.total_size",
        ),
    ],
)
def test_a_broken_index_is_refused(tmp_path: Path, index: str, fault: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)

    with pytest.raises(ModelError, match=fault):
        read_checkpoint(tmp_path)


def test_a_tensor_stored_twice_is_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        write_safetensors(tmp_path / f"model-{number}.safetensors", {"a": ("F16", (4,))})

    with pytest.raises(ModelError, match="stores 'a' in 2 files"):
        read_checkpoint(tmp_path)


@settings(max_examples=300, deadline=None)
@given(
    edits=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6),
    kept=st.integers(0, 3000),
)
def test_changed_or_cut_files_give_sizes_or_an_error_but_no_traceback(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, int]], kept: int
) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")
    path = write_safetensors(folder / "model.safetensors", TENSORS)
    changed = bytearray(path.read_bytes())
    for position, value in edits:
        changed[position % len(changed)] = value
    path.write_bytes(changed[: max(kept, len(changed) * (kept % 2))])

    try:
        found = read_checkpoint(folder)
    except ModelError:
        return

    assert found is not None
    assert found.total_bytes == sum(tensor.stored_bytes for tensor in found.tensors)
