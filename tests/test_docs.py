"""Every example in the README and in docs/ runs and prints what the page shows; links lead on.

A block of `console` holds commands: a line that starts with `$ `, or a whole line where no line
does; what follows a `$ ` line is its output, and so is a `text` block right behind a command. Of
an output a page may show a part: runs of lines, with a line of `..` where something is left out.
Widths of columns are not compared. A line with `[` is a synopsis: its options must be in the help.
"""

from __future__ import annotations

import doctest
import json
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from kvtool.catalog import load_card
from kvtool.cli import COMMANDS, run

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$(?:\n*```text\n(.*?)^```$)?", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

# Examples that are not run, by a part of their text, and why.
NOT_RUN = {
    "kvtool audit server.log": "the log is the reader's; tests/commands/test_audit.py has some",
    "kvtool bench": "measures for minutes; tests/commands/test_bench.py runs small cases",
    "kvtool.bench(": "measures for minutes; tests/benchmark/ runs small cases",
    "dask.distributed": "starts a cluster; tests/simulation/test_study.py does",
}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(language: str) -> list[tuple[str, str, str]]:
    """(page, block, the `text` block right behind it) of all pages."""
    return [
        (name_of(page), match[2], match[3] or "")
        for page in PAGES
        for match in BLOCK.finditer(page.read_text("utf-8"))
        if match[1] == language
    ]


def commands() -> list[tuple[str, str, str]]:
    """(page, line, output shown or nothing) for each line with a command of kvtool."""
    found = []
    for page, block, behind in blocks("console"):
        lines = block.splitlines()
        prompted = any(line.startswith("$ ") for line in lines)
        starts = [n for n, line in enumerate(lines) if line.startswith("$ ") or not prompted]
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            line = lines[start].removeprefix("$ ").rpartition("&& ")[2]
            if line.startswith("kvtool "):
                found.append((page, line, "\n".join(lines[start + 1 : end]) or behind))
    return found


def reason(text: str) -> str | None:
    return next((why for what, why in NOT_RUN.items() if what in text), None)


def ids(cases: list[tuple[str, str, str]]) -> list[str]:
    return [f"{page}: {shown.strip().splitlines()[0]}" for page, shown, _ in cases]


def squeezed(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


SYNOPSES = [case for case in commands() if "[" in case[1]]
EXAMPLES = [case for case in commands() if "[" not in case[1] and reason(case[1]) is None]
PYTHON = [case for case in blocks("python") if reason(case[1]) is None]


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with the files that examples name."""
    (tmp_path / "config.json").write_text(json.dumps(load_card("qwen3-32b").config))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(("page", "line", "shown"), EXAMPLES, ids=ids(EXAMPLES))
def test_a_command_prints_what_the_page_shows(page, line, shown, capsys):
    args = shlex.split(line.partition(" | ")[0], comments=True)[1:]

    code = run(args)
    printed = squeezed(capsys.readouterr().out)

    assert code == 0
    for part in re.split(r"^\.\.$", squeezed(shown), flags=re.M):
        assert part.strip() in printed


@pytest.mark.parametrize(("page", "line", "shown"), SYNOPSES, ids=ids(SYNOPSES))
def test_options_of_a_synopsis_are_in_the_help(page, line, shown, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    run([line.split()[1], "--help"])
    printed = capsys.readouterr().out

    assert [option for option in re.findall(r"--[\w-]+", line) if option not in printed] == []


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(("page", "block", "_"), PYTHON, ids=ids(PYTHON))
def test_python_of_a_page_runs(page, block, _):
    if "import torch" in block:
        pytest.importorskip("torch", reason="the bench extra is not installed")
    test = doctest.DocTestParser().get_doctest(block, {}, page, None, None)

    if not test.examples:
        exec(compile(block, page, "exec"), {})
    assert doctest.DocTestRunner().run(test).failed == 0


def test_what_is_not_run_is_still_on_a_page():
    texts = [shown for _, shown, _ in [*commands(), *blocks("python")]]

    assert [what for what in NOT_RUN if not any(what in text for text in texts)] == []


def with_doctests() -> list[str]:
    sources = [*(ROOT / "kvtool").rglob("*.py"), *(ROOT / "kernels").glob("*.py")]
    found = [path for path in sources if ">>> " in path.read_text("utf-8")]
    parts = [path.relative_to(ROOT).with_suffix("").parts for path in found]
    names = [".".join(("kvtool", *p) if p[0] == "kernels" else p) for p in parts]
    return sorted(name.removesuffix(".__init__") for name in names)


@pytest.mark.parametrize("module", with_doctests())
def test_doctests_of_a_module_hold(module):
    if module.startswith(("kvtool.kernels", "kvtool.benchmark")):
        pytest.importorskip("torch", reason="the bench extra is not installed")

    result = doctest.testmod(import_module(module))

    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_a_page_lead_to_files_and_headings(page):
    targets = [link for link in LINK.findall(page.read_text("utf-8")) if "://" not in link]

    assert [link for link in targets if not leads(page, link)] == []


def leads(page: Path, link: str) -> bool:
    file, _, heading = link.partition("#")
    target = page.parent / file if file else page
    return target.exists() and (not heading or heading in headings(target))


def headings(page: Path) -> list[str]:
    """The anchors that a page has: its headings in lower case, with hyphens for spaces."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.M)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


def test_every_verb_has_a_page_or_is_in_the_readme():
    readme = (ROOT / "README.md").read_text("utf-8")
    missing = [
        verb
        for verb in COMMANDS
        if not (ROOT / "docs" / "commands" / f"{verb}.md").exists()
        and f"kvtool {verb}" not in readme
    ]

    assert missing == []
