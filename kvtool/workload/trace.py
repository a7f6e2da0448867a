"""Requests from a trace file, one JSON object a line, the format found by content.

- document log: `{"docs": ["id", ..], "tokens": [n, ..]}`, or one number of tokens for all
- Mooncake: `{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [..]}`, 512-token
  blocks; github.com/kvcache-ai/Mooncake, FAST25-release/traces
- Bailian: the same with `chat_id`, `parent_chat_id`, `type`, `turn`, and 16-token blocks;
  github.com/alibaba-edu/qwen-bailian-usagetraces-anon

A file is read line by line and never held as text. A fault names its line and stops the reading.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvtool.errors import KvtoolError, UsageError
from kvtool.workload.memory import check_fits
from kvtool.workload.requests import (
    BlockRequests,
    Bools,
    DocumentRequests,
    Ints,
    repeats_in_request,
)

MAX_LINE_BYTES = 1 << 26
MAX_BLOCK_SIZE = 1 << 16
_SAMPLE_BYTES = 1 << 20
_MAX_TOKENS = 1 << 40
_USUAL_BLOCK_SIZE = {"mooncake": 512, "bailian": 16}
_FORMATS = "formats: a document log with 'docs' and 'tokens', Mooncake or Bailian with 'hash_ids'"


@dataclass(frozen=True, slots=True)
class Trace:
    """What a trace file holds: its format's name and its requests."""

    format: str
    requests: DocumentRequests | BlockRequests


def load_trace(path: Path, block_size: int | None = None, available: int | None = None) -> Trace:
    """The requests of a trace file in file order.

    `block_size` is checked against a block trace; without it the format's usual size is taken, or
    the power of two that the first lines show. Raises KvtoolError naming the line for what cannot
    be read, UsageError for a block size that is not the file's, and refuses a file whose look-ups
    would not fit into `available` bytes of memory (default: what the machine has).
    """
    lines = _Lines(path)
    first = next(iter(lines), None)
    if first is None:
        raise KvtoolError(f"'{path}' is empty", _FORMATS)
    number, row = first
    trace_format = _recognise(row, lines.at(number))
    _refuse_what_does_not_fit(path, available)
    if trace_format == "documents":
        return Trace(trace_format, _read_documents(lines))
    return Trace(trace_format, _read_blocks(lines, trace_format, block_size))


