"""From names to a run: what `kvtool bench` and `kvtool.bench` share.

A session knows the device, the cases and who takes part, measures the ceilings, and hands out
results case by case. Options are named as on the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from kvtool.benchmark import ceilings
from kvtool.benchmark.cases import (
    CPU_DEFAULTS,
    FP8_DTYPES,
    GPU_DEFAULTS,
    MASKS,
    PHASES,
    QUERY_DTYPES,
    Case,
    Heads,
    heads_of,
    sweep,
)
from kvtool.benchmark.ceilings import Ceilings
from kvtool.benchmark.contenders import Contender, ours
from kvtool.benchmark.environment import describe, state
from kvtool.benchmark.peers import select
from kvtool.benchmark.run import Effort, Result, run
from kvtool.catalog import load_model
from kvtool.dtype import load_dtype
from kvtool.errors import DeviceError, KvtoolError, UsageError, did_you_mean
from kvtool.kernels import NAMES

if TYPE_CHECKING:
    import torch

DEFAULT_MODEL = "llama-3-8b"
DEFAULT_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for; None leaves the choice to the device."""

    kernel: Sequence[str] = NAMES
    variant: Sequence[str] = ()
    phase: Sequence[str] = PHASES
    model: str | None = None
    tp: int = 1
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ctx: Sequence[int] | None = None
    batch: Sequence[int] | None = None
    shapes: Sequence[tuple[int, int]] | None = None
    doc_tokens: Sequence[int] | None = None
    block_size: Sequence[int] = (DEFAULT_BLOCK,)
    dtype: Sequence[str] | None = None
    kv_dtype: Sequence[str] = ("auto",)
    mask: Sequence[str] = ("causal",)
    peers: Sequence[str] = ("auto",)
    device: str = "auto"
    samples: int | None = None
    seed: int = 0


@dataclass(slots=True)
class Session:
    """A run that is ready to start."""

    device: torch.device
    heads: Heads
    dtype: str
    cases: list[Case]
    contenders: list[Contender]
    effort: Effort
    seed: int
    inputs: dict[str, Any]
    warnings: list[str]
    left_out_peers: list[str]
    environment: dict[str, Any] = field(default_factory=dict)
    ceilings: Ceilings | None = None

    def results(self, starting: Callable[[Case], None] = lambda case: None) -> Iterator[Result]:
        """Results in the order of the cases; the ceilings are measured before the first."""
        roof = self.measure_ceilings().roof
        for result in run(
            self.cases,
            self.contenders,
            device=self.device,
            roof=roof,
            effort=self.effort,
            facts=self._facts(),
            starting=starting,
        ):
            after = state(self.device)
            self.environment["after"] = asdict(after) if after else None
            yield result

    def _facts(self) -> dict[str, Any]:
        """What every row says about where it was taken."""
        versions = self.environment["versions"]
        return {
            "device": self.environment["device"],
            "driver": self.environment["driver"],
            "versions": versions | {"kvtool": self.environment["kvtool"]},
        }

    def measure_ceilings(self) -> Ceilings:
        """Copy, read and matmul of the device, once per session."""
        import torch

        if self.ceilings is None:
            before = state(self.device)
            self.environment["before"] = asdict(before) if before else None
            self.know_ceilings(ceilings.measure(self.device, getattr(torch, self.dtype)))
        assert self.ceilings is not None
        return self.ceilings

    def know_ceilings(self, known: Ceilings) -> None:
        """Judge this run by `known`."""
        self.ceilings = known
        self.environment["ceilings"] = asdict(known)


def open_session(options: Options, *, command: str) -> Session:
    """The session for `options`; `command` is what repeats it.

    UsageError for what was typed wrongly, DeviceError when a GPU is asked for and there is none,
    KvtoolError without torch.
    """
    device = find_device(options.device)
    defaults = GPU_DEFAULTS if device.type == "cuda" else CPU_DEFAULTS
    heads, remark = _heads(options, defaults.heads)
    dtypes = [_dtype(name, QUERY_DTYPES) for name in options.dtype or (defaults.dtype,)]
    cases = sweep(
        phases=[_phase(name) for name in options.phase],
        batches=options.batch,
        contexts=options.ctx,
        shapes=options.shapes,
        heads=heads,
        dtypes=dtypes,
        kv_dtypes=[_kv_dtype(name) for name in options.kv_dtype],
        block_sizes=options.block_size,
        doc_tokens=options.doc_tokens,
        masks=[_mask(name) for name in options.mask],
        defaults=defaults,
        seed=options.seed,
    )
    peers, left_out = select(options.peers, device.type)
    warnings = [remark] if remark else []
    if device.type == "cpu":
        warnings.append(
            "no GPU: the portable torch code of the kernels is timed on the CPU, with warm caches"
        )
    return Session(
        device=device,
        heads=heads,
        dtype=dtypes[0],
        cases=cases,
        contenders=ours(options.kernel, options.variant) + peers,
        effort=Effort() if options.samples is None else _effort(options.samples),
        seed=options.seed,
        inputs=_understood(options, device, heads, cases),
        warnings=warnings,
        left_out_peers=left_out,
        environment=describe(device) | {"seed": options.seed, "command": command},
    )


