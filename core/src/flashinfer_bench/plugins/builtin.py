"""What core itself provides, registered the way any plugin registers.

The records name code of higher layers by string, so this layer still imports none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.plugins.hookspecs import hookimpl
from flashinfer_bench.plugins.records import EvaluatorSpec, ExecutorSpec, TimerSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

_TIMING = "flashinfer_bench.bench.timing"
_EXECUTORS = "flashinfer_bench.bench.executors"


@hookimpl
def fib_register_timers() -> Iterable[TimerSpec]:
    """Register a wall clock for the CPU and event pairs for CUDA devices."""
    yield TimerSpec(
        name="cpu",
        devices=("cpu",),
        factory=f"{_TIMING}.wall:WallClockTimer",
        summary="Monotonic wall clock around each call",
    )
    yield TimerSpec(
        name="cuda_event",
        devices=("cuda",),
        factory=f"{_TIMING}.cuda_event:CudaEventTimer",
        probe=f"{_TIMING}.probes:cuda_event",
        summary="A pair of CUDA events around each call",
    )


@hookimpl
def fib_register_evaluators() -> Iterable[EvaluatorSpec]:
    """Register the comparison for every definition that has no evaluator of its own."""
    yield EvaluatorSpec(
        name="default",
        factory="flashinfer_bench.bench.evaluators.default:DefaultEvaluator",
        priority=0,
        summary="Compares outputs element by element within a tolerance",
    )


@hookimpl
def fib_register_executors() -> Iterable[ExecutorSpec]:
    """Register a fork server, and plain subprocesses for where there is no fork."""
    yield ExecutorSpec(
        name="fork",
        devices=("cpu", "cuda"),
        factory=f"{_EXECUTORS}.fork:ForkExecutor",
        probe=f"{_EXECUTORS}.probes:fork",
        priority=60,
        summary="Forks candidates from a process that has torch loaded",
    )
    yield ExecutorSpec(
        name="spawn",
        devices=("cpu", "cuda"),
        factory=f"{_EXECUTORS}.spawn:SpawnExecutor",
        priority=40,
        summary="Starts each candidate as a process of its own",
    )
