"""kvtool audit: what is read from logs, what is predicted, and what a hostile file can do."""

from __future__ import annotations

import json
import os
import resource
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.api.audit import VERDICTS, audit
from kvtool.auditing.findings import Prediction, judge
from kvtool.engines.logs import GIB, MAX_FIGURES, MAX_STARTS, Figure, Log, read_log, whole_lines
from kvtool.errors import UsageError

LOGS = Path(__file__).parent / "golden" / "logs"
RECORDS = json.loads((LOGS / "ground_truth.json").read_text("utf-8"))
KEYS = ("figure", "printed", "predicted", "difference", "relative", "verdict", "why")


def rows(*lines: str, **options: Any) -> list[dict[str, Any]]:
    return audit(["\n".join(lines).encode()], **options).results


def verdicts(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["figure"], row["verdict"]) for row in found]


CONFIG = (
    "INFO [core.py] Initializing a V1 LLM engine (v0.19.0) with config:"
    " model='meta-llama/Llama-3.1-8B-Instruct', dtype=torch.bfloat16, max_seq_len=8192,"
    " tensor_parallel_size=1, quantization=None, kv_cache_dtype=auto"
)
POOL = "INFO [gpu_worker.py] Available KV cache memory: 58.11 GiB"
TOKENS = "INFO [kv_cache_utils.py] GPU KV cache size: 476,016 tokens"
CONCURRENCY = "INFO [kv] Maximum concurrency for 8,192 tokens per request: 58.11x"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])
def test_a_posted_log_gets_its_verdicts(record: dict[str, Any]) -> None:
    """Figures that users posted, each with its source; docs/engines/ground-truth.md lists them."""
    found = rows(*record["lines"], model=record["model"], gpu=record["gpu"])

    got = [[row["figure"], row["printed"], row["predicted"], row["verdict"]] for row in found]
    assert got == [finding[:4] for finding in record["findings"]]
    assert record["source"]


def test_what_differs_from_posted_logs_has_a_reason_and_all_else_is_explained() -> None:
    differing = [r for r in RECORDS if any(f[3] == "differ" for f in r["findings"])]
    unknown = [f for r in RECORDS for f in r["findings"] if f[3] == "unknown"]

    assert all(record["reason"] for record in differing)
    assert all(why for *_, why in unknown)
    assert len(differing) <= 10


def test_posted_exact_figures_agree_unless_ranks_are_mixed() -> None:
    """Tokens, blocks, concurrency and needs of records with a card: to the printed rounding."""
    exact = {"tokens", "blocks", "concurrency", "needed", "kv_self", "k_size", "v_size", "kv_size",
             "window_pools", "conv_state", "ssm_state"}  # fmt: skip
    found = [
        (record["id"], verdict)
        for record in RECORDS
        for figure, _, predicted, verdict, _ in record["findings"]
        if figure in exact and predicted is not None and "reason" not in record
    ]

    assert len(found) >= 100
    assert {verdict for _, verdict in found} == {"agree", "within-range"}
    assert {name for name, verdict in found if verdict == "within-range"} == {
        "vllm-21348-qwen3-235b-fp8-tp4"
    }


