"""Which layers do what: attention kinds, windows, experts, kv heads, from a configuration."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvtool.model.fields import MAX_TOKENS, Fields

# Names of `layer_types` entries, old and new, and what they mean here.
LAYER_TYPES = {
    "full_attention": "full",
    "attention": "full",
    "global_attention": "full",
    "full": "full",
    "global": "full",
    "sliding_attention": "sliding",
    "sliding_window": "sliding",
    "sliding_window_attention": "sliding",
    "local_attention": "sliding",
    "local": "sliding",
    "swa": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "linear": "linear",
    "mamba": "linear",
    "mamba2": "linear",
    "recurrent": "linear",
    "conv": "conv",
    "short_conv": "conv",
    "indexed_attention": "indexed",
    "deepseek_sparse_attention": "indexed",
    "minimax_m3_sparse": "indexed",
    "hybrid": "hybrid",
    "hybrid_sliding": "hybrid_sliding",
}

# Kinds of layers that keep keys and values and nothing else.
ATTENTION = ("full", "sliding", "chunked")

# Spellings of the number of leading layers without experts.
DENSE_FIRST = ("first_k_dense_replace", "num_dense_layers", "dense_mlp_idx")

# How a class that has windows spells its schedule when no layer_types are given.
Rule = str


def num_layers(f: Fields) -> int:
    return f.integer("num_hidden_layers", high=10_000)


def window(f: Fields) -> int | None:
    """The sliding window in tokens; None when absent, null, 0, -1 or switched off."""
    if f.nulled("sliding_window"):
        return None
    value = f.optional("sliding_window", low=-1, high=MAX_TOKENS)
    if value is None:
        value = f.optional("attention_window_size", low=-1, high=MAX_TOKENS)
    if f.flag("use_sliding_window", True) is False:
        return None
    return value if value and value > 0 else None


def states_window(f: Fields) -> bool:
    """Whether the configuration or its class says anything of a window: a size, null or off."""
    names = ("sliding_window", "attention_window_size")
    return f.has(*names) or f.nulled(names[0]) or not f.flag("use_sliding_window", True)


def layer_kinds(
    f: Fields, layers: int, rule: Rule = "full", *, allowed: Collection[str] = ATTENTION
) -> list[str]:
    """The kind of every layer: `full`, `sliding`, `chunked`, `linear`, `conv`, `indexed`, ..

    `layer_types` decides where the configuration has it, or MiMo-V2's `hybrid_layer_pattern` (1 is
    sliding); else `rule` does, as the class would: `full`, `sliding` (all), `switch` (sliding from
    max_window_layers on), `even` (sliding on layers 0, 2, ..), `period:P` (full on every P-th
    layer), `first:P` (full on the first of each P), `backward:P` (full on the last layer and every
    P-th before it), `period_last:P` (as `period:P`, the last layer too), `flint`, `listed` (a list
    of windows), `chunked` (where layers use rotary positions). A kind that is not `allowed`,
    because the family has no such layers, is a fault.
    """
    listed = listed_types(f, layers)
    if listed is not None:
        known = [name for name, kind in LAYER_TYPES.items() if kind in allowed]
        f.one_of("layer_types", listed, known)
        return [LAYER_TYPES[entry] if entry in known else "full" for entry in listed]
    pattern = f.integers("hybrid_layer_pattern", high=1)
    if pattern is not None:
        if len(pattern) != layers:
            f.fault("hybrid_layer_pattern", pattern, f"one entry for each of the {layers} layers")
            return ["full"] * layers
        return ["sliding" if entry else "full" for entry in pattern]
    return _by_rule(f, layers, rule)


def prediction_kind(f: Fields, layers: int) -> str | None:
    """The kind of the multi-token-prediction layers where the configuration lists them: behind the
    entries of `layer_types`, or as `mtp_layer_types`."""
    listed = f.strings("mtp_layer_types") or (f.strings("layer_types") or [])[layers:]
    return LAYER_TYPES.get(listed[0]) if listed else None


def listed_types(f: Fields, layers: int, name: str = "layer_types") -> list[str] | None:
    """An entry of `name` for each layer; None where absent.

    Entries beyond the last layer belong to the multi-token-prediction layers (Step 3.5).
    """
    listed = f.strings(name)
    if listed is None:
        return None
    extra = f.integer("num_nextn_predict_layers", 0, low=0)
    if not layers <= len(listed) <= layers + extra:
        f.fault(name, listed, f"one entry for each of the {layers} layers")
        return ["full_attention"] * layers if name == "layer_types" else None
    return listed[:layers]


def _by_rule(f: Fields, layers: int, rule: Rule) -> list[str]:
    name, _, argument = rule.partition(":")
    if name == "switch":
        first = f.integer("max_window_layers", layers, low=0)
        return ["sliding" if i >= first else "full" for i in range(layers)]
    if name in ("period", "period_last"):
        kinds = periodic(f, layers, int(argument))
        return [*kinds[:-1], "full"] if name == "period_last" else kinds
    if name == "first":
        period = f.integer("global_attn_every_n_layers", int(argument))
        return ["sliding" if i % period else "full" for i in range(layers)]
    if name == "backward":
        return ["sliding" if (layers - 1 - i) % int(argument) else "full" for i in range(layers)]
    if name == "flint":
        return [
            "full" if i < 2 or i % 4 == 1 or i == layers - 1 else "sliding" for i in range(layers)
        ]
    if name == "listed":
        return _listed_windows(f, layers)
    if name == "even":
        return ["full" if i % 2 else "sliding" for i in range(layers)]
    if name == "chunked":
        return ["chunked" if rotary else "full" for rotary in rotary_layers(f, layers)]
    return [name] * layers


def periodic(f: Fields, layers: int, period: int) -> list[str]:
    """Sliding layers with a full one at the end of each period, given as P or as `LLLG`."""
    for name in (
        "sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers",
    ):  # fmt: skip
        if not f.has(name):
            continue
        pattern = f.raw.get(name, f.defaults.get(name))
        if isinstance(pattern, str):
            pattern = f.text(name)
            if not pattern or set(pattern) - {"L", "G"}:
                f.fault(name, pattern, "a number or a string of L and G")
                return ["full"] * layers
            return [
                "sliding" if pattern[i % len(pattern)] == "L" else "full" for i in range(layers)
            ]
        period = f.integer(name)
    return ["sliding" if (i + 1) % period else "full" for i in range(layers)]


def _listed_windows(f: Fields, layers: int) -> list[str]:
    """Sliding layers as a period or a list of windows says; a fault where neither stands."""
    if f.has("sliding_window_pattern"):
        return periodic(f, layers, 1)
    windows = f.raw.get("interleaved_sliding_window")
    f.used.add(f"{f.path}interleaved_sliding_window")
    if not isinstance(windows, list) or len(windows) != layers:
        f.lacks("layer_types", "no schedule of the sliding layers")
        return ["full"] * layers
    return ["sliding" if entry else "full" for entry in windows]


def rotary_layers(f: Fields, layers: int) -> list[bool]:
    """Which layers use rotary positions: `no_rope_layers` (1 = yes), else all but each n-th."""
    listed = f.integers("no_rope_layers", high=1)
    if listed:
        if len(listed) != layers:
            f.fault("no_rope_layers", listed, f"one entry for each of the {layers} layers")
            return [True] * layers
        return [bool(value) for value in listed]
    interval = f.integer("no_rope_layer_interval", 4)
    return [bool((i + 1) % interval) for i in range(layers)]


def moe_layers(f: Fields, layers: int, dense: int = 0) -> list[bool]:
    """Which layers have experts instead of a plain MLP.

    `mlp_layer_types` decides where the configuration has it, then the fields of each family; where
    none stands there, all but the first `dense` layers, as the class would.
    """
    if not f.integer("num_experts", 0, low=0):
        return [False] * layers
    types = listed_types(f, layers, "mlp_layer_types")
    if types is not None:
        f.one_of("mlp_layer_types", types, ("dense", "sparse"))
        return [entry == "sparse" for entry in types]
    chosen = _chosen(f, layers, dense)
    plain = set(f.integers("mlp_only_layers") or ())
    return [chosen[i] and i not in plain for i in range(layers)]


def _chosen(f: Fields, layers: int, dense: int) -> list[bool]:
    for name in ("moe_layer_freq", "moe_layer_interval"):
        listed = f.raw.get(name)
        if isinstance(listed, list):
            return [bool(value) for value in f.per_layer(name, layers)]
    if f.has("moe_layers"):
        return _member(f.integers("moe_layers") or (), layers)
    if f.has("moe_layers_enum"):
        return _member(_enumerated(f, "moe_layers_enum"), layers)
    if f.has("interleave_moe_layer_step"):
        step = f.integer("interleave_moe_layer_step", low=0)
        return [bool(step) and i % step == step - 1 for i in range(layers)]
    if f.has("decoder_sparse_step"):
        step = f.integer("decoder_sparse_step", low=1)
        return [(i + 1) % step == 0 for i in range(layers)]
    if f.has("expert_layer_period"):
        period = f.integer("expert_layer_period")
        offset = f.integer("expert_layer_offset", 0, low=0)
        return [i % period == offset for i in range(layers)]
    if f.has("moe_layer_frequency"):
        period = f.integer("moe_layer_frequency")
        return [(i + 1) % period == 0 for i in range(layers)]
    if f.has("moe_layer_start_index"):
        return _range(f, layers)
    first = next((f.integer(name, low=0) for name in DENSE_FIRST if f.has(name)), dense)
    freq = f.integer("moe_layer_freq", 1)
    return [i >= first and i % freq == 0 for i in range(layers)]


def _enumerated(f: Fields, name: str) -> list[int]:
    """Layer numbers written as one string, `4,5,6` (Step 3)."""
    entries = [entry.strip() for entry in f.text(name).split(",")]
    if not all(entry.isdecimal() and len(entry) < 6 for entry in entries):
        f.fault(name, ",".join(entries), "layer numbers with commas between them")
        return []
    return [int(entry) for entry in entries]


def _range(f: Fields, layers: int) -> list[bool]:
    start = f.integer("moe_layer_start_index", low=0)
    end = f.integer("moe_layer_end_index", layers - 1, low=-1)
    interval = f.integer("moe_layer_interval", 1)
    end = layers - 1 if end == -1 else end
    return [start <= i <= end and (i + 1) % interval == 0 for i in range(layers)]


def _member(numbers: Sequence[int], layers: int) -> list[bool]:
    found = set(numbers)
    return [i in found for i in range(layers)]


def overridden(f: Fields, name: str, values: list[int]) -> list[int]:
    """`values`, one per layer, with those that `per_layer_config` gives single layers.

    transformers 5 writes the fields of layers that differ from the others into this section.
    """
    if not f.mapping("per_layer_config"):
        return values
    section, found = f.child("per_layer_config"), list(values)
    for key in section.raw:
        entry = section.child(key)
        if not entry.has(name):
            continue
        if not str(key).isdecimal() or int(key) >= len(values):
            section.fault(str(key), key, f"the number of one of the {len(values)} layers")
            continue
        found[int(key)] = entry.integer(name)
    return found


def max_context(f: Fields) -> int | None:
    """Tokens that the configuration says the model was made for; None where it does not say."""
    value = f.optional("max_position_embeddings", high=MAX_TOKENS)
    longest = f.optional("model_max_length", high=MAX_TOKENS)
    return max(filter(None, (value, longest)), default=None)
