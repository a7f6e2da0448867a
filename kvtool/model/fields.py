"""Checked access to a raw configuration: every fault is kept, with field and value, then raised."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from reprlib import Repr
from typing import Any, TypeVar

from kvtool.errors import ModelError

MAX_LAYERS = 10_000
MAX_SIZE = 1 << 24
MAX_VOCAB = 1 << 28
MAX_TOKENS = 1 << 40

T = TypeVar("T")
_MISSING: Any = object()

# Names under which published configurations carry the same field; the first is ours.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "num_hidden_layers": ("n_layer", "num_layers", "n_layers", "num_decoder_layers"),
    "num_attention_heads": ("n_head", "num_heads", "n_heads", "decoder_attention_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "multi_query_group_num", "kv_n_heads"),
    "hidden_size": ("n_embd", "d_model", "n_embed", "model_dim", "dim"),
    "intermediate_size": ("n_inner", "ffn_hidden_size", "ffn_dim", "d_ff"),
    "max_position_embeddings": (
        "n_positions",
        "max_seq_len",
        "seq_length",
        "max_sequence_length",
        "n_ctx",
        "max_context_length",
    ),
    "vocab_size": ("padded_vocab_size",),
    "head_dim": ("attention_head_dim", "hidden_size_per_head", "kv_channels", "d_kv"),
    "torch_dtype": ("dtype",),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": (
        "num_experts_per_token",
        "moe_top_k",
        "top_k_experts",
        "moe_topk",
        "moe_k",
    ),
    "num_nextn_predict_layers": ("mtp_num_hidden_layers", "num_mtp_layers"),
}


# Sizes that every published configuration states; only a nested section may leave them to its
# class.
SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size")


@cache
def _classes() -> dict[str, dict[str, Any]]:
    text = files("kvtool.model").joinpath("class_defaults.json").read_text("utf-8")
    table: dict[str, dict[str, Any]] = json.loads(text)["types"]
    return table


def class_defaults(model_type: str) -> dict[str, Any]:
    """Static defaults of the configuration class of `model_type`; empty for a type without class.

    The table is generated from transformers by tests/oracles/transformers_oracle.py.
    """
    entry = _classes().get(model_type, {})
    found: dict[str, Any] = {}
    for part in ("legacy", "defaults", "forced"):
        found.update(entry.get(part, {}))
    return found


def section_type(model_type: str, section: str) -> str:
    """The model type of a nested section of `model_type` that names none; "" when unknown."""
    return str(_part(model_type, section).get("model_type", ""))


def section_defaults(model_type: str, section: str) -> dict[str, Any]:
    """Defaults that the class of `model_type` gives to its section beyond the section's own."""
    found: dict[str, Any] = _part(model_type, section).get("defaults", {})
    return found


def is_flat(model_type: str, section: str) -> bool:
    """Whether published configurations may hold the section's fields at the top level."""
    return bool(_part(model_type, section).get("flat"))


def _part(model_type: str, section: str) -> dict[str, Any]:
    found: dict[str, Any] = _classes().get(model_type, {}).get("parts", {}).get(section, {})
    return found


def architectures(raw: Mapping[str, Any]) -> list[str]:
    """The names of the model classes that a configuration was saved from."""
    named = raw.get("architectures")
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []


