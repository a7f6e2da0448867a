"""Parameters of audio towers, in closed form from their section of a configuration.

Counts equal those of transformers 5.24 on the meta device.
"""

from __future__ import annotations

from kvtool.model.counting import Unstated, dense, extents, flat, fraction, mlp2, size, stack
from kvtool.model.fields import Fields
from kvtool.model.spec import Weight

LAYERS = ("encoder_layers", "num_hidden_layers")
INNER = ("encoder_ffn_dim", "intermediate_size")
WIDTH = ("d_model", "hidden_size")


def _whisper_layers(
    f: Fields, name: str, *, k_bias: bool = False, kv: int | None = None
) -> tuple[Weight, ...]:
    """Attention, MLP and two norms; Whisper's own layers have no bias on their keys."""
    width = size(f, *WIDTH)
    kv = kv or width
    attention = 2 * dense(width, width) + dense(kv, width) + dense(kv, width, k_bias)
    layer = attention + mlp2(width, size(f, *INNER), width) + 4 * width
    return stack(f"{name}.layers", size(f, *LAYERS, low=0), layer)


def _convolutions(f: Fields) -> int:
    """Two convolutions over three frames each: from the spectrum, and strided."""
    width = size(f, *WIDTH)
    return dense(width, 3 * size(f, "num_mel_bins")) + dense(width, 3 * width)


def whisper(f: Fields, name: str) -> tuple[Weight, ...]:
    """Whisper's encoder: positions are counted though they never learn."""
    rows = size(f, "max_source_positions") + 2
    rest = _convolutions(f) + rows * size(f, *WIDTH)
    return (*_whisper_layers(f, name), *flat(name, rest))


def glmasr(f: Fields, name: str) -> tuple[Weight, ...]:
    """Whisper's layers with rotary positions, and grouped keys where the section says so."""
    width, shared = size(f, *WIDTH), "num_key_value_heads"
    head = width // size(f, "num_attention_heads")
    kv = size(f, shared) * head if f.present(shared) else width
    rest = _convolutions(f) + 2 * width
    return (*_whisper_layers(f, name, kv=kv), *flat(name, rest))


def qwen2_5_omni(f: Fields, name: str) -> tuple[Weight, ...]:
    """Whisper's layers without a table of positions; a projection and two marks of the audio."""
    width, out = size(f, *WIDTH), size(f, "output_dim")
    rest = _convolutions(f) + 2 * width + dense(out, width) + 2 * out
    return (*_whisper_layers(f, name), *flat(name, rest))


def qwen3_asr(f: Fields, name: str) -> tuple[Weight, ...]:
    """Three strided convolutions over time and spectrum, then biased layers."""
    width, channels = size(f, *WIDTH), size(f, "downsample_hidden_size")
    spectrum = size(f, "num_mel_bins")
    for _ in range(3):
        spectrum = (spectrum + 1) // 2
    convolutions = dense(channels, 9) + 2 * dense(channels, 9 * channels)
    rest = convolutions + width * channels * spectrum + 2 * width
    return (*_whisper_layers(f, name, k_bias=True), *flat(name, rest))


def qwen3_omni(f: Fields, name: str) -> tuple[Weight, ...]:
    """The same with the projection to the decoder inside."""
    width = size(f, *WIDTH)
    projection = mlp2(width, width, size(f, "output_dim"))
    return (*qwen3_asr(f, name), *flat(f"{name}.projection", projection))


def voxtral_realtime(f: Fields, name: str) -> tuple[Weight, ...]:
    """Causal layers with rotary positions and gated MLPs; keys have no bias."""
    width, inner = size(f, *WIDTH), size(f, *INNER)
    heads = size(f, "num_attention_heads")
    q = heads * f.integer("head_dim", width // heads)
    attention = 2 * dense(q, width) + q * width + dense(width, q)
    mlp = 2 * inner * width + dense(width, inner)
    layers = stack(f"{name}.layers", size(f, *LAYERS, low=0), attention + mlp + 2 * width)
    return (*layers, *flat(name, _convolutions(f) + width))


def gemma4(f: Fields, name: str) -> tuple[Weight, ...]:
    """A conformer: half an MLP on either side of attention and a light convolution."""
    width, out = size(f, "hidden_size"), size(f, "output_proj_dims")
    head = width // size(f, "num_attention_heads")
    feed_forward = 8 * width * width + 2 * width
    attention = 5 * width * width + head
    convolution = 3 * width * width + width * size(f, "conv_kernel_size") + 2 * width
    layer = 2 * feed_forward + attention + convolution + 3 * width
    first, second = extents(f, "subsampling_conv_channels")
    strided = 9 * first + first + 9 * first * second + second
    rest = strided + width * (first // 4) * second + dense(out, width)
    return (*stack(f"{name}.layers", size(f, "num_hidden_layers"), layer), *flat(name, rest))


def gemma4_unified(f: Fields, name: str) -> tuple[Weight, ...]:
    """Frames of raw audio go straight to the projection."""
    return ()


def phi4(f: Fields, name: str) -> tuple[Weight, ...]:
    """A conformer behind depthwise strided convolutions, with a table of relative positions."""
    width, inner = size(f, "hidden_size"), size(f, "intermediate_size")
    wide, outer = size(f, "ext_pw_out_channel"), size(f, "depthwise_separable_out_channel")
    depth = width * size(f, "depthwise_multiplier")
    feed_forward = 2 * width + dense(2 * inner, width) + dense(width, inner)
    convolution = 2 * width + 2 * wide + dense(2 * wide, width) + dense(wide, width)
    convolution += dense(depth, size(f, "kernel_size")) + dense(outer, depth)
    layer = 2 * feed_forward + 4 * dense(width, width) + convolution + 4 * width
    channels, spectrum = size(f, "nemo_conv_channels"), size(f, "input_size")
    halvings = size(f, "time_reduction").bit_length() - 1
    for _ in range(halvings):
        spectrum = (spectrum + 1) // 2
    strided = halvings * dense(channels, 9) + max(0, halvings - 1) * dense(channels, channels)
    buckets = size(f, "bias_max_distance") * (1 if f.flag("bias_symmetric") else 2)
    table = buckets * size(f, "num_attention_heads")
    rest = strided + dense(width, channels * spectrum) + table
    return (*stack(f"{name}.layers", size(f, "num_blocks"), layer), *flat(name, rest))


def muse(f: Fields, name: str) -> tuple[Weight, ...]:
    """Stages of patches, each wider than the last, and convolutional blocks with an MLP."""
    widths = f.integers("hidden_sizes", low=1) or []
    frames = f.integers("patch_sizes", low=1) or []
    depths = f.integers("depths") or []
    if not widths or not len(widths) == len(frames) == len(depths):
        raise Unstated("hidden_sizes")
    ratio, kernel = fraction(f, "mlp_ratio", 4.0, high=64.0), size(f, "conv_kernel_size")
    total, before = 0, 1
    for width, patch, depth in zip(widths, frames, depths, strict=True):
        block = dense(width, kernel) + width + mlp2(width, int(width * ratio), width)
        total += dense(width, patch * before) + width + depth * block
        before = width
    out = size(f, "out_hidden_size")
    return flat(name, total + before + dense(out, before) + out)
