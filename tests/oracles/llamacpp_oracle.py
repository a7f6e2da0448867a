"""Caches that llama.cpp allocates for tiny models of ten architectures, and what it logs of them.

    python tests/oracles/llamacpp_oracle.py          # writes tests/golden/llamacpp_caches.json
    python tests/oracles/llamacpp_oracle.py --check  # exit code 1 when the file differs
    python tests/oracles/llamacpp_oracle.py --logs   # writes whole logs beside it, for the audit

The interpreter needs llama-cpp-python (0.3.36) and gguf, and this repository on its path. A model's
weights are zeros of a few hidden units; heads, windows and states have real widths, so that the
caches are those of a real model with fewer layers. Nothing is decoded.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from gguf import GGUFWriter

from kvtool.model.gguf import read_gguf_config

GOLDEN = Path(__file__).parents[1] / "golden" / "llamacpp_caches.json"
LOGS = GOLDEN.parent / "logs"
HIDDEN, WORDS, INNER = 64, 64, 64
Shapes = dict[str, tuple[int, ...]]

# Architecture -> layers, keys of the file, and which tensors a layer has.
MODELS: dict[str, tuple[int, dict[str, Any], str]] = {
    "llama": (3, {"heads": (8, 2), "head_dim": 128}, "attention"),
    "phi3": (2, {"heads": (2, 2), "head_dim": 32, "window": 512}, "attention"),
    "gemma3": (6, {"heads": (8, 4), "head_dim": 256, "window": 1024}, "attention"),
    "cohere2": (4, {"heads": (2, 1), "head_dim": 32, "window": 4096}, "attention"),
    "gpt-oss": (4, {"heads": (8, 8), "head_dim": 64, "window": 128, "experts": 2}, "attention"),
    "deepseek2": (3, {"heads": (4, 1), "latent": (512, 64, 128, 128)}, "latent"),
    "mamba2": (3, {"state": (4, 256, 128, 4, 2)}, "state"),
    "lfm2": (4, {"heads": (2, (0, 2, 0, 2)), "head_dim": 32, "conv": 513}, "mixed"),
    "qwen35": (8, {"heads": (4, 2), "head_dim": 256, "state": (4, 512, 128, 4, 2)}, "delta"),
    "falcon-h1": (2, {"heads": (4, 2), "head_dim": 64, "state": (4, 256, 64, 4, 1)}, "both"),
}
STATE_KEYS = ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")
TYPES = {"f16": 1, "f32": 0, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7,
         "iq4_nl": 20}  # fmt: skip


def keys_of(name: str, layers: int, shape: dict[str, Any]) -> dict[str, Any]:
    """The metadata of a tiny model, without its architecture's prefix."""
    keys: dict[str, Any] = {
        "block_count": layers, "context_length": 65536, "embedding_length": HIDDEN,
        "feed_forward_length": INNER, "vocab_size": WORDS,
        "attention.layer_norm_rms_epsilon": 1e-6, "attention.layer_norm_epsilon": 1e-6,
        "logit_scale": 1.0,
    }  # fmt: skip
    if "heads" in shape:
        keys["attention.head_count"], kv = shape["heads"]
        keys["attention.head_count_kv"] = list(kv) if isinstance(kv, tuple) else kv
    if "head_dim" in shape:
        keys["attention.key_length"] = keys["attention.value_length"] = shape["head_dim"]
        keys["rope.dimension_count"] = shape["head_dim"]
    if "window" in shape:
        keys["attention.sliding_window"] = shape["window"]
    if "experts" in shape:
        keys |= {"expert_count": shape["experts"], "expert_used_count": 1,
                 "expert_feed_forward_length": INNER}  # fmt: skip
    if "latent" in shape:
        rank, rope, nope, value = shape["latent"]
        keys |= {
            "attention.kv_lora_rank": rank, "rope.dimension_count": rope,
            "attention.key_length": rank + rope, "attention.value_length": rank,
            "attention.key_length_mla": nope + rope, "attention.value_length_mla": value,
            "leading_dense_block_count": layers, "expert_shared_count": 0,
            "expert_feed_forward_length": INNER,
            "attention.q_lora_rank": 64,
        }  # fmt: skip
    if "state" in shape:
        keys |= {f"ssm.{key}": n for key, n in zip(STATE_KEYS, shape["state"], strict=True)}
    if "conv" in shape:
        keys["shortconv.l_cache"] = shape["conv"]
    if name == "qwen35":
        keys |= {"full_attention_interval": 4, "rope.dimension_sections": [8, 8, 8, 0]}
    return keys


