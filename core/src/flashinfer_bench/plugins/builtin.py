"""The records of core, registered like those of any plugin.

They name code of higher layers by string, so that this layer does not import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.plugins import records
from flashinfer_bench.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TIMING = "flashinfer_bench.bench.timing"
_EXECUTORS = "flashinfer_bench.bench.executors"
_EVALUATORS = "flashinfer_bench.bench.evaluators"
_CLI = "flashinfer_bench.cli"
_POLICIES = "flashinfer_bench.tracing.policies"

# Priorities decide the order in ``fib --help``; commands of plugins come in between.
_COMMANDS = (
    (1000, "run", "Benchmark the solutions of a dataset and record traces."),
    (960, "report", "Rank, compare, plot or merge recorded traces."),
    (920, "validate", "Check every file of a dataset and report errors."),
    (830, "plugins", "List, show and diagnose plugins."),
)

# Priorities decide the order of findings in ``fib validate``; checks of plugins come in between.
# The layer of each is its name in the singular.
_DATASET_CHECKS = (
    (1000, "layout", "Files are where the layout expects them"),
    (990, "definitions", "Definitions are valid and have unique names"),
    (980, "solutions", "Solutions are valid and refer to existing records"),
    (970, "workloads", "Workloads are valid and refer to existing records"),
    (950, "traces", "Traces are valid and refer to existing records"),
)
_FILTERS = (
    ("keep_all", "KeepAllPolicy", "Keep every call"),
    ("keep_none", "KeepNonePolicy", "Keep no call"),
    ("keep_first", "KeepFirstKPolicy", "Keep the first call"),
    ("keep_first_k", "KeepFirstKPolicy", "Keep the first k calls"),
    ("keep_first_by_axes", "KeepFirstKByAxesPolicy", "Keep the first call of each size"),
    ("keep_first_k_by_axes", "KeepFirstKByAxesPolicy", "Keep the first k calls of each size"),
)


def _records() -> Iterator[records.Record]:
    cuda = ("cuda",)
    for name in ("cuda", "cpp"):
        yield records.LanguageSpec(
            name=name, libraries=cuda, gpu_only=cuda, summary="Depends on CUDA, on GPUs"
        )
    for name, library in (("triton", "triton"), ("tilelang", "tilelang"), ("python", "torch")):
        summary = f"Depends on {library}"
        yield records.LanguageSpec(name=name, libraries=(library,), summary=summary)
    yield records.StopRuleSpec(
        name="fixed",
        factory="flashinfer_bench.bench.stopping:Fixed",
        priority=90,
        summary="Stop after a number of calls",
    )
    for priority, name, summary in _DATASET_CHECKS:
        yield records.CheckSpec(
            name=name,
            layer=name.removesuffix("s"),
            records=name in ("workloads", "traces"),
            factory=f"flashinfer_bench.validate.checks:check_{name}",
            priority=priority,
            summary=summary,
        )
    # Core's dump policies depend on the layout, not on values, and have no records.
    for name, factory, summary in _FILTERS:
        yield records.TracingPolicySpec(
            name=name, decides="calls", factory=f"{_POLICIES}:{factory}", summary=summary
        )
    for priority, name, summary in _COMMANDS:
        yield records.CommandSpec(
            name=name, factory=f"{_CLI}.{name}:app", summary=summary, priority=priority
        )
    yield records.TimerSpec(
        name="cpu",
        devices=("cpu",),
        factory=f"{_TIMING}.wall:WallClockTimer",
        resolution_ms=1e-6,
        overhead="the time of two clock readings, measured in each process, is subtracted",
        summary="Monotonic wall clock around each call",
    )
    yield records.EvaluatorSpec(
        name="default",
        factory=f"{_EVALUATORS}.default:DefaultEvaluator",
        priority=0,
        summary="Compares outputs element by element within a tolerance",
    )
    yield records.MeasurementSpec(
        name="basic",
        devices=("cpu", "cuda"),
        factory="flashinfer_bench.bench.measurement:BasicMeasurement",
        priority=0,
        summary="Checks outputs, and trusts the worker's clock",
    )
    yield records.ExecutorSpec(
        name="fork",
        devices=("cpu", "cuda"),
        factory=f"{_EXECUTORS}.fork:ForkExecutor",
        probe=f"{_EXECUTORS}.probes:fork",
        priority=60,
        summary="Forks workers from a process that has torch loaded",
    )
    yield records.ExecutorSpec(
        name="spawn",
        devices=("cpu", "cuda"),
        factory=f"{_EXECUTORS}.spawn:SpawnExecutor",
        priority=40,
        summary="Starts each worker as a new process",
    )


def _hook(kind: str) -> Callable[[], list[records.Record]]:
    def register() -> list[records.Record]:
        return [record for record in _records() if record.kind == kind]

    return hookimpl(register, specname=records.hook_of(kind))


globals().update({records.hook_of(kind): _hook(kind) for kind in {one.kind for one in _records()}})
