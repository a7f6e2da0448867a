"""Kernels by name, and what their algorithms execute."""

import pytest

from kvtool.benchmark.cases import Case, Heads
from kvtool.benchmark.contenders import ours
from kvtool.errors import UsageError
from kvtool.roofline import flops

HEADS = Heads(8, 2, 64, "toy")


def case(phase="decode", context=128, doc_tokens=32):
    return Case(phase, 2, context, HEADS, "float32", "float32", 16, doc_tokens)


def contender(name, variant=()):
    return ours([name], variant)[0]


def test_variants_stand_beside_their_kernel():
    names = [c.name for c in ours(["flash", "lazy"], ["rotate-q", "merge"])]

    assert names == ["flash", "lazy rotate-q", "lazy merge"]


def test_a_kernel_named_twice_runs_once():
    assert [c.name for c in ours(["flash", "flash"])] == ["flash"]


@pytest.mark.parametrize(
    ("kernels", "variants", "words", "hint"),
    [
        (["flsh"], (), "no kernel named 'flsh'", "did you mean 'flash'"),
        (["lazy"], ["rotate"], "no variant named 'rotate'", "rotate-q"),
        (["flash"], ["merge"], "variant of 'lazy', which is not in the run", "flash,lazy"),
    ],
)
def test_unknown_names_say_what_is_known(kernels, variants, words, hint):
    with pytest.raises(UsageError, match=words) as error:
        ours(kernels, variants)

    assert hint in error.value.hint


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_flash_executes_the_task_and_cached_more_or_as_much(phase):
    task = case(phase).task

    assert contender("flash").executed_flops(case(phase), None) == flops(task)
    assert contender("cached").executed_flops(case(phase), None) >= flops(task)


def test_naive_decode_executes_the_square_of_the_context():
    # 4 x head_dim x heads x batch x context^2
    assert contender("naive").executed_flops(case(), None) == 4 * 64 * 8 * 2 * 128 * 128


def test_a_rotated_query_costs_three_operations_an_element_for_each_document():
    extra = contender("lazy").executed_flops(case(), "rotate-q") - flops(case().task)

    assert extra == 3 * (2 * 4) * 8 * 64  # batch x documents rows of 8 heads x 64


def test_rotated_keys_cost_three_operations_an_element_for_each_token():
    extra = contender("lazy").executed_flops(case(), "rotate-k") - flops(case().task)

    assert extra == 3 * (2 * 128) * 2 * 64


def test_a_prefill_query_turns_once_for_each_document_it_sees():
    prefill = case("prefill")
    extra = contender("lazy").executed_flops(prefill, "rotate-q") - flops(prefill.task)

    rows = sum(position // 32 + 1 for position in range(128))
    assert extra == 3 * 2 * rows * 8 * 64


def test_scores_of_naive_grow_with_the_square():
    small, large = case(context=128), case(context=256)

    assert contender("naive").scratch_bytes(large) == 4 * contender("naive").scratch_bytes(small)
    assert contender("flash").scratch_bytes(large) == 0
