"""Document lengths in tokens: one number, or a distribution written with its name."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvtool.errors import UsageError
from kvtool.units import parse_tokens

_HINT = "examples: 1024, uniform:200..800, lognormal:1000,0.5 (mean in tokens, sigma of the log)"
_MAX_LENGTH = 1 << 30


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long documents are: `low..high` tokens with equal chance, or lognormal with `sigma` > 0.

    A lognormal has mean `low` = `high` before rounding to whole tokens, at least one.
    """

    low: int
    high: int
    sigma: float = 0.0

    @property
    def fixed(self) -> int | None:
        """The length of all documents, None when they differ."""
        return self.low if self.low == self.high and not self.sigma else None

    def __str__(self) -> str:
        if self.sigma:
            return f"lognormal:{self.low},{self.sigma:g}"
        return str(self.low) if self.low == self.high else f"uniform:{self.low}..{self.high}"

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """[count] lengths."""
        if self.fixed is not None:
            return np.full(count, self.low, dtype=np.int64)
        if not self.sigma:
            return rng.integers(self.low, self.high, size=count, endpoint=True)
        location = math.log(self.low) - self.sigma**2 / 2
        tokens = np.rint(rng.lognormal(location, self.sigma, size=count))
        return np.clip(tokens, 1, _MAX_LENGTH).astype(np.int64)


def parse_lengths(text: str) -> Lengths:
    """Lengths from what is typed: `1024`, `uniform:200..800`, `lognormal:1000,0.5`.

    >>> str(parse_lengths("uniform:1k..2k"))
    'uniform:1024..2048'
    """
    name, found, rest = text.partition(":")
    if not found:
        tokens = _tokens(text)
        return Lengths(tokens, tokens)
    match name.strip().lower():
        case "uniform":
            low_text, dots, high_text = rest.partition("..")
            low, high = (_tokens(low_text), _tokens(high_text)) if dots else (1, 0)
            if low > high:
                raise UsageError(f"'{text}' is not a distribution of document lengths", _HINT)
            return Lengths(low, high)
        case "lognormal":
            mean_text, _, sigma_text = rest.partition(",")
            mean = _tokens(mean_text)
            try:
                sigma = float(sigma_text)
            except ValueError:
                sigma = math.nan
            if not 0 < sigma <= 5:
                raise UsageError(f"'{text}' needs a sigma above 0, at most 5", _HINT)
            return Lengths(mean, mean, sigma)
    raise UsageError(f"'{text}' is not a distribution of document lengths", _HINT)


def _tokens(text: str) -> int:
    tokens = parse_tokens(text)
    if tokens > _MAX_LENGTH:
        raise UsageError(
            f"'{text}' tokens are too many for one document", f"at most {_MAX_LENGTH:,}"
        )
    return tokens
