"""A measurement and a sandbox as strangers would write them, and broken ones that go before them.

The sandbox takes nothing away; it tells the solution that it was there, in ``STRANGERS_SANDBOX``.
"""

from __future__ import annotations

import os
import sys
from types import MappingProxyType

from flashinfer_bench.bench.confinement import SandboxMethod
from flashinfer_bench.bench.measurement import BasicMeasurement
from flashinfer_bench.plugins import MeasurementSpec, SandboxSpec, hookimpl


class Measured(BasicMeasurement):
    name = "stranger"

    def evaluate(self, *parts):
        evaluation = super().evaluate(*parts)
        return evaluation.model_copy(update={"log": f"{evaluation.log}\nmeasured by a stranger"})

    def completed(self, evaluation, baseline):
        return evaluation.model_copy(update={"log": f"{evaluation.log}, for the last time"})


class Raises:
    def __init__(self, *arguments) -> None:
        raise OSError("it has come apart")


class Unnamed(BasicMeasurement):
    """Is registered by another name."""


class Walls(SandboxMethod):
    needed = MappingProxyType({"writing": ("files", "mounts"), "debugging": ("calls",)})
    needed_on_cpu = MappingProxyType({"taking all memory": ("memory",)})

    def confine(self, writable, *, hidden, device, workdir):
        os.environ["STRANGERS_SANDBOX"] = f"{device} in {workdir.is_dir()}"
        return ["files", "calls", "memory"], {}


class Nobody:
    """Is neither a measurement nor a sandbox."""


def measurement(name: str, factory: str, **options) -> MeasurementSpec:
    return MeasurementSpec(
        name=name, factory=f"strangers_plugin:{factory}", devices=("cpu", "cuda"), **options
    )


def sandbox(name: str, factory: str, **options) -> SandboxSpec:
    return SandboxSpec(
        name=name, factory=f"strangers_plugin:{factory}", platforms=(sys.platform,), **options
    )


@hookimpl
def fib_register_measurements():
    yield measurement("stranger", "Measured", priority=500)
    yield measurement("missing", "NotThere", priority=600)
    yield measurement("raising", "Raises", priority=700)


@hookimpl
def fib_register_sandboxes():
    yield sandbox("stranger", "Walls", priority=500)
    yield sandbox("missing", "NotThere", priority=600)
    yield sandbox("raising", "Raises", priority=700)
