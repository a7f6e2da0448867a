"""The plan of one deployment: groups, a request's blocks, the reasons for its bytes, the pool."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvtool.engines.base import Estimate, Group, Pool, Reason, Term
from kvtool.engines.vllm_groups import Layout, TableGroup
from kvtool.engines.vllm_specs import Entry, Rules
from kvtool.model.spec import Attention

# What each reason means; the order is that of the explanation.
TEXTS = {
    "index_copies": "layers that read another layer's index get rows for one of their own",
    "packed_rows": "rows are packed by the kernels, not as the bare dtype would be",
    "in_flight_window": "a window or chunk also holds the tokens of the steps in flight",
    "window_stored_in_full": "without the hybrid cache manager a window is stored in full",
    "encoder_budget": "cross-attention is reserved for the encoder tokens of a step",
    "state_copies": "more recurrent states than one: prefix caching or speculative tokens",
    "page_rounding": "the last block is not full; a window may begin inside a block",
    "page_padding": "a smaller page is padded to the page that all groups share",
    "group_padding": "a group with fewer layers still takes blocks of the widest group",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """A layout under its rules. `stage` is the pipeline stage whose block is largest, `block_bytes`
    are those of a block on the devices of every stage."""

    layout: Layout
    rules: Rules
    block_bytes: tuple[int, ...]
    stage: int

    @classmethod
    def of(cls, layout: Layout, rules: Rules) -> Plan:
        ranks = range(rules.parallel.pp)
        block_bytes = tuple(layout.bytes_per_block(stage) for stage in ranks)
        return cls(layout, rules, block_bytes, max(ranks, key=block_bytes.__getitem__))

    @property
    def bytes_per_block(self) -> int:
        """Bytes of a block on the devices that hold most."""
        return self.block_bytes[self.stage]

    @property
    def blocks_per_request(self) -> int:
        return self.layout.blocks_per_request(self.rules)

    @property
    def request_bytes(self) -> int:
        return self.blocks_per_request * self.bytes_per_block

    @property
    def cluster_request_bytes(self) -> int:
        """Bytes of a request over all ranks: each stage's own blocks on each tensor rank."""
        return self.blocks_per_request * sum(self.block_bytes) * self.rules.parallel.tp

    @property
    def block_size(self) -> int:
        """Tokens per block of the attention layers; of the states where there are none."""
        sizes = [g.spec.block_size for g in self.layout.groups if g.spec.kind != "recurrent"]
        sizes = sizes or [group.spec.block_size for group in self.layout.groups]
        return min(sizes, default=self.rules.block_size)

    def groups(self) -> tuple[Group, ...]:
        return tuple(self._group(group) for group in self.layout.groups)

    def _group(self, group: TableGroup) -> Group:
        kinds = dict.fromkeys(entry.spec.kind for entry in group.entries)
        layers = sum(entry.stage == self.stage for entry in group.entries)
        pages = group.stage_bytes(self.stage)
        return Group(
            kind="+".join(kinds),
            layers=layers,
            block_size=group.spec.block_size,
            page_bytes=group.spec.page_bytes if pages == layers * group.spec.page_bytes else pages,
            blocks=group.blocks(self.rules),
        )

    def reasons(self) -> tuple[Reason, ...]:
        """Why a request takes more than its logical bytes; their sum is exactly the difference.

        Reasons with 0 bytes concern the pool and the cluster.
        """
        totals = dict.fromkeys(TEXTS, 0)
        for group in self.layout.groups:
            blocks = group.blocks(self.rules)
            for entry in group.entries:
                if entry.stage == self.stage:
                    for name, difference in self._differences(entry, blocks):
                        totals[name] += difference
            spare = self.bytes_per_block - group.stage_bytes(self.stage)
            totals["group_padding"] += blocks * spare
        found = [Reason(name, count, TEXTS[name]) for name, count in totals.items() if count]
        return (*found, *self._notes())

    def _differences(self, entry: Entry, blocks: int) -> Iterator[tuple[str, int]]:
        rules, spec = self.rules, entry.spec
        if not entry.states:
            yield "index_copies", blocks * spec.page_bytes
            return
        logical = sum(
            state.bytes(rules.context_tokens, rules.kv, rules.parallel, rules.encoder_tokens)
            for state in entry.states
        )
        yield "page_padding", blocks * (spec.page_bytes - spec.real_bytes)
        if spec.kind == "recurrent":
            yield "state_copies", blocks * spec.row_bytes - logical
            return
        state = entry.states[0]
        stored = state.tokens(rules.context_tokens, rules.encoder_tokens, rules.parallel.dcp)
        tokens = spec.tokens(rules)
        yield "packed_rows", spec.row_bytes * stored - logical
        yield "page_rounding", (blocks * spec.block_size - tokens) * spec.row_bytes
        name = "in_flight_window" if spec.kind == state.kind else "window_stored_in_full"
        yield name, (tokens - stored) * spec.row_bytes

    def _notes(self) -> Iterator[Reason]:
        tp = self.rules.parallel.tp
        entries = [entry for group in self.layout.groups for entry in group.entries]
        if any(entry.spec.kind in ("latent", "index") for entry in entries) and tp > 1:
            yield Reason("replicated_rows", 0, f"latent rows are on each of the {tp} tensor ranks")
        heads = {s.num_kv_heads for e in entries for s in e.states if isinstance(s, Attention)}
        for count in sorted(heads):
            if count < tp:
                text = f"{count} key/value heads on {tp} ranks: each is kept {tp // count} times"
                yield Reason("replicated_heads", 0, text)
        sizes = {entry.spec.block_size for entry in entries if entry.spec.kind != "recurrent"}
        if any(entry.spec.kind == "recurrent" for entry in entries) and sizes:
            text = f"attention blocks of {max(sizes)} tokens, so that a page holds a state"
            yield Reason("raised_block", 0, text)
        elif len(sizes) > 1:
            shown = " and ".join(map(str, sorted(sizes)))
            text = f"blocks of {shown} tokens, so that all pages are equal"
            yield Reason("unified_page", 0, text)
        if entries:
            text = f"one block of {self.bytes_per_block:,} B is held back and in no printed figure"
            yield Reason("null_block", 0, text)

    def pool(
        self,
        pool_bytes: Estimate,
        num_blocks: int | None,
        batch_size: int,
        stage: int | None = None,
        terms: tuple[Term, ...] = (),
    ) -> Pool:
        """The pool of a stage's devices as vLLM logs it, from its bytes or from its blocks.

        The stage with the largest block stands for all where none is named.
        """
        block = self.block_bytes[self.stage if stage is None else stage]
        if num_blocks is not None:
            blocks = Estimate.exact(num_blocks)
            pool_bytes = Estimate.exact(num_blocks * block)
        else:
            ends = pool_bytes.value, pool_bytes.low, pool_bytes.high
            blocks = Estimate(*(end // block for end in ends))
        request = self.blocks_per_request
        tokens = (self._tokens(n) for n in (blocks.value, blocks.low, blocks.high))
        return Pool(
            pool_bytes=pool_bytes,
            num_blocks=blocks,
            pool_tokens=Estimate(*tokens),
            max_concurrency=blocks.value / request,
            max_concurrency_low=blocks.low / request,
            max_concurrency_high=blocks.high / request,
            fits=batch_size * request <= blocks.value,
            max_batch_size=blocks.value // request,
            terms=terms,
        )

    def _tokens(self, num_blocks: int) -> int:
        """The log's "GPU KV cache size": concurrency x max_model_len; before vLLM 0.21 the blocks
        of one group x the smallest block."""
        rules = self.rules
        if rules.release.tokens_follow_concurrency:
            return int(num_blocks / self.blocks_per_request * rules.context_tokens)
        smallest = min(group.spec.block_size for group in self.layout.groups)
        return num_blocks // len(self.layout.groups) * smallest * rules.parallel.dcp
