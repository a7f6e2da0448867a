"""The model that a llama.cpp log prints: its layers and what they keep, from `print_info` lines.

Weights are not rebuilt. Which layers slide or recur stands in the metadata or follows from the
architecture's schedule; where neither tells, there is no model and the reason is given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvtool.auditing.findings import whole
from kvtool.engines.logs import Start
from kvtool.engines.logs_llamacpp import INFO, META
from kvtool.model.gguf_families import FAMILIES
from kvtool.model.spec import Attention, Index, Latent, Layer, ModelSpec, Recurrent, State

MAX_LAYERS = 10_000
# Architectures whose every n-th layer attends in full where no key says otherwise.
INTERVALS = {"qwen35": 4, "qwen35moe": 4, "qwen3next": 4}
BOTH = ("falcon-h1",)
RECURRENT = ("mamba", "mamba2")
# Architectures whose layers with an MLP keep nothing.
MIXERS = ("nemotron_h", "nemotron_h_moe")


class Unprinted(Exception):
    """What the log does not print and a model needs."""


@dataclass(frozen=True, slots=True)
class Printed:
    """Values of a log by their names in `print_info`, and by their keys in the metadata."""

    settings: Mapping[str, str]
    architecture: str

    def number(self, name: str, key: str = "") -> int | None:
        """A whole number: as printed, else from the metadata."""
        found = whole(self.settings.get(INFO + name, "").split(" ")[0])
        return found if found is not None or not key else self.key(key)

    def key(self, key: str) -> int | None:
        text = self.settings.get(f"{META}{self.architecture}.{key}", "")
        kind, _, value = text.partition(" ")
        if kind == "bool":
            return int(value == "true")
        return whole(value) if not kind.startswith("arr") else None

    def per_layer(self, name: str, layers: int, key: str = "") -> list[int] | None:
        """A number for each layer, printed once for all or as a list; None where it is cut off."""
        text = self.settings.get(INFO + name, "")
        if not text.startswith("[") and (one := self.number(name, key)) is not None:
            return [one] * layers
        return _listed(text, layers)

    def flags(self, key: str, layers: int) -> list[int] | None:
        """An array of the metadata, complete or not at all."""
        text = self.settings.get(f"{META}{self.architecture}.{key}", "")
        values = text.partition(" ")[2]
        return _listed(values.replace("true", "1").replace("false", "0"), layers)


def _listed(text: str, layers: int) -> list[int] | None:
    found = re.search(r"\[([0-9, ]+)\]", text)
    numbers = [int(part) for part in found[1].split(",") if part.strip()] if found else []
    return numbers[:layers] if len(numbers) >= layers else None


def printed_model(start: Start) -> ModelSpec | str:
    """The model of a start's printed architecture, or why there is none."""
    said = start.settings
    architecture = said.get(INFO + "arch") or said.get(f"{META}general.architecture", "")
    architecture = architecture.removeprefix("str ").strip()
    if not architecture:
        return "the log prints no architecture; give the model with --model"
    try:
        return _model(Printed(said, architecture))
    except Unprinted as error:
        return f"the log does not print {error}; give the model with --model"


def _model(printed: Printed) -> ModelSpec:
    blocks = printed.number("n_layer", "block_count")
    if blocks is None or not 0 < blocks <= MAX_LAYERS:
        raise Unprinted("the number of layers")
    own = printed.key("nextn_predict_layers") or 0
    trunk = max(1, blocks - own) if printed.number("n_layer_all") is None else blocks
    family = FAMILIES.get(printed.architecture)
    attention = _attention(printed, trunk)
    recurrent = _recurrent(printed, trunk)
    layers = tuple(Layer((*kept, *tails)) for kept, tails in zip(attention, recurrent, strict=True))
    full = next((s for kept in attention for s in kept if s.kind in ("full", "latent")), None)
    return ModelSpec(
        name=printed.settings.get(INFO + "general.name", printed.architecture),
        model_type=family.model_type if family else printed.architecture,
        dtype="float16",
        layers=layers,
        max_context=printed.number("n_ctx_train", "context_length"),
        hidden_size=printed.number("n_embd", "embedding_length") or 0,
        vocab_size=printed.number("n_vocab", "vocab_size") or 0,
        mtp_layers=(Layer((full,)),) * own if full is not None else (),
        weights_known=False,
    )


