"""Timers for CUDA devices, and the command that checks timers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.plugins import CommandSpec, TimerSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

# Resolution of cudaEventElapsedTime, according to the CUDA runtime manual.
_EVENT_RESOLUTION_MS = 5e-4


@hookimpl
def fib_register_commands() -> Iterable[CommandSpec]:
    """Register ``fib timers``."""
    yield CommandSpec(
        name="timers",
        factory="fib_timing_cuda.command:app",
        priority=860,
        summary="List and check timers: resolution, overhead and agreement.",
    )


@hookimpl
def fib_register_timers() -> Iterable[TimerSpec]:
    """Register event pairs, CUPTI, graphs and do_bench for CUDA devices."""
    yield TimerSpec(
        name="cuda_event",
        devices=("cuda",),
        factory="fib_timing_cuda.cuda_event:CudaEventTimer",
        probe="fib_timing_cuda.probes:cuda_event",
        resolution_ms=_EVENT_RESOLUTION_MS,
        overhead="the cost of a pair of events, measured at the first call, is subtracted (at most "
        "5 us); 1 to 5 us remain where the device's clock is too coarse to tell",
        summary="A pair of CUDA events around each call",
    )
    # The next two are for trusted solutions, and are used only on request.
    yield TimerSpec(
        name="cuda_graph",
        devices=("cuda",),
        factory="fib_timing_cuda.cuda_graph:CudaGraphTimer",
        probe="fib_timing_cuda.probes:cuda_event",
        priority=20,
        resolution_ms=_EVENT_RESOLUTION_MS,
        overhead="as cuda_event; the launch of a graph is included",
        trusting=True,
        summary="Captures each call as a CUDA graph, and times its replay",
    )
    yield TimerSpec(
        name="do_bench",
        devices=("cuda",),
        factory="fib_timing_cuda.do_bench:DoBenchTimer",
        probe="fib_timing_cuda.probes:do_bench",
        priority=10,
        resolution_ms=_EVENT_RESOLUTION_MS,
        overhead="launches by the host and gaps between them are included",
        repeats=True,
        caches=("cold",),
        summary="Triton's do_bench: the median of many calls with the same inputs",
    )
    yield TimerSpec(
        name="cupti",
        devices=("cuda",),
        factory="fib_timing_cuda.cupti:CuptiTimer",
        probe="fib_timing_cuda.probes:cupti",
        priority=30,  # below events: for kernels too short for events
        resolution_ms=1e-6,
        overhead="launches and gaps before the first activity and after the last are excluded",
        summary="From the start of a call's first kernel or copy to the end of its last",
    )
