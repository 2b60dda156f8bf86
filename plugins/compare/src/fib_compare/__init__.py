"""Whether one solution is slower than another, and whether recorded results still hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.plugins import CommandSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable


@hookimpl
def fib_register_commands() -> Iterable[CommandSpec]:
    """Register compare and replay."""
    yield CommandSpec(
        name="compare",
        factory="fib_compare.compare_command:app",
        priority=980,
        summary="Say whether one solution is slower than another.",
    )
    yield CommandSpec(
        name="replay",
        factory="fib_compare.replay_command:app",
        priority=990,
        summary="Run recorded traces again: do they still hold?",
    )
