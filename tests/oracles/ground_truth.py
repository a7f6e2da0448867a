"""Log excerpts put together from records of what real engines printed, and how they are judged.

    python tests/oracles/ground_truth.py RECORDS_DIR          # writes golden file and table
    python tests/oracles/ground_truth.py RECORDS_DIR --check  # exit code 1 when they differ

RECORDS_DIR holds `engine_logs.jsonl` and `llamacpp_logs.jsonl`: figures that users posted in public
issues, pull requests and pages, one record a line with its source; `vllm_h200_runs.jsonl`: runs of
this project. Every record becomes the lines
that the engine prints, with nothing but the record's own figures in them. The verdicts of
`kvtool audit` on them stand in tests/golden/logs/*.json, which the tests compare, and in
docs/engines/ground-truth.md.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvtool.api.audit import VERDICTS, audit

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "logs"
TABLE = ROOT / "docs" / "engines" / "ground-truth.md"
Record = dict[str, Any]

# Cards of models whose name in the record is no card's name or alias: the same geometry by the
# record's own words.
MODELS = {
    "vllm-recipes-kimi-k2-thinking-tp8": "kimi-k2",
    "vllm-recipes-kimi-k2-thinking-tp8-dcp8": "kimi-k2",
    "vllm-cx-phi4-bnb": "phi-4",
    "vllm-cx-ministral3-14b-tp2": "ministral-3-14b",
    "sglang-cx-kimi-k25-tp8": "kimi-k2.5",
    "sglang-cx-kimi-k26-npu": "kimi-k2",
    "sglang-cx-qwen38-27b-nvfp4-gb10": "qwen3.5-27b",
    "trt-cx-nemotron-llm": "llama-3.1-8b",
    "vllm-2418-alpaca2": "llama-2-7b",
    "vllm-cx-qwen3-235b-2507-fp8-tp4-l40s": "qwen3-235b-a22b-fp8",
    "vllm-cx-qwen3-235b-fp8-tp8-rank0": "qwen3-235b-a22b-fp8",
    "vllm-cx-qwen3-235b-fp8-tp8-rank1": "qwen3-235b-a22b-fp8",
    "vllm-cx-qwen3-235b-awq-tp8-rank0": "qwen3-235b-a22b",
    "vllm-cx-qwen3-235b-awq-tp8-rank1": "qwen3-235b-a22b",
    "vllm-cx-qwen25vl-7b-tp2": "qwen2.5-vl-7b",
    "vllm-cx-qwen25-7b-awq-16gb": "qwen2.5-7b-instruct",
    "vllm-cx-qwen25-15b-awq": "qwen2.5-1.5b-instruct",
    "vllm-mitchross1995-qwen38-27b-fp8": "qwen3.5-27b",
    "vllm-club1087-qwen38-27b-fp8-2x5090": "qwen3.5-27b",
    "sglang-15464-mimo-v2-flash-swa": "mimo-v2-flash",
    "vllm-cx-step37-flash-fp8": "step-3.7-flash-fp8",
    "vllm-cx-step37-flash-nvfp4": "step-3.7-flash-fp8",
    "vllm-34076-qwen3-coder-30b-pp2": "qwen3-30b-a3b",
}
# Devices by their names in the records.
DEVICES = {
    "RTX 4090": "rtx-4090", "RTX 3090": "rtx-3090", "NVIDIA L4": "l4", "8x L40S": "l40s",
    "H100-80GB": "h100", "H100 (79.18 GiB)": "h100", "2x RTX 3090": "rtx-3090",
    "2x RTX 5090": "rtx-5090", "A100 80GB": "a100-sxm-80gb", "4x H100": "h100",
}  # fmt: skip
# Why a prediction differs from a record, where the audit cannot know it.
REASONS = {
    "vllm-llmd-llama31-8b-len8192": "the report quotes two runs, one block apart: tokens of its"
    " table, blocks of its sample lines",
    "vllm-llmservingsim-llama31-8b-4090": "no pool is printed, and the terms of the estimate were"
    " fitted on devices of 80 GB and more",
    "vllm-34076-qwen3-coder-30b-pp2": "the issue reports it as a fault of vLLM 0.15: the check"
    " before the start takes the bytes of all 48 layers for a stage",
    "h200-gemma3-12b-8k": "the run's configuration has rotary tables for 163,840 positions, the"
    " card's for 131,072: 148 MiB",
    "vllm-cx-gemma4-e2b-l4": "1.9 % more than the text model's parameters; not explained",
    "vllm-cx-qwen3-235b-2507-fp8-tp4-l40s": "experts are dealt out over 8 devices, which the"
    " settings quoted do not say",
    "vllm-29796-olmo3-7b-6144": "open: 2.41 GiB a request are less than 8 full layers and 24"
    " windows of 4,096 tokens take; batched tokens are not stated",
    "vllm-29796-olmo3-7b-34048": "open: 5.14 GiB a request, as the record above",
    "sglang-cx-qwen38-27b-nvfp4-gb10": "half the bytes: an fp8 cache, which the checkpoint sets and"
    " the quote does not say",
    "vllm-cx-qwen25-05b-rocm": "a ROCm build that loads 0.07 GiB more; not explained",
}
# The share of memory that the source rounds.
ROUNDED = ("vllm-cx-phi4-bnb",)


def vllm_lines(record: Record) -> Iterator[str]:
    """A start of vLLM with the record's settings and figures."""
    reported, inferred = record["reported"], record.get("inferred") or {}
    version = record.get("engine_version")
    pairs = {
        "model": record.get("model"),
        "dtype": _prefixed("torch.", record.get("dtype")),
        "max_seq_len": record.get("max_model_len"),
        "tensor_parallel_size": record.get("tensor_parallel") or inferred.get("tensor_parallel"),
        "pipeline_parallel_size": record.get("pipeline_parallel"),
        "decode_context_parallel_size": reported.get("dcp_world_size"),
        "quantization": (record.get("quantization") or "").partition(" ")[0] or None,
        "kv_cache_dtype": record.get("kv_cache_dtype"),
        "block_size": _attention_block(record),
        "mamba_ssm_cache_dtype": reported.get("mamba_ssm_cache_dtype"),
    }
    share = record.get("gpu_memory_utilization")
    if record["id"] not in ROUNDED:
        pairs["gpu_memory_utilization"] = share
    pairs |= _noted(record)
    said = ", ".join(f"{name}={value!r}" for name, value in pairs.items() if value is not None)
    named = f"(v{version}) " if version else ""
    yield f"Initializing a V1 LLM engine {named}with config: {said}"
    total = reported.get("total_gpu_memory_gib") or _memory(record)
    if reported.get("device_total_memory_bytes"):
        total = round(reported["device_total_memory_bytes"] / (1 << 30), 2)
    if reported.get("peak_torch_memory_gib") and reported.get("total_gpu_memory_gib"):
        yield (
            f"total_gpu_memory={total}GiB peak_torch_memory={reported['peak_torch_memory_gib']}GiB"
            f" non_torch_memory={reported['non_torch_gib']}GiB"
            f" kv_cache_size={reported['available_kv_gib']}GiB gpu_memory_utilization={share:.2f}"
        )
    elif total and share:
        yield f"total_gpu_memory ({total}GiB) x gpu_memory_utilization ({share:.2f})"
    for name, text in (
        ("weights_gib", "Model loading took {} GiB"),
        ("weights_gb", "Loading model weights took {} GB"),
        ("attention_block_size", "Setting attention block size to {} tokens"),
        ("padding_layers", "Add {} padding layers"),
        ("activation_gib", "PyTorch activation peak memory takes {}GiB"),
        ("non_torch_gib", "non_torch_memory takes {}GiB"),
        ("available_kv_gib", "Available KV cache memory: {} GiB"),
        ("kv_cache_memory_gib", "Available KV cache memory: {} GiB"),
    ):
        if reported.get(name) is not None:
            yield text.format(reported[name])
    yield from _vllm_pool(record)


