"""GGUF files: metadata as a Hugging Face configuration, and the exact bytes of the weights.

`read_gguf_config` gives the same fields as the `config.json` the file was converted from, as far as
they decide sizes, so that one road leads into a ModelSpec. What a file does not say: windows that
llama.cpp's converter drops (Mistral 7B v0.1), vision and audio towers (files of their own).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtool.errors import ModelError, did_you_mean
from kvtool.model.gguf_families import FAMILIES, Family
from kvtool.model.gguf_file import GgufFile, GgufTensor, read_gguf
from kvtool.model.gguf_keys import Keys, one

PARTS = (
    "embedding", "attention", "recurrent", "mlp", "experts", "router", "norm", "head", "encoder",
    "mtp", "other",
)  # fmt: skip

# Architectures without attention heads.
_HEADLESS = frozenset({"mamba", "mamba2", "rwkv6", "rwkv7"})
_FILE_DTYPES = {0: "float32", 1: "float16", 32: "bfloat16"}


def read_gguf_config(path: Path) -> dict[str, Any]:
    """The raw configuration of the GGUF model at `path`, as its `config.json` would spell it.

    `torch_dtype` is float16, llama.cpp's type of computation, unless the file stores another plain
    float; `_gguf` names architecture and quantisation. Raises ModelError for a file that is cut
    off, an architecture outside `FAMILIES`, and keys that are missing or make no sense.
    """
    file = read_gguf(path)
    architecture = _architecture(file)
    family = FAMILIES[architecture]
    keys = Keys(file, architecture)
    config = _common(keys, family)
    keys.raise_faults()
    if family.adapt is not None:
        family.adapt(keys, config)
    keys.raise_faults()
    return config


def gguf_weight_bytes(path: Path) -> dict[str, int]:
    """Bytes of the stored tensors by part (those of `PARTS` that occur), from their descriptions.

    Exact, quantisation included: sum over tensors of elements / block size x bytes per block.
    """
    file = read_gguf(path)
    architecture = file.metadata.get("general.architecture", "")
    layers = 1 << 30
    if isinstance(architecture, str) and architecture in FAMILIES:
        layers = Keys(file, architecture).layers
    recurrent = {
        _block(tensor.name)[0]
        for tensor in file.tensors
        if architecture != "falcon-h1" and _block(tensor.name)[1].startswith("ssm_")
    }
    total = dict.fromkeys(PARTS, 0)
    for tensor in file.tensors:
        total[_part(tensor, layers, recurrent)] += tensor.stored_bytes
    return {part: size for part, size in total.items() if size}


def _architecture(file: GgufFile) -> str:
    """The file's architecture, if it is a model that this module knows."""
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise ModelError(
            f"'{file.path.name}' holds '{kind}', not a model", "name the file with the model itself"
        )
    found = file.metadata.get("general.architecture")
    if isinstance(found, str) and found in FAMILIES:
        return found
    if found == "clip":
        raise ModelError(
            f"'{file.path.name}' is a vision or audio encoder (general.architecture 'clip')",
            "name the file with the language model; it is converted separately",
        )
    raise ModelError(
        f"'{file.path.name}' has the general.architecture {found!r}, which is not supported",
        did_you_mean(str(found), FAMILIES, "a config.json of the model works where it is known"),
    )


def _common(keys: Keys, family: Family) -> dict[str, Any]:
    """The fields that all architectures share."""
    file_type = _file_type_number(keys)
    config: dict[str, Any] = {
        "model_type": family.model_type,
        "num_hidden_layers": keys.layers,
        "num_nextn_predict_layers": keys.mtp,
        "hidden_size": keys.integer("embedding_length", low=1),
        "vocab_size": _vocab_size(keys),
        "max_position_embeddings": keys.integer("context_length", 0) or None,
        "torch_dtype": _FILE_DTYPES.get(file_type, "float16"),
        "_gguf": {"architecture": keys.architecture, "file_type": _file_type(file_type)},
    }
    if name := keys.file.metadata.get("general.name"):
        config["_name_or_path"] = name
    if keys.tensors:
        config["tie_word_embeddings"] = "output.weight" not in keys.tensors
        config["attention_bias"] = bool(keys.stores("attn_q.bias", "attn_qkv.bias"))
        config["attention_out_bias"] = bool(keys.stores("attn_output.bias"))
        config["mlp_bias"] = bool(keys.stores("ffn_up.bias"))
    if keys.architecture not in _HEADLESS:
        _heads(keys, config)
    widths = keys.per_layer("feed_forward_length", 0)
    config["intermediate_size"] = one(widths) if any(widths) else None
    _windows(keys, config, family.period)
    _experts(keys, config)
    return config


def _vocab_size(keys: Keys) -> int:
    """Rows of the embedding: as stated, else the tokens listed, else the tensor's extent."""
    if keys.value("vocab_size") is None:
        tokens = keys.file.lengths.get("tokenizer.ggml.tokens")
        embedding = keys.tensors.get("token_embd.weight")
        if tokens:
            return tokens
        if embedding is not None and embedding.shape:
            return embedding.shape[0]
    return keys.integer("vocab_size", low=1)


def _file_type_number(keys: Keys) -> int:
    value = keys.file.metadata.get("general.file_type")
    return value if type(value) is int else -1


