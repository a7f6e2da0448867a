"""Formulas behind the figures of a study, with the numbers of its first row in place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kvtool.simulation.answers import Row, entry_bytes
from kvtool.simulation.expected import mean_document_bytes
from kvtool.simulation.study import Outcome
from kvtool.theory import che_time, request_rates
from kvtool.workload.documents import DocumentWorkload
from kvtool.workload.requests import BlockRequests


def explained(outcome: Outcome) -> list[dict[str, str]]:
    """Lines of `what`, `formula` and `numbers`, for the first row and the first `lazy` row."""
    if not outcome.rows:
        return []
    first = outcome.rows[0]
    lines = [*_bytes(outcome, first), *_rates(first)]
    lazy = next((row for row in outcome.rows if row.reuse == "lazy"), None)
    if lazy is not None and lazy.analytic_method == "che":
        lines += _che(outcome, lazy)
    return [
        {"what": what, "formula": formula, "numbers": numbers} for what, formula, numbers in lines
    ]


def _bytes(outcome: Outcome, row: Row) -> Iterator[tuple[str, str, str]]:
    source = outcome.plan.sources[0]
    size = entry_bytes(outcome.plan, 0)
    if isinstance(source, BlockRequests):
        what, tokens = "bytes of a block", source.block_size
    elif isinstance(source, DocumentWorkload) and source.lengths.fixed is not None:
        page = outcome.plan.page_tokens
        what, tokens = "bytes of a document", -(-source.lengths.fixed // page) * page
    else:
        yield (
            "bytes of a document",
            f"cache of the model for its tokens, padded to pages of {outcome.plan.page_tokens}",
            "",
        )
        return
    yield what, f"cache of the model for {tokens:,} tokens", f"{size:,} B"
    if row.budget_bytes is not None and size:
        entries = row.budget_bytes // size
        yield (
            "entries in the budget",
            "floor(budget / bytes of one)",
            f"floor({row.budget_bytes:,} / {size:,}) = {entries:,}",
        )


def _rates(row: Row) -> Iterator[tuple[str, str, str]]:
    seeds = f", mean of {row.seeds} seeds" if row.seeds else ""
    yield (
        "hit_rate",
        f"found / looked up{seeds}",
        f"{row.hit_rate:.6f} over {row.lookups:,} look-ups",
    )
    yield (
        "an LRU of C equal entries finds a key",
        "iff fewer than C other keys were touched since it was",
        "",
    )
    if row.hit_rate_low is not None and row.seeds:
        yield (
            "95 % interval",
            "mean ± t s / sqrt(seeds), Student's t",
            f"{row.hit_rate:.6f} ± {row.hit_rate - row.hit_rate_low:.6f} over {row.seeds} seeds",
        )


def _che(outcome: Outcome, row: Row) -> Iterator[tuple[str, str, str]]:
    source = outcome.plan.sources[0]
    if not isinstance(source, DocumentWorkload) or row.budget_bytes is None:
        return
    found = request_rates(source)
    if found is None:
        return
    documents = row.budget_bytes / mean_document_bytes(outcome.plan, source)
    time = che_time(found.rates, documents, found.counts)
    yield (
        "theory of lazy (Che)",
        "T requests with sum_i (1 - exp(-r_i T)) = C; hit rate = sum_i c_i (1 - exp(-r_i T)) / D",
        f"C = {documents:,.1f}, T = {time:,.2f}, D = {found.lookups:.3f}: "
        f"{row.analytic_hit_rate:.6f}",
    )
    yield (
        "r_i and c_i",
        "rate and chance of document i in a request; r_1, c_1",
        f"{float(np.max(found.rates)):.6f}, {float(np.max(found.chances)):.6f}",
    )
