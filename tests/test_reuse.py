"""Reuse rules: which keys documents and blocks get, and what they weigh."""

from __future__ import annotations

import numpy as np
import pytest

from kvtool.reuse import BlockRules, block_accesses, chain_keys, document_accesses
from kvtool.workload.requests import BlockRequests, DocumentRequests, repeats_in_request


def requests(*prompts, tokens=None):
    docs = np.array([doc for prompt in prompts for doc in prompt], dtype=np.int64)
    starts = np.cumsum([0, *map(len, prompts)], dtype=np.int64)
    lengths = np.full(len(docs), 10) if tokens is None else np.array(tokens)[docs]
    return DocumentRequests(docs, lengths, starts, repeats_in_request(docs, starts))


def same_keys(accesses):
    """The keys as the index of their first occurrence."""
    keys = accesses.keys.tolist()
    return [keys.index(key) for key in keys]


def accesses(rule, made, page=16):
    return document_accesses(rule, made, lambda tokens: tokens, page)


def test_lazy_documents_are_the_same_wherever_they_stand():
    assert same_keys(accesses("lazy", requests([7, 3], [3, 7]))) == [0, 1, 1, 0]


def test_position_aware_documents_are_the_same_at_the_same_offset():
    made = requests([7, 3], [3, 7], [5, 3])

    assert same_keys(accesses("position-aware", made)) == [0, 1, 2, 3, 4, 1]


def test_position_aware_offsets_count_padding_and_true_lengths_differ():
    # Documents 0 and 1 have 10 and 16 tokens: both take one page of 16, but pages of 1 differ.
    made = requests([0, 2], [1, 2], tokens=[10, 16, 5])

    assert same_keys(accesses("position-aware", made, page=16))[3] == 1
    assert same_keys(accesses("position-aware", made, page=1))[3] == 3


def test_prefix_documents_are_the_same_behind_the_same_documents():
    made = requests([1, 2, 3], [1, 2, 4], [2, 1, 3], [1, 2, 3])

    assert same_keys(accesses("prefix", made)) == [0, 1, 2, 0, 1, 5, 6, 7, 8, 0, 1, 2]
    assert accesses("prefix", made).unbroken


def test_two_copies_weigh_twice():
    made = requests([0, 1], tokens=[10, 40])

    assert accesses("two-copy", made).sizes.tolist() == [32, 96]
    assert accesses("lazy", made).sizes.tolist() == [16, 48]
    assert accesses("two-copy", requests([0, 1])).sizes == 32


def test_repeats_are_looked_up_but_not_touched():
    made = accesses("lazy", requests([4, 4, 5]))

    assert same_keys(made) == [0, 1]
    assert made.lookups.tolist() == [3]
    assert made.request_tokens.tolist() == [30]


def test_each_length_is_priced_once():
    asked = []

    document_accesses(
        "lazy",
        requests([0, 1, 2, 0], tokens=[10, 40, 12]),
        lambda tokens: asked.append(tokens.tolist()) or tokens,
        16,
    )

    assert asked == [[16, 48]]


@pytest.mark.parametrize("rule", ["lazy", "position-aware", "prefix"])
def test_huge_document_numbers_are_no_trouble(rule):
    made = requests([2**61, 5], [2**61, 5], [5, 2**61])

    assert same_keys(accesses(rule, made))[:4] == [0, 1, 0, 1]


def test_chains_of_different_lengths():
    keys = chain_keys(np.array([1, 1, 2, 1, 2, 3]), np.array([0, 1, 3, 3, 6]))

    assert len(set(keys.tolist())) == 3
    assert keys[0] == keys[1] == keys[3]
    assert keys[2] == keys[4]


def blocks(**rules):
    """One request of 10 tokens in blocks of 4, with 7 tokens of output."""
    made = BlockRequests(np.array([5, 6, 7]), np.array([0, 3]), np.array([10]), np.array([7]), 4)
    return block_accesses(made, BlockRules(**rules), 100, alone=False)


def test_outputs_and_partial_blocks_take_room_and_never_hit():
    made = blocks()

    assert len(made.keys) == 5  # ceil((10 + 7) / 4)
    assert made.keys[:2].tolist() == [5, 6]
    assert len(set(made.keys.tolist())) == 5
    assert made.can_hit.tolist() == [True, True, False, False, False]
    assert made.lookups.tolist() == [2]
    assert made.request_tokens.tolist() == [10]


def test_without_outputs_the_prompt_alone_takes_room():
    made = blocks(cache_outputs=False)

    assert len(made.keys) == 3
    assert made.keys[:2].tolist() == [5, 6]
    assert made.keys[2] not in (5, 6, 7)


def test_partial_blocks_hit_all_but_the_last_token():
    made = blocks(full_blocks_only=False, cache_outputs=False)

    assert made.keys.tolist() == [5, 6, 7]
    assert made.tokens.tolist() == [4, 4, 1]
    assert made.lookups.tolist() == [3]
    whole = blocks(full_blocks_only=False, cache_outputs=False, reserve_last_token=False)
    assert whole.tokens.tolist() == [4, 4, 2]
