"""Lines of vLLM's start-up, V0 and V1, as of 0.5 to 0.33."""

from __future__ import annotations

import re

from kvtool.engines.logs import Handler, Line, Reader, Rule, measured, number

ENGINE = "vllm"
NUMBER = r"([0-9][0-9,]*(?:\.[0-9]+)?)"
SIZE = NUMBER + r" ?(GiB|GB|MiB|MB)"


def _rule(pattern: str, handle: Handler, *anchors: str) -> Rule:
    return Rule.of(ENGINE, pattern, handle, *anchors)


def _config(reader: Reader, match: re.Match[str], line: Line) -> bool:
    """The engine's configuration: `name=value` pairs after "with config:"."""
    start = reader.start(ENGINE, line, fresh=True)
    if match[1]:
        start.put("version", match[1].lstrip("v"))
    for name, value in _PAIR.findall(match[2]):
        start.put(name, value.strip("'\""))
    return True


_PAIR = re.compile(r"\b([a-z][a-z_0-9]{1,60})=('[^']*'|\"[^\"]*\"|[^\s,()]+)")


def _arguments(reader: Reader, match: re.Match[str], line: Line) -> bool:
    """Arguments that are not defaults: a dict of them."""
    start = reader.start(ENGINE, line, fresh=True)
    found = _ITEM.findall(match[1])
    for name, value in found:
        start.put(name, value.strip().strip("'\""))
    return bool(found)


_ITEM = re.compile(r"'([a-z][a-z_0-9]{1,60})': ('[^']*'|\"[^\"]*\"|[^\s,{}\[\]]+)")


def _version(reader: Reader, match: re.Match[str], line: Line) -> bool:
    reader.start(ENGINE, line, fresh=True).put("version", match[1])
    return True


def _setting(name: str) -> Handler:
    def handle(reader: Reader, match: re.Match[str], line: Line) -> bool:
        reader.start(ENGINE, line).put(name, match[1].replace(",", ""))
        return True

    return handle


def _size(name: str) -> Handler:
    def handle(reader: Reader, match: re.Match[str], line: Line) -> bool:
        return reader.figure(ENGINE, line, name, measured(match[1], match[2], 2))

    return handle


def _count(name: str, half: float = 0.0) -> Handler:
    def handle(reader: Reader, match: re.Match[str], line: Line) -> bool:
        return reader.figure(ENGINE, line, name, (number(match[1]), half))

    return handle


def _concurrency(reader: Reader, match: re.Match[str], line: Line) -> bool:
    context = match[1].replace(",", "")
    start = reader.start(ENGINE, line)
    start.settings.setdefault("max_model_len", context)
    return reader.figure(ENGINE, line, "concurrency", (number(match[2]), 0.005), context=context)


def _needed(reader: Reader, match: re.Match[str], line: Line) -> bool:
    """The refusal to start: what the maximum needs, what there is, what would fit."""
    context = match[1].replace(",", "")
    reader.start(ENGINE, line).settings.setdefault("max_model_len", context)
    reader.figure(ENGINE, line, "needed", measured(match[2], match[3], 2))
    reader.figure(ENGINE, line, "pool", measured(match[4], match[5], 2))
    return True


def _memory(reader: Reader, match: re.Match[str], line: Line) -> bool:
    """Memory of the device and the wanted share of it, which V0 rounds."""
    start = reader.start(ENGINE, line)
    start.put("device_memory_gib", match[1])
    name = "gpu_memory_utilization_rounded" if match[0].startswith("total") else _FRACTION
    start.settings.setdefault(name, match[2])
    return True


_FRACTION = "gpu_memory_utilization"


def _profile(reader: Reader, match: re.Match[str], line: Line) -> bool:
    """V0's account of its dummy run."""
    start = reader.start(ENGINE, line)
    start.put("device_memory_gib", match[1])
    reader.figure(ENGINE, line, "peak_torch", measured(match[2], "GiB", 2))
    reader.figure(ENGINE, line, "non_torch", measured(match[3], "GiB", 2))
    reader.figure(ENGINE, line, "pool", measured(match[4], "GiB", 2))
    start.settings.setdefault("gpu_memory_utilization_rounded", match[5])
    return True


def _usage(reader: Reader, match: re.Match[str], line: Line) -> bool:
    """V1's account after the start; weights and other memory apart, or together (0.27)."""
    found = _PART.findall(match[1])
    for size, part in found:
        reader.figure(ENGINE, line, PARTS[part], measured(size, "GiB", 2))
    return bool(found)


PARTS = {
    "weight": "weights", "consumed": "consumed", "peak activation": "activation",
    "non-torch": "non_torch", "CUDAGraph": "graphs_captured",
}  # fmt: skip
_PART = re.compile(NUMBER + r" GiB for (" + "|".join(PARTS) + r")")


