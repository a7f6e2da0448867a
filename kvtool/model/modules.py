"""Which modules a quantisation config means by its patterns, without running them as regexes.

Three spellings are in use. A plain name stands for that module, everything inside it and, without
its layer, that module of every layer. A name with `*` is a glob from the start of the name, up to
the end of a component. `re:` starts a regular expression, of which the part that checkpoints use is
understood: literals, `.`, `\\d`, `\\w`, `[0-9]`, `[^.]` with `*` or `+`, groups of alternatives and
anchors; anything else is an error. Matching keeps the set of positions that a pattern can have
reached, so that no pattern takes more than (its pieces) x (length of the name) squared steps.

Names here start at `layers.`; an expert's number is dropped, as a list names all experts or none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice, product
from typing import NamedTuple

MAX_WILDCARDS = 128  # for one layer, and for all layers
MAX_NUMBERED = 8  # wildcards for all layers that have to be tried on each of them
MAX_LENGTH, MAX_PIECES, MAX_VARIANTS = 512, 32, 64

PREFIXES = (
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.",
    "backbone.",
)
# A module as others spell it, with our names for it; joined projections stand for each of theirs.
OURS: dict[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_proj": ("gate_proj", "gate_up_proj"),
    "up_proj": ("up_proj", "gate_up_proj"),
    "gate_up_proj": ("gate_up_proj", "gate_proj", "up_proj"),
    "w1": ("gate_proj", "gate_up_proj"),
    "w2": ("down_proj",),
    "w3": ("up_proj", "gate_up_proj"),
    "in_proj_qkv": ("in_proj_qkvz",),
    "in_proj_z": ("in_proj_qkvz",),
    "in_proj_b": ("in_proj_ba",),
    "in_proj_a": ("in_proj_ba",),
    "shared_expert": ("shared_experts",),
    "block_sparse_moe": ("mlp",),
    "feed_forward": ("mlp",),
    "ffn": ("mlp",),
    "attn": ("self_attn",),
    "mixer": ("mixer", "self_attn"),
}

Kind = str  # text, any, digits, word, component, all


class Piece(NamedTuple):
    """Part of a pattern: literal `text`, or a character class that repeats from `low` to `high`."""

    kind: Kind
    text: str = ""
    low: int = 1
    high: int | None = 1


class Pattern(NamedTuple):
    """Pieces that follow one another from the start of a name; `whole` reaches to its end, a glob
    to the end of a component."""

    pieces: tuple[Piece, ...]
    whole: bool
    glob: bool


class NotUnderstood(ValueError):
    """A pattern outside the part of the language that is read here."""


def matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Whether a module, by its full name, is meant by one of the patterns.

    NotUnderstood with the pattern for one that cannot be read, or for too many of them.

    >>> matcher(["lm_head", "re:.*self_attn.*"])("model.layers.3.self_attn.q_proj")
    True
    """
    modules = _Modules()
    for pattern in patterns:
        if len(pattern) > MAX_LENGTH:
            raise NotUnderstood(f"{pattern[:40]}.. ({len(pattern):,} characters)")
        if "*" in pattern or "?" in pattern or pattern.startswith("re:"):
            modules.add_wildcards(_patterns(pattern), pattern)
        else:
            modules.add_names(_variants(pattern))
    return modules


class _Modules:
    """Names and wildcards by what a module must have for them to be tried.

    `loose` names and `general` wildcards hold for any layer: what they say of a module is kept by
    the rest of its name.
    """

    def __init__(self) -> None:
        self.loose: set[str] = set()
        self.numbered: set[str] = set()
        self.wildcards: dict[str, list[Pattern]] = {}
        self.by_rest: dict[str, bool] = {}

    def add_names(self, names: Iterable[str]) -> None:
        for name in names:
            has_number = any(part.isdecimal() for part in name.split("."))
            (self.numbered if has_number else self.loose).add(name)

    def add_wildcards(self, patterns: Iterable[Pattern], text: str) -> None:
        for pattern in patterns:
            bucket = self.wildcards.setdefault(key := _bucket(pattern), [])
            bucket.append(pattern)
            limit = MAX_NUMBERED if key == "numbered" else MAX_WILDCARDS
            if len(pattern.pieces) > MAX_PIECES or len(bucket) > limit:
                raise NotUnderstood(f"{text} ({len(bucket):,} of its kind)")

    def __call__(self, module: str) -> bool:
        name = _start(module)
        head, _, rest = name.partition(".")
        number, _, rest = rest.partition(".")
        if head != "layers" or not number.isdecimal():
            names = self.loose | self.numbered
            return _named(name, names) or any(map(partial(self._fits, name=name), self.wildcards))
        if rest not in self.by_rest:
            self.by_rest[rest] = _named(f"layers.{rest}", self.loose) or self._fits("general", name)
        return (
            self.by_rest[rest]
            or (bool(self.numbered) and _named(name, self.numbered))
            or any(self._fits(f"{number[:i]}*", name) for i in range(1, len(number) + 1))
            or self._fits(f"{number}.", name)
            or self._fits("numbered", name)
        )

    def _fits(self, bucket: str, name: str) -> bool:
        return any(_match(pattern, name) for pattern in self.wildcards.get(bucket, ()))


