"""kvtool bench: attention kernels, checked first and then timed beside their peers."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvtool.commands.options import (
    FormatOpt,
    JsonOpt,
    OutputOpt,
    complete_dtype,
    complete_model,
)

if TYPE_CHECKING:
    from kvtool.benchmark.cases import Case
    from kvtool.benchmark.run import Result
    from kvtool.report.record import Report

EXAMPLES = """Examples:

  kvtool bench

  kvtool bench --kernel flash,lazy --model llama-3-8b --phase decode --ctx 4k..32k*2 --batch 1,8

  kvtool bench --generate 256"""
WHO, SHAPE, RUN = "Who runs", "Shape", "Measuring"


def complete_kernel(incomplete: str) -> list[str]:
    from kvtool.kernels import NAMES

    return [name for name in NAMES if name.startswith(incomplete.lower())]


def bench(
    context: typer.Context,
    kernel: Annotated[
        str,
        typer.Option(
            metavar="K[,..]",
            help="Kernels: naive, cached, flash, lazy.",
            autocompletion=complete_kernel,
            rich_help_panel=WHO,
        ),
    ] = "naive,cached,flash,lazy",
    variant: Annotated[
        str | None,
        typer.Option(
            metavar="V[,..]",
            help="Variants of lazy: rotate-q, rotate-k, rematerialise, merge, unsplit.",
            rich_help_panel=WHO,
        ),
    ] = None,
    peers: Annotated[
        str,
        typer.Option(
            metavar="auto|none|NAME[,..]",
            help="Other implementations on the same inputs.",
            rich_help_panel=WHO,
        ),
    ] = "auto",
    list_all: Annotated[
        bool,
        typer.Option("--list", help="List kernels, variants and peers.", rich_help_panel=WHO),
    ] = False,
    phase: Annotated[
        str,
        typer.Option(metavar="prefill|decode[,..]", help="Phases.", rich_help_panel=SHAPE),
    ] = "prefill,decode",
    generate: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Instead: decode N tokens with a small decoder under each kernel.",
            rich_help_panel=RUN,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Attention shape of a model; default llama-3-8b, on a CPU a small one.",
            autocompletion=complete_model,
            rich_help_panel=SHAPE,
        ),
    ] = None,
    tp: Annotated[
        int, typer.Option(metavar="N", help="Tensor-parallel share.", rich_help_panel=SHAPE)
    ] = 1,
    heads: Annotated[
        int | None, typer.Option(metavar="N", help="Query heads.", rich_help_panel=SHAPE)
    ] = None,
    kv_heads: Annotated[
        int | None,
        typer.Option(metavar="N", help="Key/value heads; default: as many.", rich_help_panel=SHAPE),
    ] = None,
    head_dim: Annotated[
        int | None,
        typer.Option(metavar="N", help="Width of a head; default 128.", rich_help_panel=SHAPE),
    ] = None,
    ctx: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS[,..]",
            help="Tokens per sequence, 32k = 32,768; lists and ranges 4k..128k*2.",
            rich_help_panel=SHAPE,
        ),
    ] = None,
    batch: Annotated[
        str | None, typer.Option(metavar="N[,..]", help="Sequences.", rich_help_panel=SHAPE)
    ] = None,
    doc_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS[,..]",
            help="Tokens per document for lazy; default 1024, less in a short context.",
            rich_help_panel=SHAPE,
        ),
    ] = None,
    block_size: Annotated[
        str,
        typer.Option(
            metavar="N[,..]", help="Tokens per block of the cache.", rich_help_panel=SHAPE
        ),
    ] = "16",
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="D[,..]",
            help="Queries: bfloat16 (default on a GPU), float16, float32 (on a CPU).",
            autocompletion=complete_dtype,
            rich_help_panel=SHAPE,
        ),
    ] = None,
    kv_dtype: Annotated[
        str,
        typer.Option(
            metavar="D[,..]",
            help="Cache: auto (as the queries), fp8_e4m3, fp8_e5m2.",
            autocompletion=complete_dtype,
            rich_help_panel=SHAPE,
        ),
    ] = "auto",
    mask: Annotated[
        str,
        typer.Option(
            metavar="causal|full[,..]",
            help="Of prefill; full is what an encoder does.",
            rich_help_panel=SHAPE,
        ),
    ] = "causal",
    device: Annotated[
        str,
        typer.Option(
            metavar="auto|cuda|cpu",
            help="Without a GPU auto times the portable code on the CPU.",
            rich_help_panel=RUN,
        ),
    ] = "auto",
    samples: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Samples of each implementation; default: as many as 0.3 s allow, 10 to 200.",
            rich_help_panel=RUN,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the inputs.", rich_help_panel=RUN)] = 0,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Ratios against an earlier --output FILE.json.",
            rich_help_panel=RUN,
        ),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Draw the roofline as PNG, SVG or PDF.", rich_help_panel=RUN
        ),
    ] = None,
    fmt: FormatOpt = None,
    as_json: JsonOpt = False,
    output: OutputOpt = None,
) -> None:
    """How fast attention really runs here: gated against float64, beside peers and the roof."""
    from kvtool.api.bench import bench as run
    from kvtool.benchmark.run import gates_passed
    from kvtool.report.output import choose_format

    chosen = choose_format(fmt, as_json, output)
    if list_all:
        _list(device)
        raise typer.Exit
    if plot is not None:
        _check_plot(plot, generate)
    printer = _Printer(chosen, output)
    try:
        report = run(
            kernel=kernel,
            variant=variant or (),
            phase=phase,
            generate=generate,
            model=model,
            tp=tp,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            ctx=ctx,
            batch=batch,
            doc_tokens=doc_tokens,
            block_size=block_size,
            dtype=dtype,
            kv_dtype=kv_dtype,
            mask=mask,
            peers=peers,
            device=device,
            baseline=baseline,
            samples=samples,
            seed=seed,
            command=_typed(context),
            starting=printer.starting,
            finished=printer.finished,
        )
    except KeyboardInterrupt:
        printer.interrupted()
        raise
    printer.end(report)
    if plot is not None:
        _draw(report, Path(plot))
    raise typer.Exit(0 if gates_passed(report.results) else 1)


def _typed(context: typer.Context) -> str:
    """The command line that repeats this run: the options that were given."""
    words = ["kvtool", "bench"]
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE":
            value = context.params[option.name or ""]
            words += [option.opts[0]] if value is True else [option.opts[0], str(value)]
    return shlex.join(words)


class _Printer:
    """Shows each case when it is finished, and keeps the output file complete.

    A table on the terminal appears case by case; other formats are printed in the end, and also
    when the run is interrupted.
    """

    def __init__(self, fmt: str, output: str | None) -> None:
        from kvtool.report.output import console

        self.fmt = fmt
        self.output = None if output in (None, "-") else output
        self.out, self.err = console(), console(stderr=True)
        self.case: Case | None = None
        self.report: Report | None = None

    @property
    def _tables_on_screen(self) -> bool:
        return self.fmt == "table" and self.output is None

    def starting(self, case: Case) -> None:
        self.case = case
        if self.err.is_terminal:
            self.err.print(f"[dim]{case.label} ..[/]", end="\r", highlight=False)

    def finished(self, report: Report, result: Result) -> None:
        from kvtool.report import bench as view

        first, self.report = self.report is None, report
        if self.output is not None:
            self._write(report)
        if self._tables_on_screen:
            pieces = view.header(report.beside["environment"]) if first else []
            for piece in [*pieces, *([view.case_table(result.rows)] if result.rows else [])]:
                self.out.print(piece)
        for line in result.lost:
            self.err.print(f"lost: {line}", highlight=False, soft_wrap=True)

    def end(self, report: Report) -> None:
        from kvtool.report import bench as view

        if self.output is not None:
            self._write(report)
        elif self.fmt != "table":
            self._print(report)
        else:
            streamed = self.report is not None
            for piece in view.footer(report) if streamed else view.view(report):
                self.out.print(piece)

    def interrupted(self) -> None:
        """What is finished is shown or written, and the lost case is named."""
        report = self.report
        if report is not None and self.output is None and self.fmt != "table":
            self._print(report)
        lost = f"the case {self.case.label} is lost; " if self.case else ""
        kept = f" are in {self.output}" if self.output and report else ""
        self.err.print(
            f"{lost}{len(report.results) if report else 0} finished rows{kept}",
            highlight=False,
            soft_wrap=True,
        )

    def _write(self, report: Report) -> None:
        from kvtool.report import bench as view
        from kvtool.report.output import text_of, write

        write(text_of(report, self.fmt, view.view), Path(self.output or ""))

    def _print(self, report: Report) -> None:
        from kvtool.report import bench as view
        from kvtool.report.output import show

        show(report, self.fmt, view.view)


def _list(device: str) -> None:
    from kvtool.benchmark.peers import PEERS
    from kvtool.benchmark.session import find_device
    from kvtool.kernels import VARIANTS
    from kvtool.report.bench import listing
    from kvtool.report.output import console

    kind = find_device(device).type
    rows = [(peer.name, peer.note, peer.missing(kind) or "yes") for peer in PEERS]
    for piece in listing(VARIANTS, rows):
        console().print(piece)


def _check_plot(plot: str, generate: str | None) -> None:
    from kvtool.errors import UsageError
    from kvtool.report.roofline_figure import check_path

    if generate is not None:
        raise UsageError("--generate has no roofline", "--plot draws cases of prefill and decode")
    check_path(Path(plot))


def _draw(report: Report, path: Path) -> None:
    from kvtool.benchmark.ceilings import Ceilings
    from kvtool.report.roofline_figure import draw

    environment = report.beside["environment"]
    draw(
        report.results,
        roof=Ceilings(**environment["ceilings"]).roof,
        title=f"Attention on {environment['device']}",
        path=path,
    )
