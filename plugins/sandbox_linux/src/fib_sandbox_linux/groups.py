"""Control groups: the only limit on the number of processes that holds for root, too."""

from __future__ import annotations

import os
from pathlib import Path

from fib_sandbox_linux.system import Unavailable

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "fib-candidate-"
_ATTEMPTS = 3  # another candidate may sweep a new group away before anyone is in it


def join_group(processes: int) -> None:
    """Move this process to a control group of its own, with a number of processes at most.

    Groups of candidates that have ended are removed meanwhile.

    Parameters
    ----------
    processes : int
        How many processes and threads it may have in it.

    Raises
    ------
    Unavailable
        If none can be made here.
    """
    reason = "no control group counts processes"
    for parent in _groups_of_this_process() * _ATTEMPTS:
        group = parent / f"{_PREFIX}{os.getpid()}"
        try:
            _sweep(parent)
            group.mkdir(exist_ok=True)
            (group / "pids.max").write_text(str(processes))
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError as error:
            reason = f"no control group can be made: {error.strerror}"
            _remove(group)
        else:
            return
    raise Unavailable(reason)


def remove_empty_groups() -> None:
    """Remove the groups of candidates that have ended; never raises."""
    for parent in _groups_of_this_process():
        _sweep(parent)


def _groups_of_this_process() -> list[Path]:
    """Return the groups that count this process, in the old hierarchy and in the new one."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if "pids" in controllers.split(","):
            found.append(Path(_ROOT / "pids", path.lstrip("/")))
        elif not controllers:
            found.append(Path(_ROOT, path.lstrip("/")))
    # Another file system may be mounted there.
    return [path for path in found if (path / "cgroup.procs").exists()]


def _sweep(parent: Path) -> None:
    for group in parent.glob(f"{_PREFIX}*"):
        _remove(group)


def _remove(group: Path) -> None:
    try:
        group.rmdir()
    except OSError:  # somebody is in there
        return
