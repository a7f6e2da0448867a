"""Parameters and bytes of a model's weights, in all and on the fullest device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from kvtool.dtype import DTYPES, load_dtype
from kvtool.errors import UsageError
from kvtool.model.quantization import PACKINGS, Packing, Scheme, scheme_of
from kvtool.model.spec import SINGLE, Layer, ModelSpec, Parallel, Part, Weight, stages

# Weight formats by name: plain element types, and packings of the matrices inside layers.
FORMATS = ("float32", "float16", "bfloat16", *(n for n in PACKINGS if "-" not in n))


def _of(layers: Iterable[Layer]) -> Iterator[tuple[Weight, int]]:
    """The tensors of the distinct layers, each with the number of layers that have it.

    Layers alike are one record that stands in the model several times.
    """
    found: dict[int, tuple[Layer, int]] = {}
    for layer in layers:
        found[id(layer)] = (layer, found.get(id(layer), (layer, 0))[1] + 1)
    for layer, count in found.values():
        for weight in layer.weights:
            yield weight, count


def all_weights(model: ModelSpec) -> Iterator[tuple[Weight, int]]:
    """Every tensor of the model (tied ones once) with its number, without the MTP layers."""
    yield from _of(model.layers)
    for weight in (*model.embedding, *model.head, *model.encoder):
        yield weight, 1


def parameters(model: ModelSpec) -> int:
    """Parameters of the whole model: tied tensors once, MTP layers apart.

    >>> from kvtool.catalog import load_model
    >>> parameters(load_model("llama-3-70b"))
    70553706496
    """
    return sum(count * weight.elements for weight, count in all_weights(model))


def active_parameters(model: ModelSpec) -> int:
    """Parameters that one token uses: of the experts only those chosen for it."""
    return sum(count * weight.active_elements for weight, count in all_weights(model))


def mtp_parameters(model: ModelSpec) -> int:
    return sum(count * weight.elements for weight, count in _of(model.mtp_layers))


def by_part(model: ModelSpec) -> dict[Part, int]:
    """Parameters by part, in the order of `Part`."""
    found: Counter[Part] = Counter()
    for weight, count in all_weights(model):
        found[weight.part] += count * weight.elements
    return {part: found[part] for part in Part.__args__ if found[part]}  # type: ignore[attr-defined]


def weight_scheme(model: ModelSpec, dtype: str) -> tuple[Scheme | None, str]:
    """The packing of the matrices (None: plain) and the element type of everything else.

    `auto` follows the configuration: its dtype, and its quantisation where it has one. ModelError
    for a quantisation that is not known here, UsageError for a name that is no format.
    """
    if dtype == "auto":
        if model.quantization is None:
            return None, model.dtype
        return scheme_of(model.quantization, model.name), _unpacked(model.dtype)
    name = dtype.strip().lower()
    if name not in PACKINGS:
        name = load_dtype(dtype).name
        name = "fp8" if name.startswith("fp8") else name
    if name in PACKINGS:
        return Scheme(PACKINGS[name], lambda module: False), _unpacked(model.dtype)
    if name not in ("float32", "float16", "bfloat16"):
        raise UsageError(f"'{dtype}' is not a weight format", f"formats: {', '.join(FORMATS)}")
    return None, name


def _unpacked(dtype: str) -> str:
    """The type of what stays unpacked in a packed checkpoint: published ones keep it in 16 bits."""
    return dtype if dtype != "float32" else "bfloat16"


def weight_bytes(model: ModelSpec, dtype: str = "auto", parallel: Parallel = SINGLE,
                 mtp: bool = False) -> int:  # fmt: skip
    """Bytes of the weights on the device that holds most of them.

    The first stage holds the embedding and what stands beside the decoder, the last one the final
    norm and the head (and the embedding again where it is tied). Embeddings, heads, norms,
    routers and biases stay in the model's element type whatever packs the matrices. A model read
    from its checkpoint has the bytes stored there; its devices share them as the tensors say.
    """
    if model.stored_bytes is not None and dtype == "auto":
        return _stored(model, parallel, mtp)
    scheme, plain = weight_scheme(model, dtype)
    parts = list(stages(model.layers, parallel.pp))
    total = 0
    for i, layers in enumerate(parts):
        whole = [*model.embedding, *model.encoder] if i == 0 else []
        extra: tuple[Layer, ...] = ()
        if i == len(parts) - 1:
            whole += [*model.head, *(model.embedding if model.tied and i else ())]
            extra = model.mtp_layers if mtp else ()
        held = sum(weight.share(parallel) for weight in whole) * DTYPES[plain].block_bytes
        first = sum(map(len, parts[:i]))
        held += _layer_bytes([*layers, *extra], first, scheme, plain, parallel)
        total = max(total, held)
    return total


def _layer_bytes(
    layers: Sequence[Layer], first: int, scheme: Scheme | None, plain: str, parallel: Parallel
) -> int:
    """Bytes of the layers from the `first` on; module by module where they are packed."""
    if scheme is None:
        share = sum(count * weight.share(parallel) for weight, count in _of(layers))
        return share * DTYPES[plain].block_bytes
    return sum(
        _bytes(f"model.layers.{first + i}.{weight.name}", weight, scheme, plain, parallel)
        for i, layer in enumerate(layers)
        for weight in layer.weights
    )


def _stored(model: ModelSpec, parallel: Parallel, mtp: bool) -> int:
    """The fullest device's part of the stored bytes, in proportion to plain 16-bit weights."""
    assert model.stored_bytes is not None
    if parallel == SINGLE:
        return model.stored_bytes
    whole = weight_bytes(model, "bfloat16", SINGLE, mtp)
    share = weight_bytes(model, "bfloat16", parallel, mtp)
    return -(-model.stored_bytes * share // whole)


def _bytes(name: str, weight: Weight, scheme: Scheme, plain: str, parallel: Parallel) -> int:
    share = weight.share(parallel)
    packing = scheme.packing_of(name) if weight.linear else None
    if packing is None:
        return share * DTYPES[plain].block_bytes
    return _packed(weight, share, packing)


def _packed(weight: Weight, share: int, packing: Packing) -> int:
    """Packed bytes of a rank's share: of the whole tensor's, in proportion."""
    whole = packing.bytes(weight.shape)
    return whole if share == weight.elements else -(-whole * share // weight.elements)
