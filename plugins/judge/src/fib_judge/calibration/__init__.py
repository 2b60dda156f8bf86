"""Ceilings on disk: one small JSON file for each device of each machine, in FIB_CACHE_PATH.

A cache may be shared by machines, so a file is named after all that its figures depend on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import signal
import subprocess
import tempfile
import threading
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Optional

import msgspec

from flashinfer_bench import env
from flashinfer_bench.errors import CapabilityError, RunnerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


GAIN = 1.1
"""A ceiling that rises by more shows that what was found before was not the best."""

# What a file may say: names and numbers within reason.
_Text = Annotated[str, msgspec.Meta(max_length=400)]
_Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e300)]
_Spread = Annotated[float, msgspec.Meta(ge=0, lt=1e3)]
_Size = Annotated[int, msgspec.Meta(gt=0, lt=10**18)]
_OF_A_TABLE = msgspec.Meta(min_length=1, max_length=256)

# In which types a product of elements of a type may be computed: in its own or a wider one, in one
# of the same width, and in the next narrower ones, because a tolerance may let that through.
_SIXTEEN = ("bfloat16", "float16")
_EIGHT = ("float8_e4m3fn", "float8_e5m2", "int8")
_FOUR = ("float4_e2m1",)
_COMPUTED_IN = {
    "float64": ("float64", "float32"),
    "float32": ("float64", "float32", *_SIXTEEN),
    **dict.fromkeys(_SIXTEEN, ("float64", "float32", *_SIXTEEN, *_EIGHT)),
    **dict.fromkeys((*_EIGHT, *_FOUR), ("float64", "float32", *_SIXTEEN, *_EIGHT, *_FOUR)),
}
_SAME_WIDTH = {
    name: names for names in (("float64",), ("float32",), _SIXTEEN, _EIGHT, _FOUR) for name in names
}


class Ceilings(msgspec.Struct, frozen=True):
    """The best that has been measured on one device.

    Attributes
    ----------
    device : str
        ``cpu`` or ``cuda:N``.
    hardware : str
        Name of the device, as in the environment of a trace.
    bytes_per_s : dict of int to float
        Most bytes that were read and written in a second, by the size of the working set in bytes.
    flops_per_s : dict of str to float
        Most operations of a matrix product in a second (a multiplication and an addition are two),
        by dtype.
    call_ms : float
        Shortest time that a call of anything took, in milliseconds.
    torch : str
        Version of torch with which it was measured.
    created : str
        When, in UTC.
    settled : bool
        Whether measuring again found nothing better. If not, the machine was busy, the ceilings may
        be far too low, and nothing may be held against them.
    process_ms, process_share : float
        Standard deviation of a latency from process to process: what is the same for all, in
        milliseconds, and what grows with it, as a share. Those of the CPU are seen in each run.
    """

    device: _Text
    hardware: _Text
    bytes_per_s: Annotated[dict[_Size, _Positive], _OF_A_TABLE] = {}
    flops_per_s: Annotated[dict[str, _Positive], _OF_A_TABLE] = {}
    call_ms: _Positive = 0.0
    torch: _Text = ""
    created: _Text = ""
    settled: bool = True
    process_ms: _Spread = 0.0
    process_share: _Spread = 0.0

    def spread_ms(self, latency_ms: float) -> float:
        """Return the standard deviation of a latency from process to process, in milliseconds."""
        return math.hypot(self.process_ms, self.process_share * latency_ms)

    def bandwidth(self, nbytes: int) -> float:
        """Return the most bytes a second for a working set of `nbytes`.

        That is the best figure of any measured set which is as large or larger, where a size
        between two steps counts as the smaller one: caches make small sets faster, and what is
        held against a latency must rather be too high. Infinity if nothing was measured.
        """
        first = max((size for size in self.bytes_per_s if size <= nbytes), default=0)
        return max((r for size, r in self.bytes_per_s.items() if size >= first), default=math.inf)

    def peak(self, *dtypes: str) -> float:
        """Return the most operations a second for a matrix product of such operands.

        The fastest type counts in which it may be computed: for each of `dtypes` its own, wider
        ones, those of the same width and the next narrower ones. Infinity if one of `dtypes` itself
        and all others of its width were not measured.
        """
        peaks = [self._peak(dtype) for dtype in dtypes]
        return max(peaks, default=math.inf)

    def _peak(self, dtype: str) -> float:
        usable = _COMPUTED_IN.get(dtype, ())
        if not any(name in self.flops_per_s for name in usable if name in _SAME_WIDTH[dtype]):
            return math.inf  # its own units may be faster than all that was measured
        return max(self.flops_per_s[name] for name in usable if name in self.flops_per_s)

    def merged(self, earlier: Ceilings) -> Ceilings:
        """Return these with the better figures of an earlier measurement of the same device.

        They are settled if these are, or if these raise no earlier ceiling by more than 10 %.
        """
        calls = [c.call_ms for c in (self, earlier) if c.call_ms > 0]
        best = msgspec.structs.replace(
            self,
            bytes_per_s=_best(self.bytes_per_s, earlier.bytes_per_s),
            flops_per_s=_best(self.flops_per_s, earlier.flops_per_s),
            call_ms=min(calls, default=0.0),
        )
        settled = self.settled or not best.exceeds(earlier)
        return msgspec.structs.replace(best, settled=settled)

    def exceeds(self, earlier: Ceilings) -> bool:
        """Return whether some ceiling is higher than an earlier one by more than 10 %."""
        wider = any(
            self.bandwidth(size) > earlier.bandwidth(size) * GAIN or not earlier.bytes_per_s
            for size in self.bytes_per_s
        )
        return wider or any(
            rate > earlier.flops_per_s.get(dtype, 0.0) * GAIN
            for dtype, rate in self.flops_per_s.items()
        )

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        found: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return found

    @classmethod
    def from_json(cls, record: Any) -> Ceilings:
        """Check what a file or a child process says.

        Raises
        ------
        ValueError
            If it is not what `to_json` writes: names and numbers within reason.
        """
        found = msgspec.convert(record, cls, str_keys=True)
        missing = {*cls.__struct_fields__[:-2]} - record.keys()  # earlier files have no spread
        if missing:
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        return found


def _best(new: Mapping[Any, float], old: Mapping[Any, float]) -> dict[Any, float]:
    return {key: max(new.get(key, 0.0), old.get(key, 0.0)) for key in sorted({*new, *old})}


logger = logging.getLogger(__name__)

FORMAT = 2
"""Version of the files; those of another version are not read.

