"""kvtool models and kvtool devices."""

from __future__ import annotations

import json

import pytest
import yaml

from kvtool.cli import run


def test_models_are_listed(capsys):
    assert run(["models", "--json"]) == 0

    rows = json.loads(capsys.readouterr().out)["results"]
    found = {row["model"]: row for row in rows}
    assert found["llama-3-70b"]["bytes_per_token"] == 327_680


def test_models_are_filtered_by_attention_and_text(capsys):
    run(["models", "--attention", "sliding", "--search", "oss", "--format", "jsonl"])

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "gpt-oss-120b" in [row["model"] for row in rows]
    assert all("sliding" in row["attention"] and "oss" in row["model"] for row in rows)


def test_unknown_attention_kind_is_refused(capsys):
    assert run(["models", "--attention", "gqaa"]) == 2

    assert "did you mean 'gqa'" in capsys.readouterr().err


def test_a_card_is_shown(capsys):
    assert run(["models", "show", "LLAMA-3-70B"]) == 0

    card = yaml.safe_load(capsys.readouterr().out)
    assert card["config"]["num_hidden_layers"] == 80
    assert card["source"]


def test_a_card_that_is_not_there_is_refused(capsys):
    assert run(["models", "show", "lama-3-70b"]) == 2

    assert "did you mean 'llama-3-70b'" in capsys.readouterr().err


def test_a_config_becomes_a_card_that_works(tmp_path, capsys):
    folder = tmp_path / "Toy"
    folder.mkdir()
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64,
        "intermediate_size": 64, "vocab_size": 10, "torch_dtype": "float16", "eos_token_id": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))

    assert run(["models", "import", str(folder), "-o", str(tmp_path / "toy.yaml")]) == 0
    assert run(["size", str(tmp_path / "toy.yaml"), "--ctx", "1k", "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["results"][0]["sequence_bytes"] == 524_288
    assert "eos_token_id" not in (tmp_path / "toy.yaml").read_text()


@pytest.mark.parametrize("path", ["no/such/config.json", "."])
def test_importing_what_is_not_there_is_refused(path, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert run(["models", "import", path]) == 2

    assert capsys.readouterr().err.startswith("error: no file")


def test_devices_are_listed_with_their_memory(capsys):
    assert run(["devices", "--search", "h200", "--json"]) == 0

    rows = json.loads(capsys.readouterr().out)["results"]
    # as the driver of an H200 reports it
    assert rows[0]["memory_usable_bytes"] == 150_109_880_320


def test_lists_fit_80_columns(capsys):
    run(["models"])
    run(["devices"])

    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
