"""The verified measurement: a latency that no solution can talk itself into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.plugins import (
    CommandSpec,
    MeasurementSpec,
    MonitorSpec,
    StopRuleSpec,
    hookimpl,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


@hookimpl
def fib_register_measurements() -> Iterable[MeasurementSpec]:
    """Register ``verified``, which goes before core's ``basic``."""
    yield MeasurementSpec(
        name="verified",
        devices=("cpu", "cuda"),
        verified=True,
        factory="fib_judge.method:VerifiedMeasurement",
        summary="Fresh inputs, checked calls, cross-checked clocks, a paired reference",
    )


@hookimpl
def fib_register_monitors() -> Iterable[MonitorSpec]:
    """Register what NVIDIA's management library and the system tell of GPUs and the CPU."""
    yield MonitorSpec(
        name="nvml",
        devices=("cuda",),
        factory="fib_judge.watch.nvml:NvmlWatcher",
        priority=100,
        summary="Clocks, throttling, temperature, power and other users of a GPU",
    )
    yield MonitorSpec(
        name="cpu",
        devices=("cpu", "cuda"),
        factory="fib_judge.watch.cpu:CpuWatcher",
        summary="Load and clocks of the CPU",
    )


@hookimpl
def fib_register_commands() -> Iterable[CommandSpec]:
    """Register ``fib calibrate``."""
    yield CommandSpec(
        name="calibrate",
        factory="fib_judge.command:app",
        priority=870,
        summary="Measure and store the peak performance of a device.",
    )


@hookimpl
def fib_register_stop_rules() -> Iterable[StopRuleSpec]:
    """Register ``rse``, which stops when the latency is known well enough."""
    yield StopRuleSpec(
        name="rse",
        factory="fib_judge.stopping:RelativeStandardError",
        priority=80,
        summary="Stop when the median is precise enough",
    )
