"""A service that judges solutions submitted over HTTP, and the clients of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashinfer_bench.plugins import CommandSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fib_serve.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> Any:
    # Listing commands imports this module, and httpx takes longer than that.
    if name in __all__:
        from fib_serve import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@hookimpl
def fib_register_commands() -> Iterable[CommandSpec]:
    """Register serve and submit."""
    yield CommandSpec(
        name="serve",
        factory="fib_serve.commands:serve_app",
        priority=906,
        summary="Judge solutions that are submitted over HTTP.",
    )
    yield CommandSpec(
        name="submit",
        factory="fib_serve.commands:submit_app",
        priority=905,
        summary="Submit solutions to a server and show their results.",
    )
