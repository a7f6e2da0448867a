"""Options, defaults and limits of the vLLM adapter, and laws that hold for every layout."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool import engines
from kvtool.device import load_device
from kvtool.engines.base import Budget, Deployment, Estimate, Reserve
from kvtool.errors import KvtoolError, UsageError
from kvtool.model.spec import (
    Attention,
    Index,
    Kind,
    Latent,
    Layer,
    ModelSpec,
    Parallel,
    Recurrent,
    Weight,
)

FULL = Layer((Attention(32, 8, 128, 128),))
WINDOW = Layer((Attention(32, 8, 128, 128, "sliding", 4096),))
CHUNK = Layer((Attention(32, 8, 128, 128, "chunked", 8192),))
SPARSE = Layer((Latent(576, 128, 192, 128), Index(128)))
STATE = Layer((Recurrent("conv", ((24_576, 16),), "bfloat16"),
               Recurrent("recurrent", ((524_288, 32),), "bfloat16")),
              (Weight("linear_attn.conv1d", "recurrent", (8192, 4)),))  # fmt: skip


def a_model(*layers: Layer, model_type: str = "llama") -> ModelSpec:
    return ModelSpec("a-model", model_type, "bfloat16", layers, hidden_size=4096, vocab_size=32000)


def reserve(
    model: ModelSpec, context: int = 32768, version: str = "0.22.1",
    deployment: Deployment = Deployment(), budget: Budget | None = None, **options: str,
) -> Reserve:  # fmt: skip
    deployment = replace(deployment, options=options)
    return engines.load("vllm", version).reserve(model, context, 1, deployment, budget)


def test_an_unknown_option_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(UsageError) as error:
        reserve(a_model(FULL), max_num_batched_token="8192")

    assert "max_num_batched_token" in str(error.value)
    assert "max_num_batched_tokens" in error.value.hint


@pytest.mark.parametrize(
    ("name", "text"),
    [("block_size", "0"), ("block_size", "16k"), ("enforce_eager", "maybe"),
     ("mamba_cache_mode", "some"), ("max_num_seqs", "-1"), ("num_speculative_tokens", ""),
     ("gpu_memory_utilization", "nan"), ("gpu_memory_utilization", "1.1")],
)  # fmt: skip
def test_a_bad_value_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=name):
        reserve(a_model(FULL), **{name: text})


def test_options_may_be_spelled_as_flags() -> None:
    found = engines.load("vllm").reserve(
        a_model(FULL), 4096, 1, Deployment(options={"--block-size": "32"})
    )

    assert found.block_size == 32


@pytest.mark.parametrize("version", ["0.3.0", "one", "0", "1.2.x", "1.2.3.4", ""])
def test_a_version_without_rules_is_refused(version: str) -> None:
    with pytest.raises(UsageError):
        engines.load("vllm", version)


def test_a_version_between_two_releases_says_whose_rules_it_follows() -> None:
    found = reserve(a_model(FULL), version="0.25.0")

    assert any("0.21.0" in warning for warning in found.warnings)


def test_an_unknown_engine_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(UsageError) as error:
        engines.load("vlm")

    assert "'vllm'" in error.value.hint


@pytest.mark.parametrize(
    ("version", "device", "tokens", "sequences"),
    [
        ("0.22.1", "h100", 8192, 1024),
        ("0.22.1", "a100-sxm-80gb", 2048, 256),
        ("0.22.1", "l4", 2048, 256),
        ("0.22.1", "b200", 8192, 1024),
        ("0.33.0", "b200", 16384, 1024),
        ("0.33.0", "h200", 8192, 1024),
    ],
)
def test_the_batch_budget_is_that_of_the_server_on_that_device(
    version: str, device: str, tokens: int, sequences: int
) -> None:
    """engine/arg_utils.py, get_batch_defaults: 70 GiB and no A100; from 0.33 on 160 GiB."""
    found = reserve(a_model(FULL), version=version, budget=Budget(load_device(device)))

    assert found.settings["max_num_batched_tokens"] == tokens
    assert found.settings["max_num_seqs"] == sequences


def test_sparse_latent_rows_are_656_bytes_in_fp8_and_132_of_index_key() -> None:
    """DeepSeek V3.2: 61 x 788 = 48,068 B per token (flashmla_sparse.py, deepseek_v2.py)."""
    found = reserve(a_model(*[SPARSE] * 61), deployment=Deployment(kv_dtype="fp8"))

    assert found.block_size == 64
    assert found.bytes_per_block == 64 * 48_068


def test_index_keys_beside_plain_attention_are_16_bit_in_blocks_of_128() -> None:
    """MiniMax-M3 in 0.33: minimax_m3/common/indexer.py and sparse_attention.py."""
    layer = Layer((Attention(32, 8, 128, 128), Index(128)))

    found = reserve(a_model(layer), version="0.33.0")

    assert found.block_size == 128
    assert found.bytes_per_block == 128 * (2 * 8 * 128 * 2 + 256)


def test_dense_latent_rows_are_576_bytes_in_fp8_on_every_rank() -> None:
    dense = a_model(*[Layer((Latent(576, 128, 192, 128),))] * 61)

    found = reserve(dense, deployment=Deployment(Parallel(tp=8), kv_dtype="fp8"))

    assert found.bytes_per_block == found.block_size * 61 * 576
    assert found.cluster_bytes == 8 * found.request_bytes


def test_int4_exists_from_0_33_on_with_a_scale_per_head_vector() -> None:
    """triton_attn.py, customize_spec: d/2 + 4 bytes per head and side."""
    fresh = reserve(a_model(FULL), version="0.33.0", deployment=Deployment(kv_dtype="int4"))

    assert fresh.bytes_per_block == 16 * 8 * 2 * (64 + 4)
    with pytest.raises(UsageError, match="int4"):
        reserve(a_model(FULL), deployment=Deployment(kv_dtype="int4"))


@pytest.mark.parametrize("dtype", ["q8_0", "iq4_nl", "mxfp4"])
def test_cache_types_of_other_engines_are_refused(dtype: str) -> None:
    with pytest.raises(UsageError, match=dtype):
        reserve(a_model(FULL), deployment=Deployment(kv_dtype=dtype))


def test_keys_and_values_of_different_types_are_refused() -> None:
    with pytest.raises(UsageError, match="alike"):
        reserve(a_model(FULL), deployment=Deployment(k_dtype="fp8", v_dtype="bfloat16"))


def test_windows_have_no_decode_context_parallelism() -> None:
    deployment = Deployment(Parallel(tp=16, dcp=2))

    with pytest.raises(UsageError, match="sliding"):
        reserve(a_model(WINDOW, FULL), deployment=deployment)


def test_a_drafter_switches_the_hybrid_manager_off_for_chunked_models() -> None:
    """config/vllm.py: attention_chunk_size with EAGLE disables the hybrid manager."""
    draft = a_model(FULL)

    found = reserve(a_model(CHUNK, FULL), 131_072, deployment=Deployment(draft=draft))

    assert [group.kind for group in found.groups] == ["full"]


def test_a_page_that_does_not_divide_is_an_error_until_0_33_pads_it() -> None:
    odd = Layer((Attention(32, 4, 96, 96),))

    with pytest.raises(KvtoolError, match="page"):
        reserve(a_model(WINDOW, odd))

    padded = reserve(a_model(WINDOW, odd), version="0.33.0")
    assert {group.page_bytes for group in padded.groups} == {16 * 8 * 256 * 2}


def test_mamba_mode_all_asks_for_the_chunk_of_the_kernels() -> None:
    with pytest.raises(UsageError, match="chunk"):
        reserve(a_model(STATE, FULL), mamba_cache_mode="all")


def test_several_mtp_modules_keep_their_tokens_in_the_window_from_0_33_on() -> None:
    """kv_cache_planning.py: extra_retained_tokens = speculative tokens - 1."""
    model = replace(a_model(WINDOW, WINDOW), mtp_layers=(WINDOW,) * 3)
    mtp = Deployment(mtp=True)
    budget = {"max_num_batched_tokens": "2048", "num_speculative_tokens": "3", "block_size": "1"}

    old = reserve(model, 131_072, deployment=mtp, **budget)
    new = reserve(model, 131_072, "0.33.0", mtp, **budget)

    assert old.blocks_per_request == 4096 - 1 + 2048 + 1
    assert new.blocks_per_request == 4096 - 1 + 2 + 2 * 2048 + 1


def test_the_command_of_sparse_models_stores_fp8_unless_told_otherwise() -> None:
    found = reserve(a_model(SPARSE))

    assert found.kv.k.name == "fp8_e4m3"
    assert found.warnings


def test_a_model_without_a_cache_reserves_nothing() -> None:
    found = reserve(a_model(Layer(())), budget=Budget(pool_bytes=1 << 30))

    assert found.request_bytes == 0
    assert found.pool is None


def test_pool_options_of_vllm_stand_in_for_the_commands_own() -> None:
    found = reserve(a_model(FULL), kv_cache_memory_bytes=str(1 << 30))
    blocks = reserve(a_model(FULL), num_gpu_blocks_override="100")

    assert found.pool is not None
    assert blocks.pool is not None
    assert found.pool.pool_bytes == Estimate.exact(1 << 30)
    assert blocks.pool.num_blocks == Estimate.exact(100)


def test_towers_are_loaded_unless_only_the_language_model_is_served() -> None:
    tower = Weight("vision", "encoder", (1024, 1024))
    model = replace(a_model(FULL), encoder=(tower,))

    whole = reserve(model)
    text = reserve(model, language_model_only="true")

    assert whole.loaded_bytes is not None
    assert text.loaded_bytes is not None
    assert whole.loaded_bytes.value - text.loaded_bytes.value == 1024 * 1024 * 2


def attention(kind: Kind) -> st.SearchStrategy[Layer]:
    limits = st.integers(1, 9000) if kind != "full" else st.none()
    return st.builds(
        lambda heads, limit: Layer((Attention(32, heads, 64, 64, kind, limit),)),
        st.sampled_from([8]), limits,
    )  # fmt: skip


LAYERS = st.one_of(
    st.lists(attention("full"), min_size=1, max_size=6),
    st.tuples(attention("sliding"), attention("full"), st.integers(1, 5), st.integers(1, 5)).map(
        lambda t: [t[0]] * t[2] + [t[1]] * t[3]
    ),
    st.tuples(attention("chunked"), attention("full"), st.integers(1, 5), st.integers(1, 5)).map(
        lambda t: [t[0]] * t[2] + [t[1]] * t[3]
    ),
    st.integers(1, 6).map(lambda n: [STATE] * n + [FULL]),
)


@settings(max_examples=60, deadline=None)
@given(LAYERS, st.integers(1, 300_000), st.sampled_from(["0.19.0", "0.22.1", "0.33.0"]))
def test_a_request_takes_its_logical_bytes_and_the_reasons(
    layers: list[Layer], context: int, version: str
) -> None:
    model = a_model(*layers)

    found = reserve(model, context, version)

    logical = sum(state.bytes(context, found.kv) for state in model.states())
    assert found.request_bytes >= logical
    assert logical + sum(reason.bytes for reason in found.reasons) == found.request_bytes


@settings(max_examples=60, deadline=None)
@given(LAYERS, st.integers(1, 200_000), st.integers(0, 100_000))
def test_a_longer_context_never_takes_fewer_blocks(
    layers: list[Layer], context: int, more: int
) -> None:
    fixed = {"max_num_batched_tokens": "4096"}
    shorter = reserve(a_model(*layers), context, **fixed)

    longer = reserve(a_model(*layers), context + more, **fixed)

    assert longer.blocks_per_request >= shorter.blocks_per_request
    assert longer.bytes_per_block == shorter.bytes_per_block


@settings(max_examples=40, deadline=None)
@given(LAYERS, st.integers(1, 1 << 40))
def test_the_batch_that_fits_is_the_largest_one(layers: list[Layer], pool: int) -> None:
    found = reserve(a_model(*layers), budget=Budget(pool_bytes=pool))

    assert found.pool is not None
    largest = found.pool.max_batch_size
    assert largest * found.request_bytes <= pool
    assert (largest + 1) * found.blocks_per_request > found.pool.num_blocks.value


@pytest.mark.parametrize(("gpu", "warned"), [("h100", 0), ("mi300x", 1)])
def test_a_device_of_another_vendor_is_planned_with_a_warning(gpu: str, warned: int) -> None:
    found = engines.load("vllm").reserve(
        a_model(FULL), 8192, budget=Budget(device=load_device(gpu))
    )

    assert sum("NVIDIA" in warning for warning in found.warnings) == warned
