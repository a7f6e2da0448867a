"""Published families that transformers has no class for: Ring-linear, Step 3, Hunyuan with shared
keys, Falcon's first names, LoopCoder, OLMo's first format.

Source: the models' own code on the hub, as vLLM 0.33 re-implements it.
"""

from __future__ import annotations

from dataclasses import replace

from kvtool.model import blocks, decoder, kda, latent, layout
from kvtool.model.fields import MAX_VOCAB, Fields
from kvtool.model.recurrent import Mixers, assemble_mixers, attention_state, full_kinds, state_dtype
from kvtool.model.spec import Attention, Layer, ModelSpec, Recurrent, Shared, State, Weight
from kvtool.model.styles import PLAIN, SAME_AS, STYLES


def read_ring(f: Fields) -> ModelSpec:
    """Ring-linear and Ling 2.5: lightning attention, one matrix per head and no convolution, with
    grouped (Ring) or latent (Ling 2.5) attention on the last layer of each `layer_group_size`."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    style = STYLES["bailing_moe"]
    heads = f.integer("num_attention_heads")
    width = decoder.head_dim(f, heads)
    inner = heads * width
    name = "self_attn"
    linear = (
        *blocks.linear(f"{name}.query_key_value", 3 * inner, hidden, part="recurrent", units=heads),
        *blocks.linear(f"{name}.g_proj", inner, hidden, part="recurrent", units=heads),
        Weight(f"{name}.g_norm", "norm", (inner,), heads),
        *blocks.norm(f"{name}.qk_norm", width, count=2),
        *blocks.linear(f"{name}.dense", hidden, inner, part="recurrent", units=heads, rows=True),
    )
    state: State
    if f.has("kv_lora_rank"):
        rows = latent.latent_state(f, heads)
        state, full = rows, latent.latent_weights(f, rows, hidden)
    else:
        grouped = attention_state(f)
        state, full = grouped, decoder.attention_weights(f, style, grouped, hidden)
    memory = Recurrent("recurrent", ((heads * width * width, heads),), state_dtype(f, f.dtype))
    mixers: Mixers = {"full": ((state,), full), "linear": ((memory,), linear)}
    kinds = full_kinds(f, count, f.integer("layer_group_size"))
    return assemble_mixers(f, style, kinds, mixers)


def read_bailing_hybrid(f: Fields) -> ModelSpec:
    """Ling 2.5 where the class or the group norm of lightning attention says so, else Ling 3."""
    classes = f.raw.get("architectures")
    f.used.update((f"{f.path}architectures", f"{f.path}group_norm_size"))
    first = classes[0] if isinstance(classes, list) and classes else ""
    if "group_norm_size" in f.raw or str(first).startswith("BailingMoeV2_5"):
        return read_ring(f)
    return kda.read_ling3(f)


def read_step3(f: Fields) -> ModelSpec:
    """Step 3: queries share one projection of `share_q_dim`, `num_attention_groups` pairs of keys
    and values (one), experts on `moe_layers_enum`."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    heads, groups = f.integer("num_attention_heads"), f.integer("num_attention_groups", 1)
    width = f.integer("head_dim")
    queries = f.integer("share_q_dim", width)
    state = Attention(heads, groups, width, width)
    name = "self_attn"
    attention = (
        *blocks.linear(f"{name}.q_proj", queries, hidden, part="attention"),
        *blocks.linear(f"{name}.kv_proj", 2 * groups * width, hidden, part="attention"),
        *blocks.norm(f"{name}.inter_norm", queries),
        *blocks.linear(f"{name}.wq", heads * width, queries, part="attention", units=heads),
        *blocks.linear(
            f"{name}.o_proj", hidden, heads * width, part="attention", units=heads, rows=True
        ),
        *blocks.norm("norms", hidden, count=2),
    )
    style = replace(PLAIN, shared="gated")
    moe = layout.moe_layers(f, count)
    made = {
        sparse: Layer((state,), attention + decoder.feed_forward(f, style, hidden, sparse=sparse))
        for sparse in set(moe)
    }
    return decoder.assemble(f, style, tuple(made[sparse] for sparse in moe), hidden)


# Fields that Hunyuan's configurations give as a list with an entry per layer.
PER_LAYER = ("num_experts", "moe_topk", "moe_intermediate_size", "num_shared_expert")


