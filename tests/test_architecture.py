"""Imports point down the list of modules; light commands load nothing heavy."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From left to right; a module imports only from its left (and from its own part).
ORDER = (
    "version",
    "errors",
    "units",
    "dtype",
    "model",
    "catalog",
    "devices",
    "device",
    "kvcache",
    "engines",
    "fit",
    "solve",
    "explain",
    "auditing",
    "roofline",
    "workload",
    "reuse",
    "policy",
    "curve",
    "theory",
    "simulation",
    "kernels",
    "benchmark",
    "report",
    "api",
    "commands",
    "cli",
)
# What the core must not know.
FOREIGN = {"typer", "rich", "click"}
CORE = ORDER[: ORDER.index("kernels")]


def test_the_architecture_page_has_the_same_order():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    listed = page.partition("one order")[2].partition(":\n\n")[2].partition(".\n")[0]

    assert tuple(name.strip(" `\n") for name in listed.split(",")) == ORDER


def sources() -> list[Path]:
    return [*(ROOT / "kvtool").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")]


def part_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return "kernels" if parts[0] == "kernels" else parts[1]


def imported(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def upward(path: Path) -> list[str]:
    mine = part_of(path)
    found = []
    for name in imported(path):
        pieces = name.split(".")
        if pieces[0] != "kvtool" or len(pieces) < 2 or pieces[1] not in ORDER:
            continue
        if ORDER.index(pieces[1]) > ORDER.index(mine):
            found.append(name)
    return found


@pytest.mark.parametrize("path", sources(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports_point_down(path):
    if path.name in ("__init__.py",) and path.parent.name == "kvtool":
        pytest.skip("the package itself offers the Python interface, lazily")

    assert part_of(path) in ORDER
    assert upward(path) == []


@pytest.mark.parametrize("path", sources(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_core_knows_no_terminal(path):
    if part_of(path) not in CORE:
        pytest.skip("not the core")

    assert FOREIGN.isdisjoint(name.split(".")[0] for name in imported(path))


@pytest.mark.parametrize(
    "args",
    [
        ["size", "llama-3-70b", "--ctx", "32k"],
        ["size", "llama-3-70b", "--ctx", "32k", "--json"],
        ["models"],
        ["devices"],
        ["--help"],
        ["--version"],
    ],
    ids=" ".join,
)
def test_light_commands_load_nothing_heavy(args):
    code = (
        "import json, sys; from kvtool.cli import run; code = run(sys.argv[1:]);"
        "print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)"
    )

    out = subprocess.run(
        [sys.executable, "-P", "-c", code, *args], capture_output=True, text=True, check=True
    )
    code, modules = json.loads(out.stderr.splitlines()[-1])

    assert code == 0
    heavy = {"torch", "triton", "transformers", "pandas", "numpy", "matplotlib", "gguf"}
    assert heavy.isdisjoint(modules)
