"""Having a device measured by a process of its own."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Optional

from fib_judge.calibration.ceilings import Ceilings
from flashinfer_bench.errors import CapabilityError, RunnerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    from flashinfer_bench.bench.locks import DeviceLock

    extra = () if budget_s is None else (budget_s,)
    with DeviceLock(device).held():
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
        with _running(command, Path(folder), log, timeout_s) as process:
            record = _follow(process, on_progress)
        if process.returncode or "ceilings" not in record:
            raise _failure(device, process.returncode, log, timeout_s)
        return record


@contextmanager
def _running(
    command: list[str], folder: Path, log: IO[bytes], timeout_s: float
) -> Iterator[subprocess.Popen[str]]:
    from flashinfer_bench.bench.executors import launch

    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        cwd=folder,
        env=launch.environment(folder),
    )
    killer = threading.Timer(timeout_s, process.kill)
    killer.daemon = True
    killer.start()
    try:
        with process:
            try:
                yield process
            except BaseException:
                process.kill()
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
            hint="see whether there is enough memory, and whether the device answers",
        )
    log.seek(0)
    lines = log.read().decode("utf-8", "replace").strip().splitlines()
    reason = "\n".join(lines[-_LAST_LINES:]) or f"it ended with exit code {code}"
    return CapabilityError(f"{device} cannot be measured: {reason}")
