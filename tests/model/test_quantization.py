"""Packed formats, quantisation configs, and the patterns that leave modules unpacked."""

from __future__ import annotations

import re
import time
from fnmatch import translate
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvtool.catalog import load_model
from kvtool.errors import ModelError
from kvtool.model.modules import NotUnderstood, matcher
from kvtool.model.quantization import PACKINGS, Packing, scheme_of
from kvtool.model.spec import Parallel
from kvtool.model.weights import weight_bytes

Q_PROJ = "model.layers.7.self_attn.q_proj"
DENSE = "model.layers.7.mlp.gate_proj"
EXPERTS = "model.layers.7.mlp.experts.gate_up_proj"
SHARED = "model.layers.7.mlp.shared_experts.gate_proj"
FP8: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
GROUP = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}


def compressed(weights: object, **more: object) -> dict[str, object]:
    group = {"targets": ["Linear"], "weights": weights} | more
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


def packing(config: dict[str, Any], module: str = Q_PROJ) -> str | None:
    found = scheme_of(config, "test").packing_of(module)
    return None if found is None else found.name


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("fp8", (256, 256), 65_536 + 4 * 4),
        ("fp8", (129, 1), 129 + 2 * 4),
        ("fp8-tensor", (8, 16), 128 + 4),
        ("fp8-channel", (8, 16), 128 + 8 * 4),
        ("int8", (8, 16), 128 + 8 * 4),
        ("int4", (8, 256), 1024 + 16 * 2.5),
        ("mxfp4", (4, 64), 128 + 8),  # OCP MX: 17 bytes for 32 elements
        ("nvfp4", (4, 64), 128 + 16 + 4),  # 9 bytes for 16, a float32 a matrix
        ("nf4-double", (64, 1024), 32_768 + 1024 + 16),  # QLoRA: 0.127 bits of scale each
        ("q8_0", (4, 64), 4 * 2 * 34),
        ("q4_0", (4, 64), 4 * 2 * 18),
    ],
)
def test_a_packed_matrix_takes_values_and_scales(
    name: str, shape: tuple[int, int], expected: float
) -> None:
    assert PACKINGS[name].bytes(shape) == expected


@given(
    st.sampled_from(sorted(PACKINGS)),
    st.integers(1, 9),
    st.integers(1, 40).map(lambda n: n * 32),
    st.integers(1, 40).map(lambda n: n * 32),
)
def test_leading_extents_are_separate_matrices(name: str, copies: int, out: int, inp: int) -> None:
    one = PACKINGS[name].bytes((out, inp))

    assert PACKINGS[name].bytes((copies, out, inp)) == copies * one
    assert one >= out * inp * PACKINGS[name].weight


