"""Lines of llama.cpp's start-up (2023 to 2026) and of ik_llama.cpp."""

from __future__ import annotations

import re

from kvtool.engines.logs import Handler, Line, Reader, Rule, measured, number

ENGINE = "llamacpp"
MIB = r"([0-9]+(?:\.[0-9]+)?) (MiB|MB)"
META = "meta:"
INFO = "info:"


def _rule(pattern: str, handle: Handler, *anchors: str) -> Rule:
    return Rule.of(ENGINE, pattern, handle, *anchors)


def _build(reader: Reader, match: re.Match[str], line: Line) -> bool:
    reader.start(ENGINE, line, fresh=True).put("version", f"b{match[1]}")
    return True


def _model(reader: Reader, match: re.Match[str], line: Line) -> bool:
    """A model is loaded: the next start, of the same program."""
    start = reader.start(ENGINE, line)
    version = start.settings.get("version")
    start = reader.start(ENGINE, line, fresh=True)
    if version:
        start.put("version", version)
    for name in [n for n in start.settings if n.startswith((META, INFO))]:
        del start.settings[name]
    return True


def _context(reader: Reader, match: re.Match[str], line: Line) -> bool:
    """Another context of the same model: a trial for memory, or one that drafts."""
    reader.start(ENGINE, line, fresh=True, inherit=True)
    return True


def _meta(reader: Reader, match: re.Match[str], line: Line) -> bool:
    """A key of the model file; long arrays are cut off by llama.cpp itself."""
    reader.start(ENGINE, line).put(META + match[1], f"{match[2]} {match[3].strip()}")
    return True


def _info(reader: Reader, match: re.Match[str], line: Line) -> bool:
    start = reader.start(ENGINE, line)
    start.settings.setdefault(INFO + match[1].strip(), match[2].strip())
    return True


def _setting(reader: Reader, match: re.Match[str], line: Line) -> bool:
    reader.start(ENGINE, line).put(match[1], match[2])
    return True


def _cache(reader: Reader, match: re.Match[str], line: Line) -> bool:
    """A cache: its size, cells, layers, slots and streams, and both sides with their types."""
    found = {"cells": match[3], "layers": match[4], "seqs": match[5], "streams": match[6] or ""}
    found |= {"type_k": match[7], "type_v": match[10]}
    name = "kv_cache"
    reader.figure(ENGINE, line, name, measured(match[1], match[2], 2), **found)
    reader.figure(ENGINE, line, f"{name}_k", measured(match[8], match[9], 2), **found)
    reader.figure(ENGINE, line, f"{name}_v", measured(match[11], match[12], 2), **found)
    return True


def _recurrent(reader: Reader, match: re.Match[str], line: Line) -> bool:
    found = {"cells": match[3], "layers": match[4], "seqs": match[5], "rs_seq": match[6] or ""}
    name = "recurrent_state"
    reader.figure(ENGINE, line, name, measured(match[1], match[2], 2), **found)
    reader.figure(ENGINE, line, f"{name}_r", measured(match[7], match[8], 2), **found)
    reader.figure(ENGINE, line, f"{name}_s", measured(match[9], match[10], 2), **found)
    return True


def _self(reader: Reader, match: re.Match[str], line: Line) -> bool:
    """The cache of builds up to 2025 and of ik_llama.cpp: one line for all layers. Latent rows are
    one figure (c^KV) or two (with K^R, the rotary part)."""
    start = reader.start(ENGINE, line)
    sides = _SIDE.findall(match[3] or "")
    labels = [label for label, *_ in sides]
    if "c^KV" in labels:
        start.put("fork", "ik")
    about = {f"type_{_side(label)}": kind for label, kind, *_ in sides}
    about["labels"] = ",".join(labels)
    decimals = 2 if "." in match[1] else 0
    reader.figure(ENGINE, line, "kv_self", measured(match[1], match[2], decimals), **about)
    for side in ("k", "v"):
        sizes = [measured(size, unit, 2) for label, _, size, unit in sides if _side(label) == side]
        if sizes:
            total = (sum(value for value, _ in sizes), sum(half for _, half in sizes))
            reader.figure(ENGINE, line, f"kv_self_{side}", total, **about)
    return True


