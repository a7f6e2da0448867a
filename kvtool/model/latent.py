"""Families with latent attention: DeepSeek and those that follow it, sparse indexers included."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvtool.model import blocks, decoder, layout
from kvtool.model.fields import MAX_TOKENS, Fields
from kvtool.model.spec import (
    Attention,
    Index,
    Latent,
    Layer,
    ModelSpec,
    Recurrent,
    State,
    Weight,
)
from kvtool.model.styles import STYLES, Style

STYLE = Style(shared="gated")


def latent_state(f: Fields, heads: int) -> Latent:
    """The compressed row: `kv_lora_rank` shared by key and value, and the rotary part of the key.

    num_key_value_heads and head_dim of such configurations say nothing about the cache.
    """
    rope = f.integer("qk_rope_head_dim", low=0)
    nope = f.integer("qk_nope_head_dim")
    return Latent(
        f.integer("kv_lora_rank") + rope, heads, nope + rope, f.integer("v_head_dim", nope)
    )


def latent_weights(f: Fields, state: Latent, hidden: int) -> tuple[Weight, ...]:
    return blocks.latent(
        state,
        hidden,
        kv_rank=f.integer("kv_lora_rank"),
        rope=f.integer("qk_rope_head_dim", low=0),
        q_rank=f.optional("q_lora_rank"),
        bias=f.flag("attention_bias", False),
    )


def listed_indexes(f: Fields, layers: int) -> list[bool] | None:
    """Layers with an index key of their own by `indexer_types`, else by `index_topk_pattern` (F
    and S); None without either."""
    types = f.strings("indexer_types")
    if types is None and f.has("index_topk_pattern"):
        letters = {"F": "full", "S": "shared"}
        types = [letters.get(c, c) for c in f.text("index_topk_pattern")]
    if types is None:
        return None
    if len(types) < layers:
        f.fault("indexer_types", types, f"one entry for each of the {layers} layers")
        return [True] * layers
    f.one_of("indexer_types", types, ("full", "shared"))
    return [entry == "full" for entry in types[:layers]]


def index_layers(f: Fields, layers: int) -> list[bool]:
    """Which layers keep an index key of their own; the others reuse the choice of an earlier one.

    As listed, else the schedule of `index_topk_freq` and `index_skip_topk_offset` (GLM-5); without
    any of them, all layers.
    """
    listed = listed_indexes(f, layers)
    if listed is not None:
        return listed
    freq = f.integer("index_topk_freq", 1)
    offset = f.integer("index_skip_topk_offset", 2, low=0)
    return [max(i - offset + 1, 0) % freq == 0 for i in range(layers)]


# Fields of compressed rows, which stand at zero where a model of such a type attends plainly.
LATENT_FIELDS = (
    "kv_lora_rank",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)


def read(f: Fields) -> ModelSpec:
    """DeepSeek V2, V3, R1, V3.2, Kimi K2, GLM-5, GLM-4.7-Flash, MiniCPM3: MLA in every layer."""
    if f.raw.get("use_mla") is False:
        # DeepSeek-OCR and the small DeepSeek-VL2 carry the type but attend plainly.
        f.used.add(f"{f.path}use_mla")
        plain = {name: value for name, value in f.raw.items() if name not in LATENT_FIELDS}
        return decoder.read(decoder.renamed(f, plain, "deepseek"), STYLES["deepseek"])
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    heads = f.integer("num_attention_heads")
    state = latent_state(f, heads)
    indexed = [False] * count
    if f.has("index_head_dim") or f.has("index_topk"):
        indexed = index_layers(f, count)
    moe = layout.moe_layers(f, count)

    def layer(with_index: bool, sparse: bool) -> Layer:
        states: tuple[State, ...] = (state,)
        weights = latent_weights(f, state, hidden)
        if with_index:
            width, rank = f.integer("index_head_dim"), f.integer("q_lora_rank")
            states += (Index(width),)
            weights += blocks.indexer(hidden, rank, f.integer("index_n_heads"), width)
        weights += decoder.feed_forward(f, STYLE, hidden, sparse=sparse)
        norms = 3 if sparse and f.model_type == "axk1" else 2
        return Layer(states, weights + blocks.norm("norms", hidden, count=norms))

    made = {key: layer(*key) for key in set(zip(indexed, moe, strict=True))}
    layers = tuple(made[key] for key in zip(indexed, moe, strict=True))
    return decoder.assemble(f, STYLE, layers, hidden)


def read_longcat(f: Fields) -> ModelSpec:
    """LongCat-Flash: a layer holds two latent attentions, two dense MLPs and one set of experts.

    Identity experts (`zero_expert_num`) take router rows and no weights.
    """
    count = layout.num_layers(f)
    hidden, heads = f.integer("hidden_size"), f.integer("num_attention_heads")
    state = latent_state(f, heads)
    attention = latent_weights(f, state, hidden)
    zero = f.integer("zero_expert_num", 0, low=0)
    real = f.integer("num_experts")
    inner = f.optional("expert_ffn_hidden_size") or f.integer("moe_intermediate_size")
    experts = blocks.experts(hidden, inner, real, f.integer("num_experts_per_tok"))
    router = Weight("mlp.router", "router", (real + zero, hidden))
    dense = blocks.mlp(hidden, f.integer("intermediate_size"))
    half = (*attention, *dense, *blocks.norm("norms", hidden, count=2))
    layer = Layer((state, state), (*half, *half, router, *experts[1:]))
    spec = decoder.assemble(f, STYLE, (layer,) * count, hidden)
    return replace(spec, embedding=spec.embedding + _ngram_embeddings(f, hidden))


def _ngram_embeddings(f: Fields, hidden: int) -> tuple[Weight, ...]:
    """Tables of hashed n-grams beside the embedding (LongCat-Flash-Lite): `emb_split_num` for each
    n from 2 to `emb_neighbor_num`, the i-th of ratio x vocabulary + 2 i + 1 rows, which share out
    the hidden size, and a projection from each. Source: vLLM 0.33, longcat_flash_ngram."""
    if not f.has("ngram_vocab_size_ratio"):
        return ()
    tables = f.integer("emb_split_num") * (f.integer("emb_neighbor_num") - 1)
    if not tables:
        return ()
    width = hidden // tables
    rows = tables * (f.integer("ngram_vocab_size_ratio") * decoder.vocab_size(f) + tables)
    return (
        Weight("ngram_embeddings", "embedding", (rows, width), rows),
        Weight("ngram_projections", "embedding", (tables, width, hidden)),
    )


# DeepSeek V4: tokens per compressed entry, by layer type and by `compress_ratios` value. The class
# lets `compress_rates` (once `compress_rate_csa` and `compress_rate_hca`) say otherwise.
SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
V4_RATES = {SPARSE: 4, HEAVY: 128}
V4_LEGACY = {SPARSE: "compress_rate_csa", HEAVY: "compress_rate_hca"}
V4_KINDS = {0: "sliding_attention", 4: SPARSE, 128: HEAVY}


@dataclass(frozen=True, slots=True)
class _Compression:
    """Tokens per compressed entry (0: none), and whether entries overlap and have an indexer."""

    rate: int = 0
    sparse: bool = False


def _v4_rates(f: Fields) -> dict[str, int]:
    """Tokens per compressed entry by layer type, as configured, else as the class has it."""
    section = f.child("compress_rates")
    return {
        kind: f.optional(V4_LEGACY[kind], high=MAX_TOKENS)
        or section.integer(kind, rate, high=MAX_TOKENS)
        for kind, rate in V4_RATES.items()
    }


def _v4_compressions(f: Fields, layers: int) -> list[_Compression]:
    """What each layer compresses, by its type."""
    rates = _v4_rates(f)
    made = {kind: _Compression(rate, kind == SPARSE) for kind, rate in rates.items()}
    return [made.get(kind, _Compression()) for kind in _v4_types(f, layers)]


def _v4_types(f: Fields, layers: int) -> list[str]:
    """The type of each layer: listed, or by its `compress_ratios` value, or as the class would."""
    types = f.strings("layer_types")
    if types is None and f.has("compress_ratios"):
        ratios = f.integers("compress_ratios", high=MAX_TOKENS) or []
        if len(ratios) < layers:
            f.fault("compress_ratios", ratios, f"one entry for each of the {layers} layers")
            return [V4_KINDS[0]] * layers
        f.one_of("compress_ratios", [str(r) for r in ratios], [str(k) for k in V4_KINDS])
        return [V4_KINDS.get(ratio, V4_KINDS[0]) for ratio in ratios[:layers]]
    if types is None:
        types = [HEAVY] * min(layers, 2) + [
            SPARSE if i % 2 else HEAVY for i in range(max(layers - 2, 0))
        ]
    f.one_of("layer_types", types, V4_KINDS.values())
    if len(types) < layers:
        f.fault("layer_types", types, f"one entry for each of the {layers} layers")
        return [V4_KINDS[0]] * layers
    return types[:layers]


def _v4_states(
    kept: _Compression, heads: int, width: int, window: int, index: int
) -> tuple[State, ...]:
    """A window of K=V rows; with a compressor one entry per `rate` tokens, the tokens not yet
    compressed with their gates (float32; twice the entries where windows overlap, sparse layers),
    and on sparse layers an indexer with the same at its own width."""
    states: tuple[State, ...] = (Attention(heads, 1, width, 0, "sliding", window),)
    if not kept.rate:
        return states
    states += (Latent(width, heads, width, width, stride=kept.rate),)
    overlap = 2 if kept.sparse else 1
    pending = 2 * (overlap * kept.rate) * (overlap * width)
    if kept.sparse:
        states += (Index(index, stride=kept.rate),)
        pending += 2 * (overlap * kept.rate) * (overlap * index)
    return (*states, Recurrent("recurrent", ((pending, 0),), "float32"))


def read_v4(f: Fields) -> ModelSpec:
    """DeepSeek V4: shared-KV windows, compressed entries, an indexer on the sparse layers."""
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    heads, width = f.integer("num_attention_heads"), f.integer("head_dim")
    window = f.integer("sliding_window", high=MAX_TOKENS)
    index = f.integer("index_head_dim")
    kinds, plain = _v4_compressions(f, count), _Compression()
    made = {
        kept: Layer(_v4_states(kept, heads, width, window, index), _v4_weights(f, kept, hidden))
        for kept in {*kinds, plain}
    }
    layers, template = tuple(made[kept] for kept in kinds), made[plain]
    spec = decoder.assemble(f, STYLE, layers, hidden, template)
    streams = f.integer("hc_mult")
    collapse = Weight("hc_head", "mlp", (streams * streams * hidden + streams + 1,))
    return replace(spec, head=(*spec.head, collapse))


def _v4_weights(f: Fields, kept: _Compression, hidden: int) -> tuple[Weight, ...]:
    heads, width = f.integer("num_attention_heads"), f.integer("head_dim")
    rank, groups = f.integer("q_lora_rank"), f.integer("o_groups")
    o_rank, streams = f.integer("o_lora_rank"), f.integer("hc_mult")
    name = "self_attn"
    mix = (2 + streams) * streams
    inner = f.integer("moe_intermediate_size")
    return (
        *blocks.linear(f"{name}.q_a_proj", rank, hidden, part="attention"),
        *blocks.norm(f"{name}.q_a_norm", rank),
        *blocks.linear(f"{name}.q_b_proj", heads * width, rank, part="attention", units=heads),
        *blocks.linear(f"{name}.kv_proj", width, hidden, part="attention"),
        *blocks.norm(f"{name}.kv_norm", width),
        *blocks.linear(
            f"{name}.o_a_proj", groups * o_rank, heads * width // groups, part="attention",
            units=groups,
        ),
        *blocks.linear(
            f"{name}.o_b_proj", hidden, groups * o_rank, part="attention", units=groups, rows=True
        ),
        Weight(f"{name}.sinks", "attention", (heads,), heads),
        *_v4_compressor(f, kept, hidden),
        *blocks.experts(
            hidden, inner, f.integer("num_experts"), f.integer("num_experts_per_tok")
        ),
        *blocks.mlp(
            hidden, inner * f.integer("n_shared_experts", 1), name="mlp.shared_experts"
        ),
        *blocks.norm("norms", hidden, count=2),
        Weight("hyper_connections", "mlp", (2, mix * streams * hidden + mix + 3)),
    )  # fmt: skip


def _v4_compressor(f: Fields, kept: _Compression, hidden: int) -> tuple[Weight, ...]:
    if not kept.rate:
        return ()
    width, overlap = f.integer("head_dim"), 2 if kept.sparse else 1

    def compressor(name: str, size: int) -> tuple[Weight, ...]:
        wide = overlap * size
        return (
            *blocks.linear(f"{name}.kv_proj", wide, hidden, part="attention"),
            *blocks.linear(f"{name}.gate_proj", wide, hidden, part="attention"),
            Weight(f"{name}.position_bias", "attention", (kept.rate, wide)),
            *blocks.norm(f"{name}.kv_norm", size),
        )

    weights = compressor("self_attn.compressor", width)
    if not kept.sparse:
        return weights
    heads, index = f.integer("index_n_heads"), f.integer("index_head_dim")
    name = "self_attn.compressor.indexer"
    return (
        *weights,
        *compressor(name, index),
        *blocks.linear(
            f"{name}.q_b_proj", heads * index, f.integer("q_lora_rank"), part="attention"
        ),
        *blocks.linear(f"{name}.weights_proj", heads, hidden, part="attention"),
    )  # fmt: skip
