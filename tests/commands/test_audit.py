"""kvtool audit at the terminal: text at 80 columns, streams, exit codes, formats."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvtool.cli import run

LOGS = Path(__file__).parents[1] / "golden" / "logs"
WINDOWS = """\
llamacpp: gemma3
figure verdict printed predicted off by
cells agree 4,096 4,096
kv_cache (3 layers) agree 24.00 MiB 24.00 MiB
kv_cache_k (3 layers) agree 12.00 MiB 12.00 MiB
kv_cache_v (3 layers) agree 12.00 MiB 12.00 MiB
swa_cells agree 1,024 1,024
kv_cache (15 layers) agree 30.00 MiB 30.00 MiB
kv_cache_k (15 layers) agree 15.00 MiB 15.00 MiB
kv_cache_v (15 layers) agree 15.00 MiB 15.00 MiB

8 figures: 8 agree
18 lines read, 17 used
"""


def kvtool(*args, **options):
    env = {**os.environ, "NO_COLOR": "1"}
    env.pop("COLUMNS", None)
    return subprocess.run(
        [sys.executable, "-P", "-c", "from kvtool.cli import main; main()", *args],
        capture_output=True, text=True, env=env, check=False, **options,
    )  # fmt: skip


def test_a_log_is_a_table_of_verdicts():
    out = kvtool("audit", str(LOGS / "llamacpp_windows.log"))

    assert out.returncode == 0
    assert out.stderr == ""
    assert "\n".join(" ".join(line.split()) for line in out.stdout.splitlines()) + "\n" == WINDOWS


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_every_table_fits_80_columns(path, capsys):
    run(["audit", str(path)])

    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_log_can_come_from_a_pipe():
    text = (LOGS / "llamacpp_windows.log").read_text("utf-8")

    out = kvtool("audit", "-", "--json", input=text)

    found = json.loads(out.stdout)
    assert found["command"] == "audit"
    assert found["inputs"]["log"] == "-"
    assert found["verdicts"] == {"agree": 8, "within-range": 0, "differ": 0, "unknown": 0}
    assert found["log"]["lines"] == 18
    assert {"figure", "printed", "predicted", "difference", "relative", "verdict", "why"} <= set(
        found["results"][0]
    )


@pytest.mark.parametrize(
    ("model", "code"), [("llama-3-8b", 0), ("llama-2-7b", 1), ("no-such-model", 2)]
)
def test_the_exit_code_is_1_for_what_differs_and_2_for_what_was_typed(model, code, capsys):
    """An 8B Llama's log against its own card, another one and none."""
    assert run(["audit", str(LOGS / "trtllm_llama.log"), "--model", model]) == code

    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") == (code == 2)
    assert ("differ" in captured.out) == (code == 1)


def test_unknown_figures_alone_are_no_failure(capsys):
    assert run(["audit", str(LOGS / "vllm_ranks.log"), "--tp", "7"]) == 0

    out = capsys.readouterr().out
    assert "unknown" in out
    assert "differ" not in out


def test_a_missing_file_is_a_wrong_argument(capsys):
    assert run(["audit", "nowhere.log"]) == 2

    assert capsys.readouterr().err == (
        "error: cannot read 'nowhere.log': No such file or directory\n"
        "hint: name a log file, or - for standard input\n"
    )


def test_rows_go_to_a_file_in_the_format_of_its_suffix(tmp_path):
    target = tmp_path / "audit.csv"

    assert run(["audit", str(LOGS / "ik_deepseek.log"), "--output", str(target)]) == 0

    header, *rows = target.read_text("utf-8").splitlines()
    assert header.startswith("start,engine,engine_version,model,rank,line,figure,printed,predicted")
    assert len(rows) == 2


def test_help_shows_two_examples():
    out = kvtool("audit", "--help")

    assert out.stdout.count("kvtool audit ") >= 3


def test_the_command_starts_without_heavy_packages():
    code = (
        "import sys; from kvtool.cli import run; run(['audit', sys.argv[1]]);"
        "print([m for m in ('torch', 'triton', 'transformers', 'pandas') if m in sys.modules])"
    )

    out = subprocess.run(
        [sys.executable, "-P", "-c", code, str(LOGS / "ik_deepseek.log")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert out.stdout.splitlines()[-1] == "[]"
