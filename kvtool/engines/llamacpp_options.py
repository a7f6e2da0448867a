"""llama.cpp's options as its parameters are spelled, and the settings that a deployment comes to.

Defaults are those of llama-server with a stated number of slots (`-np N`), which switches
`kv_unified` off; `-np` left alone means four slots in one buffer (kv_unified=true, n_seq_max=4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvtool.dtype import DType, KVFormat, load_dtype
from kvtool.engines.base import Deployment, Option, choice, parse_options, switch, whole
from kvtool.engines.llamacpp_releases import Release
from kvtool.errors import UsageError

DTYPES = (
    "float32", "float16", "bfloat16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl",
)  # fmt: skip
MAX_SEQUENCES = 256

OPTIONS: dict[str, Option] = {
    "n_ctx": Option(whole(1), "cells of all slots together"),
    "n_seq_max": Option(whole(1, MAX_SEQUENCES), "slots"),
    "n_batch": Option(whole(1), "tokens of a logical batch"),
    "n_ubatch": Option(whole(1), "tokens of a physical batch"),
    "kv_unified": Option(switch, "one buffer for all slots"),
    "swa_full": Option(switch, "windows stored in full"),
    "flash_attn": Option(choice("auto", "on", "off", "1", "0"), "flash attention"),
    "n_rs_seq": Option(whole(0, 1024), "recurrent states kept for a rollback"),
    "n_draft": Option(whole(0, 1024), "tokens an MTP head drafts"),
    "mla_attn": Option(whole(0, 3), "ik_llama.cpp's storage of latent rows"),
    "fit_target": Option(whole(0, 1 << 50), "bytes of the device left free"),
}
FIT_TARGET = 1 << 30
DRAFTED = 3
MLA_ATTN = 3


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides the buffers, every default filled in.

    `n_ctx` and `n_ctx_seq` are already padded: cells of all slots, and of one stream. `snapshots`
    are states kept beside the running one.
    """

    release: Release
    kv: KVFormat
    context_tokens: int
    n_ctx: int
    n_ctx_seq: int
    n_seq_max: int
    n_batch: int
    n_ubatch: int
    kv_unified: bool
    swa_full: bool
    flash_attn: bool
    snapshots: int
    mla_attn: int
    fit_target: int

    @property
    def streams(self) -> int:
        """Buffers side by side: one per slot, or one for all."""
        return 1 if self.kv_unified else self.n_seq_max

    @property
    def window_batch(self) -> int:
        """Tokens that a window's cells hold beside the window."""
        return self.n_batch if self.release.window_batch == "n_batch" else self.n_ubatch

    def shown(self) -> dict[str, object]:
        """What results name as the settings they hold for."""
        found: dict[str, object] = {
            "n_ctx": self.n_ctx,
            "n_ctx_seq": self.n_ctx_seq,
            "n_seq_max": self.n_seq_max,
            "n_batch": self.n_batch,
            "n_ubatch": self.n_ubatch,
            "kv_unified": self.kv_unified,
            "swa_full": self.swa_full,
            "flash_attn": self.flash_attn,
            "n_rs_seq": self.snapshots,
        }
        return found | ({"mla_attn": self.mla_attn} if self.release.is_fork else {})


def pad(value: int, multiple: int) -> int:
    """`value` rounded up to a multiple.

    >>> pad(1025, 256)
    1280
    """
    return -(-value // multiple) * multiple


def settle(
    context: int, batch: int, deployment: Deployment, release: Release, *, rolls_back: bool
) -> Settings:
    """Every setting of a deployment: n_ctx = context x batch over `batch` slots unless given.

    `rolls_back`: the model can return to earlier recurrent states, so MTP keeps them. UsageError
    for options that llama.cpp has not, or that exclude each other.
    """
    given = parse_options(deployment.options, OPTIONS, "llamacpp")
    slots = _integer(given, "n_seq_max", batch)
    if slots > MAX_SEQUENCES:
        raise UsageError(
            f"llama.cpp has at most {MAX_SEQUENCES} slots, not {slots:,}", "lower --batch"
        )
    unified = bool(given.get("kv_unified", False)) or not release.streams
    flash = given.get("flash_attn", "auto") not in ("off", "0")
    kv = _kv(deployment, flash=flash)
    multiple = release.cells_with_flash if flash else release.cells
    asked = _integer(given, "n_ctx", context * batch)
    whole_context = pad(asked, multiple)
    part = whole_context if unified else pad(whole_context // slots, multiple)
    n_batch = min(_integer(given, "n_batch", 2048), whole_context)
    drafted = _integer(given, "n_draft", DRAFTED) if deployment.mtp and rolls_back else 0
    snapshots = _integer(given, "n_rs_seq", drafted)
    return Settings(
        release=release,
        kv=kv,
        context_tokens=context,
        n_ctx=part * (1 if unified else slots),
        n_ctx_seq=part,
        n_seq_max=slots,
        n_batch=n_batch,
        n_ubatch=min(_integer(given, "n_ubatch", 512), n_batch),
        kv_unified=unified,
        swa_full=bool(given.get("swa_full", False)),
        flash_attn=flash,
        snapshots=snapshots if release.snapshots and rolls_back else 0,
        mla_attn=_integer(given, "mla_attn", MLA_ATTN),
        fit_target=_integer(given, "fit_target", FIT_TARGET),
    )


def _integer(given: Mapping[str, object], name: str, default: int) -> int:
    value = given.get(name)
    return value if isinstance(value, int) else default


def _kv(deployment: Deployment, *, flash: bool) -> KVFormat:
    """Cache types as given, float16 by default whatever the model's own type."""
    k = _dtype(deployment.k_dtype or deployment.kv_dtype)
    v = _dtype(deployment.v_dtype or deployment.kv_dtype)
    if v.block > 1 and not flash:
        raise UsageError(
            f"llama.cpp packs values as {v.name} with flash attention alone",
            "leave out flash_attn=off, or pack the keys only (--k-dtype)",
        )
    return KVFormat(k, v)


def _dtype(name: str) -> DType:
    found = load_dtype("float16" if name == "auto" else name)
    if found.name not in DTYPES:
        raise UsageError(
            f"llama.cpp has no cache type '{found.name}'", f"its types: {', '.join(DTYPES)}"
        )
    return found