def test_gptq_that_reorders_keeps_the_group_of_each_input() -> None:
    plain = {"quant_method": "gptq", "bits": 4, "group_size": 128}

    ordered = scheme_of(plain | {"desc_act": True}, "test").packing

    assert ordered.bytes((64, 256)) - scheme_of(plain, "test").packing.bytes((64, 256)) == 4 * 256


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (FP8, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": None}, "fp8-tensor"),  # Devstral 2
        ({"quant_method": "fp8"}, "fp8-tensor"),
        ({"quant_method": "fbgemm_fp8"}, "fp8-channel"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4-g128"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8-g-1"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4-plain"),
        (
            {
                "quant_method": "bitsandbytes",
                "load_in_4bit": True,
                "bnb_4bit_use_double_quant": True,
            },
            "nf4-double",
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8-tensor"),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, "fp8"),
        ({"quant_algo": "W4A16_AWQ", "group_size": 64}, "int4-g64"),
        ({"quantization": {"quant_algo": "NVFP4"}}, "nvfp4"),
        (compressed(GROUP), "int4-g32"),
        (compressed({"num_bits": 8, "type": "int", "strategy": "channel"}), "int8-g-1"),
        (compressed({"num_bits": 8, "type": "float", "strategy": "channel"}), "fp8-channel"),
        (compressed({"num_bits": 8, "type": "float", "strategy": "tensor"}), "fp8-tensor"),
        (
            compressed(
                {
                    "num_bits": 8,
                    "type": "float",
                    "strategy": "block",
                    "block_structure": [128, 128],
                }
            ),
            "fp8",
        ),
        (compressed({"num_bits": 4, "type": "float", "group_size": 16}), "nvfp4"),
        (compressed({"num_bits": 4, "type": "float", "group_size": 32}), "mxfp4"),
    ],
)
def test_a_config_names_its_packing(config: dict[str, Any], name: str) -> None:
    assert packing(config) == name


def test_int4_with_group_minus_one_has_a_scale_for_each_row() -> None:
    found = scheme_of({"quant_method": "gptq", "bits": 4, "group_size": -1}, "test").packing

    assert found.bytes((10, 1000)) == 5_000 + 10 * 2.5


# sophgo/LLM-TPU, models/LocateAnything/config/config.json.
AUTO_ROUND: dict[str, Any] = {
    "quant_method": "auto-round",
    "bits": 4,
    "data_type": "int",
    "group_size": 128,
    "sym": True,
    "autoround_version": "0.13.0",
    "block_name_to_quantize": "language_model.model.layers",
    "packing_format": "auto_round:auto_gptq",
}


def test_auto_round_stores_what_gptq_stores_without_the_order_of_inputs() -> None:
    """It was refused. AutoRound's layer holds qweight, qzeros and float16 scales
    (`auto_round_extension/torch/qlinear_torch_zp.py`); the form of GPTQModel adds `g_idx`."""
    found = scheme_of(AUTO_ROUND, "test").packing
    ordered = scheme_of(AUTO_ROUND | {"packing_format": "auto_round:gptqmodel"}, "test").packing

    assert found.bytes((256, 1024)) == 256 * 1024 // 2 + 256 * 8 * 2.5
    assert ordered.bytes((256, 1024)) - found.bytes((256, 1024)) == 4 * 1024


def test_auto_round_leaves_out_the_modules_that_its_settings_keep_in_16_bits() -> None:
    settings = {"model.layers.0.mlp.gate": {"bits": 16, "data_type": "float"}}
    scheme = scheme_of(AUTO_ROUND | {"extra_config": settings}, "test")

    assert scheme.packing_of("layers.0.mlp.gate") is None
    assert scheme.packing_of("layers.0.mlp.experts.down_proj") is not None


NOT_KNOWN: list[tuple[str, dict[str, Any]]] = [
    ("quant_method", {}),
    ("quant_method", {"quant_method": None}),
    ("quant_method", {"quant_method": ["fp8"]}),
    ("quant_method", {"quant_method": "aqlm"}),
    ("quant_algo", {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}),
    ("quant_algo", {"quant_algo": 4}),
    ("quant_algo", {"quant_algo": ["NVFP4"]}),
    ("weight_block_size", FP8 | {"weight_block_size": "128"}),
    ("weight_block_size", FP8 | {"weight_block_size": [128]}),
    ("weight_block_size", FP8 | {"weight_block_size": [0, 128]}),
    ("weight_block_size", FP8 | {"weight_block_size": [-1, -1]}),
    ("weight_block_size", FP8 | {"weight_block_size": [True, True]}),
    ("weight_block_size", FP8 | {"weight_block_size": [float("nan"), 128]}),
    ("bits", {"quant_method": "awq", "bits": "4"}),
    ("bits", {"quant_method": "awq", "bits": [4]}),
    ("bits", {"quant_method": "gptq", "bits": 3}),
    ("group_size", {"quant_method": "gptq", "group_size": 0}),
    ("group_size", {"quant_method": "gptq", "group_size": -2}),
    ("group_size", {"quant_method": "gptq", "group_size": 10**30}),
    ("group_size", {"quant_method": "gptq", "group_size": float("nan")}),
    ("dynamic", {"quant_method": "gptq", "dynamic": {"+:.*": {"bits": 8}}}),
    ("packing_format", {"quant_method": "auto-round", "bits": 4, "group_size": 128}),
    ("packing_format", AUTO_ROUND | {"packing_format": "gguf"}),
    ("data_type", AUTO_ROUND | {"data_type": "mx_fp"}),
    ("group_size", AUTO_ROUND | {"group_size": None}),
    ("bits", AUTO_ROUND | {"bits": 3}),
    ("extra_config", AUTO_ROUND | {"extra_config": ["lm_head"]}),
    ("extra_config", AUTO_ROUND | {"extra_config": {"lm_head": {"bits": 4}}}),
    ("extra_config", AUTO_ROUND | {"extra_config": {"lm_head": None}}),
    ("load_in_4bit", {"quant_method": "bitsandbytes"}),
    ("config_groups", {"quant_method": "compressed-tensors"}),
    ("config_groups", {"quant_method": "compressed-tensors", "config_groups": []}),
    ("config_groups", {"quant_method": "compressed-tensors", "config_groups": {}}),
    ("config_groups.weights", compressed(None)),
    ("config_groups.weights", compressed([])),
    ("config_groups.weights", compressed({"num_bits": float("nan"), "type": "float"})),
    ("config_groups.weights", compressed({"num_bits": 8, "type": "float", "strategy": "x"})),
    ("config_groups.targets", compressed(GROUP, targets="Linear")),
    ("config_groups.targets", compressed(GROUP, targets=["Conv1d"])),
    ("ignore", FP8 | {"ignore": "lm_head"}),
    ("ignore", FP8 | {"ignore": {"lm_head": 1}}),
    ("modules_to_not_convert", FP8 | {"modules_to_not_convert": ["lm_head", 7]}),
    ("modules_to_not_convert", FP8 | {"modules_to_not_convert": [["lm_head"]]}),
    ("expert_dtype", FP8 | {"expert_dtype": "fp3"}),
    ("expert_dtype", {"quant_method": "awq", "expert_dtype": "fp4"}),
]


@pytest.mark.parametrize(("field", "config"), NOT_KNOWN)
def test_what_is_not_known_is_an_error_naming_the_field(field: str, config: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=re.escape(f"quantization_config.{field}")) as caught:
        scheme_of(config, "test")

    assert len(str(caught.value)) < 300
    assert "--dtype" in caught.value.hint


@pytest.mark.parametrize(
    "patterns",
    [
        ["x"] * 1_000_000,
        ["re:(a+)+$"],
        ["re:(.*)*b"],
        ["re:" + "(a|b)" * 40],
        ["re:" + "(" * 5_000],
        ["re:" + ".*a" * 100],
        ["*" * 100_000],
        ["*a*b" + str(i) for i in range(1000)],
        ["re:.*(?=self_attn)"],
        ["re:a{1000000000}"],
        ["re:[a-z]+"],
        ["re:a$|b$"],
    ],
    ids=lambda patterns: f"{len(patterns)} x {patterns[0][:12]}",
)
def test_hostile_patterns_are_refused_at_once(patterns: list[str]) -> None:
    start = time.perf_counter()

    with pytest.raises(ModelError) as caught:
        scheme_of(FP8 | {"ignore": patterns}, "test")

    assert len(str(caught.value)) < 300
    assert time.perf_counter() - start < 2


def test_the_longest_allowed_wildcards_stay_cheap() -> None:
    left_out = matcher(["re:" + ".*a" * 10 + str(i) for i in range(8)])
    start = time.perf_counter()

    found = [left_out(f"model.layers.{i}.{'a.' * 30}b") for i in range(500)]

    assert not any(found)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    ("pattern", "module", "left_out"),
    [
        # Kimi K2.5: experts are packed, everything beside them is not
        ("re:.*self_attn.*", Q_PROJ, True),
        (r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", DENSE, True),
        (r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", EXPERTS, False),
        ("re:.*shared_experts.*", SHARED, True),
        # gpt-oss and ModelOpt: globs, from the start of the name
        ("model.layers.*.self_attn", Q_PROJ, True),
        ("model.layers.*.self_attn", DENSE, False),
        ("*self_attn*", Q_PROJ, True),
        ("*.attn.*", Q_PROJ, True),
        ("mtp*", "model.layers.7.mtp_block.q_proj", False),
        ("model.layers.1*", "model.layers.12.mlp.up_proj", True),
        ("model.layers.1.*", "model.layers.12.mlp.up_proj", False),
        # other names of the text model, as NVIDIA's lists have them
        ("language_model.model.layers.7.self_attn*", Q_PROJ, True),
        ("model.language_model.layers.7.self_attn*", Q_PROJ, True),
        ("model.language_model.layers.8.self_attn*", Q_PROJ, False),
        ("backbone.layers.7.mixer.in_proj", "model.layers.7.mixer.in_proj", True),
        ("backbone.layers.7.mixer.q_proj", Q_PROJ, True),
        # explicit names, a module and what is inside it, suffixes
        (Q_PROJ, Q_PROJ, True),
        (Q_PROJ, "model.layers.17.self_attn.q_proj", False),
        ("model.layers.7", Q_PROJ, True),
        ("model.layers.7.self_attn", Q_PROJ, True),
        ("model.layers.7.self", Q_PROJ, False),
        ("mlp.gate", DENSE, False),
        ("gate", "model.layers.0.mlp.gate", True),
        ("gate", DENSE, False),
        ("model.layers", Q_PROJ, True),
        # joined and renamed modules
        ("model.layers.7.self_attn.qkv_proj", Q_PROJ, True),
        ("model.layers.7.mlp.gate_up_proj", DENSE, True),
        ("model.layers.7.mlp.gate_up_proj", EXPERTS, False),
        ("model.layers.7.mlp.experts.12.gate_proj", EXPERTS, True),
        (r"re:.*mlp\.experts\.\d+\.up_proj", EXPERTS, True),
        ("model.layers.*.mlp.experts.*.gate_proj", EXPERTS, True),
        ("*.mlp.shared_expert.*", SHARED, True),
        ("model.layers.7.block_sparse_moe.gate", "model.layers.7.mlp.gate", True),
        ("model.layers.7.linear_attn.in_proj_b", "model.layers.7.linear_attn.in_proj_ba", True),
        # regular expressions start at the start and end where they end
        ("re:self_attn", Q_PROJ, False),
        ("re:.*q_proj$", Q_PROJ, True),
        ("re:.*self_attn$", Q_PROJ, False),
        (r"re:^model\.layers\.(7|8)\..*", Q_PROJ, True),
        (r"re:^model\.layers\.(70|8)\..*", Q_PROJ, False),
        (r"re:model\.layers\.\d+\.self_attn", Q_PROJ, True),
        (r"re:model\.layers\.\d\.self_attn", "model.layers.17.self_attn.q_proj", False),
        ("re:.*lm_head", Q_PROJ, False),
    ],
)
def test_a_pattern_means_its_modules(pattern: str, module: str, left_out: bool) -> None:
    assert matcher([pattern])(module) is left_out


COMPONENTS = st.sampled_from(["a", "b", "ab", "ba_c", "a1", "c"])
NAMES = st.builds(
    lambda number, parts: ".".join(["layers", str(number), *parts]),
    st.integers(0, 120),
    st.lists(COMPONENTS, min_size=1, max_size=3),
)
REGEX_PIECES = st.sampled_from(
    ["a", "b", "c", "_", "1", "12", "layers", r"\.", ".", ".*", ".+", r"\d+", r"\d", r"[0-9]+",
     r"\w+", "[^.]+", "[^.]*", "(a|b)", "(?:ab|c)", "(1|2|10)", r"layers\.", r"\.a", r"layers\.1\."]
)  # fmt: skip


@settings(max_examples=400)
@given(st.lists(REGEX_PIECES, min_size=1, max_size=6), st.booleans(), st.lists(NAMES, max_size=12))
def test_understood_expressions_agree_with_pythons(
    pieces: list[str], whole: bool, names: list[str]
) -> None:
    pattern = "".join(pieces) + ("$" if whole else "")
    try:
        left_out = matcher([f"re:{pattern}"])
    except NotUnderstood:
        assume(False)

    for name in names:
        assert left_out(f"model.{name}") == bool(re.match(pattern, name)), name


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from(["a", "b", "_c", ".", "*", "?", "1", "layers.", "layers.1."]),
        min_size=1,
        max_size=6,
    ),
    st.lists(NAMES, max_size=12),
)
def test_globs_agree_with_pythons_up_to_the_end_of_a_component(
    pieces: list[str], names: list[str]
) -> None:
    pattern = "".join(pieces)
    assume("*" in pattern or "?" in pattern)
    expression = translate(pattern).removesuffix(r"\Z").removesuffix(r"\z") + r"(?=\.|$)"

    left_out = matcher([pattern])

    for name in names:
        assert left_out(f"model.{name}") == bool(re.match(expression, name)), name


