"""``fib cache``: what builds leave on disk, and what each says of itself.

`info` is what `CompiledBuilder` of `fib_native_toolkit` writes into the folder of a build, `store`
what is in the cache. Importing this package imports neither.
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
            summary="List or prune the build cache.",
        )
    ]
