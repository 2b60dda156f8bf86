"""Limits on the resources of a candidate."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from fib_sandbox_linux.system import Unavailable
from flashinfer_bench import env
from flashinfer_bench.bench.candidate.processes import CONTROL_GROUP, Freezer, control_groups

_GIB = 2**30
_MOST_FILES = 65536
_MEMORY_SHARE = 0.5  # the judge holds the same inputs, and outputs as well
_PROCESSES_PER_CORE, _LEAST_PROCESSES = 64, 1024
_FILE_BYTES = 4 * _GIB
_CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


@dataclass(frozen=True)
class Limits:
    """Maximum resources of a candidate.

    Attributes
    ----------
    memory_bytes : int
        Memory that each of its processes may allocate; unlimited on a GPU, whose driver reserves
        far more address space than there is memory.
    file_bytes : int
        Size of each file that it writes.
    processes : int
        Number of concurrent processes and threads.
    """

    memory_bytes: int
    file_bytes: int
    processes: int

    @classmethod
    def of_this_machine(cls) -> Limits:
        """Return the limits from the environment variables, or defaults for this machine."""
        memory, file = env.sandbox_memory_bytes(), env.sandbox_file_bytes()
        cores = os.cpu_count() or 1
        return cls(
            memory_bytes=memory or int(_memory_here() * _MEMORY_SHARE),
            file_bytes=file or _FILE_BYTES,
            processes=env.sandbox_processes() or max(_LEAST_PROCESSES, cores * _PROCESSES_PER_CORE),
        )


def _memory_here() -> int:
    """Return the memory of the machine or container, in bytes."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _CGROUP_LIMITS:
        try:
            found.append(int(Path(name).read_text()))
        except (OSError, ValueError):  # for example "max"
            continue
    return min(found)


def limit_files(limits: Limits) -> None:
    """Forbid core dumps and large files, and limit the number of open files."""
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    _lower(resource.RLIMIT_NOFILE, _MOST_FILES)


def limit_memory(limits: Limits) -> None:
    """Make allocations fail that would exceed `Limits.memory_bytes` in one process.

    If a control group can be created, the limit also covers all processes and their shared memory.
    """
    _lower(resource.RLIMIT_DATA, limits.memory_bytes)
    with suppress(Unavailable):
        join_group("memory", limits.memory_bytes)


def limit_processes(limits: Limits) -> None:
    """Make forks fail if this user has too many more processes than now.

    Raises
    ------
    Unavailable
        For root, whose processes are not counted.
    """
    if os.getuid() == 0:
        raise Unavailable("the processes of root are not counted")
    _lower(resource.RLIMIT_NPROC, _threads_of(os.getuid()) + limits.processes)


def _threads_of(user: int) -> int:
    total = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == user:
                    # A folder has two links, plus one per subfolder.
                    total += Path(entry.path, "task").stat().st_nlink - 2
            except OSError:  # the process has just ended
                continue
    return total


def _lower(what: int, value: int) -> None:
    """Lower a limit permanently, unless it is lower already."""
    _, hard = resource.getrlimit(what)
    wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (wanted, wanted))


_ATTEMPTS = 3  # another candidate may remove a new, still empty group
_FILES = {  # of cgroup v1 and v2
    "pids": ("pids.max", "pids.max"),
    "memory": ("memory.limit_in_bytes", "memory.max"),
    "freezer": ("freezer.state", "cgroup.freeze"),
}


def join_group(controller: str, limit: Optional[int] = None, *, pid: Optional[int] = None) -> None:
    """Move a process to its own control group, unless it is there.

    Groups of candidates that have ended are removed at the same time.

    Parameters
    ----------
    controller : str
        Controller of the group: ``pids``, ``memory`` or ``freezer``.
    limit : int, optional
        Maximum number of processes and threads, or bytes of memory, in the group.
    pid : int, optional
        The process; by default this one.

    Raises
    ------
    Unavailable
        If no group can be created here.
    """
    reason = f"no control group has {controller!r}"
    own = os.getpid() if pid is None else pid
    for parent, file in _groups_of(own, controller) * _ATTEMPTS:
        name = CONTROL_GROUP.format(pid=own)
        group = parent if parent.name == name else parent / name
        try:
            _sweep(parent)
            group.mkdir(exist_ok=True)
            if limit is not None:
                (group / file).write_text(str(limit))
            (group / file).read_text()
            if group != parent:  # it takes the kernel milliseconds
                (group / "cgroup.procs").write_text(str(own))
        except OSError as error:
            reason = f"no control group can be created: {error.strerror}"
            _remove(group)
        else:
            return
    raise Unavailable(reason)


def remove_empty_groups() -> None:
    """Remove the groups of candidates that have ended; never raises."""
    for controller in _FILES:
        for parent, _ in _groups_of(os.getpid(), controller):
            _sweep(parent)


def _groups_of(pid: int, controller: str) -> list[tuple[Path, str]]:
    """Return the groups that contain a process, each with the file of the controller."""
    groups, files = control_groups(pid), _FILES[controller]
    found = [(groups.get(name), file) for name, file in zip((controller, ""), files, strict=True)]
    # The freezer of cgroup v2 lets killed processes end while frozen.
    found.sort(key=lambda item: item[1] != "cgroup.freeze")
    return [(group, file) for group, file in found if group is not None]


def _sweep(parent: Path) -> None:
    for group in parent.glob(CONTROL_GROUP.format(pid="*")):
        _remove(group)


def _remove(group: Path) -> None:
    try:
        group.rmdir()
    except OSError:  # the group is not empty
        _let_end(group)


def _let_end(group: Path) -> None:
    """Thaw a group whose processes were killed while frozen."""
    with suppress(OSError, IndexError):
        first = (group / "cgroup.procs").read_text().split()[0]
        status = Path("/proc", first, "status").read_text()
        pending = int(status.partition("ShdPnd:")[2].split()[0], 16)
        freezer = Freezer.of_group(group)
        if freezer is not None and pending >> (signal.SIGKILL - 1) & 1:
            freezer.thaw()
