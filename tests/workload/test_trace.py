"""Traces: formats by content, block sizes, and a clear word for each line that is wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kvtool.errors import KvtoolError, UsageError
from kvtool.workload.memory import BYTES_PER_ACCESS, check_fits
from kvtool.workload.trace import load_trace


@pytest.fixture
def write(tmp_path):
    def write_lines(*lines, end="\n"):
        path = tmp_path / "trace.jsonl"
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        path.write_text(text + end)
        return path

    return write_lines


def mooncake(input_length, ids, timestamp=0, output_length=5):
    return {
        "timestamp": timestamp,
        "input_length": input_length,
        "output_length": output_length,
        "hash_ids": ids,
    }


def test_a_document_log_is_read_by_content(write):
    path = write(
        {"docs": ["a", "b"], "tokens": [10, 20]}, {"docs": ["b", "a", "b"], "tokens": [20, 10, 20]}
    )

    trace = load_trace(path)

    assert trace.format == "documents"
    assert trace.requests.docs.tolist() == [0, 1, 1, 0, 1]
    assert trace.requests.tokens.tolist() == [10, 20, 20, 10, 20]
    assert trace.requests.repeats.tolist() == [False] * 4 + [True]


def test_one_number_of_tokens_serves_all_documents(write):
    assert load_trace(write({"docs": ["a", 7], "tokens": 9})).requests.tokens.tolist() == [9, 9]


def test_mooncake_blocks_are_of_512_tokens(write):
    trace = load_trace(write(mooncake(600, [1, 2]), "", mooncake(512, [1], timestamp=3)))

    assert trace.format == "mooncake"
    assert trace.requests.block_size == 512
    assert trace.requests.starts.tolist() == [0, 2, 3]
    assert trace.requests.output_tokens.tolist() == [5, 5]


def test_bailian_blocks_are_of_16_tokens(write):
    row = mooncake(40, [1, 2, 3]) | {"chat_id": 1, "parent_chat_id": -1, "type": "text", "turn": 1}

    trace = load_trace(write(row))

    assert (trace.format, trace.requests.block_size) == ("bailian", 16)


def test_another_block_size_is_found_from_the_lines(write):
    path = write(mooncake(250, [1, 2]), mooncake(1_000, list(range(8))))

    assert load_trace(path).requests.block_size == 128
    assert load_trace(path, 128).requests.block_size == 128


def test_traces_without_the_last_partial_block_are_read(write):
    path = write(mooncake(1_100, [1, 2]), mooncake(100, []))

    assert load_trace(path).requests.starts.tolist() == [0, 2, 2]


def test_a_block_size_that_is_not_the_files_is_refused_with_the_right_one(write):
    path = write(mooncake(6_758, list(range(14))))

    with pytest.raises(UsageError, match="--block-size 16 is not") as raised:
        load_trace(path, 16)
    assert "512" in raised.value.hint
    assert "14 block ids for 6,758 tokens" in str(raised.value)


def test_negative_ids_are_ids_like_others(write):
    ids = load_trace(write(mooncake(1_000, [-5, 7]), mooncake(1_000, [-5, 8]))).requests.ids

    assert ids.tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "is empty"),
        (["", "  "], "is empty"),
        (["TIMESTAMP,ContextTokens"], "line 1 .* is not JSON"),
        ([mooncake(5, [1]), "{nonsense}", mooncake(5, [1])], "line 2 .* is not JSON"),
        (["[1, 2]"], "line 1 .* not a JSON object"),
        ([{"prompt": "x"}], "neither 'docs' nor 'hash_ids' .*prompt"),
        ([mooncake(5, [1]), {"docs": ["a"]}], "line 2 .*'hash_ids' is not a list"),
        ([mooncake(5, ["x"])], "'hash_ids' is not a list of whole numbers"),
        ([mooncake(5, [True])], "'hash_ids' is not a list of whole numbers"),
        ([mooncake("5", [1])], "'input_length' is '5'"),
        ([mooncake(-5, [1])], "'input_length' is '-5'"),
        ([mooncake(5, [2**70])], "64 bits"),
        ([mooncake(5, [1], 7), mooncake(5, [1], 6)], "line 2 .*timestamp 6 comes after 7"),
        ([mooncake(5, [1], "x")], "timestamp 'x' is not a number"),
        ([mooncake(5_000, [1, 2]), mooncake(600, [1, 2])], "fits no block size"),
        ([{"docs": [], "tokens": []}], "'docs' is not a list"),
        ([{"docs": ["a"], "tokens": [1, 2]}], "length for each of 1 docs"),
        ([{"docs": ["a"], "tokens": [0]}], "'a' has '0' tokens"),
        ([{"docs": ["a"], "tokens": [1.5]}], "'a' has '1.5' tokens"),
        ([{"docs": [None], "tokens": [1]}], "neither text nor a number"),
        (
            [{"docs": ["a"], "tokens": [1_000]}, {"docs": ["a"], "tokens": [2]}],
            "line 2 .*'a' has 2 tokens, 1,000 before",
        ),
        (["[" * 100_000], "is not JSON"),
    ],
)
def test_what_is_wrong_with_a_trace_is_said_with_its_line(write, lines, message):
    with pytest.raises(KvtoolError, match=message):
        load_trace(write(*lines))


def test_a_truncated_last_line_is_called_that(write):
    path = write(mooncake(5, [1]), json.dumps(mooncake(5, [1]))[:30], end="")

    with pytest.raises(KvtoolError, match=r"line 2 .* is cut off"):
        load_trace(path)


def test_a_missing_file_and_a_folder_are_errors(tmp_path):
    with pytest.raises(KvtoolError, match=r"cannot read trace .*no such file"):
        load_trace(tmp_path / "none.jsonl")
    with pytest.raises(KvtoolError, match="cannot read trace"):
        load_trace(tmp_path)


def test_a_trace_larger_than_memory_is_refused_before_it_is_loaded(write):
    path = write(*[mooncake(5_000, list(range(10)), n) for n in range(200)])

    with pytest.raises(KvtoolError, match=r"need .*but 97\.66 KiB is available"):
        load_trace(path, available=100_000)


def test_the_estimate_of_a_trace_is_not_below_its_look_ups(write):
    path = write(*[mooncake(5_000, list(range(10)), n) for n in range(200)])
    needed = 2_000 * BYTES_PER_ACCESS

    with pytest.raises(KvtoolError):
        load_trace(path, available=needed - 1)
    assert len(load_trace(path, available=3 * needed).requests.ids) == 2_000


def test_nothing_is_refused_that_fits():
    check_fits(10, "this", "", available=10 * BYTES_PER_ACCESS)
    with pytest.raises(KvtoolError, match="10 look-ups"):
        check_fits(10, "this", "", curves=2, available=10 * BYTES_PER_ACCESS)


def test_columns_are_int64(write):
    requests = load_trace(write(mooncake(600, [1, 2]))).requests

    assert {requests.ids.dtype, requests.starts.dtype} == {np.dtype(np.int64)}
