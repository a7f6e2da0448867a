"""Rules, look-up orders and policies against a plain simulation, request by request."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.policy.replay import POLICIES
from kvtool.reuse import RULES, BlockRules, block_accesses, chain_keys, document_accesses, is_tree
from kvtool.simulation.sample import lru_curve, replay_rates
from kvtool.workload.requests import BlockRequests, DocumentRequests, repeats_in_request

PAGE = 4


@dataclass
class Outcome:
    hits: int = 0
    lookups: int = 0
    tokens: int = 0
    prompt_tokens: int = 0


def plain_lru(rule, prompts, lengths, budget, *, whole_request, warmup=0):
    """The definition, in words of one syllable: keys, look-ups, touches and bytes one by one."""
    cache: OrderedDict[object, int] = OrderedDict()
    outcome = Outcome()
    for number, prompt in enumerate(prompts):
        keys, seen, offset = [], set(), 0
        for place, doc in enumerate(prompt):
            key = {
                "lazy": doc,
                "two-copy": doc,
                "position-aware": (doc, offset),
                "prefix": tuple(prompt[: place + 1]),
            }[rule]
            keys.append(None if doc in seen else key)
            seen.add(doc)
            offset += -(-lengths[doc] // PAGE) * PAGE
        found = [key is not None and key in cache for key in keys]
        for place in reversed(range(len(prompt))):
            key = keys[place]
            if key is None:
                continue
            if not whole_request:
                found[place] = key in cache
            cache[key] = (
                -(-lengths[prompt[place]] // PAGE) * PAGE * (2 if rule == "two-copy" else 1)
            )
            cache.move_to_end(key)
            if cache[key] > budget:
                del cache[key]
            while sum(cache.values()) > budget:
                cache.popitem(last=False)
        if number < warmup:
            continue
        for place, doc in enumerate(prompt):
            if rule == "prefix" and keys[place] is not None and not found[place]:
                found[place:] = [False] * (len(prompt) - place)
            outcome.hits += found[place]
            outcome.tokens += lengths[doc] if found[place] else 0
        outcome.lookups += len(prompt)
        outcome.prompt_tokens += sum(lengths[doc] for doc in prompt)
    return outcome


def documents(prompts, lengths):
    docs = np.array([doc for prompt in prompts for doc in prompt], dtype=np.int64)
    starts = np.cumsum([0, *map(len, prompts)], dtype=np.int64)
    return DocumentRequests(docs, np.array(lengths)[docs], starts, repeats_in_request(docs, starts))


prompts_of_seven = st.lists(
    st.lists(st.integers(0, 6), min_size=1, max_size=5), max_size=40
).filter(len)


@settings(deadline=None, max_examples=250)
@given(
    prompts=prompts_of_seven,
    lengths=st.one_of(
        st.integers(1, 9).map(lambda n: [n] * 7),
        st.lists(st.integers(1, 30), min_size=7, max_size=7),
    ),
    rule=st.sampled_from(RULES),
    whole=st.booleans(),
    budget=st.integers(1, 150),
)
def test_lru_equals_a_plain_simulation_for_every_rule_and_lookup(
    prompts, lengths, rule, whole, budget
):
    accesses = document_accesses(rule, documents(prompts, lengths), lambda tokens: tokens, PAGE)
    expected = plain_lru(rule, prompts, lengths, budget, whole_request=whole)

    run = replay_rates("lru", accesses, budget, whole_request=whole)
    curve = lru_curve(accesses, whole_request=whole).at(budget)

    assert run.hit_rate == expected.hits / expected.lookups
    assert run.token_hit_rate == expected.tokens / expected.prompt_tokens
    if isinstance(accesses.sizes, int) or budget >= accesses.largest:
        assert curve[:2] == (run.hit_rate, run.token_hit_rate)
        assert curve[2] == pytest.approx(run.request_hit_rate, abs=1e-12)


@settings(deadline=None, max_examples=100)
@given(
    prompts=prompts_of_seven,
    rule=st.sampled_from(RULES),
    whole=st.booleans(),
    budget=st.integers(1, 150),
    warmup=st.integers(0, 10),
)
def test_requests_of_the_warm_up_fill_the_cache_and_do_not_count(
    prompts, rule, whole, budget, warmup
):
    warmup = min(warmup, len(prompts) - 1)
    accesses = document_accesses(rule, documents(prompts, [PAGE] * 7), lambda t: t, PAGE)
    expected = plain_lru(rule, prompts, [PAGE] * 7, budget, whole_request=whole, warmup=warmup)

    curve = lru_curve(accesses, whole_request=whole, first=warmup)
    run = replay_rates("lru", accesses, budget, whole_request=whole, first=warmup)

    assert curve.lookups == expected.lookups
    assert curve.at(budget)[0] == run.hit_rate == expected.hits / expected.lookups


@settings(deadline=None, max_examples=150)
@given(prompts=prompts_of_seven, length=st.integers(1, 9), whole=st.booleans())
def test_lazy_hits_at_least_as_much_as_position_aware_and_that_as_prefix(prompts, length, whole):
    requests = documents(prompts, [length] * 7)
    prefix, aware, lazy = (
        lru_curve(document_accesses(rule, requests, lambda t: t, PAGE), whole_request=whole)
        for rule in ("prefix", "position-aware", "lazy")
    )

    for budget in (4, 12, 20, 40, 80, 1000):
        assert lazy.at(budget) >= aware.at(budget) >= prefix.at(budget)


@settings(deadline=None, max_examples=150)
@given(
    prompts=prompts_of_seven,
    rule=st.sampled_from(RULES),
    whole=st.booleans(),
    capacity=st.integers(1, 12),
    policy=st.sampled_from(POLICIES),
)
def test_belady_hits_at_least_as_much_as_every_policy_on_equal_documents(
    prompts, rule, whole, capacity, policy
):
    requests = documents(prompts, [PAGE] * 7)
    accesses = document_accesses(rule, requests, lambda t: t // PAGE, PAGE)
    if accesses.unbroken:
        accesses = replace_unbroken(accesses)

    best = replay_rates("belady", accesses, capacity, whole_request=whole)

    other = replay_rates(policy, accesses, capacity, whole_request=whole)
    assert best.hit_rate >= other.hit_rate


def replace_unbroken(accesses):
    """Keys counted wherever they stand: what Belady's rule is optimal for."""
    from dataclasses import replace

    return replace(accesses, unbroken=False)


