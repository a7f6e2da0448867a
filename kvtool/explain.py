"""Formulas with their numbers in place: where each figure of `size` comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from kvtool import kvcache
from kvtool.dtype import DType, KVFormat, load_dtype
from kvtool.fit import LOGICAL_FRACTION, Case, kv_of, with_drafter
from kvtool.model import weights
from kvtool.model.spec import (
    Attention,
    Index,
    Latent,
    Layer,
    Parallel,
    Recurrent,
    State,
    shares,
)

Line = dict[str, Any]


def explain(case: Case, row: dict[str, Any]) -> list[Line]:
    """Lines of `what`, `formula`, `numbers`, `value` and `source` for the figures of a row."""
    model, deployment = with_drafter(case.model, case.deployment), case.deployment
    parallel = deployment.parallel
    kv = _format(row, case)
    encoder = kvcache.encoder_tokens(model, deployment.encoder_tokens)
    extra = deployment.mtp or deployment.draft is not None
    layers = kvcache.fullest_stage(model, case.context_tokens, kv, parallel, encoder, extra)
    lines = [*_states(layers, case.context_tokens, kv, parallel, encoder)]
    if len(lines) > 1:
        lines.append(
            _line(
                "one sequence",
                "sum over the layers",
                " + ".join(f"{line['value']:,}" for line in lines),
                row["sequence_bytes"],
            )
        )
    lines.append(
        _line(
            "per token",
            "bytes(T) - bytes(T - 1)",
            f"{row['sequence_bytes']:,} - {row['sequence_bytes'] - row['bytes_per_token']:,}",
            row["bytes_per_token"],
        )
    )
    if case.batch_size > 1 and row["engine"] == "logical":
        lines.append(
            _line(
                "batch",
                "sequences x bytes",
                f"{case.batch_size:,} x {row['sequence_bytes']:,}",
                row["cache_bytes"],
            )
        )
    return [*lines, *_engine(row), *_weights(case, row), *_pool(case, row)]


def _format(row: dict[str, Any], case: Case) -> KVFormat:
    if row["engine"] == "logical":
        return kv_of(case.model, case.deployment)
    return KVFormat(load_dtype(row["k_dtype"]), load_dtype(row["v_dtype"]))


def _line(what: str, formula: str, numbers: str, value: float, source: str = "") -> Line:
    return {"what": what, "formula": formula, "numbers": numbers, "value": value, "source": source}


def _states(
    layers: Sequence[Layer], context: int, kv: KVFormat, parallel: Parallel, encoder: int
) -> Iterator[Line]:
    counts: Counter[State] = Counter(state for layer in layers for state in layer.states)
    for state, count in counts.items():
        value = count * state.bytes(context, kv, parallel, encoder)
        tokens = state.tokens(context, encoder, parallel.dcp)
        if isinstance(state, Attention):
            yield _attention(state, count, tokens, kv, parallel.tp, value)
        elif isinstance(state, Latent):
            rows = "T" if state.stride == 1 else f"T/{state.stride}"
            yield _line(
                f"{count} latent layers",
                f"layers x (kv_lora_rank + rope) x bytes x {rows}",
                f"{count} x ({_side(kv.k, state.width)}) x {tokens:,}",
                value,
                "one row for key and value, on every TP rank",
            )
        elif isinstance(state, Index):
            yield _line(
                f"{count} index keys",
                "layers x (width + 4 per 128) x tokens",
                f"{count} x {state.row_bytes()} x {tokens:,}",
                value,
                "fp8 keys of the sparse indexer with a float32 scale",
            )
        elif isinstance(state, Recurrent):
            elements = " + ".join(
                f"{e // u * shares(u, parallel.tp):,}" if u else f"{e:,}" for e, u in state.parts
            )
            yield _line(
                f"{count} {state.kind} states",
                "layers x elements x bytes",
                f"{count} x ({elements}) x {_width(load_dtype(state.dtype))}",
                value,
                f"{state.dtype}, does not grow",
            )
        else:
            yield _line(
                f"{count} shared layers",
                "read another layer's cache",
                "0",
                0,
            )


def _attention(
    state: Attention, count: int, tokens: int, kv: KVFormat, tp: int, value: int
) -> Line:
    heads = shares(state.num_kv_heads, tp)
    rows = {
        "full": "T",
        "sliding": "min(T, window)",
        "chunked": "min(T, chunk)",
        "cross": "encoder tokens",
    }[state.kind]
    if kv.k == kv.v and state.head_dim == state.v_head_dim and not kv.k.vector_bytes:
        formula = f"2 x layers x kv_heads x head_dim x bytes x {rows}"
        numbers = f"2 x {count} x {heads} x {state.head_dim} x {_width(kv.k)} x {tokens:,}"
    else:
        formula = f"layers x kv_heads x (k + v bytes) x {rows}"
        k, v = _side(kv.k, state.head_dim), _side(kv.v, state.v_head_dim)
        numbers = f"{count} x {heads} x ({k} + {v}) x {tokens:,}"
    ranks = f"{state.num_kv_heads} KV heads over tp {tp}" if tp > 1 else ""
    return _line(f"{count} {state.kind} layers", formula, numbers, value, ranks)


def _width(dtype: DType) -> str:
    """Bytes per element, as a fraction where blocks carry scales."""
    return str(dtype.block_bytes) if dtype.block == 1 else f"{dtype.block_bytes}/{dtype.block}"


def _side(dtype: DType, width: int) -> str:
    """Bytes of one head's keys or values: its elements, and its own scale where it has one."""
    if not width:
        return "0"
    scale = f" + {dtype.vector_bytes}" if dtype.vector_bytes else ""
    return f"{width} x {_width(dtype)}{scale}"


def _engine(row: dict[str, Any]) -> Iterator[Line]:
    """What an engine adds to the logical bytes, reason by reason, and its blocks."""
    for reason in row.get("reasons") or ():
        yield _line(reason["name"], reason["text"], "", reason["bytes"])
    if row.get("blocks_per_request"):
        yield _line(
            "one request",
            "blocks x bytes per block",
            f"{row['blocks_per_request']:,} x {row['bytes_per_block']:,}",
            row["request_bytes"],
            f"{row['engine']} {row['engine_version']}",
        )


def _weights(case: Case, row: dict[str, Any]) -> Iterator[Line]:
    if row["weight_params"] is None:
        return
    parts = weights.by_part(case.model)
    numbers = " + ".join(f"{count:,}" for count in parts.values())
    yield _line("parameters", " + ".join(parts), numbers, row["weight_params"])


def _pool(case: Case, row: dict[str, Any]) -> Iterator[Line]:
    for term in row.get("terms") or ():
        yield _line(term["name"], term["text"], "", term["bytes"])
    device = case.budget.device
    if row["engine"] != "logical" or device is None or row["pool_bytes"] is None:
        return
    if case.budget.is_given:
        return
    share = case.budget.fraction or LOGICAL_FRACTION
    yield _line(
        "left for the cache",
        "memory x fraction - weights, 0 at least",
        f"max(0, {device.memory_bytes:,} x {share} - {row['weight_bytes']:,})",
        row["pool_bytes"],
        device.sources.get("memory_usable_bytes") or device.sources["memory_nominal_bytes"],
    )
