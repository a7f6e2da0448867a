"""Groups of layers that share a block table, and what a block and a request cost.

vLLM keeps one pool of block ids. Layers of a group use the same blocks; groups lie over the same
memory, so a block costs the pages of the widest group and a request the sum of the groups' blocks:

    bytes_per_block = max over groups of the sum of their layers' pages
    num_blocks      = pool // bytes_per_block, the least over pipeline stages
    request         = sum over groups of a request's blocks

Source: `get_kv_cache_groups` and its helpers in `v1/core/kv_cache_utils.py` (0.22),
`v1/core/kv_cache_planning.py` (0.33).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvtool.engines.vllm_releases import Release
from kvtool.engines.vllm_specs import Entry, Rules, Spec
from kvtool.errors import KvtoolError

_FULL = ("full", "latent", "index")


@dataclass(frozen=True, slots=True)
class TableGroup:
    """Entries on one block table."""

    entries: tuple[Entry, ...]

    @property
    def spec(self) -> Spec:
        return self.entries[0].spec

    def stage_bytes(self, stage: int) -> int:
        """Bytes of one block on the devices of a pipeline stage."""
        return sum(entry.spec.page_bytes for entry in self.entries if entry.stage == stage)

    def blocks(self, rules: Rules) -> int:
        """Blocks of one request: the same for all entries, which share block size and tokens."""
        return self.spec.blocks(rules)


@dataclass(frozen=True, slots=True)
class Layout:
    """All groups of a model, and the layers that grouping pads with (in layers per block)."""

    groups: tuple[TableGroup, ...]

    def bytes_per_block(self, stage: int) -> int:
        return max((group.stage_bytes(stage) for group in self.groups), default=0)

    def blocks_per_request(self, rules: Rules) -> int:
        return sum(group.blocks(rules) for group in self.groups)


def layout(found: Sequence[Entry], rules: Rules) -> Layout:
    """The groups of the specifications `found`; none for a model that keeps nothing.

    Raises KvtoolError where vLLM itself refuses the mixture.
    """
    members = list(found)
    _check_stages(members, rules.parallel.pp)
    if not rules.hybrid:
        members = _without_windows(members)
    if not members:
        return Layout(())
    if _is_uniform(members):
        return Layout((TableGroup(tuple(members)),))
    if not rules.hybrid:
        raise KvtoolError(
            "vLLM cannot serve this mixture of layers without its hybrid cache manager",
            "leave disable_hybrid_kv_cache_manager off",
        )
    return Layout(tuple(_balanced(_one_page(members, rules.release))))


def _check_stages(members: Sequence[Entry], pp: int) -> None:
    """KvtoolError where some stages keep a cache and others none: vLLM sizes no pool for those."""
    empty = sorted(set(range(pp)) - {entry.stage for entry in members})
    if members and empty:
        raise KvtoolError(
            f"vLLM cannot start stage {empty[0] + 1} of {pp}: no layer of it keeps a cache",
            "lower --pp",
        )


def _without_windows(members: list[Entry]) -> list[Entry]:
    """Windows and chunks stored in full, beside full layers, when the hybrid manager is off."""
    block = next((e.spec.block_size for e in members if e.spec.kind in _FULL), None)
    if block is None or _is_uniform(members):
        return members
    return [
        replace(entry, spec=replace(entry.spec, kind="full", limit=None, block_size=block))
        if entry.spec.kind in ("sliding", "chunked")
        else entry
        for entry in members
    ]


def _is_uniform(members: Sequence[Entry]) -> bool:
    """Whether all need the same number of tokens: one block size, one kind, one window."""
    specs = [entry.spec for entry in members]
    keys: Callable[[Spec], tuple[object, ...]] = lambda spec: (  # noqa: E731
        "full" if spec.kind in _FULL else spec.kind,
        spec.block_size,
        spec.limit,
    )
    return len({keys(spec) for spec in specs}) == 1


def _one_page(members: list[Entry], release: Release) -> list[Entry]:
    """All specifications on the largest page: by a larger block where it divides, else padded."""
    largest = max(entry.spec.page_bytes for entry in members)
    return [replace(entry, spec=_scaled(entry.spec, largest, release)) for entry in members]


def _scaled(spec: Spec, page: int, release: Release) -> Spec:
    if spec.page_bytes == page:
        return spec
    if spec.kind == "recurrent" and release.pads_pages:
        return replace(spec, padded_bytes=page)
    if page % spec.page_bytes == 0 and spec.kind != "recurrent":
        return replace(spec, block_size=spec.block_size * (page // spec.page_bytes))
    if release.pads_pages and spec.kind not in ("latent", "index"):
        return replace(spec, padded_bytes=page)
    raise KvtoolError(
        f"vLLM cannot bring a page of {spec.page_bytes:,} B ({spec.kind} layers) to {page:,} B",
        "another block_size, kv dtype or tp may make the pages divide",
    )


def _balanced(members: list[Entry]) -> list[TableGroup]:
    """Groups of equal width: the rarest kind of layer sets it, or the most common one below 1.5x.

    A kind with n layers fills ceil(n / width) groups, its layers dealt out in turn.
    """
    kinds: dict[tuple[object, ...], list[Entry]] = {}
    for entry in members:
        spec = entry.spec
        key = (spec.kind, spec.identity, spec.block_size, spec.limit, spec.padded_bytes)
        kinds.setdefault(key, []).append(entry)
    counts = [len(entries) for entries in kinds.values()]
    width = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = []
    for entries in kinds.values():
        number = -(-len(entries) // width)
        groups += [TableGroup(tuple(entries[i::number])) for i in range(number)]
    return groups
