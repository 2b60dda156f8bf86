"""Paired comparisons of solutions, replays of recorded traces, and ``fib info``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashinfer_bench.plugins import CommandSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashinfer_bench.data import Solution


@hookimpl
def fib_register_commands() -> Iterable[CommandSpec]:
    """Register compare, replay and info."""
    yield CommandSpec(
        name="compare",
        factory="fib_compare.compare_command:app",
        priority=980,
        summary="Test whether one solution is slower than another.",
    )
    yield CommandSpec(
        name="replay",
        factory="fib_compare.replay_command:app",
        priority=990,
        summary="Run recorded traces again and check their results.",
    )
    yield CommandSpec(
        name="info",
        factory="fib_compare.info_command:info",
        priority=820,
        summary="Describe this machine and installation for a bug report.",
    )


@hookimpl
def fib_provenance(run: Any, baseline: Any, solution: Solution, builder: str) -> dict[str, Any]:
    """Record machine, driver, plugins, toolchain and settings for replays."""
    from fib_compare.origin import provenance_of

    return provenance_of(run, baseline, solution, builder)
