"""A small process that sets the clocks of a GPU, and undoes that when its parent is gone.

Nothing that happens to the parent can keep it from that: not ``kill -9`` either, as the system then
closes the pipe that this process waits at. A child of the parent may hold that pipe open, so it is
also looked whether the parent is still the parent.

It is started with one argument, a `Task` as JSON, and writes one line of JSON when the clocks are
set or cannot be set, and one when that has been undone.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.watch.leftover import Leftover
from flashinfer_bench.bench.watch.nvml_device import NvmlDevice
from flashinfer_bench.errors import CapabilityError, FibError

if TYPE_CHECKING:
    from collections.abc import Sequence

_POLL_S = 0.25
_ATTEMPTS, _PAUSE_S = 5, 0.2
_CLOCKS_SET = 0x2  # nvmlClocksEventReasonApplicationsClocksSetting
_SM, _MEMORY = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM


@dataclass(frozen=True)
class Task:
    """What to do.

    Attributes
    ----------
    uuid : str
        The GPU, without ``GPU-``.
    parent : int
        The process for whose life the clocks are to stay.
    sm_mhz, memory_mhz : int, optional
        The clocks; None leaves one as it is.
    """

    uuid: str
    parent: int
    sm_mhz: Optional[int] = None
    memory_mhz: Optional[int] = None

    def as_json(self) -> str:
        """Return it as the argument of this program."""
        return json.dumps(asdict(self))


def lock(gpu: NvmlDevice, task: Task) -> dict[str, Any]:
    """Set the clocks; if one cannot be set, leave none set.

    Returns
    -------
    dict
        The clocks before, for the report, and whether those of a run that was killed were undone.

    Raises
    ------
    CapabilityError
        If that is not possible or not allowed, or others use the device.
    """
    refuse_shared(gpu, task.parent)
    left_over = undo_leftover(gpu)
    refuse_set_clocks(gpu)
    refuse_unsupported(gpu, task)
    before: dict[str, Any] = {
        "sm_mhz_before": gpu.number("nvmlDeviceGetClockInfo", _SM),
        "memory_mhz_before": gpu.number("nvmlDeviceGetClockInfo", _MEMORY),
    }
    if left_over:
        before["left_over_undone"] = True
    Leftover(task.uuid).write({"sm_mhz": task.sm_mhz, "memory_mhz": task.memory_mhz})
    try:
        if task.memory_mhz is not None:
            _call(gpu, "nvmlDeviceSetMemoryLockedClocks", task.memory_mhz, task.memory_mhz)
        if task.sm_mhz is not None:
            _call(gpu, "nvmlDeviceSetGpuLockedClocks", task.sm_mhz, task.sm_mhz)
    except BaseException:
        unlock(gpu, task)
        raise
    return before


def unlock(gpu: NvmlDevice, task: Task) -> Optional[str]:
    """Undo it, trying several times; return the problem if that failed."""
    problem: Optional[str] = None
    for name, wanted in (("Memory", task.memory_mhz), ("Gpu", task.sm_mhz)):
        for attempt in range(_ATTEMPTS if wanted is not None else 0):
            try:
                _call(gpu, f"nvmlDeviceReset{name}LockedClocks")
                break
            except CapabilityError as error:
                if attempt == _ATTEMPTS - 1:
                    problem = error.message
                else:
                    time.sleep(_PAUSE_S)
    if problem is None:
        Leftover(task.uuid).remove()
    return problem


def undo_leftover(gpu: NvmlDevice) -> bool:
    """Undo what a guardian that was killed has left; return whether there was something.

    Whoever calls this holds the lock that a living guardian would hold.

    Raises
    ------
    CapabilityError
        If it cannot be undone.
    """
    clocks = Leftover(gpu.uuid).read()
    if clocks is None:
        return False
    problem = unlock(gpu, Task(gpu.uuid, 0, clocks.get("sm_mhz"), clocks.get("memory_mhz")))
    if problem is not None:
        raise CapabilityError(f"clocks that a killed run has set cannot be undone: {problem}")
    return True


def refuse_shared(gpu: NvmlDevice, own: int) -> None:
    """See to it that nobody else would feel it.

    Raises
    ------
    CapabilityError
        If others compute on the device, or it is divided.
    """
    others, unknown = gpu.strangers(own)
    if others or unknown:
        raise CapabilityError(f"{len(others) + len(unknown)} other processes use GPU-{gpu.uuid}")
    divided = gpu.ask("nvmlDeviceGetMigMode")
    if divided and any(divided):
        raise CapabilityError(f"GPU-{gpu.uuid} is divided (MIG), so others may use a part of it")


def refuse_set_clocks(gpu: NvmlDevice) -> None:
    """See to it that the clocks are free: NVML does not tell to what others have been set.

    Raises
    ------
    CapabilityError
        If they are not, as they could not be restored.
    """
    if (gpu.reasons() or 0) & _CLOCKS_SET:
        raise CapabilityError(f"the clocks of GPU-{gpu.uuid} have been set by somebody already")


def refuse_unsupported(gpu: NvmlDevice, task: Task) -> None:
    """See to it that the device has these clocks, as far as it tells.

    Raises
    ------
    CapabilityError
        If it has not; names the nearest.
    """
    memory = gpu.ask("nvmlDeviceGetSupportedMemoryClocks") or []
    _refuse_unknown("memory", task.memory_mhz, memory)
    at = task.memory_mhz or (max(memory) if memory else None)
    if at is not None:
        sm = gpu.ask("nvmlDeviceGetSupportedGraphicsClocks", at) or []
        _refuse_unknown("SM", task.sm_mhz, sm)


def _refuse_unknown(what: str, wanted: Optional[int], known: Sequence[int]) -> None:
    if wanted is None or not known or wanted in known:
        return
    nearest = min(known, key=lambda clock: abs(clock - wanted))
    raise CapabilityError(
        f"the GPU has no {what} clock of {wanted} MHz; there are {len(known)} "
        f"from {min(known)} to {max(known)} MHz, the nearest is {nearest}"
    )


def _call(gpu: NvmlDevice, function: str, *arguments: int) -> None:
    try:
        getattr(gpu.nvml, function)(gpu.handle, *arguments)
    except (AttributeError, gpu.nvml.NVMLError) as error:
        raise CapabilityError(
            f"{function}: {error}", hint="setting clocks takes root, or the administrator's leave"
        ) from error


class _Ending:
    """Takes note of a signal instead of dying of it, so that the clocks are undone."""

    def __init__(self) -> None:
        self.wanted = False
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        self.wanted = True

    def wait(self, parent: int) -> None:
        """Wait for a signal, for the pipe to be closed, or for the parent to be gone."""
        while not self.wanted and os.getppid() == parent:
            ready, _, _ = select.select([sys.stdin.fileno()], [], [], _POLL_S)
            if ready:
                return


def _tell(**message: Any) -> None:
    with suppress(OSError):  # nobody may be left to read it
        os.write(sys.stdout.fileno(), (json.dumps(message) + "\n").encode())


def main(argument: str) -> int:
    """Do the task; return the exit status: 0 if the clocks are as they were."""
    ending = _Ending()
    task = Task(**json.loads(argument))
    try:
        gpu = NvmlDevice(task.uuid)
        facts = lock(gpu, task)
    except FibError as error:
        _tell(problem=error.message, hint=error.hint)
        return 0
    try:
        _tell(locked=facts)
        ending.wait(task.parent)
    finally:
        problem = unlock(gpu, task)
        gpu.close()
    _tell(undone=problem is None, problem=problem)
    if problem is not None:
        sys.stderr.write(f"clocks of GPU-{task.uuid} are still locked: {problem}\n")
    return 1 if problem is not None else 0