def _file_type(number: int) -> str | None:
    """The name of `general.file_type`: Q4_K_M, BF16, .. ; informational, files mix types."""
    from gguf.constants import LlamaFileType

    names = {int(member): member.name for member in LlamaFileType}
    return names.get(number, "").removeprefix("MOSTLY_").removeprefix("ALL_") or None


def _heads(keys: Keys, config: dict[str, Any]) -> None:
    """Heads and widths; a width that no key states is hidden size over heads, as in llama.cpp."""
    heads = keys.per_layer("attention.head_count")
    most = max(heads)
    if not most:
        keys.fault("attention.head_count", 0, "a positive number")
        most = 1
    kv = keys.per_layer("attention.head_count_kv") if _has_kv(keys) else heads
    config["num_attention_heads"] = one(heads)
    config["num_key_value_heads"] = one(kv)
    derived = config["hidden_size"] // most
    key = keys.integer("attention.key_length", derived)
    value = keys.integer("attention.value_length", derived)
    if not ((key and value) or keys.faults):
        keys.fault("attention.key_length", key, "a positive number")
    config["head_dim"] = key
    if value != key:
        config["v_head_dim"] = value


def _has_kv(keys: Keys) -> bool:
    key = f"{keys.architecture}.attention.head_count_kv"
    return key in keys.file.metadata or key in keys.file.lengths


def _windows(keys: Keys, config: dict[str, Any], period: int) -> None:
    """Sliding windows: from an array or a number for each layer, else by the family's period."""
    window = keys.integer("attention.sliding_window", _default_window(keys))
    config["sliding_window"] = window or None
    pattern = keys.value("attention.sliding_window_pattern")
    if isinstance(pattern, int) and not isinstance(pattern, bool):
        period, pattern = pattern, None
    if not window or (pattern is None and not period):
        return
    if pattern is None:
        sliding = [bool((i + 1) % period) for i in range(keys.layers)]
    else:
        sliding = [bool(flag) for flag in keys.per_layer("attention.sliding_window_pattern")]
    config["layer_types"] = [
        "sliding_attention" if inside else "full_attention" for inside in sliding
    ]


def _default_window(keys: Keys) -> int:
    """The window that llama.cpp assumes where no key states one: Gemma 2, EXAONE 4 32B."""
    if keys.architecture == "exaone4":
        return 4096 if keys.layers == 64 else 0
    return 4096 if keys.architecture == "gemma2" else 0


def _experts(keys: Keys, config: dict[str, Any]) -> None:
    """Experts, and which layers have them: those that store a router, else as the keys say."""
    count = keys.integer("expert_count", 0)
    if not count:
        return
    config["num_experts"] = count
    config["num_experts_per_tok"] = keys.integer("expert_used_count", low=1, high=count)
    plain = config.get("intermediate_size")
    width = keys.integer("expert_feed_forward_length", 0) or plain
    if isinstance(width, int) and width:
        config["moe_intermediate_size"] = width
    if shared := keys.integer("expert_shared_count", 0):
        config["n_shared_experts"] = shared
    if shared := _shared_width(keys):
        config["shared_expert_intermediate_size"] = shared
    sparse = keys.layers_with("ffn_gate_inp.weight")
    if sparse is None:
        first = keys.integer("leading_dense_block_count", 0)
        step = keys.integer("interleave_moe_layer_step", 1, low=1)
        sparse = [i >= first and (i + 1) % step == 0 for i in range(keys.layers)]
    config["mlp_layer_types"] = ["sparse" if routed else "dense" for routed in sparse]


def _shared_width(keys: Keys) -> int:
    """Width of the experts that every token uses: the stored tensor's, else as stated."""
    for layer in range(keys.layers):
        tensor = keys.tensors.get(f"blk.{layer}.ffn_up_shexp.weight")
        if tensor is not None and len(tensor.shape) == 2:
            return tensor.shape[0]
    return keys.integer("expert_shared_feed_forward_length", 0)


def _block(name: str) -> tuple[int, str]:
    """`blk.7.attn_q.weight` -> (7, 'attn_q.weight'); (-1, name) outside the decoder's blocks."""
    head, _, rest = name.partition(".")
    number, _, tail = rest.partition(".")
    if head == "blk" and number.isdecimal() and len(number) < 7:
        return int(number), tail
    return -1, name


def _part(tensor: GgufTensor, layers: int, recurrent: set[int]) -> str:
    """The part of the model that a tensor belongs to, by llama.cpp's names."""
    block, tail = _block(tensor.name)
    if block >= layers:
        return "mtp"
    if tail.startswith(("enc.", "v.", "a.", "mm.")):
        return "encoder"
    if "norm" in tail:
        return "norm"
    for part, beginnings in _BEGINNINGS:
        if tail.startswith(beginnings):
            if part == "attention" and block in recurrent:
                return "recurrent"
            return "experts" if part == "mlp" and "_exps" in tail else part
    return "other"


_BEGINNINGS = (
    ("router", ("ffn_gate_inp", "exp_probs_b")),
    ("mlp", ("ffn_", "channel_mix_")),
    ("attention", ("attn_", "cross_attn_", "indexer.", "dec.blk.")),
    ("recurrent", ("ssm_", "time_mix_", "shortconv.")),
    ("embedding", ("token_embd", "token_types", "position_embd", "per_layer_token_embd")),
    ("head", ("output.", "cls.")),
)