def _vllm_pool(record: Record) -> Iterator[str]:
    reported, context = record["reported"], record.get("max_model_len")
    blocks = reported.get("num_gpu_blocks") or reported.get("num_gpu_blocks_log")
    cpu = reported.get("num_cpu_blocks")
    if blocks:
        yield f"# GPU blocks: {blocks}" + (f", # CPU blocks: {cpu}" if cpu else "")
    if reported.get("kv_cache_tokens"):
        yield f"GPU KV cache size: {reported['kv_cache_tokens']:,} tokens"
    if reported.get("max_concurrency") and context:
        shown = f"{reported['max_concurrency']:.2f}"
        yield f"Maximum concurrency for {context:,} tokens per request: {shown}x"
    if reported.get("kv_needed_gib"):
        yield (
            f"max seq len ({context}), ({reported['kv_needed_gib']} GiB KV cache is needed, which"
            f" is larger than the available KV cache memory ({reported['available_kv_gib']} GiB)"
        )
    if reported.get("estimated_max_model_len"):
        yield f"the estimated maximum model length is {reported['estimated_max_model_len']}"


def _prefixed(prefix: str, text: str | None) -> str | None:
    return f"{prefix}{text}" if text else None


def _attention_block(record: Record) -> int | None:
    """The block size that was set; one that the engine raised for recurrent states is not."""
    raised = "attention_block_size" in record["reported"] or "hybrid" in record.get(
        "architecture_class", ""
    )
    return None if raised else record.get("block_size")


