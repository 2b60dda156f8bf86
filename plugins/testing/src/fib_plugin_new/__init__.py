"""``fib plugins new``, which starts a plugin under names of its own."""

from __future__ import annotations

from flashinfer_bench.plugins import CommandSpec, hookimpl


@hookimpl
def fib_register_commands() -> list[CommandSpec]:
    """Register the one command."""
    return [
        CommandSpec(
            name="plugins new",
            factory="fib_plugin_new.command:new_plugin",
            summary="Start a plugin: a small one of any kind.",
        )
    ]
