"""Lists into cases, models into shapes."""

import pytest

from kvtool.benchmark.cases import CPU_DEFAULTS, Case, Heads, default_doc_tokens, heads_of, sweep
from kvtool.errors import UsageError
from kvtool.model.spec import Attention, Latent, Layer, ModelSpec

LLAMA_3_8B = Heads(32, 8, 128, "llama-3-8b")


def model(*states):
    return ModelSpec("toy", "toy", "bfloat16", tuple(Layer((state,)) for state in states))


def cases(**changes):
    arguments = {
        "phases": ["prefill", "decode"],
        "batches": None,
        "contexts": None,
        "shapes": None,
        "heads": LLAMA_3_8B,
        "dtypes": ["bfloat16"],
        "kv_dtypes": ["auto"],
        "block_sizes": [16],
        "doc_tokens": None,
        "masks": ["causal"],
        "defaults": CPU_DEFAULTS,
        "seed": 0,
    }
    return sweep(**(arguments | changes))


def test_one_case_per_combination_in_the_order_typed():
    found = cases(
        phases=["decode"], batches=[1, 8], contexts=[4096, 128], kv_dtypes=["auto", "fp8_e4m3"]
    )

    assert [(c.batch_size, c.context_tokens, c.kv_dtype) for c in found] == [
        (1, 4096, "bfloat16"),
        (1, 4096, "fp8_e4m3"),
        (1, 128, "bfloat16"),
        (1, 128, "fp8_e4m3"),
        (8, 4096, "bfloat16"),
        (8, 4096, "fp8_e4m3"),
        (8, 128, "bfloat16"),
        (8, 128, "fp8_e4m3"),
    ]


def test_without_lists_the_shapes_are_the_defaults():
    found = cases()

    assert [(c.phase, c.batch_size, c.context_tokens) for c in found] == [
        (phase, *shape) for phase, shapes in CPU_DEFAULTS.shapes.items() for shape in shapes
    ]


def test_a_batch_alone_keeps_the_contexts_of_the_defaults():
    assert [(c.batch_size, c.context_tokens) for c in cases(phases=["decode"], batches=[2])] == [
        (2, 512),
        (2, 128),
    ]


def test_prefill_queries_the_context_and_decode_its_last_token():
    prefill, decode = cases(batches=[2], contexts=[64])

    assert prefill.task.query_tokens == 64
    assert decode.task.query_tokens == 1
    assert decode.task.kv_lens == (64, 64)


def test_shapes_are_pairs_and_not_combinations():
    found = cases(phases=["decode"], shapes=[(1, 512), (8, 64)])

    assert [(c.batch_size, c.context_tokens) for c in found] == [(1, 512), (8, 64)]


def test_masks_multiply_prefill_and_leave_decode_alone():
    found = cases(batches=[1], contexts=[64], masks=["causal", "full"])

    assert [(c.phase, c.mask) for c in found] == [
        ("prefill", "causal"),
        ("prefill", "full"),
        ("decode", "causal"),
    ]
    assert found[1].task.causal is False
    assert found[1].label.endswith("full mask")


def test_the_cache_dtype_decides_its_bytes():
    case = cases(phases=["decode"], batches=[1], contexts=[64], kv_dtypes=["fp8_e4m3"])[0]

    assert case.task.kv_element_bytes == 1
    assert case.task.element_bytes == 2
    assert case.label == "decode B1 S64 q32 kv8 d128 bfloat16/fp8_e4m3"


@pytest.mark.parametrize(
    ("context", "documents", "count"), [(4096, 1024, 4), (100, 32, 4), (1, 16, 1)]
)
def test_documents_cover_the_context(context, documents, count):
    found = cases(phases=["decode"], batches=[1], contexts=[context], doc_tokens=[documents])[0]

    assert found.documents == count


@pytest.mark.parametrize("context", [1, 15, 64, 1000, 131072])
def test_default_documents_fill_whole_blocks(context):
    tokens = default_doc_tokens(context, 16)

    assert tokens % 16 == 0
    assert 16 <= tokens <= 1024


def test_documents_that_split_blocks_are_refused():
    with pytest.raises(UsageError, match="100 tokens do not fill blocks of 16"):
        cases(doc_tokens=[100])


@pytest.mark.parametrize(
    ("tp", "expected"), [(1, (32, 8)), (8, (4, 1)), (16, (2, 1)), (2, (16, 4))]
)
def test_tensor_parallel_shares_heads_and_copies_kv_heads_when_there_are_too_few(tp, expected):
    shard = LLAMA_3_8B.sharded(tp)

    assert (shard.num_q_heads, shard.num_kv_heads) == expected


@pytest.mark.parametrize("tp", [3, 64, 12])
def test_tensor_parallel_that_does_not_divide_is_refused(tp):
    with pytest.raises(UsageError, match=f"do not divide over TP {tp}"):
        LLAMA_3_8B.sharded(tp)


@pytest.mark.parametrize(
    ("shape", "words"), [((32, 5, 128), "do not divide among"), ((0, 1, 8), "not a shape")]
)
def test_impossible_heads_are_refused(shape, words):
    with pytest.raises(UsageError, match=words):
        Heads(*shape, "typed")


def test_a_model_gives_its_full_attention_layer_and_says_so_when_there_are_others():
    sliding = Attention(8, 4, 256, 256, kind="sliding", limit=1024)
    full = Attention(8, 1, 512, 512)

    heads, remark = heads_of(model(sliding, full, sliding))

    assert (heads.num_q_heads, heads.num_kv_heads, heads.head_dim) == (8, 1, 512)
    assert "layers of several kinds" in remark


def test_a_model_of_one_kind_needs_no_remark():
    assert heads_of(model(*[Attention(32, 8, 128, 128)] * 3)) == (Heads(32, 8, 128, "toy"), None)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (Latent(576, 128, 192, 128), "MLA models such as 'toy' are not supported by `bench` yet"),
        (Attention(8, 8, 192, 128), "keys of 192 and values of 128"),
    ],
    ids=["mla", "unequal-widths"],
)
def test_shapes_without_a_kernel_are_refused_by_name(state, words):
    with pytest.raises(UsageError, match=words):
        heads_of(model(state))


def test_case_checks_its_own_numbers():
    with pytest.raises(UsageError, match="batch 0"):
        Case("decode", 0, 8, LLAMA_3_8B, "float16", "float16", 16, 16)