def _noted(record: Record) -> Record:
    """Settings that the note states in the spelling of the engine."""
    note = record.get("note") or ""
    found = re.search(r"max_num_batched_tokens (\d+)", note)
    batched = {"max_num_batched_tokens": found[1]} if found else {}
    seqs = re.search(r"max_num_seqs (\d+)", note)
    return batched | ({"max_num_seqs": seqs[1]} if seqs else {}) | (
        {"enforce_eager": True} if "enforce-eager" in note else {}
    ) | ({"language_model_only": True} if "language-model-only" in note else {})  # fmt: skip


def _memory(record: Record) -> str | None:
    found = re.search(r"\(([0-9.]+) GiB\)", record.get("gpu") or "")
    return found[1] if found else None


def sglang_lines(record: Record) -> Iterator[str]:
    reported = record["reported"]
    pairs = {
        "model_path": record.get("model"),
        "tp_size": record.get("tensor_parallel"),
        "page_size": (record.get("inferred") or {}).get("block_size") or record.get("block_size"),
        "mem_fraction_static": reported.get("mem_fraction_static"),
        "quantization": (record.get("quantization") or "").partition(" ")[0] or None,
    }
    said = ", ".join(f"{name}={value!r}" for name, value in pairs.items() if value is not None)
    yield f"server_args=ServerArgs({said})"
    if reported.get("weights_gb"):
        yield f"Load weight end. mem usage={reported['weights_gb']} GB."
    if reported.get("swakvpool_gb") and reported.get("swa_size"):
        yield (
            f"SWAKVPool mem usage: {reported['swakvpool_gb']} GB, swa size: {reported['swa_size']},"
            f" full size: {reported['full_size']}"
        )
    if reported.get("max_mamba_cache_size"):
        yield (
            f"max_mamba_cache_size: {reported['max_mamba_cache_size']},"
            f" conv_state size: {reported['conv_state_gb']}GB,"
            f" ssm_state size: {reported['ssm_state_gb']}GB"
        )
    sides = [
        f"{name}: {reported[key]} GB"
        for name, key in (
            ("K size", "k_size_gb"),
            ("V size", "v_size_gb"),
            ("KV size", "kv_size_gb"),
        )
        if reported.get(key)
    ]
    if sides and reported.get("kv_cache_tokens"):
        kind = f" dtype: torch.{record['kv_cache_dtype']}," if record.get("kv_cache_dtype") else ""
        tokens = reported["kv_cache_tokens"]
        yield f"KV Cache is allocated.{kind} #tokens: {tokens}, {', '.join(sides)}"


def trtllm_lines(record: Record) -> Iterator[str]:
    reported = record["reported"]
    yield (
        f"TensorRT-LLM version: {record['engine_version']}"
        if record.get("engine_version")
        else "TensorRT-LLM"
    )
    if record.get("block_size"):
        yield f"Number of tokens per block: {record['block_size']}."
    if reported.get("allocated_kv_gib"):
        size, tokens = reported["allocated_kv_gib"], reported["kv_cache_tokens"]
        yield f"Allocated {size} GiB for max tokens in paged KV cache ({tokens})."


def h200_lines(run: Record) -> Iterator[str]:
    """A run of this project: its arguments, the device's memory, and the lines it logged."""
    said = {"model": run["config"].removesuffix(".json").replace("__", "/"), **run["arguments"]}
    said["max_num_batched_tokens"] = run["max_num_batched_tokens"]
    if "gemma-3-12b" in said["model"]:
        # The runs loaded the text part of the configuration.
        said["language_model_only"] = True
    text = ", ".join(f"{name}={value!r}" for name, value in said.items())
    yield f"Initializing a V1 LLM engine (v{run['engine_version']}) with config: {text}"
    total, share = run["gpu_total_bytes"] / (1 << 30), said["gpu_memory_utilization"]
    yield f"total_gpu_memory ({total:.2f}GiB) x gpu_memory_utilization ({share:.2f})"
    yield from run["log"]


ENGINES = {"vllm": vllm_lines, "sglang": sglang_lines, "tensorrt-llm": trtllm_lines}