def _attention(printed: Printed, layers: int) -> list[tuple[State, ...]]:
    """What each layer keeps of keys and values."""
    if printed.architecture in RECURRENT:
        return [()] * layers
    heads = printed.per_layer("n_head", layers, "attention.head_count")
    kv = printed.per_layer("n_head_kv", layers, "attention.head_count_kv") or heads
    key = printed.number("n_embd_head_k", "attention.key_length")
    if heads is None or kv is None:
        raise Unprinted("the heads of each layer")
    if key is None:
        width = printed.number("n_embd", "embedding_length")
        if width is None:
            raise Unprinted("the width of a head")
        key = width // max(*heads, 1)
    value = printed.number("n_embd_head_v", "attention.value_length")
    value = key if value is None else value
    latent = _latent(printed, max(heads), key, value)
    windows = _windows(printed, layers)
    stored = _stored(printed, layers)
    linear = _linear(printed, layers)
    found: list[tuple[State, ...]] = []
    for i in range(layers):
        if not stored[i] or not kv[i] or (linear[i] and printed.architecture not in BOTH):
            found.append(())
        elif latent is not None:
            found.append((latent, *_index(printed, i, layers)))
        else:
            kind = "sliding" if windows[i] else "full"
            limit = windows[i] or None
            found.append((Attention(heads[i], kv[i], key, value, kind, limit),))  # type: ignore[arg-type]
    return found


def _latent(printed: Printed, heads: int, key: int, value: int) -> Latent | None:
    """The latent row of MLA: one head as wide as latent and rotary part in newer files; ik's logs
    print the heads of the uncompressed attention beside `mla_attn`."""
    rank = printed.number("n_lora_kv", "attention.kv_lora_rank")
    if not rank:
        return None
    mla = printed.number("n_embd_head_k_mla", "attention.key_length_mla")
    if mla and key >= rank:
        whole_value = printed.number("n_embd_head_v_mla", "attention.value_length_mla")
        return Latent(key, heads, mla, whole_value or rank)
    rotary = printed.number("n_rot", "rope.dimension_count")
    if rotary and ("mla_attn" in printed.settings or "fork" in printed.settings):
        return Latent(rank + rotary, heads, key, value)
    return None


def _index(printed: Printed, layer: int, layers: int) -> tuple[State, ...]:
    width = printed.key("attention.indexer.key_length")
    if not width:
        return ()
    types = printed.flags("attention.indexer.types", layers)
    return (Index(width),) if types is None or types[layer] else ()


def _windows(printed: Printed, layers: int) -> Sequence[int]:
    """The window of each layer, 0 where it attends in full."""
    window = printed.number("n_swa", "attention.sliding_window") or 0
    if not window or printed.number("is_swa_any") == 0:
        return [0] * layers
    flags = printed.flags("attention.sliding_window_pattern", layers)
    period = printed.key("attention.sliding_window_pattern")
    if flags is None and period is None:
        family = FAMILIES.get(printed.architecture)
        period = family.period if family else 0
    if flags is None and period:
        flags = [int((i + 1) % period != 0) for i in range(layers)]
    if flags is None:
        raise Unprinted("which layers slide")
    return [window if flag else 0 for flag in flags]


def _stored(printed: Printed, layers: int) -> list[bool]:
    """Which layers have a cache: not those that share an earlier one's."""
    shared = printed.key("attention.shared_kv_layers") or 0
    if printed.architecture == "gemma3n" and not shared:
        shared = max(0, layers - 20)
    return [i < layers - shared for i in range(layers)]


def _linear(printed: Printed, layers: int) -> list[bool]:
    """Which layers recur: those without key/value heads, or by the architecture's interval."""
    architecture = printed.architecture
    if architecture in (*RECURRENT, *BOTH):
        return [True] * layers
    if architecture in INTERVALS:
        every = printed.key("full_attention_interval") or INTERVALS[architecture]
        return [bool((i + 1) % every) for i in range(layers)]
    if not printed.number("ssm_d_inner") and printed.key("shortconv.l_cache") is None:
        return [False] * layers
    kv = printed.per_layer("n_head_kv", layers, "attention.head_count_kv")
    if kv is None:
        raise Unprinted("which layers recur")
    idle = [False] * layers
    if architecture in MIXERS:
        mlp = printed.per_layer("n_ff", layers, "feed_forward_length")
        if mlp is None:
            raise Unprinted("which layers recur")
        idle = [bool(width) for width in mlp]
    return [not heads and not rest for heads, rest in zip(kv, idle, strict=True)]


def _recurrent(printed: Printed, layers: int) -> list[tuple[State, ...]]:
    """Convolution tail and state of the layers that recur (llama_hparams::n_embd_r, n_embd_s)."""
    linear = _linear(printed, layers)
    if not any(linear):
        return [()] * layers
    cache = printed.key("shortconv.l_cache")
    if cache:
        width = printed.number("n_embd", "embedding_length") or 0
        kept: tuple[State, ...] = (Recurrent("conv", ((width * (cache - 1), 0),), "float32"),)
    else:
        conv = printed.number("ssm_d_conv", "ssm.conv_kernel")
        inner = printed.number("ssm_d_inner", "ssm.inner_size")
        state = printed.number("ssm_d_state", "ssm.state_size")
        groups = printed.number("ssm_n_group", "ssm.group_count") or 0
        if not (conv and inner and state):
            raise Unprinted("the size of a recurrent state")
        tail = (conv - 1) * (inner + 2 * groups * state)
        kept = (
            Recurrent("conv", ((tail, 0),), "float32"),
            Recurrent("recurrent", ((state * inner, 0),), "float32"),
        )
    return [kept if recurs else () for recurs in linear]
