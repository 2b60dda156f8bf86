"""The GPUs and the CPU of this machine, found without a CUDA context; and answers of probes."""

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
# Of Linux on x86, on Arm and on others; frequencies and the like are left out.
_CPU_FIELDS = re.compile(
    r"vendor_id|cpu|cpu family|model|model name|stepping|cache size|flags|Features|isa|uarch"
    r"|CPU (implementer|architecture|variant|part|revision)"
)

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_threads(
    work: Callable[[_Item], _Result], items: Iterable[_Item], jobs: int
) -> Iterator[tuple[_Item, _Result]]:
    """Work on several items at a time, the first ones first, and yield each with its result.

    Whoever stops iterating, by Ctrl-C for example, begins no further item. What has begun goes on
    in a thread that keeps nobody waiting, not even the end of the process, as those of
    `concurrent.futures` do.

    Parameters
    ----------
    work : callable
        Is given an item; must not raise.
    items : iterable
        What to work on.
    jobs : int
        How many at a time.
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
    """Return the compute capabilities of the visible GPUs, without repetition, lowest first.

    Returns
    -------
    tuple of str
        Such as ``("8.0", "9.0")``; empty if there is no GPU. Where ``CUDA_VISIBLE_DEVICES`` leaves
        open which of several different GPUs it means, those of all.
    """
    gpus, visible = nvidia_gpus(), env.cuda_visible_devices()
    found = {gpu.capability for gpu in gpus if visible is None}
    for entry in visible or ():
        if entry.isdecimal():
            chosen = gpus[int(entry) :][:1]
            # CUDA numbers devices by speed unless told otherwise, and NVML by place on the bus.
            if chosen and env.cuda_device_order() != "PCI_BUS_ID":
                chosen = gpus
        elif entry.startswith("MIG-"):
            chosen = gpus  # a part of one of them
        else:
            chosen = tuple(gpu for gpu in gpus if gpu.uuid.startswith(entry))
        if not chosen:
            break  # as CUDA does: what comes after an entry that names nothing does not count
        found |= {gpu.capability for gpu in chosen}
    return tuple(f"{major}.{minor}" for major, minor in sorted(found))


def cpu_description() -> str:
    """Return the CPU's model and features, on which ``-march=native`` depends."""
    try:
        text = _CPU_INFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        # Nothing to tell CPUs apart by: then no two machines have the same one.
        return f"{platform.processor()} of {platform.node()}"
    first = text.partition("\n\n")[0]
    fields = [line.partition(":") for line in first.splitlines()]
    kept = [(name.strip(), value.strip()) for name, _, value in fields]
    return "; ".join(f"{name}: {value}" for name, value in kept if _CPU_FIELDS.fullmatch(name))


def require_torch() -> None:
    """Check that torch is installed, without importing it; a check for `availability`.

    Raises
    ------
    CapabilityError
        If it is not.
    """
    if find_spec("torch") is None:
        raise CapabilityError(
            "torch is not installed, and the inputs of solutions are torch tensors",
            hint="pip install torch numpy safetensors",
        )


def availability(*checks: Callable[[], Any]) -> Availability:
    """Return whether all of `checks` find what they look for.

    Parameters
    ----------
    *checks : callable
        `find_cxx`, `cuda_architectures`, or functions of your own. They return what they found, to
        be shown to the user (None: nothing to show), and raise `CapabilityError` otherwise.

    Returns
    -------
    Availability
        What was found, or the first thing that is missing.
    """
    from flashinfer_bench.plugins import Availability

    found = []
    for check in checks:
        try:
            thing = check()
        except CapabilityError as error:
            return Availability(ok=False, reason=error.message, remedy=error.hint or "")
        except ValueError as error:  # a variable has a value that is not allowed
            return Availability(ok=False, reason=str(error))
        # Named tuples say themselves what they are.
        found.append(" ".join(map(str, thing)) if type(thing) in (tuple, list) else thing)
    return Availability(ok=True, reason=", ".join(str(thing) for thing in found if thing))