2: the shortest call of a GPU is that of timers which take out what a pair of events costs.
"""

_MOST_BYTES = 1 << 20


def ceilings_path(device: str, hardware: str) -> Path:
    """Return the file of a device's ceilings on this machine with this torch.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``; which of several equal GPUs it is does not matter.
    hardware : str
        Its name, as in the environment of a trace.
    """
    kind = device.partition(":")[0]
    key = json.dumps([*_machine(), kind, hardware, torch_version()])
    return _folder() / f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:20]}.json"


def _folder() -> Path:
    return env.cache_path() / "calibration"


@cache
def _machine() -> tuple[str, str]:
    from flashinfer_bench.compile.machine import cpu_description

    # The name as well: machines with equal CPUs may differ in their memory.
    return cpu_description(), platform.node()


@cache
def torch_version() -> str:
    """Return the version of the torch that is installed, without importing it; maybe empty."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def load_ceilings(device: str, hardware: str) -> Optional[Ceilings]:
    """Return what ``fib calibrate`` stored for this machine and device.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``.
    hardware : str
        Name of the device, as in the environment of a trace.

    Returns
    -------
    Ceilings or None
        None if it has not run here, or if what is there cannot be read, which is logged. A file
        that has not changed is read once.
    """
    path = ceilings_path(device, hardware)
    found = _stored(path)
    if found is not None and found.hardware != hardware:
        logger.warning("%s is ignored: it describes %r", path, found.hardware)
        return None
    return found


def _stored(path: Path) -> Optional[Ceilings]:
    try:
        status = path.stat()
    except OSError:
        return None
    return _read(path, status.st_mtime_ns, status.st_size, status.st_ino)


@cache
def _read(path: Path, *version: int) -> Optional[Ceilings]:
    """Read a file once for each version of it, so that a warning comes once, too."""
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(_MOST_BYTES))
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        return Ceilings.from_json(document.get("ceilings"))
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("%s is ignored: %s; 'fib calibrate' writes a new one", path, error)
        return None


