"""The package list of pyproject.toml matches the folders, and everything a user needs ships."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_package_list_matches_the_folders():
    folders = {"kvtool.kernels", "kvtool.model_configs"}
    for init in (ROOT / "kvtool").rglob("__init__.py"):
        folders.add(".".join(init.parent.relative_to(ROOT).parts))

    listed = set(project()["tool"]["setuptools"]["packages"])

    assert listed == folders


def test_every_folder_with_modules_is_a_package():
    with_modules = {path.parent for path in (ROOT / "kvtool").rglob("*.py")}

    assert [folder for folder in with_modules if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("package", ["kvtool.model_configs", "kvtool.devices"])
def test_cards_are_found_as_resources(package):
    names = [entry.name for entry in files(package).iterdir()]

    assert any(name.endswith(".yaml") for name in names)


def test_kernels_are_imported_under_their_own_name():
    code = "import kvtool.kernels as k, pathlib; print(pathlib.Path(k.__file__).parent.name)"

    out = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )

    assert out.stdout.strip() == "kernels"


def test_ci_runs_the_line_that_the_readme_prints():
    readme = (ROOT / "README.md").read_text("utf-8").splitlines()
    lines = [line for line in readme if line.startswith("pip install -e ")]

    assert lines == ['pip install -e ".[all,test]" && pytest']
