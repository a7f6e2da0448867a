"""Writes docs/benchmarks/attention.md and its picture from the JSON of `benchmarks/attention.py`.

    python benchmarks/attention_page.py docs/benchmarks/h200.json docs/benchmarks/attention.md

Every figure of the page comes from the file. A bar that was missed is said to be missed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
DECODE_COLUMNS = (
    "cached", "flash", "lazy", "flashinfer", "flashinfer-rope", "sdpa-cudnn",
)  # fmt: skip
PREFILL_COLUMNS = ("flash", "lazy", "sdpa-cudnn", "sdpa-flash")


@dataclass(frozen=True)
class Run:
    """The rows of one file by section, and what stands beside them."""

    document: dict[str, Any]

    @property
    def environment(self) -> dict[str, Any]:
        return self.document["environment"]

    def rows(self, section: str, **fields: Any) -> list[Row]:
        return [
            row
            for row in self.document["results"]
            if row["section"] == section and all(row[k] == v for k, v in fields.items())
        ]

    def times(
        self, section: str, implementation: str, **fields: Any
    ) -> dict[tuple[Any, ...], float]:
        """Median seconds of one implementation by case; rows without a speed are missing."""
        return {
            _case(row): row["median_s"]
            for row in self.rows(section, implementation=implementation, **fields)
            if row["median_s"]
        }


def _case(row: Row) -> tuple[Any, ...]:
    return (row["head_dim"], row["mask"], row["batch_size"], row["context_tokens"], row["kv_dtype"])


def ratios(slow: dict[tuple[Any, ...], float], fast: dict[tuple[Any, ...], float]) -> list[float]:
    """slow / fast for the cases that both have: how much faster the second is."""
    return [slow[case] / fast[case] for case in slow if case in fast]


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


@dataclass(frozen=True)
class Bar:
    """What was aimed at, and what was measured."""

    claim: str
    found: list[float]
    summarise: Callable[[Sequence[float]], float]
    least: float | None

    def line(self) -> str:
        if not self.found:
            return f"| {self.claim} | not measured | {self._aim()} | - |"
        value = self.summarise(self.found)
        met = "" if self.least is None else "yes" if value >= self.least else "**no**"
        spread = f"{value:.3f}"
        if len(self.found) > 1:
            spread += f" ({min(self.found):.3f} to {max(self.found):.3f})"
        return f"| {self.claim} | {spread} | {self._aim()} | {met} |"

    def _aim(self) -> str:
        return "reported" if self.least is None else f"{self.least:.2f} or more"


def bars(run: Run) -> list[Bar]:
    decode = {name: run.times("decode", name) for name in DECODE_COLUMNS}
    prefill = {name: run.times("prefill", name) for name in PREFILL_COLUMNS}
    documents = ratios(run.times("documents", "flash"), run.times("documents", "lazy"))
    lazy = documents + ratios(decode["flash"], decode["lazy"])
    variants = {name: run.times("variants", name) for name in ("lazy rotate-q", "lazy unsplit")}
    single = {case: s for case, s in variants["lazy unsplit"].items() if case[2] == 1}
    return [
        Bar("flash decode against FlashInfer's paged decode, geometric mean",
            ratios(decode["flashinfer"], decode["flash"]), geometric_mean, 1.0),
        Bar("lazy decode against our flash decode, documents of 512 and 1024, slowest case",
            lazy, min, 0.98),
        Bar("lazy decode against FlashInfer `ROPE_LLAMA`, slowest case",
            ratios(decode["flashinfer-rope"], decode["lazy"]), min, 1.1),
        Bar("fp8 cache against bfloat16, flash decode, (64, 8K)", _fp8(run, "flash"), min, 1.6),
        Bar("fp8 cache against bfloat16, lazy decode, (64, 8K)", _fp8(run, "lazy"), min, None),
        Bar("flash prefill against cuDNN, geometric mean",
            ratios(prefill["sdpa-cudnn"], prefill["flash"]), geometric_mean, 0.70),
        Bar("lazy prefill against our flash prefill, slowest case",
            ratios(prefill["flash"], prefill["lazy"]), min, 0.97),
        Bar("lazy decode against the unsplit kernel, (1, 32K)",
            ratios(single, variants["lazy rotate-q"]), min, None),
    ]  # fmt: skip


def _fp8(run: Run, name: str) -> list[float]:
    wide = {case[:4]: s for case, s in run.times("fp8", name, kv_dtype="bfloat16").items()}
    narrow = {case[:4]: s for case, s in run.times("fp8", name, kv_dtype="fp8_e4m3").items()}
    return ratios(wide, narrow)


def page(run: Run, source: str, picture: str) -> str:
    parts = [
        f"# Attention on {_article(run.environment['device'])}",
        f"Generated from [`{source}`]({source}) by `benchmarks/attention_page.py`; "
        "[how it is measured](method.md). Figures are medians; a ratio of 2 is twice as fast.",
        _setting(run),
        "## What was aimed at\n\n" + _bars(run),
        f"![Rows under the measured roof]({picture})",
        "## Prefill, TFLOP/s\n\n"
        "32 query and 8 key/value heads, bfloat16, 16,384 tokens in all. `lazy` has documents of "
        "1024 tokens.\n\n" + _grid(run, "prefill", PREFILL_COLUMNS, "flops_per_s"),
        "## Decode, TB/s of the task\n\n"
        "32 query and 8 key/value heads of 128, bfloat16, blocks of 16 tokens in shuffled order; "
        "`cached` and `sdpa-cudnn` read a contiguous cache. `lazy` has documents of 1024 tokens."
        "\n\n" + _grid(run, "decode", DECODE_COLUMNS, "bytes_per_s"),
        "The same with documents of 512 tokens:\n\n"
        + _grid(run, "documents", ("flash", "lazy"), "bytes_per_s"),
        "## fp8 cache, decode\n\n" + _list(run.rows("fp8"), ("kv_dtype",)),
        "## Variants of lazy, decode\n\n" + _list(run.rows("variants"), ()),
        "## FlexAttention and the memory-efficient backend\n\n"
        + _list(run.rows("flex"), ("phase",)),
        "## `kvtool bench` without options\n\n" + _default(run),
        "## Generation\n\n" + _generate(run),
        "## Gates\n\n" + _gates(run),
    ]
    return "\n\n".join(parts) + "\n"


def _article(device: str) -> str:
    return f"an {device}"


def _setting(run: Run) -> str:
    e, c = run.environment, run.environment["ceilings"]
    versions = ", ".join(f"{name} {v}" for name, v in e["versions"].items())
    lines = [
        f"- {e['device']}, {e['multiprocessors']} multiprocessors, "
        f"{e['l2_bytes'] / 2**20:.0f} MiB of L2; driver {e['driver']}, CUDA {e['cuda']}, "
        f"cuDNN {_cudnn(e['cudnn'])}",
        f"- {versions}; kvtool {run.document['kvtool']}; {e['date'][:10]}",
        f"- measured roof: copy {c['copy_bytes_per_s'] / 1e12:.2f} TB/s, read "
        f"{c['read_bytes_per_s'] / 1e12:.2f} TB/s, {c['dtype']} matmul "
        f"{c['matmul_flops_per_s'] / 1e12:.0f} TFLOP/s",
    ]
    clocks = [
        row[moment]["sm_clock_hz"] / 1e6
        for row in run.document["results"]
        for moment in ("device_before", "device_after")
        if row.get(moment)
    ]
    if clocks:
        lines.append(f"- SM clock beside the cases: {min(clocks):.0f} to {max(clocks):.0f} MHz")
    return "\n".join(lines)


def _cudnn(version: int) -> str:
    """9.19.0 for 91900."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def _bars(run: Run) -> str:
    head = [
        _line(["claim", "measured (smallest and largest case)", "bar", "met"]),
        _line(["---", "---:", "---:", "---"]),
    ]
    return "\n".join([*head, *(bar.line() for bar in bars(run))])


