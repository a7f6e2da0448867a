"""llama.cpp: every cache line of a start, cells and both sides, against the rules of its build."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvtool.auditing.findings import (
    Finding,
    Overrides,
    Prediction,
    best,
    judge,
    unknown,
    whole,
)
from kvtool.auditing.printed import printed_model
from kvtool.dtype import load_dtype
from kvtool.engines.base import Deployment
from kvtool.engines.llamacpp import context_caches
from kvtool.engines.llamacpp_caches import Cache
from kvtool.engines.llamacpp_options import OPTIONS, Settings
from kvtool.engines.llamacpp_releases import RELEASES, find_release, is_near_a_change
from kvtool.engines.logs import Figure, Start
from kvtool.errors import KvtoolError
from kvtool.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Context:
    """A context as one build would make it: its settings and its caches."""

    settings: Settings
    caches: list[Cache]


def audit(start: Start, overrides: Overrides) -> list[Finding]:
    """A finding for every figure of `start`; the model is the one that the log prints, unless
    overridden. A log without a build is held against the rules of every build."""
    if not start.figures:
        return []
    model = overrides.model or printed_model(start)
    if isinstance(model, str):
        return [unknown(figure, model) for figure in start.figures]
    versions = _versions(start, overrides)
    return best(_audit(start, model, version, overrides) for version in versions)


def _versions(start: Start, overrides: Overrides) -> list[str]:
    """Builds whose rules may hold, the newest first; the fork where the log shows it."""
    if overrides.version is not None:
        return [overrides.version]
    if "fork" in start.settings or "mla_attn" in start.settings:
        return ["ik"]
    said = start.settings.get("version")
    try:
        if said is not None and not is_near_a_change(find_release(said)[0]):
            return [said]
    except KvtoolError:
        pass
    return [f"b{release.build}" for release in reversed(RELEASES)]


def without_shares(figures: list[Figure]) -> list[Figure]:
    """The figures without each device's share of a cache, where the cache itself is printed."""
    whole_caches = {"kv_buffer": ("kv_cache", "kv_self"), "rs_buffer": ("recurrent_state",)}
    printed = {figure.name for figure in figures}
    return [f for f in figures if not printed & set(whole_caches.get(f.name, ()))]


def _audit(start: Start, model: ModelSpec, version: str, overrides: Overrides) -> list[Finding]:
    findings = []
    for figure in start.figures:
        try:
            context = _context(start, model, version, figure, overrides)
        except KvtoolError as error:
            findings.append(unknown(figure, f"the settings cannot be used: {error}"))
            continue
        findings.append(_finding(context, figure, start))
    return findings