def _start(name: str) -> str:
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _variants(name: str) -> list[str]:
    """The name as it stands, and with each component by our names for it."""
    name = re.sub(r"(?<=experts\.)[0-9]+\.", "", _start(name))
    parts = re.split(r"([A-Za-z0-9_]+)", name)
    ours = product(*(OURS.get(part, (part,)) for part in parts))
    return list(dict.fromkeys((name, *("".join(parts) for parts in islice(ours, MAX_VARIANTS)))))


def _named(name: str, names: set[str]) -> bool:
    """Whether a run of the name's components is among `names`."""
    parts = name.split(".")
    ends = range(1, len(parts) + 1)
    return any(".".join(parts[a:b]) in names for b in ends for a in range(b))


def _patterns(pattern: str) -> list[Pattern]:
    if pattern.startswith("re:"):
        text = pattern.removeprefix("re:")
        whole = text.endswith("$")
        reader = _Reader(text.removeprefix("^").removesuffix("$"), pattern)
        read = [(tuple(_joined(p)), whole, False) for p in reader.alternatives()]
    else:
        read = [(tuple(_glob(variant)), False, True) for variant in _variants(pattern)]
    found = [_started(Pattern(*parts)) for parts in read]
    return list(dict.fromkeys(found + [_without_experts(p) for p in found]))


def _glob(text: str) -> Iterable[Piece]:
    for part in re.split(r"([*?])", text):
        if part == "*":
            yield Piece("any", low=0, high=None)
        elif part == "?":
            yield Piece("any")
        elif part:
            yield Piece("text", part)


