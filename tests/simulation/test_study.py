"""Studies: answers of a sweep, budgets, notes, and results that no executor changes."""

from __future__ import annotations

import json
import math
import pickle
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context

import numpy as np
import pytest

from kvtool.errors import KvtoolError, UsageError
from kvtool.simulation.options import Options, settle
from kvtool.simulation.study import Run, simulate
from kvtool.simulation.sweep import mean_interval
from kvtool.workload.lengths import Lengths

GIB = 1 << 30
QUICK = Options(requests=600, seeds=3, budget=(GIB, 4 * GIB), policy=("lru", "fifo"))


def table(outcome):
    return [asdict(row) for row in outcome.rows]


@pytest.fixture
def log(tmp_path):
    """A document log of 400 requests over 30 documents of unequal length."""
    rng = np.random.default_rng(8)
    lengths = {f"doc {n}": int(rng.integers(20, 4_000)) for n in range(30)}
    path = tmp_path / "log.jsonl"
    with path.open("w") as file:
        for _ in range(400):
            docs = [f"doc {n}" for n in rng.zipf(1.4, 4) % 30]
            line = {"docs": docs, "tokens": [lengths[doc] for doc in docs]}
            file.write(json.dumps(line) + "\n")
    return str(path)


def test_bytes_of_a_document_are_those_of_the_model():
    # llama-3.1-8b in bfloat16: 2 x 32 layers x 8 heads x 128 x 2 B = 131,072 B per token.
    row = simulate(replace(QUICK, reuse=("lazy",), budget=(GIB,))).rows[0]

    assert (row.budget_bytes, row.budget_entries, row.budget_tokens) == (GIB, 8, 8_192)


@pytest.mark.parametrize(
    ("change", "entries"),
    [
        ({"kv_dtype": "fp8"}, 16),
        ({"tp": 4}, 32),
        ({"tp": 32}, 64),
        ({"doc_tokens": 1_025}, 7),
        ({"block_size": 1_000}, 4),
        ({"model": "llama-3-70b"}, 3),
    ],
    ids=["fp8", "tp-4", "tp-32-copies", "page-padding", "large-pages", "70b"],
)
def test_bytes_follow_dtype_parallelism_padding_and_model(change, entries):
    options = replace(QUICK, reuse=("lazy",), budget=(GIB,), policy=("lru",), **change)

    assert simulate(options).rows[0].budget_entries == entries


def test_blocks_of_an_engine_are_budgets_too():
    rows = simulate(replace(QUICK, budget=None, num_blocks=(512, 2_048))).rows

    assert {row.budget_bytes for row in rows} == {GIB, 4 * GIB}