def _grid(run: Run, section: str, columns: Sequence[str], rate: str) -> str:
    """A line per case, a column per implementation, and the share of the roof of ours."""
    rows = run.rows(section)
    cases = list(dict.fromkeys(_case(row) for row in rows))
    head = ["case", *columns, "roof share of flash"]
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    for case in cases:
        found = {row["implementation"]: row for row in rows if _case(row) == case}
        cells = [_rate(found.get(name), rate) for name in columns]
        share = found.get("flash", {}).get("roof_fraction")
        lines.append(
            _line([_label(case, section), *cells, "-" if share is None else f"{share:.0%}"])
        )
    return "\n".join(lines)


def _label(case: tuple[Any, ...], section: str) -> str:
    head_dim, mask, batch, context, _ = case
    shape = f"({batch}, {_tokens(context)})"
    return f"D{head_dim} {mask} {shape}" if section == "prefill" else shape


def _tokens(count: int) -> str:
    return f"{count // 1024}K" if count % 1024 == 0 else str(count)


def _rate(row: Row | None, rate: str) -> str:
    if row is None:
        return "-"
    if row["median_s"] is None:
        return "failed"
    return f"{row[rate] / 1e12:.0f}" if rate == "flops_per_s" else f"{row[rate] / 1e12:.2f}"