def _joined(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces with neighbouring literals as one."""
    joined: list[Piece] = []
    for piece in pieces:
        if piece.kind == "text" and joined and joined[-1].kind == "text":
            piece = Piece("text", joined.pop().text + piece.text)
        joined.append(piece)
    return joined


def _started(pattern: Pattern) -> Pattern:
    """The pattern without what stands before `layers.` in the names of others."""
    first = pattern.pieces[0] if pattern.pieces else Piece("any")
    if first.kind != "text":
        return pattern
    return pattern._replace(pieces=(Piece("text", _start(first.text)), *pattern.pieces[1:]))


def _without_experts(pattern: Pattern) -> Pattern:
    """The pattern without a wildcard for an expert's number."""
    pieces = list(pattern.pieces)
    for i in range(len(pieces) - 2):
        before, number, after = pieces[i : i + 3]
        is_number = number.kind != "text" and number.high is None
        if is_number and before.text.endswith("experts.") and after.text.startswith("."):
            pieces[i : i + 3] = [Piece("text", before.text + after.text[1:])]
            break
    return pattern._replace(pieces=tuple(pieces))


def _bucket(pattern: Pattern) -> str:
    """What a name must have for the pattern to be tried: a layer's number (`12.`), the start of one
    (`1*`), or nothing: `general` where its number cannot decide, else `numbered`."""
    first = pattern.pieces[0] if pattern.pieces else Piece("any")
    found = re.fullmatch(r"layers\.([0-9]+)(\..*)?", first.text) if first.kind == "text" else None
    if found and found[2]:
        return f"{found[1]}."
    if found and len(pattern.pieces) > 1:
        return f"{found[1]}*"
    return "general" if _ignores_numbers(pattern) else "numbered"


def _ignores_numbers(pattern: Pattern) -> bool:
    """Whether the pattern fits a name with any number of a layer, or with none.

    It does when no literal has a digit, and each character class either repeats (and so takes a
    whole number) or stands for one character between literals that do not both end in a dot.
    """
    pieces = pattern.pieces
    for before, piece, after in zip((None, *pieces), pieces, (*pieces[1:], None), strict=False):
        left = before.text if before else ""
        right = after.text if after else ""
        if piece.kind == "text":
            if re.search(r"[0-9]", piece.text):
                return False
        elif piece.high is None:
            if before and before.kind != "text":
                return False
        elif not left or not right or (left[-1] == "." and right[0] == "."):
            return False
    return bool(pieces)


def _match(pattern: Pattern, name: str) -> bool:
    places = {0}
    for piece in pattern.pieces:
        if piece.kind == "any" and piece.high is None:
            places = set(range(min(places) + piece.low, len(name) + 1))
        else:
            places = {end for place in places for end in _ends(piece, name, place)}
        if not places:
            return False
    size = len(name)
    if pattern.glob:
        return any(p == size or name[p] == "." for p in places)
    return size in places if pattern.whole else True


_CLASSES: dict[Kind, Callable[[str], bool]] = {
    "any": lambda c: True,
    "digits": str.isdecimal,
    "word": lambda c: c.isalnum() or c == "_",
    "component": lambda c: c != ".",
}


def _ends(piece: Piece, name: str, place: int) -> Iterable[int]:
    """Where the piece can end when it starts at `place`."""
    if piece.kind == "text":
        return (place + len(piece.text),) if name.startswith(piece.text, place) else ()
    limit = len(name) if piece.high is None else min(len(name), place + piece.high)
    allowed = _CLASSES[piece.kind]
    end = place
    while end < limit and allowed(name[end]):
        end += 1
    return range(place + piece.low, end + 1)


class _Reader:
    """Reads the part of regular expressions that module patterns use."""

    def __init__(self, text: str, pattern: str) -> None:
        self.text, self.pattern, self.at = text, pattern, 0

    def alternatives(self) -> list[list[Piece]]:
        found = self._choice(depth=0)
        if self.at < len(self.text):
            raise NotUnderstood(self.pattern)
        return found

    def _choice(self, depth: int) -> list[list[Piece]]:
        if depth > 3:
            raise NotUnderstood(self.pattern)
        found = self._sequence(depth)
        while self._take("|"):
            found += self._sequence(depth)
        return found

    def _sequence(self, depth: int) -> list[list[Piece]]:
        found: list[list[Piece]] = [[]]
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            if self._take("("):
                self._take("?:")
                options = self._choice(depth + 1)
                if not self._take(")"):
                    raise NotUnderstood(self.pattern)
            else:
                options = self._atom()
            if len(found) * len(options) > MAX_VARIANTS:
                raise NotUnderstood(self.pattern)
            found = [before + option for before in found for option in options]
        return found

    def _atom(self) -> list[list[Piece]]:
        for sign, kind in (
            (".", "any"), ("\\d", "digits"), ("[0-9]", "digits"), ("\\w", "word"),
            ("[^.]", "component"), ("[^\\.]", "component"),
        ):  # fmt: skip
            if self._take(sign):
                return [[self._repeated(kind)]]
        word = re.compile(r"[A-Za-z0-9_/-]+|\\[./-]").match(self.text, self.at)
        if word is None:
            raise NotUnderstood(self.pattern)
        self.at = word.end()
        if self.text[self.at : self.at + 1] in ("*", "+", "?", "{"):
            raise NotUnderstood(self.pattern)
        text = word[0].removeprefix("\\")
        return [
            [Piece("text", name)] for name in (text, *(n for n in OURS.get(text, ()) if n != text))
        ]

    def _repeated(self, kind: Kind) -> Piece:
        low, high = (0, None) if self._take("*") else (1, None) if self._take("+") else (1, 1)
        if high is None:
            self._take("?")
        elif self.text[self.at : self.at + 1] in ("?", "{"):
            raise NotUnderstood(self.pattern)
        return Piece(kind, low=low, high=high)

    def _take(self, sign: str) -> bool:
        if not self.text.startswith(sign, self.at):
            return False
        self.at += len(sign)
        return True
