"""A sandbox for the processes that run solutions, on Linux."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.plugins import SandboxSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable


@hookimpl
def fib_register_sandboxes() -> Iterable[SandboxSpec]:
    """Register ``linux``."""
    yield SandboxSpec(
        name="linux",
        platforms=("linux",),
        factory="fib_sandbox_linux.confinement:LinuxSandbox",
        summary="Landlock, seccomp, namespaces, capabilities, resource limits, control groups",
    )
