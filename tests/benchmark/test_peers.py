"""Peers: what is chosen, what is left out, and how to get it."""

import dataclasses

import pytest

from kvtool.benchmark import peers
from kvtool.benchmark.peers import PEERS, select
from kvtool.errors import UsageError


def without(name, monkeypatch):
    """Peers as if the package of `name` were not installed."""
    table = tuple(
        dataclasses.replace(p, package="no_such_package_anywhere") if p.name == name else p
        for p in PEERS
    )
    monkeypatch.setattr(peers, "PEERS", table)


def test_none_is_no_peer():
    assert select(["none"], "cpu") == ([], [])


def test_auto_on_a_cpu_takes_what_runs_on_a_cpu():
    chosen, left_out = select(["auto"], "cpu")

    assert [c.name for c in chosen] == ["sdpa-flash"]
    assert left_out == []


def test_auto_on_a_gpu_names_those_that_compile_and_those_that_are_missing(monkeypatch):
    without("flashinfer", monkeypatch)

    chosen, left_out = select(["auto"], "cuda")

    assert {"sdpa-cudnn", "sdpa-flash", "sdpa-efficient"} <= {c.name for c in chosen}
    assert "flex" not in {c.name for c in chosen}
    assert "flex: compiles for a while; ask for it with --peers auto,flex" in left_out
    assert any(
        line.startswith("flashinfer: not installed: pip install flashinfer-python")
        for line in left_out
    )


def test_a_peer_asked_for_by_name_must_be_there(monkeypatch):
    without("flash-attn", monkeypatch)

    with pytest.raises(UsageError, match="'flash-attn' cannot run: not installed: pip install"):
        select(["flash-attn"], "cuda")


def test_a_gpu_peer_is_refused_on_a_cpu():
    with pytest.raises(UsageError, match="runs on cuda only"):
        select(["sdpa-cudnn"], "cpu")


def test_unknown_peers_get_suggestions():
    with pytest.raises(UsageError, match="no peer named 'flashinfr'") as error:
        select(["flashinfr"], "cpu")

    assert "did you mean 'flashinfer'" in error.value.hint
