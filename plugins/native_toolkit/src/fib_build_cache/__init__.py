"""The cache of builds: what a build says of itself, and ``fib cache``, which lists and prunes them.

`info` is what `fib_native_toolkit.CompiledBuilder` leaves in the folder of a build, `store` what is
in the cache. Importing this package imports neither.
"""

from __future__ import annotations

from flashinfer_bench.plugins import CommandSpec, hookimpl


@hookimpl
def fib_register_commands() -> list[CommandSpec]:
    """Register the one command, and its place in ``fib --help``."""
    return [
        CommandSpec(
            name="cache",
            factory="fib_build_cache.command:app",
            priority=850,
            summary="List or prune what builds have left.",
        )
    ]
