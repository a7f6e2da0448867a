"""A small decoder: exact counts, the same logits under every kernel, and the growth of time."""

import pytest
import torch

from kvtool.benchmark import decoder
from kvtool.benchmark.cases import Heads
from kvtool.benchmark.decoder import Attention, Clock, Decoder, Shape
from kvtool.benchmark.generate import fit, generate, operations, prefixes
from kvtool.errors import UsageError

pytest.importorskip("transformers", reason="the bench extra is not installed")

CPU = torch.device("cpu")
SHAPE = Shape(Heads(4, 2, 16, "toy"), layers=2, intermediate_size=64)
SETTINGS = {"frame_tokens": 4, "dtype": "float32", "device": CPU, "seed": 0}


def test_a_hundred_tokens_take_5050_rows_without_a_cache_and_100_with_one():
    # domain: 1 + 2 + ... + 100 = 5050
    assert operations("naive", 100)["query_rows"] == 5050
    assert operations("cached", 100)["query_rows"] == 100
    assert operations("naive", 100)["scores"] == sum(t * t for t in range(1, 101))
    assert operations("flash", 100)["scores"] == 5050


@pytest.mark.parametrize("kernel", ["naive", "cached", "flash", "lazy"])
def test_counts_are_those_of_the_calls_the_decoder_makes(kernel, monkeypatch):
    calls = []
    original = Attention.__call__

    def counting(self, layer, q, k, v):
        if layer == 0:
            keys = self._first + k.shape[1]
            calls.append((q.shape[1], k.shape[1], q.shape[1] * keys))
        return original(self, layer, q, k, v)

    monkeypatch.setattr(decoder.Attention, "__call__", counting)
    (row,) = generate([kernel], SHAPE, tokens=12, **SETTINGS)
    decoding = calls[-12:]

    assert [sum(column) for column in zip(*decoding, strict=True)] == [
        row["query_rows"],
        row["key_rows"],
        row["scores"],
    ]


def test_all_kernels_agree_with_the_reference_decoder():
    rows = list(generate(["naive", "cached", "flash", "lazy"], SHAPE, tokens=20, **SETTINGS))

    assert [r["gate"] for r in rows] == ["pass"] * 4
    assert all(r["tokens_per_s"] > 0 for r in rows)
    assert all(0 < r["attention_s"] < r["total_s"] for r in rows)


def test_a_kernel_that_disagrees_gets_no_speed(monkeypatch):
    original = Attention.__call__

    def wrong(self, layer, q, k, v):
        factor = 1.01 if self.kernel == "flash" else 1.0
        return original(self, layer, q, k, v) * factor

    monkeypatch.setattr(decoder.Attention, "__call__", wrong)
    rows = list(
        generate(
            ["cached", "flash"],
            SHAPE,
            tokens=10,
            frame_tokens=4,
            dtype="float32",
            device=CPU,
            seed=0,
        )
    )

    assert [r["gate"] for r in rows] == ["pass", "fail"]
    assert rows[1]["tokens_per_s"] is None
    assert rows[1]["relative_error"] > 1e-4


def test_prompts_in_one_piece_equal_prompts_token_by_token():
    model = Decoder(SHAPE, max_tokens=16, dtype=torch.float32, device=CPU, seed=2)
    ids = torch.arange(11)[None]

    def attention():
        return Attention(
            "lazy", SHAPE, max_tokens=16, frame_tokens=4, dtype=torch.float32, device=CPU
        )

    whole = model.step(ids, 0, attention())[0, -1]
    kept = attention()
    for position in range(11):
        last = model.step(ids[:, position : position + 1], position, kept)[0, -1]

    assert torch.allclose(whole, last, atol=1e-5)


PREFIXES = [8, 16, 32, 64, 128, 256, 512]


@pytest.mark.parametrize(
    ("fixed", "slope", "power"),
    [(0.0, 1e-9, 2.0), (1e-4, 1e-9, 2.0), (5e-5, 4e-7, 1.0), (0.0, 3e-8, 1.5)],
)
def test_the_fit_recovers_fixed_cost_and_power(fixed, slope, power):
    growth = fit([(t, fixed + slope * t**power) for t in PREFIXES])

    assert growth.power == pytest.approx(power, abs=0.02)
    assert growth.fixed_s == pytest.approx(fixed, abs=0.01 * (fixed + slope * 512**power))


def test_the_fit_bears_a_few_percent_of_noise():
    noise = [1.03, 0.97, 1.02, 1.0, 0.98, 1.02, 0.99]

    growth = fit([(t, (1e-5 + 2e-9 * t**2) * e) for t, e in zip(PREFIXES, noise, strict=True)])

    assert growth.power == pytest.approx(2.0, abs=0.2)


def test_a_few_steps_have_no_exponent():
    assert fit([(8, 1e-6), (16, 2e-6), (32, 4e-6)]) is None


def test_constant_times_do_not_grow():
    growth = fit([(t, 1e-4) for t in PREFIXES])

    assert growth is None or growth.fixed_share(512) > 0.99


@pytest.mark.parametrize("tokens", [8, 100, 512, 5000])
def test_prefixes_end_with_the_last_step_and_begin_short(tokens):
    found = prefixes(tokens)

    assert found[-1] == tokens
    assert found[0] == 8
    assert found == sorted(set(found))


@pytest.mark.parametrize("kernel", ["naive", "cached", "flash", "lazy"])
def test_a_step_timed_alone_has_the_shape_of_a_decoded_one(kernel):
    attention = Attention(
        kernel, SHAPE, max_tokens=16, frame_tokens=4, dtype=torch.float32, device=CPU
    )

    rows = 11 if kernel == "naive" else 1
    assert attention.call_at(11)().shape == (1, rows, 4, 16)


def test_too_few_tokens_are_refused():
    with pytest.raises(UsageError, match="--generate 3 is too short"):
        next(
            generate(
                ["cached"], SHAPE, tokens=3, frame_tokens=4, dtype="float32", device=CPU, seed=0
            )
        )


def test_the_clock_adds_up_and_starts_over():
    clock = Clock(CPU)

    with clock:
        sum(range(1000))
    with clock:
        sum(range(1000))

    assert clock.read() > 0
    assert clock.read() == 0
