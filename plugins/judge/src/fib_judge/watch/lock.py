"""Holding the clocks of a GPU still, for as long as a ``with`` statement lasts."""

from __future__ import annotations

import atexit
import json
import logging
import os
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from fib_judge.watch.nvml import NvmlDevice, uuid_of
from flashinfer_bench import env
from flashinfer_bench.errors import CapabilityError, ConfigError, FibError

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

_FASTEST_MHZ = 100_000
_ATTEMPTS, _PAUSE_S = 5, 0.2
_CLOCKS_SET = 0x2  # nvmlClocksEventReasonApplicationsClocksSetting
_SM, _MEMORY = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class ClockRequest:
    """The clocks that a GPU is to have.

    Attributes
    ----------
    sm_mhz : int
        Of the multiprocessors.

    Raises
    ------
    ConfigError
        If that cannot be a clock.
    """

    sm_mhz: int

    def __post_init__(self) -> None:
        """Check the value."""
        if isinstance(self.sm_mhz, bool) or not 0 < self.sm_mhz <= _FASTEST_MHZ:
            raise ConfigError(f"locked clocks: sm_mhz={self.sm_mhz!r}: give a whole number of MHz")


@dataclass
class LockReport:
    """What has become of a request.

    Attributes
    ----------
    request : ClockRequest
        What was asked for.
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

    request: ClockRequest
    locked: bool = False
    problem: Optional[str] = None
    undone: bool = True
    before: dict[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Return what belongs into a trace."""
        found = {
            "locked": self.locked,
            "sm_mhz": self.request.sm_mhz,
            **self.before,
            "problem": self.problem,
        }
        return {key: value for key, value in found.items() if value is not None}


@contextmanager
def locked_clocks(device: str, request: ClockRequest) -> Iterator[LockReport]:
    """Set the clocks of a GPU for the body of a ``with`` statement.

    They are freed when the body ends, however it does, and at the latest when the interpreter does.
    What a process that was killed has left is undone by the next one, see `restore_clocks`. A
    device that others use is left alone. Nothing is raised if the clocks cannot be set: that is a
    warning, and in the report.

    Parameters
    ----------
    device : str
        ``cuda`` or ``cuda:N``.
    request : ClockRequest
        The clocks.

    Yields
    ------
    LockReport
        What has become of it; complete after the body.
    """
    report = LockReport(request)
    held = None
    try:
        held = _Held(device, request, report)
    except Exception as error:  # noqa: BLE001 - timing goes on with clocks that are not locked
        report.problem = _reason(error)
        logger.warning("could not lock the clocks of %s: %s", device, error)
    try:
        yield report
    finally:
        if held is not None:
            held.end()


def restore_clocks(device: str) -> None:
    """Free clocks that a process which has died left set; nothing is raised.

    Parameters
    ----------
    device : str
        Any; only GPUs have such clocks.
    """
    if device == "cpu" or not ClockLease.any_left():
        return
    try:
        uuid = uuid_of(device)
        if ClockLease(uuid).read() is None:
            return
        with _only_one(uuid), _opened(uuid) as gpu:
            if _restore(gpu):
                logger.warning("unlocked clocks of %s that a killed run had left locked", device)
    except _Taken:  # they are those of a run that goes on
        return
    except Exception as error:  # noqa: BLE001 - the run goes on with the clocks that there are
        logger.warning("the clocks of %s may still be locked by a killed run: %s", device, error)


class _Held:
    """Clocks that are set until `end`."""

    def __init__(self, device: str, request: ClockRequest, report: LockReport) -> None:
        self._device, self._report = device, report
        self._uuid, self._pid = uuid_of(device), os.getpid()
        with ExitStack() as on_failure:
            on_failure.enter_context(_only_one(self._uuid))
            with _opened(self._uuid) as gpu:
                report.before = _set_clocks(gpu, request)
            self._lock = on_failure.pop_all()
        report.locked, report.undone = True, False
        atexit.register(self.end)

    def end(self) -> None:
        """Free the clocks, in the process that has set them; idempotent."""
        report = self._report
        if report.undone or os.getpid() != self._pid:
            return
        try:
            with _opened(self._uuid) as gpu:
                report.problem = _free_clocks(gpu)
        except Exception as error:  # noqa: BLE001 - it is told, and the run is over
            report.problem = _reason(error)
        report.undone = report.problem is None
        if not report.undone:
            logger.warning(
                "the clocks of %s are still locked: %s. Undo it with: nvidia-smi -i GPU-%s "
                "--reset-gpu-clocks",
                self._device,
                report.problem,
                self._uuid,
            )
        self._lock.close()
        atexit.unregister(self.end)


class _Taken(CapabilityError):
    """Another process has set the clocks, and is alive."""


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, FibError) else repr(error)


@contextmanager
def _opened(uuid: str) -> Iterator[NvmlDevice]:
    gpu = NvmlDevice(uuid)
    try:
        yield gpu
    finally:
        gpu.close()


