"""Lines of SGLang's and TensorRT-LLM's start-up."""

from __future__ import annotations

import re

from kvtool.engines.logs import Handler, Line, Reader, Rule, measured, number

SGLANG, TRTLLM = "sglang", "trtllm"
SIZE = r"([0-9]+(?:\.[0-9]+)?) ?(GB|GiB|MB|MiB)"


def _arguments(reader: Reader, match: re.Match[str], line: Line) -> bool:
    start = reader.start(SGLANG, line, fresh=True)
    found = _PAIR.findall(match[1])
    for name, value in found:
        start.put(name, value.strip("'\""))
    return bool(found)


_PAIR = re.compile(r"\b([a-z][a-z_0-9]{1,60})=('[^']*'|\"[^\"]*\"|[^\s,()]+)")


def _weights(reader: Reader, match: re.Match[str], line: Line) -> bool:
    return reader.figure(SGLANG, line, "weights", measured(match[1], match[2], 2))


def _pool(reader: Reader, match: re.Match[str], line: Line) -> bool:
    """The pool: its tokens, and its sides in one figure or two."""
    tokens = match[2].replace(",", "")
    about = {"tokens": tokens}
    if match[1]:
        reader.start(SGLANG, line).put("kv_pool_dtype", match[1])
    reader.figure(SGLANG, line, "tokens", (number(tokens), 0.0))
    for side, size, unit in _SIDE.findall(match[3]):
        reader.figure(SGLANG, line, f"{side.lower()}_size", measured(size, unit, 2), **about)
    return True


_SIDE = re.compile(r"\b(K|V|KV) size: " + SIZE)


def _window_pools(reader: Reader, match: re.Match[str], line: Line) -> bool:
    """Both pools of a model with windows in one figure."""
    about = {"window": match[3], "full": match[4]}
    return reader.figure(SGLANG, line, "window_pools", measured(match[1], match[2], 2), **about)


def _states(reader: Reader, match: re.Match[str], line: Line) -> bool:
    about = {"slots": match[1]}
    reader.figure(SGLANG, line, "conv_state", measured(match[2], match[3], 2), **about)
    return reader.figure(SGLANG, line, "ssm_state", measured(match[4], match[5], 2), **about)


def _allocated(reader: Reader, match: re.Match[str], line: Line) -> bool:
    tokens = match[3].replace(",", "")
    reader.figure(TRTLLM, line, "tokens", (number(tokens), 0.0))
    return reader.figure(TRTLLM, line, "pool", measured(match[1], match[2], 2), tokens=tokens)


def _trt_setting(name: str) -> Handler:
    def handle(reader: Reader, match: re.Match[str], line: Line) -> bool:
        reader.start(TRTLLM, line).put(name, match[1])
        return True

    return handle


def _trt_blocks(reader: Reader, match: re.Match[str], line: Line) -> bool:
    return reader.figure(TRTLLM, line, "blocks", (number(match[1]), 0.0))


RULES = (
    Rule.of(SGLANG, r"server_args=ServerArgs\((.*)", _arguments),
    Rule.of(SGLANG, r"Load weight end\..{0,200}?mem usage=" + SIZE, _weights),
    Rule.of(
        SGLANG,
        r"KV Cache is allocated\.(?: dtype: (?:torch\.)?(\w+),)? #tokens: ([0-9,]+), (.*)",
        _pool,
    ),
    Rule.of(
        SGLANG,
        r"SWAKVPool mem usage: " + SIZE + r", swa size: ([0-9]+), full size: ([0-9]+)",
        _window_pools,
    ),
    Rule.of(
        SGLANG,
        r"max_mamba_cache_size: ([0-9]+), conv_state size: " + SIZE + r", ssm_state size: " + SIZE,
        _states,
    ),
    Rule.of(
        TRTLLM,
        r"Allocated " + SIZE + r" for max tokens in paged KV cache \(([0-9,]+)\)",
        _allocated,
        "in paged KV cache",
    ),
    Rule.of(TRTLLM, r"TensorRT-LLM version:? ([0-9][\w.+]{0,60})", _trt_setting("version")),
    Rule.of(
        TRTLLM,
        r"[Nn]umber of tokens per block: ([0-9]+)",
        _trt_setting("tokens_per_block"),
        "umber of tokens per block",
    ),
    Rule.of(
        TRTLLM,
        r"[Nn]umber of blocks in KV cache primary pool: ([0-9]+)",
        _trt_blocks,
        "KV cache primary pool",
    ),
)
