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
        """Keeps a figure unless the same rank printed the same before."""
        if any(_same(figure, other) for other in self.figures):
            return
        if len(self.figures) < MAX_FIGURES:
            self.figures.append(figure)
        else:
            self.dropped += 1

    @property
    def ranks(self) -> list[str]:
        return sorted({figure.rank for figure in self.figures if figure.rank})


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
    """A line of an engine: its pattern, and what to do with it. Figures are found anywhere in the
    line, whatever stands before."""

    engine: str
    pattern: re.Pattern[str]
    handle: Handler


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

    def feed(self, line: Line, rules: Iterable[Rule], keywords: re.Pattern[str]) -> None:
        """Gives a line to the rules; several may use it."""
        self.log.lines += 1
        if not keywords.search(line.text):
            return
        hit = False
        for rule in rules:
            for match in rule.pattern.finditer(line.text):
                hit = rule.handle(self, match, line) or hit
        if hit:
            self.log.used += 1
        else:
            self.log.not_used += 1


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


def split_lines(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Lines of a stream of chunks, ended by \\n or \\r; one longer than the bound is cut, the rest
    of it skipped, and marked so."""
    rest, skipping = b"", False
    for chunk in chunks:
        parts = re.split(rb"\r\n|\n|\r", rest + chunk)
        rest = parts.pop()
        for part in parts:
            if not skipping:
                yield part[:MAX_LINE_BYTES], len(part) > MAX_LINE_BYTES
            skipping = False
        if len(rest) > MAX_LINE_BYTES:
            if not skipping:
                yield rest[:MAX_LINE_BYTES], True
            rest, skipping = b"", True
    if rest and not skipping:
        yield rest, False


def read_log(chunks: Iterable[bytes]) -> Log:
    """The starts in a log that comes in chunks; never raises for what stands in it."""
    from kvtool.engines.logs_llamacpp import RULES as LLAMACPP
    from kvtool.engines.logs_others import RULES as OTHERS
    from kvtool.engines.logs_vllm import RULES as VLLM

    reader = Reader()
    rules = (*VLLM, *LLAMACPP, *OTHERS)
    for number, (raw, cut) in enumerate(split_lines(chunks), start=1):
        reader.log.cut += cut
        if KEYWORDS_BYTES.search(raw) is None:
            reader.log.lines += 1
            continue
        reader.feed(clean(raw, number), rules, KEYWORDS)
    return reader.log


# What a line must hold to be looked at; the rules of all engines need one of these.
_WORDS = (
    "KV cache|KV Cache|kv cache|LLM engine|API server version|non-default args|max model len"
    "|max_num_batched_tokens|Model loading took|model weights|GPU blocks|gpu_blocks|concurrency"
    "|attention block size|padding layers|memory_utilization|gpu_memory|for peak activation"
    "|mamba page|CUDAGraph|CUDA graph|Graph capturing|cudagraph|dcp_world_size|max seq len"
    "|print_info|llm_load_print_meta|llama_|build: |system_info|load_tensors|kv_size"
    "|KV self size|kv self size|RS buffer|server_args|ServerArgs|Load weight|max_total_num_tokens"
    "|memory takes|maximum model length|weights took|#tokens|MemUsageChange|paged KV"
    "|kv cache blocks|KV cache primary|tokens per block|TensorRT-LLM"
)
KEYWORDS = re.compile(_WORDS)
KEYWORDS_BYTES = re.compile(_WORDS.encode())


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