def _list(rows: Iterable[Row], more: Sequence[str]) -> str:
    head = ["case", *more, "implementation", "us", "p20-p80", "TB/s", "vs flash", "error"]
    lines = [_line(head), _line(["---"] * (2 + len(more)) + ["---:"] * 5)]
    for row in rows:
        first = [_label(_case(row), row["section"]), *(row[name] for name in more)]
        error = "-" if row["max_error"] is None else f"{row['max_error']:.1e}"
        lines.append(_line([*first, row["implementation"], *_speed(row), error]))
    return "\n".join(lines)


def _speed(row: Row) -> list[str]:
    if row["median_s"] is None:
        return ["failed", "", "", ""]
    low, high = row["p20_s"] * 1e6, row["p80_s"] * 1e6
    return [
        f"{row['median_s'] * 1e6:,.1f}",
        f"{low:,.1f}-{high:,.1f}",
        f"{row['bytes_per_s'] / 1e12:.2f}",
        "-" if row["speedup"] is None else f"{row['speedup']:.2f}x",
    ]


def _default(run: Run) -> str:
    rows = run.rows("default")
    seconds = run.document["sections"].get("default", {}).get("seconds")
    head = ["case", "implementation", "us", "p20-p80", "TFLOP/s", "TB/s", "roof", "vs flash"]
    lines = [_line(head), _line(["---", "---", *["---:"] * 6])]
    for row in rows:
        time, spread, rate, ratio = _speed(row)
        share = "" if row["roof_fraction"] is None else f"{row['roof_fraction']:.1%}"
        flops = "" if row["flops_per_s"] is None else f"{row['flops_per_s'] / 1e12:.3g}"
        case = f"{row['phase']} ({row['batch_size']}, {_tokens(row['context_tokens'])})"
        lines.append(_line([case, row["implementation"], time, spread, flops, rate, share, ratio]))
    took = "" if seconds is None else f"It took {seconds:.0f} s, compilation included.\n\n"
    return took + "\n".join(lines)


def _generate(run: Run) -> str:
    rows = run.rows("generate")
    if not rows:
        return "Not measured."
    first = rows[0]
    head = ["kernel", "tokens/s", "seconds", "in attention", "query rows", "scores", "grows as"]
    lines = [
        f"{first['tokens']} tokens, {first['layers']} layers, hidden {first['hidden_size']}, "
        f"{first['dtype']}, random weights; time includes the decoder's own launches.\n",
        _line(head),
        _line(["---", *["---:"] * 6]),
    ]
    for row in rows:
        exponent = row["attention_exponent"]
        cells = (
            ["failed", "", ""]
            if row["total_s"] is None
            else [
                f"{row['tokens_per_s']:,.0f}",
                f"{row['total_s']:.2f}",
                f"{row['attention_s']:.3f}",
            ]
        )
        grows = "fixed cost" if exponent is None else f"n^{exponent:.1f}"
        lines.append(
            _line([row["kernel"], *cells, f"{row['query_rows']:,}", f"{row['scores']:,}", grows])
        )
    return "\n".join(lines)


def _gates(run: Run) -> str:
    rows = run.document["results"]
    passed = sum(row["gate"] == "pass" for row in rows)
    lines = [f"{passed} of {len(rows)} rows passed; the others have no speed.", ""]
    lines += [
        f"- {row['implementation']}, {row['phase']} {_label(_case(row), row['section'])}: {fault}"
        for row in rows
        for fault in row.get("faults", ())
    ]
    notes = [line for line in run.document["warnings"] if "spread wide" not in line]
    if notes:
        lines += ["", "Notes of the run:", "", *(f"- {line}" for line in notes)]
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="The page of a benchmark run.")
    parser.add_argument("source", type=Path)
    parser.add_argument("page", type=Path)
    options = parser.parse_args()
    run = Run(json.loads(options.source.read_text(encoding="utf-8")))
    picture = options.source.with_suffix(".svg")
    _draw(run, picture)
    options.page.write_text(page(run, options.source.name, picture.name), encoding="utf-8")


def _draw(run: Run, path: Path) -> None:
    from kvtool.benchmark.ceilings import Ceilings
    from kvtool.report.roofline_figure import draw

    draw(
        run.rows("default") + run.rows("decode") + run.rows("prefill", head_dim=128),
        roof=Ceilings(**run.environment["ceilings"]).roof,
        title=f"Attention on {run.environment['device']}",
        path=path,
    )


if __name__ == "__main__":
    main()
