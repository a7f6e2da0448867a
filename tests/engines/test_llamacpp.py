"""llama.cpp: what its own library allocates, what users' logs show, and the laws of its buffers.

Golden rows: llama.cpp 0c1e57098 (llama-cpp-python 0.3.36) allocating caches for tiny models of ten
architectures; `tests/oracles/llamacpp_oracle.py` makes them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool import engines, kvcache
from kvtool.catalog import load_model as load_card
from kvtool.device import load_device
from kvtool.engines.base import Budget, Deployment
from kvtool.engines.llamacpp import context_caches
from kvtool.engines.llamacpp_releases import find_release
from kvtool.errors import UsageError
from kvtool.model.huggingface import read_config
from kvtool.model.spec import Attention, Latent, Layer, ModelSpec, Parallel, Recurrent, State

MIB = 1 << 20
FOLDER = Path(__file__).parents[1] / "golden"
GOLDEN = json.loads((FOLDER / "llamacpp_caches.json").read_text("utf-8"))
PARTS = json.loads((FOLDER / "logs" / "llamacpp_parts.json").read_text("utf-8"))
RENAMED = {"type_k": "k_dtype", "type_v": "v_dtype"}


load_model = cache(load_card)


def caches(model: ModelSpec, version: str | None = None, **said: object) -> list[Any]:
    """The caches of a context with those parameters of llama.cpp."""
    asked = GOLDEN["base"] | said
    types = {new: asked[old] for old, new in RENAMED.items()}
    options = {
        name: str(value).lower()
        for name, value in asked.items()
        if name not in RENAMED and name != "flash_attn"
    }
    options["flash_attn"] = "on" if asked["flash_attn"] else "off"
    deployment = Deployment(options=options, **types)
    found = context_caches(model, deployment, version, asked["n_ctx"], asked["n_seq_max"])[1]
    return sorted(found, key=lambda one: one.kind)


def mib(size: int) -> float:
    return round(size / MIB, 2)


@pytest.mark.parametrize("name", GOLDEN["models"])
def test_caches_are_those_that_llama_cpp_allocates(name: str) -> None:
    golden = GOLDEN["models"][name]
    model = read_config(golden["config"], name, name)[0]
    wrong = []

    for row in golden["rows"]:
        printed = sorted([size, k, v] for size, _, _, _, _, k, v in row["caches"])
        found = caches(model, **row["settings"])
        predicted = sorted([mib(c.total_bytes), mib(c.k_bytes), mib(c.v_bytes)] for c in found)
        if not close(printed, predicted):
            wrong.append((row["settings"], printed, predicted))

    assert len(golden["rows"]) >= 50
    assert wrong == []


def close(printed: list[list[float]], predicted: list[list[float]]) -> bool:
    """Equal to the last printed digit; caches of nothing (no layer of the kind) left out."""
    printed = [row for row in printed if row[0]]
    return len(printed) == len(predicted) and all(
        abs(a - b) < 0.0101
        for one, other in zip(printed, predicted, strict=True)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("name", GOLDEN["models"])
def test_cells_are_those_that_llama_cpp_prints(name: str) -> None:
    golden = GOLDEN["models"][name]
    model = read_config(golden["config"], name, name)[0]

    for row in golden["rows"]:
        printed = sorted(cells for size, cells, *_ in row["caches"] if size)
        assert sorted(c.cells for c in caches(model, **row["settings"])) == printed


def model_of(parts: list[dict[str, Any]], *, drafter: bool) -> ModelSpec:
    """A model of layers with those rows; a drafter's layers are a model of their own."""
    layers: list[Layer] = []
    for part in parts:
        if (part["kind"] == "draft") == drafter:
            layers += [Layer(tuple(states(part)))] * part["layers"]
    return ModelSpec("record", "gemma3_text", "float16", tuple(layers), weights_known=False)


def states(part: dict[str, Any]) -> list[State]:
    if part["kind"] == "rs":
        tail, state = Recurrent("conv", ((part["r"], 0),), "float32"), part["s"]
        return [tail, Recurrent("recurrent", ((state, 0),), "float32")]
    if part["k"] == 576:
        return [Latent(576, 1, 576, 512)]
    kind, window = ("sliding", part["window"]) if part["window"] else ("full", None)
    return [Attention(1, 1, part["k"], part["v"], kind, window)]