class _Lines:
    """Numbered JSON objects of a file; errors say which line and why."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb"):
                pass
        except OSError as error:
            reason = (error.strerror or "unknown reason").lower()
            raise KvtoolError(
                f"cannot read trace '{path}': {reason}", "check the path given to --trace"
            ) from error

    def at(self, number: int) -> str:
        return f"line {number:,} of '{self.path}'"

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        number = 0
        with self.path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise KvtoolError(
                        f"{self.at(number)} is longer than {MAX_LINE_BYTES >> 20} MiB", _FORMATS
                    )
                if line.strip():
                    yield number, self._parse(line, number)

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            start = line[:40].decode("utf-8", "replace").strip()
            if not line.endswith(b"\n") and number > 1:
                raise KvtoolError(
                    f"{self.at(number)} is cut off: '{start}..'",
                    "the file seems truncated: copy it again, or delete its last line",
                ) from error
            raise KvtoolError(f"{self.at(number)} is not JSON: '{start}'", _FORMATS) from error
        if not isinstance(row, dict):
            raise KvtoolError(f"{self.at(number)} is not a JSON object", _FORMATS)
        return row


def _recognise(row: dict[str, Any], where: str) -> str:
    if "docs" in row:
        return "documents"
    if "hash_ids" in row:
        return "bailian" if "chat_id" in row else "mooncake"
    keys = ", ".join(sorted(map(str, row))[:6]) or "none"
    raise KvtoolError(f"{where} has neither 'docs' nor 'hash_ids' (its keys: {keys})", _FORMATS)


def _refuse_what_does_not_fit(path: Path, available: int | None) -> None:
    """Estimate the look-ups from the commas of the first MiB; refuse before loading."""
    if not path.is_file():
        return
    total = path.stat().st_size
    with path.open("rb") as file:
        sample = file.read(_SAMPLE_BYTES)
    per_byte = (sample.count(b",") + sample.count(b"\n")) / max(len(sample), 1)
    hint = "use a shorter trace or more memory"
    check_fits(int(per_byte * total), f"'{path}'", hint, available=available)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _read_documents(lines: _Lines) -> DocumentRequests:
    number_of: dict[str | int, int] = {}
    length_of: list[int] = []
    docs, tokens, starts = array("q"), array("q"), array("q", [0])
    for number, row in lines:
        ids, lengths = row.get("docs"), row.get("tokens")
        if not isinstance(ids, list) or not ids:
            raise KvtoolError(f"{lines.at(number)}: 'docs' is not a list of ids", _FORMATS)
        if _whole(lengths):
            lengths = [lengths] * len(ids)
        if not isinstance(lengths, list) or len(lengths) != len(ids):
            raise KvtoolError(
                f"{lines.at(number)}: 'tokens' does not give a length for each of {len(ids)} docs",
                "tokens is a list as long as docs, or one number for all",
            )
        for doc, length in zip(ids, lengths, strict=True):
            if not isinstance(doc, str) and not _whole(doc):
                raise KvtoolError(
                    f"{lines.at(number)}: document id {str(doc)[:40]} is neither text nor a number",
                    _FORMATS,
                )
            if not _whole(length) or not 1 <= length <= _MAX_TOKENS:
                raise KvtoolError(
                    f"{lines.at(number)}: '{str(doc)[:40]}' has '{str(length)[:40]}' tokens",
                    "lengths are whole numbers of at least 1",
                )
            index = number_of.setdefault(doc, len(length_of))
            if index == len(length_of):
                length_of.append(length)
            elif length_of[index] != length:
                raise KvtoolError(
                    f"{lines.at(number)}: document '{str(doc)[:40]}' has {length:,} tokens, "
                    f"{length_of[index]:,} before",
                    "a changed document is another document: give it another id",
                )
            docs.append(index)
            tokens.append(length)
        starts.append(len(docs))
    ids_array, starts_array = _ints(docs), _ints(starts)
    repeats = repeats_in_request(ids_array, starts_array)
    return DocumentRequests(ids_array, _ints(tokens), starts_array, repeats)


@dataclass(slots=True)
class _Blocks:
    """Columns of a block trace while it is read."""

    ids: array[int] = field(default_factory=lambda: array("q"))
    starts: array[int] = field(default_factory=lambda: array("q", [0]))
    input_tokens: array[int] = field(default_factory=lambda: array("q"))
    output_tokens: array[int] = field(default_factory=lambda: array("q"))
    lines: array[int] = field(default_factory=lambda: array("q"))


def _read_blocks(lines: _Lines, trace_format: str, block_size: int | None) -> BlockRequests:
    columns = _Blocks()
    before = -float("inf")
    for number, row in lines:
        ids, where = row.get("hash_ids"), lines.at(number)
        if not isinstance(ids, list) or not all(map(_whole, ids)):
            raise KvtoolError(f"{where}: 'hash_ids' is not a list of whole numbers", _FORMATS)
        columns.input_tokens.append(_length(row, "input_length", where))
        columns.output_tokens.append(_length(row, "output_length", where, default=0))
        before = _check_time(row.get("timestamp"), before, where)
        try:
            columns.ids.extend(ids)
        except OverflowError as error:
            raise KvtoolError(
                f"{where}: a hash id does not fit into 64 bits", "use smaller ids"
            ) from error
        columns.starts.append(len(columns.ids))
        columns.lines.append(number)
    ids, starts = _ints(columns.ids), _ints(columns.starts)
    input_tokens = _ints(columns.input_tokens)
    size = _settle_block_size(
        np.diff(starts), input_tokens, _ints(columns.lines), lines, trace_format, block_size
    )
    if len(ids) and int(ids.min()) < 0:
        ids = np.unique(ids, return_inverse=True)[1]
    return BlockRequests(ids, starts, input_tokens, _ints(columns.output_tokens), size)


def _length(row: dict[str, Any], key: str, where: str, default: int | None = None) -> int:
    value: Any = row.get(key, default)
    if not _whole(value) or not 0 <= value <= _MAX_TOKENS:
        raise KvtoolError(
            f"{where}: '{key}' is '{str(value)[:40]}'", "lengths are whole numbers of tokens"
        )
    return int(value)


def _check_time(value: Any, before: float, where: str) -> float:
    if value is None:
        return before
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise KvtoolError(f"{where}: timestamp '{str(value)[:40]}' is not a number", _FORMATS)
    if value < before:
        raise KvtoolError(
            f"{where}: timestamp {value:,} comes after {before:,}",
            "requests run in file order: sort the file by timestamp",
        )
    return value


def _fits(blocks: Ints, tokens: Ints, size: int) -> Bools:
    """Whether each request has one id per block, with or without a last partial block."""
    fits: Bools = (blocks == tokens // size) | (blocks == -(-tokens // size))
    return fits


def _settle_block_size(
    blocks: Ints,
    tokens: Ints,
    numbers: Ints,
    lines: _Lines,
    trace_format: str,
    wanted: int | None,
) -> int:
    """The tokens per block that every line agrees with: as wanted, usual, or a power of two."""
    usual = _USUAL_BLOCK_SIZE[trace_format]
    powers = [1 << k for k in range(MAX_BLOCK_SIZE.bit_length())]
    for size in [wanted] if wanted else [usual, *powers]:
        if bool(_fits(blocks, tokens, size).all()):
            return size
    size = wanted or usual
    odd = int(np.flatnonzero(~_fits(blocks, tokens, size))[0])
    shown = f"{lines.at(int(numbers[odd]))}: {blocks[odd]:,} block ids for {tokens[odd]:,} tokens"
    others = [p for p in powers if p != wanted and bool(_fits(blocks, tokens, p).all())]
    if wanted and others:
        size = usual if usual in others else others[0]
        raise UsageError(
            f"--block-size {wanted} is not the block size of this trace; {shown}",
            f"leave --block-size out, or give {size}",
        )
    if wanted:
        raise UsageError(f"--block-size {wanted} does not fit: {shown}", "check the trace")
    raise KvtoolError(
        f"{shown} fits no block size that all other lines have",
        "each request needs one id per block of its input: is the file complete?",
    )


def _ints(values: array[int]) -> Ints:
    return np.frombuffer(values, dtype=np.int64) if len(values) else np.zeros(0, dtype=np.int64)
