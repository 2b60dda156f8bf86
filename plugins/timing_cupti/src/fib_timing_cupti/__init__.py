"""FlashInfer-Bench plugin: times calls by the activity that CUPTI records on the device."""

from __future__ import annotations

from flashinfer_bench.plugins import TimerSpec, hookimpl

__all__ = ["fib_register_timers"]


@hookimpl
def fib_register_timers() -> tuple[TimerSpec, ...]:
    """Register the timer ``cupti``, which is taken where it is asked for."""
    return (
        TimerSpec(
            name="cupti",
            devices=("cuda",),
            factory="fib_timing_cupti.timer:CuptiTimer",
            probe="fib_timing_cupti.probe:probe",
            priority=30,  # below core's events: for kernels that are shorter than they can tell
            resolution_ms=1e-6,
            overhead="launches and gaps before the first activity and after the last are left out",
            summary="From the start of a call's first kernel or copy to the end of its last",
        ),
    )
