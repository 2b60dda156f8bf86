"""Clocks of an NVIDIA GPU and why they are what they are; temperature, power, other users."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from fib_judge.watch.base import Reading, Summary, Watcher
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Callable


_PROC = Path("/proc")
_DEEPEST = 64
_AFTER_NAME_PARENT = 1  # the fields after the name are: state, parent, …
_GONE = frozenset({1, 15, 16, 28})  # uninitialized, GPU is lost, reset required, GPU not found
_NEVER = frozenset({3, 4, 13})  # not supported, no permission, function not found


class NvmlDevice:
    """A GPU with its own reference to the library, until it is closed.

    Parameters
    ----------
    uuid : str
        The device's UUID without what stands before it: ``GPU-`` or ``MIG-``.

    Raises
    ------
    CapabilityError
        If the bindings or the driver are not there, or the driver does not know the device.
    """

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.nvml = _library()
        self._mute: set[str] = set()
        try:
            self.handle = _handle(self.nvml, uuid)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the library back; NVML counts who uses it."""
        with suppress(self.nvml.NVMLError):  # a lost device has taken the library with it
            self.nvml.nvmlShutdown()

    def ask(self, question: str, *arguments: Any) -> Any:
        """Return the answer to a question about this device; None if it has none.

        Parameters
        ----------
        question : str
            Name of a function of NVML whose first argument is the device.
        arguments : object
            The others.

        Raises
        ------
        CapabilityError
            If the device has disappeared.
        """
        if question in self._mute:
            return None
        try:
            return getattr(self.nvml, question)(self.handle, *arguments)
        except AttributeError:  # older bindings
            self._mute.add(question)
        except self.nvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code in _GONE:
                raise CapabilityError(f"GPU-{self.uuid} has disappeared: {error}") from error
            if code in _NEVER:
                self._mute.add(question)
        return None

    def number(self, question: str, *arguments: Any) -> Optional[int]:
        """Return the answer to a question as a number; None if there is none."""
        found = self.ask(question, *arguments)
        return None if found is None else int(found)

    def reasons(self) -> Optional[int]:
        """Return why clocks are as they are, one bit for each reason; None if it does not tell."""
        found = self.number("nvmlDeviceGetCurrentClocksEventReasons")
        if found is None:  # its name before driver 535
            found = self.number("nvmlDeviceGetCurrentClocksThrottleReasons")
        return found

    def strangers(self, own: int) -> tuple[list[int], list[int]]:
        """Return the processes that compute on the device and do not descend from process `own`.

        Returns
        -------
        others : list of int
            Those that are known not to.
        unknown : list of int
            Those that cannot be seen from here, for example out of a container.
        """
        found = self.ask("nvmlDeviceGetComputeRunningProcesses") or []
        pids = [int(process.pid) for process in found]
        seen = [pid for pid in pids if (_PROC / str(pid)).exists()]
        others = [pid for pid in seen if not _belongs_to(pid, own)]
        return others, [pid for pid in pids if pid not in seen]


def _library() -> Any:
    try:
        nvml: Any = import_module("pynvml")
    except ImportError as error:
        raise CapabilityError(
            "nvidia-ml-py is not installed", hint="pip install nvidia-ml-py"
        ) from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise CapabilityError(
            f"the NVIDIA driver does not respond: {error}", hint="check it with nvidia-smi"
        ) from error
    return nvml


def _handle(nvml: Any, uuid: str) -> Any:
    problem: object = None
    for kind in ("GPU", "MIG"):
        try:
            return nvml.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}")
        except nvml.NVMLError as error:
            problem = problem or error
    raise CapabilityError(f"the NVIDIA driver does not know GPU-{uuid}: {problem}")


def uuid_of(device: str) -> str:
    """Return the UUID of a GPU, whose number means nothing to NVML.

    Parameters
    ----------
    device : str
        ``cuda`` or ``cuda:N``, as torch counts.

    Raises
    ------
    CapabilityError
        If it cannot be found out.
    """
    from flashinfer_bench.bench.locks import physical_name

    uuid = physical_name(device).removeprefix("cuda-")
    if "-" not in uuid:
        raise CapabilityError(
            f"cannot find the UUID of {device}", hint="check the driver with nvidia-smi"
        )
    return uuid


# ------------------------------------------------------------------------------------ processes


def _belongs_to(pid: int, ancestor: int) -> bool:
    """Return whether `pid` is `ancestor` or descends from it."""
    current: Optional[int] = pid
    for _ in range(_DEEPEST):
        if current == ancestor:
            return True
        if not current:
            return False
        current = _parent(current)
    return False


