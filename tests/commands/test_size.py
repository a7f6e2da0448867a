"""kvtool size at the terminal: text at 80 columns, streams, exit codes, formats."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys

import pytest

from kvtool.cli import run

FIRST = """\
llama-3-70b: 32,768 tokens, bfloat16 cache

  KV cache of one sequence, bytes  10,737,418,240   10.00 GiB
  next token adds                         327,680  320.00 KiB
  weights, 70.55 B parameters     141,107,412,992  131.42 GiB

  with a KV head per query head  80.00 GiB; with a single one 1.25 GiB

note: 32,768 tokens are more than the 8,192 llama-3-70b was made for
"""


def kvtool(*args, **options):
    env = {**os.environ, "NO_COLOR": "1", **options.pop("env", {})}
    env.pop("COLUMNS", None)
    return subprocess.run(
        [sys.executable, "-P", "-c", "from kvtool.cli import main; main()", *args],
        capture_output=True, text=True, env=env, check=False, **options,
    )  # fmt: skip


def squeezed(text):
    """Text without the widths of its columns."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_first_command_prints_the_right_answer_in_80_columns():
    out = kvtool("size", "llama-3-70b", "--ctx", "32k")

    assert out.returncode == 0
    assert out.stderr == ""
    assert squeezed(out.stdout) == squeezed(FIRST)
    assert max(map(len, out.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    "args",
    [
        ["gpt-oss-120b", "--ctx", "128k", "--explain"],
        ["llama-3-70b", "gpt-oss-120b", "--ctx", "8k..128k*2", "--gpu", "h100", "--gpus", "4"],
        ["llama-3-70b", "--gpu", "h200", "--gpus", "8", "--batch", "64", "--explain"],
        ["llama-3-70b", "--ctx", "1M", "--engine", "logical,vllm", "--gpu", "h100", "--gpus", "8"],
    ],
    ids=" ".join,
)
def test_tables_fit_80_columns(args, capsys):
    assert run(["size", *args]) == 0

    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_explain_prints_the_formula_with_the_numbers_in_it(capsys):
    run(["size", "llama-3-70b", "--ctx", "32k", "--explain"])

    out = " ".join(capsys.readouterr().out.split())
    assert "2 x layers x kv_heads x head_dim x bytes x T" in out
    assert "= 2 x 80 x 8 x 128 x 2 x 32,768 = 10,737,418,240" in out


def test_json_is_one_object_on_stdout(capsys):
    assert run(["size", "llama-3-70b", "--ctx", "4k,8k", "--json"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["kvtool", "command", "inputs", "warnings", "results"]
    assert report["command"] == "size"
    assert [r["context_tokens"] for r in report["results"]] == [4096, 8192]


def test_jsonl_csv_and_markdown_hold_the_rows(capsys):
    sizes = []
    for fmt in ("jsonl", "csv", "md"):
        run(["size", "llama-3-70b", "--ctx", "4k,8k", "--format", fmt])
        sizes.append(capsys.readouterr().out)

    lines, table, markdown = sizes
    assert [json.loads(line)["context_tokens"] for line in lines.splitlines()] == [4096, 8192]
    assert [r["context_tokens"] for r in csv.DictReader(io.StringIO(table))] == ["4096", "8192"]
    assert markdown.splitlines()[1].startswith("| --- |")
    assert len(markdown.splitlines()) == 4


def test_output_is_written_whole_and_its_suffix_decides(tmp_path, capsys):
    target = tmp_path / "sizes.json"

    assert run(["size", "llama-3-70b", "--ctx", "4k", "--output", str(target)]) == 0

    assert capsys.readouterr().out == ""
    assert json.loads(target.read_text())["results"][0]["context_tokens"] == 4096
    assert [p.name for p in tmp_path.iterdir()] == ["sizes.json"]


def test_output_into_a_missing_folder_is_an_error(tmp_path, capsys):
    code = run(["size", "llama-3-70b", "--ctx", "4k", "-o", str(tmp_path / "no" / "x.json")])

    assert code == 1
    assert capsys.readouterr().err.startswith("error: cannot write")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["lama-3-70b"], 2, "no model card named 'lama-3-70b'"),
        (["llama-3-70b", "--ctx", "0"], 2, "'0' is not a number of tokens"),
        (["llama-3-70b", "--ctx", "-5"], 2, "'-5' is not a number of tokens"),
        (["llama-3-70b", "--ctx", "32q"], 2, "'32q' is not a number of tokens"),
        (["llama-3-70b", "--pool", "80G"], 2, "'80G' is not a number of bytes"),
        (["llama-3-70b", "--tp", "3"], 2, "tp 3 does not divide"),
        (["llama-3-70b", "--tp", "x"], 2, "'x' is not a whole number"),
        (["llama-3-70b", "--cxt", "4k"], 2, "no such option: --cxt"),
        (["llama-3-70b", "--format", "xml"], 2, "no format named 'xml'"),
        (["llama-3-70b", "--check"], 2, "--check has nothing to fit into"),
        ([], 2, "missing argument"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_errors_are_two_lines_and_nothing_is_half_printed(args, code, message, capsys):
    assert run(["size", *args]) == code

    out = capsys.readouterr()
    assert out.out == ""
    error, hint = out.err.splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert hint.startswith("hint: ")


def test_faults_of_a_file_are_named_with_code_1(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "num_hidden_layers": "x", "hidden_size": -1}')

    assert run(["size", str(path), "--ctx", "4k"]) == 1

    lines = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("error: ") for line in lines) >= 2
    assert lines[-1].startswith("hint: ")


def test_check_exits_with_3_when_it_does_not_fit(capsys):
    args = ["size", "llama-3-70b", "--ctx", "32k", "--check"]

    assert run([*args, "--gpu", "h100"]) == 3
    assert run([*args, "--gpu", "h100", "--gpus", "4"]) == 0
    assert "fits" in capsys.readouterr().out


def test_a_pipe_that_closes_early_is_no_error():
    code = "from kvtool.cli import main; main()"
    command = (
        f"{sys.executable} -P -c '{code}' size llama-3-70b --ctx 1..4000+1 --format csv | head -1"
    )

    out = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)

    assert out.stdout.startswith("model,")
    assert "Traceback" not in out.stderr


def test_a_config_from_standard_input(tmp_path):
    config = '{"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 1,'
    config += '"hidden_size": 64, "intermediate_size": 64, "vocab_size": 10}'

    out = kvtool("size", "-", "--ctx", "1k", "--json", input=config)

    # no dtype stated: 16 bits, and said so
    assert json.loads(out.stdout)["results"][0]["sequence_bytes"] == 2 * 64 * 2 * 1024
    assert "states no dtype" in json.loads(out.stdout)["warnings"][0]


def test_unknown_commands_get_a_suggestion(capsys):
    assert run(["siez"]) == 2

    assert "did you mean 'size'" in capsys.readouterr().err


def test_help_shows_two_examples(capsys):
    assert run(["size", "--help"]) == 0

    assert capsys.readouterr().out.count("kvtool size ") >= 3


def test_version(capsys):
    assert run(["--version"]) == 0

    assert capsys.readouterr().out.startswith("kvtool 0.")


def test_models_and_shells_complete():
    env = {
        "_KVTOOL_COMPLETE": "complete_bash",
        "COMP_WORDS": "kvtool size llama-3-7",
        "COMP_CWORD": "2",
    }

    assert kvtool(env=env).stdout.split() == ["llama-3-70b"]
