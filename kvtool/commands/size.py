"""kvtool size: bytes of cache and weights, and what fits."""

from __future__ import annotations

from typing import Annotated

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

EXAMPLES = """Examples:

  kvtool size llama-3-70b --ctx 32k

  kvtool size qwen3-32b --ctx 8k..128k*2 --kv-dtype fp8 --gpu h100 --gpus 2"""
CACHE, WEIGHTS, RANKS, ENGINE, MEMORY = "Cache", "Weights", "Parallelism", "Engine", "Memory"


def size(
    model: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="A card or alias, a config.json or its folder, a .gguf file, - (stdin) or"
            " hf:org/name.",
            autocompletion=complete_model,
        ),
    ],
    ctx: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS[,..]",
            help="Context per sequence, 32k = 32,768 (vLLM reads k as 1000); lists and ranges"
            " 4k..128k*2. Default: the model's maximum.",
            rich_help_panel=CACHE,
        ),
    ] = None,
    batch: Annotated[
        str, typer.Option(metavar="N[,..]", help="Sequences at once.", rich_help_panel=CACHE)
    ] = "1",
    kv_dtype: Annotated[
        str,
        typer.Option(
            help="Type of keys and values: auto, fp8, int8, q8_0, ..",
            autocompletion=complete_dtype,
            rich_help_panel=CACHE,
        ),
    ] = "auto",
    k_dtype: Annotated[
        str | None,
        typer.Option(help="Keys alone.", autocompletion=complete_dtype, rich_help_panel=CACHE),
    ] = None,
    v_dtype: Annotated[
        str | None,
        typer.Option(help="Values alone.", autocompletion=complete_dtype, rich_help_panel=CACHE),
    ] = None,
    encoder_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Encoder or image tokens behind cross-attention.",
            rich_help_panel=CACHE,
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            help="Weights: auto (as published), bfloat16, fp8, int4, mxfp4, ..",
            autocompletion=complete_dtype,
            rich_help_panel=WEIGHTS,
        ),
    ] = "auto",
    mtp: Annotated[
        bool,
        typer.Option("--mtp", help="Count the model's own MTP layers.", rich_help_panel=WEIGHTS),
    ] = False,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A drafter beside the model.",
            autocompletion=complete_model,
            rich_help_panel=WEIGHTS,
        ),
    ] = None,
    tp: Annotated[
        int | None, typer.Option(metavar="N", help="Tensor parallel.", rich_help_panel=RANKS)
    ] = None,
    pp: Annotated[
        int | None, typer.Option(metavar="N", help="Pipeline parallel.", rich_help_panel=RANKS)
    ] = None,
    ep: Annotated[
        int, typer.Option(metavar="N", help="Expert parallel.", rich_help_panel=RANKS)
    ] = 1,
    dcp: Annotated[
        int, typer.Option(metavar="N", help="Decode-context parallel.", rich_help_panel=RANKS)
    ] = 1,
    engine: Annotated[
        str,
        typer.Option(
            metavar="E[@VERSION][,..]",
            help="logical, or an engine's own rules: vllm, sglang, trtllm, llamacpp, transformers,"
            " all.",
            rich_help_panel=ENGINE,
        ),
    ] = "logical",
    engine_opt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="An engine option as the engine spells it; repeatable.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Device to fit into; `kvtool devices` lists them.",
            autocompletion=complete_device,
            rich_help_panel=MEMORY,
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(metavar="N", help="Devices; alone it means tp N.", rich_help_panel=MEMORY),
    ] = None,
    gpu_fraction: Annotated[
        float | None,
        typer.Option(
            metavar="F",
            help="Share of the memory to use; default: the engine's own, logical 0.9.",
            rich_help_panel=MEMORY,
        ),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="The pool itself: 40GiB.", rich_help_panel=MEMORY),
    ] = None,
    num_blocks: Annotated[
        int | None,
        typer.Option(metavar="N", help="The pool in blocks, from a log.", rich_help_panel=MEMORY),
    ] = None,
    solve: Annotated[
        str | None,
        typer.Option(
            metavar="ctx|batch|gpus",
            help="Find the largest context or batch, or the fewest devices.",
            rich_help_panel=MEMORY,
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Exit with 3 when it does not fit.", rich_help_panel=MEMORY),
    ] = False,
    explain: ExplainOpt = False,
    fmt: FormatOpt = None,
    as_json: JsonOpt = False,
    output: OutputOpt = None,
) -> None:
    """How many bytes a model's KV cache and weights take, and what fits on a device."""
    from kvtool.api.size import size as run
    from kvtool.report import size as view
    from kvtool.report.output import choose_format, show

    chosen = choose_format(fmt, as_json, output)
    report = run(
        model,
        ctx=ctx,
        batch=batch,
        encoder_tokens=encoder_tokens,
        kv_dtype=kv_dtype,
        k_dtype=k_dtype,
        v_dtype=v_dtype,
        dtype=dtype,
        tp=tp,
        pp=pp,
        ep=ep,
        dcp=dcp,
        mtp=mtp,
        draft=draft,
        engine=engine,
        engine_opt=engine_opt or (),
        gpu=gpu,
        gpus=gpus,
        gpu_fraction=gpu_fraction,
        pool=pool,
        num_blocks=num_blocks,
        solve=solve,
        explain=explain,
    )
    code = exit_code(report.results) if check else 0
    show(report, chosen, view.view, output)
    raise typer.Exit(code)


def exit_code(rows: list[dict[str, object]]) -> int:
    """3 when a row does not fit; UsageError when a row has nothing to fit into."""
    from kvtool.errors import UsageError

    if any(row["fits"] is None for row in rows):
        raise UsageError(
            "--check has nothing to fit into",
            "give --gpu NAME or --pool BYTES; a device needs a model with known weights",
        )
    return 0 if all(row["fits"] for row in rows) else 3
