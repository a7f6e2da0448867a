"""Workloads of the literature, each named after what it reproduces, with the published figures.

LazyAttention, arXiv 2606.04302v1, states hit rates without the workload behind them: no document
length, number of requests, eviction policy or prompt order. These presets are workloads that come
near its figures, found by search, not its setting. `docs/concepts/hit-rates.md` says how near.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvtool.workload.documents import DocumentWorkload
from kvtool.workload.lengths import Lengths

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Preset:
    """A workload and what to ask of it.

    workload: with its first exponent; skews: all exponents.  budgets: bytes.
    page_tokens: documents are padded to pages of that.  paper: published hit rates by (rule,
    exponent, budget).
    """

    about: str
    workload: DocumentWorkload
    skews: tuple[float, ...]
    budgets: tuple[int, ...]
    rules: tuple[str, ...]
    lookup: str
    warmup: float
    seeds: int
    page_tokens: int
    paper: Mapping[tuple[str, float, int], float]


_TABLE1_BUDGETS = (GIB, 5 * GIB, 10 * GIB, 50 * GIB, 66 * GIB)
_TABLE1_SKEWS = (1.1, 1.5, 2.1)
# Table 1 of arXiv 2606.04302v1, per cent, Low / Mid / High at 1, 5, 10, 50 GB and "no limit",
# which it puts at about 66 GB.
_TABLE1 = {
    "prefix": (
        (0.00, 0.04, 0.08, 0.46, 0.58),
        (0.00, 0.30, 0.55, 1.95, 2.16),
        (0.00, 0.70, 1.22, 3.07, 3.25),
    ),
    "lazy": (
        (3.47, 10.85, 13.78, 20.22, 21.33),
        (11.11, 21.16, 23.89, 28.44, 29.09),
        (13.57, 20.49, 21.92, 24.14, 24.50),
    ),
}

PRESETS: Mapping[str, Preset] = {
    "table1-fit": Preset(
        about="fit to Table 1 of arXiv 2606.04302: 4 Zipf draws and cold documents up to 10",
        workload=DocumentWorkload(
            docs=100_000,
            docs_per_request=10,
            skew=1.1,
            cold=6,
            order="shuffled",
            duplicates="drop",
            requests=8_000,
            lengths=Lengths(455, 455),
        ),
        skews=_TABLE1_SKEWS,
        budgets=_TABLE1_BUDGETS,
        rules=("prefix", "position-aware", "two-copy", "lazy"),
        lookup="each",
        warmup=0.0,
        seeds=3,
        page_tokens=1,
        paper={
            (rule, skew, budget): per_cent / 100
            for rule, by_skew in _TABLE1.items()
            for skew, by_budget in zip(_TABLE1_SKEWS, by_skew, strict=True)
            for budget, per_cent in zip(_TABLE1_BUDGETS, by_budget, strict=True)
        },
    ),
    "table11": Preset(
        about="Table 11 of arXiv 2606.04302: 16 documents of 1 GiB, 6 of 10 usable",
        workload=DocumentWorkload(
            docs=16,
            docs_per_request=5,
            skew=0.0,
            order="shuffled",
            requests=6_000,
            lengths=Lengths(8_192, 8_192),
        ),
        skews=(0.0,),
        budgets=(6 * GIB,),
        rules=("prefix", "position-aware", "lazy"),
        lookup="each",
        warmup=0.2,
        seeds=5,
        page_tokens=16,
        paper={("lazy", 0.0, 6 * GIB): 0.288, ("position-aware", 0.0, 6 * GIB): 0.096},
    ),
    "headline": Preset(
        about="13.57 %, 2.86x and 7.5x of arXiv 2606.04302 in one workload",
        workload=DocumentWorkload(
            docs=100_000,
            docs_per_request=3,
            skew=1.1,
            requests=6_000,
            lengths=Lengths(1_024, 1_024),
        ),
        skews=(1.1,),
        budgets=(GIB,),
        rules=("prefix", "position-aware", "lazy"),
        lookup="each",
        warmup=0.0,
        seeds=10,
        page_tokens=16,
        paper={("lazy", 1.1, GIB): 0.1357},
    ),
}
