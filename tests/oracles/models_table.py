"""Write the tables of docs/models.md: every configuration of a folder, and every card.

    python tests/oracles/models_table.py FOLDER [docs/models.md]

FOLDER holds one published configuration per .json file; keys that start with an underscore are
remarks and dropped. What stands in the page between `<!-- NAME -->` and `<!-- end NAME -->` is
replaced, for NAME `configurations` and `cards`; the words around it are written by hand.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from kvtool import kvcache
from kvtool.catalog import card_names, load_card
from kvtool.dtype import KVFormat, load_dtype
from kvtool.errors import KvtoolError
from kvtool.model.huggingface import read_config
from kvtool.model.spec import ModelSpec
from kvtool.model.weights import parameters

CONTEXT = 32_768
HEAD = (
    "| name | type | attention | layers | dtype | bytes per token | fixed bytes"
    " | bytes at 32,768 | parameters | remarks |\n"
    "| --- | --- | --- | ---: | --- | ---: | ---: | ---: | ---: | --- |"
)


def cells(spec: ModelSpec) -> Iterator[str]:
    """Type, attention, layers, dtype, slope, fixed and whole bytes, parameters, remarks."""
    element = load_dtype(spec.dtype)
    kv = KVFormat(element, element)
    frames = spec.encoder_tokens or 0
    held = kvcache.sequence_bytes(spec, CONTEXT, kv, encoder=frames)
    remarks = [*spec.notes]
    if spec.mtp_layers:
        remarks.append(f"{len(spec.mtp_layers)} prediction layer(s) apart")
    if any(state.kind == "cross" for state in spec.states()):
        behind = f"of {frames:,} frames counted" if frames else "come on top"
        remarks.append(f"rows behind cross-attention {behind}")
    yield spec.model_type
    yield " ".join(spec.attention_kinds) or "none"
    yield f"{len(spec.layers)}"
    yield spec.dtype
    yield f"{kvcache.growing_bytes_per_token(spec.layers, kv, max_context=spec.max_context):,}"
    yield f"{kvcache.fixed_bytes(spec.layers, kv, encoder=frames):,}"
    yield f"{held:,}"
    yield f"{parameters(spec):,}{'' if spec.weights_known else ' and more'}"
    yield "; ".join(dict.fromkeys(remarks))


def configuration_rows(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.json"), key=lambda found: found.name.lower()):
        raw = json.loads(path.read_text("utf-8"))
        config = {key: value for key, value in raw.items() if not key.startswith("_")}
        name = path.stem.replace("__", "/")
        try:
            spec = replace(read_config(config, name, path.name)[0], name=name)
            yield line(name, *cells(spec))
        except KvtoolError as error:
            yield line(name, str(config.get("model_type", "")), *[""] * 7, f"error: {error}")


def card_rows() -> Iterator[str]:
    for name in card_names():
        yield line(name, *cells(load_card(name).spec()))


def line(*texts: str) -> str:
    return f"| {' | '.join(text.replace('|', '/') for text in texts)} |"


def insert(page: str, name: str, rows: Iterable[str]) -> str:
    """`page` with the table called `name` replaced."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    table = "\n".join([HEAD, *rows])
    found, times = pattern.subn(lambda m: f"{m[1]}\n{table}\n\n{m[2]}", page)
    if times != 1:
        raise SystemExit(f"the page has {times} places called {name}, not one")
    return found


def main(folder: str, page: str = "docs/models.md") -> None:
    path = Path(page)
    text = insert(path.read_text("utf-8"), "configurations", configuration_rows(Path(folder)))
    path.write_text(insert(text, "cards", card_rows()), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
