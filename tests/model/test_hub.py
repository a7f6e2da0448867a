"""The hub is asked through its own client, which stands in here: no test uses a network."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from kvtool.errors import KvtoolError, UsageError
from kvtool.model.checkpoint import Checkpoint, StoredTensor
from kvtool.model.hub import fetch_hub_checkpoint, fetch_hub_config


def made(kind: type[Exception]) -> Exception:
    """An error of the client, without the response that its constructors ask for."""
    return kind.__new__(kind)


class Hub:
    """What the client answers: a cached file, an error, or a download."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.cached: str | None = None
        self.error: Exception | None = None
        self.downloaded = ""
        monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", self.cache)
        monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", self.metadata)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self.download)

    def cache(self, repo_id: str, name: str, *, revision: str | None) -> str | None:
        self.asked.append(("cache", (repo_id, name, revision)))
        return self.cached

    def metadata(self, url: str) -> None:
        self.asked.append(("metadata", url))
        if self.error is not None:
            raise self.error

    def download(self, repo_id: str, name: str, *, revision: str | None) -> str:
        self.asked.append(("download", (repo_id, name, revision)))
        return self.downloaded


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch)


def config_file(folder: Path) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": "llama"}))
    return str(path)


def test_a_configuration_is_downloaded_for_the_revision(hub: Hub, tmp_path: Path) -> None:
    hub.downloaded = config_file(tmp_path)

    assert fetch_hub_config("org/name", "v2") == {"model_type": "llama"}
    assert hub.asked[-1] == ("download", ("org/name", "config.json", "v2"))


def test_a_cached_configuration_is_taken_without_asking(hub: Hub, tmp_path: Path) -> None:
    hub.cached = config_file(tmp_path)

    assert fetch_hub_config("gpt2") == {"model_type": "llama"}
    assert [kind for kind, _ in hub.asked] == ["cache"]


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (made(errors.RepositoryNotFoundError), UsageError, "no model 'org/name' on the hub"),
        (made(errors.RevisionNotFoundError), UsageError, "no model 'org/name' on the hub"),
        (made(errors.GatedRepoError), KvtoolError, "'org/name' is gated"),
        (made(errors.EntryNotFoundError), KvtoolError, "has no config.json"),
        (made(errors.LocalEntryNotFoundError), KvtoolError, "cannot be reached"),
        (errors.OfflineModeIsEnabled("offline"), KvtoolError, "cannot be reached"),
        (ConnectionRefusedError(111, "refused"), KvtoolError, "cannot be reached"),
        (made(errors.HfHubHTTPError.__mro__[1]), KvtoolError, "cannot be reached"),
        (made(errors.HfHubHTTPError), KvtoolError, "the hub refuses 'org/name'"),
        (errors.HFValidationError("bad id"), KvtoolError, "refuses 'org/name': bad id"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_every_failure_says_what_happened_and_what_to_do(
    hub: Hub, error: Exception, kind: type[KvtoolError], message: str
) -> None:
    hub.error = error

    with pytest.raises(KvtoolError, match=message) as caught:
        fetch_hub_config("org/name")

    assert type(caught.value) is kind
    assert caught.value.hint


def test_an_unreachable_hub_is_found_out_before_a_download_is_tried(hub: Hub) -> None:
    hub.error = made(errors.LocalEntryNotFoundError)

    with pytest.raises(KvtoolError):
        fetch_hub_config("org/name")

    assert [kind for kind, _ in hub.asked] == ["cache", "metadata"]


@pytest.mark.parametrize("repo_id", ["", "../x", "a/b/c", "/etc/passwd", "org/", "a b", "x" * 200])
def test_what_is_no_model_id_is_not_sent_anywhere(hub: Hub, repo_id: str) -> None:
    with pytest.raises(UsageError, match="not a model id"):
        fetch_hub_config(repo_id)

    assert hub.asked == []


def test_a_file_that_is_no_json_object_is_an_error(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    hub.downloaded = str(tmp_path / "config.json")

    with pytest.raises(KvtoolError, match="holds list"):
        fetch_hub_config("org/name")


def test_sizes_come_from_the_headers_of_all_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def file(name: str, shape: list[int], end: int) -> SimpleNamespace:
        tensor = SimpleNamespace(dtype="BF16", shape=shape, data_offsets=(0, end))
        return SimpleNamespace(tensors={name: tensor})

    found = SimpleNamespace(files_metadata={"1": file("a", [2, 3], 12), "2": file("b", [5], 10)})
    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", lambda *_, **__: found)

    assert fetch_hub_checkpoint("org/name") == Checkpoint(
        22, (StoredTensor("a", "BF16", (2, 3)), StoredTensor("b", "BF16", (5,)))
    )


def test_a_model_without_safetensors_has_no_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise errors.NotASafetensorsRepoError("none")

    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", refuse)

    assert fetch_hub_checkpoint("org/name") is None