def find_device(name: str) -> torch.device:
    """`cuda`, `cpu`, or for `auto` the first of them that is there."""
    try:
        import torch
    except ImportError as error:
        raise KvtoolError(
            "`bench` needs torch, which is not installed", "pip install 'kvtool[bench]'"
        ) from error
    if name not in ("auto", "cuda", "cpu"):
        raise UsageError(
            f"no device named '{name}'",
            did_you_mean(name, ("auto", "cuda", "cpu"), "devices: auto, cuda, cpu"),
        )
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DeviceError(
            "no usable CUDA device was found",
            "--device cpu times the portable torch code; `nvidia-smi` shows whether a driver runs",
        )
    return torch.device("cuda", torch.cuda.current_device())


def _understood(
    options: Options, device: torch.device, heads: Heads, cases: Sequence[Case]
) -> dict[str, Any]:
    """The options as understood, defaults filled in."""
    return {
        "kernel": list(options.kernel),
        "variant": list(options.variant),
        "phase": list(options.phase),
        "model": heads.origin,
        "tp": options.tp,
        "heads": heads.num_q_heads,
        "kv_heads": heads.num_kv_heads,
        "head_dim": heads.head_dim,
        "ctx": _distinct(case.context_tokens for case in cases),
        "batch": _distinct(case.batch_size for case in cases),
        "doc_tokens": _distinct(case.doc_tokens for case in cases),
        "block_size": _distinct(case.block_size for case in cases),
        "dtype": _distinct(case.dtype for case in cases),
        "kv_dtype": _distinct(case.kv_dtype for case in cases),
        "mask": list(options.mask),
        "peers": list(options.peers),
        "device": str(device),
        "samples": options.samples,
        "seed": options.seed,
    }


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _effort(samples: int) -> Effort:
    """As many samples as asked for, however long they take."""
    if samples < 1:
        raise UsageError(f"--samples {samples} takes no sample", "ask for at least 10")
    return Effort(budget_s=float("inf"), max_samples=samples)


def _heads(options: Options, small: Heads | None) -> tuple[Heads, str | None]:
    """The shape that was typed, else that of the model, else the device's default."""
    typed = (options.heads, options.kv_heads, options.head_dim)
    if any(value is not None for value in typed):
        if options.model is not None:
            raise UsageError(
                "both a model and a shape are given",
                "use --model, or --heads, --kv-heads and --head-dim",
            )
        num_q, num_kv, dim = typed
        if num_q is None:
            raise UsageError("--kv-heads and --head-dim need --heads", "for instance --heads 32")
        heads = Heads(num_q, num_q if num_kv is None else num_kv, dim or 128, "as typed")
        return heads.sharded(options.tp), None
    if options.model is None and small is not None:
        return small.sharded(options.tp), None
    heads, remark = heads_of(load_model(options.model or DEFAULT_MODEL))
    return heads.sharded(options.tp), remark


def _phase(name: str) -> Any:
    if name not in PHASES:
        raise UsageError(f"no phase named '{name}'", "phases: prefill, decode")
    return name


def _mask(name: str) -> str:
    if name not in MASKS:
        raise UsageError(f"no mask named '{name}'", f"masks: {', '.join(MASKS)}")
    return name


def _dtype(name: str, allowed: Sequence[str]) -> str:
    dtype = load_dtype(name).name
    if dtype not in allowed:
        raise UsageError(
            f"the kernels do not take '{dtype}' here", f"choose from {', '.join(allowed)}"
        )
    return dtype


def _kv_dtype(name: str) -> str:
    return name if name == "auto" else _dtype(name, (*QUERY_DTYPES, *FP8_DTYPES))
