"""One GPU, asked through the driver's management library (NVML), which makes no CUDA context."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Optional

from flashinfer_bench.errors import CapabilityError

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
        seen = [pid for pid in pids if _exists(pid)]
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
            f"the NVIDIA driver cannot be asked: {error}", hint="check it with nvidia-smi"
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
            f"no UUID of {device} can be found out", hint="check the driver with nvidia-smi"
        )
    return uuid


# ------------------------------------------------------------------------------------ processes


def _exists(pid: int) -> bool:
    """Return whether a process of that number can be seen from here."""
    return (_PROC / str(pid)).exists()


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
