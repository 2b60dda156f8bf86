"""``fib plugins new``: create a plugin from a template."""

from __future__ import annotations

from flashinfer_bench.plugins import CommandSpec, hookimpl


@hookimpl
def fib_register_commands() -> list[CommandSpec]:
    """Register ``fib plugins new``."""
    return [
        CommandSpec(
            name="plugins new",
            factory="fib_plugin_new.command:new_plugin",
            summary="Create a small plugin of any kind.",
        )
    ]
