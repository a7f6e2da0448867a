"""The pool that vLLM finds after a dummy run, estimated from the model's own widths.

    available = ceil(fraction x total) - weights - (C + max(activation, sampler)) - CUDA graphs

`activation` is what is alive at the peak of one forward pass over `max_num_batched_tokens` tokens,
`sampler` what sampling `max_num_seqs` rows of logits takes, `C` all that is not torch's. The live
elements were read in the code of 0.22.1 and checked on H200 runs; constants and their ranges stand
in one table. Terms without a checked rule have a wide range.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kvtool.device import DeviceSpec
from kvtool.dtype import DTYPES
from kvtool.engines.base import Estimate, Term
from kvtool.engines.vllm_options import Settings
from kvtool.engines.vllm_releases import GIB
from kvtool.model.spec import Attention, Latent, Layer, ModelSpec, Parallel, Weight


@dataclass(frozen=True, slots=True)
class Constants:
    """Fitted constants of the estimate. Bytes unless said.

    `other` is non-torch memory and workspaces at one rank, `other_ranks` with tensor parallelism;
    `logit` bytes per sequence and word of the vocabulary, `logit_hidden` values per batched token
    and hidden element beside it. `spread` is the relative range of the activation where its rule
    was checked, `wide` elsewhere.
    """

    other: Estimate
    other_ranks: Estimate
    compiled: int
    graphs: Estimate
    logit: float
    logit_hidden: int
    spread: float = 0.06
    wide: float = 0.35


def _gib(value: float, low: float, high: float) -> Estimate:
    return Estimate(int(value * GIB), int(low * GIB), int(high * GIB))


# Sources. 0.22.1: 22 runs on one H200 (0.255 GiB, 14 B per logit, 0.07 GiB compiled, 0.24 GiB of
# graphs at 128 sequences). TP: the llm-d planner's report on 0.19 (2.06 to 2.13 GiB at TP 2 and 4,
# 0.13 to 0.25 at TP 1). Up to 0.16: the same report and public logs of 0.11 (5.56, 5.64 and
# 7.38 GiB at vocabularies of 151,936 and 201,088 words and 1,024 sequences: 38.5 B per logit).
CONSTANTS: dict[str, Constants] = {
    "0.11.0": Constants(
        other=_gib(0.13, 0.05, 0.3), other_ranks=_gib(0.6, 0.3, 2.2), compiled=0,
        graphs=_gib(0, 0, 0), logit=38.5, logit_hidden=0,
    ),
    "0.17.0": Constants(
        other=_gib(0.255, 0.1, 0.32), other_ranks=_gib(2.1, 0.5, 2.3), compiled=0,
        graphs=_gib(0, 0, 0), logit=14, logit_hidden=5,
    ),
    "0.21.0": Constants(
        other=_gib(0.255, 0.2, 0.32), other_ranks=_gib(2.1, 0.5, 2.3), compiled=int(0.07 * GIB),
        graphs=_gib(0.24, 0, 1.5), logit=14, logit_hidden=5,
    ),
    "0.33.0": Constants(
        other=_gib(0.255, 0.1, 0.6), other_ranks=_gib(2.1, 0.5, 2.5), compiled=int(0.07 * GIB),
        graphs=_gib(0.24, 0, 1.5), logit=14, logit_hidden=5, spread=0.15,
    ),
}  # fmt: skip

# Copies of the hidden state alive beside a gated MLP: 3, more where a norm or the MLP does not
# work in place. Measured (M) or read in the code alone (R).
STREAMS = {
    "lfm2": 4,  # M
    "gemma2": 5,  # M
    "gemma3": 5,  # M
    "gemma3_text": 5,  # M
    "gemma4": 5,  # R
    "gemma4_text": 5,  # R
    "qwen3_5": 6,  # M
    "qwen3_5_text": 6,  # M
    "gemma3n": 15,  # M
    "gemma3n_text": 15,  # M
}


def remainder(
    model: ModelSpec, layers: Sequence[Layer], settings: Settings, *, samples: bool
) -> tuple[Term, ...]:
    """What the dummy run leaves no room for: other memory, the larger of activation and sampler,
    and CUDA graphs. `layers` are those of the stage; the last stage `samples`."""
    release = settings.rules.release
    constants = CONSTANTS[release.version]
    parallel = settings.rules.parallel
    other = constants.other if parallel.tp == 1 else constants.other_ranks
    compiled = 0 if settings.enforce_eager else constants.compiled
    terms = [
        Term("other", _shift(other, compiled), "memory outside torch, library workspaces"),
        _peak(model, layers, settings, constants, samples),
    ]
    if release.graphs_subtracted and not settings.enforce_eager:
        terms.append(Term("graphs", constants.graphs, "CUDA graphs, as estimated at start-up"))
    return tuple(terms)


def _shift(estimate: Estimate, by: int) -> Estimate:
    return Estimate(estimate.value + by, estimate.low, estimate.high + by)


def _peak(
    model: ModelSpec,
    layers: Sequence[Layer],
    settings: Settings,
    constants: Constants,
    samples: bool,
) -> Term:
    size = DTYPES[model.dtype].block_bytes
    tokens = settings.max_num_batched_tokens
    live = live_values(model, layers, settings)
    activation = live.values(tokens) * size
    sampler = samples * int(
        constants.logit * min(settings.max_num_seqs, tokens) * model.vocab_size
        + constants.logit_hidden * tokens * size * model.hidden_size
    )
    spread = constants.spread if live.is_checked else constants.wide
    value = max(activation, sampler)
    low = max(activation * (1 - spread), sampler * (1 - constants.spread * 2))
    high = max(activation * (1 + spread), sampler * (1 + constants.spread * 2))
    if activation >= sampler:
        text = f"{live.elements:,} live values for each of {tokens:,} batched tokens: {live.text}"
    else:
        text = f"sampling {settings.max_num_seqs:,} sequences of {model.vocab_size:,} logits"
    return Term("activation", Estimate(value, int(low), int(high) + 1), text)


@dataclass(frozen=True, slots=True)
class Live:
    """Values alive at the peak of a part: `elements` per token and `once` beside them.

    `is_checked` says whether the rule behind them was compared with runs.
    """

    elements: int
    text: str
    is_checked: bool
    once: int = 0

    def values(self, tokens: int) -> int:
        return self.elements * tokens + self.once


def live_values(model: ModelSpec, layers: Sequence[Layer], settings: Settings) -> Live:
    """What is alive at the peak of a forward pass through `layers` on one rank.

    From the first layer with experts on, their workspace stays allocated while every other part
    runs; a part of an earlier layer has the device to itself.
    """
    parallel = settings.rules.parallel
    workspace = max((_workspace(model, layer, parallel) for layer in set(layers)), default=0)
    found, held, seen = [Live(0, "nothing", False)], 0, set()
    for layer in layers:
        held = held or (workspace if _workspace(model, layer, parallel) else 0)
        if (layer, held) in seen:
            continue
        seen.add((layer, held))
        for part in _parts(model, layer, settings, workspace):
            text = f"expert workspace and {part.text}" if held else part.text
            found.append(replace(part, elements=part.elements + held, text=text))
    return max(found, key=lambda part: part.values(settings.max_num_batched_tokens))


def _local(weight: Weight, extent: int, parallel: Parallel) -> int:
    """`extent` of a tensor as one rank holds it."""
    return extent * weight.share(parallel) // weight.elements


def _find(layer: Layer, *endings: str) -> Iterable[Weight]:
    return (weight for weight in layer.weights if weight.name.endswith(endings))


def _workspace(model: ModelSpec, layer: Layer, parallel: Parallel) -> int:
    """The experts' buffers: k x (max(I, h) + max(2I, h)) values per token, all layers share them.

    gpt-oss's packed experts take k x I + h.
    """
    hidden = model.hidden_size
    for weight in _find(layer, "experts.down_proj"):
        tensor_only = Parallel(tp=parallel.tp) if parallel.ep == 1 else Parallel()
        inner = weight.shape[-1] * weight.share(tensor_only) // weight.elements
        top_k = weight.active or 1
        if _is_packed_triton(model):
            return top_k * inner + hidden
        return top_k * (max(inner, hidden) + max(2 * inner, hidden))
    return 0


def _is_packed_triton(model: ModelSpec) -> bool:
    return model.quantization is not None and model.quantization.get("quant_method") == "mxfp4"


def _parts(model: ModelSpec, layer: Layer, settings: Settings, workspace: int) -> Iterable[Live]:
    """The parts of a layer that run one after the other, each with what it keeps alive."""
    hidden, parallel = model.hidden_size, settings.rules.parallel
    gated = any(weight.name.endswith("gate_proj") for weight in layer.weights)
    for weight in layer.weights:
        local = _local(weight, weight.shape[0], parallel)
        if weight.part == "mlp" and weight.name.endswith("down_proj"):
            inner = _local(weight, weight.shape[-1], parallel)
            yield _mlp(model, inner, gated, len(model.layers))
        elif weight.name.endswith("in_proj_qkvz"):
            yield _delta(layer, local, hidden, parallel)
        elif weight.name.endswith("A_log") and len(weight.shape) == 2:
            yield Live(3 * local + 4 * hidden, "Mamba 1 mixer: 3 d + 4 h", True)
        elif weight.name.endswith("experts.down_proj") and _is_packed_triton(model):
            scatter = (weight.active or 1) * hidden
            yield Live(scatter + 3 * hidden, "packed experts: k h + 3 h", True)
        elif _is_mixer(layer, weight):
            yield Live(3 * local + 4 * hidden, "recurrent mixer", False)
    for state in layer.states:
        if isinstance(state, Latent):
            yield _latent(layer, state, hidden, settings)
        elif isinstance(state, Attention) and workspace and not _is_packed_triton(model):
            heads = max(1, state.num_kv_heads // parallel.tp)
            q, k = state.num_q_heads // parallel.tp * state.head_dim, heads * state.head_dim
            total = q + k + heads * state.v_head_dim + 2 * q + k + 3 * hidden
            yield Live(total, "attention: qkv, q, k, out, 3 h", True)


def _is_mixer(layer: Layer, weight: Weight) -> bool:
    """The input projection of a recurrent mixer that has no rule of its own here."""
    own = any(len(other.shape) == 2 for other in _find(layer, "A_log"))
    return (
        weight.part == "recurrent" and weight.name.endswith((".in_proj", ".qkv_proj")) and not own
    )


def _mlp(model: ModelSpec, inner: int, gated: bool, layers: int) -> Live:
    if not gated:
        return Live(2 * inner + 3 * model.hidden_size, "plain MLP: 2 I + 3 h", True)
    streams = STREAMS.get(model.model_type, 3)
    extra = layers * 256 if model.model_type.startswith("gemma3n") else 0
    matrices = 4 if extra else 3
    text = f"gated MLP: {matrices} I + {streams} h"
    return Live(matrices * inner + streams * model.hidden_size + extra, text, True)


def _delta(layer: Layer, qkvz: int, hidden: int, parallel: Parallel) -> Live:
    """Gated delta net: qkvz, b and a, q-k-v twice, values three times, six hidden states."""
    ba = sum(_local(w, w.shape[0], parallel) for w in _find(layer, "in_proj_ba"))
    qkv = sum(_local(w, w.shape[0], parallel) for w in _find(layer, "linear_attn.conv1d"))
    total = qkvz + ba + 2 * qkv + 3 * (qkvz - qkv) + 6 * hidden
    return Live(total, "gated delta net: qkvz, ba, 2 qkv, 3 v, 6 h", True)


def _latent(layer: Layer, state: Latent, hidden: int, settings: Settings) -> Live:
    """Latent attention: queries twice, the latent and its normed part, output, 2 hidden states.

    Its prefill profiles a buffer of context tokens x heads x (unrotated key + value) beside them.
    """
    rules = settings.rules
    heads = state.num_q_heads // rules.parallel.tp
    rank = next((w.shape[-1] for w in _find(layer, "kv_b_proj")), state.width)
    rows = 2 * heads * state.qk_head_dim + state.width + rank + heads * state.v_head_dim
    tokens = max(8 * rules.context_tokens, 4 * settings.max_num_seqs * rules.block_size)
    unrotated = state.qk_head_dim - (state.width - rank)
    once = min(tokens, 65_536) * heads * (unrotated + state.v_head_dim)
    return Live(rows + 2 * hidden, "latent attention and its prefill buffer", True, once)


def device_total(device: DeviceSpec, fraction: float) -> Estimate:
    """ceil(fraction x memory); where only the nominal size is known, down to 3 % less."""
    value = math.ceil(device.memory_bytes * fraction)
    low = int(value * 0.97) if device.memory_is_nominal else value
    return Estimate(value, low, value)


def available(total: Estimate, terms: Iterable[Term]) -> Estimate:
    """What the terms leave of `total`; the range adds up all their ends."""
    terms = tuple(terms)
    value = total.value - sum(term.bytes.value for term in terms)
    low = total.low - sum(term.bytes.high for term in terms)
    high = total.high - sum(term.bytes.low for term in terms)
    return Estimate(max(value, 0), max(low, 0), max(high, 0))
