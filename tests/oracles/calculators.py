"""Asks other KV cache calculators about our cards, and writes where and why they differ.

The calculators are no dependency of kvtool; they get an environment of their own:

    python -m venv ENV && ENV/bin/pip install kvfit==0.3.0 hf-mem==0.5.6 llm-cal==0.2.0 pyyaml
    ENV/bin/python tests/oracles/calculators.py figures   # tests/golden/calculators.json
    python tests/oracles/calculators.py page              # docs/cross-check.md, needs kvtool

With --check either writes nothing and exits with 1 when its file would change. The inputs are the
`config` sections of the cards, completed by what a calculator asks for although it follows from
other fields (`completed`). One sequence of 32,768 tokens, 2 bytes per element. Each difference
between a calculator and kvtool belongs to exactly one reason of the table
tests/golden/calculator_reasons.json, which tests/test_cross_check.py demands.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "calculators.json"
REASONS = GOLDEN.with_name("calculator_reasons.json")
PAGE = ROOT / "docs" / "cross-check.md"
CONTEXT = 32_768
TOOLS = ("kvfit", "hf-mem", "llm-cal")
# Types whose cache depends on the length of another input.
LEFT_OUT = ("t5", "mllama")


class Reason(NamedTuple):
    """Why `tool` differs in `of`, bytes or parameters, on cards of those model types, on those
    cards."""

    tool: str
    of: str
    name: str
    text: str
    types: tuple[str, ...]
    cards: tuple[str, ...]


@cache
def reasons() -> tuple[Reason, ...]:
    """The reason table, tests/golden/calculator_reasons.json."""
    return tuple(
        Reason(
            *(entry[key] for key in ("tool", "of", "name", "text")),
            tuple(entry.get("types", ())),
            tuple(entry.get("cards", ())),
        )
        for entry in json.loads(REASONS.read_text("utf-8"))
    )


def completed(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with fields that follow from ours, for calculators that ask for them."""
    text = config.get("text_config", config)
    kind = str(text.get("model_type") or config.get("model_type"))
    pattern = text.get("hybrid_override_pattern")
    if kind == "nemotron_h" and isinstance(pattern, str):
        text = text | {"num_hidden_layers": len(pattern)}
    if kind == "deepseek_v4":
        text = text | {"num_key_value_heads": 1}
    if kind == "minimax_m3":
        sparse = text["sparse_attention_config"] | {"use_sparse_attention": True}
        text = text | {"sparse_attention_config": sparse}
    step = text.get("sliding_window_pattern")
    if kind in ("gemma3_text", "cohere2") and isinstance(step, int):
        types = ["sliding_attention", "full_attention"]
        listed = [types[(i + 1) % step == 0] for i in range(text["num_hidden_layers"])]
        text = {k: v for k, v in text.items() if k != "sliding_window_pattern"}
        text |= {"layer_types": listed}
    return config | {"text_config": text} if "text_config" in config else text


def ask_kvfit(config: dict[str, Any]) -> dict[str, Any]:
    from kvfit.architectures import estimate_cache
    from kvfit.models import UnsupportedArchitecture

    try:
        found = estimate_cache(config, context_tokens=CONTEXT)
    except UnsupportedArchitecture as error:
        return {"refused": str(error)}
    return {"bytes": _whole(found.total_bytes)}


def ask_hf_mem(config: dict[str, Any]) -> dict[str, Any]:
    """Its own conditions first: it reads `text_config` and wants three fields."""
    from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size

    text = config.get("text_config", config)
    wanted = ("hidden_size", "num_hidden_layers", "num_attention_heads")
    if missing := [name for name in wanted if name not in text]:
        return {"refused": f"config.json lacks {', '.join(missing)}"}
    try:
        found = compute_safetensors_kv_cache_size(text, "BF16", CONTEXT)
    except TypeError as error:
        return {"refused": f"TypeError: {error}"}
    return {"bytes": _whole(found)}


def ask_llm_cal(config: dict[str, Any]) -> dict[str, Any]:
    from llm_cal.architecture.detector import detect
    from llm_cal.architecture.formulas.kv_cache import compute_kv_cache_bytes
    from llm_cal.architecture.formulas.weight import estimate_total_params
    from llm_cal.output.labels import Label

    try:
        profile = detect(config)
        cache = compute_kv_cache_bytes(profile, CONTEXT)
    except TypeError as error:
        return {"refused": f"TypeError: {error}"}
    params = estimate_total_params(profile)
    counted = {} if params.label is Label.UNKNOWN else {"parameters": _whole(params.value)}
    if cache.label is Label.UNKNOWN:
        return {"refused": cache.source, **counted}
    return {"bytes": _whole(cache.value), **counted}


def _whole(value: float) -> int:
    if value != int(value):
        raise ValueError(f"{value} is no whole number of bytes")
    return int(value)


ASK: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "kvfit": ask_kvfit,
    "hf-mem": ask_hf_mem,
    "llm-cal": ask_llm_cal,
}


def figures() -> str:
    """The golden file: each card's answers, a line per card."""
    from importlib.metadata import version

    import yaml

    lines = []
    for path in sorted((ROOT / "model_configs").glob("*.yaml")):
        config = yaml.safe_load(path.read_text("utf-8"))["config"]
        if config.get("model_type") in LEFT_OUT:
            continue
        answers = {tool: ASK[tool](completed(config)) for tool in TOOLS}
        lines.append(f"    {json.dumps(path.stem)}: {json.dumps(answers)}")
    head = {"tools": {tool: version(tool) for tool in TOOLS}, "context_tokens": CONTEXT}
    text = json.dumps(head, indent=2).removesuffix("\n}")
    return text + ',\n  "cards": {\n' + ",\n".join(lines) + "\n  }\n}\n"