EXCERPTS = {
    "vllm_0.31_a100.log": ({"gpu": "a100-sxm-80gb"},
                           {"agree": 2, "within-range": 3, "unknown": 2}),
    "vllm_0.10_llava.log": ({"gpu": "h100", "model": "mistral-7b-v0.2"},
                            {"agree": 3, "within-range": 1, "differ": 2, "unknown": 3}),
    "vllm_refused.log": ({"model": "qwen3-8b"}, {"agree": 2, "unknown": 1}),
    "sglang_mimo.log": ({}, {"agree": 10, "unknown": 2}),
    "vllm_v1_two_engines.log": ({"gpu": "h100"}, {"agree": 4, "within-range": 1, "unknown": 1}),
    "vllm_ranks.log": ({"model": "qwen3-235b-a22b-fp8"},
                       {"agree": 2, "within-range": 2, "unknown": 2}),
    "vllm_v0.log": ({}, {"agree": 5, "unknown": 2}),
    "llamacpp_windows.log": ({}, {"agree": 8}),
    "llamacpp_hybrid.log": ({}, {"agree": 6}),
    "llamacpp_two_models.log": ({}, {"agree": 6}),
    "llamacpp_server_qwen35.log": ({"model": "qwen3.5-9b"}, {"agree": 5}),
    "llamacpp_tiny_gemma3.log": ({}, {"agree": 8}),
    "llamacpp_tiny_lfm2.log": ({}, {"agree": 6}),
    "llamacpp_tiny_qwen35.log": ({}, {"agree": 6}),
    "llamacpp_tiny_deepseek2.log": ({}, {"agree": 3}),
    "ik_deepseek.log": ({}, {"agree": 2}),
    "sglang_kimi.log": ({}, {"agree": 1, "within-range": 1, "unknown": 1}),
    "trtllm_llama.log": ({"model": "llama-3-8b"}, {"agree": 1, "unknown": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", EXCERPTS)
def test_an_excerpt_gets_its_verdicts(name: str) -> None:
    """Logs in the engines' own formats; the first line of each file names its source."""
    options, expected = EXCERPTS[name]

    report = audit(str(LOGS / name), **options)

    assert {k: n for k, n in report.beside["verdicts"].items() if n} == expected
    assert report.beside["log"]["cut"] == 0


def test_every_excerpt_is_tested() -> None:
    assert sorted(EXCERPTS) == sorted(path.name for path in LOGS.glob("*.log"))


def test_a_row_has_the_documented_keys_in_base_units() -> None:
    (pool, tokens, concurrency) = rows(CONFIG, POOL, TOKENS, CONCURRENCY, gpu="h100",
                                       gpu_fraction=0.95)  # fmt: skip

    assert set(KEYS) <= set(pool)
    assert pool["printed"] == round(58.11 * GIB)
    assert isinstance(pool["predicted"], int)
    assert tokens["printed"] == 476_016
    assert tokens["difference"] == tokens["predicted"] - tokens["printed"]
    assert tokens["relative"] == tokens["difference"] / tokens["printed"]
    assert isinstance(concurrency["printed"], float)
    assert {row["verdict"] for row in (pool, tokens, concurrency)} <= set(VERDICTS)


def test_tokens_follow_from_the_pool_printed_above_and_not_from_an_estimate() -> None:
    """A wrong pool shows at the pool alone: the tokens below it are right for it."""
    small = "INFO Available KV cache memory: 29.05 GiB"

    found = rows(CONFIG, small, "INFO GPU KV cache size: 237,968 tokens", gpu="h100",
                 gpu_fraction=0.95)  # fmt: skip

    assert verdicts(found)[-1] == ("tokens", "agree")


def test_a_token_count_that_the_pool_cannot_hold_differs() -> None:
    found = rows(CONFIG, POOL, "INFO GPU KV cache size: 500,000 tokens")

    assert verdicts(found)[-1] == ("tokens", "differ")


def test_a_block_more_or_less_than_rounding_allows_differs() -> None:
    """58.11 GiB is 476,032 tokens, 58.105 GiB 475,984 and 58.115 GiB 476,064."""
    judged = {
        tokens: verdicts(rows(CONFIG, POOL, f"INFO GPU KV cache size: {tokens:,} tokens"))[-1][1]
        for tokens in (475_952, 475_984, 476_064, 476_096)
    }

    assert judged == {475_952: "differ", 475_984: "agree", 476_064: "agree", 476_096: "differ"}


def test_colours_prefixes_and_carriage_returns_do_not_hide_a_figure() -> None:
    text = (
        f"2026-01-01T00:00:00Z stdout F \x1b[1;36m(EngineCore_DP0 pid=9)\x1b[0;0m {CONFIG}\r\n"
        f"\rLoading: 50%|##\rLoading: 100%|####\r{POOL}\x1b[K\n"
    )

    assert verdicts(audit([text.encode()]).results) == [("pool", "unknown")]


def test_workers_and_replicas_are_told_apart() -> None:
    lines = [
        CONFIG,
        "(EngineCore_DP0 pid=1) " + POOL,
        "(EngineCore_DP0 pid=1) " + TOKENS,
        "(EngineCore_DP1 pid=2) INFO Available KV cache memory: 29.05 GiB",
        "(EngineCore_DP1 pid=2) INFO GPU KV cache size: 237,968 tokens",
    ]

    found = rows(*lines)

    assert [(row["start"], row["figure"], row["verdict"]) for row in found] == [
        (1, "pool", "unknown"),
        (1, "tokens", "agree"),
        (2, "pool", "unknown"),
        (2, "tokens", "agree"),
    ]


def test_interleaved_ranks_are_held_against_their_own_pool() -> None:
    config = CONFIG.replace("size=1", "size=2")
    lines = [
        config,
        "(Worker_TP0 pid=1) INFO Available KV cache memory: 20.00 GiB",
        "(Worker_TP1 pid=2) INFO Available KV cache memory: 19.00 GiB",
        "(Worker_TP1 pid=2) INFO GPU KV cache size: 311,296 tokens",
        "(Worker_TP0 pid=1) INFO GPU KV cache size: 327,680 tokens",
    ]

    found = rows(*lines)

    assert [(row["rank"], row["verdict"]) for row in found if row["figure"] == "tokens"] == [
        ("TP1", "agree"),
        ("TP0", "agree"),
    ]


def test_a_log_without_version_is_held_against_every_releases_rules() -> None:
    """vLLM before 0.21 counts blocks of a group; hf-mem pull request 61: Gemma 4 31B, 24.54 GiB."""
    config = "Initializing a V1 LLM engine with config: model='google/gemma-4-31B-it'"

    found = rows(config, "INFO Available KV cache memory: 24.54 GiB",
                 "INFO GPU KV cache size: 26,800 tokens")  # fmt: skip

    assert verdicts(found)[-1] == ("tokens", "agree")
    assert "no version in the log" in found[-1]["why"]


def test_the_user_knows_better_than_the_log() -> None:
    lines = [CONFIG, POOL, "INFO GPU KV cache size: 1,088,080 tokens"]

    assert verdicts(rows(*lines))[-1][1] == "differ"
    assert verdicts(rows(*lines, model="qwen2.5-7b-instruct"))[-1][1] == "agree"


def test_an_unknown_model_makes_figures_unknown_and_says_what_to_do() -> None:
    found = rows(CONFIG.replace("meta-llama/Llama-3.1-8B-Instruct", "acme/secret-9b"), POOL, TOKENS)

    assert {row["verdict"] for row in found} == {"unknown"}
    assert all("acme/secret-9b" in row["why"] and "--model" in row["why"] for row in found)


def test_a_path_in_a_log_is_never_opened(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama"}')

    found = rows(CONFIG.replace("meta-llama/Llama-3.1-8B-Instruct", str(tmp_path)), POOL)

    assert found[0]["verdict"] == "unknown"
    assert "no card" in found[0]["why"]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("tensor_parallel_size=7", "tp 7 does not divide"),
        ("tensor_parallel_size=999999999", "tp is 999999999"),
        ("kv_cache_dtype=fp3", "no dtype named 'fp3'"),
        ("block_size=banana", "block_size cannot be 'banana'"),
    ],
)
def test_settings_that_cannot_be_are_reported_and_not_raised(config: str, reason: str) -> None:
    name = config.partition("=")[0]
    line = f"{CONFIG.replace(name, 'other')}, {config}"

    found = rows(line, POOL, TOKENS)

    assert {row["verdict"] for row in found} == {"unknown"}
    assert all(reason in row["why"] for row in found)


def test_lines_that_cannot_be_used_are_counted() -> None:
    report = audit([f"{CONFIG}\nGPU KV cache size: many tokens\nhello\n{TOKENS}\n".encode()])

    assert report.beside["log"] == {
        "lines": 4, "used": 2, "not_used": 1, "cut": 0, "starts": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    "setting",
    [
        "device_memory_gib=inf", "device_memory_gib=nan", "swap_space=inf", "max_seq_len=0",
        "max_seq_len=999999999999999999", "gpu_memory_utilization=inf", "kv_cache_dtype=''",
        "pipeline_parallel_size=999", "num_speculative_tokens=9999999", "dtype=torch.void",
    ],
)  # fmt: skip
def test_absurd_settings_do_no_harm(setting: str) -> None:
    blocks = "# GPU blocks: 29,751, # CPU blocks: 2048"

    found = rows(f"{CONFIG}, {setting}", POOL, blocks, TOKENS, CONCURRENCY, gpu="h100")

    assert len(found) == 5


def test_a_hybrid_that_reuses_prefixes_is_held_against_the_ways_to_keep_states() -> None:
    """vLLM 0.22 does not log that it keeps two states of a request (align mode)."""
    lines = (
        "Initializing a V1 LLM engine (v0.22.1) with config:"
        " model='Qwen/Qwen3-Next-80B-A3B-Instruct', max_seq_len=32768, enable_prefix_caching=True",
        "Available KV cache memory: 72.40 GiB",
        "GPU KV cache size: 1,000,000 tokens",
    )

    named = rows(*lines, engine_opt=["mamba_cache_mode=align"])[-1]["predicted"]
    found = rows(*lines)[-1]

    assert found["predicted"] == named


def test_the_context_that_drafts_is_one_of_the_models_mtp_layers() -> None:
    """Qwythos 27B with MTP at 262,144 cells, 6 drafted tokens (public file, id 57918538511); the
    architecture is Qwen3.5 27B's. Its drafter may have a cache type of its own."""
    shape = {"arch": "qwen35", "n_layer": 64, "n_layer_all": 65, "n_head": 24, "n_head_kv": 4,
             "n_embd_head_k": 256, "n_embd_head_v": 256, "ssm_d_conv": 4, "ssm_d_inner": 6144,
             "ssm_d_state": 128, "ssm_dt_rank": 48, "ssm_n_group": 16}  # fmt: skip
    lines = [
        "llama_model_loader: loaded meta data with 44 key-value pairs and 866 tensors from q.gguf",
        "llama_model_loader: - kv  17: qwen35.nextn_predict_layers u32 = 1",
        *(f"print_info: {name} = {value}" for name, value in shape.items()),
        "llama_context: constructing llama_context",
        "llama_context: n_seq_max = 1",
        "llama_context: n_ctx = 262144",
        "llama_context: n_rs_seq = 6",
        "llama_kv_cache: size = 16384.00 MiB (262144 cells,  16 layers,  1/1 seqs),"
        " K (f16): 8192.00 MiB, V (f16): 8192.00 MiB",
        "llama_memory_recurrent: size = 1047.38 MiB (     1 cells,  64 layers,  1 seqs  6 rs_seq),"
        " R (f32):   39.38 MiB, S (f32): 1008.00 MiB",
        "llama_context: constructing llama_context",
        "llama_context: n_ctx = 262144",
        "llama_kv_cache: size = 1024.00 MiB (262144 cells,   1 layers,  1/1 seqs),"
        " K (f16):  512.00 MiB, V (f16):  512.00 MiB",
        "llama_context: constructing llama_context",
        "llama_kv_cache: size =  544.00 MiB (262144 cells,   1 layers,  1/1 seqs),"
        " K (q8_0):  272.00 MiB, V (q8_0):  272.00 MiB",
    ]

    found = rows(*lines)

    assert [(row["start"], row["verdict"]) for row in found] == [
        (start, "agree") for start in (1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3)
    ]


def test_a_cache_without_layers_is_empty() -> None:
    """The base cache of a model whose layers all slide (ggml-org/llama.cpp issue 22319)."""
    found = rows(
        "print_info: arch = llama", "print_info: n_layer = 2", "print_info: n_head = 4",
        "print_info: n_head_kv = 4", "print_info: n_embd_head_k = 64",
        "llama_kv_cache: size =    0.00 MiB (393216 cells,   0 layers,  4/1 seqs),"
        " K (f16):    0.00 MiB, V (f16):    0.00 MiB",
    )  # fmt: skip

    assert {row["verdict"] for row in found} == {"agree"}


def test_an_empty_log_is_no_fault() -> None:
    report = audit([b""])

    assert report.results == []
    assert report.warnings == ["no figure of an engine's start-up was found"]


FIGURE = st.builds(
    Figure, st.just("pool"), st.floats(1, 1e12), st.floats(0, 1e9), st.just(""), st.just(1)
)


@given(figure=FIGURE, off=st.floats(-2, 2))
def test_rounding_alone_never_differs(figure: Figure, off: float) -> None:
    value = figure.value + off * figure.half

    found = judge(figure, Prediction.exact(value))

    assert (found.verdict == "agree") == (figure.low <= value <= figure.high)


@given(st.lists(st.binary(max_size=400), max_size=20))
@settings(max_examples=60)
def test_any_bytes_are_read_without_a_fault(chunks: list[bytes]) -> None:
    words = [b"Available KV cache memory: ", b"llama_kv_cache: size = ", b"\x1b[31m", b"GiB\n"]
    mixed = [part for pair in zip(chunks, words * 5, strict=False) for part in pair]

    report = audit(mixed)

    assert report.beside["log"]["lines"] >= 0


TEXTS = [(LOGS / name).read_bytes() for name in EXCERPTS]


@given(st.sampled_from(TEXTS), st.integers(0, 6000), st.integers(0, 6000), st.binary(max_size=9))
@settings(max_examples=60, deadline=None)
def test_truncated_and_damaged_logs_are_read_without_a_fault(
    text: bytes, start: int, stop: int, noise: bytes
) -> None:
    audit([text[start:], text[:stop] + noise + text[stop:]])


@given(st.binary(max_size=600), st.lists(st.integers(1, 50), max_size=20))
def test_lines_do_not_depend_on_how_the_stream_is_cut(data: bytes, sizes: list[int]) -> None:
    data = data.replace(b"\r", b"")
    chunks, at = [], 0
    for size in sizes:
        chunks.append(data[at : at + size])
        at += size
    chunks.append(data[at:])

    joined = b"".join(whole_lines(chunks, Log()))

    assert joined.rstrip(b"\n") == data.rstrip(b"\n")


def megabytes(count: int, body: bytes) -> Iterator[bytes]:
    """A stream of that many pieces of about 1 MiB between two lines that matter."""
    yield (CONFIG + "\n" + POOL + "\n").encode()
    for _ in range(count):
        yield body
    yield ("\n" + TOKENS + "\n").encode()


SERVING = b'INFO 127.0.0.1 - "POST /v1/completions HTTP/1.1" 200 OK, GPU KV cache usage: 3.2%\n'
BODIES = {
    "requests": SERVING * ((1 << 20) // len(SERVING)),
    "binary": os.urandom(1 << 20),
    "one line": b"x" * (1 << 20),
    "zeros": bytes(1 << 20),
    "figures": b"".join(b"GPU KV cache size: %d tokens\n" % n for n in range(9000)),
    "starts": b"".join(
        b"vLLM API server version 0.%d\nGPU KV cache size: 16 tokens\n" % n for n in range(5000)
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_long_log_takes_bounded_memory(name: str) -> None:
    tracemalloc.start()

    log = read_log(megabytes(2, BODIES[name]))

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20
    assert len(log.starts) <= MAX_STARTS
    assert all(len(start.figures) <= MAX_FIGURES for start in log.starts)


def test_two_hundred_megabytes_of_requests_are_read_in_seconds() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()

    report = audit(megabytes(200, BODIES["requests"]))

    assert verdicts(report.results) == [("pool", "unknown"), ("tokens", "agree")]
    assert time.perf_counter() - begun < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_a_line_without_end_is_cut_and_the_next_one_read() -> None:
    report = audit([b"x" * (1 << 20), b"x" * (1 << 20), b"\n", TOKENS.encode(), b"\n"])

    assert report.beside["log"]["cut"] == 1
    assert [row["printed"] for row in report.results] == [476_016]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "llama"}, "no log of an engine named 'llama'"),
        ({"engine": "vllm@x"}, "not a vLLM version"),
        ({"gpu": "h900"}, "h900"),
        ({"ctx": "lots"}, "not a number of tokens"),
        ({"engine_opt": ["block_size"]}, "not an engine option"),
        ({"engine_opt": ["blok_size=16"]}, "no engine has an option 'blok_size'"),
        ({"engine_opt": ["block_size=many"]}, "block_size cannot be 'many'"),
        ({"tp": 0}, "tp is 0"),
        ({"gpu_fraction": 2.0}, "no fraction of the memory"),
        ({"kv_dtype": "fp3"}, "no dtype named 'fp3'"),
    ],
)
def test_arguments_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        audit([b""], **options)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.log"):
        with pytest.raises(UsageError, match="cannot read"):
            audit(str(path))
