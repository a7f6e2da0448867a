"""What every engine adapter answers: bytes of a request, blocks and tokens of a pool, and why.

An engine is a record with a `reserve` function. It takes a model, a context and a deployment and
returns a `Reserve`: what one request occupies in the engine's own layout, group by group, with the
reasons for every byte beyond the logical state. Given a `Budget` it also returns a `Pool`.
Estimated figures are `Estimate`s: a value and the range it is only known to lie in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kvtool.device import DeviceSpec
from kvtool.dtype import KVFormat
from kvtool.errors import UsageError, did_you_mean
from kvtool.model.spec import ModelSpec, Parallel


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the engine's figure differs from the logical one.

    `bytes` are those of one request, so that the logical bytes plus all reasons are the bytes the
    request reserves; 0 for a reason that changes the pool or the cluster alone.
    """

    name: str
    bytes: int
    text: str


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a block table: how many, tokens per block, bytes per layer and block.

    `layers` are counted on the fullest device; `blocks` is what one request takes.
    """

    kind: str
    layers: int
    block_size: int
    page_bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its range; equal ends say that it is exact."""

    value: int
    low: int
    high: int

    @classmethod
    def exact(cls, value: int) -> Estimate:
        return cls(value, value, value)

    @property
    def is_exact(self) -> bool:
        return self.low == self.high

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"{self.value} is outside of {self.low} to {self.high}")


@dataclass(frozen=True, slots=True)
class Budget:
    """Where the pool comes from: a device and a fraction of its memory, or a figure from a log."""

    device: DeviceSpec | None = None
    fraction: float | None = None
    pool_bytes: int | None = None
    num_blocks: int | None = None

    def __post_init__(self) -> None:
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise UsageError(
                f"'{self.fraction}' is no fraction of the memory",
                "--gpu-fraction runs from above 0 to 1",
            )

    @property
    def is_given(self) -> bool:
        """Whether the pool is stated instead of estimated."""
        return self.pool_bytes is not None or self.num_blocks is not None


@dataclass(frozen=True, slots=True)
class Term:
    """A part of the device's memory: its bytes, and how they come about."""

    name: str
    bytes: Estimate
    text: str


@dataclass(frozen=True, slots=True)
class Pool:
    """The cache pool of one device, as the engine logs it.

    `terms` are the parts of the device's memory that led to it, empty when the pool was given.
    `max_concurrency` is requests of the stated context at once, low and high beside it.
    """

    pool_bytes: Estimate
    num_blocks: Estimate
    pool_tokens: Estimate
    max_concurrency: float
    max_concurrency_low: float
    max_concurrency_high: float
    fits: bool
    max_batch_size: int
    terms: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True)
class Reserve:
    """What an engine sets aside for one request on the device that holds most, and for a batch.

    `weight_bytes` only where the engine stores weights otherwise than the checkpoint does.
    """

    engine: str
    version: str
    kv: KVFormat
    context_tokens: int
    batch_size: int
    block_size: int
    bytes_per_block: int
    blocks_per_request: int
    request_bytes: int
    cache_bytes: int
    cluster_bytes: int
    groups: tuple[Group, ...]
    reasons: tuple[Reason, ...]
    settings: Mapping[str, object]
    weight_bytes: int | None = None
    loaded_bytes: Estimate | None = None
    pool: Pool | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Deployment:
    """How a model is served: ranks, cache and weight types, drafters and the engine's options."""

    parallel: Parallel = field(default_factory=Parallel)
    kv_dtype: str = "auto"
    k_dtype: str | None = None
    v_dtype: str | None = None
    dtype: str = "auto"
    encoder_tokens: int | None = None
    mtp: bool = False
    draft: ModelSpec | None = None
    options: Mapping[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """The interface: one adapter per engine, made for one of its releases."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def reserve(
        self,
        model: ModelSpec,
        context_tokens: int,
        batch_size: int = 1,
        deployment: Deployment = ...,
        budget: Budget | None = None,
    ) -> Reserve: ...


@dataclass(frozen=True, slots=True)
class Option:
    """An engine option as the engine spells it: how its text is read, what it means."""

    parse: Callable[[str], object]
    text: str


def parse_options(
    given: Mapping[str, str], known: Mapping[str, Option], engine: str
) -> dict[str, object]:
    """The typed values of `given`; UsageError for a name the engine has not, or a bad value."""
    found: dict[str, object] = {}
    for name, text in given.items():
        plain = name.strip().lstrip("-").replace("-", "_").lower()
        if plain not in known:
            names = ", ".join(sorted(known))
            raise UsageError(
                f"{engine} has no option '{name}' here",
                did_you_mean(plain, known, f"options: {names}"),
            )
        try:
            found[plain] = known[plain].parse(text.strip())
        except ValueError as error:
            raise UsageError(
                f"{engine} option {plain} cannot be '{text}'", f"{known[plain].text}: {error}"
            ) from error
    return found


def whole(low: int, high: int = 1 << 40) -> Callable[[str], int]:
    """A parser of whole numbers from `low` to `high`; 8192 and 8_192, no suffixes."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise ValueError(f"a whole number from {low:,} to {high:,}")
        return value

    return parse


def switch(text: str) -> bool:
    """true or false, in the usual spellings."""
    values = {"true": True, "1": True, "yes": True, "on": True,
              "false": False, "0": False, "no": False, "off": False}  # fmt: skip
    if text.lower() not in values:
        raise ValueError("true or false")
    return values[text.lower()]


def share(text: str) -> float:
    """A fraction above 0 and up to 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise ValueError("a fraction above 0 and up to 1")
    return value


def choice(*names: str) -> Callable[[str], str]:
    """A parser of one of `names`."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return text

    return parse