@pytest.mark.parametrize("record", PARTS, ids=lambda record: record["id"])
def test_every_part_of_a_users_log_is_right_to_its_last_digit(record: dict[str, Any]) -> None:
    """Logs that users posted; each record names its source."""
    for part, printed in zip(record["layers"], record["printed"], strict=True):
        drafter = part["kind"] == "draft"
        model = model_of([part], drafter=drafter)
        options = {name: str(value).lower() for name, value in record["options"].items()}
        if part["kind"] == "rs":
            options.setdefault("n_ctx", "4096")
            model = ModelSpec("record", "qwen3_5_text", "float16", model.layers)
        k, v = part.get("types", ["f16", "f16"])
        deployment = Deployment(k_dtype=k, v_dtype=v if part.get("v") else k, options=options)
        slots = record["options"].get("n_seq_max", 1)

        (found,) = context_caches(model, deployment, record["version"], 4096, slots)[1]

        kind, cells, total, *sides = printed
        assert found.total_bytes / MIB == pytest.approx(total, abs=0.01), kind
        for size, side in zip((found.k_bytes, found.v_bytes), sides, strict=True):
            assert side is None or size / MIB == pytest.approx(side, abs=0.01), kind
        if part["kind"] != "rs":
            assert found.cells == cells


def reserve(name: str, context: int, batch: int = 1, version: str | None = None, **options: Any):
    deployment = Deployment(options={key: str(value) for key, value in options.items()})
    return engines.load("llamacpp", version).reserve(load_model(name), context, batch, deployment)


def test_gemma_3_27b_at_32k_takes_1536_cells_for_its_windows() -> None:
    """52 windows of 1024 + 512 tokens of a micro-batch, 10 full layers."""
    found = reserve("gemma-3-27b", 32_768)

    assert [(g.kind, g.layers, g.blocks) for g in found.groups] == [
        ("sliding", 52, 1536),
        ("full", 10, 32_768),
    ]
    assert found.request_bytes == 3_338_665_984


@pytest.mark.parametrize(("dtype", "gib"), [("auto", 10.0), ("q8_0", 5.3125), ("q4_0", 2.8125)])
def test_llama_3_70b_at_32k_by_cache_type(dtype: str, gib: float) -> None:
    model = load_model("llama-3-70b")

    found = engines.load("llamacpp").reserve(model, 32_768, 1, Deployment(kv_dtype=dtype))

    assert found.request_bytes == gib * (1 << 30)


def test_slots_share_the_context_and_windows_come_with_each_slot() -> None:
    """-c 32768 -np 4: 8,192 cells a slot; unified, windows are 4 x 1024 + 512 cells."""
    apart = reserve("gemma-3-27b", 8192, 4)
    together = reserve("gemma-3-27b", 8192, 4, kv_unified="true", n_ctx=32_768)

    assert apart.settings["n_ctx_seq"] == 8192
    assert apart.settings["n_ctx"] == 32_768
    assert together.settings["n_ctx_seq"] == 32_768
    window = 52 * 8192
    assert apart.cache_bytes - together.cache_bytes == window * (4 * 1536 - 4608)


@pytest.mark.parametrize(
    ("build", "cells"),
    [("b5000", 8192), ("b5500", 4608), ("b6000", 3072), ("b6900", 3072), ("b7000", 3072)],
)
def test_cells_of_windows_by_build(build: str, cells: int) -> None:
    """Two slots in one buffer: stored in full before b5440, with the batch before b5560."""
    model = load_model("gemma-3-27b")
    options = {"kv_unified": "true", "n_ctx": "8192", "n_ubatch": "1024", "n_batch": "2500"}
    sliding = [
        made
        for made in context_caches(model, Deployment(options=options), build, 4096, 2)[1]
        if made.layers in (52, 62)
    ]

    assert sliding[0].cells == cells


def test_latent_values_are_stored_twice_before_b7840() -> None:
    """576 wide rows of keys alone since pull request 19067, 512 more for values before it."""
    new, old = (reserve("deepseek-v3", 4096, version=build) for build in ("b8000", "b7000"))

    assert new.request_bytes == 61 * 576 * 2 * 4096
    assert old.request_bytes == 61 * (576 + 512) * 2 * 4096


def test_ik_llama_cpp_stores_windows_in_full_and_latent_rows_by_mla_attn() -> None:
    """ikawrakow/ik_llama.cpp, pull request 616: 34.31 + 30.50 MiB and 1220 MiB at 512 cells."""
    kept = reserve("kimi-k2", 512, version="ik", mla_attn=1, flash_attn="off")
    plain = reserve("kimi-k2", 512, version="ik", mla_attn=0)

    assert mib(kept.request_bytes) == 64.81
    assert mib(plain.request_bytes) == 1220.0
    assert reserve("gemma-3-27b", 32_768, version="ik").request_bytes == 15_872 * MIB


NAMES = ("llama-3-8b", "gemma-3-27b", "gpt-oss-20b", "deepseek-v3.2", "qwen3.5-27b",
         "gemma-3n-e4b", "llama-4-scout", "mistral-7b-v0.1", "deepseek-v4-flash",
         "flan-t5-large", "minimax-m3")  # fmt: skip


