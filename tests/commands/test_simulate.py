"""kvtool simulate at the terminal: text at 80 columns, streams, exit codes, files, pictures."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys

import pytest

from kvtool.cli import run
from kvtool.simulation import sample, sweep

START = [sys.executable, "-P", "-c", "from kvtool.cli import main; main()", "simulate"]
QUICK = ["--requests", "400", "--seeds", "2"]


def simulate(*args, **options):
    env = {**os.environ, "NO_COLOR": "1", **options.pop("env", {})}
    env.pop("COLUMNS", None)
    return subprocess.run(
        [*START, *args], capture_output=True, text=True, env=env, check=False, **options
    )


def squeezed(text):
    """Text without the widths of its columns."""
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.fixture
def trace(tmp_path):
    """Eight requests in blocks of 512 tokens, in the form of Mooncake."""
    path = tmp_path / "requests.jsonl"
    prompts = [[1, 2, 3], [1, 2, 4], [5], [1, 2, 3], [6, 7], [1, 2, 4], [5], [1, 8]]
    with path.open("w") as file:
        for number, ids in enumerate(prompts):
            row = {
                "timestamp": number,
                "input_length": 512 * len(ids) - 1 + 2 * (number % 2),
                "output_length": 4,
                "hash_ids": ids if number % 2 == 0 else [*ids, 900 + number],
            }
            file.write(json.dumps(row) + "\n")
    return str(path)


HEADLINE = """\
headline: 13.57 %, 2.86x and 7.5x of arXiv 2606.04302 in one workload
Zipf 1.1 over 100,000 documents of 1024 tokens; 3 a request, drawn, distinct
10 seeds from 0, 6,000 requests each
llama-3.1-8b, bfloat16 cache

GiB docs prefix aware lazy ± theory paper ×prefix ×aware
1.00 8 1.74 4.56 13.41 0.19 13.21 13.57 7.70 2.94

90 % of the unlimited hit rate needs (h100-sxm: 79.19 GiB)
prefix: 440.375 GiB = 6 devices, unlimited 28.14 %
position-aware: 195.50 GiB = 3 devices, unlimited 64.67 %
lazy: 131.875 GiB = 2 devices, unlimited 72.19 %

