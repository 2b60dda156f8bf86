"""What a candidate does between being a process and answering its judge."""

from __future__ import annotations

import contextlib
import gc
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Union

from flashinfer_bench.bench.transport.channel import candidate_end
from flashinfer_bench.errors import FibError

if TYPE_CHECKING:
    import socket

    from flashinfer_bench.bench.timing.base import Timer

_PRELOADED = (
    "torch",
    "numpy",
    "flashinfer_bench.bench.candidate.session",
    "flashinfer_bench.bench.timing.cuda_event",
    "flashinfer_bench.bench.timing.wall",
    "flashinfer_bench.compile",
    "flashinfer_bench.data",
    "flashinfer_bench.tensors",
)


def preload() -> None:
    """Import what every candidate needs, and load the plugins.

    Done in a fork server, its children have it for free. So nothing here may start a thread, open
    a device or run a parallel operation: a forked child inherits neither threads nor contexts, and
    hangs in the first OpenMP loop if its parent ever ran one.
    """
    for module in _PRELOADED:
        importlib.import_module(module)
    from flashinfer_bench.plugins import default_catalog

    # References are in Python, so nearly every candidate builds that.
    with contextlib.suppress(FibError):
        default_catalog().select_builder("python").load()
    # Keep the collector off these objects: it would touch, and so copy, every page of them.
    gc.collect()
    gc.freeze()


def serve(sock: socket.socket, device: str) -> None:
    """Answer the judge at the other end of `sock` until it ends the conversation.

    Parameters
    ----------
    sock : socket.socket
        The candidate's end of the channel.
    device : str
        What the solution works on.

    Notes
    -----
    The current folder must be the candidate's own.
    """
    from flashinfer_bench.bench.candidate.session import Session
    from flashinfer_bench.compile import BuilderRegistry
    from flashinfer_bench.compile.toolkit.scratch import use_scratch
    from flashinfer_bench.plugins import default_catalog

    use_scratch(Path.cwd())
    if device == "cpu":
        _limit_threads()
    timers = make_timers(device)
    registry = BuilderRegistry.from_catalog(default_catalog())
    Session(candidate_end(sock), device, registry.build, timers).run()


def _limit_threads() -> None:
    import torch

    from flashinfer_bench.tensors import cpu_threads

    torch.set_num_threads(cpu_threads())


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
