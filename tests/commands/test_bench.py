"""kvtool bench on a CPU: streams, exit codes, files and what is left when it is interrupted."""

import json

import pytest

pytest.importorskip("torch", reason="the bench extra is not installed")

from kvtool import cli
from kvtool.api.bench import bench
from kvtool.benchmark import candidates, ceilings, run
from kvtool.benchmark.contenders import Prepared
from kvtool.errors import UsageError

SMALL = [
    "bench", "--device", "cpu", "--heads", "4", "--kv-heads", "2", "--head-dim", "32",
    "--ctx", "64", "--samples", "3",
]  # fmt: skip
SHAPE = {"device": "cpu", "heads": 4, "kv_heads": 2, "head_dim": 32, "ctx": 64, "samples": 3}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The command, small probes for the ceilings, and a console of 80 columns."""
    monkeypatch.setitem(cli.COMMANDS, "bench", "kvtool.commands.bench")
    monkeypatch.setattr(ceilings, "CPU_SIZES", ceilings.Sizes(1 << 20, 64, 0.01))
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def wrong_flash(monkeypatch):
    """`flash` is off by one percent."""
    original = candidates._gate_one

    def spoil(case, contender, layout, judged, odd):
        if contender.name == "flash":
            prepared = contender.prepare(layout)
            spoiled = Prepared(lambda: prepared.call() * 1.01, "torch")
            object.__setattr__(contender, "prepare", lambda layout: spoiled)
        return original(case, contender, layout, judged, odd)

    monkeypatch.setattr(candidates, "_gate_one", spoil)


def test_a_table_names_the_device_and_every_implementation(capsys):
    code = cli.run([*SMALL, "--phase", "decode"])

    out, err = capsys.readouterr()
    assert code == 0
    assert "measured now: copy" in out
    table = [line.split()[:2] for line in out.splitlines()]
    assert [name for name, path in filter(lambda w: len(w) == 2, table) if path == "torch"] == [
        "naive",
        "cached",
        "flash",
        "lazy",
    ]
    assert "note: no GPU: the portable torch code" in out
    assert err == ""
    assert all(len(line) <= 80 for line in out.splitlines())


def test_json_has_rows_environment_and_the_command(capsys):
    code = cli.run([*SMALL, "--phase", "decode", "--kernel", "flash", "--peers", "none", "--json"])

    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["command"] == "bench"
    assert found["inputs"]["ctx"] == [64]
    assert found["environment"]["ceilings"]["copy_bytes_per_s"] > 0
    assert found["environment"]["command"] == (
        "kvtool bench --kernel flash --peers none --phase decode --heads 4 --kv-heads 2 "
        "--head-dim 32 --ctx 64 --device cpu --samples 3 --json"
    )
    assert [row["gate"] for row in found["results"]] == ["pass"]
    assert found["results"][0]["device"] == found["environment"]["device"]


@pytest.mark.parametrize("fmt", ["jsonl", "csv", "md"])
def test_other_formats_hold_the_rows(capsys, fmt):
    cli.run([*SMALL, "--kernel", "cached", "--peers", "none", "--format", fmt])

    out = capsys.readouterr().out
    assert out.count("cached") >= 2
    assert "prefill" in out
    assert "decode" in out


def test_a_failed_gate_shows_no_speed_and_exits_with_1(capsys, wrong_flash):
    code = cli.run([*SMALL, "--phase", "decode", "--kernel", "cached,flash"])

    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith("flash "))
    assert code == 1
    assert line.split()[2] == "FAIL"
    assert "flash failed its gate: error" in out


def test_the_file_is_complete_after_each_case(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    seen = []
    original = run.run_case

    def watching(case, *args, **kwargs):
        seen.append(len(json.loads(path.read_text())["results"]) if path.exists() else None)
        return original(case, *args, **kwargs)

    monkeypatch.setattr(run, "run_case", watching)
    cli.run([*SMALL, "--kernel", "cached", "--peers", "none", "--output", str(path)])

    assert seen == [None, 1]
    assert len(json.loads(path.read_text())["results"]) == 2


def test_an_interrupt_keeps_finished_cases_names_the_lost_one_and_exits_with_130(
    tmp_path, monkeypatch, capsys
):
    path = tmp_path / "run.json"
    original = run.run_case

    def interrupted(case, *args, **kwargs):
        if case.phase == "decode":
            raise KeyboardInterrupt
        return original(case, *args, **kwargs)

    monkeypatch.setattr(run, "run_case", interrupted)
    code = cli.run([*SMALL, "--kernel", "cached", "--peers", "none", "--output", str(path)])

    err = capsys.readouterr().err
    assert code == 130
    assert "the case decode B1 S64" in err
    assert f"1 finished rows are in {path}" in err
    assert [row["phase"] for row in json.loads(path.read_text())["results"]] == ["prefill"]


def test_an_interrupt_prints_the_json_that_is_finished(monkeypatch, capsys):
    original = run.run_case

    def interrupted(case, *args, **kwargs):
        if case.phase == "decode":
            raise KeyboardInterrupt
        return original(case, *args, **kwargs)

    monkeypatch.setattr(run, "run_case", interrupted)
    cli.run([*SMALL, "--kernel", "cached", "--peers", "none", "--json"])

    assert len(json.loads(capsys.readouterr().out)["results"]) == 1


def test_out_of_memory_is_said_and_the_run_goes_on(monkeypatch, capsys):
    original = run.run_case

    def greedy(case, *args, **kwargs):
        if case.phase == "prefill":
            raise MemoryError
        return original(case, *args, **kwargs)

    monkeypatch.setattr(run, "run_case", greedy)
    code = cli.run([*SMALL, "--kernel", "cached", "--peers", "none"])

    out, err = capsys.readouterr()
    assert code == 0
    assert "lost: prefill B1 S64" in err
    assert "decode, batch 1" in out


def test_a_baseline_file_gives_ratios(tmp_path, capsys):
    path = tmp_path / "old.json"
    same = [*SMALL, "--phase", "decode", "--kernel", "cached", "--peers", "none"]
    cli.run([*same, "--output", str(path)])

    cli.run([*same, "--baseline", str(path), "--json"])

    row = json.loads(capsys.readouterr().out)["results"][0]
    assert row["baseline"] == "old.json"
    assert row["speedup"] > 0


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"results": [{"a": 1}]}', "no json"])
def test_a_baseline_that_is_none_is_refused_before_anything_runs(tmp_path, content, capsys):
    path = tmp_path / "old.json"
    path.write_text(content)

    code = cli.run([*SMALL, "--baseline", str(path)])

    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert "holds no result of `kvtool bench`" in err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--kernel", "flsh"], 2, "no kernel named 'flsh'"),
        (["--variant", "rotate-q", "--kernel", "flash"], 2, "variant of 'lazy'"),
        (["--peers", "flashinfr"], 2, "no peer named 'flashinfr'"),
        (["--phase", "train"], 2, "no phase named 'train'"),
        (["--mask", "sliding"], 2, "no mask named 'sliding'"),
        (["--dtype", "fp8"], 2, "do not take 'fp8_e4m3'"),
        (["--kv-dtype", "q8_0"], 2, "do not take 'q8_0'"),
        (["--ctx", "0"], 2, "'0' is not a number of tokens"),
        (["--doc-tokens", "100"], 2, "do not fill blocks of 16"),
        (["--tp", "3"], 2, "do not divide over TP 3"),
        (["--tp", "0"], 2, "TP 0"),
        (["--model", "llama-3-8b"], 2, "both a model and a shape"),
        (["--samples", "0"], 2, "--samples 0"),
        (["--device", "tpu"], 2, "no device named 'tpu'"),
        (["--plot", "roof.bmp"], 2, "cannot draw to 'roof.bmp'"),
        (["--generate", "2"], 2, "--generate 2 is too short"),
        (["--generate", "64", "--plot", "a.svg"], 2, "--generate has no roofline"),
        (["--generate", "64", "--baseline", "a.json"], 2, "--generate has no baseline"),
        (["--kv-heads", "3"], 2, "do not divide among 3"),
    ],
)
def test_what_was_typed_wrongly_is_said_in_two_lines(arguments, code, words, capsys):
    found = cli.run([*SMALL, *arguments])

    err = capsys.readouterr().err.splitlines()
    assert found == code
    assert words in err[0]
    assert [line.split(":")[0] for line in err] == ["error", "hint"]


def test_a_gpu_that_is_asked_for_and_missing_exits_with_4(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    code = cli.run(["bench", "--device", "cuda"])

    assert code == 4
    assert "no usable CUDA device" in capsys.readouterr().err


def test_list_shows_kernels_variants_and_peers(capsys):
    code = cli.run(["bench", "--list", "--device", "cpu"])

    out = capsys.readouterr().out
    assert code == 0
    assert "rotate-q, rotate-k, rematerialise, merge" in out
    assert "runs on cuda only" in out


def test_generate_prints_counts_and_tokens_per_second(capsys):
    pytest.importorskip("transformers", reason="the bench extra is not installed")

    code = cli.run([*SMALL, "--generate", "100", "--kernel", "naive,cached"])

    out = capsys.readouterr().out
    assert code == 0
    assert "5,050" in out
    assert "338,350" in out  # the sum of t^2 up to 100


def test_the_roofline_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    path = tmp_path / "roof.svg"

    cli.run([*SMALL, "--kernel", "cached,flash", "--peers", "none", "--plot", str(path)])

    text = path.read_text()
    assert "measured roof" in text
    assert "<!-- flash -->" in text
    assert "<!-- decode -->" in text


def test_from_python_the_same_names_give_the_same_rows():
    report = bench(kernel="flash", phase="decode", peers="none", **SHAPE)

    assert list(report.to_frame()["implementation"]) == ["flash"]
    assert report.results[0]["context_tokens"] == 64


def test_from_python_lists_and_numbers_are_taken():
    report = bench(
        kernel=["cached"], phase=["decode"], peers=["none"], **(SHAPE | {"ctx": [32, 64]}), batch=2
    )

    assert [row["context_tokens"] for row in report.results] == [32, 64]
    assert {row["batch_size"] for row in report.results} == {2}


def test_block_size_zero_is_refused():
    with pytest.raises(UsageError, match="tokens per block"):
        bench(block_size=0, **SHAPE)
