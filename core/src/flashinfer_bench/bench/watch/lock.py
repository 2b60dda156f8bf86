"""Holding the clocks of a GPU still, for as long as a ``with`` statement lasts."""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.watch.guardian import Task, unlock
from flashinfer_bench.bench.watch.nvml_device import NvmlDevice, uuid_of
from flashinfer_bench.errors import CapabilityError, ConfigError, FibError

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

_GUARDIAN = "flashinfer_bench.bench.watch.guardian"
# Not -m: the package has imported the module by then, and Python warns of that.
_PROGRAM = "import sys; from {} import main; sys.exit(main(sys.argv[1]))"
_ANSWER_S, _LEAVE_S = 30.0, 5.0
_FASTEST_MHZ = 100_000


@dataclass(frozen=True)
class ClockRequest:
    """The clocks that a GPU is to have.

    Attributes
    ----------
    sm_mhz, memory_mhz : int, optional
        Of the multiprocessors and of the memory; None leaves one as it is.

    Raises
    ------
    ConfigError
        If there is neither, or one that cannot be a clock.
    """

    sm_mhz: Optional[int] = None
    memory_mhz: Optional[int] = None

    def __post_init__(self) -> None:
        """Check the values."""
        wanted = {"sm_mhz": self.sm_mhz, "memory_mhz": self.memory_mhz}
        if all(value is None for value in wanted.values()):
            raise ConfigError("locked clocks: need sm_mhz, memory_mhz or both")
        for name, value in wanted.items():
            whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (whole and 0 < value <= _FASTEST_MHZ):
                raise ConfigError(f"locked clocks: {name}={value!r}: need a whole number of MHz")