@settings(deadline=None, max_examples=100)
@given(
    prompts=prompts_of_seven,
    policy=st.sampled_from(POLICIES),
    lengths=st.lists(st.integers(1, 30), min_size=7, max_size=7),
    whole=st.booleans(),
)
def test_a_budget_that_holds_everything_misses_each_key_once(prompts, policy, lengths, whole):
    requests = documents(prompts, lengths)
    accesses = document_accesses("lazy", requests, lambda t: t, PAGE)

    rates = replay_rates(policy, accesses, 10_000, whole_request=whole)

    distinct = len({doc for prompt in prompts for doc in prompt})
    repeats = int(requests.repeats.sum())
    assert rates.hit_rate == (len(requests.docs) - repeats - distinct) / len(requests.docs)


@settings(deadline=None, max_examples=100)
@given(prompts=prompts_of_seven, rule=st.sampled_from(RULES), whole=st.booleans())
def test_more_budget_never_lowers_the_hit_rate_of_lru_with_equal_documents(prompts, rule, whole):
    accesses = document_accesses(rule, documents(prompts, [4] * 7), lambda t: t, PAGE)

    curve = lru_curve(accesses, whole_request=whole)

    rates = [curve.at(budget)[0] for budget in range(0, 200, 4)]
    assert rates == sorted(rates)
    assert 0 <= rates[0] <= rates[-1] <= 1


class Pool:
    """vLLM's block pool: reference counts, one queue of free blocks, victims from its head."""

    def __init__(self, blocks: int) -> None:
        self.free: OrderedDict[int, None] = OrderedDict((b, None) for b in range(blocks))
        self.key_of: dict[int, object] = {}
        self.block_of: dict[object, int] = {}
        self.users: dict[int, int] = dict.fromkeys(range(blocks), 0)

    def take(self, keys: list[object]) -> list[int]:
        """Blocks for a request: those found from its start on, then fresh ones."""
        blocks = []
        for key in keys:
            if key not in self.block_of:
                break
            blocks.append(self.block_of[key])
        for block in blocks:
            self.users[block] += 1
            self.free.pop(block, None)
        for key in keys[len(blocks) :]:
            block = self.free.popitem(last=False)[0]
            old = self.key_of.pop(block, None)
            if old is not None and self.block_of.get(old) == block:
                del self.block_of[old]
            self.key_of[block] = key
            self.block_of[key] = block
            self.users[block] += 1
            blocks.append(block)
        return blocks

    def give_back(self, blocks: list[int]) -> None:
        """Tail first, into the queue's end."""
        for block in reversed(blocks):
            self.users[block] -= 1
            if not self.users[block]:
                self.free[block] = None