def tensors_of(name: str, layers: int, shape: dict[str, Any], kind: str) -> Shapes:
    """Tensors and their shapes, outer extent first as numpy has them."""
    found: Shapes = {
        "token_embd.weight": (WORDS, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "output.weight": (WORDS, HIDDEN),
    }
    if name == "cohere2":
        del found["output.weight"]
    if name == "lfm2":
        found["token_embd_norm.weight"] = found.pop("output_norm.weight")
    for i in range(layers):
        tensors = dict(_layer(name, shape, kind, i))
        found |= {f"blk.{i}.{tensor}": extents for tensor, extents in tensors.items()}
    return found


def _layer(name: str, shape: dict[str, Any], kind: str, i: int) -> Iterator[tuple[str, Any]]:
    yield "attn_norm.weight", (HIDDEN,)
    attends = kind in ("attention", "both") or (kind == "delta" and i % 4 == 3)
    if kind == "mixed":
        attends = bool(shape["heads"][1][i])
        if not attends:
            yield "shortconv.conv.weight", (HIDDEN, shape["conv"])
            yield "shortconv.in_proj.weight", (3 * HIDDEN, HIDDEN)
            yield "shortconv.out_proj.weight", (HIDDEN, HIDDEN)
    if attends:
        yield from _attention(name, shape, i)
    if kind == "latent":
        yield from _latent(shape)
    if kind in ("state", "both"):
        yield from _mamba2(shape)
    if kind == "delta" and not attends:
        yield from _delta(shape)
    if kind != "state":
        yield from _mlp(name, shape)


def _attention(name: str, shape: dict[str, Any], i: int) -> Iterator[tuple[str, Any]]:
    heads, kv = shape["heads"]
    kv = kv[i] if isinstance(kv, tuple) else kv
    width = shape["head_dim"]
    gate = 2 if name == "qwen35" else 1
    yield "attn_q.weight", (heads * width * gate, HIDDEN)
    yield "attn_k.weight", (kv * width, HIDDEN)
    yield "attn_v.weight", (kv * width, HIDDEN)
    yield "attn_output.weight", (HIDDEN, heads * width)
    if name in ("gemma3", "lfm2", "qwen35"):
        yield "attn_q_norm.weight", (width,)
        yield "attn_k_norm.weight", (width,)
    if name == "gpt-oss":
        yield "attn_q.bias", (heads * width,)
        yield "attn_k.bias", (kv * width,)
        yield "attn_v.bias", (kv * width,)
        yield "attn_output.bias", (HIDDEN,)
        yield "attn_sinks.weight", (heads,)


def _latent(shape: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    heads = shape["heads"][0]
    rank, rope, nope, value = shape["latent"]
    yield "attn_q_a.weight", (64, HIDDEN)
    yield "attn_q_a_norm.weight", (64,)
    yield "attn_q_b.weight", (heads * (nope + rope), 64)
    yield "attn_kv_a_mqa.weight", (rank + rope, HIDDEN)
    yield "attn_kv_a_norm.weight", (rank,)
    yield "attn_k_b.weight", (heads, rank, nope)
    yield "attn_v_b.weight", (heads, value, rank)
    yield "attn_output.weight", (HIDDEN, heads * value)


def _mamba2(shape: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    kernel, inner, state, heads, groups = shape["state"]
    wide = inner + 2 * groups * state
    yield "ssm_in.weight", (2 * inner + 2 * groups * state + heads, HIDDEN)
    yield "ssm_conv1d.weight", (wide, kernel)
    yield "ssm_conv1d.bias", (wide,)
    yield "ssm_dt.bias", (heads,)
    yield "ssm_a", (heads, 1)
    yield "ssm_d", (heads, 1)
    yield "ssm_norm.weight", (groups, inner // groups)
    yield "ssm_out.weight", (HIDDEN, inner)


def _delta(shape: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    kernel, inner, state, heads, groups = shape["state"]
    wide = inner + 2 * groups * state
    yield "attn_qkv.weight", (wide, HIDDEN)
    yield "attn_gate.weight", (inner, HIDDEN)
    yield "ssm_conv1d.weight", (wide, kernel)
    yield "ssm_dt.bias", (heads,)
    yield "ssm_a", (heads,)
    yield "ssm_beta.weight", (heads, HIDDEN)
    yield "ssm_alpha.weight", (heads, HIDDEN)
    yield "ssm_norm.weight", (inner // heads,)
    yield "ssm_out.weight", (HIDDEN, inner)


def _mlp(name: str, shape: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    if name in ("gpt-oss", "qwen35"):
        yield "post_attention_norm.weight", (HIDDEN,)
    elif name == "falcon-h1":
        yield "ffn_norm", (HIDDEN,)
    elif name != "cohere2":
        yield "ffn_norm.weight", (HIDDEN,)
    if name == "gemma3":
        yield "post_attention_norm.weight", (HIDDEN,)
        yield "post_ffw_norm.weight", (HIDDEN,)
    if "experts" in shape:
        count = shape["experts"]
        yield "ffn_gate_inp.weight", (count, HIDDEN)
        yield "ffn_gate_inp.bias", (count,)
        for side in ("gate", "up", "down"):
            yield f"ffn_{side}_exps.weight", (count, INNER, HIDDEN)
            yield f"ffn_{side}_exps.bias", (count, INNER)
        return
    if name == "phi3":
        yield "ffn_up.weight", (2 * INNER, HIDDEN)
    else:
        yield "ffn_gate.weight", (INNER, HIDDEN)
        yield "ffn_up.weight", (INNER, HIDDEN)
    yield "ffn_down.weight", (HIDDEN, INNER)


def write(path: Path, name: str) -> None:
    """The tiny model as a GGUF file."""
    layers, shape, kind = MODELS[name]
    writer = GGUFWriter(path, name)
    writer.add_string("tokenizer.ggml.model", "none")
    for key, value in keys_of(name, layers, shape).items():
        full = f"{name}.{key}"
        if isinstance(value, float):
            writer.add_float32(full, value)
        elif isinstance(value, list):
            writer.add_array(full, value)
        else:
            writer.add_uint32(full, value)
    for tensor, extents in tensors_of(name, layers, shape, kind).items():
        writer.add_tensor(tensor, np.zeros(extents, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


LINES: list[str] = []


@llama_cpp.llama_log_callback
def keep(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    LINES.append(text.decode("utf-8", "replace"))


CACHE = re.compile(
    r"size = +([0-9.]+) MiB \( *([0-9]+) cells, +([0-9]+) layers, +([0-9]+)(?:/([0-9]+))? seqs"
    r"(?: +([0-9]+) rs_seq)?\), [KR] \(\w+\): +([0-9.]+) MiB, [VS] \(\w+\): +([0-9.]+) MiB"
)


def allocate(model: Any, asked: dict[str, Any]) -> list[list[float]]:
    """The caches of a context: MiB, cells, layers, slots, streams or snapshots, K and V MiB."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_seq_max = asked["n_ctx"], asked["n_seq_max"]
    params.n_batch, params.n_ubatch = 2048, asked["n_ubatch"]
    params.n_rs_seq = asked["n_rs_seq"]
    params.type_k, params.type_v = TYPES[asked["type_k"]], TYPES[asked["type_v"]]
    params.kv_unified, params.swa_full = asked["kv_unified"], asked["swa_full"]
    params.flash_attn_type = 1 if asked["flash_attn"] else 0
    LINES.clear()
    context = llama_cpp.llama_init_from_model(model, params)
    text = "".join(LINES)
    if not context:
        raise RuntimeError(f"no context for {asked}: {text[-400:]}")
    llama_cpp.llama_free(context)
    return [
        [float(m[1]), int(m[2]), int(m[3]), int(m[4]), int(m[5] or m[6] or 0), float(m[7]),
         float(m[8])]
        for m in CACHE.finditer(text)
    ]  # fmt: skip


BASE = {
    "n_ctx": 8192, "n_seq_max": 1, "n_ubatch": 512, "n_rs_seq": 0, "type_k": "f16",
    "type_v": "f16", "kv_unified": False, "swa_full": False, "flash_attn": True,
}  # fmt: skip


def grid() -> Iterator[dict[str, Any]]:
    """Settings: contexts, slots and streams crossed; then each other one by itself."""
    for context, slots, unified in itertools.product(
        (1000, 1024, 4096, 10_000, 32_768), (1, 2, 3, 4), (False, True)
    ):
        yield BASE | {"n_ctx": context, "n_seq_max": slots, "kv_unified": unified}
    for ubatch in (64, 1024, 2048):
        yield BASE | {"n_ubatch": ubatch, "n_seq_max": 2}
    for k, v in (("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q5_1", "q4_1"), ("q8_0", "f16"),
                 ("f32", "f32"), ("bf16", "bf16"), ("iq4_nl", "q5_0")):  # fmt: skip
        yield BASE | {"type_k": k, "type_v": v}
    yield BASE | {"swa_full": True, "n_seq_max": 2}
    yield BASE | {"flash_attn": False}
    yield BASE | {"n_rs_seq": 2, "n_seq_max": 3}


def rows(name: str, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The model's configuration, and a row for each setting it can have."""
    path = folder / f"{name}.gguf"
    write(path, name)
    params = llama_cpp.llama_model_default_params()
    LINES.clear()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise RuntimeError(f"{name} does not load: {''.join(LINES)[-800:]}")
    found = []
    for asked in grid():
        try:
            caches = allocate(model, asked)
        except RuntimeError as error:
            print(f"{name}: {error}"[:300], file=sys.stderr)
            continue
        changed = {key: value for key, value in asked.items() if value != BASE[key]}
        found.append({"settings": changed, "caches": caches})
    llama_cpp.llama_model_free(model)
    return read_gguf_config(path), found


# Architectures whose whole logs are kept, and lines that are left out of them: one per tensor, and
# what names the machine.
LOGGED = ("gemma3", "lfm2", "qwen35", "deepseek2")
LEFT_OUT = re.compile(
    r"create_tensor: |load_tensors: |llama_model_loader: loaded|: layer +\d|done_g"
    r"|llama_graph_n_input"
)


def write_log(name: str, folder: Path) -> None:
    """The log of loading a tiny model and making a context of three slots."""
    path = folder / f"{name}.gguf"
    write(path, name)
    LINES.clear()
    model = llama_cpp.llama_model_load_from_file(
        str(path).encode(), llama_cpp.llama_model_default_params()
    )
    text = "".join(LINES)
    allocate(model, BASE | {"n_seq_max": 3, "n_ubatch": 256, "n_rs_seq": int(name == "qwen35")})
    text += "".join(LINES)
    llama_cpp.llama_model_free(model)
    kept = [line for line in text.splitlines() if not LEFT_OUT.search(line)]
    head = (
        f"# llama.cpp {COMMIT}: a tiny {name} with three slots (tests/oracles/llamacpp_oracle.py)."
    )
    (LOGS / f"llamacpp_tiny_{name}.log").write_text("\n".join([head, *kept]) + "\n", "utf-8")


COMMIT = "0c1e57098"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--logs", action="store_true")
    given = parser.parse_args()
    llama_cpp.llama_log_set(keep, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    if given.logs:
        with tempfile.TemporaryDirectory() as folder:
            for name in LOGGED:
                write_log(name, Path(folder))
        return 0
    made: dict[str, Any] = {"llama_cpp_python": llama_cpp.__version__, "base": BASE, "models": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            config, found = rows(name, Path(folder))
            made["models"][name] = {"config": config, "rows": found}
            print(f"{name}: {len(found)} rows", file=sys.stderr)
    text = _text(made)
    if given.check:
        same = GOLDEN.is_file() and GOLDEN.read_text("utf-8") == text
        print("no drift" if same else f"{GOLDEN.name} differs")
        return not same
    GOLDEN.write_text(text, "utf-8")
    return 0


def _text(made: dict[str, Any]) -> str:
    """JSON with a line for each row."""
    models = []
    for name, model in made["models"].items():
        lines = ",\n".join("  " + json.dumps(row) for row in model["rows"])
        head = f'"{name}": {{"config": {json.dumps(model["config"])}, "rows": [\n'
        models.append(head + lines + "\n]}")
    head = json.dumps({key: made[key] for key in ("llama_cpp_python", "base")})[:-1]
    return head + ', "models": {\n' + ",\n".join(models) + "\n}}\n"


if __name__ == "__main__":
    sys.exit(main())
