"""Advice where the numbers give it: what another setting of the same engine would change.

Each rule runs the adapter again with one setting changed and speaks only when the difference is
worth it (`WORTH`). Advice is data: a name, a sentence, the option, and the figures before and
after, so that nothing has to be read out of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from kvtool.engines.base import Budget, Deployment, Engine, Estimate, Reserve
from kvtool.errors import KvtoolError
from kvtool.model.spec import Attention, Latent, ModelSpec

# A difference below this share is not worth a change of settings.
WORTH = 0.02
SHORT_PROMPT = 128
FEWER_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Advice:
    """A change worth making. `figure` names what `before` and `after` count."""

    name: str
    text: str
    option: str | None
    figure: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Question:
    """A row that was computed, and everything needed to compute it again."""

    engine: Engine
    model: ModelSpec
    context_tokens: int
    batch_size: int
    deployment: Deployment
    budget: Budget
    found: Reserve

    def again(self, **options: str) -> Reserve | None:
        """The same with options changed; None where the engine refuses them."""
        return self._run(replace(self.deployment, options={**self.deployment.options, **options}))

    def on_ranks(self, **ranks: int) -> Reserve | None:
        """The same on other ranks; None where the model cannot be dealt out over them."""
        try:
            parallel = replace(self.deployment.parallel, **ranks)
        except KvtoolError:
            return None
        return self._run(replace(self.deployment, parallel=parallel))

    def of_context(self, tokens: int) -> Reserve | None:
        return self._run(self.deployment, tokens)

    def _run(self, deployment: Deployment, tokens: int | None = None) -> Reserve | None:
        context = self.context_tokens if tokens is None else tokens
        try:
            return self.engine.reserve(
                self.model, context, self.batch_size, deployment, self.budget
            )
        except KvtoolError:
            return None

    def has_set(self, *names: str) -> bool:
        """Whether the user chose one of these options already."""
        plain = {name.strip("-").replace("-", "_").lower() for name in self.deployment.options}
        return not plain.isdisjoint(names)


def advise(question: Question) -> list[Advice]:
    """The advice for a row, the rules in the order of this module."""
    return [advice for rule in RULES for advice in rule(question)]


def _without_hybrid_manager(question: Question) -> Iterator[Advice]:
    """vLLM's groups and in-flight tokens can cost more than windows save."""
    option = "disable_hybrid_kv_cache_manager"
    if question.engine.name != "vllm" or question.has_set(option):
        return
    kinds = {group.kind for group in question.found.groups}
    if kinds.isdisjoint({"sliding", "chunked"}) or len(question.found.groups) < 2:
        return
    other = question.again(**{option: "true"})
    before = question.found.request_bytes
    if other is not None and _is_worth(before, other.request_bytes):
        text = (
            f"windows cost more than they save at this context: {other.request_bytes:,} B a request"
            f" without the hybrid cache manager, {before:,} B with it"
        )
        yield Advice(
            "hybrid_manager", text, f"{option}=true", "request_bytes", before, other.request_bytes
        )


def _fewer_batched_tokens(question: Question) -> Iterator[Advice]:
    """A smaller step leaves more of the memory, and less beside each window."""
    option = "max_num_batched_tokens"
    now = question.found.settings.get(option)
    if question.engine.name != "vllm" or question.has_set(option):
        return
    if not isinstance(now, int) or now <= FEWER_TOKENS or question.found.pool is None:
        return
    other = question.again(**{option: str(FEWER_TOKENS)})
    if other is None or other.pool is None:
        return
    before, after = _tokens(question.found), _tokens(other)
    if _is_worth(after, before):
        text = (
            f"{FEWER_TOKENS:,} tokens a step instead of {now:,} free {after - before:,} tokens of"
            f" the pool: {after:,} instead of {before:,}; prompts are read in smaller pieces"
        )
        yield Advice(
            "batched_tokens", text, f"{option}={FEWER_TOKENS}", "pool_tokens", before, after
        )


def _replicas(question: Question) -> Iterator[Advice]:
    """Ranks beyond the key/value heads hold copies: the cluster pays, no device gains."""
    tp = question.deployment.parallel.tp
    states = [s for s in set(question.model.states()) if isinstance(s, Attention | Latent)]
    counts = [s.num_kv_heads if isinstance(s, Attention) else 1 for s in states]
    heads = max(counts, default=tp)
    if heads >= tp or question.deployment.parallel.dcp > 1:
        return
    copies = tp // heads
    other = question.on_ranks(dcp=copies)
    before = question.found.request_bytes
    latent = any(isinstance(s, Latent) for s in states)
    rows = "latent rows" if latent else f"{heads} KV heads"
    text = f"{rows} on {tp} ranks: each is kept {copies} times, and the cache takes {before:,} B a"
    text += f" request on every device, as at tp {heads}"
    if question.engine.name == "vllm" and other is not None:
        after = other.request_bytes
        if _is_worth(before, after):
            text += f"; --dcp {copies} splits the tokens instead: {after:,} B"
            yield Advice("replicated_heads", text, None, "request_bytes", before, after)
            return
    if latent:  # on every rank whatever tp is, and without dcp nothing to do about it
        return
    fewer = question.on_ranks(tp=heads)
    if fewer is not None and fewer.cluster_bytes < question.found.cluster_bytes:
        yield Advice(
            "replicated_heads", text, None, "cluster_bytes", question.found.cluster_bytes,
            fewer.cluster_bytes,
        )  # fmt: skip


