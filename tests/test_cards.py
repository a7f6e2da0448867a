"""Every shipped model card, and the bytes that known models are known to take."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

import kvtool
from kvtool import kvcache
from kvtool.catalog import card_names, card_text, find_card, load_card, make_card
from kvtool.model.weights import mtp_parameters, parameters, weight_bytes

NAMES = card_names()
COUNTED = json.loads(
    Path(__file__).with_name("golden").joinpath("parameter_counts.json").read_text("utf-8")
)["models"]

# Parameters that transformers' class has less (-) or more (+) than the checkpoint.
OTHERWISE_COUNTED = {
    # It ties the head to the embedding; the published checkpoints hold both: 32,128 x d_model.
    "flan-t5-large": -32_128 * 1024,
    "flan-t5-xxl": -32_128 * 4096,
    "t5-v1.1-xl": -32_128 * 2048,
    # The copy holds no vision section, and the class then builds its default one.
    "llama-4-maverick": 455_178_240,
    "llama-4-scout": 455_178_240,
    "step-3.7-flash": 1_980_351_232,
    "step-3.7-flash-fp8": 1_980_351_232,
}


def row(model, **asked):
    return kvtool.size(model, **asked).results[0]


def test_there_are_enough_cards_of_enough_types():
    types = {load_card(name).spec().model_type for name in NAMES}

    assert len(NAMES) >= 200
    assert len(types) >= 65


def test_all_cards_are_sized_through_the_api():
    report = kvtool.size(NAMES, ctx=4096, encoder_tokens=1500)

    assert [result["model"] for result in report.results] == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_card_gives_a_model_with_whole_positive_bytes(name):
    card = load_card(name)
    spec = card.spec()
    contexts = [4096, spec.max_context or 4096]
    held = [kvcache.sequence_bytes(spec, context, encoder=1500) for context in contexts]
    caches = bool(spec.attention_kinds)

    assert spec.name == name == card.name
    assert all(type(size) is int for size in held)
    assert all(size > 0 for size in held) if caches else held == [0, 0]
    assert type(weight_bytes(spec)) is int
    assert parameters(spec) > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_card_says_where_it_comes_from(name):
    card = load_card(name)

    assert card.source
    assert card.aliases
    assert "/" not in name


@pytest.mark.parametrize("name", NAMES)
def test_a_card_holds_only_fields_that_decide(name):
    """A field that no reader asks for would look like a fact that counts."""
    card = load_card(name)

    assert make_card(card.config, name, card.source).config == card.config


@pytest.mark.parametrize("name", NAMES)
def test_no_list_in_a_card_was_shortened(name):
    assert "left out>" not in card_text(load_card(name))


def test_names_and_aliases_are_unique_in_any_case():
    said = Counter(
        spelled.lower() for name in NAMES for spelled in (name, *load_card(name).aliases)
    )

    assert [spelled for spelled, times in said.items() if times > 1] == []


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("meta-llama/Meta-Llama-3-70B-Instruct", "llama-3-70b"),
        ("Meta-Llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"),
        ("llama3.1:8b", "llama-3.1-8b"),
        ("qwen3:32b", "qwen3-32b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("DeepSeek-R1", "deepseek-r1"),
        ("zai-org/GLM-4.6", "glm-4.7"),
    ],
)
def test_models_are_found_as_people_type_them(typed, name):
    card = find_card(typed)

    assert card is not None
    assert card.name == name


# Bytes per token beyond every window, fixed state, and one sequence of 32,768 tokens, bf16, one
# device. By hand: 2 x layers x kv heads x head_dim x 2 B for plain attention; what is different is
# said beside the row.
KNOWN = [
    ("llama-2-7b", 524_288, 0, 17_179_869_184),
    ("llama-3-70b", 327_680, 0, 10_737_418_240),
    ("qwen3-32b", 262_144, 0, 8_589_934_592),  # head_dim 128, not 5120 / 64
    ("mistral-nemo-12b", 163_840, 0, 5_368_709_120),  # head_dim 128, not 5120 / 32
    ("falcon-7b", 8_192, 0, 268_435_456),  # multi_query: one head of 64
    ("falcon-40b", 122_880, 0, 4_026_531_840),  # new architecture: 8 heads of 64
    ("starcoder", 20_480, 0, 671_088_640),  # multi_query, no key for it
    ("chatglm3-6b", 28_672, 0, 939_524_096),  # multi_query_group_num 2
    ("dbrx", 163_840, 0, 5_368_709_120),  # kv_n_heads 8 under attn_config
    ("mpt-7b", 524_288, 0, 17_179_869_184),  # d_model, n_heads, n_layers
    ("openelm-270m", 16_128, 0, 528_482_304),  # 3 to 5 heads, by layer
    ("nemotron-super-49b", 200_704, 0, 6_576_668_672),  # 49 of 80 layers attend
    ("deepseek-v3", 70_272, 0, 2_302_672_896),  # 61 x (512 + 64) x 2
    ("deepseek-v3.2", 78_324, 0, 2_566_520_832),  # + 61 x 132 of index keys
    ("glm-5.2", 92_628, 0, 3_035_234_304),  # 78 x 1,152 + 21 x 132: indexer on 21 layers
    ("minicpm3-4b", 35_712, 0, 1_170_210_816),  # 62 x (256 + 32) x 2
    ("qwen3-next-80b-a3b", 24_576, 39_518_208, 844_824_576),  # 12 of 48 layers grow
    ("qwen3.5-27b", 65_536, 153_944_064, 2_301_427_712),  # float32 state: 48 x 3,207,168
    ("jamba-v0.1", 16_384, 8_716_288, 545_587_200),  # 4 of 32 layers grow
    ("lfm2-1.2b", 12_288, 81_920, 402_735_104),  # 6 attention layers, 10 of 2 x 2048 x 2 B
    ("mamba-2.8b", 0, 12_451_840, 12_451_840),
    ("gpt-oss-120b", 36_864, 0, 1_212_678_144),  # 18 windows of 128
    ("mistral-7b-v0.1", 0, 0, 536_870_912),  # a window of 4096 on every layer
    ("mistral-7b-v0.2", 131_072, 0, 4_294_967_296),  # sliding_window null
    ("command-r7b", 32_768, 0, 1_476_395_008),  # 3 of 4 layers slide over 4096
    ("gemma-2-27b", 188_416, 0, 6_945_767_424),  # every second layer slides over 4096
    ("gemma-4-31b", 81_920, 0, 3_523_215_360),  # 10 full layers of 4 x 512, 50 of 16 x 256
    ("mimo-v2-flash", 23_040, 0, 780_533_760),  # K 192, V 128; 4 heads full, 8 sliding
]


@pytest.mark.parametrize(("name", "growing", "fixed", "held"), KNOWN)
def test_known_models_take_known_bytes(name, growing, fixed, held):
    result = row(name, ctx="32k", kv_dtype="bf16")

    assert result["growing_bytes_per_token"] == growing
    assert result["fixed_bytes"] == fixed
    assert result["sequence_bytes"] == held


@pytest.mark.parametrize(
    ("name", "context", "held"),
    [
        ("gemma-3-27b", "128k", 11_173_625_856),  # 10 global layers, 52 windows of 1024
        ("gemma-3-4b", "128k", 5 * 4096 * 131_072 + 29 * 4096 * 1024),  # widths from the class
        ("llama-4-scout", "128k", 7_650_410_496),  # 12 full layers, 36 chunks of 8192
        ("gemma-3n-e4b", "100", 100 * 40_960),  # 15 of 35 layers store nothing
    ],
)
def test_windows_chunks_and_shared_layers_bound_the_cache(name, context, held):
    assert row(name, ctx=context)["sequence_bytes"] == held


@pytest.mark.parametrize("name", ["phi-3.5-mini", "qwen2.5-7b", "phi-4-mini"])
def test_a_window_beyond_the_context_or_switched_off_bounds_nothing(name):
    held = [row(name, ctx=context)["sequence_bytes"] for context in ("1k", "128k")]

    assert held[1] == 128 * held[0]


@pytest.mark.parametrize(
    ("name", "dtype", "held"),
    [
        ("llama-3-70b", "q8_0", 5_704_253_440),  # 34 B for 32 elements
        ("llama-3-70b", "q4_0", 3_019_898_880),  # 18 B for 32
        ("llama-3-70b", "nvfp4", 3_019_898_880),  # 9 B for 16
        ("deepseek-v3", "fp8", 35_136 * 32_768),
    ],
)
def test_quantised_rows_carry_their_scales(name, dtype, held):
    assert row(name, ctx="32k", kv_dtype=dtype)["sequence_bytes"] == held


@pytest.mark.parametrize(
    ("name", "tp", "per_token"),
    [("llama-3-70b", 8, 40_960), ("llama-3-70b", 16, 40_960), ("deepseek-v3", 8, 70_272)],
)
def test_heads_are_sharded_then_copied_and_latent_rows_are_copied(name, tp, per_token):
    assert row(name, ctx="32k", tp=tp)["bytes_per_token"] == per_token


def test_an_encoder_decoder_keeps_its_audio_once():
    """Whisper large v3: 32 layers x 1500 frames x 20 heads x 64, keys and values."""
    result = row("whisper-large-v3", ctx=448)

    assert result["fixed_bytes"] == 245_760_000
    assert result["growing_bytes_per_token"] == 163_840


@pytest.mark.parametrize("name", ["arctic-embed-m", "bert-base-uncased"])
def test_an_encoder_keeps_nothing(name):
    assert row(name, ctx=512)["sequence_bytes"] == 0


@pytest.mark.parametrize("name", [name for name in COUNTED if name in NAMES])
def test_parameters_are_those_that_transformers_builds(name):
    """`tests/oracles/transformers_oracle.py counts --cards` counted them on the meta device."""
    counted = COUNTED[name]
    total = counted["text"] if counted["total"] is None else counted["total"]

    assert parameters(load_card(name).spec()) == total - OTHERWISE_COUNTED.get(name, 0)


def test_enough_cards_were_counted_by_transformers():
    types = {load_card(name).spec().model_type for name in COUNTED if name in NAMES}

    assert len(COUNTED) >= 250
    assert len(types) >= 70


# Exact totals that others printed from the checkpoints' own tensors: Mistral Nemo and QwQ in
# public model reports; Llama from `sum(p.numel())` as quoted in the models' discussions.
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("mistral-7b-v0.1", 7_241_732_096),
        ("mistral-nemo-12b", 12_247_782_400),
        ("qwq-32b", 32_763_876_352),
        ("mixtral-8x7b", 46_702_792_704),
    ],
)
def test_parameters_are_those_of_the_checkpoint(name, count):
    assert parameters(load_card(name).spec()) == count


# Totals that the publishers print, in billions, as precisely as they print them.
@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3.1-405b", 405.9),
        ("deepseek-v3", 671.0),
        ("deepseek-v4-flash", 284.3),
        ("kimi-linear-48b-a3b", 49.1),
        ("gpt-oss-120b", 116.8),
        ("gpt-oss-20b", 20.9),
        ("phi-3.5-moe", 41.9),
        ("granite-4.0-h-small", 32.2),
        ("nemotron-nano-9b-v2", 8.9),
        ("minimax-text-01", 456.1),
        ("glm-5", 743.9),
        ("qwen3-235b-a22b", 235.1),
        ("mixtral-8x22b", 140.6),
        ("falcon-mamba-7b", 7.3),
        ("whisper-large-v3", 1.54),
    ],
)
def test_parameters_are_close_to_what_publishers_print(name, billions):
    assert parameters(load_card(name).spec()) / 1e9 == pytest.approx(billions, rel=0.004)


def test_prediction_layers_are_counted_apart():
    """DeepSeek-V3's own layer for the next token but one: 11.5e9 parameters beside 671.0e9."""
    assert mtp_parameters(load_card("deepseek-v3").spec()) == pytest.approx(11.5e9, rel=0.01)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("gpt-oss-120b", 65.2),  # mxfp4 experts, the rest bfloat16
        ("kimi-k2.5-nvfp4", 591),
        ("gemma-4-31b-nvfp4", 32.6),
        ("qwen3-32b-fp8", 34.3),
        ("deepseek-v3", 673),
    ],
)
def test_quantised_checkpoints_have_their_size_on_disk(name, gigabytes):
    assert weight_bytes(load_card(name).spec()) / 1e9 == pytest.approx(gigabytes, rel=0.005)
