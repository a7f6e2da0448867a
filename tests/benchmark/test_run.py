"""A run on small shapes: who passes gets a speed, who fails does not, and one case is one loss."""

import dataclasses

import pytest
import torch

from kvtool.benchmark import candidates
from kvtool.benchmark.cases import Case, Heads
from kvtool.benchmark.contenders import Contender, Prepared, ours
from kvtool.benchmark.peers import select
from kvtool.benchmark.run import Effort, gates_passed, run
from kvtool.errors import UsageError
from kvtool.roofline import Roof

CPU = torch.device("cpu")
ROOF = Roof(flops_per_s=1e11, bandwidth_bytes_per_s=1e10)
QUICK = Effort(budget_s=0.0, max_samples=3)
LAYOUTS = {"prefill": "plain", "decode": "plain"}


def case(phase="decode", dtype="float32", kv_dtype=None, context=80, head_dim=32):
    heads = Heads(4, 2, head_dim, "toy")
    return Case(phase, 2, context, heads, dtype, kv_dtype or dtype, 16, 32)


def results(cases, contenders):
    return list(run(cases, contenders, device=CPU, roof=ROOF, effort=QUICK))


def foreign(prepare, name="other", **fields):
    return Contender(name, LAYOUTS, prepare, lambda case, variant: 1, **fields)


def cached(layout):
    return ours(["cached"])[0].prepare(layout)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_kernels_and_the_peer_pass_and_are_timed(phase, dtype):
    contenders = ours(["naive", "cached", "flash", "lazy"]) + select(["sdpa-flash"], "cpu")[0]

    (result,) = results([case(phase, dtype)], contenders)

    assert [r["faults"] for r in result.rows] == [[]] * 5
    assert all(r["median_s"] > 0 for r in result.rows)
    assert not result.left_out
    assert gates_passed(result.rows)


def test_prefill_under_a_full_mask_passes_the_gate():
    full = dataclasses.replace(case("prefill"), mask="full")

    (result,) = results([full], ours(["cached", "flash", "lazy"]) + select(["auto"], "cpu")[0])

    assert [r["faults"] for r in result.rows] == [[]] * 4
    assert {r["flops"] for r in result.rows} == {4 * 2 * 4 * 32 * 80 * 80}


@pytest.mark.parametrize("variant", ["rotate-q", "rotate-k", "rematerialise", "merge"])
def test_every_variant_of_lazy_passes_the_gate(variant):
    (result,) = results([case()], ours(["lazy"], [variant]))

    assert result.rows[0]["faults"] == []
    assert result.rows[0]["implementation"] == f"lazy {variant}"
    assert result.rows[0]["variant"] == variant


def test_an_fp8_cache_passes_the_gate():
    (result,) = results([case(dtype="float16", kv_dtype="fp8_e4m3")], ours(["flash", "lazy"]))

    assert [r["faults"] for r in result.rows] == [[], []]


def test_a_wrong_kernel_gets_no_speed_and_the_run_says_so():
    def wrong(layout):
        prepared = cached(layout)
        return Prepared(lambda: prepared.call() * 1.01, "torch")

    (result,) = results([case()], [*ours(["cached"]), foreign(wrong, kernel="cached")])

    good, bad = result.rows
    assert good["median_s"] > 0
    assert bad["median_s"] is None
    assert bad["gate"] == "fail"
    assert not gates_passed(result.rows)


def test_a_kernel_that_is_wrong_on_odd_lengths_alone_fails():
    def even_only(layout):
        prepared = cached(layout)
        odd = layout.k.shape[1] % 2
        return Prepared(lambda: prepared.call() + odd, "torch")

    (result,) = results([case()], [foreign(even_only, kernel="cached", ragged=True)])

    assert any("at lengths (17, 17)" in fault for fault in result.rows[0]["faults"])
    assert result.rows[0]["median_s"] is None


def test_odd_lengths_are_checked_once_for_all_shapes_of_a_kind():
    lengths = []

    def counting(layout):
        lengths.append(layout.k.shape[1])
        return cached(layout)

    found = results([case(), case(context=96), case("prefill")], [foreign(counting)])

    assert [r.rows[0]["gate"] for r in found] == ["pass"] * 3
    assert lengths.count(17) == 2  # decode once, prefill once
    assert lengths.count(80) > 1


def test_a_peer_that_takes_no_short_sequences_is_still_timed():
    def not_one(layout):
        if layout.k.shape[1] == 1:
            raise RuntimeError("No available kernel.")
        return cached(layout)

    (result,) = results([case()], [foreign(not_one)])

    assert result.rows[0]["gate"] == "pass"
    assert result.rows[0]["median_s"] > 0


def test_out_of_memory_loses_one_contender():
    def greedy(layout):
        raise torch.OutOfMemoryError("tried to allocate 1.00 TiB")

    (result,) = results([case()], [foreign(greedy), *ours(["cached"])])

    assert [r["implementation"] for r in result.rows] == ["cached"]
    assert result.lost == [f"other, {case().label}: out of memory"]


def test_out_of_memory_in_the_inputs_loses_one_case(monkeypatch):
    original = candidates.draw

    def draw(**arguments):
        if max(arguments["kv_lens"]) == 4096:
            raise MemoryError
        return original(**arguments)

    monkeypatch.setattr(candidates, "draw", draw)

    first, second, third = results([case(), case(context=4096), case(context=96)], ours(["cached"]))

    assert second.rows == []
    assert second.lost == [f"{case(context=4096).label}: out of memory, the case is lost"]
    assert first.rows
    assert third.rows


def test_scores_that_do_not_fit_are_left_out_with_numbers(monkeypatch):
    monkeypatch.setattr(candidates, "free_bytes", lambda device: 1 << 20)

    (result,) = results([case(context=400)], ours(["naive", "cached"]))

    assert [r["implementation"] for r in result.rows] == ["cached"]
    assert result.left_out[0].startswith("naive, decode B2 S400")
    assert "GiB are free" in result.left_out[0]


def test_a_refusal_of_a_kernel_is_a_line_and_not_a_row():
    def refuse(layout):
        raise UsageError("head_dim 80 is not supported", "use 64 or 128")

    (result,) = results([case()], [foreign(refuse), *ours(["cached"])])

    assert result.left_out == [f"other, {case().label}: head_dim 80 is not supported"]


def test_a_peer_that_breaks_is_left_out_and_a_kernel_of_ours_is_not_excused():
    def broken(layout):
        raise RuntimeError("No available kernel.\nAborting execution.")

    (result,) = results([case()], [foreign(broken)])
    assert result.left_out == [f"other, {case().label}: No available kernel."]

    with pytest.raises(RuntimeError, match="No available kernel"):
        results([case()], [foreign(broken, kernel="flash")])


def test_an_interrupt_keeps_the_results_that_are_finished():
    def interrupt(layout):
        raise KeyboardInterrupt

    stream = run(
        [case("prefill"), case("decode")],
        [dataclasses.replace(foreign(interrupt), layouts={"decode": "plain"}), *ours(["cached"])],
        device=CPU,
        roof=ROOF,
        effort=QUICK,
    )

    finished = next(stream)
    with pytest.raises(KeyboardInterrupt):
        next(stream)

    assert finished.case.phase == "prefill"
    assert finished.rows[0]["gate"] == "pass"


def test_a_contender_without_the_phase_does_not_appear():
    decode_only = dataclasses.replace(foreign(cached), layouts={"decode": "plain"})

    (result,) = results([case("prefill")], [decode_only, *ours(["cached"])])

    assert [r["implementation"] for r in result.rows] == ["cached"]
