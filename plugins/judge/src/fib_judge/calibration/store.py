"""Ceilings on disk: one small JSON file for each device of each machine, in FIB_CACHE_PATH.

A cache may be shared by machines, so a file is named after all that its figures depend on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
from functools import cache
from typing import TYPE_CHECKING, Any, Optional

from fib_judge.calibration.ceilings import Ceilings
from flashinfer_bench import env

if TYPE_CHECKING:
    from pathlib import Path

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
        logger.warning("%s is ignored: it is about %r", path, found.hardware)
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
        logger.warning("%s is ignored: %s; 'fib calibrate' makes it anew", path, error)
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
