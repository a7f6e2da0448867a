"""Configurations and sizes of models on the Hugging Face hub, the only part that uses a network."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvtool.errors import KvtoolError, UsageError
from kvtool.model.checkpoint import Checkpoint, checkpoint_of, json_object, stored_tensor

MAX_CONFIG_BYTES = 1 << 24

_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")


def fetch_hub_config(repo_id: str, revision: str | None = None) -> dict[str, Any]:
    """The `config.json` of a model on the Hugging Face hub; a cached copy is taken as it is.

    Remote code is never loaded. Raises UsageError for an id or revision that does not exist, and
    KvtoolError where the hub cannot be reached or will not give the file.
    """
    path = _from_hub(repo_id, revision, lambda: _hub_file(repo_id, "config.json", revision))
    return json_object(Path(path), MAX_CONFIG_BYTES)


def fetch_hub_checkpoint(repo_id: str, revision: str | None = None) -> Checkpoint | None:
    """The sizes of a hub model's weights from its safetensors headers; None where it has none.

    Reads the headers alone, by range requests. Raises as `fetch_hub_config` does.
    """
    from huggingface_hub import errors, get_safetensors_metadata

    try:
        found = _from_hub(
            repo_id, revision, lambda: get_safetensors_metadata(repo_id, revision=revision)
        )
    except errors.NotASafetensorsRepoError:
        return None
    entries = {
        name: {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": tensor.data_offsets}
        for file in found.files_metadata.values()
        for name, tensor in file.tensors.items()
    }
    return checkpoint_of([stored_tensor(repo_id, *entry)[0] for entry in entries.items()])


def _hub_file(repo_id: str, name: str, revision: str | None) -> str:
    """Where the file lies in the hub's cache, downloaded if needed.

    The hub's client repeats a download for half a minute before it gives up, but asks for a
    file's metadata only once: that is how an unreachable hub is found out.
    """
    import huggingface_hub as hub

    cached = hub.try_to_load_from_cache(repo_id, name, revision=revision)
    if isinstance(cached, str):
        return cached
    hub.get_hf_file_metadata(hub.hf_hub_url(repo_id, name, revision=revision))
    return hub.hf_hub_download(repo_id, name, revision=revision)


def _from_hub(repo_id: str, revision: str | None, fetch: Callable[[], Any]) -> Any:
    """What `fetch` brings, its failures told apart."""
    from huggingface_hub import errors

    if not _REPO.fullmatch(repo_id):
        raise UsageError(f"'{repo_id}' is not a model id of the hub", "write it as hf:org/name")
    where = f"'{repo_id}'" + (f" at revision '{revision}'" if revision else "")
    by_hand = "download its config.json elsewhere and pass the path"
    try:
        return fetch()
    except errors.GatedRepoError as error:
        hint = f"accept its terms on the hub and log in with `hf auth login`, or {by_hand}"
        raise KvtoolError(f"the model {where} is gated", hint) from error
    except errors.RevisionNotFoundError as error:
        raise UsageError(f"no model {where} on the hub", "leave out the revision") from error
    except errors.RepositoryNotFoundError as error:
        hint = "check the spelling; a private model needs `hf auth login`"
        raise UsageError(f"no model {where} on the hub", hint) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise _unreachable(where, by_hand) from error
    except errors.EntryNotFoundError as error:
        hint = "name a repository with a config.json; GGUF files work from a local path"
        raise KvtoolError(f"the model {where} has no config.json", hint) from error
    except (
        errors.HfHubHTTPError,
        errors.HFValidationError,
        errors.SafetensorsParsingError,
    ) as error:
        reason = " ".join(str(error).split())[:200]
        raise KvtoolError(f"the hub refuses {where}: {reason}", by_hand) from error
    except _transport_errors() as error:
        raise _unreachable(where, by_hand) from error


def _transport_errors() -> tuple[type[Exception], ...]:
    """What the client's HTTP library raises: whichever it is, the bases of the hub's own errors."""
    from huggingface_hub.errors import HfHubHTTPError

    bases = HfHubHTTPError.__mro__[1:]
    theirs = tuple(base for base in bases if base.__module__ != "builtins")
    return (OSError, *(base for base in theirs if issubclass(base, Exception)))


def _unreachable(where: str, by_hand: str) -> KvtoolError:
    return KvtoolError(
        f"the hub cannot be reached and {where} is not cached",
        f"go online once to fill the cache, or {by_hand}",
    )
