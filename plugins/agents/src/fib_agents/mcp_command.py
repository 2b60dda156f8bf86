"""``fib mcp``: serve the tools to agents over the Model Context Protocol."""

# ruff: noqa: TC003 - typer reads the annotations at run time

from __future__ import annotations

import gc
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, Union

import typer

from flashinfer_bench import env
from flashinfer_bench.cli import options
from flashinfer_bench.cli.datasets import dataset_roots
from flashinfer_bench.cli.options import GreedyCommand, option
from flashinfer_bench.cli.output import set_up_logging, talk
from flashinfer_bench.cli.run_options import with_settings
from flashinfer_bench.data import layout
from flashinfer_bench.errors import CapabilityError, ConfigError

if TYPE_CHECKING:
    from fib_agents.evaluations import LocalJudge, RemoteJudge

app = typer.Typer(name="mcp", add_completion=False, rich_markup_mode=None)

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@app.command("mcp", cls=GreedyCommand)
@with_settings
def serve(
    local: options.Local = None,
    *,
    server: Annotated[
        Optional[str],
        option("--server", metavar="URL", help="Evaluate with this service of 'fib serve'."),
    ] = None,
    token: Annotated[
        Optional[str],
        option("--token", metavar="TOKEN", help="Of --server. Default, safer: $FIB_SERVE_TOKEN."),
    ] = None,
    no_save: Annotated[
        bool, option("--no-save", help="Keep solutions and traces in memory, not in the dataset.")
    ] = False,
    http: Annotated[
        bool, option("--http", help="Serve streamable HTTP at /mcp instead of stdio.")
    ] = False,
    host: Annotated[
        str, option("--host", metavar="ADDRESS", help="With --http. Default: 127.0.0.1.")
    ] = "127.0.0.1",
    port: Annotated[
        int, option("--port", metavar="N", help="With --http. Default: 8010.", min=1, max=65535)
    ] = 8010,
    log_level: Annotated[Optional[str], options.log_level("WARNING")] = None,
    **settings: Any,
) -> None:
    """Serve the tools to agents over the Model Context Protocol, on stdio.

    Agents list definitions, evaluate, compare, profile and check solutions. What they evaluate is
    saved in the dataset under their author's name, like traces of 'fib run', whose settings are
    options here; tolerances go by dtype, and the sandbox is strict where the system offers that.
    --http listens on this machine only, for everyone on it.
    """
    if host not in _LOOPBACK:
        hint = f"use one of {', '.join(_LOOPBACK)}; others reach it through SSH or a proxy"
        raise ConfigError(f"--host {host} is not an address of this machine alone", hint=hint)
    level = set_up_logging(log_level, default="WARNING")
    given = {name: value for name, value in settings.items() if value is not None}
    judge = (
        _remote(server, token, local, given)
        if server
        else _local(local, {**given, "log_level": level}, not no_save)
    )
    # Importing the SDK makes hundreds of classes, and collecting garbage meanwhile takes a fifth.
    gc.disable()
    import asyncio

    from fib_agents.mcp_server import AgentServer, serve_http

    made = AgentServer(judge, level).server
    gc.freeze()
    gc.enable()
    try:
        if http:
            with _listen(host, port) as listening:
                address = f"[{host}]" if ":" in host else host
                talk(f"serving MCP at http://{address}:{port}/mcp")
                asyncio.run(serve_http(made, host, listening))
        else:
            # Otherwise Ctrl-C takes effect after the next line of the client only.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            asyncio.run(made.run_stdio_async())
    finally:
        judge.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        told = f"{host}:{port} cannot be listened on: {error.strerror or error}"
        raise ConfigError(told, hint="choose another --port or --host") from error
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # see `fib_serve.app`
    return listening


def _local(local: Optional[list[Path]], settings: dict[str, Any], save: bool) -> LocalJudge:
    from fib_agents.evaluations import Datasets, LocalJudge
    from flashinfer_bench.bench.backends import likely_devices

    roots = dataset_roots(local)
    for root in roots:
        layout.require_dataset(root)
    named = settings.pop("device", None)
    devices = likely_devices(named) if named else likely_devices(None)[:1]
    return LocalJudge(Datasets(roots, save=save), devices, settings)


def _remote(
    url: str, token: Optional[str], local: Union[list[Path], None], settings: dict[str, Any]
) -> RemoteJudge:
    if local or settings:
        told = "--local" if local else f"--{next(iter(settings)).replace('_', '-')}"
        hint = "leave it out: the service has its own dataset and settings"
        raise ConfigError(f"{told} cannot be used with --server", hint=hint)
    try:
        from fib_serve.client import Client
    except ImportError as error:
        hint = "in a clone: pip install ./plugins/report ./plugins/serve"
        told = "--server needs the distribution fib-serve"
        raise CapabilityError(told, hint=hint) from error
    from fib_agents.evaluations import RemoteJudge

    return RemoteJudge(Client(url, token or env.serve_token()))