@dataclass
class LockReport:
    """What has become of a request.

    Attributes
    ----------
    request : ClockRequest, optional
        What was asked for; None if nothing was.
    locked : bool
        Whether the clocks were set.
    problem : str, optional
        Why they were not, or not undone.
    undone : bool
        Whether the clocks are free, as far as is known: False while they are set, and afterwards if
        that could not be undone.
    before : dict
        The clocks before.
    """

    request: Optional[ClockRequest] = None
    locked: bool = False
    problem: Optional[str] = None
    undone: bool = True
    before: dict[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Return what belongs into a trace; nothing if nothing was asked for."""
        if self.request is None:
            return {}
        found = {
            "locked": self.locked,
            "sm_mhz": self.request.sm_mhz,
            "memory_mhz": self.request.memory_mhz,
            **self.before,
            "problem": self.problem,
        }
        return {key: value for key, value in found.items() if value is not None}


@contextmanager
def locked_clocks(device: str, request: Optional[ClockRequest]) -> Iterator[LockReport]:
    """Set the clocks of a GPU for the body of a ``with`` statement.

    A process of its own does it, and undoes it when this one is through with the body, or dead for
    whatever reason. A device that others use is left alone. Nothing is raised if the clocks cannot
    be set: that is a warning, and in the report.

    Parameters
    ----------
    device : str
        ``cuda`` or ``cuda:N``.
    request : ClockRequest, optional
        The clocks; None changes nothing.

    Yields
    ------
    LockReport
        What has become of it; complete after the body.
    """
    report = LockReport(request)
    keeper = None if request is None else _start(device, request, report)
    try:
        yield report
    finally:
        if keeper is not None:
            keeper.end(report)
            if not report.undone:
                logger.warning(
                    "the clocks of %s are still locked: %s. Undo it with: nvidia-smi -i GPU-%s "
                    "--reset-gpu-clocks; and the same with --reset-memory-clocks",
                    device,
                    report.problem,
                    keeper.uuid,
                )


def _start(device: str, request: ClockRequest, report: LockReport) -> Optional[_Keeper]:
    """Have the clocks set; return None, and tell why, if they are not."""
    try:
        keeper = _Keeper(uuid_of(device), request)
        keeper.begin(report)
    except Exception as error:  # noqa: BLE001 - timing goes on with clocks that are not locked
        report.problem = error.message if isinstance(error, FibError) else repr(error)
        logger.warning("the clocks of %s are not locked: %s", device, error)
        return None
    return keeper


class _Keeper:
    """The guardian, seen from its parent."""

    def __init__(self, uuid: str, request: ClockRequest) -> None:
        self.uuid = uuid
        self._task = Task(uuid, os.getpid(), request.sm_mhz, request.memory_mhz)
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._unread = b""

    def begin(self, report: LockReport) -> None:
        """Start the guardian, and wait until it has set the clocks.

        Raises
        ------
        CapabilityError
            If it could not.
        """
        only = _only_one(self.uuid)
        try:
            self._process = _spawn(self._task, only)
        finally:
            os.close(only)  # the guardian has it, and so holds the lock for as long as it lives
        answer = self._hear()
        if "locked" not in answer:
            self._close()
            self._leave()
            problem = answer.get("problem", "the process that sets the clocks gave no answer")
            raise CapabilityError(problem, hint=answer.get("hint"))
        report.locked, report.undone, report.before = True, False, answer["locked"]

    def end(self, report: LockReport) -> None:
        """Have it undone; do it here if the guardian is no longer there."""
        self._close()
        answer = self._hear()
        report.undone, report.problem = bool(answer.get("undone")), answer.get("problem")
        if not report.undone:
            report.problem = self._undo()
            report.undone = report.problem is None
        self._leave()

    def _leave(self) -> None:
        """Let go of the guardian. It is never killed: it may be about to undo something."""
        assert self._running.stdout is not None
        with suppress(subprocess.TimeoutExpired):
            self._running.wait(timeout=_LEAVE_S)
        self._running.stdout.close()

    def _undo(self) -> Optional[str]:
        try:
            gpu = NvmlDevice(self.uuid)
            try:
                return unlock(gpu, self._task)
            finally:
                gpu.close()
        except Exception as error:  # noqa: BLE001 - it is told, and the run is over
            return error.message if isinstance(error, FibError) else repr(error)

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def _close(self) -> None:
        """Tell the guardian that it is over; it is left to undo what it has done."""
        assert self._running.stdin is not None
        with suppress(OSError):
            self._running.stdin.close()

    def _hear(self) -> dict[str, Any]:
        """Return the next message; an empty one if there is none in time."""
        assert self._running.stdout is not None
        descriptor, until = self._running.stdout.fileno(), time.monotonic() + _ANSWER_S
        waiting = select.poll()  # select() cannot wait for descriptors above 1023
        waiting.register(descriptor, select.POLLIN)
        while b"\n" not in self._unread:
            left_ms = max(until - time.monotonic(), 0.0) * 1e3
            part = os.read(descriptor, 4096) if waiting.poll(left_ms) else b""
            if not part:
                return {}
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        with suppress(ValueError):
            found = json.loads(line)
            return found if isinstance(found, dict) else {}
        return {}


def _spawn(task: Task, only: int) -> subprocess.Popen[bytes]:
    """Start the guardian in a session of its own, which Ctrl-C at a terminal does not reach."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)  # noqa: PTH100
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(_GUARDIAN), task.as_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
        cwd="/",  # Python would import from wherever it is started
        pass_fds=(only,),
    )


def _only_one(uuid: str) -> int:
    """Return a descriptor that keeps others from setting the clocks of the device.

    Raises
    ------
    CapabilityError
        If somebody else holds it.
    """
    from flashinfer_bench.bench.lock_folder import open_lock_folder
    from flashinfer_bench.bench.locks import lock_file

    with open_lock_folder() as folder:
        descriptor = lock_file(folder, f"device-clocks-{uuid}.lock")
    if descriptor < 0:
        raise CapabilityError(f"another process has locked the clocks of GPU-{uuid}")
    return descriptor
