"""Where models come from, and what is said of those that cannot be read."""

from __future__ import annotations

import io
import json
import os
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtool import catalog, kvcache
from kvtool.catalog import load_model, make_card
from kvtool.dtype import BF16
from kvtool.errors import KvtoolError, ModelError, UsageError
from kvtool.model.huggingface import read_config

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}


def read(config):
    return read_config(config, "toy", "toy")[0]


@pytest.mark.parametrize("name", ["llama-3-70b", "LLAMA-3-70B", "Llama-3-70b"])
def test_cards_are_found_in_any_case(name):
    assert load_model(name).name == "llama-3-70b"


def test_a_config_a_folder_and_a_card_file_take_the_same_road(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    card = tmp_path / "mine.yaml"
    card.write_text(catalog.card_text(make_card(LLAMA, "mine", "me")))

    by_folder, by_file = load_model(str(folder)), load_model(str(folder / "config.json"))

    assert by_folder.name == by_file.name == "my-model"
    assert by_folder.layers == by_file.layers == load_model(str(card)).layers


def test_a_config_is_read_from_standard_input(monkeypatch):
    class Input:
        buffer = io.BytesIO(json.dumps(LLAMA).encode())

    monkeypatch.setattr("sys.stdin", Input)

    assert len(load_model("-").layers) == 2


def test_a_pipe_is_read_like_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(json.dumps(LLAMA),))
    writer.start()

    spec = load_model(str(pipe))

    writer.join()
    assert len(spec.layers) == 2


def test_unknown_model_gets_a_suggestion():
    with pytest.raises(UsageError) as caught:
        load_model("lama-3-70b")

    assert str(caught.value) == "no model card named 'lama-3-70b'"
    assert "did you mean 'llama-3-70b'" in caught.value.hint


def test_unknown_hub_id_points_at_the_hub():
    with pytest.raises(UsageError) as caught:
        load_model("somebody/some-model")

    assert "hf:somebody/some-model" in caught.value.hint


def test_a_folder_without_config_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match=r"no config\.json in folder"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"not json", "not JSON"),
        (b"", "not JSON"),
        (b"[1, 2]", "a configuration is a JSON object, not list"),
        (b"null", "a configuration is a JSON object"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"model_type": "llama"', "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b" " * ((16 << 20) + 1), "larger than 16 MiB"),
        (b'{"model_type": "unheard_of"}', "model_type 'unheard_of' is not known"),
        (b"{}", "model_type is missing"),
        (b'{"model_type": "llama"}', "num_hidden_layers is missing"),
        (b'{"model_type": 7}', "model_type is missing"),
    ],
    ids=lambda v: repr(v[:24]) if isinstance(v, bytes) else v[:20],
)
def test_files_that_are_no_configuration(tmp_path, content, reason):
    path = tmp_path / "config.json"
    path.write_bytes(content)

    with pytest.raises(ModelError, match=reason):
        load_model(str(path))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 10**12),
        ("num_hidden_layers", 10_001),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", -3),
        ("num_hidden_layers", "32"),
        ("num_hidden_layers", True),
        ("num_hidden_layers", 2.5),
        ("num_hidden_layers", float("nan")),
        ("num_hidden_layers", float("inf")),
        ("num_hidden_layers", [2]),
        ("num_attention_heads", "4"),
        ("num_key_value_heads", 3),
        ("num_key_value_heads", 0),
        ("hidden_size", 1 << 60),
        ("head_dim", -1),
        ("vocab_size", {"a": 1}),
        ("max_position_embeddings", "2k"),
        ("torch_dtype", "float4"),
        ("layer_types", ["full_attention"]),
        ("layer_types", ["full_attention", "quantum_attention"]),
        ("tie_word_embeddings", "yes"),
    ],
    ids=str,
)
def test_an_impossible_value_is_named_with_its_field(field, value):
    with pytest.raises(ModelError) as caught:
        read({**LLAMA, field: value})

    assert field in str(caught.value)


def test_whole_floats_are_whole_numbers():
    assert read({**LLAMA, "hidden_size": 256.0}) == read(LLAMA)


