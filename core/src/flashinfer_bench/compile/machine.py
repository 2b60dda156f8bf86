"""Detect GPUs and the CPU without creating a CUDA context, and build probe results."""

from __future__ import annotations

import platform
import re
import threading
from collections import deque
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from flashinfer_bench import env
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.tensors.devices import nvidia_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from flashinfer_bench.plugins import Availability

_CPU_INFO = Path("/proc/cpuinfo")
# Fields of /proc/cpuinfo on x86, Arm and others that identify the CPU; frequencies are left out.
_CPU_FIELDS = re.compile(
    r"vendor_id|cpu|cpu family|model|model name|stepping|cache size|flags|Features|isa|uarch"
    r"|CPU (implementer|architecture|variant|part|revision)"
)

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_threads(
    work: Callable[[_Item], _Result], items: Iterable[_Item], jobs: int
) -> Iterator[tuple[_Item, _Result]]:
    """Process items concurrently, in order of submission, and yield each item with its result.

    When the caller stops iterating, for example on Ctrl-C, no further item is started. Items in
    progress finish in daemon threads, which, unlike those of `concurrent.futures`, do not delay the
    end of the process.

    Parameters
    ----------
    work : callable
        Called with an item; must not raise.
    items : iterable
        The items to process.
    jobs : int
        Number of concurrent threads.
    """
    todo = deque(items)
    count = len(todo)
    results: SimpleQueue[tuple[_Item, _Result]] = SimpleQueue()

    def run() -> None:
        with suppress(IndexError):  # of `popleft`: nothing is left
            while True:
                item = todo.popleft()
                results.put((item, work(item)))

    try:
        for _ in range(min(jobs, count)):
            threading.Thread(target=run, name="fib-work", daemon=True).start()
        for _ in range(count):
            yield results.get()
    finally:
        todo.clear()


def gpu_architectures() -> tuple[str, ...]:
    """Return the distinct compute capabilities of the visible GPUs, lowest first.

    Returns
    -------
    tuple of str
        Such as ``("8.0", "9.0")``; empty if there is no GPU. If ``CUDA_VISIBLE_DEVICES`` does not
        determine which of several different GPUs are visible, those of all GPUs.
    """
    gpus, visible = nvidia_gpus(), env.cuda_visible_devices()
    found = {gpu.capability for gpu in gpus if visible is None}
    for entry in visible or ():
        if entry.isdecimal():
            chosen = gpus[int(entry) :][:1]
            # By default CUDA orders devices by speed, and NVML by PCI bus position.
            if chosen and env.cuda_device_order() != "PCI_BUS_ID":
                chosen = gpus
        elif entry.startswith("MIG-"):
            chosen = gpus  # a MIG slice of one of the GPUs
        else:
            chosen = tuple(gpu for gpu in gpus if gpu.uuid.startswith(entry))
        if not chosen:
            break  # like CUDA, ignore everything after an invalid entry
        found |= {gpu.capability for gpu in chosen}
    return tuple(f"{major}.{minor}" for major, minor in sorted(found))


def cpu_description() -> str:
    """Return the CPU's model and features, on which ``-march=native`` depends."""
    try:
        text = _CPU_INFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        # Nothing identifies the CPU: treat it as different from that of any other machine.
        return f"{platform.processor()} of {platform.node()}"
    first = text.partition("\n\n")[0]
    fields = [line.partition(":") for line in first.splitlines()]
    kept = [(name.strip(), value.strip()) for name, _, value in fields]
    return "; ".join(f"{name}: {value}" for name, value in kept if _CPU_FIELDS.fullmatch(name))


def require_torch() -> None:
    """Check that torch is installed, without importing it; for use with `availability`.

    Raises
    ------
    CapabilityError
        If torch is not installed.
    """
    if find_spec("torch") is None:
        raise CapabilityError(
            "torch is not installed, and the inputs of solutions are torch tensors",
            hint="pip install torch numpy safetensors",
        )


def availability(*checks: Callable[[], Any]) -> Availability:
    """Return whether all `checks` succeed.

    Parameters
    ----------
    *checks : callable
        `find_cxx`, `cuda_architectures`, or your own functions. They return a description of what
        they found, for display (None: nothing to display), or raise `CapabilityError`.

    Returns
    -------
    Availability
        What was found, or the first missing requirement.
    """
    from flashinfer_bench.plugins import Availability

    found = []
    for check in checks:
        try:
            thing = check()
        except CapabilityError as error:
            return Availability(ok=False, reason=error.message, remedy=error.hint or "")
        except ValueError as error:  # an environment variable has an invalid value
            return Availability(ok=False, reason=str(error))
        # Named tuples format themselves.
        found.append(" ".join(map(str, thing)) if type(thing) in (tuple, list) else thing)
    return Availability(ok=True, reason=", ".join(str(thing) for thing in found if thing))
