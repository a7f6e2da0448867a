"""SGLang's rules by release: what changed, when, and the source it was read in.

A release holds for itself and for every later version up to the next one in the table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvtool.errors import UsageError


@dataclass(frozen=True, slots=True)
class Release:
    """Rules of one SGLang release.

    `prefill_graphs`: the default fraction leaves room for prefill graphs too. `draft_mb` is what
    it leaves for a drafter. `split_by_layers`: pools of windowed models are cut from a pool in
    which every layer costs the same; later each kind is priced by its own heads and widths.
    `state_copies`: extra recurrent states of a request where scheduling overlaps.
    `padding_slot`: a state slot more is allocated than used. `vision_cache_mb`: held back for
    image embeddings.
    """

    version: str
    prefill_graphs: bool
    draft_mb: int
    split_by_layers: bool
    state_copies: int
    padding_slot: int
    vision_cache_mb: int


# Sources, srt of the `sglang` package. 0.5.6 to 0.5.9: model_executor/model_runner*.py and
# server_args.py; 0.5.11 and 0.5.14: model_executor/pool_configurator.py too; from 0.5.20:
# mem_cache/kv_cache_configurator.py and arg_groups/memory_hook.py. A change stands at the first
# of these releases that has it. In order: prefill graphs, draft MiB, split by layers, copies,
# padding slot, MiB for images.
RELEASES = (
    Release("0.5.6", False, 2048, True, 0, 0, 0),
    Release("0.5.8", False, 2048, True, 2, 0, 0),
    Release("0.5.9", False, 2048, False, 2, 0, 0),
    Release("0.5.11", True, 4096, False, 2, 0, 0),
    Release("0.5.14", True, 0, False, 2, 0, 0),
    Release("0.5.20", True, 0, False, 2, 1, 100),
    Release("0.5.23", True, 0, False, 2, 1, 100),
)
NEWEST = "0.5.23"
CHECKED = tuple(release.version for release in RELEASES)

# Model types whose windows have a pool of their own; in all others a window is stored in full.
# `is_hybrid_swa_model` names architectures (configs/model_config.py); Gemma 2, 3 and 3n, EXAONE 4
# and OLMo 3 are switched off by name (arg_groups/model_overrides).
WINDOW_POOLS = (
    "gpt_oss", "llama4", "llama4_text", "mimo_v2_flash", "mimo_v2", "step3p5", "step3p7",
    "gemma4", "gemma4_text", "gemma4_unified", "laguna", "mellum", "inkling", "inkling_mm",
)  # fmt: skip

# Share of window tokens to full tokens, and of states to keys and values, where a type differs.
WINDOW_RATIO = {"inkling": 0.1, "inkling_mm": 0.1}
STATE_RATIO = {"inkling": 0.1, "inkling_mm": 0.1}

# Recurrent types that keep their state copies while scheduling overlaps (overrides.py).
OVERLAPPED = (
    "kimi_linear", "kimi_k3", "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe",
    "qwen3_5_moe_text", "falcon_h1", "granitemoehybrid", "nemotron_h", "bailing_moe_v2_5",
    "bailing_moe_v3", "minicpmv4_6", "inkling", "inkling_mm",
)  # fmt: skip


def find_release(version: str | None) -> tuple[str, Release]:
    """The version as a full name and the release whose rules it follows.

    None is the newest known. Raises UsageError for what is no version, or older than the table.

    >>> find_release("0.5.22")[1].version
    '0.5.20'
    """
    text = NEWEST if version is None else version.strip().removeprefix("v")
    suffix = r"(?:(?:a|b|rc|\.?post|\.dev|\+)[\w.+]{1,40})?"
    parts = re.fullmatch(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?" + suffix, text)
    if parts is None:
        raise UsageError(f"'{version}' is not an SGLang version", "write sglang@0.5.23")
    number = tuple(int(part or 0) for part in parts.groups())
    older = [r for r in RELEASES if tuple(map(int, r.version.split("."))) <= number]
    if not older:
        raise UsageError(
            f"the rules of SGLang {text} are not known",
            f"known from {RELEASES[0].version}; read in its code: {', '.join(CHECKED)}",
        )
    return text, older[-1]