class Fields:
    """The fields of one configuration section, with the defaults of its class behind them.

    A getter that meets a fault records it and returns a stand-in, so that reading goes on and
    all faults are reported together by `raise_faults`. An explicit null counts as absent for
    required fields and switches a class default off for optional ones. `used` collects the
    names that decided something: what a model card needs to hold.
    """

    def __init__(
        self,
        raw: Mapping[str, Any],
        where: str,
        *,
        model_type: str = "",
        path: str = "",
        faults: list[str] | None = None,
        used: set[str] | None = None,
    ) -> None:
        self.raw = raw
        self.where = where
        self.path = path
        self.model_type = model_type
        self.faults: list[str] = [] if faults is None else faults
        self.used: set[str] = set() if used is None else used
        self.defaults = class_defaults(model_type)
        if not path:
            self.drop_sizes()
        self.dtype = "bfloat16"
        self.assumed: set[str] = set()

    def drop_sizes(self) -> None:
        """Forgets the class's own layers, heads and width: a whole configuration states them."""
        for name in SIZES:
            for spelling in (name, *SYNONYMS.get(name, ())):
                self.defaults.pop(spelling, None)

    def child(self, name: str, *, model_type: str = "") -> Fields:
        """The nested section `name` (empty when absent), sharing the list of faults."""
        value = self.raw.get(name)
        if value is not None and not isinstance(value, Mapping):
            self.fault(name, value, "a mapping")
        section = value if isinstance(value, Mapping) else {}
        kind = str(section.get("model_type") or model_type)
        path = f"{self.path}{name}."
        if value is not None:
            self.used.add(f"{self.path}{name}")
        if "model_type" in section:
            self.used.add(f"{path}model_type")
        return Fields(
            section, self.where, model_type=kind, path=path, faults=self.faults, used=self.used
        )

    def fault(self, name: str, value: object, expected: str) -> None:
        self.faults.append(f"{self.where}: {self.path}{name} is {_show(value)}, not {expected}")

    def lacks(self, name: str, why: str = "") -> None:
        """Records that `name` is missing; with `why` only when nothing else is wrong, since the
        reason may be the stand-in of another fault."""
        if why and self.faults:
            return
        reason = f" ({why})" if why else ""
        self.faults.append(f"{self.where}: {self.path}{name} is missing{reason}")

    def raise_faults(self) -> None:
        if self.faults:
            raise ModelError.collect(
                dict.fromkeys(self.faults),
                "correct the configuration; `kvtool models show NAME` prints one that works",
            )

    def has(self, *names: str) -> bool:
        """Whether any of the names is present and not null."""
        return any(self._find(name)[1] is not None for name in names)

    def _find(self, name: str) -> tuple[str, Any]:
        """The spelling and value under which `name` stands here; value _MISSING when absent."""
        null = False
        for spelling in (name, *SYNONYMS.get(name, ())):
            if spelling in self.raw:
                self.used.add(self.path + spelling)
                if (value := self.raw[spelling]) is not None:
                    return spelling, value
                null = True
        return name, None if null else self._default(name)

    def _default(self, name: str) -> Any:
        """The class's default; `assumed` keeps the sizes that a section left to its class."""
        for spelling in (name, *SYNONYMS.get(name, ())):
            if self.defaults.get(spelling) is not None:
                if name in SIZES:
                    self.assumed.add(name)
                return self.defaults[spelling]
        return None

    def _get(
        self, name: str, default: T, expected: str, accept: Callable[[Any], T | None], stand_in: T
    ) -> T:
        spelling, value = self._find(name)
        if value is None:
            if default is _MISSING:
                self.lacks(name)
                return stand_in
            return default
        accepted = accept(value)
        if accepted is None:
            self.fault(spelling, value, expected)
            return stand_in
        return accepted

    def integer(
        self, name: str, default: Any = _MISSING, *, low: int = 1, high: int = MAX_SIZE
    ) -> int:
        """A whole number from `low` to `high`; `default` where absent, else a fault."""

        def accept(value: object) -> int | None:
            number = as_integer(value)
            return number if number is not None and low <= number <= high else None

        expected = f"a whole number from {low:,} to {high:,}"
        found: int = self._get(name, default, expected, accept, low)
        return found

    def optional(self, name: str, *, low: int = 1, high: int = MAX_SIZE) -> int | None:
        """Like `integer`, None where absent or null."""
        found: int | None = self.integer(name, None, low=low, high=high)
        return found

    def number(self, name: str, default: Any = _MISSING, *, high: float = 1e9) -> float:
        """A number whose size is below `high`; `default` where absent, else a fault."""

        def accept(value: object) -> float | None:
            plain = isinstance(value, int | float) and not isinstance(value, bool)
            return float(value) if plain and abs(value) < high else None  # type: ignore[arg-type]

        found: float = self._get(name, default, "a number", accept, 1.0)
        return found

    def flag(self, name: str, default: Any = False) -> bool:
        found: bool = self._get(
            name, default, "true or false", lambda v: v if isinstance(v, bool) else None, False
        )
        return found

    def text(self, name: str, default: Any = _MISSING) -> str:
        found: str = self._get(
            name, default, "a string", lambda v: v if isinstance(v, str) else None, ""
        )
        return found

    def strings(self, name: str) -> list[str] | None:
        """A list of strings; None where absent."""

        def accept(value: object) -> list[str] | None:
            ok = isinstance(value, list) and all(isinstance(v, str) for v in value)
            return value if ok and len(value) <= MAX_LAYERS else None  # type: ignore[return-value, arg-type]

        found: list[str] | None = self._get(name, None, "a list of strings", accept, None)
        return found

    def integers(self, name: str, *, low: int = 0, high: int = MAX_SIZE) -> list[int] | None:
        """A list of whole numbers; None where absent."""

        def accept(value: object) -> list[int] | None:
            if not isinstance(value, list) or len(value) > MAX_LAYERS:
                return None
            numbers = [as_integer(v) for v in value]
            ok = all(n is not None and low <= n <= high for n in numbers)
            return [n for n in numbers if n is not None] if ok else None

        found: list[int] | None = self._get(name, None, "a list of whole numbers", accept, None)
        return found

    def per_layer(self, name: str, layers: int, default: Any = _MISSING, *, low: int = 0,
                  high: int = MAX_SIZE) -> list[int]:  # fmt: skip
        """A value for each layer, from one number for all or from a list of `layers` numbers."""
        _, value = self._find(name)
        if isinstance(value, list):
            numbers = self.integers(name, low=low, high=high) or []
            if len(numbers) != layers:
                self.fault(name, value, f"one number for each of the {layers} layers")
                return [max(low, 1)] * layers
            return numbers
        return [self.integer(name, default, low=low, high=high)] * layers

    def dtype_name(self, name: str, value: str) -> str:
        """The storage type called `value`, under our name; a fault for one that we do not know."""
        known = value.removeprefix("torch.")
        if known not in ("float32", "float16", "bfloat16"):
            self.fault(name, value, "one of float32, float16, bfloat16")
            return "bfloat16"
        return known

    def mapping(self, name: str) -> Mapping[str, Any]:
        """A nested mapping; empty where absent."""
        found: Mapping[str, Any] = self._get(
            name, {}, "a mapping", lambda v: v if isinstance(v, Mapping) else None, {}
        )
        return found

    def present(self, name: str) -> bool:
        """Whether the published configuration itself holds `name` (null included)."""
        return any(spelling in self.raw for spelling in (name, *SYNONYMS.get(name, ())))

    def nulled(self, name: str) -> bool:
        """Whether the published configuration sets `name` to null."""
        spellings = [s for s in (name, *SYNONYMS.get(name, ())) if s in self.raw]
        self.used.update(self.path + s for s in spellings)
        return bool(spellings) and all(self.raw[s] is None for s in spellings)

    def one_of(self, name: str, values: Iterable[str], known: Iterable[str]) -> bool:
        """Records a fault for each of `values` that is not `known`; whether all are."""
        unknown = sorted(set(values) - set(known))
        for value in unknown:
            self.fault(name, value, f"one of {', '.join(sorted(known))}")
        return not unknown


def as_integer(value: object) -> int | None:
    """`value` as an int when it is a whole number (4096 or 4096.0), else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return None


_SHORT = Repr()  # a few elements of a few levels: aliases of YAML can stand for 10^9 of them
_SHORT.maxstring = _SHORT.maxother = 60


def _show(value: object) -> str:
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a huge number"
    text = _SHORT.repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
