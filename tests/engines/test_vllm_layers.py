"""What vLLM's classes give single layers: indexes, states, stages, and tensors as loaded.

Values are those of vLLM 0.22.1 and 0.33.0: `models/deepseek_v2.py` (indexes),
`layers/mamba/mamba_utils.py` (types of states), `v1/spec_decode/llm_base_proposer.py` (drafters).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvtool import engines
from kvtool.catalog import load_model
from kvtool.device import load_device
from kvtool.engines.base import Budget, Deployment, Reserve
from kvtool.engines.vllm_releases import MIB
from kvtool.errors import KvtoolError
from kvtool.model.spec import (
    Attention,
    Index,
    Latent,
    Layer,
    ModelSpec,
    Parallel,
    Recurrent,
    Shared,
    Weight,
)

LATENT = Latent(576, 128, 192, 128)
OWNER = Layer((LATENT, Index(128)))
READER = Layer((LATENT,))
FULL = Layer((Attention(32, 8, 128, 128),))
LATENT_PAGE, INDEX_PAGE = 64 * 656, 64 * 132


def a_model(*layers: Layer, **fields: object) -> ModelSpec:
    spec = ModelSpec("a-model", "llama", "bfloat16", layers, hidden_size=4096, vocab_size=32000)
    return replace(spec, **fields)  # type: ignore[arg-type]


def reserve(
    model: ModelSpec, version: str = "0.22.1", deployment: Deployment = Deployment(),
    **options: str,
) -> Reserve:  # fmt: skip
    deployment = replace(deployment, options=options)
    return engines.load("vllm", version).reserve(model, 8192, 1, deployment)


def loaded(model: ModelSpec, deployment: Deployment = Deployment()) -> int:
    found = reserve(model, deployment=deployment).loaded_bytes
    assert found is not None
    return found.value


@pytest.mark.parametrize(("version", "indexes"), [("0.22.1", 4), ("0.33.0", 1)])
def test_layers_that_read_an_index_store_none_from_0_33_on(version: str, indexes: int) -> None:
    """0.22.1 builds an indexer with its cache in every layer, also in those that skip top-k."""
    found = reserve(a_model(OWNER, READER, READER, READER), version)

    assert found.bytes_per_block == 4 * LATENT_PAGE + indexes * INDEX_PAGE


def test_a_layer_that_reads_an_index_has_packed_rows_too() -> None:
    """656 B, not 576: the cache's format is that of the model (it was the layer's own)."""
    found = reserve(a_model(READER, OWNER), "0.33.0")

    assert found.bytes_per_block == 2 * LATENT_PAGE + INDEX_PAGE


@pytest.mark.parametrize("version", ["0.22.1", "0.33.0"])
def test_an_mtp_layer_of_a_sparse_model_always_has_an_index(version: str) -> None:
    model = a_model(OWNER, OWNER, mtp_layers=(READER,))

    found = reserve(model, version, Deployment(mtp=True))

    assert found.bytes_per_block == 3 * (LATENT_PAGE + INDEX_PAGE)


@pytest.mark.parametrize(
    ("version", "block_bytes"),
    [("0.22.1", 78 * (LATENT_PAGE + INDEX_PAGE)), ("0.33.0", 78 * LATENT_PAGE + 21 * INDEX_PAGE)],
)
def test_glm_5_2_is_what_vllms_planner_makes_of_it(version: str, block_bytes: int) -> None:
    """78 latent layers, of which 21 have an index; its request is explained to the byte."""
    model = load_model("glm-5.2")

    found = reserve(model, version, Deployment(Parallel(tp=8)))

    logical = sum(state.bytes(8192, found.kv) for state in model.states())
    assert found.bytes_per_block == block_bytes
    assert logical + sum(reason.bytes for reason in found.reasons) == found.request_bytes


def a_state(*kinds: str, dtype: str = "bfloat16") -> Layer:
    states = {
        "conv": Recurrent("conv", ((24_576, 16),), "bfloat16"),
        "recurrent": Recurrent("recurrent", ((524_288, 32),), dtype),
    }
    return Layer(tuple(states[kind] for kind in kinds))


@pytest.mark.parametrize(
    ("layer", "options", "state_bytes"),
    [
        pytest.param(a_state("recurrent"), {"mamba_ssm_cache_dtype": "float32"}, 524_288 * 2,
                     id="lightning-ignores-ssm"),
        pytest.param(a_state("recurrent"), {"mamba_cache_dtype": "float32"}, 524_288 * 4,
                     id="lightning-follows-cache"),
        pytest.param(a_state("conv", "recurrent"), {"mamba_ssm_cache_dtype": "float32"},
                     24_576 * 2 + 524_288 * 4, id="ssm-beside-a-tail"),
        pytest.param(a_state("conv", "recurrent"), {"mamba_cache_dtype": "float32"},
                     (24_576 + 524_288) * 4, id="state-of-its-tails-type-follows"),
        pytest.param(a_state("conv", "recurrent", dtype="float32"),
                     {"mamba_cache_dtype": "float16"}, 24_576 * 2 + 524_288 * 4,
                     id="state-of-another-type-stays"),
    ],
)  # fmt: skip
def test_types_of_states_are_those_of_vllms_calculator(
    layer: Layer, options: dict[str, str], state_bytes: int
) -> None:
    found = reserve(a_model(layer), **options)

    assert found.bytes_per_block == state_bytes


@pytest.mark.parametrize(
    ("kind", "version", "columns"),
    [("minicpmv4_6", "0.22.1", 3 + 3), ("minicpmv4_6", "0.33.0", 3 + 3),
     ("kimi_k3", "0.33.0", 3 + 3), ("granitemoehybrid", "0.22.1", 3),
     ("granitemoehybrid", "0.33.0", 3 + 3)],
)  # fmt: skip
def test_tails_are_longer_by_the_speculative_tokens(kind: str, version: str, columns: int) -> None:
    """`num_spec` of each class's `get_mamba_state_shape_from_config`."""
    layer = Layer((Recurrent("conv", ((3 * 8192, 16),), "bfloat16", tail=3),))

    found = reserve(a_model(layer, model_type=kind), version, num_speculative_tokens="3")

    assert found.bytes_per_block == columns * 8192 * 2