hit rate in % = documents found / looked up (looked up and touched one at a
time), lru; × lazy over that rule
a bound on reuse, not a speed-up
"""


def test_the_headline_prints_rates_ratios_and_what_they_mean():
    out = simulate("--preset", "headline")

    assert out.returncode == 0
    assert out.stderr == ""
    expected = squeezed(HEADLINE)
    assert squeezed(out.stdout)[: len(expected)] == expected
    assert "note: Zipf draws are independent" in out.stdout


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--curve"],
        ["--preset", "table1-fit", "--requests", "300"],
        ["--policy", "lru,fifo,lfu,arc,s3fifo,gdsf,belady", "--budget", "2GiB"],
        ["--target-hit", "0.3", "--explain"],
        ["--zipf", "0,1.5", "--reuse", "two-copy,lazy"],
        ["--doc-tokens", "lognormal:900,0.6", "--explain"],
        ["--budget", "16MiB..1GiB*2", "--docs", "1M", "--tp", "2"],
    ],
    ids=" ".join,
)
def test_tables_fit_80_columns(args):
    out = simulate(*QUICK, *args)

    assert (out.returncode, out.stderr) == (0, "")
    assert max(map(len, out.stdout.splitlines())) <= 80
    assert "…" not in out.stdout


def test_tables_of_a_trace_fit_80_columns_and_name_the_engines_switches(trace):
    out = simulate("--trace", trace, "--curve", "--policy", "lru,belady")

    assert out.returncode == 0
    assert max(map(len, out.stdout.splitlines())) <= 80
    text = " ".join(out.stdout.split())
    assert (
        "tail_first=true full_blocks_only=true reserve_last_token=true cache_outputs=true pinned=1"
    ) in text


def test_brackets_in_a_name_are_text(tmp_path):
    path = tmp_path / "[bold] log.jsonl"
    path.write_text('{"docs": ["a"], "tokens": 5}\n' * 3)

    out = simulate("--trace", path.name, cwd=tmp_path)

    assert out.returncode == 0, out.stderr
    assert out.stdout.startswith("[bold] log.jsonl: documents, 3 requests")


def test_json_has_the_keys_of_the_interface():
    out = simulate(*QUICK, "--reuse", "lazy", "--budget", "2GiB", "--json")

    report = json.loads(out.stdout)
    assert (report["command"], report["inputs"]["zipf"]) == ("simulate", 1.2)
    (row,) = report["results"]
    keys = (
        "reuse policy budget_bytes budget_tokens hit_rate token_hit_rate request_hit_rate "
        "hit_rate_low hit_rate_high lookups requests analytic_hit_rate skew docs docs_per_request "
        "seed seeds"
    )
    assert set(keys.split()) <= set(row)
    assert (row["budget_bytes"], row["budget_tokens"]) == (2 << 30, 16_384)
    assert report["knees"][0]["devices"] >= 1
    assert any("Zipf draws" in warning for warning in report["warnings"])


def test_rows_are_csv_and_jsonl_too():
    table = csv.DictReader(io.StringIO(simulate(*QUICK, "--format", "csv").stdout))
    lines = simulate(*QUICK, "--format", "jsonl").stdout.splitlines()

    rows = list(table)
    assert len(rows) == len(lines) == 15
    assert [float(row["hit_rate"]) for row in rows] == [json.loads(x)["hit_rate"] for x in lines]


def test_a_trace_has_no_interval_and_its_own_rows(trace):
    out = simulate(
        "--trace", trace, "--num-blocks", "3", "--json", "--engine-opt", "cache_outputs=false"
    )

    report = json.loads(out.stdout)
    (row,) = report["results"]
    assert (row["reuse"], row["budget_tokens"], row["seeds"]) == ("prefix", 3 * 512, None)
    assert row["hit_rate_low"] is None
    assert report["inputs"]["cache_outputs"] is False
    assert report["inputs"]["block_size"] == 512


def test_independent_blocks_in_file_order_can_be_asked_for(trace):
    switches = ["tail_first", "full_blocks_only", "reserve_last_token", "cache_outputs"]
    options = [word for name in switches for word in ("--engine-opt", f"{name}=false")]

    out = simulate("--trace", trace, "--lookup", "each", "--num-blocks", "100", "--json", *options)

    # 22 ids in all, 12 of them different.
    assert json.loads(out.stdout)["results"][0]["hit_rate"] == pytest.approx(10 / 22)


def test_workers_change_nothing():
    args = [*QUICK, "--policy", "lru,fifo", "--budget", "1GiB", "--json"]

    assert simulate(*args, "--workers", "2").stdout == simulate(*args).stdout


def test_output_is_written_and_named_by_its_suffix(tmp_path):
    path = tmp_path / "rows.csv"

    out = simulate(*QUICK, "--output", str(path))

    assert (out.returncode, out.stdout) == (0, "")
    assert path.read_text().startswith("reuse,policy,budget_bytes")


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_pictures_are_drawn(tmp_path, suffix, start):
    pytest.importorskip("matplotlib", reason="pictures need the plot extra")
    path = tmp_path / f"curve.{suffix}"

    out = simulate(*QUICK, "--plot", str(path), "--policy", "lru,fifo")

    assert out.returncode == 0, out.stderr
    assert path.read_bytes().startswith(start)
    assert path.stat().st_size > 5_000


def test_nothing_heavy_is_loaded():
    code = (
        "import json, sys; from kvtool.cli import run; code = run(sys.argv[1:]);"
        "print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)"
    )

    out = subprocess.run(
        [sys.executable, "-P", "-c", code, "simulate", *QUICK],
        capture_output=True,
        text=True,
        check=True,
    )

    code, modules = json.loads(out.stderr.splitlines()[-1])
    assert code == 0
    heavy = {"torch", "triton", "transformers", "pandas", "matplotlib", "gguf", "scipy", "dask"}
    assert heavy.isdisjoint(modules)


def test_ctrl_c_prints_what_has_finished_and_exits_130(monkeypatch, capsys):
    calls = []

    def interrupted_at_the_third(job):
        calls.append(job)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return sample.run(job)

    monkeypatch.setattr(sweep, "run", interrupted_at_the_third)

    code = run(["simulate", "--requests", "400", "--seeds", "9", "--json"])

    assert code == 130
    report = json.loads(capsys.readouterr().out)
    assert report["complete"] is False
    assert report["warnings"][0].startswith("interrupted")
    assert {row["seeds"] for row in report["results"]} == {2}


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--zipf", "-1"], 2, "a Zipf exponent of '-1' is not possible"),
        (["--zipf", "nan"], 2, "a Zipf exponent of 'nan' is not possible"),
        (["--zipf", "steep"], 2, "'steep' is not a Zipf exponent"),
        (["--docs", "3"], 2, "5 distinct documents per request from a pool of 3"),
        (["--budget", "80G"], 2, "'80G' is not a number of bytes"),
        (["--doc-tokens", "uniform:9..3"], 2, "is not a distribution of document lengths"),
        (["--requests", "1000000000000"], 1, "would need"),
        (["--seeds", "0"], 2, "'0' is not a number of seeds"),
        (["--workers", "0"], 2, "'0' is not a number of workers"),
        (["--plot", "curve.pdf"], 2, "neither a .png nor a .svg"),
        (["--trace", "no such file"], 1, "cannot read trace"),
        (["--engine-opt", "tail_first"], 2, "'tail_first' is not an engine option"),
        (["--engine-opt", "tail=true"], 2, "no engine option named 'tail'"),
        (["--engine-opt", "tail_first=maybe"], 2, "tail_first is 'maybe'"),
        (["--gpu", "h1000"], 2, "h1000"),
        (["--block-size", "0"], 2, "a block size of '0'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_two_lines_on_stderr(args, code, words, capsys):
    assert run(["simulate", *args]) == code

    out, err = capsys.readouterr()
    assert out == ""
    error, hint = err.splitlines()
    assert error.startswith("error: ")
    assert words in error
    assert hint.startswith("hint: ")


def test_a_block_size_that_is_not_the_traces_names_the_right_one(trace, capsys):
    assert run(["simulate", "--trace", trace, "--block-size", "16"]) == 2

    error, hint = capsys.readouterr().err.splitlines()
    assert "--block-size 16 is not the block size of this trace" in error
    assert "512" in hint


def test_a_budget_below_one_document_hits_nothing_and_says_why(capsys):
    assert run(["simulate", *QUICK, "--budget", "1MiB", "--reuse", "lazy", "--json"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert report["results"][0]["hit_rate"] == 0
    assert any(
        "1.00 MiB is less than one document, padded to pages of 16 tokens (128.00 MiB): 0 %" in w
        for w in report["warnings"]
    )
