"""What a candidate does between being a process and answering its judge."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Union

from flashinfer_bench.bench.confinement import pick_sandbox
from flashinfer_bench.bench.transport.channel import candidate_end
from flashinfer_bench.errors import FibError

if TYPE_CHECKING:
    import socket

    from flashinfer_bench.bench.timing.base import Timer

_NICENESS = 10
_TO_COMPILE = (
    "flashinfer_bench.bench.candidate.session",
    "flashinfer_bench.compile.registry",
    "flashinfer_bench.data",
)
_TO_RUN = (
    *("torch", "numpy", *_TO_COMPILE),
    "flashinfer_bench.bench.timing.wall",
    "flashinfer_bench.tensors",
)


def preload(device: str, *, compiles_only: bool = False, ask_probes: bool = True) -> bool:
    """Import what every candidate needs, and load the plugins.

    Done in a fork server, its children have it for free. So nothing here may start a thread, open
    a device or run a parallel operation: a forked child inherits neither threads nor contexts, and
    hangs in the first OpenMP loop if its parent ever ran one.

    Parameters
    ----------
    device : str
        What the candidates work on.
    compiles_only : bool
        For those that only compile, without torch, whose import takes longer than all the rest.
    ask_probes : bool
        Have the probes of builders answered, too; otherwise each candidate asks for itself.

    Returns
    -------
    bool
        Whether candidates may be forked: False if the thread of a probe still runs. It may hold a
        lock, which nobody would release in a child.
    """
    gc.disable()  # it would take a third of the time
    for module in _TO_COMPILE if compiles_only else _TO_RUN:
        importlib.import_module(module)
    before = set(threading.enumerate())
    if compiles_only:
        _load_compilers(device, ask_probes=ask_probes)
    elif ask_probes:
        from flashinfer_bench.plugins import default_catalog

        # References are in Python, so nearly every candidate builds that.
        with contextlib.suppress(FibError):
            default_catalog().select_builder("python").load()
        for timer in default_catalog().timers:
            with contextlib.suppress(FibError):
                timer.load()
        pick_sandbox()
        if device == "cpu":  # many processes are forked there
            _load_compilers(device, ask_probes=True)
    # Keep the collector off these objects: it would touch, and so copy, every page of them.
    gc.collect()
    gc.freeze()
    gc.enable()
    return before.issuperset(threading.enumerate())


def preload_for_solutions(device: str) -> bool:
    """Import what solutions import, as builders tell; worth it where many processes are forked.

    Returns
    -------
    bool
        As of `preload`.
    """
    from flashinfer_bench.plugins import default_catalog

    kind, before = device.partition(":")[0], set(threading.enumerate())
    for entry in default_catalog().builders:
        for wanted, module in entry.spec.preloads:
            if wanted == kind:
                with contextlib.suppress(Exception):  # a solution that needs it will tell
                    importlib.import_module(module)
    gc.freeze()
    return before.issuperset(threading.enumerate())


def _load_compilers(device: str, *, ask_probes: bool) -> None:
    """Import the builders that compile for `device`, and ask their probes.

    Other probes are left alone: one may ask for a device, after which no child could open it.
    """
    from flashinfer_bench.plugins import default_catalog

    catalog = default_catalog()
    compilers = [e for e in catalog.builders if e.spec.compiles and e.spec.serves(device)]
    if ask_probes:
        catalog.check_all(compilers)
    for entry in compilers:
        with contextlib.suppress(FibError):
            entry.load()


def serve(sock: socket.socket, device: str, *, compiles_only: bool = False) -> None:
    """Answer the judge at the other end of `sock` until it ends the conversation.

    Parameters
    ----------
    sock : socket.socket
        The candidate's end of the channel.
    device : str
        What the solution works on.
    compiles_only : bool
        Answer no other request than to compile.

    Notes
    -----
    The current folder must be the candidate's own.
    """
    from flashinfer_bench.bench.candidate.session import Session
    from flashinfer_bench.compile import BuilderRegistry
    from flashinfer_bench.compile.cache import use_scratch
    from flashinfer_bench.plugins import default_catalog

    use_scratch(Path.cwd())
    if compiles_only and device != "cpu":  # others may be timed meanwhile
        os.nice(_NICENESS)
    timers = {} if compiles_only else make_timers(device)
    registry = BuilderRegistry.from_catalog(default_catalog(), device=device)
    channel = candidate_end(sock)
    session = Session(
        channel, device, registry, timers, sandbox=pick_sandbox(), compiles_only=compiles_only
    )
    session.run()


def make_timers(device: str) -> dict[str, Union[Timer, Exception]]:
    """Construct every timer that is meant for `device`.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``.

    Returns
    -------
    dict
        By name; an exception in place of a timer that could not be made.
    """
    from flashinfer_bench.plugins import default_catalog

    kind = device.partition(":")[0]
    timers: dict[str, Union[Timer, Exception]] = {}
    for entry in default_catalog().timers:
        if kind not in entry.spec.devices:
            continue
        try:
            timers[entry.name] = entry.load()()
        except Exception as error:  # noqa: BLE001 - plugin boundary: matters only if it is asked for
            timers[entry.name] = error
    return timers
