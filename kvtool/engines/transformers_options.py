"""transformers' releases and cache options, and the settings that a deployment comes to."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvtool.dtype import KVFormat, kv_format, load_dtype
from kvtool.engines.base import Deployment, Option, choice, parse_options, whole
from kvtool.errors import UsageError
from kvtool.model.spec import ModelSpec, Parallel


@dataclass(frozen=True, slots=True)
class Release:
    """What the cache classes of a release keep.

    `windows`: sliding and chunked layers drop what they cannot see; before that all is kept.
    `stores_shared`: layers that read another one's keys and values have a copy of their own.
    `latent_rows`: compressed rows of latent attention; before that keys and values of every head.
    `float32_states`: Mamba 2 matrices in float32; before that in the model's type.
    """

    version: str
    windows: bool
    stores_shared: bool
    latent_rows: bool
    float32_states: bool


# Each was run with tiny models (tests/oracles/transformers_cache_oracle.py): 4.53.3, 4.57.6, 5.14.0
# and 5.24.0. A change stands at the first release in which it was seen.
RELEASES = (
    Release("4.53.0", windows=False, stores_shared=True, latent_rows=False, float32_states=False),
    Release("4.57.0", windows=True, stores_shared=False, latent_rows=False, float32_states=False),
    Release("5.14.0", windows=True, stores_shared=False, latent_rows=False, float32_states=True),
    Release("5.24.0", windows=True, stores_shared=False, latent_rows=True, float32_states=True),
)
NEWEST = "5.24.0"
CHECKED = ("4.53.3", "4.57.6", "5.14.0", "5.24.0")

OPTIONS: dict[str, Option] = {
    "cache_implementation": Option(choice("dynamic", "static", "quantized"), "the cache class"),
    "max_cache_len": Option(whole(1), "tokens a static cache is made for"),
    "residual_length": Option(whole(1), "tokens a quantised cache keeps as they are"),
}
RESIDUAL = 128
PLAIN = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides the cache, with every default filled in."""

    release: Release
    kv: KVFormat
    plain: KVFormat
    parallel: Parallel
    implementation: str
    max_cache_len: int
    residual_length: int

    def shown(self) -> dict[str, object]:
        """What results name as the settings they hold for."""
        static = self.implementation == "static"
        return {
            "cache_implementation": self.implementation,
            "max_cache_len": self.max_cache_len if static else None,
            "residual_length": self.residual_length or None,
        }


def find_release(version: str | None) -> tuple[str, Release]:
    """The version as a full name and the release whose rules it follows, the newest when None.

    Raises UsageError for what is no version, or older than the table.

    >>> find_release("5.0.0")[1].latent_rows
    False
    """
    text = NEWEST if version is None else version.strip().removeprefix("v")
    parts = re.fullmatch(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:[.a-z+][\w.]{1,20})?", text)
    if parts is None:
        raise UsageError(f"'{version}' is not a transformers version", "write transformers@5.24.0")
    number = tuple(int(part or 0) for part in parts.groups())
    older = [r for r in RELEASES if tuple(map(int, r.version.split("."))) <= number]
    if not older:
        raise UsageError(
            f"the cache of transformers {text} is not known", f"known from {RELEASES[0].version}"
        )
    return text, older[-1]


def settle(model: ModelSpec, context: int, deployment: Deployment, release: Release) -> Settings:
    """Every setting of a deployment; `--kv-dtype int4` or `fp8` selects the quantised cache.

    Raises UsageError for types and options that the cache classes have not.
    """
    given = parse_options(deployment.options, OPTIONS, "transformers")
    if deployment.parallel.dcp > 1:
        raise UsageError("transformers has no decode-context parallelism", "leave --dcp at 1")
    sides = [side or deployment.kv_dtype for side in (deployment.k_dtype, deployment.v_dtype)]
    names = [load_dtype(model.dtype if side == "auto" else side).name for side in sides]
    asked = str(given.get("cache_implementation", "dynamic"))
    if asked == "quantized" and names[0] in PLAIN:
        names = ["int4", "int4"]
    name = names[0]
    if names[0] != names[1] or name not in (*PLAIN, "int4", "fp8_e4m3"):
        raise UsageError(
            f"transformers has no cache of {' and '.join(dict.fromkeys(names))}",
            "it keeps the model's type, or int4 or fp8 in a quantised cache",
        )
    if name in PLAIN and "auto" not in sides and name != model.dtype:
        raise UsageError(
            f"transformers keeps what the model computes: {model.dtype}",
            "leave --kv-dtype at auto, or use int4 or fp8",
        )
    quantised = name not in PLAIN
    if quantised and asked == "static":
        raise UsageError("a static cache is not quantised", "leave --kv-dtype at auto")
    length = given.get("max_cache_len", context)
    assert isinstance(length, int)
    if length < context:
        raise UsageError(
            f"max_cache_len {length:,} is below the context of {context:,}", "make it larger"
        )
    residual = given.get("residual_length", RESIDUAL)
    assert isinstance(residual, int)
    return Settings(
        release=release,
        kv=kv_format(name),
        plain=kv_format(model.dtype),
        parallel=deployment.parallel,
        implementation="quantized" if quantised else asked,
        max_cache_len=length,
        residual_length=residual if name == "int4" else 0,
    )