def test_modules_that_no_checkpoint_packs_stay_plain() -> None:
    assert packing(FP8, "model.layers.61.mtp.eh_proj") is None
    assert packing(FP8, "model.layers.0.self_attn.indexer.weights_proj") is None
    assert packing(FP8, "model.layers.0.self_attn.indexer.wk") == "fp8"


def test_fp4_experts_beside_fp8_have_byte_scales() -> None:
    """DeepSeek V4: `expert_dtype` fp4, everything else fp8 by blocks, all scales E8M0."""
    config = FP8 | {"expert_dtype": "fp4"}

    assert packing(config, EXPERTS) == "mxfp4"
    assert packing(config, SHARED) == "fp8-ue8m0"


def test_groups_of_compressed_tensors_take_the_modules_they_name() -> None:
    four, eight = {"weights": GROUP}, {"weights": {"num_bits": 8, "type": "float"}}
    groups = {
        "experts": {"targets": ["re:.*experts.*"], **four},
        "rest": {"targets": ["Linear"], **eight},
    }
    config = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}

    alone = config | {"config_groups": {"experts": groups["experts"]}}

    assert [packing(config, m) for m in (EXPERTS, DENSE)] == ["int4-g32", "fp8-tensor"]
    assert [packing(alone, m) for m in (EXPERTS, DENSE)] == ["int4-g32", None]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
