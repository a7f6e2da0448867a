"""Laws of the engines without blocks of their own kind: SGLang, TensorRT-LLM, transformers."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool import engines
from kvtool.catalog import load_model
from kvtool.engines.base import Budget, Deployment, Reserve
from kvtool.model.spec import ModelSpec, Parallel

ENGINES = ("sglang", "trtllm", "transformers")
MODELS = ("llama-3.1-8b", "gemma-3-27b", "gpt-oss-120b", "deepseek-v3.2", "qwen3-next-80b-a3b")
GIB = 1 << 30

contexts = st.integers(1, 300_000)
which = given(st.sampled_from(ENGINES), st.sampled_from(MODELS), contexts, contexts)


@cache
def model(name: str) -> ModelSpec:
    return load_model(name)


def reserve(
    engine: str, name: str, context: int, batch: int = 1, tp: int = 1, pool: int | None = None
) -> Reserve:
    deployment = Deployment(parallel=Parallel(tp=tp))
    return engines.load(engine).reserve(
        model(name), context, batch, deployment, Budget(pool_bytes=pool)
    )


@settings(max_examples=60, deadline=None)
@which
def test_a_longer_request_never_takes_less(engine: str, name: str, one: int, other: int) -> None:
    short, long = sorted((one, other))

    assert reserve(engine, name, short).request_bytes <= reserve(engine, name, long).request_bytes


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(ENGINES), st.sampled_from(MODELS), contexts, st.integers(1, 1000))
def test_a_batch_takes_its_requests(engine: str, name: str, context: int, batch: int) -> None:
    found = reserve(engine, name, context, batch)

    assert found.cache_bytes == batch * found.request_bytes


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(ENGINES),
    st.sampled_from(MODELS),
    st.integers(1, 60_000),
    st.integers(1, 200 * GIB),
    st.integers(1, 200 * GIB),
)
def test_more_memory_never_holds_less(
    engine: str, name: str, context: int, one: int, other: int
) -> None:
    small, large = sorted((one, other))

    few = reserve(engine, name, context, pool=small).pool
    many = reserve(engine, name, context, pool=large).pool

    assert few is not None
    assert many is not None
    assert few.pool_tokens.value <= many.pool_tokens.value
    assert few.max_concurrency <= many.max_concurrency


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_ranks_share_heads_and_the_cluster_holds_all(engine: str, tp: int) -> None:
    """Llama-3.1-8B has 8 KV heads: up to tp 8 a rank holds its share and the sum stays."""
    whole = reserve(engine, "llama-3.1-8b", 4096)
    share = reserve(engine, "llama-3.1-8b", 4096, tp=tp)

    assert share.request_bytes * tp == whole.request_bytes
    assert share.cluster_bytes == whole.cluster_bytes