def _context(
    start: Start, model: ModelSpec, version: str, figure: Figure, overrides: Overrides
) -> Context:
    """The context that a figure stands for: settings as printed, types and slots of its line."""
    said = {**start.settings, **overrides.settings}
    slots = whole(said.get("n_seq_max")) or whole(figure.about.get("seqs")) or 1
    streams = whole(figure.about.get("streams"))
    cells = whole(figure.about.get("cells"))
    total = whole(said.get("n_ctx")) or whole(said.get("kv_size"))
    if total is None:
        total = (cells or model.max_context or 4096) * (streams or 1)
    unified = said.get("kv_unified")
    if unified is None and slots > 1:
        unified = "false" if streams and streams > 1 else "true"
    options = {"n_ctx": str(total), "n_seq_max": str(slots)}
    options |= {name: said[name] for name in ("n_batch", "n_ubatch", "mla_attn") if name in said}
    if "c^KV" in figure.about.get("labels", "") and options.get("mla_attn") == "0":
        # Files that store latent projections alone raise mla_attn, after it was printed.
        options["mla_attn"] = "3"
    if unified is not None:
        options["kv_unified"] = unified
    if said.get("flash_attn") in ("0", "disabled"):
        options["flash_attn"] = "off"
    snapshots = figure.about.get("rs_seq") or said.get("n_rs_seq")
    if snapshots:
        options["n_rs_seq"] = snapshots
    options |= overrides.options_of(OPTIONS)
    k, v = (_dtype(said, figure, side) for side in ("type_k", "type_v"))
    if load_dtype(v).block > 1:
        options.pop("flash_attn", None)
    deployment = Deployment(k_dtype=k, v_dtype=v, options=options)
    settings, caches = context_caches(model, deployment, version, total // slots or 1, slots)
    layers = whole(figure.about.get("layers"))
    is_draft = layers and layers == len(model.mtp_layers)
    if is_draft and layers not in {cache.layers for cache in caches}:
        # The context that drafts: a cache of the model's MTP layers alone.
        drafter = replace(model, layers=model.mtp_layers, mtp_layers=())
        return _context(start, drafter, version, figure, overrides)
    return Context(settings, caches)


def _dtype(said: dict[str, str], figure: Figure, side: str) -> str:
    return figure.about.get(side) or said.get(side) or said.get("kv_cache_dtype") or "float16"


def _finding(context: Context, figure: Figure, start: Start) -> Finding:
    settings = context.settings
    if figure.name in ("kv_buffer", "rs_buffer"):
        return _share(context, figure, start)
    name, _, side = figure.name.rpartition("_")
    if figure.name == "cells":
        return judge(figure, Prediction.exact(settings.n_ctx_seq, _ctx_text(settings)))
    if figure.name == "swa_cells":
        return _window_cells(context, figure)
    if figure.name.startswith("kv_self"):
        return _whole_cache(context, figure)
    if figure.name not in _LINES and name not in _LINES:
        return unknown(figure, "no rule for this figure")
    if figure.about.get("layers") == "0":
        return judge(figure, Prediction.exact(0, "no layers"))
    recurrent = figure.name.startswith("recurrent")
    cache = _match(context, figure, recurrent=recurrent)
    if cache is None:
        return unknown(
            figure, f"no cache of {figure.about.get('layers')} layers follows from the model"
        )
    size = {"k": cache.k_bytes, "v": cache.v_bytes, "r": cache.k_bytes, "s": cache.v_bytes}
    value = size.get(side, cache.total_bytes) if figure.name not in _LINES else cache.total_bytes
    why = f"{cache.layers} {cache.kind} layers x {cache.cells:,} cells"
    if cache.streams > 1:
        why += f" x {cache.streams} {'states' if recurrent else 'streams'}"
    return judge(figure, Prediction.exact(value, why))


_LINES = ("kv_cache", "recurrent_state")


def _share(context: Context, figure: Figure, start: Start) -> Finding:
    """A device's share: what the shares of the other devices leave of the cache."""
    recurrent = figure.name == "rs_buffer"
    mine = _announced(figure, start)
    kinds = (
        {"recurrent"} if recurrent else {"sliding"} if mine == "swa_cells" else {"full", "index"}
    )
    caches = [cache for cache in context.caches if cache.kind in kinds]
    if not caches:
        return unknown(figure, "no such cache follows from the model")
    others = [
        f
        for f in start.figures
        if f.name == figure.name and f is not figure and _announced(f, start) == mine
    ]
    total = sum(cache.total_bytes for cache in caches)
    taken = sum(f.value for f in others)
    half = sum(f.half for f in others)
    devices = f", less {len(others)} other devices" if others else ""
    why = f"{sum(c.layers for c in caches)} {'/'.join(sorted(kinds))} layers{devices}"
    left = Prediction(total - taken, total - taken - half, total - taken + half, why)
    found = judge(figure, left)
    if found.verdict == "differ" and "type_k" not in start.settings:
        return unknown(figure, "the log does not say the types of the cache; give --kv-dtype")
    return found


def _announced(figure: Figure, start: Start) -> str:
    """Which cache was announced last before the figure: that of the windows, or another."""
    names = [f.name for f in start.figures if f.line < figure.line and f.name in _CELLS]
    return names[-1] if names else ""


_CELLS = ("cells", "swa_cells")


def _match(context: Context, figure: Figure, *, recurrent: bool) -> Cache | None:
    """The predicted cache of a printed line: of its kind, with its layers, else with its cells.

    The line of recurrent states names all layers of the model, not those that recur.
    """
    found = [c for c in context.caches if (c.kind == "recurrent") == recurrent]
    if recurrent:
        return found[0] if found else None
    layers, cells = (whole(figure.about.get(name)) for name in ("layers", "cells"))
    exact = [c for c in found if c.layers == layers and c.cells == cells]
    if exact:
        return exact[0]
    return next((c for c in found if c.layers == layers), None)


def _ctx_text(settings: Settings) -> str:
    if settings.kv_unified:
        return "n_ctx, one buffer for all slots"
    return f"n_ctx / {settings.n_seq_max} slots, rounded up to 256"


def _window_cells(context: Context, figure: Figure) -> Finding:
    """Cells of the windows: min(n_ctx, window x slots in the buffer + micro-batch), padded."""
    cells = {cache.cells for cache in context.caches if cache.kind == "sliding"}
    if not cells:
        return unknown(figure, "the model has no window here")
    settings = context.settings
    slots = settings.n_seq_max if settings.kv_unified else 1
    why = f"window x {slots} + {settings.window_batch} tokens of a batch, rounded up to 256"
    return judge(figure, Prediction.exact(min(cells), why))


def _whole_cache(context: Context, figure: Figure) -> Finding:
    """All layers in one line, as builds up to 2025 print it."""
    caches = [cache for cache in context.caches if cache.kind not in ("recurrent", "draft")]
    k, v = sum(c.k_bytes for c in caches), sum(c.v_bytes for c in caches)
    value = {"kv_self_k": k, "kv_self_v": v}.get(figure.name, k + v)
    layers = sum(cache.layers for cache in caches)
    return judge(
        figure, Prediction.exact(value, f"{layers} layers x {context.settings.n_ctx:,} cells")
    )