@contextmanager
def _only_one(uuid: str) -> Iterator[None]:
    """Keep others from setting the clocks of the device.

    Raises
    ------
    _Taken
        If somebody else does.
    """
    from flashinfer_bench.bench.locks import lock_file, open_lock_folder

    with open_lock_folder() as folder:
        descriptor = lock_file(folder, f"device-clocks-{uuid}.lock")
    if descriptor < 0:
        raise _Taken(f"another process has locked the clocks of GPU-{uuid}")
    try:
        yield
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------------------- asking the driver


def _set_clocks(gpu: NvmlDevice, request: ClockRequest) -> dict[str, Any]:
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
    left_over = _restore(gpu)
    _refuse_shared(gpu)
    # NVML does not tell to what others have set them, so they could not be restored.
    if (gpu.reasons() or 0) & _CLOCKS_SET:
        raise CapabilityError(f"the clocks of GPU-{gpu.uuid} were set by another program")
    memory = gpu.ask("nvmlDeviceGetSupportedMemoryClocks") or []
    known = gpu.ask("nvmlDeviceGetSupportedGraphicsClocks", max(memory)) if memory else None
    if known and request.sm_mhz not in known:
        nearest = min(known, key=lambda clock: abs(clock - request.sm_mhz))
        raise CapabilityError(
            f"the GPU has no SM clock of {request.sm_mhz} MHz; it has {len(known)} "
            f"from {min(known)} to {max(known)} MHz, the nearest is {nearest}"
        )
    before: dict[str, Any] = {
        "sm_mhz_before": gpu.number("nvmlDeviceGetClockInfo", _SM),
        "memory_mhz_before": gpu.number("nvmlDeviceGetClockInfo", _MEMORY),
    }
    if left_over:
        before["left_over_undone"] = True
    ClockLease(gpu.uuid).write({"sm_mhz": request.sm_mhz})
    try:
        _call(gpu, "nvmlDeviceSetGpuLockedClocks", request.sm_mhz, request.sm_mhz)
    except BaseException:
        _free_clocks(gpu)
        raise
    return before


def _free_clocks(gpu: NvmlDevice) -> Optional[str]:
    """Undo it, trying several times; return the problem if that failed."""
    for attempt in range(_ATTEMPTS):
        try:
            _call(gpu, "nvmlDeviceResetGpuLockedClocks")
            break
        except CapabilityError as error:
            if attempt == _ATTEMPTS - 1:
                return error.message
            time.sleep(_PAUSE_S)
    ClockLease(gpu.uuid).remove()
    return None


def _restore(gpu: NvmlDevice) -> bool:
    """Undo what a process that has died left set; return whether there was something.

    Whoever calls this holds the lock that the process would hold if it lived.

    Raises
    ------
    CapabilityError
        If it cannot be undone, or others compute on the device.
    """
    if ClockLease(gpu.uuid).read() is None:
        return False
    _refuse_shared(gpu)
    problem = _free_clocks(gpu)
    if problem is not None:
        raise CapabilityError(f"clocks set by a killed run cannot be reset: {problem}")
    return True


def _refuse_shared(gpu: NvmlDevice) -> None:
    """See to it that nobody else would feel it.

    Raises
    ------
    CapabilityError
        If others compute on the device, or it is divided.
    """
    others, unknown = gpu.strangers(os.getpid())
    if others or unknown:
        raise CapabilityError(f"{len(others) + len(unknown)} other processes use GPU-{gpu.uuid}")
    divided = gpu.ask("nvmlDeviceGetMigMode")
    if divided and any(divided):
        raise CapabilityError(f"GPU-{gpu.uuid} is partitioned (MIG), so others may use part of it")


def _call(gpu: NvmlDevice, function: str, *arguments: int) -> None:
    try:
        getattr(gpu.nvml, function)(gpu.handle, *arguments)
    except (AttributeError, gpu.nvml.NVMLError) as error:
        raise CapabilityError(
            f"{function}: {error}", hint="setting clocks needs root or the permission of an admin"
        ) from error


# -------------------------------------------------------------------------------- a note on disk


class ClockLease:
    """A note of clocks that are set, for the case that who has set them dies and leaves them so.

    As by ``kill -9`` or when a container is stopped: the clocks stay, and the next run on that
    device undoes that. A restart of the machine sets them free by itself, so a note from before one
    means nothing.

    Parameters
    ----------
    uuid : str
        The GPU, without ``GPU-``.
    """

    def __init__(self, uuid: str) -> None:
        self._path = _folder() / f"clocks-{uuid}.json"

    @staticmethod
    def any_left() -> bool:
        """Return whether there is a note about any device: few ask the driver in vain."""
        return any(_folder().glob("clocks-*.json"))

    def write(self, clocks: dict[str, int]) -> None:
        """Remember what is about to be set; where nothing can be written, go without."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps({"boot": _boot(), **clocks}), encoding="utf-8")

    def read(self) -> Optional[dict[str, Any]]:
        """Return what was set since the machine was started and has not been undone, if it was."""
        with suppress(OSError, ValueError):
            found = json.loads(self._path.read_text(encoding="utf-8"))
            if isinstance(found, dict) and found.pop("boot", None) == _boot():
                return found
        return None

    def remove(self) -> None:
        """Forget it."""
        with suppress(OSError):
            self._path.unlink()


def _folder() -> Path:
    return env.cache_path() / "machine"


def _boot() -> str:
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""
