"""Parameters of what lets Qwen2.5-Omni speak: a talker, and a vocoder behind it.

The talker is a small decoder of audio codes; the vocoder a diffusion transformer that makes a
spectrum and a BigVGAN that makes a wave. Counts equal those of transformers 5.24.
"""

from __future__ import annotations

from kvtool.model.counting import Unstated, dense, flat, mlp2, section, size, stack
from kvtool.model.fields import Fields
from kvtool.model.spec import Weight

TIME_STEP = 256  # Width of the sinusoid that encodes a time step.


def talker(f: Fields, name: str) -> tuple[Weight, ...]:
    """A Qwen2 decoder whose embedding is as wide as the thinker, and its projection and head."""
    width, inner = size(f, "hidden_size"), size(f, "intermediate_size")
    wide, vocab = size(f, "embedding_size"), size(f, "vocab_size")
    heads = size(f, "num_attention_heads")
    head = f.integer("head_dim", width // heads)
    kv = size(f, "num_key_value_heads") * head
    attention = dense(heads * head + 2 * kv, width) + width * heads * head
    layer = attention + 3 * width * inner + 2 * width
    rest = vocab * (wide + width) + dense(width, wide) + width
    return (*stack(f"{name}.layers", size(f, "num_hidden_layers"), layer), *flat(name, rest))


def token2wav(f: Fields, name: str) -> tuple[Weight, ...]:
    """The diffusion transformer and the BigVGAN."""
    dit = section(f, "dit_config", "qwen2_5_omni_dit")
    gan = section(f, "bigvgan_config", "qwen2_5_omni_bigvgan")
    return (*_dit(dit, f"{name}.dit"), *flat(f"{name}.bigvgan", _bigvgan(gan)))


def _dit(f: Fields, name: str) -> tuple[Weight, ...]:
    """Blocks modulated by the time step (six vectors each) over codes, speaker and spectrum."""
    width, spectrum = size(f, "hidden_size", "dim"), size(f, "mel_dim")
    codes, speaker = size(f, "emb_dim"), size(f, "enc_dim")
    heads = size(f, "num_attention_heads", "heads") * size(f, "head_dim")
    attention = 3 * dense(heads, width) + dense(width, heads)
    inner = width * size(f, "ff_mult")
    layer = dense(6 * width, width) + attention + mlp2(width, inner, width)
    together = spectrum + speaker + size(f, "enc_emb_dim") + codes
    rest = mlp2(TIME_STEP, width, width) + codes * (size(f, "num_embeds") + 1)
    rest += dense(width, together) + _speaker_encoder(f, spectrum, speaker)
    rest += dense(2 * width, width) + dense(spectrum, width)
    layers = size(f, "num_hidden_layers", "depth")
    return (*stack(f"{name}.layers", layers, layer), *flat(name, rest))


def _speaker_encoder(f: Fields, spectrum: int, out: int) -> int:
    """ECAPA-TDNN: a convolution, squeeze-and-excitation Res2Net blocks, attentive pooling."""
    channels = f.integers("enc_channels", low=1) or []
    kernels = f.integers("enc_kernel_sizes", low=1) or []
    if len(channels) < 2 or len(channels) != len(kernels):
        raise Unstated("enc_channels")
    scale, excite = size(f, "enc_res2net_scale"), size(f, "enc_se_channels")
    total = dense(channels[0], spectrum * kernels[0])
    for inp, width, kernel in zip(channels[:-2], channels[1:-1], kernels[1:-1], strict=True):
        total += dense(width, inp) + dense(width, width) + mlp2(width, excite, width)
        total += (scale - 1) * dense(width // scale, width // scale * kernel)
    last = channels[-1]
    attend = size(f, "enc_attention_channels")
    pooling = mlp2(3 * last, attend, last)
    return total + dense(last, last * kernels[-1]) + pooling + dense(out, 2 * last)


def _bigvgan(f: Fields) -> int:
    """Upsampling convolutions that halve the channels, each with blocks of dilated ones."""
    width = size(f, "upsample_initial_channel")
    total = dense(width, 7 * size(f, "mel_dim"))
    blocks = list(zip(_kernels(f), _dilations(f), strict=False))
    for kernel in f.integers("upsample_kernel_sizes", low=1) or []:
        total += dense(width // 2, width * kernel)
        width //= 2
        for extent, dilations in blocks:
            total += dilations * (2 * dense(width, width * extent) + 4 * width)
    return total + 2 * width + 7 * width


def _kernels(f: Fields) -> list[int]:
    return f.integers("resblock_kernel_sizes", low=1) or []


def _dilations(f: Fields) -> list[int]:
    """How many dilated convolutions a block has, for each kernel."""
    name = "resblock_dilation_sizes"
    f.used.add(f.path + name)
    rows = f.raw.get(name, f.defaults.get(name))
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise Unstated(name)
    return [len(row) for row in rows]
