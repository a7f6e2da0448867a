"""Hit rates of two public traces, to six digits in every definition.

The values come from an independent program over the traces of github.com/kvcache-ai/Mooncake
@3b5a594 (FAST25-release/traces): a stack distance for LRU, checked against libCacheSim to four
digits; libCacheSim 0.3.5 itself for the other policies.
"""

from __future__ import annotations

import time

import pytest

from kvtool.reuse import BlockRules, block_accesses
from kvtool.simulation.sample import lru_curve, replay_rates

SIZES = (1_000, 6_000, 10_000, 30_000, 50_000, 100_000)
PLAIN = BlockRules(
    tail_first=False,
    full_blocks_only=False,
    reserve_last_token=False,
    cache_outputs=False,
    pinned=0,
)
TAIL = BlockRules(full_blocks_only=False, reserve_last_token=False, cache_outputs=False)
ENGINE = BlockRules(cache_outputs=False)
ENGINE_WITH_OUTPUTS = BlockRules()

# Block hit rate of independent accesses in file order.
PLAIN_BLOCKS = {
    "conversation": (0.044475, 0.138624, 0.211165, 0.325709, 0.354558, 0.363688),
    "synthetic": (0.082460, 0.310707, 0.423493, 0.624211, 0.639604, 0.639604),
}
# Block and token hit rates, recency within a request set tail first.
TAIL_BLOCKS = {
    "conversation": (0.044530, 0.139282, 0.211598, 0.325747, 0.354558, 0.363688),
    "synthetic": (0.084118, 0.312011, 0.423944, 0.624211, 0.639604, 0.639604),
}
TAIL_TOKENS = {
    "conversation": (0.045413, 0.141999, 0.215748, 0.332153, 0.361530, 0.370844),
    "synthetic": (0.085718, 0.317795, 0.431764, 0.635597, 0.651244, 0.651244),
}
# Token hit rate as vLLM counts it, without and with the blocks of the output; five sizes.
ENGINE_TOKENS = {
    "conversation": (0.045392, 0.141867, 0.215597, 0.331895, 0.361262),
    "synthetic": (0.085667, 0.317351, 0.431289, 0.634827, 0.650431),
}
OUTPUT_TOKENS = {
    "conversation": (0.045322, 0.137730, 0.209346, 0.329374, 0.360307),
    "synthetic": (0.085491, 0.316271, 0.430176, 0.632250, 0.650431),
}
# (blocks found, blocks, distinct blocks, block and token rate of an infinite cache)
INFINITE = {
    "conversation": (105_710, 288_500, 182_790, 0.366412, 0.373624),
    "synthetic": (77_953, 121_877, 43_924, 0.639604, 0.651244),
}
# Full blocks only and a hit of at most prompt - 1 tokens: block and token rate.
INFINITE_ENGINE = {"conversation": (0.381900, 0.373380), "synthetic": (0.659439, 0.650431)}
# Mean over requests of the token ratio, and of a third party's shares of distinct blocks.
REQUEST_MEAN = {"conversation": 0.4094, "synthetic": 0.4315}
SHARES = {
    "conversation": (0.0523, 0.1954, 0.2784, 0.3535, 0.3631),
    "synthetic": (0.0343, 0.1548, 0.2598, 0.4434, 0.5888),
}
POLICIES = {
    ("conversation", 1_000): {
        "fifo": 0.0435,
        "lfu": 0.0481,
        "gdsf": 0.0447,
        "arc": 0.0529,
        "s3fifo": 0.0543,
        "belady": 0.1906,
    },
    ("conversation", 10_000): {
        "fifo": 0.1865,
        "lfu": 0.1318,
        "gdsf": 0.2171,
        "arc": 0.2225,
        "s3fifo": 0.1925,
        "belady": 0.3664,
    },
    ("synthetic", 10_000): {
        "fifo": 0.3990,
        "lfu": 0.3578,
        "gdsf": 0.4279,
        "arc": 0.4356,
        "s3fifo": 0.4183,
        "belady": 0.6180,
    },
}

