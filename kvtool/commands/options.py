"""Options that several verbs share, and their completions."""

from __future__ import annotations

from typing import Annotated

import typer

from kvtool.report.output import FORMATS

RESULTS = "Output"


def complete_model(incomplete: str) -> list[str]:
    from kvtool.catalog import card_names

    return [name for name in card_names() if name.startswith(incomplete.lower())]


def complete_device(incomplete: str) -> list[str]:
    from kvtool.device import device_names

    return [name for name in device_names() if name.startswith(incomplete.lower())]


def complete_dtype(incomplete: str) -> list[str]:
    from kvtool.dtype import ALIASES, DTYPES

    return [name for name in ("auto", *DTYPES, *ALIASES) if name.startswith(incomplete.lower())]


def complete_format(incomplete: str) -> list[str]:
    return [name for name in FORMATS if name.startswith(incomplete)]


FormatOpt = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="|".join(FORMATS),
        help="How to print; default: a table, or what the suffix of --output says.",
        autocompletion=complete_format,
        rich_help_panel=RESULTS,
    ),
]
JsonOpt = Annotated[
    bool, typer.Option("--json", help="Short for --format json.", rich_help_panel=RESULTS)
]
OutputOpt = Annotated[
    str | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write to FILE instead; - is standard output.",
        rich_help_panel=RESULTS,
    ),
]  # fmt: skip
ExplainOpt = Annotated[
    bool,
    typer.Option(
        "--explain", help="Show the formulas with the numbers in place.", rich_help_panel=RESULTS
    ),
]
