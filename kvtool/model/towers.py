"""What a multimodal model holds beside its text decoder: towers, projectors, a voice.

The sections of a configuration decide: one that is absent or null has no tower, one without a
formula here is named, never guessed. Formulas are in `vision`, `audio`, `speech` and `projectors`;
fields that a section leaves out come from `tower_defaults.json`, generated from transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from kvtool.model import audio, speech
from kvtool.model.counting import Unstated, flat, part_type, section, with_defaults
from kvtool.model.fields import Fields
from kvtool.model.projectors import PROJECTORS
from kvtool.model.spec import Weight
from kvtool.model.vision import vit
from kvtool.model.vision_types import VITS, gemma4_unified, lfm3, molmo2_adapter

Tower = Callable[[Fields, str], tuple[Weight, ...]]

TOWERS: dict[str, Tower] = {
    **{kind: partial(vit, style) for kind, style in VITS.items()},
    "gemma4_unified_vision": gemma4_unified,
    "lfm3_vl_vision": lfm3,
    "molmo2_adapter": molmo2_adapter,
    **dict.fromkeys(
        (
            "qwen2_audio_encoder",
            "voxtral_encoder",
            "audioflamingo3_encoder",
            "moss_transcribe_diarize_audio",
        ),
        audio.whisper,
    ),
    "qwen2_5_omni_audio_encoder": audio.qwen2_5_omni,
    "qwen3_omni_moe_audio_encoder": audio.qwen3_omni,
    "glmasr_encoder": audio.glmasr,
    "qwen3_asr_encoder": audio.qwen3_asr,
    "voxtral_realtime_encoder": audio.voxtral_realtime,
    "gemma4_audio": audio.gemma4,
    "gemma4_unified_audio": audio.gemma4_unified,
    "phi4_multimodal_audio": audio.phi4,
    "muse_spark_audio": audio.muse,
    "qwen2_5_omni_talker": speech.talker,
    "qwen2_5_omni_token2wav": speech.token2wav,
}

# Sections that hold something with parameters beside the text decoder.
SECTIONS = (
    "vision_config", "audio_config", "talker_config", "token2wav_config", "code2wav_config",
    "sound_config", "speech_config", "tts_config", "visual", "vision_tower_config", "vq_config",
    "qformer_config", "perceiver_config", "adapter_config", "projector_config", "aligner_config",
    "high_res_vision_config", "gen_vision_config", "gen_aligner_config", "gen_head_config",
    "embd_layer", "img_processor", "audio_processor", "speech_encoder_config",
)  # fmt: skip

# Types whose tower is written into their code, with no section to tell its sizes.
WITHOUT_SECTION = {"molmo": "vision tower", "fuyu": "vision_embed_tokens"}

# The release of MiniCPM-V whose code the formula follows.
MINICPMV = "2.6"


def towers(root: Fields, hidden: int) -> tuple[tuple[Weight, ...], tuple[str, ...]]:
    """The weights beside a text decoder of width `hidden`, and the sections that have no formula.

    Both are empty for a text model. Every record has part "encoder" and no TP units: engines keep
    towers whole on every rank by default. A value that is no whole number is left in
    `root.faults`.
    """
    weights: tuple[Weight, ...] = ()
    unknown: tuple[str, ...] = ()
    if (tower := WITHOUT_SECTION.get(root.model_type)) is not None:
        unknown = (tower,)
    for name in SECTIONS:
        value = root.raw.get(name)
        if value is not None and not isinstance(value, Mapping):
            root.fault(name, value, "a mapping")
        if not isinstance(value, Mapping) or _is_mute(root, name):
            continue
        try:
            found = _part(root, name, hidden)
        except Unstated:
            found = None
        if found is None:
            root.used.add(f"{root.path}{name}.model_type")
        weights += found or ()
        unknown += (f"{root.path}{name}",) if found is None else ()
    if not root.path and isinstance(root.raw.get("thinker_config"), Mapping):
        thinker = root.child("thinker_config", model_type=f"{root.model_type}_thinker")
        inner, missing = towers(thinker, hidden)
        return weights + inner, unknown + missing
    return weights, unknown


def _is_mute(root: Fields, name: str) -> bool:
    """Whether the configuration switches the voice off that a section describes."""
    return name in ("talker_config", "token2wav_config") and not root.flag(
        "enable_audio_output", True
    )


def _part(root: Fields, name: str, hidden: int) -> tuple[Weight, ...] | None:
    """The tower of a section and what leads from it to the decoder; None without a formula."""
    projector = PROJECTORS.get(name, {}).get(root.model_type)
    kind, fixed = part_type(root.model_type, name)
    stated = root.raw[name].get("model_type")
    if not fixed and isinstance(stated, str) and stated:
        kind = stated
    tower = TOWERS.get(kind)
    if projector is None or tower is None or _is_other_release(root):
        return None
    owner, found = with_defaults(root, root.model_type), section(root, name, kind)
    label = name.removesuffix("_config")
    ahead = projector(owner, found, hidden)
    return (*tower(found, label), *flat(f"{label}.projector", ahead))


def _is_other_release(root: Fields) -> bool:
    """Whether the model is another release than the one whose code the formula follows."""
    if root.model_type != "minicpmv":
        return False
    root.used.add("version")
    return str(root.raw.get("version")) != MINICPMV
