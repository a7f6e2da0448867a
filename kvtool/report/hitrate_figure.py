"""The hit-rate curves of `kvtool simulate` as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvtool.errors import KvtoolError
from kvtool.simulation.study import Outcome
from kvtool.simulation.sweep import Group, mean_interval
from kvtool.workload.documents import DocumentWorkload

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 160
_STYLES = {"prefix": ":", "position-aware": "--", "two-copy": "-.", "lazy": "-"}


def save_figure(outcome: Outcome, path: Path) -> None:
    """Draw hit rate over budget, a line per rule and policy, as PNG or SVG by the suffix of `path`.

    LRU comes from its curves. Bands are 95 % over seeds; dots mark 90 % of the unlimited rate,
    crosses the budgets of other policies.
    Needs matplotlib. Raises KvtoolError when the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.5), layout="constrained")
    axes = figure.add_subplot()
    several = len(outcome.plan.sources) > 1
    end = _end(outcome)
    for group in outcome.groups:
        source = outcome.plan.sources[group.source]
        label = group.rule
        if len(outcome.plan.policies) > 1:
            label += f", {group.policy}"
        if several and isinstance(source, DocumentWorkload):
            label += f", Zipf {source.skew:g}"
        _draw(axes, group, outcome, label, end)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("cache budget, GiB")
    axes.set_ylabel("hit rate, %")
    axes.set_ylim(0, None)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False)
    axes.set_title(_title(outcome), fontsize=10)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise KvtoolError(
            f"cannot write '{path}': {error.strerror}", "choose another place"
        ) from None


def _draw(axes: Axes, group: Group, outcome: Outcome, label: str, end: float) -> None:
    curves = [sample.curve for sample in group.samples if sample.curve is not None]
    if curves:
        steps = np.unique(np.concatenate([curve.budgets for curve in curves]))
        if not len(steps):
            return
        budgets = np.geomspace(max(int(steps[0]), group.largest_bytes), end, _POINTS)
    else:
        budgets = np.array(outcome.plan.budgets, dtype=np.float64)
    found = [mean_interval([r.hit_rate for r in group.rates(int(b))] or [0.0]) for b in budgets]
    gib = budgets / 2**30
    mean = [100 * middle for middle, _, _ in found]
    (line,) = axes.plot(
        gib,
        mean,
        _STYLES.get(group.rule, "-") if curves else "x-",
        label=label,
        linewidth=1.8,
        drawstyle="steps-post" if curves else "default",
    )
    if all(low is not None for _, low, _ in found):
        axes.fill_between(
            gib,
            [100 * (low or 0.0) for _, low, _ in found],
            [100 * (high or 0.0) for _, _, high in found],
            color=line.get_color(),
            alpha=0.2,
            linewidth=0,
        )
    for knee in outcome.knees:
        if curves and (knee.source, knee.reuse) == (group.source, group.rule):
            height = 100 * mean_interval([r.hit_rate for r in group.rates(knee.budget_bytes)])[0]
            axes.plot(knee.budget_bytes / 2**30, height, "o", color=line.get_color())


def _end(outcome: Outcome) -> float:
    """Where the picture ends: beyond it no budget hits more."""
    steps = [
        int(sample.curve.budgets[-1])
        for group in outcome.groups
        for sample in group.samples
        if sample.curve is not None and len(sample.curve.budgets)
    ]
    return float(max(steps + list(outcome.plan.budgets), default=1))


def _title(outcome: Outcome) -> str:
    asked = outcome.study.inputs
    if "trace" in asked:
        what = f"{Path(str(asked['trace'])).name} ({asked['format']})"
    else:
        what = (
            f"Zipf {asked['zipf']} over {asked['docs']:,} documents of {asked['doc_tokens']} "
            f"tokens, {asked['docs_per_request']} a request"
        )
    title = f"{what}\n{asked['model']}, {asked['kv_dtype']} cache; dots: 90 % of unlimited"
    return title.replace("$", r"\$")  # no formula, whatever the file is called
