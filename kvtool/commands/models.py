"""kvtool models: list cards, show one, make one from a configuration."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvtool.commands.options import FormatOpt, JsonOpt, OutputOpt, complete_model
from kvtool.errors import UsageError, did_you_mean

EXAMPLES = """Examples:

  kvtool models --attention mla

  kvtool models show deepseek-v3"""

app = typer.Typer(no_args_is_help=False, epilog=EXAMPLES)


@app.callback(invoke_without_command=True)
def models(
    ctx: typer.Context,
    attention: Annotated[
        str | None,
        typer.Option(help="Only models with that kind: mha, gqa, mqa, mla, hybrid, sliding, .."),
    ] = None,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only names and aliases that contain it.")
    ] = None,
    fmt: FormatOpt = None,
    as_json: JsonOpt = False,
    output: OutputOpt = None,
) -> None:
    """The model cards that kvtool ships."""
    if ctx.invoked_subcommand is not None:
        return
    from kvtool.model.spec import ATTENTION_KINDS
    from kvtool.report.listing import view
    from kvtool.report.output import choose_format, show
    from kvtool.report.record import Report

    if attention is not None and attention not in ATTENTION_KINDS:
        raise UsageError(
            f"no attention kind '{attention}'",
            did_you_mean(attention, ATTENTION_KINDS, f"kinds: {', '.join(ATTENTION_KINDS)}"),
        )
    chosen = choose_format(fmt, as_json, output)
    found = [row for row in _rows(search) if attention is None or attention in row["attention"]]
    inputs = {"attention": attention, "search": search}
    columns = ("model", "attention", "bytes_per_token", "context", "params")
    show(Report("models", inputs, found), chosen, view(columns, f"{len(found)} models"), output)


def _rows(search: str | None) -> list[dict[str, Any]]:
    """A row per card whose name or alias contains `search`."""
    from kvtool import kvcache
    from kvtool.catalog import card_names, load_card
    from kvtool.engines.base import Deployment
    from kvtool.fit import kv_of
    from kvtool.model.weights import parameters

    rows = []
    for name in card_names():
        card = load_card(name)
        if search and not any(search.lower() in n.lower() for n in (name, *card.aliases)):
            continue
        spec = card.spec()
        kv = kv_of(spec, Deployment())
        rows.append(
            {
                "model": name,
                "model_type": spec.model_type,
                "attention": list(spec.attention_kinds),
                "layers": len(spec.layers),
                "bytes_per_token": kvcache.growing_bytes_per_token(
                    spec.layers, kv, max_context=spec.max_context
                ),
                "context": spec.max_context,
                "params": parameters(spec) if spec.weights_known else None,
                "dtype": spec.dtype,
                "aliases": list(card.aliases),
                "source": card.source,
            }
        )
    return rows


@app.command("show")
def show_card(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A card or alias.", autocompletion=complete_model)
    ],
    output: OutputOpt = None,
) -> None:
    """Print a card: the deciding fields of the model's configuration, and their source."""
    from kvtool.catalog import card_names, card_text, find_card

    card = find_card(name)
    if card is None:
        raise UsageError(
            f"no model card named '{name}'",
            did_you_mean(name, card_names(), "`kvtool models` lists the cards"),
        )
    _print(card_text(card), output)


@app.command("import")
def import_config(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG_JSON", help="A config.json, or - for standard input.")
    ],
    name: Annotated[
        str | None, typer.Option(help="The card's name; default: that of the folder or file.")
    ] = None,
    output: OutputOpt = None,
) -> None:
    """Print a card made from a published config.json: the fields that decide, nothing else."""
    from kvtool.catalog import card_text, import_card

    _print(card_text(import_card(config, name)), output)


def _print(text: str, output: str | None) -> None:
    from pathlib import Path

    from kvtool.report.output import write

    if output and output != "-":
        write(text, Path(output))
    else:
        typer.echo(text, nl=False)