@pytest.mark.parametrize(
    ("kind", "gpu", "states"),
    [("kimi_k3", "h200", 3), ("kimi_k3", "a100-sxm-80gb", 2), ("kimi_linear", "h200", 2),
     ("qwen3_5", "h200", 3), ("olmo_hybrid", "h200", 2)],
)  # fmt: skip
def test_a_state_is_kept_as_checkpoint_where_the_kernels_export_it(
    kind: str, gpu: str, states: int
) -> None:
    """0.33: FlashKDA (bounded gates) and FlashInfer's delta nets, on Hopper and Blackwell."""
    model = a_model(a_state("conv", "recurrent"), FULL, model_type=kind)
    budget = Budget(device=load_device(gpu))

    found = engines.load("vllm", "0.33.0").reserve(model, 8192, budget=budget)

    assert {g.blocks for g in found.groups if g.kind == "recurrent"} == {states}


def test_a_stage_without_a_cache_is_refused_as_by_vllm() -> None:
    """Gemma 3n on four stages: its last layers all read another one's keys and values."""
    model = a_model(FULL, FULL, Layer((Shared(),)), Layer((Shared(),)))

    with pytest.raises(KvtoolError, match="stage 2 of 2") as error:
        reserve(model, deployment=Deployment(Parallel(pp=2)))

    assert "--pp" in error.value.hint


@pytest.mark.parametrize(
    ("kind", "version", "served"),
    [("rwkv5", "0.33.0", False), ("minimax_m1", "0.33.0", False), ("minimax_m1", "0.22.1", True),
     ("kimi_k3", "0.22.1", False), ("kimi_k3", "0.33.0", True)],
)  # fmt: skip
def test_a_model_that_a_release_has_no_class_for_is_named(
    kind: str, version: str, served: bool
) -> None:
    found = reserve(a_model(FULL, model_type=kind), version)

    assert any("does not serve" in warning for warning in found.warnings) != served


@pytest.mark.parametrize(
    ("name", "shape", "loaded_bytes"),
    [("A_log", (512, 16), 512 * 16 * 4), ("A_log_D_dt_bias", (3, 512), 512 * (4 + 2 + 2)),
     ("A_log_dt_bias", (2, 512), 512 * (4 + 2)), ("dt_bias", (512,), 512 * 4)],
)  # fmt: skip
def test_decays_are_loaded_in_float32(name: str, shape: tuple[int, ...], loaded_bytes: int) -> None:
    """The first tensor of a joint parameter alone; the others keep the model's type."""
    layer = Layer((), (Weight(f"mixer.{name}", "recurrent", shape, 512),))

    assert loaded(a_model(layer)) == loaded_bytes


def test_a_drafter_is_loaded_whole_and_in_its_own_types() -> None:
    """llm_base_proposer.py: a draft model shares neither embedding nor head with the target."""
    embedding, head = (Weight(n, "embedding", (32_768, 512)) for n in ("embed_tokens", "lm_head"))
    layer = Layer(FULL.states, (Weight("mlp.up_proj", "mlp", (4096, 512), linear=True),))
    draft = a_model(layer, dtype="float32", vocab_size=32_768, embedding=(embedding,), head=(head,))

    more = loaded(a_model(FULL), Deployment(draft=draft)) - loaded(a_model(FULL))

    assert more == 4 * (2 * 32_768 * 512 + 4096 * 512)


def test_a_drafter_of_unknown_weights_leaves_the_loaded_bytes_unknown() -> None:
    draft = a_model(FULL, weights_known=False)

    assert reserve(a_model(FULL), deployment=Deployment(draft=draft)).loaded_bytes is None


def test_mtp_layers_hold_the_embedding_again_on_a_later_stage() -> None:
    """The embedding is shared with the drafter on one pipeline stage alone."""
    table = Weight("embed_tokens", "embedding", (32_000, 4096))
    head = Weight("lm_head", "head", (32_000, 4096))
    plain = Layer(FULL.states, (Weight("o_proj", "attention", (MIB,)),))
    model = a_model(plain, plain, embedding=(table,), head=(head,), mtp_layers=(plain,))
    staged = Parallel(pp=2)

    more = loaded(model, Deployment(staged, mtp=True)) - loaded(model, Deployment(staged))

    assert more == 2 * (32_000 * 4096 + MIB)