def read_hunyuan(f: Fields) -> ModelSpec:
    """Hunyuan: lists of equal entries; with `use_cla` each `cla_share_factor` layers share the keys
    and values of the first of them (Hunyuan-Large)."""
    style = STYLES[SAME_AS.get(f.model_type, f.model_type)]
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    flat = {**f.raw}
    for name in PER_LAYER:
        value = f.raw.get(name)
        if isinstance(value, list):
            numbers = f.integers(name) or [1]
            if len(set(numbers)) != 1:
                f.fault(name, value, "the same number for every layer")
            flat[name] = numbers[0]
    if f.model_type in ("hunyuan", "hunyuan_v1_moe"):
        mixed = f.flag("use_mixed_mlp_moe", True)
        flat["num_shared_expert"] = flat.get("num_shared_expert", 1) if mixed else 0
    inner = decoder.renamed(f, flat)
    spec = decoder.read(inner, style)
    factor = f.integer("cla_share_factor", 1, high=count) if f.flag("use_cla", False) else 1
    if factor == 1:
        return spec
    drop = ("self_attn.k_proj", "self_attn.v_proj", "self_attn.k_norm")
    layers = []
    for i, layer in enumerate(spec.layers):
        if i % factor:
            kept = tuple(w for w in layer.weights if not w.name.startswith(drop))
            layer = Layer((Shared(),), kept)
        layers.append(layer)
    return replace(spec, layers=tuple(layers), hidden_size=hidden)


def read_refined_web(f: Fields) -> ModelSpec:
    """Falcon under its first names: RefinedWebModel (7B) and RefinedWeb (40B, whose eight pairs of
    heads mark the new decoder before the configuration had a word for it)."""
    flat = {**f.raw}
    flat.setdefault("new_decoder_architecture", f.optional("n_head_kv") not in (None, 1))
    twin = decoder.renamed(f, flat, model_type="falcon")
    return decoder.read(twin, STYLES["falcon"])


def read_loopcoder(f: Fields) -> ModelSpec:
    """IQuest LoopCoder: the layers run `loop_num` times; later runs add a window of
    `loop_window_size` rows of their own to the first run's cache."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    loops, window = f.integer("loop_num", 2, high=1024), f.integer("loop_window_size", 64)
    state = attention_state(f)
    local = replace(state, kind="sliding", limit=window)
    style = STYLES["llama"]
    gate = Weight("gate_proj", "attention", (state.num_q_heads, state.head_dim + 1))
    weights = (
        *decoder.attention_weights(f, style, state, hidden),
        gate,
        *decoder.feed_forward(f, style, hidden, sparse=False),
        *decoder.norms(f, style, hidden),
    )
    layer = Layer((state, *((local,) * (loops - 1))), weights)
    return decoder.assemble(f, style, (layer,) * count, hidden)


def read_hf_olmo(f: Fields) -> ModelSpec:
    """OLMo in its authors' own format (`hf_olmo`), later published again as type olmo.

    Counted as published: rotary positions, no biases, norms without gains. Source: allenai/OLMo,
    `olmo/config.py` and `olmo/model.py`.
    """
    hidden, heads = f.integer("hidden_size"), f.integer("num_attention_heads")
    kv = f.optional("n_kv_heads") or (1 if f.flag("multi_query_attention", False) else heads)
    inner = f.optional("mlp_hidden_size") or f.integer("mlp_ratio", 4) * hidden
    gated = f.text("activation_type", "swiglu") == "swiglu"
    vocab = f.optional("embedding_size", high=MAX_VOCAB) or decoder.vocab_size(f)
    counted = f.flag("rope", False) and not any(
        f.flag(name, default)
        for name, default in (
            ("include_bias", True),
            ("bias_for_layer_norm", False),
            ("layer_norm_with_affine", True),
            ("attention_layer_norm", False),
            ("embedding_layer_norm", False),
        )
    )
    named = {
        "num_key_value_heads": kv,
        "intermediate_size": inner // 2 if gated else inner,
        "vocab_size": vocab,
        "tie_word_embeddings": f.flag("weight_tying", True),
    }
    style = replace(STYLES["olmo"], gated=gated)
    spec = decoder.read(decoder.renamed(f, {**f.raw, **named}), style)
    if counted:
        return spec
    note = "parameters of norms, biases and positions are not counted here"
    return replace(spec, weights_known=False, notes=(*spec.notes, note))
