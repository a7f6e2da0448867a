"""Findings: a printed figure, its prediction, and the verdict on the two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from kvtool.catalog import find_card
from kvtool.device import DeviceSpec
from kvtool.engines.logs import Figure, Start
from kvtool.model.spec import ModelSpec

Verdict = Literal["agree", "within-range", "differ", "unknown"]
# Quotes that mix the memory line of one rank with the token line of another are apart by this much.
MIXED_RANKS = 0.015


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the user knows better than the log, or what the log leaves out."""

    model: ModelSpec | None = None
    engine: str | None = None
    version: str | None = None
    device: DeviceSpec | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    def options_of(self, known: Mapping[str, object]) -> dict[str, str]:
        """The options among those that an engine has."""
        return {name: value for name, value in self.options.items() if name in known}


@dataclass(frozen=True, slots=True)
class Prediction:
    """A figure as the rules give it.

    `low` and `high` bound it: by the rounding of the figures it was computed from, or, for an
    estimate (`is_estimate`), by what is known of its terms.
    """

    value: float
    low: float
    high: float
    why: str = ""
    is_estimate: bool = False

    @classmethod
    def exact(cls, value: float, why: str = "") -> Prediction:
        return cls(value, value, value, why)


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the audit. `why` says where the prediction comes from, or what is missing."""

    figure: Figure
    prediction: Prediction | None
    verdict: Verdict
    why: str


def unknown(figure: Figure, why: str) -> Finding:
    return Finding(figure, None, "unknown", why)


def best(rivals: Iterable[list[Finding]]) -> list[Finding]:
    """Of rival explanations of a log the first under which all figures agree, else the one under
    which fewest differ and most agree; one that explains nothing comes last."""
    found: list[list[Finding]] = []
    for rival in rivals:
        found.append(rival)
        if all(finding.verdict == "agree" for finding in rival):
            return rival
    return min(found, key=_faults)


def _faults(findings: list[Finding]) -> tuple[bool, int, int]:
    verdicts = [finding.verdict for finding in findings]
    explains = any(verdict != "unknown" for verdict in verdicts)
    return not explains, verdicts.count("differ"), -verdicts.count("agree")


def judge(figure: Figure, prediction: Prediction, *, mixed: bool = False) -> Finding:
    """The verdict on a prediction: `agree` when rounding explains the difference, `within-range`
    when an estimate's range does, or `mixed` ranks (up to 1.5 %), else `differ`."""
    overlaps = figure.high >= prediction.low and figure.low <= prediction.high
    close = figure.low <= prediction.value <= figure.high
    why = prediction.why
    if close or (overlaps and not prediction.is_estimate):
        return Finding(figure, prediction, "agree", why)
    if overlaps:
        return Finding(figure, prediction, "within-range", why)
    if mixed and abs(figure.value - prediction.value) <= MIXED_RANKS * prediction.value:
        note = "within the 1.5 % by which ranks differ"
        return Finding(figure, prediction, "within-range", f"{why}; {note}" if why else note)
    return Finding(figure, prediction, "differ", why)


def model_of(start: Start, overrides: Overrides, names: tuple[str, ...]) -> ModelSpec | None:
    """The model: as overridden, else the card of a name in the log, or of its last part.

    A path in a log is never opened.
    """
    if overrides.model is not None:
        return overrides.model
    for name in names:
        text = start.settings.get(name, "")
        for spelled in (text, text.rstrip("/").rsplit("/", 1)[-1]):
            found = _card_model(spelled)
            if found is not None:
                return found
    return None


@lru_cache(maxsize=128)
def _card_model(name: str) -> ModelSpec | None:
    card = find_card(name) if name else None
    return None if card is None else card.spec()


def unknown_model(start: Start, names: tuple[str, ...]) -> str:
    """Why a model could not be used."""
    named = next((start.settings[name] for name in names if name in start.settings), None)
    if named is None:
        return "the log names no model; give it with --model"
    return f"no card for '{named[:80]}'; give the model with --model"


def whole(text: str | None) -> int | None:
    """A setting that is a whole number, else None."""
    plain = (text or "").replace(",", "")
    return int(plain) if plain.isdecimal() and len(plain) < 19 else None
