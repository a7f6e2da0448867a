"""Start-up logs of engines: a stream of bytes in, settings and printed figures out.

A log may hold several starts (engines, replicas, restarts), several ranks, colour codes, prefixes
of whatever wrote it, and anything else. Lines are read one by one and cut where they are absurdly
long; only settings and figures are kept, both bounded, so memory does not grow with the file.
Lines that look like figures and cannot be used are counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

MAX_LINE_BYTES = 1 << 16
MAX_STARTS = 64
MAX_FIGURES = 400
MAX_SETTINGS = 600
MAX_TEXT = 2000
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
UNITS = {
    "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": GIB << 10, "KB": KIB, "MB": MIB, "GB": GIB,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """A printed number. `value` is in base units, `half` half a unit of its last printed digit.

    `rank` names the worker that printed it, "" where none is named; `about` holds what stands on
    the same line (the context of a concurrency, cells and layers of a cache).
    """

    name: str
    value: float
    half: float
    rank: str
    line: int
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def low(self) -> float:
        return self.value - self.half

    @property
    def high(self) -> float:
        return self.value + self.half


@dataclass(slots=True)
class Start:
    """One engine's start: its settings as spelled in the log, and its figures in printed order."""

    engine: str
    key: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    dropped: int = 0

    def put(self, name: str, value: str) -> None:
        """Keeps a setting; the last one counts."""
        if name in self.settings or len(self.settings) < MAX_SETTINGS:
            self.settings[name] = value[:MAX_TEXT]

    def add(self, figure: Figure) -> None:
        """Keeps a figure unless the same rank printed the same before, up to the bound."""
        if len(self.figures) >= MAX_FIGURES:
            self.dropped += 1
        elif not any(_same(figure, other) for other in self.figures):
            self.figures.append(figure)


def _same(one: Figure, other: Figure) -> bool:
    if (one.name, one.rank, one.value) != (other.name, other.rank, other.value):
        return False
    return one.about == other.about


@dataclass(slots=True)
class Log:
    """What a log says: its starts, and how many lines were read, used, recognised in vain, cut."""

    starts: list[Start] = field(default_factory=list)
    lines: int = 0
    used: int = 0
    not_used: int = 0
    cut: int = 0
    starts_dropped: int = 0


# A rule reads a line: whether it said anything. None: recognised, but not to be made sense of.
Handler = Callable[["Reader", re.Match[str], "Line"], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """A line of an engine: its pattern, found anywhere in the line, and what to do with it.

    A line that holds none of the `anchors` cannot match; they make the search fast.
    """

    engine: str
    anchors: tuple[str, ...]
    pattern: re.Pattern[str]
    handle: Handler

    @classmethod
    def of(cls, engine: str, pattern: str, handle: Handler, *anchors: str) -> Rule:
        """A rule whose anchor, where none is given, is the literal text the pattern begins with."""
        head = re.match(r"[\w #,:=-]*(?![?*])", pattern)
        literal = () if head is None else (head[0],)
        return cls(engine, anchors or literal, re.compile(pattern), handle)


@dataclass(frozen=True, slots=True)
class Line:
    """A cleaned line: its text, number, worker (`rank`) and replica (`key`)."""

    text: str
    number: int
    rank: str
    key: str


class Reader:
    """Collects starts. Rules call `start`, `put` and `figure`."""

    def __init__(self) -> None:
        self.log = Log()
        self._open: dict[tuple[str, str], Start] = {}

    def start(
        self, engine: str, line: Line, *, fresh: bool = False, inherit: bool = False
    ) -> Start:
        """The running start of that engine and replica, made when there is none.

        `fresh` begins another one where the running one has figures; `inherit` gives it the
        settings of the one before. A replica begins with the settings of the whole engine.
        """
        found = self._open.get((engine, line.key))
        if found is not None and not (fresh and found.figures):
            return found
        made = Start(engine, line.key)
        parent = found if inherit else None
        if found is None and line.key:
            parent = self._open.get((engine, ""))
        if parent is not None:
            made.settings.update(parent.settings)
        self._open[engine, line.key] = made
        if len(self.log.starts) < MAX_STARTS:
            self.log.starts.append(made)
        else:
            self.log.starts_dropped += 1
        return made

    def figure(
        self, engine: str, line: Line, name: str, size: tuple[float, float], **about: str
    ) -> bool:
        """Adds a figure: its value and half a unit of its last digit, and what it is about."""
        figure = Figure(name, *size, line.rank, line.number, about)
        self.start(engine, line).add(figure)
        return True

    def feed(self, line: Line, rules: Iterable[Rule]) -> None:
        """Gives a line to the rules whose anchor it holds; several may use it."""
        hit = anchored = False
        for rule in rules:
            if not any(anchor in line.text for anchor in rule.anchors):
                continue
            anchored = True
            for match in rule.pattern.finditer(line.text):
                hit = rule.handle(self, match, line) or hit
        self.log.used += hit
        self.log.not_used += anchored and not hit


_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f]")
_RANK = re.compile(
    r"\b(?:(?:Vllm)?Worker[_ ]?)?((?:DCP|DP|PP|TP|EP)\d{1,4}"
    r"(?:[_ ](?:DCP|PP|TP|EP)\d{1,4})*)\b"
    r"|\[rank ?(\d{1,5})\]|\brank[ =:](\d{1,5})\b"
    r"|(?:VllmWorkerProcess|RayWorkerWrapper|RayWorkerProc|Worker) pid=(\d{1,9})"
)
_REPLICA = re.compile(r"\b(?:EngineCore_)?DP(\d{1,4})\b|\bEngineCore_(\d{1,4})\b")


