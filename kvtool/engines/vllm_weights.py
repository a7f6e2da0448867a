"""What vLLM's "Model loading took" counts: allocated bytes after loading, minus those before.

    parameters as stored (tied tensors once) + rotary tables + float32 parameters
    + copies that weight processing keeps + allocator rounding

vLLM joins q, k, v and gate, up into one tensor each and pads vocabularies to 64 rows. torch gives a
tensor of 10 MiB or more a segment in multiples of 2 MiB (smaller ones: 512 B); up to vLLM 0.20 a
rest of more than 1 MiB was given to others. Checked against runs of 0.22.1 on an H200 and the llm-d
planner's sweep of 0.19 on an H100.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvtool.dtype import DTYPES
from kvtool.engines.base import Deployment, Estimate
from kvtool.engines.vllm_releases import MIB, Release
from kvtool.model.quantization import Scheme
from kvtool.model.spec import Latent, Layer, ModelSpec, Rotary, Weight, stages
from kvtool.model.weights import weight_scheme

MARGIN = 0.004
VOCAB_ROWS = 64

# Projections that vLLM loads as one tensor.
FUSED = {
    "q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv",
    "gate_proj": "gate_up", "up_proj": "gate_up",
    "q_a_proj": "qkv_a", "kv_a_proj_with_mqa": "qkv_a",
}  # fmt: skip
# Small parameters of recurrent mixers: how many tensors of vLLM's make one here, the first of them
# in float32 (layers/mamba/mamba_mixer.py, mamba_mixer2.py, gdn/*_gdn_linear_attn.py).
FLOAT32_FIRST = {"A_log": 1, "A_log_D_dt_bias": 3, "A_log_dt_bias": 2, "dt_bias": 1}


@dataclass(frozen=True, slots=True)
class Loading:
    """Element types of one deployment's weights: the packing of matrices, and all else."""

    scheme: Scheme | None
    plain: str
    deployment: Deployment

    @property
    def is_mxfp4(self) -> bool:
        return self.scheme is not None and self.scheme.packing.name == "mxfp4"


def stage_layers(model: ModelSpec, deployment: Deployment) -> list[list[Layer]]:
    """Layers of every pipeline stage, MTP layers and a drafter's on the last."""
    parts = [list(part) for part in stages(model.layers, deployment.parallel.pp)]
    if deployment.mtp:
        parts[-1] += model.mtp_layers
    if deployment.draft is not None:
        parts[-1] += deployment.draft.layers
    return parts


def without_towers(model: ModelSpec) -> ModelSpec:
    """`model` without what stands beside its decoder, unless the decoder attends to it."""
    attends = any(state.kind == "cross" for state in model.states())
    return model if attends else replace(model, encoder=())


def loaded_bytes(
    model: ModelSpec, deployment: Deployment, release: Release, stage: int
) -> Estimate | None:
    """Bytes after loading on the devices of a stage; None where not all parameters are known.

    The range reaches from segments that are split to whole ones, and for packed experts over the
    kernels that may serve them: scales once, or shapes padded to 256.
    """
    draft = deployment.draft
    if not model.weights_known or (draft is not None and not draft.weights_known):
        return None
    alone = replace(deployment, draft=None)
    loading = Loading(*weight_scheme(model, deployment.dtype), alone)
    sizes = [*_tensors(model, loading, stage)]
    if draft is not None and stage == deployment.parallel.pp - 1:
        sizes += _draft_tensors(draft, alone)
    split, whole = (sum(_allocated(size, splits) for size in sizes) for splits in (True, False))
    low, high = split * (1 - MARGIN), whole * (1 + MARGIN)
    if loading.is_mxfp4:
        low, high = low * 0.95, high * 1.025
    value = split if release.splits_segments else whole
    return Estimate(value, int(low), int(high) + 1)


def _draft_tensors(draft: ModelSpec, target: Deployment) -> Iterator[int]:
    """A drafter's tensors in its own types, embedding and head included, on one stage."""
    deployment = Deployment(parallel=replace(target.parallel, pp=1))
    yield from _tensors(draft, Loading(*weight_scheme(draft, "auto"), deployment), 0)


def _tensors(model: ModelSpec, loading: Loading, stage: int) -> Iterator[int]:
    """Bytes of every tensor on a device of a stage, rotary tables included."""
    parts = stage_layers(model, loading.deployment)
    first = sum(map(len, parts[:stage]))
    made: dict[int, tuple[int, ...]] = {}
    for i, layer in enumerate(parts[stage]):
        if id(layer) not in made or loading.scheme is not None:
            made[id(layer)] = tuple(_layer_tensors(layer, f"model.layers.{first + i}", loading))
        yield from made[id(layer)]
    for weight in _ends(model, stage, len(parts) - 1, mtp=loading.deployment.mtp):
        yield _vocab_bytes(weight, model, loading)
    for table in model.rotary:
        yield _table_bytes(table, model)


