"""kvtool simulate: how often cached documents or blocks are hit under a budget."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from kvtool.commands.options import (
    ExplainOpt,
    FormatOpt,
    JsonOpt,
    OutputOpt,
    complete_device,
    complete_dtype,
    complete_model,
)

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor
    from pathlib import Path

    from kvtool.device import DeviceSpec
    from kvtool.simulation.study import Run

EXAMPLES = """Examples:

  kvtool simulate --zipf 1.2 --budget 8GiB,16GiB

  kvtool simulate --trace requests.jsonl --curve --plot curve.png"""
DEFAULT_DEVICE = "h100-sxm"
MAX_WORKERS = 1024
REWRITE_AFTER_S = 5.0
WORKLOAD, CACHE, REUSE, TRACE, RUN = "Workload", "Cache", "Reuse", "Trace", "Run"


def simulate(
    zipf: Annotated[
        str | None,
        typer.Option(
            metavar="A[,..]",
            help="Zipf exponent, 0 (uniform) or more; default 1.2.",
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    docs: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Documents in the pool; default 1000.", rich_help_panel=WORKLOAD
        ),
    ] = None,
    docs_per_request: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Documents in a prompt; default 5.", rich_help_panel=WORKLOAD
        ),
    ] = None,
    doc_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="N|DIST",
            help="Tokens of a document: 1024 (default), uniform:200..800, lognormal:1000,0.5.",
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    cold: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Documents of a prompt drawn uniformly; default 0.",
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            metavar="drawn|shuffled|ranked",
            help="Order in the prompt; default drawn.",
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    duplicates: Annotated[
        str | None,
        typer.Option(
            metavar="distinct|drop|keep",
            help="Draw without replacement (default), drop repeats, or keep them.",
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A workload of the literature: table1-fit, table11, headline.",
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Requests from a document log, a Mooncake or a Bailian file.",
            rich_help_panel=TRACE,
        ),
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Tokens per block of the trace; for documents, their page (default 16).",
            rich_help_panel=TRACE,
        ),
    ] = None,
    engine_opt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="On block traces: tail_first, full_blocks_only, reserve_last_token, cache_outputs"
            " (all true), pinned (1). Repeatable.",
            rich_help_panel=TRACE,
        ),
    ] = None,
    fit_zipf: Annotated[
        bool,
        typer.Option("--fit-zipf", help="The trace's Zipf exponent.", rich_help_panel=TRACE),
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES[,..]",
            help="Cache sizes: 8GiB,16GiB or 1GiB..64GiB*2. Default 4GiB..64GiB*2, on traces shares"
            " of all there is.",
            rich_help_panel=CACHE,
        ),
    ] = None,
    num_blocks: Annotated[
        str | None,
        typer.Option(
            metavar="N[,..]", help="Cache sizes in blocks, from a log.", rich_help_panel=CACHE
        ),
    ] = None,
    curve: Annotated[
        bool,
        typer.Option("--curve", help="The whole curve, drawn.", rich_help_panel=CACHE),
    ] = False,
    target_hit: Annotated[
        float | None,
        typer.Option(
            metavar="F", help="The smallest budget that hits so often.", rich_help_panel=CACHE
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="Whose cache it is; the bytes are those of `kvtool size`.",
            autocompletion=complete_model,
            rich_help_panel=CACHE,
        ),
    ] = "llama-3.1-8b",
    kv_dtype: Annotated[
        str,
        typer.Option(
            help="Type of keys and values.", autocompletion=complete_dtype, rich_help_panel=CACHE
        ),
    ] = "auto",
    tp: Annotated[
        int,
        typer.Option(metavar="N", help="Tensor parallel: bytes per device.", rich_help_panel=CACHE),
    ] = 1,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Device to count memory in; default h100-sxm.",
            autocompletion=complete_device,
            rich_help_panel=CACHE,
        ),
    ] = None,
    reuse: Annotated[
        str | None,
        typer.Option(
            metavar="R[,..]",
            help="prefix, position-aware, two-copy, lazy; default all but two-copy.",
            rich_help_panel=REUSE,
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="P[,..]",
            help="lru (default), fifo, lfu, arc, s3fifo, gdsf, belady.",
            rich_help_panel=REUSE,
        ),
    ] = None,
    lookup: Annotated[
        str | None,
        typer.Option(
            metavar="request|each",
            help="Look up a whole request, then touch it (default), or one entry at a time.",
            rich_help_panel=REUSE,
        ),
    ] = None,
    requests: Annotated[
        str | None,
        typer.Option(metavar="N", help="Requests; default 20k.", rich_help_panel=RUN),
    ] = None,
    warmup: Annotated[
        float | None,
        typer.Option(
            metavar="F",
            help="Share of requests not counted; default 0.2, on traces 0.",
            rich_help_panel=RUN,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="First seed.", rich_help_panel=RUN)] = 0,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="N", help="How many; default 5.", rich_help_panel=RUN),
    ] = None,
    workers: Annotated[int, typer.Option(metavar="N", help="Processes.", rich_help_panel=RUN)] = 1,
    plot: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Curves as .png or .svg.", rich_help_panel="Output"),
    ] = None,
    explain: ExplainOpt = False,
    fmt: FormatOpt = None,
    as_json: JsonOpt = False,
    output: OutputOpt = None,
) -> None:
    """How often cached documents or blocks are hit under a memory budget."""
    asked = locals()
    from kvtool.api.simulate import options_of
    from kvtool.report.output import choose_format
    from kvtool.simulation.options import settle
    from kvtool.simulation.study import Run

    chosen = choose_format(fmt, as_json, output)
    picture = _picture(plot)
    options = options_of(asked)
    device = _device(gpu)
    run = Run(settle(options))
    show = _Show(run, device, chosen, output, explain)
    try:
        _work(run, workers, show)
    except KeyboardInterrupt:
        if run.done:
            show.final()
        raise
    show.final()
    if picture is not None:
        from kvtool.report.hitrate_figure import save_figure

        save_figure(run.outcome(), picture)


def _device(name: str | None) -> DeviceSpec:
    from kvtool.device import load_device

    return load_device(name or DEFAULT_DEVICE)


def _picture(plot: str | None) -> Path | None:
    """Where the picture goes; UsageError, before anything runs, when it cannot be drawn."""
    from importlib.util import find_spec
    from pathlib import Path

    from kvtool.errors import KvtoolError, UsageError

    if plot is None:
        return None
    path = Path(plot).expanduser()
    if path.suffix.lower() not in (".png", ".svg"):
        raise UsageError(f"'{plot}' is neither a .png nor a .svg file", "name it curve.png")
    if find_spec("matplotlib") is None:
        raise KvtoolError("--plot needs matplotlib", "pip install 'kvtool[plot]'")
    return path


def _work(run: Run, workers: int, show: _Show) -> None:
    """All jobs of `run`, in this process or in several, with progress on a terminal."""
    from kvtool.errors import UsageError

    if not 1 <= workers <= MAX_WORKERS:
        raise UsageError(
            f"'{workers}' is not a number of workers", f"use 1 to {MAX_WORKERS} processes"
        )
    with ExitStack() as stack:
        executor = None
        if workers > 1:
            executor = _processes(workers)
            stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        advance = stack.enter_context(_progress(run))
        for _ in run.advance(executor):
            advance()
            show.meanwhile()


def _processes(workers: int) -> ProcessPoolExecutor:
    """Worker processes that leave Ctrl-C to this one."""
    import signal
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    return ProcessPoolExecutor(
        workers, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN)
    )


@contextmanager
def _progress(run: Run) -> Iterator[Callable[[], None]]:
    """A bar on standard error while jobs run; nothing where that is no terminal."""
    if not sys.stderr.isatty() or run.jobs < 2:
        yield lambda: None
        return
    from rich.progress import Progress

    from kvtool.report.output import console

    with Progress(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=run.jobs)
        yield lambda: bar.update(task, completed=run.done, total=run.jobs)


@dataclass(slots=True)
class _Show:
    """Writes what a run has found: a file as it goes, the rest at the end."""

    run: Run
    device: DeviceSpec
    fmt: str
    output: str | None
    explain: bool
    written_at: float = field(default_factory=time.monotonic)

    def final(self) -> None:
        from kvtool.report import hitrate
        from kvtool.report.output import show

        report = hitrate.report_of(self.run.outcome(), self.device, explain=self.explain)
        show(report, self.fmt, hitrate.view, self.output)

    def meanwhile(self) -> None:
        """The file of `--output`, brought up to date every few seconds."""
        if self.output in (None, "-") or time.monotonic() - self.written_at < REWRITE_AFTER_S:
            return
        self.final()
        self.written_at = time.monotonic()
