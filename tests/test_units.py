"""Tokens, bytes, counts and lists: what people type and what they read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtool.errors import UsageError
from kvtool.units import (
    format_bytes,
    format_count,
    format_gib,
    parse_bytes,
    parse_count,
    parse_list,
    parse_tokens,
)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("8192", 8192),
        ("8_192", 8192),
        ("8k", 8192),
        ("8K", 8192),
        ("32k", 32_768),
        ("1M", 1_048_576),
        ("1m", 1_048_576),
        ("1.5k", 1536),
    ],
)
def test_tokens_are_binary_in_both_cases(text, tokens):
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-5",
        "32q",
        "",
        "k",
        "1e5",
        "0.3",
        "1.0001k",
        "80G",
        "99999999999999999999",
        "٣",
        "8 8",
        "nan",
    ],
)
def test_tokens_refuse_what_is_no_positive_whole_number(text):
    with pytest.raises(UsageError, match="is not a number of tokens"):
        parse_tokens(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 << 30),
        ("80 GiB", 80 << 30),
        ("80gib", 80 << 30),
        ("80GB", 80 * 10**9),
        ("1.5KiB", 1536),
        ("1kB", 1000),
        ("512", 512),
        ("512B", 512),
        ("1TiB", 1 << 40),
    ],
)
def test_bytes_say_their_base(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["80G", "80g", "5k", "1T"])
def test_bytes_without_a_base_are_refused_with_both_spellings(text):
    with pytest.raises(UsageError) as caught:
        parse_bytes(text)

    assert f"{text[-1].upper()}iB (1024)" in caught.value.hint


@pytest.mark.parametrize("text", ["-1", "0", "1.3", "GiB", "80GX", "1e9"])
def test_bytes_refuse_what_is_no_size(text):
    with pytest.raises(UsageError):
        parse_bytes(text)


def test_counts_are_decimal():
    assert parse_count("100k") == 100_000
    assert parse_count("1M") == 1_000_000


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("4k,8k", [4096, 8192]),
        ("4k..32k*2", [4096, 8192, 16_384, 32_768]),
        ("1k..4k+1k", [1024, 2048, 3072, 4096]),
        ("100,4k..8k*2", [100, 4096, 8192]),
        ("4k..5k*2", [4096]),
    ],
)
def test_lists_and_ranges(text, values):
    assert parse_list(text, parse_tokens) == values


@pytest.mark.parametrize(
    "text", ["4k,,8k", ",", "4k..8k", "8k..4k*2", "4k..8k*1", "4k..8k+0", "..8k*2", "1..1M+1"]
)
def test_lists_refuse_what_is_none(text):
    with pytest.raises(UsageError):
        parse_list(text, parse_tokens)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (132, "132 B"),
        (1024, "1.00 KiB"),
        (10_737_418_240, "10.00 GiB"),
        (5_704_253_440, "5.3125 GiB"),
        (141_107_412_992, "131.42 GiB"),
        (1_212_678_144, "1.13 GiB"),
    ],
)
def test_bytes_have_as_many_decimals_as_make_them_useful(value, text):
    assert format_bytes(value) == text


def test_small_sizes_in_gib_are_not_shown_as_zero():
    assert format_gib(65_536) == "0.00006"


def test_counts_are_said_the_way_people_say_them():
    assert format_count(70_553_706_496) == "70.55 B"


@given(st.integers(1, 1 << 18), st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
def test_parsing_undoes_printing_of_whole_units(number, unit):
    size = number * 1024 ** (1 + ["KiB", "MiB", "GiB", "TiB"].index(unit))

    assert parse_bytes(f"{number}{unit}") == size


@given(st.integers(1, 1 << 40))
def test_tokens_print_and_parse_back(tokens):
    assert parse_tokens(f"{tokens}") == tokens
    assert parse_tokens(f"{tokens:_}") == tokens


def number_or_none(parse, text):
    try:
        return parse(text)
    except UsageError:
        return None


@given(st.text(max_size=30))
def test_any_text_is_a_positive_number_or_a_usage_error(text):
    for parse in (parse_tokens, parse_bytes, parse_count):
        value = number_or_none(parse, text)

        assert value is None or value >= 1