def reasons_for(tool: str, card: str, model_type: str, of: str = "bytes") -> list[Reason]:
    """The reasons that stand for a difference of that tool on that card."""
    return [
        r
        for r in reasons()
        if r.tool == tool and r.of == of and (card in r.cards or model_type in r.types)
    ]


class Compared(NamedTuple):
    """An answer beside kvtool's figure; `theirs` is None where the calculator refuses."""

    tool: str
    card: str
    model_type: str
    of: str
    ours: int
    theirs: int | None

    @property
    def agrees(self) -> bool:
        """To the byte; parameters to 0.1 %: llm-cal leaves out biases and the smaller norms."""
        if self.theirs is None:
            return False
        if self.of == "parameters":
            return abs(self.theirs - self.ours) * 1000 <= self.ours
        return self.theirs == self.ours


def compare(golden: dict[str, Any]) -> Iterator[Compared]:
    """Every answer of the golden file beside kvtool's figure for the same card."""
    from kvtool import size
    from kvtool.catalog import load_model

    for card, answers in golden["cards"].items():
        model = load_model(card)
        row = size(model, ctx=golden["context_tokens"], kv_dtype="bfloat16").results[0]
        for tool, answer in answers.items():
            theirs = answer.get("bytes")
            yield Compared(tool, card, model.model_type, "bytes", row["sequence_bytes"], theirs)
            counted, ours = answer.get("parameters"), row["weight_params"]
            if counted is not None and ours is not None:
                yield Compared(tool, card, model.model_type, "parameters", ours, counted)


def page() -> str:
    """docs/cross-check.md from the golden file and kvtool's own figures."""
    golden = json.loads(GOLDEN.read_text("utf-8"))
    found = list(compare(golden))
    cache = [c for c in found if c.of == "bytes"]
    counts = [c for c in found if c.of == "parameters"]
    versions = ", ".join(f"{tool} {version}" for tool, version in golden["tools"].items())
    lines = [
        "# Cross-check with other calculators",
        "",
        f"{versions}, each asked about the {len(golden['cards'])} cards whose cache depends on"
        " nothing but the context: KV bytes of one sequence of 32,768 tokens at 2 bytes an element."
        " `tests/oracles/calculators.py` asks and writes this page; `tests/test_cross_check.py`"
        " fails when a figure differs without a reason below.",
        "",
        "| Calculator | Answers | Agree to the byte | Differ | No answer |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(_total(tool, [c for c in cache if c.tool == tool]) for tool in TOOLS),
        "",
        "## Why they differ",
        "",
        "| Calculator | Kind | Cards | Theirs / ours |",
        "| --- | --- | ---: | ---: |",
        *(_kind(reason, cache) for reason in reasons() if reason.of == "bytes"),
        "",
        *(f"- **{r.tool}, {r.name}.** {r.text}" for r in reasons() if r.of == "bytes"),
        "",
        "## Figures",
        "",
        "One card for each model type and set of answers; `=`: the same bytes, `-`: no answer.",
        "",
        "| Card | Model type | kvtool | kvfit | hf-mem | llm-cal |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        *_figures(cache),
        "",
        "## Parameters",
        "",
        f"llm-cal estimates {len(counts)} of these models' parameters;"
        f" {sum(c.agrees for c in counts)} agree to 0.1 % (it leaves out biases and the smaller"
        " norms). kvtool's counts are checked against transformers' own (`tests/oracles`).",
        "",
        "| Kind | Cards | Theirs / ours |",
        "| --- | ---: | ---: |",
        *(_kind(r, counts).split("|", 2)[2].join(("|", "")) for r in reasons() if r.of != "bytes"),
        "",
        *(f"- **{r.name}.** {r.text}" for r in reasons() if r.of != "bytes"),
    ]
    return "\n".join(lines) + "\n"


def _total(tool: str, found: list[Compared]) -> str:
    refused = sum(c.theirs is None for c in found)
    agree = sum(c.agrees for c in found)
    answers = len(found) - refused
    return f"| {tool} | {answers} | {agree} | {answers - agree} | {refused} |"


def _kind(reason: Reason, found: list[Compared]) -> str:
    rows = [
        c
        for c in found
        if c.theirs is not None
        and not c.agrees
        and reason in reasons_for(c.tool, c.card, c.model_type, c.of)
    ]
    ratios = sorted(c.theirs / c.ours for c in rows if c.theirs is not None and c.ours)
    low, high = (f"{ratios[0]:.3g}", f"{ratios[-1]:.3g}") if ratios else ("", "")
    span = low if low == high else f"{low} .. {high}"
    return f"| {reason.tool} | {reason.name} | {len(rows)} | {span or 'ours is 0'} |"


def _figures(found: list[Compared]) -> Iterator[str]:
    by_card: dict[str, list[Compared]] = {}
    for c in found:
        by_card.setdefault(c.card, []).append(c)
    seen: Counter[tuple[str, ...]] = Counter()
    for card, answers in by_card.items():
        cells = [_cell(c) for c in answers]
        outcome = (answers[0].model_type, *(cell if cell in "=-" else "x" for cell in cells))
        seen[outcome] += 1
        if seen[outcome] == 1:
            ours = f"{answers[0].ours:,}"
            yield f"| {card} | {answers[0].model_type} | {ours} | {' | '.join(cells)} |"


def _cell(found: Compared) -> str:
    if found.theirs is None:
        return "-"
    return "=" if found.agrees else f"{found.theirs:,}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("figures", "page"))
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    given = parser.parse_args()
    path, text = (GOLDEN, figures()) if given.what == "figures" else (PAGE, page())
    if given.check:
        return int(not path.is_file() or path.read_text("utf-8") != text)
    path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