def clean(raw: bytes, number: int) -> Line:
    """A line without colours and control characters, with the worker and replica it names."""
    text = _ANSI.sub("", raw.decode("utf-8", "replace")).rstrip()
    head = text[:300]
    rank = _RANK.search(head)
    replica = _REPLICA.search(head)
    names = [part for part in (rank.groups() if rank else ()) if part]
    name = re.sub(r"^DP\d+[_ ]?", "", names[0]) if names else ""
    keys = [part for part in (replica.groups() if replica else ()) if part]
    key = keys[0] if keys else ""
    return Line(text, number, name.replace(" ", "_"), "" if key == "0" else key)


def whole_lines(chunks: Iterable[bytes], log: Log) -> Iterator[bytes]:
    """A stream in blocks that end with a line; lines end with \\n or \\r. A line longer than the
    bound is cut, the rest of it skipped, and counted in `log`."""
    rest, skipping = b"", False
    for chunk in chunks:
        block = rest + chunk
        end = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        block, rest = block[:end], block[end:]
        if skipping and block:
            block = re.split(rb"[\r\n]", block, maxsplit=1)[1]
            skipping = False
        if block:
            yield block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if len(rest) > MAX_LINE_BYTES:
            if not skipping:
                log.cut += 1
                yield rest[:MAX_LINE_BYTES] + b"\n"
            rest, skipping = b"", True
    if rest and not skipping:
        yield rest + b"\n"


def read_log(chunks: Iterable[bytes]) -> Log:
    """The starts in a log that comes in chunks; never raises for what stands in it."""
    from kvtool.engines.logs_llamacpp import RULES as LLAMACPP
    from kvtool.engines.logs_others import RULES as OTHERS
    from kvtool.engines.logs_vllm import RULES as VLLM

    reader = Reader()
    log, rules = reader.log, (*VLLM, *LLAMACPP, *OTHERS)
    anchors = sorted({anchor.encode() for rule in rules for anchor in rule.anchors})
    some = re.compile(b"|".join(map(re.escape, anchors)))
    for block in whole_lines(chunks, log):
        if not any(anchor in block for anchor in anchors):
            log.lines += block.count(b"\n")
            continue
        for raw in block.split(b"\n")[:-1]:
            log.lines += 1
            if some.search(raw):
                reader.feed(clean(raw[:MAX_LINE_BYTES], log.lines), rules)
    return log


def number(text: str) -> float:
    """A printed number, with or without thousands separators.

    >>> number("476,016")
    476016.0
    """
    return float(text.replace(",", ""))


def measured(text: str, unit: str, decimals: int = 0) -> tuple[float, float]:
    """Base units and half a unit of the last digit of a printed quantity.

    `decimals` is what the engine rounds to even where it prints fewer (trailing zeros dropped).
    Engines that print GB and MB mean the binary units.

    >>> measured("0.5", "GiB", 2)
    (536870912.0, 5368709.12)
    """
    places = max(len(text.partition(".")[2]), decimals)
    scale = UNITS[unit]
    return number(text) * scale, 0.5 * 10.0**-places * scale
