"""Tokens, bytes, counts, lists: parse what people type, print what they read.

Tokens are binary in both cases (`8k` = 8192), bytes say their base (`GiB` or `GB`), counts are
decimal. Everything is an exact integer from here on; rounding happens only in `format_*`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

from kvtool.errors import UsageError

MAX_TOKENS = 1 << 40
MAX_COUNT = 10**12
MAX_BYTES = 1 << 60
MAX_LIST = 10_000

_NUMBER = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z]*)\s*")
_TOKEN_SCALE = {"": 1, "k": 1 << 10, "m": 1 << 20}
_COUNT_SCALE = {"": 1, "k": 10**3, "m": 10**6}
_BYTE_SCALE = {"": 1, "B": 1} | {
    f"{prefix}{unit}": base**power
    for unit, base in (("iB", 1024), ("B", 1000))
    for power, prefix in enumerate(("K" if base == 1024 else "k", "M", "G", "T"), start=1)
}
_BYTE_UNITS = {name.lower(): name for name in _BYTE_SCALE}


def _scaled(text: str, scale: int | None, number: str, low: int, high: int, what: str) -> int:
    hint = f"{what} are whole numbers from {low:,} to {high:,}"
    if scale is None:
        raise UsageError(f"'{text}' is not a number of {what}", hint)
    value = Fraction(Decimal(number.replace("_", ""))) * scale
    if value.denominator != 1 or not low <= value <= high:
        raise UsageError(f"'{text}' is not a number of {what}", hint)
    return int(value)


def _split(text: str) -> tuple[str, str] | None:
    """The number and the unit of `text`; None when it is neither, or absurdly long."""
    match = _NUMBER.fullmatch(text) if len(text) <= 40 else None
    return (match[1], match[2]) if match else None


def parse_tokens(text: str, *, low: int = 1) -> int:
    """Tokens: `8192`, `8_192`, `8k`, `1M`; k and m are 1024 and 1,048,576.

    >>> parse_tokens("32k")
    32768
    """
    parts = _split(text)
    scale = _TOKEN_SCALE.get(parts[1].lower()) if parts else None
    if parts is None or scale is None:
        raise UsageError(
            f"'{text}' is not a number of tokens", "examples: 8192, 8_192, 32k (= 32,768), 1M"
        )
    return _scaled(text, scale, parts[0], low, MAX_TOKENS, "tokens")


def parse_count(text: str, *, low: int = 1, what: str = "items") -> int:
    """Documents, requests and the like: k and m are decimal.

    >>> parse_count("100k")
    100000
    """
    parts = _split(text)
    scale = _COUNT_SCALE.get(parts[1].lower()) if parts else None
    if parts is None or scale is None:
        raise UsageError(f"'{text}' is not a number of {what}", "examples: 100, 1_000, 100k")
    return _scaled(text, scale, parts[0], low, MAX_COUNT, what)


def parse_bytes(text: str) -> int:
    """Bytes: `80GiB`, `80GB`, or a bare number of bytes; `80G` says neither and is refused.

    >>> parse_bytes("1.5 KiB")
    1536
    """
    parts = _split(text)
    unit = _BYTE_UNITS.get(parts[1].lower()) if parts else None
    if parts is None or unit is None:
        half = parts[1].upper() if parts else ""
        hint = (
            f"'{half}' is either {half}iB (1024) or {half}B (1000): write {parts[0]}{half}iB"
            if parts and half in {"K", "M", "G", "T"}
            else "examples: 80GiB, 80GB, 1500MiB; a bare number is bytes"
        )
        raise UsageError(f"'{text}' is not a number of bytes", hint)
    return _scaled(text, _BYTE_SCALE[unit], parts[0], 1, MAX_BYTES, "bytes")


def parse_list(text: str, parse: Callable[[str], int]) -> list[int]:
    """A list `a,b,c` whose members may be ranges `a..b*step` or `a..b+step`.

    >>> parse_list("4k..32k*2,100", parse_tokens)
    [4096, 8192, 16384, 32768, 100]
    """
    values: list[int] = []
    for item in text.split(","):
        if ".." in item:
            values += _range(item, parse)
        elif item.strip():
            values.append(parse(item))
        else:
            raise UsageError(f"'{text}' has an empty entry", "write lists as 4k,8k,16k")
        if len(values) > MAX_LIST:
            raise UsageError(
                f"'{text}' stands for more than {MAX_LIST:,} values", "use a larger step"
            )
    return values


def _range(item: str, parse: Callable[[str], int]) -> list[int]:
    hint = "ranges are written 4k..128k*2 or 4k..128k+4k"
    start_text, _, rest = item.partition("..")
    sign = "*" if "*" in rest else "+"
    stop_text, found, step_text = rest.partition(sign)
    if not (start_text.strip() and stop_text.strip() and found and step_text.strip()):
        raise UsageError(f"'{item}' is not a range", hint)
    start, stop, step = parse(start_text), parse(stop_text), parse(step_text)
    if stop < start or step < (2 if sign == "*" else 1):
        raise UsageError(f"'{item}' is not a rising range", hint)
    values = [start]
    while len(values) <= MAX_LIST:
        following = values[-1] * step if sign == "*" else values[-1] + step
        if following > stop:
            break
        values.append(following)
    return values


def format_bytes(value: int | float) -> str:
    """Bytes for people: the largest binary unit, two decimals or more where exact.

    >>> format_bytes(10_737_418_240), format_bytes(5_704_253_440), format_bytes(132)
    ('10.00 GiB', '5.3125 GiB', '132 B')
    """
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(value) >= 1024**power:
            return f"{_figure(value, 1024**power)} {unit}"
    return f"{value:,} B"


def format_gib(value: int | float) -> str:
    """Bytes in GiB without the unit, for columns whose header names it.

    >>> format_gib(10_737_418_240), format_gib(5_704_253_440), format_gib(65_536)
    ('10.00', '5.3125', '0.00006')
    """
    return _figure(value, 1 << 30)


def _figure(value: int | float, unit: int) -> str:
    """`value / unit` with 2 decimals; 3 or 4 when those make it exact; more when it is tiny."""
    ratio = Fraction(value) / unit
    for decimals in (2, 3, 4):
        if ratio.denominator <= 10**decimals and (ratio * 10**decimals).denominator == 1:
            return f"{float(ratio):,.{decimals}f}"
    if abs(ratio) >= Fraction(1, 10):
        return f"{float(ratio):,.2f}"
    decimals = 3
    while abs(ratio) * 10**decimals < 1 and decimals < 9:
        decimals += 1
    return f"{float(ratio):.{decimals}f}"


def format_count(value: int | float) -> str:
    """A large count in the form people say it: 70.55 B parameters.

    >>> format_count(70_553_706_496), format_count(512)
    ('70.55 B', '512')
    """
    for scale, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if value >= scale:
            return f"{value / scale:,.2f} {unit}"
    return f"{value:,}"