def _ends(model: ModelSpec, stage: int, last: int, *, mtp: bool) -> Iterator[Weight]:
    """Embeddings and what stands beside the decoder first, the head last.

    The last stage holds the embedding again for a tied head, or for MTP layers, which share it
    with the model on one stage alone.
    """
    if stage == 0:
        yield from model.embedding
        yield from model.encoder
    if stage == last:
        yield from model.head
        if stage and (model.tied or (mtp and model.mtp_layers)):
            yield from model.embedding


def _layer_tensors(layer: Layer, prefix: str, loading: Loading) -> Iterator[int]:
    """Bytes of the tensors of a layer as vLLM holds them: joined projections, scales apart."""
    joined: Counter[str] = Counter()
    for number, weight in enumerate(layer.weights):
        module, _, last = weight.name.rpartition(".")
        key = f"{module}.{FUSED[last]}" if last in FUSED else f"{number}"
        for part, size in enumerate(_weight_bytes(f"{prefix}.{weight.name}", weight, loading)):
            joined[f"{key} {part}"] += size
    yield from joined.values()
    if loading.scheme is not None and any(isinstance(s, Latent) for s in layer.states):
        yield from _latent_copies(layer, loading)


def _latent_copies(layer: Layer, loading: Loading) -> Iterator[int]:
    """Packed kv_b_proj is kept a second time, unpacked, for the absorbed form of decode."""
    for weight in layer.weights:
        if weight.name.endswith("kv_b_proj"):
            yield weight.share(loading.deployment.parallel) * DTYPES[loading.plain].block_bytes


def _weight_bytes(name: str, weight: Weight, loading: Loading) -> tuple[int, ...]:
    """Bytes of a rank's share of a tensor: its values, and of the scales beside them."""
    share = weight.share(loading.deployment.parallel)
    last = name.rpartition(".")[2]
    if loading.is_mxfp4 and weight.part == "experts":
        return _mxfp4_bytes(weight, share)
    scheme = loading.scheme
    if last in FLOAT32_FIRST and weight.part == "recurrent":
        tensors = FLOAT32_FIRST[last]
        plain = share // tensors * DTYPES[loading.plain].block_bytes
        return (share // tensors * 4, *[plain] * (tensors - 1))
    packing = scheme.packing_of(name) if scheme is not None and weight.linear else None
    if packing is None:
        return (share * DTYPES[loading.plain].block_bytes,)
    whole = -(-packing.bytes(weight.shape) * share // weight.elements)
    values = int(share * packing.weight)
    return values, whole - values


def _mxfp4_bytes(weight: Weight, share: int) -> tuple[int, ...]:
    """Packed experts under Triton's kernels: half a byte each, the scales as loaded and again in
    the swizzled copy (32 inputs per scale; rows to 128, columns to 8), biases in float32."""
    if not weight.linear:
        return (share * 4,)
    rows, columns = weight.shape[-2:]
    scales = columns // 32
    padded = -(-rows // 128) * 128 * (-(-scales // 8) * 8)
    matrices = share // (rows * columns)
    return share // 2, matrices * rows * scales, matrices * padded


def _vocab_bytes(weight: Weight, model: ModelSpec, loading: Loading) -> int:
    share = weight.share(loading.deployment.parallel)
    if model.vocab_size and weight.shape[0] == model.vocab_size and len(weight.shape) > 1:
        rows = -(-model.vocab_size // VOCAB_ROWS) * VOCAB_ROWS
        share = -(-share * rows // model.vocab_size)
    return share * DTYPES[loading.plain].block_bytes


def table_rows(table: Rotary) -> int:
    """Positions a rotary table of vLLM covers, by its scaling (layers/rotary_embedding)."""
    if table.scaling == "yarn" and table.original is not None:
        rows = int(table.original * table.factor)
    elif table.scaling in ("linear", "dynamic", "ntk"):
        rows = int(table.positions * table.factor)
    elif table.scaling in ("longrope", "su"):
        rows = table.positions + (table.original or 4096)
    else:
        rows = table.positions
    return rows * 4 if table.sections else rows


def _table_bytes(table: Rotary, model: ModelSpec) -> int:
    """Cosines and sines in the model's type; float32 for latent attention scaled by YaRN."""
    latent = any(isinstance(state, Latent) for state in model.states())
    wide = table.scaling == "yarn" and latent
    size = 4 if wide else DTYPES[model.dtype].block_bytes
    return table_rows(table) * table.width * size


def _allocated(size: int, splits: bool) -> int:
    """Bytes that torch counts for a tensor: its segment, or with `splits` what it needs of it
    where more than 1 MiB is left over."""
    small = -(-size // 512) * 512
    if size < 10 * MIB:
        return small
    segment = -(-size // (2 * MIB)) * 2 * MIB
    return small if splits and segment - small > MIB else segment
