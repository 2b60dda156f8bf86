"""Divides a run among the devices of a Ray cluster: ``fib run --executor ray``, ``fib fleet``.

Ray is imported only when a run, or ``fib fleet``, connects to a cluster.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from fib_executor_ray.settings import FleetSettings as FleetSettings
from fib_executor_ray.settings import use_fleet as use_fleet
from flashinfer_bench.plugins import Availability, CommandSpec, ExecutorSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FleetSettings", "use_fleet"]


def probe() -> Availability:
    """Return whether Ray is installed."""
    if find_spec("ray") is not None:
        return Availability(ok=True)
    return Availability(ok=False, reason="ray is not installed", remedy="pip install 'ray>=2.40'")


@hookimpl
def fib_register_executors() -> Iterable[ExecutorSpec]:
    """Register the executor."""
    yield ExecutorSpec(
        name="ray",
        devices=("cpu", "cuda"),
        distributes=True,
        factory="fib_executor_ray.distributor:RayDistributor",
        probe="fib_executor_ray:probe",
        summary="Divide a run among the devices of a Ray cluster",
    )


@hookimpl
def fib_register_commands() -> Iterable[CommandSpec]:
    """Register ``fib fleet`` and the options of ``fib run``."""
    yield CommandSpec(
        name="fleet",
        factory="fib_executor_ray.commands:app",
        priority=904,
        summary="Show the nodes of a Ray cluster, and what they do.",
    )
    yield CommandSpec(
        name="run fleet",
        factory="fib_executor_ray.commands:add_to_run",
        summary="Which part of a Ray cluster to use: --hardware, --ray-address and others.",
    )