both = pytest.mark.parametrize("name", ["conversation", "synthetic"])


def six_digits(values):
    return tuple(round(value, 6) for value in values)


@both
def test_independent_blocks_in_file_order(mooncake, name):
    accesses = block_accesses(mooncake(name), PLAIN, 1, alone=True)

    curve = lru_curve(accesses, whole_request=False)

    assert six_digits(curve.at(size)[0] for size in SIZES) == PLAIN_BLOCKS[name]


@both
def test_tail_first(mooncake, name):
    accesses = block_accesses(mooncake(name), TAIL, 1, alone=False)

    curve = lru_curve(accesses, whole_request=True)

    assert six_digits(curve.at(size)[0] for size in SIZES) == TAIL_BLOCKS[name]
    assert six_digits(curve.at(size)[1] for size in SIZES) == TAIL_TOKENS[name]


@both
@pytest.mark.parametrize(
    ("rules", "tokens"),
    [(ENGINE, ENGINE_TOKENS), (ENGINE_WITH_OUTPUTS, OUTPUT_TOKENS)],
    ids=["prompts", "with-outputs"],
)
def test_as_the_engine_counts(mooncake, name, rules, tokens):
    accesses = block_accesses(mooncake(name), rules, 1, alone=False)

    curve = lru_curve(accesses, whole_request=True)

    assert six_digits(curve.at(size)[1] for size in SIZES[:5]) == tokens[name]


@both
def test_an_infinite_cache(mooncake, name):
    found, blocks, distinct, block_rate, token_rate = INFINITE[name]
    accesses = block_accesses(mooncake(name), TAIL, 1, alone=False)

    curve = lru_curve(accesses, whole_request=True)

    assert (curve.found[-1], curve.lookups) == (found, blocks)
    assert blocks - found == distinct
    assert six_digits(curve.unlimited()[:2]) == (block_rate, token_rate)
    assert curve.unlimited()[2] == pytest.approx(REQUEST_MEAN[name], abs=5e-5)
    engine = lru_curve(block_accesses(mooncake(name), ENGINE, 1, alone=False), whole_request=True)
    assert engine.unlimited()[:2] == pytest.approx(INFINITE_ENGINE[name], abs=1e-6)


@both
def test_shares_of_the_distinct_blocks(mooncake, name):
    distinct = INFINITE[name][2]
    curve = lru_curve(block_accesses(mooncake(name), PLAIN, 1, alone=True), whole_request=False)

    rates = [curve.at(int(distinct * share))[0] for share in (0.01, 0.05, 0.10, 0.25, 0.50)]

    assert rates == pytest.approx(SHARES[name], abs=1e-4)


@pytest.mark.parametrize(
    ("name", "size", "policy"),
    [(*where, policy) for where, rates in POLICIES.items() for policy in rates],
)
def test_other_policies_agree_with_libcachesim(mooncake, name, size, policy):
    accesses = block_accesses(mooncake(name), PLAIN, 1, alone=True)

    rate = replay_rates(policy, accesses, size, whole_request=False).hit_rate

    allowed = 4e-3 if policy == "s3fifo" else 5e-4
    assert rate == pytest.approx(POLICIES[name, size][policy], abs=allowed)


@both
@pytest.mark.parametrize("whole", [True, False], ids=["request", "each"])
def test_replayed_lru_equals_the_curve(mooncake, name, whole):
    accesses = block_accesses(mooncake(name), ENGINE_WITH_OUTPUTS, 7, alone=not whole)
    curve = lru_curve(accesses, whole_request=whole)

    rates = replay_rates("lru", accesses, 7 * 6_000, whole_request=whole)

    assert curve.at(7 * 6_000)[:2] == (rates.hit_rate, rates.token_hit_rate)


def test_the_whole_curve_of_the_conversation_takes_less_than_a_second(mooncake):
    requests = mooncake("conversation")
    start = time.perf_counter()

    lru_curve(block_accesses(requests, ENGINE_WITH_OUTPUTS, 1, alone=False), whole_request=True)

    assert time.perf_counter() - start < 1