def test_all_faults_are_collected():
    with pytest.raises(ModelError) as caught:
        read({**LLAMA, "hidden_size": "a", "vocab_size": -1, "intermediate_size": None})

    assert len(caught.value.faults) == 3


def test_unknown_type_suggests_the_close_one():
    with pytest.raises(ModelError) as caught:
        read({**LLAMA, "model_type": "lama"})

    assert "did you mean 'llama'" in caught.value.hint


def test_a_card_keeps_the_fields_that_decide_and_nothing_else():
    config = {
        **LLAMA,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "auto_map": {"AutoModel": "evil.py"},
    }

    card = make_card(config, "toy", "test")

    assert set(card.config) == set(LLAMA)
    assert card.spec().layers == read(config).layers


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("just text", "a card is a mapping"),
        ("name: x\nsource: y\n", "config is missing"),
        ("name: x\nconfig: {model_type: llama}\n", "source is missing"),
        ("name: y\nsource: z\nconfig: {model_type: llama}\n", "name is 'y', the file says 'x'"),
        ("source: y\ncolour: red\nconfig: {model_type: llama}\n", "unknown key 'colour'"),
        ("a: [", "not YAML"),
        ("a: !!python/object/apply:os.system [ls]", "not YAML"),
    ],
)
def test_faulty_cards_are_refused(tmp_path, text, reason):
    path = tmp_path / "x.yaml"
    path.write_text(text)

    with pytest.raises(ModelError, match=reason):
        load_model(str(path))


def test_offline_hub_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    with pytest.raises(KvtoolError) as caught:
        load_model("hf:somebody/some-model-that-is-not-cached")

    assert caught.value.exit_code == 1
    assert "is not cached" in str(caught.value)


def test_a_model_of_the_hub_has_its_stored_bytes(monkeypatch):
    stored = type("Checkpoint", (), {"total_bytes": 12_345})()
    monkeypatch.setattr("kvtool.model.hub.fetch_hub_config", lambda repo, revision: LLAMA)
    monkeypatch.setattr("kvtool.model.hub.fetch_hub_checkpoint", lambda repo, revision: stored)

    assert load_model("hf:somebody/toy").stored_bytes == 12_345


def test_weights_that_the_hub_does_not_show_are_computed_and_said_so(monkeypatch):
    def refuse(repo, revision):
        raise KvtoolError("the hub cannot be reached", "go online")

    monkeypatch.setattr("kvtool.model.hub.fetch_hub_config", lambda repo, revision: LLAMA)
    monkeypatch.setattr("kvtool.model.hub.fetch_hub_checkpoint", refuse)

    spec = load_model("hf:somebody/toy")

    assert spec.stored_bytes is None
    assert "the hub cannot be reached" in spec.notes[-1]


def configs() -> list[dict]:
    """Deciding fields of every card: real configurations to mutate."""
    return [dict(catalog.load_card(name).config) for name in catalog.card_names()]


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.integers(0, 300),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(-2, 5), max_size=4),
    st.lists(st.sampled_from(["full_attention", "sliding_attention", "conv", "x"]), max_size=4),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)


@st.composite
def mutated(draw):
    config = json.loads(json.dumps(draw(st.sampled_from(configs()))))
    for _ in range(draw(st.integers(1, 3))):
        section = config
        while nested := [v for v in section.values() if isinstance(v, dict) and v]:
            if draw(st.booleans()):
                break
            section = draw(st.sampled_from(nested))
        key = draw(st.sampled_from(sorted(section)))
        if draw(st.booleans()):
            del section[key]
            if not section:
                break
        else:
            section[key] = draw(values)
    return config


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(mutated())
def test_a_mutated_config_is_read_or_refused_and_its_bytes_make_sense(config):
    spec = spec_or_none(config)
    if spec is None:
        return

    sizes = [kvcache.sequence_bytes(spec, tokens, BF16, encoder=7) for tokens in (0, 1, 100, 5000)]

    assert all(type(size) is int and size >= 0 for size in sizes)
    assert sizes == sorted(sizes)


def spec_or_none(config):
    try:
        return read(config)
    except ModelError:
        return None