def _side(label: str) -> str:
    return "v" if label in ("V", "kv^T") else "k"


_SIDE = re.compile(r"(c\^KV|kv\^T|K\^R|K|V) \((\w+)\): +([0-9.]+) (MiB|MB)")


def _buffer(reader: Reader, match: re.Match[str], line: Line) -> bool:
    """A device's share of a cache; the only figure of it at the server's default verbosity."""
    name = "kv_buffer" if match[2] == "KV" else "rs_buffer"
    size = measured(match[3], match[4], 2)
    return reader.figure(ENGINE, line, name, size, device=match[1])


def _slots(reader: Reader, match: re.Match[str], line: Line) -> bool:
    reader.start(ENGINE, line).settings.setdefault("n_seq_max", match[1])
    return True


def _cells(reader: Reader, match: re.Match[str], line: Line) -> bool:
    """Cells announced before the caches are made: of the full layers, of the windows."""
    name = "swa_cells" if match[1] == "SWA" else "cells"
    return reader.figure(ENGINE, line, name, (number(match[2]), 0.0))


def _type(reader: Reader, match: re.Match[str], line: Line) -> bool:
    start = reader.start(ENGINE, line)
    start.put("kv_size", match[1])
    start.put("type_k", match[2])
    start.put("type_v", match[3])
    return True


RULES = (
    _rule(r"\bbuild(?: =|:) ([0-9]{3,6}) \(", _build, "build: ", "build = "),
    _rule(r"llama_model_loader: loaded meta data with [0-9]+ key-value", _model),
    _rule(r"constructing llama_context", _context),
    _rule(
        r"llama_model_loader: - kv +[0-9]+: +([\w.\-]{1,100}) +(str|u8|i8|u16|i16|u32|i32|u64|i64"
        r"|f32|f64|bool|arr\[\w+,[0-9]+\]) += (.*)",
        _meta,
    ),
    _rule(
        r"(?:print_info|llm_load_print_meta): ([\w. /()\-]{1,40}?) *= (.*)",
        _info,
        "print_info: ",
        "llm_load_print_meta: ",
    ),
    _rule(
        r"(?:llama_context|llama_new_context_with_model|llama_init_from_model): +"
        r"(n_seq_max|n_ctx|n_ctx_seq|n_ctx_per_seq|n_batch|n_ubatch|flash_attn|kv_unified|n_rs_seq"
        r"|mla_attn) += ([\w.\-]+)",
        _setting,
        "llama_context: ",
        "llama_new_context_with_model: ",
        "llama_init_from_model: ",
    ),
    _rule(r"kv_size = ([0-9]+),.{0,60}?type_k = '(\w+)', type_v = '(\w+)'", _type),
    _rule(r"creating +(non-SWA|SWA) +KV cache, size = ([0-9]+) cells", _cells, "KV cache, size = "),
    _rule(r"([\w.\-]+) (KV|RS) buffer size += +" + MIB, _buffer, " buffer size ="),
    _rule(r"initializing(?: slots)?, n_slots = ([0-9]+)", _slots),
    _rule(
        r": size = +" + MIB + r" \( *([0-9]+) cells, +([0-9]+) layers, +([0-9]+)"
        r"(?:/ ?([0-9]+))? seqs\), K \((\w+)\): +" + MIB + r", V \((\w+)\): +" + MIB,
        _cache,
    ),
    _rule(
        r": size = +" + MIB + r" \( *([0-9]+) cells, +([0-9]+) layers, +([0-9]+) seqs"
        r"(?: +([0-9]+) rs_seq)?\), R \(f32\): +" + MIB + r", S \(f32\): +" + MIB,
        _recurrent,
    ),
    _rule(r"[kK][vV] self size += +" + MIB + r"(.*)", _self, "KV self size", "kv self size"),
)
