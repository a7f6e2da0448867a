"""kvtool devices: the device cards."""

from __future__ import annotations

from typing import Annotated

import typer

from kvtool.commands.options import FormatOpt, JsonOpt, OutputOpt

EXAMPLES = """Examples:

  kvtool devices

  kvtool devices --search mi3 --json"""


def devices(
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only names and aliases that contain it.")
    ] = None,
    fmt: FormatOpt = None,
    as_json: JsonOpt = False,
    output: OutputOpt = None,
) -> None:
    """The devices that kvtool knows: memory, bandwidth, peak rates, each with its source."""
    from kvtool.device import PEAK_DTYPES, device_names, load_device
    from kvtool.report.listing import view
    from kvtool.report.output import choose_format, show
    from kvtool.report.record import Report

    chosen = choose_format(fmt, as_json, output)
    rows = []
    for name in device_names():
        spec = load_device(name)
        if search and not any(search.lower() in n.lower() for n in (name, *spec.aliases)):
            continue
        rows.append(
            {
                "device": name,
                "vendor": spec.vendor,
                "memory_usable_bytes": spec.memory_usable_bytes,
                "memory_nominal_bytes": spec.memory_nominal_bytes,
                "bandwidth_bytes_per_s": spec.bandwidth_bytes_per_s,
                **{f"{d}_flops_per_s": spec.peak_flops_per_s.get(d) for d in PEAK_DTYPES},
                "aliases": list(spec.aliases),
                "sources": dict(spec.sources),
            }
        )
    columns = (
        "device",
        "memory_usable_bytes",
        "memory_nominal_bytes",
        "bandwidth_bytes_per_s",
        "bf16_flops_per_s",
        "fp8_flops_per_s",
    )
    report = Report("devices", {"search": search}, rows)
    show(report, chosen, view(columns, f"{len(rows)} devices"), output)
