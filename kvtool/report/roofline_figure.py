"""A picture of bench rows under the roof that the same run measured.

Operations per byte across, operations per second upward, both logarithmic. The roof is the
bandwidth slope and the flat arithmetic rate; one point per row, coloured by implementation,
a disc for prefill and a square for decode. All implementations of a case have the same operations
per byte and are drawn side by side around it. Rows without a speed are not drawn.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvtool.errors import KvtoolError, UsageError
from kvtool.roofline import Roof, ridge

MARKERS = {"prefill": "o", "decode": "s"}
SIDESTEP = 1.12
"""Factor on operations per byte between neighbouring implementations."""
COLOURS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
    "#7f7f7f",
    "#8c564b",
    "#000000",
    "#bcbd22",
)
SUFFIXES = (".png", ".svg", ".pdf")


def check_path(path: Path) -> None:
    """Refuse early what could not be drawn after the run: the suffix, or missing matplotlib."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"cannot draw to '{path.name}'", f"the suffix must be one of {', '.join(SUFFIXES)}"
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise KvtoolError(
            "drawing needs matplotlib, which is not installed", "pip install 'kvtool[plot]'"
        )


def draw(
    rows: Sequence[Mapping[str, Any]],
    *,
    roof: Roof,
    title: str,
    path: Path,
) -> None:
    """Write the roofline picture of `rows` to `path` (PNG, SVG or PDF, by its suffix).

    The same rows give the same SVG, byte for byte.
    """
    check_path(path)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    timed = [row for row in rows if row["median_s"]]
    figure, axes = pyplot.subplots(figsize=(8, 5.2), layout="constrained")
    _draw_roof(axes, timed, roof)
    _draw_rows(axes, timed)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="operations per byte of the task (implementations of a case side by side)",
        ylabel="TFLOP/s",
        title=title,
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5), borderaxespad=0
    )
    stable = {"Date": None} if path.suffix.lower() == ".svg" else None
    with matplotlib.rc_context({"svg.hashsalt": "kvtool"}):
        figure.savefig(path, dpi=160, metadata=stable)
    pyplot.close(figure)


def _draw_roof(axes: Any, rows: Sequence[Mapping[str, Any]], roof: Roof) -> None:
    top, corner = roof.flops_per_s / 1e12, ridge(roof)
    intensities = [row["flops"] / row["bytes"] for row in rows]
    low, high = min([*intensities, corner]) / 3, max([*intensities, corner]) * 3
    axes.plot(
        [low, corner, high],
        [low * roof.bandwidth_bytes_per_s / 1e12, top, top],
        color="#444444",
        linewidth=1.5,
        label="measured roof",
    )
    axes.annotate(
        f"{top:,.3g} TFLOP/s, {roof.bandwidth_bytes_per_s / 1e9:,.4g} GB/s, ridge at {corner:,.3g}",
        (corner, top),
        textcoords="offset points",
        xytext=(0, 6),
        ha="center",
        fontsize=8,
    )
    axes.set_xlim(low, high)


def _draw_rows(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(row["implementation"] for row in rows))
    for index, name in enumerate(names):
        step = SIDESTEP ** (index - (len(names) - 1) / 2)
        for phase, marker in MARKERS.items():
            points = [r for r in rows if (r["implementation"], r["phase"]) == (name, phase)]
            axes.scatter(
                [row["flops"] / row["bytes"] * step for row in points],
                [row["flops_per_s"] / 1e12 for row in points],
                marker=marker,
                s=34,
                color=COLOURS[index % len(COLOURS)],
                edgecolor="white",
                linewidth=0.5,
                zorder=3,
            )
        axes.scatter([], [], marker="o", s=34, color=COLOURS[index % len(COLOURS)], label=name)
    for phase, marker in MARKERS.items():
        if any(row["phase"] == phase for row in rows):
            axes.scatter([], [], marker=marker, s=34, color="white", edgecolor="black", label=phase)