FIELDS = [
    *("quant_method", "quant_algo", "weight_block_size", "bits", "group_size", "config_groups"),
    *("ignore", "modules_to_not_convert", "expert_dtype", "desc_act", "quantization"),
]
STARTS = [FP8, {"quant_method": "awq"}, {"quant_method": "gptq"}, compressed(GROUP), {}]


@settings(max_examples=300)
@given(st.sampled_from(STARTS), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
def test_any_config_gives_a_scheme_or_a_model_error(
    start: dict[str, Any], changed: dict[str, Any]
) -> None:
    try:
        scheme = scheme_of(start | changed, "test")
    except ModelError:
        return

    found = scheme.packing_of(Q_PROJ)
    assert found is None or isinstance(found.bytes((256, 256)), int)
    assert isinstance(scheme.packing, Packing)


# Bytes of whole checkpoints. Sources: the sum of the tensors of openai/gpt-oss-120b (15 files,
# 65,248,893,184 B with their headers); the repository of deepseek-ai/DeepSeek-V3.


def test_gpt_oss_120b_takes_the_bytes_of_its_tensors() -> None:
    found = weight_bytes(load_model("gpt-oss-120b"))

    assert found == 65_248_815_744
    assert round(found / 2**30, 2) == 60.77


def test_deepseek_v3_takes_the_bytes_of_its_files() -> None:
    """688,586,727,753 B hold, beside the 61 layers and the MTP layer, the copies of embedding and
    head that the MTP layer carries, and the headers of 163 files (some 130 B a tensor)."""
    copies = 2 * 129_280 * 7168 * 2

    headers = 688_586_727_753 - (weight_bytes(load_model("deepseek-v3"), mtp=True) + copies)

    assert 0 < headers < 15_000_000


def test_kimi_k2_5_packs_its_experts_alone() -> None:
    """Group 32, a bfloat16 scale each and no zeros: 0.5625 B a weight; the rest in 16 bits."""
    model = load_model("kimi-k2.5")
    experts = 60 * 384 * 3 * 2048 * 7168

    assert weight_bytes(model) == weight_bytes(model, "bfloat16") - experts * (2 - 0.5625)


def test_ranks_share_packed_bytes() -> None:
    model = load_model("gpt-oss-120b")

    alone, halves = weight_bytes(model), weight_bytes(model, "auto", Parallel(tp=2))

    assert alone / 2 < halves < alone * 0.52