@given(
    name=st.sampled_from(NAMES),
    context=st.integers(1, 70_000),
    unified=st.booleans(),
    build=st.sampled_from([None, "ik", "b4000", "b5450", "b6000", "b6900", "b7500"]),
)
@settings(max_examples=60, deadline=None)
def test_reasons_are_exactly_what_is_taken_beyond_the_logical_bytes(
    name: str, context: int, unified: bool, build: str | None
) -> None:
    model = load_model(name)
    deployment = Deployment(options={"kv_unified": str(unified)}, encoder_tokens=512)

    found = engines.load("llamacpp", build).reserve(model, context, 1, deployment)

    logical = kvcache.sequence_bytes(model, context, found.kv, encoder=512)
    assert logical + sum(reason.bytes for reason in found.reasons) == found.request_bytes


@given(name=st.sampled_from(NAMES), context=st.integers(1, 70_000), batch=st.integers(1, 64))
@settings(max_examples=40, deadline=None)
def test_separate_slots_cost_the_same_each(name: str, context: int, batch: int) -> None:
    model = load_model(name)
    deployment = Deployment(encoder_tokens=512)

    found = engines.load("llamacpp").reserve(model, context, batch, deployment)

    assert found.cache_bytes == batch * found.request_bytes


@given(context=st.integers(1, 40_000), batch=st.integers(1, 8), pool=st.integers(1, 1 << 36))
@settings(max_examples=30, deadline=None)
def test_a_pool_fits_what_it_says_and_no_more(context: int, batch: int, pool: int) -> None:
    model, engine = load_model("gemma-3-27b"), engines.load("llamacpp")

    found = engine.reserve(model, context, batch, Deployment(), Budget(pool_bytes=pool))

    assert found.pool is not None
    assert found.pool.fits == (found.cache_bytes <= pool)
    most = found.pool.pool_tokens.value // batch
    if most:
        assert engine.reserve(model, most, batch).cache_bytes <= pool
    assert engine.reserve(model, most + 1, batch).cache_bytes > pool


@pytest.mark.parametrize(
    ("name", "ubatch", "printed"),
    [
        ("gemma-2-2b", 512, 509.00),  # public file, index id 46940380535
        ("gpt-oss-20b", 512, 420.08),  # 32713047379
        ("gpt-oss-20b", 2048, 1672.08),  # 59932672849
        ("qwen3.5-9b", 512, 498.00),  # 67369886488
    ],
)
def test_the_compute_buffer_of_a_posted_log_lies_in_its_range(
    name: str, ubatch: int, printed: float
) -> None:
    deployment = Deployment(options={"n_ubatch": str(ubatch)})
    budget = Budget(load_device("h100"))

    found = engines.load("llamacpp").reserve(load_model(name), 8192, 1, deployment, budget)

    assert found.pool is not None
    (term,) = (term for term in found.pool.terms if term.name == "compute")
    assert term.bytes.value / MIB == pytest.approx(printed, rel=0.06)
    assert term.bytes.low <= printed * MIB <= term.bytes.high


def test_devices_share_out_whole_layers_and_the_head_counts_as_one() -> None:
    """32 layers and a head over 2 devices: 17 and 15 layers."""
    model = load_model("llama-3-8b")
    two = Deployment(parallel=Parallel(tp=2))

    found = engines.load("llamacpp").reserve(model, 8192, 1, two)

    assert sum(group.layers for group in found.groups) == 17
    assert found.cluster_bytes == 32 * 4096 * 8192
    assert any("whole layers" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("deployment", "message"),
    [
        (Deployment(kv_dtype="fp8"), "no cache type 'fp8_e4m3'"),
        (Deployment(v_dtype="q8_0", options={"flash_attn": "off"}), "with flash attention alone"),
        (Deployment(options={"n_seq_max": "257"}), "n_seq_max cannot be '257'"),
        (Deployment(options={"block_size": "16"}), "no option 'block_size'"),
        (Deployment(parallel=Parallel(tp=64)), "64 devices leave some without a layer"),
    ],
)
def test_what_cannot_be_is_refused(deployment: Deployment, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        engines.load("llamacpp").reserve(load_model("llama-3-8b"), 4096, 1, deployment)


def test_two_types_for_latent_rows_are_refused_since_july_2026() -> None:
    mixed = Deployment(k_dtype="q8_0")
    model = load_model("deepseek-v3")

    with pytest.raises(UsageError, match="one type for latent rows"):
        engines.load("llamacpp").reserve(model, 4096, 1, mixed)
    assert engines.load("llamacpp", "b9500").reserve(model, 4096, 1, mixed).request_bytes


@pytest.mark.parametrize("version", ["", "0.3.36", "b12", "bx", "b1234567"])
def test_versions_that_are_none_are_refused(version: str) -> None:
    with pytest.raises(UsageError):
        find_release(version)


def test_a_build_near_a_change_of_unknown_number_says_so() -> None:
    near, far = (reserve("llama-3-8b", 4096, version=build) for build in ("b7830", "b8500"))

    assert any("near a change" in warning for warning in near.warnings)
    assert not far.warnings
