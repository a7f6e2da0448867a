"""Drafters: small models that propose tokens to a larger one, whose features they read.

Their configurations carry the type of a plain decoder and name another class. The cache is that of
the decoder; the parameters are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvtool.model import blocks, decoder
from kvtool.model.fields import MAX_VOCAB, Fields
from kvtool.model.spec import Attention, Layer, ModelSpec, Weight

EAGLE3 = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")

# Layers of the target whose features an EAGLE-3 drafter reads.
FEATURES = 3


def as_drafter(spec: ModelSpec, f: Fields, classes: Sequence[str]) -> ModelSpec:
    """`spec` with a drafter's own parameters where a class of `classes` is one, else `spec`.

    EAGLE-3 drafters of one layer and DFlash drafters are counted; of others a note says that they
    are not.
    """
    named = next((name for name in classes if _drafts(name)), None)
    if named is None:
        return spec
    f.used.add("architectures")
    if named in EAGLE3 and len(spec.layers) == 1:
        return _eagle3(spec, f)
    if named == "DFlashDraftModel" and f.model_type == "qwen3":
        read = f.child("dflash_config").integers("target_layer_ids")
        if read:
            return _dflash(spec, len(read))
    note = f"parameters of the drafter {named} are not counted here"
    return replace(spec, weights_known=False, notes=(*spec.notes, note))


def _drafts(name: str) -> bool:
    return name.endswith("DraftModel") or ("Eagle" in name and "ForCausalLM" in name)


def _eagle3(spec: ModelSpec, f: Fields) -> ModelSpec:
    """Queries, keys and values from the embedding beside the features, which `fc` joins from
    several layers of the target; three norms and no bias; a head over the drafter's own tokens.

    Source: the class of SpecForge (`specforge/modeling/draft/llama3_eagle.py`).
    """
    hidden, target = spec.hidden_size, f.integer("target_hidden_size", spec.hidden_size)
    (state,) = (s for s in spec.layers[0].states if isinstance(s, Attention))
    *projections, out = blocks.attention(state, 2 * hidden)
    weights = (
        *projections,
        replace(out, shape=(hidden, out.shape[1])),
        *blocks.mlp(hidden, f.integer("intermediate_size")),
        *blocks.norm("norms", hidden, count=3),
    )
    rows = f.integer("draft_vocab_size", spec.vocab_size, high=MAX_VOCAB)
    features = blocks.linear("fc", hidden, FEATURES * target, part="mlp")
    if f.flag("fc_norm", False):
        features += blocks.norm("fc_norm", target, count=FEATURES)
    vocab = decoder.vocab_size(f)
    return replace(
        spec,
        layers=(Layer(spec.layers[0].states, weights),),
        embedding=(Weight("embed_tokens", "embedding", (vocab, hidden), vocab), *features),
        head=(*blocks.norm("norm", hidden), Weight("lm_head", "head", (rows, hidden), rows)),
        tied=False,
    )


def _dflash(spec: ModelSpec, features: int) -> ModelSpec:
    """Layers of Qwen3 behind `fc`, which joins the features of so many layers of the target, and
    two norms; embedding and head are the target's.

    Source: the class of SpecForge (`specforge/modeling/draft/dflash.py`).
    """
    hidden = spec.hidden_size
    return replace(
        spec,
        embedding=(
            *blocks.linear("fc", hidden, features * hidden, part="mlp"),
            *blocks.norm("hidden_norm", hidden),
        ),
        head=blocks.norm("norm", hidden),
        tied=False,
    )