def _in_use(reader: Reader, match: re.Match[str], line: Line) -> bool:
    """The pool to the byte, or in GiB (0.20)."""
    size = (number(match[1]), 0.5) if match[2] == "bytes" else measured(match[1], match[2], 2)
    return reader.figure(ENGINE, line, "pool_in_use", size)


def _given_pool(reader: Reader, match: re.Match[str], line: Line) -> bool:
    reader.start(ENGINE, line).put("pool_is_given", "true")
    return _size("pool")(reader, match, line)


def _v0_weights(reader: Reader, match: re.Match[str], line: Line) -> bool:
    reader.start(ENGINE, line).put("v0", "true")
    return _size("weights")(reader, match, line)


def _blocks(reader: Reader, match: re.Match[str], line: Line) -> bool:
    reader.figure(ENGINE, line, "blocks", (number(match[1]), 0.0))
    if match[2]:
        reader.start(ENGINE, line).put("v0", "true")
        reader.figure(ENGINE, line, "cpu_blocks", (number(match[2]), 0.0))
    return True


RULES = (
    _rule(r"API server version:? v?([0-9][\w.+]{0,60})", _version),
    _rule(
        r"Initializing an? (?:V1 )?LLM engine \(?(v[\w.+]{1,60})?\)? ?with config: (.*)", _config
    ),
    _rule(r"non-default args: (\{.*)", _arguments),
    _rule(r"Using max model len ([0-9,]+)", _setting("max_model_len")),
    _rule(r"max_num_batched_tokens[= ]+([0-9,]+)", _setting("max_num_batched_tokens")),
    _rule(r"Model loading took " + SIZE, _size("weights")),
    _rule(r"Loading model weights took " + SIZE, _v0_weights),
    _rule(r"Available KV cache memory: " + SIZE, _size("pool")),
    _rule(r"the rest of the memory reserved for KV Cache is " + SIZE, _size("pool")),
    _rule(r"model weights take " + SIZE, _size("weights")),
    _rule(r"non_torch_memory takes " + SIZE, _size("non_torch")),
    _rule(r"activation peak memory takes " + SIZE, _size("activation")),
    _rule(
        r"total_gpu_memory \(" + NUMBER + r" ?GiB\) x gpu_memory_utilization \(([0-9.]+)\)", _memory
    ),
    _rule(
        r"total_gpu_memory="
        + NUMBER
        + r"GiB .{0,80}peak_torch_memory="
        + NUMBER
        + r"GiB .{0,80}non_torch_memory="
        + NUMBER
        + r"GiB kv_cache_size="
        + NUMBER
        + r"GiB gpu_memory_utilization=([0-9.]+)",
        _profile,
    ),
    _rule(
        r"Free memory on device[^(]{0,40}\([0-9.]+/"
        + NUMBER
        + r" GiB\).{0,60}utilization is \(([0-9.]+)",
        _memory,
    ),
    _rule(r"Actual usage is (.{0,400})", _usage),
    _rule(r"Current kv cache memory in use is " + NUMBER + r" (bytes|GiB)", _in_use),
    _rule(r"Estimated CUDA graph memory: " + SIZE, _size("graphs")),
    _rule(r"The current --gpu-memory-utilization=([0-9.]+) is equivalent", _setting(_FRACTION)),
    _rule(
        r"reserved " + SIZE + r" memory for KV Cache as specified",
        _given_pool,
        "memory for KV Cache as specified",
    ),
    _rule(r"GPU KV cache size: ([0-9,]+) tokens", _count("tokens")),
    _rule(r"Maximum concurrency for ([0-9,]+) tokens per request: " + NUMBER + "x", _concurrency),
    _rule(
        r"# (?:GPU|cuda|rocm|xpu|hpu) blocks: ([0-9,]*[0-9])(?:, # CPU blocks: ([0-9,]+))?",
        _blocks,
        "# GPU blocks",
        "# cuda blocks",
        "# rocm blocks",
        "# xpu blocks",
        "# hpu blocks",
    ),
    _rule(r"num_gpu_blocks(?:_override)?(?: is)?[:=] ?([0-9,]+)", _count("blocks")),
    _rule(r"Setting attention block size to ([0-9,]+) tokens", _count("attention_block")),
    _rule(r"Add ([0-9]+) padding layers", _count("padding_layers"), " padding layers"),
    _rule(
        r"max seq len \(([0-9,]+)\)[^0-9]{1,20}" + SIZE + r" KV cache is needed.{0,80}?\(" + SIZE,
        _needed,
    ),
    _rule(r"tokens that can be stored in KV cache \(([0-9,]+)\)", _count("tokens")),
    _rule(r"estimated maximum model length is ([0-9,]+)", _count("estimated_max_model_len")),
    _rule(r"size by the dcp_world_size ([0-9]+)", _setting("decode_context_parallel_size")),
)
