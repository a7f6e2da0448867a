"""What a deployment makes of a model: a drafter's layers, weights on a device, shared rows."""

from __future__ import annotations

from collections.abc import Iterable

from kvtool.engines.base import Deployment
from kvtool.errors import ModelError
from kvtool.model.spec import Attention, Layer, ModelSpec, Weight
from kvtool.model.weights import weight_bytes


def extra_layers(model: ModelSpec, deployment: Deployment) -> tuple[Layer, ...]:
    """Layers a drafter adds on the last stage: the model's own MTP layers, another model's."""
    own = model.mtp_layers if deployment.mtp else ()
    return (*own, *(deployment.draft.layers if deployment.draft else ()))


def stored_weights(model: ModelSpec, deployment: Deployment) -> int | None:
    """Bytes of the checkpoint's weights on the fullest device, a drafter's included.

    None where not all parameters or not the format of the weights are known.
    """
    draft = deployment.draft
    if not model.weights_known or (draft is not None and not draft.weights_known):
        return None
    try:
        held = weight_bytes(model, deployment.dtype, deployment.parallel, mtp=deployment.mtp)
        if draft is not None:
            held += weight_bytes(draft, "auto", deployment.parallel)
    except ModelError:
        return None
    return held


def owner(layer: Layer, layers: Iterable[Layer]) -> Attention | None:
    """The attention of the first layer whose queries are as wide: what a shared layer reads."""
    wanted = _query_shape(layer.weights)
    for other in layers:
        for state in other.states:
            if isinstance(state, Attention) and _query_shape(other.weights) == wanted:
                return state
    return None


def _query_shape(weights: Iterable[Weight]) -> tuple[int, ...] | None:
    return next((w.shape for w in weights if w.name.endswith("q_proj")), None)