@settings(deadline=None, max_examples=200)
@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=40),
    in_flight=st.integers(1, 4),
    more=st.integers(0, 12),
    outputs=st.integers(0, 5),
)
def test_blocks_equal_an_engine_pool_however_many_requests_are_in_flight(
    prompts, in_flight, more, outputs
):
    # Prompts of whole blocks plus two tokens of a partial one; block size 4.
    raw = np.array([b for prompt in prompts for b in [*prompt, 9]], dtype=np.int64)
    starts = np.cumsum([0, *(len(p) + 1 for p in prompts)], dtype=np.int64)
    input_tokens = np.array([4 * len(p) + 2 for p in prompts])
    trace = BlockRequests(raw, starts, input_tokens, np.full(len(prompts), outputs), 4)
    capacity = 7 * in_flight + more
    pool, running, hits = Pool(capacity), [], 0
    for number, prompt in enumerate(prompts):
        if len(running) == in_flight:
            pool.give_back(running.pop(0))
        keys = [tuple(prompt[: i + 1]) for i in range(len(prompt))]
        for key in keys:
            if key not in pool.block_of:
                break
            hits += 1
        total = -(-(4 * len(prompt) + 2 + outputs) // 4)
        keys += [("fresh", number, i) for i in range(total - len(prompt))]
        running.append(pool.take(keys))

    accesses = block_accesses(trace, BlockRules(pinned=in_flight), 1, alone=False)
    curve = lru_curve(accesses, whole_request=True)

    assert curve.at(capacity)[0] == hits / sum(map(len, prompts))


def test_blocks_touched_head_first_lose_the_run_when_the_head_is_evicted():
    # Twice the same three blocks, one stranger between: three blocks keep 2 and 3 but not 1.
    trace = BlockRequests(
        np.array([1, 2, 3, 9, 1, 2, 3]),
        np.array([0, 3, 4, 7]),
        np.array([12, 4, 12]),
        np.zeros(3),
        4,
    )
    loose = BlockRules(
        tail_first=False, full_blocks_only=False, reserve_last_token=False, cache_outputs=False
    )

    head_first = block_accesses(trace, loose, 1, alone=False)

    assert lru_curve(head_first, whole_request=True).at(3)[0] == 0
    assert replay_rates("lru", head_first, 3, whole_request=True).hit_rate == 0
    tail_first = block_accesses(
        trace,
        BlockRules(full_blocks_only=False, reserve_last_token=False, cache_outputs=False),
        1,
        alone=False,
    )
    assert lru_curve(tail_first, whole_request=True).at(3)[0] == 2 / 7


def test_a_prompt_that_fills_its_last_block_computes_it_again():
    trace = BlockRequests(
        np.array([1, 2, 1, 2]), np.array([0, 2, 4]), np.array([8, 8]), np.zeros(2), 4
    )

    rates = lru_curve(block_accesses(trace, BlockRules(), 1, alone=False), whole_request=True)

    assert rates.unlimited()[:2] == (1 / 4, 4 / 16)
    kept = BlockRules(reserve_last_token=False)
    rates = lru_curve(block_accesses(trace, kept, 1, alone=False), whole_request=True)
    assert rates.unlimited()[:2] == (2 / 4, 8 / 16)


def test_partial_blocks_save_all_but_the_last_token():
    trace = BlockRequests(
        np.array([1, 2, 1, 2]), np.array([0, 2, 4]), np.array([6, 6]), np.zeros(2), 4
    )
    partial = BlockRules(full_blocks_only=False)

    rates = lru_curve(block_accesses(trace, partial, 1, alone=False), whole_request=True)

    assert rates.unlimited()[:2] == (2 / 4, 5 / 12)


def test_ids_that_are_no_prefix_hashes_are_chained():
    ids, starts = np.array([1, 2, 3, 2]), np.array([0, 2, 4])

    assert not is_tree(ids, starts)
    assert len(set(chain_keys(ids, starts).tolist())) == 4
    assert is_tree(np.array([1, 2, 1, 4]), starts)
