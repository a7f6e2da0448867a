"""Logical bytes: known models, laws, and shares of several devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtool import kvcache
from kvtool.catalog import load_model
from kvtool.dtype import BF16, kv_format
from kvtool.errors import UsageError
from kvtool.model.huggingface import read_config
from kvtool.model.spec import Attention, Index, Latent, Layer, ModelSpec, Parallel, Recurrent

GIB = 1 << 30


def model(*layers, name="toy") -> ModelSpec:
    return ModelSpec(name, "toy", "bfloat16", layers)


def attention(q=8, kv=2, width=64, **more) -> Layer:
    return Layer((Attention(q, kv, width, width, **more),))


def llama(layers, heads, kv_heads, width, **more) -> ModelSpec:
    config = {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": heads * width,
        "intermediate_size": 4 * heads * width,
        "vocab_size": 1000,
        "torch_dtype": "bfloat16",
        **more,
    }
    return read_config(config, "toy", "toy")[0]


# guide: domain; Llama-2-7B and Llama-3-70B as their papers and configurations state them
@pytest.mark.parametrize(
    ("shape", "tokens", "size"),
    [
        ((32, 32, 32, 128), 4096, 2 * GIB),
        ((32, 32, 32, 128), 32_768, 16 * GIB),
        ((80, 64, 8, 128), 32_768, 10 * GIB),
        ((80, 64, 64, 128), 32_768, 80 * GIB),
        ((80, 64, 8, 128), 131_072, 40 * GIB),
    ],
)
def test_known_models(shape, tokens, size):
    assert kvcache.sequence_bytes(llama(*shape), tokens) == size


def test_toy_of_four_layers_in_float32():
    # 2 x 4 layers x 4 heads x 16 x 4 B x 32 tokens
    toy = llama(4, 4, 4, 16)

    assert kvcache.sequence_bytes(toy, 32, kv_format("float32")) == 65_536


@pytest.mark.parametrize(
    ("name", "size"), [("q8_0", 5_704_253_440), ("q4_0", 3_019_898_880), ("nvfp4", 92_160 * 32_768)]
)
def test_llama_3_70b_in_quantised_types(name, size):
    # sizing.md trap 15: 1.0625 and 0.5625 bytes per element
    assert kvcache.sequence_bytes(load_model("llama-3-70b"), 32_768, kv_format(name)) == size


def test_window_bounds_a_sliding_layer():
    sliding = model(attention(kind="sliding", limit=100))

    assert kvcache.sequence_bytes(sliding, 50) == 50 * 512
    assert kvcache.sequence_bytes(sliding, 5000) == 100 * 512
    assert kvcache.growing_bytes_per_token(sliding.layers) == 0


def test_a_window_longer_than_the_model_can_reach_does_not_bound_it():
    # Phi-3.5-mini: sliding_window 262,144 beside 131,072 positions
    wide = model(attention(kind="sliding", limit=262_144))

    assert kvcache.growing_bytes_per_token(wide.layers, max_context=131_072) == 512
    assert kvcache.growing_bytes_per_token(wide.layers, max_context=1_048_576) == 0


def test_latent_rows_are_copied_on_every_rank():
    latent = model(Layer((Latent(576, 128, 192, 128),)))

    one = kvcache.sequence_bytes(latent, 1000)

    assert one == 576 * 2 * 1000
    assert kvcache.sequence_bytes(latent, 1000, BF16, Parallel(tp=8)) == one
    assert kvcache.cluster_sequence_bytes(latent, 1000, BF16, Parallel(tp=8)) == 8 * one


def test_heads_are_copied_when_ranks_outnumber_them():
    # Llama-3-70B: 40,960 B per token per device at TP 8 and at TP 16
    big = load_model("llama-3-70b")

    per_token = [kvcache.sequence_bytes(big, 1, BF16, Parallel(tp=tp)) for tp in (1, 8, 16)]

    assert per_token == [327_680, 40_960, 40_960]
    assert kvcache.cluster_sequence_bytes(big, 1, BF16, Parallel(tp=16)) == 2 * 327_680


def test_dcp_splits_tokens_among_copies():
    big = load_model("llama-3-70b")

    held = kvcache.sequence_bytes(big, 1001, BF16, Parallel(tp=16, dcp=2))

    assert held == 40_960 * 501


def test_index_keys_take_132_bytes_whatever_the_dtype():
    index = model(Layer((Index(128),)))

    assert kvcache.sequence_bytes(index, 10, kv_format("float32")) == 1320
    assert kvcache.sequence_bytes(index, 10, kv_format("q4_0")) == 1320


def test_compressed_rows_come_in_steps_and_grow_on_average():
    compressed = model(Layer((Latent(512, 64, 512, 512, stride=4),)))

    assert [kvcache.sequence_bytes(compressed, n) for n in (3, 4, 7, 8)] == [0, 1024, 1024, 2048]
    assert kvcache.growing_bytes_per_token(compressed.layers) == 256


def test_recurrent_state_shards_by_heads_and_does_not_grow():
    state = Recurrent("recurrent", ((32 * 128 * 128, 32),), "float32")
    hybrid = model(Layer((state,)))

    assert kvcache.sequence_bytes(hybrid, 1) == kvcache.sequence_bytes(hybrid, 10**6) == 2_097_152
    assert kvcache.sequence_bytes(hybrid, 1, BF16, Parallel(tp=8)) == 262_144
    assert kvcache.fixed_bytes(hybrid.layers) == 2_097_152


def test_groups_of_a_convolution_are_copied_when_ranks_outnumber_them():
    conv = Recurrent("conv", ((1024 * 3, 16), (2 * 128 * 3, 1)), "bfloat16")

    assert conv.bytes(0, BF16, Parallel(tp=4)) == (1024 * 3 // 4 + 2 * 128 * 3) * 2


def test_a_stage_owns_its_own_layers():
    small, large = attention(kv=1), attention(kv=8)
    mixed = model(large, small, small, small)

    assert kvcache.sequence_bytes(mixed, 10, BF16, Parallel(pp=2)) == 10 * 4 * 64 * (8 + 1)
    assert kvcache.cluster_sequence_bytes(mixed, 10, BF16, Parallel(pp=2)) == 10 * 4 * 64 * 11


def test_remaining_layers_go_to_the_middle_stages():
    # vLLM's get_pp_indices: 10 layers over 4 stages are 2, 3, 3, 2
    ten = model(*[attention()] * 10)

    assert [len(stage) for stage in kvcache.stages(ten.layers, 4)] == [2, 3, 3, 2]


@pytest.mark.parametrize(
    ("parallel", "reason"),
    [
        (Parallel(tp=3), "tp 3 does not divide the 64 attention heads"),
        (Parallel(tp=8, dcp=2), "dcp 2 is more than the 1 copies"),
    ],
)
def test_ranks_that_do_not_fit_are_refused(parallel, reason):
    big = load_model("llama-3-70b")

    with pytest.raises(UsageError, match=reason):
        kvcache.check_parallel(big, parallel)


def test_more_stages_than_layers_are_refused():
    big = load_model("llama-3-70b")

    with pytest.raises(UsageError, match="pp 81 leaves stages without a layer"):
        kvcache.sequence_bytes(big, 1, BF16, Parallel(pp=81))


@pytest.mark.parametrize(
    "ranks", [{"tp": 0}, {"tp": -1}, {"dcp": 3, "tp": 4}, {"ep": 3, "tp": 2}, {"pp": 10**9}]
)
def test_impossible_ranks_are_refused(ranks):
    with pytest.raises(UsageError):
        Parallel(**ranks)


def test_cross_attention_needs_the_length_of_its_input():
    crossing = model(attention(kind="cross"), name="x")

    with pytest.raises(UsageError) as caught:
        kvcache.encoder_tokens(crossing, None)

    assert "--encoder-tokens" in caught.value.hint
    assert kvcache.encoder_tokens(crossing, 100) == 100


def test_twins_have_a_head_per_query_head_or_one():
    big = load_model("llama-3-70b")

    mha, mqa = kvcache.with_kv_heads(big, "mha"), kvcache.with_kv_heads(big, "mqa")

    assert kvcache.sequence_bytes(mha, 32_768) == 80 * GIB
    assert kvcache.sequence_bytes(mqa, 32_768) == 10 * GIB // 8


def test_uncompressed_twin_of_latent_attention():
    # DeepSeek-V3's attention without compression: 128 heads of 192 + 128 (sizing.md 2.6)
    latent = model(Layer((Latent(576, 128, 192, 128),)))

    assert kvcache.sequence_bytes(kvcache.with_kv_heads(latent, "mha"), 1) == 81_920


shapes = st.tuples(
    st.integers(1, 6),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([32, 64, 128]),
)


@given(shapes, st.integers(1, 5000), st.integers(1, 7))
def test_bytes_are_linear_in_layers_and_context(shape, tokens, factor):
    layers, kv, group, width = shape
    once = llama(layers, kv * group, kv, width)
    more = llama(layers * factor, kv * group, kv, width)

    assert kvcache.sequence_bytes(more, tokens) == factor * kvcache.sequence_bytes(once, tokens)
    assert kvcache.sequence_bytes(once, tokens * factor) == factor * kvcache.sequence_bytes(
        once, tokens
    )


@given(shapes, st.integers(1, 5000))
def test_gqa_cache_is_mha_cache_divided_by_group_size(shape, tokens):
    layers, kv, group, width = shape
    grouped = llama(layers, kv * group, kv, width)
    multi = llama(layers, kv * group, kv * group, width)

    assert group * kvcache.sequence_bytes(grouped, tokens) == kvcache.sequence_bytes(multi, tokens)


@given(shapes, st.integers(1, 5000), st.sampled_from([1, 2, 4, 8]))
def test_ranks_together_hold_at_least_the_whole(shape, tokens, tp):
    layers, kv, group, width = shape
    spec = llama(layers, kv * group * 8, kv, width)
    parallel = Parallel(tp=tp)

    cluster = kvcache.cluster_sequence_bytes(spec, tokens, BF16, parallel)

    assert cluster >= kvcache.sequence_bytes(spec, tokens)
    assert cluster == tp * kvcache.sequence_bytes(spec, tokens, BF16, parallel)


@given(st.integers(0, 3000), st.integers(1, 2000), st.integers(1, 500))
def test_components_sum_to_the_sequence(tokens, window, stride):
    mixed = model(
        attention(),
        attention(kind="sliding", limit=window),
        attention(kind="chunked", limit=window),
        Layer((Latent(64, 8, 64, 64, stride=stride), Index(128, stride))),
        Layer((Recurrent("conv", ((96, 4),), "bfloat16"),)),
    )

    parts = kvcache.components(mixed.layers, tokens)

    assert sum(part.bytes for part in parts) == kvcache.sequence_bytes(mixed, tokens)