def llamacpp_lines(record: Record) -> Iterator[str]:
    """A start of llama.cpp that prints its architecture, with one line for the whole cache."""
    for name in (
        "arch", "n_layer", "n_head", "n_head_kv", "n_embd_head_k", "n_embd_head_v", "n_swa",
        "n_rot", "n_embd",
    ):  # fmt: skip
        if record.get(name) is not None:
            yield f"print_info: {name} = {record[name]}"
    if record.get("kv_lora_rank"):
        yield f"print_info: n_lora_kv = {record['kv_lora_rank']}"
    for name in ("n_seq_max", "n_ctx", "n_ubatch", "flash_attn", "mla_attn"):
        if record.get(name) is not None:
            yield f"llama_new_context_with_model: {name} = {record[name]}"
    yield _self_line(record)


def _self_line(record: Record) -> str:
    """The cache as those builds print it; keys alone for latent rows."""
    reported = record["reported"]
    labels = reported.get("labels") or ["K", "V"]
    sizes = {"k": reported.get("k_mib"), "v": reported.get("v_mib")}
    parts = []
    for label in labels:
        side = "v" if label in ("V", "kv^T") else "k"
        size = sizes[side]
        if label == "K^R":
            size = reported["kv_total_mib"] - reported["k_mib"]
        if size is not None:
            kind = record.get(f"type_{side}", "f16")
            parts.append(f"{label} ({kind}): {size:7.2f} MiB")
    return f"KV self size  = {reported['kv_total_mib']:7.2f} MiB, {', '.join(parts)}"


def excerpts(folder: Path) -> Iterator[Record]:
    """Records as excerpts: id, source, lines, and the model where no card has the log's name."""
    for record in _read(folder / "engine_logs.jsonl"):
        lines = ENGINES[record["engine"].split(" ")[0]](record)
        yield _excerpt(record, list(lines), MODELS.get(record["id"]), _device(record))
    for run in _read(folder / "vllm_h200_runs.jsonl"):
        if run["num_hidden_layers_cut_to"] is None:
            run["source"] = "this project: vLLM 0.22.1 on one H200, random weights"
            run["id"] = f"h200-{run['id']}"
            yield _excerpt(run, list(h200_lines(run)), None, "h200")
    for record in _read(folder / "llamacpp_logs.jsonl"):
        if "n_cells" in record:
            yield _excerpt(record, list(llamacpp_lines(record)), None, None)


def _device(record: Record) -> str | None:
    named = record.get("gpu") or ""
    return next((card for text, card in DEVICES.items() if named.startswith(text)), None)


def _excerpt(record: Record, lines: list[str], model: str | None, gpu: str | None) -> Record:
    found = {"id": record["id"], "source": record["source"], "model": model, "gpu": gpu}
    found["lines"] = lines
    report = audit(["\n".join(lines).encode()], model=model, gpu=gpu)
    found["findings"] = [
        [row["figure"], row["printed"], row["predicted"], row["verdict"], row["why"]]
        for row in report.results
    ]
    if any(finding[3] == "differ" for finding in found["findings"]):
        found["reason"] = REASONS[record["id"]]
    return found


def _read(path: Path) -> Iterator[Record]:
    yield from map(json.loads, path.read_text("utf-8").splitlines())


# What a record says in its note alone: windows, drafted tokens, micro-batches, contexts per slot.
STATED: dict[str, Record] = {
    "man-gemma4-48l-f16-np4": {"n_ubatch": 2048},
    "man-qwythos-27b-256k-mtp": {"n_rs_seq": 6},
    "man-dflash-27b-q8": {"draft_window": 2048, "version": "b10375"},
    "man-deepseek-mainline-q4-128k": {"version": "b6985"},
    "man-openllama-3b": {"version": "b3000"},
    "man-laguna-1m-q4": {"window": 512},
    "man-laguna-128k-2seq": {"n_ctx": 262_144, "kv_unified": False},
    "man-qwen35-27b-mtp-128k-np4-q8": {"kv_unified": True},
    "man-qwen35moe-35b-np4-state": {"n_ctx": 8192},
}
OPTIONS = ("n_ctx", "n_seq_max", "n_ubatch", "kv_unified", "n_rs_seq")


