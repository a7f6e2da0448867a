"""Readers against transformers' own class defaults: parameters and cached layers of each type.

The golden file is written by tests/oracles/class_counts.py from transformers 5.24.0.
"""

import json
from collections import Counter
from pathlib import Path

import pytest

from kvtool.errors import ModelError
from kvtool.model.huggingface import read_config
from kvtool.model.spec import Layer, ModelSpec

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "class_counts.json").read_text("utf-8")
)["types"]

# What the error names: a type, a layer type, or a field, that the readers do not know.
REFUSED = {
    "blip_text_model": "blip_text_model",
    "blt": "blt",
    "evolla": "evolla",
    "git": "git",
    "glm4v_moe_text": "head_dim",
    "idefics": "idefics",
    "kosmos_2_5_text_model": "kosmos_2_5_text_model",
    "kosmos_2_text_model": "kosmos_2_text_model",
    "kyutai_speech_to_text": "kyutai_speech_to_text",
    "pi0": "pi0",
    "pix2struct": "pix2struct",
    "pp_formulanet": "pp_formulanet",
    "prophetnet": "prophetnet",
    "qwen3_omni_moe_text": "head_dim",
    "seamless_m4t": "seamless_m4t",
    "seamless_m4t_v2": "seamless_m4t_v2",
    "udop": "udop",
    "unlimited_ocr_text": "reference_sliding_attention",
    "xlnet": "xlnet",
}

# Encoders, and decoders beside an encoder of another shape: states are read, weights are not.
UNCOUNTED = {
    "bert-generation", "big_bird", "bigbird_pegasus", "electra", "fsmt", "led", "megatron-bert",
    "pegasus_x", "rembert", "roberta-prelayernorm", "roc_bert", "roformer", "t5gemma", "t5gemma2",
    "trocr", "xlm", "xlm-roberta-xl", "xmod",
}  # fmt: skip

# transformers allocates weights for the identity experts of LongCat; no checkpoint holds them.
DIFFERENT = {"longcat_flash"}

# Passes of a looped layer have caches of their own, which transformers appends as the model runs.
LOOPED = {"inkling2_loop_text": 1}

# BERT and its like keep nothing as encoders; DeepSeek V4, RWKV and xLSTM have caches of their own;
# Dory's loops append their layers as the model runs; GPT-Neo's local layers keep rows they mask.
OWN_CACHE = {
    "bert", "camembert", "data2vec-text", "deepseek_v4", "dory", "ernie", "gpt_neo", "roberta",
    "rwkv", "xlm-roberta", "xlstm",
}  # fmt: skip

READ = sorted(GOLDEN.keys() - REFUSED.keys())
COUNTED = sorted(set(READ) - UNCOUNTED - DIFFERENT)
CACHED = [kind for kind in COUNTED if GOLDEN[kind]["cache"] and kind not in OWN_CACHE]


def read(kind: str) -> ModelSpec:
    return read_config(GOLDEN[kind]["config"], kind, kind)[0]


def parameters(spec: ModelSpec) -> int:
    parts = (spec.embedding, spec.head, spec.encoder, *(layer.weights for layer in spec.layers))
    return sum(weight.elements for part in parts for weight in part)


def caches(layer: Layer) -> list[str]:
    """The layer's caches as transformers names them; sliding ones with their window."""
    kinds = [state.kind for state in layer.states]
    linear = "linear+" if {"recurrent", "conv"} & set(kinds) else ""
    rows = [
        f"{linear}sliding {state.limit}"
        if state.kind in ("sliding", "chunked")
        else f"{linear}full"
        for state in layer.states
        if state.kind in ("full", "latent", "sliding", "chunked")
    ]
    if rows:
        return rows
    if "cross" in kinds:
        return ["full"]
    return ["linear"] if linear else ["none"]


def test_golden_file_covers_two_hundred_types() -> None:
    assert len(GOLDEN) >= 200


def test_one_hundred_and_seventy_types_are_counted() -> None:
    assert len(COUNTED) >= 170


def test_exceptions_name_types_of_the_golden_file() -> None:
    assert {*REFUSED, *UNCOUNTED, *DIFFERENT, *OWN_CACHE} <= GOLDEN.keys()


@pytest.mark.parametrize("kind", COUNTED)
def test_parameters_equal_those_of_transformers(kind: str) -> None:
    spec = read(kind)

    assert spec.weights_known
    assert parameters(spec) == GOLDEN[kind]["parameters"]


@pytest.mark.parametrize("kind", CACHED)
def test_layers_cache_what_transformers_caches(kind: str) -> None:
    expected = Counter(GOLDEN[kind]["cache"])
    # A key of the sparse index comes on top of the rows; layers that reuse a choice keep none.
    expected["full"] += expected.pop("indexed", 0)
    found = Counter(
        name for layer in read(kind).layers for name in caches(layer)[: LOOPED.get(kind)]
    )

    assert +found == +expected


@pytest.mark.parametrize("kind", sorted(UNCOUNTED))
def test_uncounted_weights_are_said_so(kind: str) -> None:
    spec = read(kind)

    assert not spec.weights_known
    assert any("not counted" in note for note in spec.notes)


@pytest.mark.parametrize(("kind", "named"), sorted(REFUSED.items()))
def test_types_that_are_not_read_are_refused_by_name(kind: str, named: str) -> None:
    with pytest.raises(ModelError, match=named):
        read(kind)


def test_identity_experts_of_longcat_have_no_weights() -> None:
    """256 of 768 router rows lead to experts that return their input: 28 layers x 256 x 3 x 2048 x
    6144 - 2048 x 6144 x 256 fewer parameters than transformers allocates."""
    spec = read("longcat_flash")
    missing = GOLDEN["longcat_flash"]["parameters"] - parameters(spec)

    assert missing == 28 * 256 * 2 * 2048 * 6144
