"""Operations and bytes of attention: known values, and closed forms against counting."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtool.errors import ShapeError
from kvtool.roofline import (
    AttentionTask,
    Roof,
    bound,
    bytes_moved,
    floor_seconds,
    flops,
    intensity,
    materialised_flops,
    recompute_flops,
    ridge,
    rotation_flops,
    scores,
)

H200 = Roof(flops_per_s=790e12, bandwidth_bytes_per_s=4.3e12)  # measured figures of one card


masks = st.one_of(
    st.just({"causal": False}),
    st.builds(dict, causal=st.just(True), window=st.none() | st.integers(1, 45)),
)


@st.composite
def tasks(draw):
    queries = draw(st.integers(1, 12))
    lens = draw(st.lists(st.integers(queries, 40), min_size=1, max_size=3))
    kv_heads = draw(st.integers(1, 3))
    return AttentionTask(
        kv_lens=tuple(lens),
        query_tokens=queries,
        num_q_heads=kv_heads * draw(st.integers(1, 4)),
        num_kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([1, 8])),
        **draw(masks),
    )


def visible(task, length):
    """The (query, key) pairs that the mask keeps, one by one."""
    pairs = itertools.product(range(task.query_tokens), range(length))
    at = length - task.query_tokens
    return [
        (i, j)
        for i, j in pairs
        if not (task.causal and j > at + i)
        and not (task.causal and task.window and j <= at + i - task.window)
    ]


@given(tasks())
def test_scores_are_the_pairs_the_mask_keeps(task):
    assert scores(task) == sum(len(visible(task, length)) for length in task.kv_lens)


@given(tasks())
def test_bytes_are_the_rows_in_sight_once_and_the_queries_twice(task):
    rows = sum(len({j for _, j in visible(task, length)}) for length in task.kv_lens)
    queries = 2 * task.batch_size * task.query_tokens * task.num_q_heads * task.head_dim
    cache = 2 * rows * task.num_kv_heads * task.head_dim

    assert bytes_moved(task) == 2 * queries + 2 * cache


@given(tasks())
def test_task_operations_never_exceed_those_of_an_algorithm(task):
    assert flops(task) <= materialised_flops(task) <= recompute_flops(task)


def test_causal_prefill_is_half_the_square_and_half_a_row():
    task = AttentionTask((8192,), 8192, 32, 8, 128)

    assert flops(task) == 4 * 32 * 128 * (8192 * 8193 // 2)


def test_decode_of_llama_3_8b_at_32k_moves_its_cache_once():
    # Llama-3-8B: 8 KV heads of 128; 32,768 tokens, 16-bit: 134,217,728 B a layer
    task = AttentionTask((32768,), 1, 32, 8, 128)

    assert bytes_moved(task) == 134_217_728 + 2 * 32 * 128 * 2
    assert bound(task, H200) == "memory"
    assert floor_seconds(task, H200) == pytest.approx(31.2e-6, rel=0.01)


def test_decode_intensity_approaches_the_group_size_in_16_bit():
    # 2 x group size / bytes per element: 4 for Llama-3-8B
    assert intensity(AttentionTask((131072,), 1, 32, 8, 128)) == pytest.approx(4, rel=1e-3)


def test_fp8_keys_halve_the_cache_and_leave_the_queries():
    task = AttentionTask((1024,), 1, 8, 8, 64, kv_element_bytes=1)

    assert bytes_moved(task) == 2 * 1024 * 8 * 64 + 2 * 8 * 64 * 2


def test_prefill_of_8k_is_bound_by_arithmetic():
    task = AttentionTask((8192,), 8192, 32, 8, 128)

    assert bound(task, H200) == "compute"
    assert intensity(task) > ridge(H200)


def test_rotation_costs_three_operations_per_rotated_element():
    assert rotation_flops(rows=16, num_heads=8, rotary_dim=128) == 3 * 16 * 8 * 128


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kv_lens": ()}, "at least one"),
        ({"kv_lens": (0,)}, "at least one"),
        ({"num_kv_heads": 3}, "do not divide"),
        ({"query_tokens": 9}, "9 causal queries against 8 keys"),
        ({"window": 0}, "window of 0"),
        ({"window": 4, "causal": False}, "causal=False"),
    ],
    ids=[
        "no-sequence",
        "empty-sequence",
        "heads",
        "more-queries-than-keys",
        "empty-window",
        "window-without-mask",
    ],
)
def test_impossible_tasks_are_refused(change, words):
    fields = {
        "kv_lens": (8,),
        "query_tokens": 8,
        "num_q_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
    }

    with pytest.raises(ShapeError, match=words):
        AttentionTask(**(fields | change))