def _parent(pid: int) -> Optional[int]:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
        # The name stands in brackets and may hold anything, brackets and blanks included.
        return int(text.rpartition(")")[2].split()[_AFTER_NAME_PARENT])
    except (OSError, ValueError, IndexError):
        return None


# nvml.h: nvmlClocksEventReason*
_REASONS = {
    0x001: "idle",
    0x002: "clocks_set",
    0x004: "power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "power_brake",
    0x100: "display_clocks",
}
_THROTTLES = frozenset({"hw_slowdown", "sw_thermal", "hw_thermal", "power_brake"})
_LOW = 0.75
"""Share of the nominal clock below which a device is throttled (nvbench, `has_throttled`)."""
_SM, _MEMORY, _CELSIUS = 1, 2, 0  # NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU
_MW = 1e3


class NvmlWatcher(Watcher):
    """Asks the driver's management library.

    A device counts as throttled

    - if the driver says so: slowed down by its hardware, for its temperature, by the power brake;
    - or if its SM clock is below 75 % of the nominal one, and nothing explains that: the device is
      not idle, nobody has set its clocks, and the limit of its power was not reached.

    The limit of its power is told apart, as kernels reach it by themselves: the fast samples before
    it was reached are not those to keep.

    The clock that is expected is `nominal_mhz`; by default it is the greatest.
    """

    name = "nvml"
    devices = ("cuda",)

    def start(self, device: str) -> None:
        """Find the device; see `Watcher.start`."""
        self._gpu = NvmlDevice(uuid_of(device))
        self._turn = 0
        greatest = self._gpu.number("nvmlDeviceGetMaxClockInfo", _SM)
        self._nominal = self.nominal_mhz or greatest
        self._others = set(self._gpu.strangers(os.getpid())[0])
        self._tells_reasons = self._gpu.reasons() is not None
        self._tells_clock = self._gpu.number("nvmlDeviceGetClockInfo", _SM) is not None

    def sample(self) -> Optional[Reading]:
        """Read the SM clock, the reasons, and one of the slower values in turn."""
        states = _states(self._gpu.reasons() or 0)
        values: dict[str, float] = {}
        clock = self._gpu.number("nvmlDeviceGetClockInfo", _SM)
        if clock is not None:  # that of an idle device says nothing of the calls
            values["idle_sm_mhz" if "idle" in states else "sm_mhz"] = clock
        # One of the slower values: asked for all, the device would wait too long.
        self._turn = (self._turn + 1) % len(_SLOWER)
        name, read = _SLOWER[self._turn]
        found = read(self._gpu)
        if found is not None:
            values[name] = found
        throttled = [state for state in states if state in _THROTTLES]
        low = clock is not None and self._nominal is not None and clock < _LOW * self._nominal
        if not states and low:
            throttled.append("low_clock")
        return Reading(values, tuple(throttled), tuple(states))

    def stop(self) -> Summary:
        """Look once more for other users, and let the library go; see `Watcher.stop`."""
        try:
            self._others.update(self._gpu.strangers(os.getpid())[0])
            limit = self._gpu.number("nvmlDeviceGetEnforcedPowerLimit")
        finally:
            self._gpu.close()
        facts: dict[str, Any] = {
            "nominal_sm_mhz": self._nominal,
            "power_limit_w": None if limit is None else limit / _MW,
            "other_processes": len(self._others) or None,
        }
        return Summary({key: value for key, value in facts.items() if value}, self._notes())

    def _notes(self) -> tuple[str, ...]:
        notes = []
        if self._others:
            pids = ", ".join(map(str, sorted(self._others)[:4]))
            notes.append(f"other processes use the GPU ({len(self._others)}: {pids})")
        if not (self._tells_reasons or self._tells_clock):
            notes.append("this GPU reports neither clocks nor throttling: throttled samples count")
        return tuple(notes)


def _states(bits: int) -> list[str]:
    known = [name for bit, name in _REASONS.items() if bits & bit]
    return [*known, "other"] if bits & ~sum(_REASONS) else known


def _power(gpu: NvmlDevice) -> Optional[float]:
    found = gpu.number("nvmlDeviceGetPowerUsage")
    return None if found is None else found / _MW


def _utilisation(gpu: NvmlDevice) -> Optional[float]:
    found = gpu.ask("nvmlDeviceGetUtilizationRates")
    return None if found is None else float(found.gpu)


_SLOWER: tuple[tuple[str, Callable[[NvmlDevice], Optional[float]]], ...] = (
    ("memory_mhz", lambda gpu: gpu.number("nvmlDeviceGetClockInfo", _MEMORY)),
    ("temperature_c", lambda gpu: gpu.number("nvmlDeviceGetTemperature", _CELSIUS)),
    ("power_w", _power),
    ("gpu_percent", _utilisation),
)