def list_ceilings() -> list[tuple[Path, Ceilings]]:
    """Return all that is stored for this machine and this torch, by file."""
    found = []
    for path in sorted(_folder().glob("*.json")):
        ceilings = _stored(path)
        if ceilings is not None and ceilings_path(ceilings.device, ceilings.hardware) == path:
            found.append((path, ceilings))
    return found


def store_ceilings(ceilings: Ceilings) -> Path:
    """Store ceilings for `load_ceilings`; readers see the old file or the new one.

    Returns
    -------
    Path
        Where they are.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    from flashinfer_bench.data.storage import replace_file

    path = ceilings_path(ceilings.device, ceilings.hardware)
    cpu, host = _machine()
    document: dict[str, Any] = {
        "format": FORMAT,
        "machine": {"cpu": cpu, "host": host},
        "ceilings": ceilings.to_json(),
    }
    replace_file(path, (json.dumps(document, indent=2) + "\n").encode())
    return path


_MODULE = "fib_judge.calibration.child"
_LAST_LINES = 5


def calibrate(
    device: str,
    *,
    on_progress: Callable[[float], None] = lambda share: None,
    budget_s: Optional[float] = None,
    timeout_s: float = 300.0,
) -> Ceilings:
    """Measure what a device can do at most; nothing is stored.

    The device is locked meanwhile, as for an evaluation. No solution takes part: the figures are
    those of torch's own operations, in a process that runs nothing else.

    Parameters
    ----------
    device : str
        ``cpu`` or ``cuda:N``.
    on_progress : callable
        Told from 0 to 1 how far it has come.
    budget_s : float, optional
        Time for the measurements in seconds; by default 9 on a CPU and 20 on a GPU.
    timeout_s : float
        After which the process is killed.

    Raises
    ------
    CapabilityError
        If the device cannot be measured here.
    RunnerError
        If the process does not end in time, or says something else than expected.
    """
    from flashinfer_bench.bench.locks import device_lock

    extra = () if budget_s is None else (budget_s,)
    with device_lock(device):
        found = _last_record(device, extra, on_progress, timeout_s)
    try:
        return Ceilings.from_json(found.get("ceilings"))
    except ValueError as error:
        raise RunnerError(
            f"{device} was measured, but the figures make no sense: {error}"
        ) from None


def _last_record(
    device: str, extra: tuple[object, ...], on_progress: Callable[[float], None], timeout_s: float
) -> dict[str, Any]:
    from flashinfer_bench.bench.executors import launch

    with (
        tempfile.TemporaryDirectory(prefix="fib-calibrate-") as folder,
        tempfile.TemporaryFile() as log,
    ):
        command = launch.command(_MODULE, device, *extra)
        with _running(device, command, Path(folder), log, timeout_s) as process:
            record = _follow(process, on_progress)
        if process.returncode or "ceilings" not in record:
            raise _failure(device, process.returncode, log, timeout_s)
        return record


@contextmanager
def _running(
    device: str, command: list[str], folder: Path, log: IO[bytes], timeout_s: float
) -> Iterator[subprocess.Popen[str]]:
    from flashinfer_bench.bench.executors import launch

    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        cwd=folder,
        env=launch.environment(folder, device),
        start_new_session=True,
    )

    def kill() -> None:  # with the processes that it has forked
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    killer = threading.Timer(timeout_s, kill)
    killer.daemon = True
    killer.start()
    try:
        with process:
            try:
                yield process
            except BaseException:
                kill()
                raise
    finally:
        killer.cancel()


def _follow(process: subprocess.Popen[str], on_progress: Callable[[float], None]) -> dict[str, Any]:
    """Return the last object that the process writes."""
    record: dict[str, Any] = {}
    assert process.stdout is not None
    for line in process.stdout:
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict):
            record = said
            if isinstance(share := said.get("share"), float):
                on_progress(min(max(share, 0.0), 1.0))
    return record


def _failure(device: str, code: int, log: IO[bytes], timeout_s: float) -> Exception:
    if code == -9:
        return RunnerError(
            f"measuring {device} was killed, or did not end in {timeout_s:g} s",
            hint="check that there is enough memory and that the device responds",
        )
    log.seek(0)
    lines = log.read().decode("utf-8", "replace").strip().splitlines()
    reason = "\n".join(lines[-_LAST_LINES:]) or f"it ended with exit code {code}"
    return CapabilityError(f"{device} cannot be measured: {reason}")
