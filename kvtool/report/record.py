"""The result of a command: inputs as understood, warnings, one row per combination."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvtool.version import __version__

if TYPE_CHECKING:
    import pandas

Row = dict[str, Any]


@dataclass(slots=True)
class Report:
    """What a command found. `beside` holds sections that stand beside the rows in JSON."""

    command: str
    inputs: Mapping[str, Any]
    results: list[Row]
    warnings: list[str] = field(default_factory=list)
    beside: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kvtool": __version__,
            "command": self.command,
            "inputs": dict(self.inputs),
            "warnings": list(self.warnings),
            **self.beside,
            "results": self.results,
        }

    def to_json(self) -> str:
        """One JSON object, in base units."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def to_jsonl(self) -> str:
        """The rows, one JSON object a line."""
        return "".join(json.dumps(row, allow_nan=False) + "\n" for row in self.results)

    def to_csv(self) -> str:
        """The rows as CSV; lists and mappings inside a row are JSON."""
        names = _columns(self.results)
        out = io.StringIO()
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(row.get(name)) for name in names} for row in self.results)
        return out.getvalue()

    def to_markdown(self) -> str:
        """The rows as a Markdown table, without the columns that are empty or nested."""
        names = [
            name
            for name in _columns(self.results)
            if any(row.get(name) is not None for row in self.results)
            and not any(isinstance(row.get(name), list | dict) for row in self.results)
        ]
        lines = [names, ["---"] * len(names)]
        lines += [[_cell(row.get(name)) for name in names] for row in self.results]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def to_frame(self) -> pandas.DataFrame:
        """The rows as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame(self.results)


def _columns(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list | dict | bool):
        return json.dumps(value, allow_nan=False)
    return str(value)