def test_rows_come_by_policy_budget_and_rule_with_their_parameters():
    rows = simulate(QUICK).rows

    assert [(r.policy, r.budget_bytes // GIB, r.reuse) for r in rows[:4]] == [
        ("lru", 1, "prefix"),
        ("lru", 1, "position-aware"),
        ("lru", 1, "lazy"),
        ("lru", 4, "prefix"),
    ]
    assert len(rows) == 12
    for row in rows:
        assert (row.skew, row.docs, row.docs_per_request, row.seed, row.seeds) == (
            1.2,
            1_000,
            5,
            0,
            3,
        )
        assert (row.requests, row.lookups) == (3 * 480, 3 * 480 * 5)
        assert 0 <= row.hit_rate_low <= row.hit_rate <= row.hit_rate_high <= 1


def test_ratios_are_those_of_the_rows_beside():
    rows = {row.reuse: row for row in simulate(replace(QUICK, budget=(GIB,))).rows[:3]}

    lazy = rows["lazy"]
    assert lazy.over_prefix == pytest.approx(lazy.hit_rate / rows["prefix"].hit_rate)
    assert lazy.over_position_aware == pytest.approx(
        lazy.hit_rate / rows["position-aware"].hit_rate
    )
    assert rows["prefix"].over_prefix is None


def test_intervals_are_students():
    # Mean 2, s = 1, t(2) = 4.303: half-width 4.303 / sqrt(3), here in hundredths.
    mean, low, high = mean_interval([0.01, 0.02, 0.03])

    assert mean == pytest.approx(0.02)
    assert high - mean == pytest.approx(0.01 * 4.303 / math.sqrt(3), rel=1e-4)
    assert low == 0
    assert mean_interval([0.5]) == (0.5, None, None)


@pytest.mark.parametrize(("freedom", "t"), [(11, 2.201), (29, 2.045), (99, 1.984)])
def test_intervals_of_many_seeds(freedom, t):
    values = [0.5 + 0.001 * (-1) ** n for n in range(freedom + 1)]
    spread = np.std(values, ddof=1)

    mean, low, _ = mean_interval(values)

    assert (mean - low) / spread * math.sqrt(freedom + 1) == pytest.approx(t, abs=1e-3)


def test_the_knee_reaches_nine_tenths_and_one_entry_less_does_not():
    outcome = simulate(replace(QUICK, policy=("lru",)))

    for knee in outcome.knees:
        group = next(group for group in outcome.groups if group.rule == knee.reuse)
        target = 0.9 * knee.unlimited_hit_rate

        def rate(budget, group=group):
            return mean_interval([r.hit_rate for r in group.rates(budget)])[0]

        assert rate(knee.budget_bytes) >= target - 1e-12
        assert rate(knee.budget_bytes - 1) < target


def test_a_target_gets_the_smallest_budget_that_reaches_it():
    rows = simulate(replace(QUICK, budget=None, policy=("lru",), target_hit=0.5)).rows

    prefix, aware, lazy = rows
    assert prefix.budget_bytes is None
    assert prefix.hit_rate < 0.5
    assert 0.5 <= lazy.hit_rate < 0.52
    assert 0.5 <= aware.hit_rate < 0.52
    assert lazy.budget_bytes < aware.budget_bytes


def test_a_curve_runs_from_one_entry_to_everything():
    outcome = simulate(replace(QUICK, budget=None, policy=("lru",), curve=True))

    lazy = [row for row in outcome.rows if row.reuse == "lazy"]
    assert lazy[0].budget_entries == 1
    assert lazy[-1].hit_rate == lazy[-1].unlimited_hit_rate
    rates = [row.hit_rate for row in lazy]
    assert rates == sorted(rates)
    assert 20 < len(rates) <= 100


def test_other_policies_get_the_budgets_of_the_curve():
    outcome = simulate(
        replace(QUICK, budget=None, policy=("arc",), curve=True, requests=100, seeds=1)
    )

    assert {row.policy for row in outcome.rows} == {"arc"}
    assert len(outcome.rows) == 3 * len(outcome.plan.budgets) > 30


def test_several_exponents_are_several_workloads():
    rows = simulate(replace(QUICK, zipf=(0.0, 1.2), policy=("lru",), reuse=("lazy",))).rows

    assert [row.skew for row in rows] == [0.0, 0.0, 1.2, 1.2]
    assert rows[2].hit_rate > rows[0].hit_rate


def test_a_document_log_is_simulated_byte_exactly(log):
    budgets = tuple(GIB * quarter // 4 for quarter in (1, 2, 3, 4))
    options = Options(trace=log, budget=budgets, policy=("lru", "gdsf", "belady"))

    outcome = simulate(options)

    assert {row.seeds for row in outcome.rows} == {None}
    assert {row.docs for row in outcome.rows} == {30}
    for row in outcome.rows:
        assert 0 <= row.hit_rate <= 1
        assert row.hit_rate_low is None
    small = [row for row in outcome.rows if row.budget_bytes == budgets[0]]
    largest = max(group.largest_bytes for group in outcome.groups)
    assert budgets[0] < largest <= budgets[1]
    assert any(row.hit_rate for row in small)
    assert any("belady is a heuristic" in note for note in outcome.notes)


def test_the_default_budgets_of_a_trace_are_shares_of_all_there_is(log):
    outcome = simulate(Options(trace=log, reuse=("lazy",)))

    assert outcome.rows[-1].hit_rate == outcome.rows[-1].unlimited_hit_rate
    assert len(outcome.rows) >= 3


def test_repeats_of_a_log_never_hit_and_can_be_dropped(log):
    kept, dropped = (
        simulate(Options(trace=log, reuse=("lazy",), budget=(GIB,), duplicates=how)).rows[0]
        for how in ("keep", "drop")
    )

    assert kept.lookups > dropped.lookups
    assert kept.hit_rate * kept.lookups == pytest.approx(dropped.hit_rate * dropped.lookups)


def test_a_trace_in_which_nothing_comes_again_says_so(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"docs": ["a", "b"], "tokens": 5}\n{"docs": ["c"], "tokens": 9}\n')

    for options in (Options(trace=str(path)), Options(trace=str(path), curve=True)):
        outcome = simulate(options)
        assert outcome.notes[0].startswith("nothing is asked for twice")
        assert all(row.hit_rate == 0 for row in outcome.rows)


def test_bytes_beyond_64_bits_are_refused():
    with pytest.raises(KvtoolError, match="more bytes than can be counted"):
        simulate(replace(QUICK, doc_tokens=1 << 30, requests=20_000, policy=("lru",)))


def test_hashes_of_single_blocks_are_chained_and_that_is_said(tmp_path):
    # Block 2 comes behind 1 and behind 3: the same tokens, but not the same prefix.
    path = tmp_path / "blocks.jsonl"
    rows = [{"input_length": 33, "hash_ids": ids, "chat_id": 1} for ids in ([1, 2, 9], [3, 2, 8])]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    outcome = simulate(Options(trace=str(path), num_blocks=(100,)))

    assert outcome.rows[0].hit_rate == 0
    assert "hashes of single blocks" in outcome.notes[0]


def test_an_exponent_is_fitted_to_a_log(log):
    fit = simulate(Options(trace=log, fit_zipf=True, budget=(GIB,))).fit

    assert 1.0 < fit.skew < 2.0
    assert fit.error > 0


def test_unequal_documents_of_a_pool_are_exact_above_the_largest():
    options = replace(
        QUICK, doc_tokens=Lengths(100, 3_000), policy=("lru",), budget=(GIB // 4, 2 * GIB)
    )

    outcome = simulate(options)

    small = [row.hit_rate for row in outcome.rows if row.budget_bytes == GIB // 4]
    large = [row.hit_rate for row in outcome.rows if row.budget_bytes == 2 * GIB]
    assert all(a <= b for a, b in zip(small, large, strict=True))
    assert any("differ in length" in note for note in outcome.notes)
    assert any("less than the largest document" in note for note in outcome.notes)


def test_a_curve_of_unequal_documents_begins_at_the_largest():
    options = replace(
        QUICK, doc_tokens=Lengths(100, 3_000), policy=("lru", "fifo"), budget=None, curve=True
    )

    outcome = simulate(replace(options, requests=100, seeds=1))

    largest = max(group.largest_bytes for group in outcome.groups)
    assert outcome.plan.budgets[0] >= largest
    assert len(outcome.rows) == 2 * 3 * len(outcome.plan.budgets)


class Reversed(Executor):
    """Runs jobs in the opposite order, each through pickle, as a distant worker would."""

    def __init__(self):
        self.waiting = []

    def submit(self, function, /, *args, **kwargs):
        future = Future()
        self.waiting.append((future, pickle.dumps((function, args, kwargs))))
        return future

    def run(self):
        for future, call in reversed(self.waiting):
            function, args, kwargs = pickle.loads(call)
            future.set_result(function(*args, **kwargs))


def test_results_do_not_depend_on_the_order_of_the_jobs():
    class Later(Reversed):
        jobs = 0

        def submit(self, function, /, *args, **kwargs):
            future = super().submit(function, *args, **kwargs)
            Later.jobs += 1
            if Later.jobs in (3, 21):  # all LRU jobs are there, then all others
                self.run()
                self.waiting.clear()
            return future

    assert table(simulate(QUICK, Later())) == table(simulate(QUICK))


def test_results_are_the_same_on_threads_and_on_processes():
    here = table(simulate(QUICK))

    with ThreadPoolExecutor(3) as threads:
        assert table(simulate(QUICK, threads)) == here
    with ProcessPoolExecutor(2, get_context("spawn")) as processes:
        assert table(simulate(QUICK, processes)) == here


def test_results_are_the_same_on_a_dask_cluster():
    distributed = pytest.importorskip("distributed", reason="needs dask[distributed]")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = table(simulate(QUICK, client.get_executor()))

    assert found == table(simulate(QUICK))


def test_a_run_answers_from_what_has_finished():
    run = Run(settle(QUICK))
    steps = run.advance()

    next(steps)

    outcome = run.outcome()
    assert not outcome.complete
    assert {row.policy for row in outcome.rows} == {"lru"}
    assert {row.seeds for row in outcome.rows} == {1}
    for _ in steps:
        pass
    assert run.outcome().complete
    assert run.done == run.jobs == 3 + 3 * 3 * 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"budget": (GIB // 1024,)}, "is less than one document, padded to pages of 16 tokens"),
        ({"requests": 60, "budget": (GIB,)}, "rest on fewer than 100 hits"),
        ({"budget": (GIB,)}, "less than two prompts"),
        ({"warmup": 0.0}, "does not fill the cache"),
        ({}, "Eq. 3"),
        ({}, "--trace"),
    ],
)
def test_notes_say_what_a_reader_must_know(change, words):
    outcome = simulate(replace(QUICK, policy=("lru",), **change))

    assert any(words in note for note in outcome.notes)
    assert len(set(outcome.notes)) == len(outcome.notes)


def test_the_block_floor_of_a_trace_is_named(tmp_path):
    path = tmp_path / "blocks.jsonl"
    rows = [
        {"input_length": 240, "output_length": 9, "hash_ids": [n], "timestamp": n} for n in range(3)
    ]
    rows.append({"input_length": 900, "output_length": 9, "hash_ids": [7, 8], "timestamp": 9})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    outcome = simulate(Options(trace=str(path), num_blocks=(1, 3)))

    assert any("3 of 4 prompts have fewer than 513 tokens" in note for note in outcome.notes)
    assert any("may need 2 blocks, more than 64.00 MiB" in note for note in outcome.notes)
    assert {row.hit_rate for row in outcome.rows} == {0.0}


@pytest.mark.parametrize("rule", ["lazy", "position-aware", "two-copy"])
def test_rules_that_cut_a_recurrent_model_apart_are_refused_by_name(rule):
    with pytest.raises(UsageError, match=f"'{rule}' does not work with nemotron"):
        settle(Options(model="nemotron-nano-9b-v2", reuse=(rule,)))


def test_prefix_reuse_of_a_recurrent_model_counts_its_state():
    outcome = simulate(
        Options(
            model="nemotron-nano-9b-v2", reuse=("prefix",), requests=200, seeds=1, budget=(GIB,)
        )
    )

    assert outcome.rows[0].budget_entries > 0


def test_a_sliding_window_bounds_the_bytes_of_a_document():
    # gpt-oss-120b: 18 full layers and 18 with a window of 128; 8 heads x 64 x 2 sides x 2 B.
    study = settle(Options(model="gpt-oss-120b", doc_tokens=1_024))

    row_bytes = 2 * 8 * 64 * 2
    assert study.plan.entry_bytes(np.array([1_024])).tolist() == [
        18 * row_bytes * 1_024 + 18 * row_bytes * 128
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(preset="table"), "no preset named 'table'"),
        (Options(reuse=("lasy",)), "no reuse rule named 'lasy'"),
        (Options(policy=("mru",)), "no policy named 'mru'"),
        (Options(order="random"), "--order 'random'"),
        (Options(lookup="all"), "--lookup 'all'"),
        (Options(duplicates="some"), "--duplicates 'some'"),
        (Options(warmup=1.0), "warm-up of '1'"),
        (Options(target_hit=0.0), "hit rate of '0'"),
        (Options(target_hit=0.5, policy=("fifo",)), "lru only"),
        (Options(curve=True, budget=(1,)), "more than one of"),
        (Options(fit_zipf=True), "--fit-zipf needs a trace"),
        (Options(engine_opt={"pinned": 2}), "is for block traces"),
        (Options(seed=-1), "'-1' is no seed"),
        (Options(tp=3), "tp 3 does not divide"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused_before_anything_runs(options, message):
    with pytest.raises(UsageError, match=message):
        settle(options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zipf": (1.0,)}, "--zipf does not go with --trace"),
        ({"preset": "headline"}, "--preset does not go with --trace"),
        ({"duplicates": "distinct"}, "--duplicates 'distinct' does not go"),
    ],
)
def test_a_trace_brings_its_own_requests(log, change, message):
    with pytest.raises(UsageError, match=message):
        settle(Options(trace=log, **change))
