"""Models without a decoder: they keep nothing between tokens."""

from __future__ import annotations

from kvtool.model import blocks, decoder, layout
from kvtool.model.fields import Fields
from kvtool.model.spec import Attention, Layer, ModelSpec, Weight

# Encoders that transformers can also run as decoders; those are refused.
ENCODERS = (
    "albert", "bert", "bert-generation", "big_bird", "camembert", "convbert", "data2vec-text",
    "deberta", "deberta-v2", "distilbert", "electra", "ernie", "esm", "eurobert", "flaubert",
    "funnel", "gte", "ibert", "jina_embeddings_v3", "longformer", "luke", "megatron-bert",
    "mobilebert", "modernbert", "mpnet", "mra", "nomic_bert", "nystromformer", "rembert", "roberta",
    "roberta-prelayernorm", "roc_bert", "roformer", "splinter", "squeezebert", "ultrabert", "xlm",
    "xlm-roberta", "xlm-roberta-xl", "xmod",
)  # fmt: skip


# Encoders with BERT's own tensors: three embeddings, a norm, a head that predicts masked words.
BERTS = ("bert", "camembert", "data2vec-text", "ernie", "roberta", "xlm-roberta")


def read_encoder(f: Fields) -> ModelSpec:
    """Encoder-only models and embedders: they keep nothing between tokens."""
    if f.flag("is_decoder", False):
        f.fault("is_decoder", True, f"false: {f.model_type} is supported as an encoder alone")
    note = ("an encoder: it keeps no cache between tokens",)
    positions = layout.max_context(f)
    if f.model_type not in BERTS:
        return ModelSpec(
            "", f.model_type, "", (Layer(()),), positions, weights_known=False,
            notes=(*note, f"parameters of {f.model_type} are not counted here"),
        )  # fmt: skip
    count, hidden = layout.num_layers(f), f.integer("hidden_size")
    heads = f.integer("num_attention_heads")
    state = Attention(heads, heads, hidden // heads or 1, hidden // heads or 1)
    layer = Layer(
        (),
        (
            *blocks.attention(state, hidden, qkv_bias=True, o_bias=True),
            *blocks.mlp(hidden, f.integer("intermediate_size"), gated=False, bias=True),
            *blocks.norm("norms", hidden, bias=True, count=2),
        ),
    )
    vocab = decoder.vocab_size(f)
    rows = vocab + (positions or 0) + f.integer("type_vocab_size", 2, low=0)
    return ModelSpec(
        name="",
        model_type=f.model_type,
        dtype="",
        layers=(layer,) * count,
        max_context=positions,
        hidden_size=hidden,
        vocab_size=vocab,
        embedding=(
            Weight("embeddings", "embedding", (rows, hidden), rows),
            *blocks.norm("embedding_norm", hidden, bias=True),
        ),
        head=_bert_head(f, hidden, vocab),
        tied=True,
        notes=note,
    )


def _bert_head(f: Fields, hidden: int, vocab: int) -> tuple[Weight, ...]:
    """A pooler for a bare BertModel, else the head that predicts masked words."""
    dense = Weight("head.dense", "head", (hidden, hidden + 1))
    classes = f.raw.get("architectures")
    f.used.add("architectures")
    if isinstance(classes, list) and classes and str(classes[0]).endswith("Model"):
        return (dense,)
    return (
        dense,
        *blocks.norm("head.norm", hidden, bias=True),
        Weight("head.bias", "head", (vocab,)),
    )
