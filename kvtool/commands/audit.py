"""kvtool audit: an engine's start-up log against its rules."""

from __future__ import annotations

from typing import Annotated

import typer

from kvtool.commands.options import (
    FormatOpt,
    JsonOpt,
    OutputOpt,
    complete_device,
    complete_dtype,
    complete_model,
)

EXAMPLES = """Examples:

  kvtool audit server.log

  kubectl logs vllm-0 | kvtool audit - --model qwen3-32b --gpu h100 --json"""
MISSING = "What the log leaves out"


def audit(
    log: Annotated[str, typer.Argument(metavar="LOG", help="A log file; - is standard input.")],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The model, whatever the log says.",
            autocompletion=complete_model,
            rich_help_panel=MISSING,
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="E[@VERSION]",
            help="Only that engine's starts; by the rules of that version.",
            rich_help_panel=MISSING,
        ),
    ] = None,
    tp: Annotated[
        int | None, typer.Option(metavar="N", help="Tensor parallel.", rich_help_panel=MISSING)
    ] = None,
    pp: Annotated[
        int | None, typer.Option(metavar="N", help="Pipeline parallel.", rich_help_panel=MISSING)
    ] = None,
    ctx: Annotated[
        str | None,
        typer.Option(metavar="TOKENS", help="Context per sequence.", rich_help_panel=MISSING),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Type of computation: bfloat16, float32, ..",
            autocompletion=complete_dtype,
            rich_help_panel=MISSING,
        ),
    ] = None,
    kv_dtype: Annotated[
        str | None,
        typer.Option(
            help="Type of keys and values.",
            autocompletion=complete_dtype,
            rich_help_panel=MISSING,
        ),
    ] = None,
    engine_opt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="An engine option as the engine spells it; repeatable.",
            rich_help_panel=MISSING,
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The device; `kvtool devices` lists them.",
            autocompletion=complete_device,
            rich_help_panel=MISSING,
        ),
    ] = None,
    gpu_fraction: Annotated[
        float | None,
        typer.Option(metavar="F", help="Share of its memory.", rich_help_panel=MISSING),
    ] = None,
    fmt: FormatOpt = None,
    as_json: JsonOpt = False,
    output: OutputOpt = None,
) -> None:
    """Check the figures of an engine's start-up log: which term is off? Exit code 1 if one is."""
    from kvtool.api.audit import audit as run
    from kvtool.report import audit as view
    from kvtool.report.output import choose_format, show

    chosen = choose_format(fmt, as_json, output)
    report = run(
        log,
        model=model,
        engine=engine,
        tp=tp,
        pp=pp,
        ctx=ctx,
        dtype=dtype,
        kv_dtype=kv_dtype,
        engine_opt=engine_opt or (),
        gpu=gpu,
        gpu_fraction=gpu_fraction,
    )
    show(report, chosen, view.view, output)
    raise typer.Exit(int(any(row["verdict"] == "differ" for row in report.results)))