def _large_block(question: Question) -> Iterator[Advice]:
    """A block raised to hold a recurrent state is taken whole by the shortest prompt."""
    block = question.found.block_size
    if question.engine.name != "vllm" or block <= SHORT_PROMPT:
        return
    short = question.of_context(min(SHORT_PROMPT, question.context_tokens))
    if short is None:
        return
    held = sum(group.blocks for group in short.groups) * question.found.bytes_per_block
    text = (
        f"blocks of {block:,} tokens: a prompt of {SHORT_PROMPT} tokens takes {held:,} B,"
        f" {held / question.found.request_bytes:.0%} of a request of"
        f" {question.context_tokens:,}"
    )
    yield Advice("large_block", text, None, "request_bytes", question.found.request_bytes, held)


def _window_ratio(question: Question) -> Iterator[Advice]:
    """SGLang's window pool is cut by a ratio, whatever the requests need of it.

    It must still hold two prefill steps, which write all their tokens before a window forgets.
    """
    option = "swa_full_tokens_ratio"
    ratio = question.found.settings.get(option)
    if question.engine.name != "sglang" or question.has_set(option):
        return
    if not isinstance(ratio, float) or question.found.pool is None:
        return
    step = question.found.settings.get("chunked_prefill_size")
    assert isinstance(step, int)
    tries = [share for share in (0.5, 0.4, 0.3, 0.2, 0.1, 0.05) if share < ratio]
    best, before = None, question.found.pool.max_concurrency
    for share in tries:
        other = question.again(**{option: str(share)})
        if other is not None and other.pool is not None:
            reached = other.pool.max_concurrency
            if _tokens(other) * share < 2 * step:
                continue
            if best is None or reached > best[0]:
                best = (reached, share, other)
    if best is not None and _is_worth(best[0], before):
        _, share, other = best
        text = (
            f"a window pool of {share:g} of the full one's tokens instead of {ratio:g} holds"
            f" {_tokens(other):,} tokens instead of {_tokens(question.found):,}:"
            f" {best[0]:.1f} requests of {question.context_tokens:,} instead of {before:.1f}"
        )
        yield Advice(
            "window_ratio", text, f"{option}={share:g}", "pool_tokens",
            _tokens(question.found), _tokens(other),
        )  # fmt: skip


def _attention_window(question: Question) -> Iterator[Advice]:
    """TensorRT-LLM stores windows in full unless they are named."""
    option = "max_attention_window"
    if question.engine.name != "trtllm" or question.has_set(option):
        return
    limits = [
        next((s.limit for s in layer.states if isinstance(s, Attention)), None)
        for layer in question.model.layers
    ]
    context = question.context_tokens
    if not any(limit is not None and limit < context for limit in limits):
        return
    pattern = _shortest_period([context if limit is None else limit for limit in limits])
    value = ",".join(map(str, pattern))
    other = question.again(**{option: value})
    if other is None or question.found.pool is None or other.pool is None:
        return
    before, after = question.found.pool.max_concurrency, other.pool.max_concurrency
    if _is_worth(after, before):
        text = (
            f"with the windows named {after:.1f} requests of {context:,} fit instead of"
            f" {before:.1f}: {other.request_bytes:,} B a request instead of"
            f" {question.found.request_bytes:,}"
        )
        yield Advice(
            "attention_window", text, f"{option}={value}", "request_bytes",
            question.found.request_bytes, other.request_bytes,
        )  # fmt: skip


def _shortest_period(values: list[int]) -> list[int]:
    """The shortest list that repeated gives `values`: what the engine expects as a pattern."""
    for length in range(1, len(values)):
        if all(value == values[i % length] for i, value in enumerate(values)):
            return values[:length]
    return values


def _is_worth(larger: float, smaller: float) -> bool:
    return larger > 0 and (larger - smaller) / larger >= WORTH


def _tokens(found: Reserve) -> int:
    tokens = found.pool.pool_tokens if found.pool is not None else Estimate.exact(0)
    return tokens.value


RULES: tuple[Callable[[Question], Iterator[Advice]], ...] = (
    _without_hybrid_manager,
    _fewer_batched_tokens,
    _replicas,
    _large_block,
    _window_ratio,
    _attention_window,
)