def llamacpp_parts(folder: Path) -> Iterator[Record]:
    """Records that split their cache: layers by kind with the widths of their rows, and each
    printed part."""
    for record in _read(folder / "llamacpp_logs.jsonl"):
        if "components" not in record:
            continue
        said = record | STATED.get(record["id"], {})
        yield {
            "id": record["id"],
            "source": record["source"],
            "version": STATED.get(record["id"], {}).get("version"),
            "options": {name: said[name] for name in OPTIONS if said.get(name) is not None},
            "layers": [_layers(part, said) for part in record["components"]],
            "printed": [
                [part["kind"], part.get("cells"), part["mib"], *_sides(part)]
                for part in record["components"]
            ],
        }


def _layers(part: Record, said: Record) -> Record:
    """Layers of one part: how many, elements of their rows (or states), types, window."""
    if part["kind"] == "rs":
        return {"kind": "rs", "layers": part["layers_rs"], "r": part["n_embd_r"],
                "s": part["n_embd_s"]}  # fmt: skip
    window = said.get("window") or said.get("n_swa") if part["kind"] == "swa" else None
    if part["kind"] == "draft":
        window = said.get("draft_window")
    return {"kind": part["kind"], "layers": part["layers"], "k": part["wk"], "v": part["wv"],
            "types": [part["tk"], part["tv"]], "window": window}  # fmt: skip


def _sides(part: Record) -> list[float | None]:
    if part["kind"] == "rs":
        return [part["r_mib"], part["s_mib"]]
    return [part["k"], part["v"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    records, parts = [*excerpts(given.folder)], [*llamacpp_parts(given.folder)]
    made = {
        GOLDEN / "ground_truth.json": _json(records),
        GOLDEN / "llamacpp_parts.json": _json(parts),
        TABLE: page(records, parts),
    }
    stale = [path for path, text in made.items() if not _holds(path, text)]
    if given.check:
        print(*(f"{path.relative_to(ROOT)} differs" for path in stale), sep="\n")
        return bool(stale)
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return 0


HEAD = """# What real engines printed, and what kvtool makes of it

Figures that users posted in public issues, pull requests and pages, put into the lines that the
engine prints and given to `kvtool audit`. `tests/oracles/ground_truth.py` generates this page;
the tests hold the same records with their sources (`tests/golden/logs`).

- **agree**: equal to the printed rounding (an estimate: its value is).
- **within-range**: an estimate whose range covers the figure, or ranks that a quote mixes (1.5 %).
- **differ**: neither; the reason is given.
- **unknown**: the record lacks what a prediction needs, or kvtool has no rule.

"""


def page(records: list[Record], parts: list[Record]) -> str:
    """The table of all records, and a line for every figure that is not simply right."""
    counts = Counter(finding[3] for record in records for finding in record["findings"])
    shown = ", ".join(f"{counts[name]} {name}" for name in VERDICTS)
    total = sum(counts.values())
    lines = [HEAD, f"{len(records)} records, {total} figures: {shown}. Beside these, all printed"]
    lines += [f"parts of {len(parts)} split llama.cpp caches are right to 0.01 MiB.\n"]
    lines += ["| Record | Model | Right | Else |", "| --- | --- | --- | --- |"]
    lines += [_table_row(record) for record in records]
    lines += ["", "## Not simply right", ""]
    lines += [line for record in records for line in _remarks(record)]
    return "\n".join(lines) + "\n"


def _table_row(record: Record) -> str:
    right = [figure for figure, *_, verdict, _ in record["findings"] if verdict == "agree"]
    rest = [f"{figure} {verdict}" for figure, *_, verdict, _ in record["findings"]
            if verdict != "agree"]  # fmt: skip
    model = record["model"] or _named(record["lines"]) or ""
    return f"| {record['id']} | {model} | {', '.join(right)} | {', '.join(rest)} |"


def _named(lines: list[str]) -> str | None:
    found = re.search(r"model(?:_path)?='([^']*)'|arch = (\S+)", lines[0])
    return (found[1] or found[2]) if found else None


def _remarks(record: Record) -> Iterator[str]:
    """Each figure that does not agree, with the reason; equal reasons together."""
    said: dict[tuple[str, str], list[str]] = {}
    for figure, printed, predicted, verdict, why in record["findings"]:
        if verdict != "agree":
            off = f" ({predicted / printed - 1:+.2%})" if predicted is not None else ""
            said.setdefault((verdict, why), []).append(f"{figure}{off}")
    for (verdict, why), figures in said.items():
        reason = f" **{record['reason']}**" if verdict == "differ" else ""
        yield f"- {record['id']}: {', '.join(figures)}: {verdict}: {why}{reason}"


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text("utf-8") == text


def _json(records: list[Record]) -> str:
    return "[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n"


if __name__ == "__main__":
    sys.exit(main())
