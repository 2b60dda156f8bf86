"""The command ``fib cache``, and the metadata of builds on disk.

`info` is the metadata that `CompiledBuilder` of `fib_native_toolkit` writes into a build's folder;
`store` lists and prunes the cache. Importing this package imports neither.
"""

from __future__ import annotations

from flashinfer_bench.plugins import CommandSpec, hookimpl


@hookimpl
def fib_register_commands() -> list[CommandSpec]:
    """Register the command, and its place in ``fib --help``."""
    return [
        CommandSpec(
            name="cache",
            factory="fib_build_cache.command:app",
            priority=850,
            summary="List or prune the build cache.",
        )
    ]
