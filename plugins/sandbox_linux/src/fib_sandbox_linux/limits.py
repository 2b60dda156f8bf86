"""Limits on what a candidate may use up."""

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
_MEMORY_SHARE = 0.5  # its judge holds the same inputs, and outputs besides
_PROCESSES_PER_CORE, _LEAST_PROCESSES = 64, 1024
_FILE_BYTES = 4 * _GIB
_CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


@dataclass(frozen=True)
class Limits:
    """What a candidate may use up at most.

    Attributes
    ----------
    memory_bytes : int
        Memory that each of its processes may allocate; not limited where it works on a GPU, whose
        driver reserves far more addresses than there is memory.
    file_bytes : int
        Size of each file that it writes.
    processes : int
        Processes and threads at the same time.
    """

    memory_bytes: int
    file_bytes: int
    processes: int

    @classmethod
    def of_this_machine(cls) -> Limits:
        """Return what the environment says, or what is fit for this machine."""
        memory, file = env.sandbox_memory_bytes(), env.sandbox_file_bytes()
        cores = os.cpu_count() or 1
        return cls(
            memory_bytes=memory or int(_memory_here() * _MEMORY_SHARE),
            file_bytes=file or _FILE_BYTES,
            processes=env.sandbox_processes() or max(_LEAST_PROCESSES, cores * _PROCESSES_PER_CORE),
        )


def _memory_here() -> int:
    """Return the bytes of memory that the machine, or the container, has."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _CGROUP_LIMITS:
        try:
            found.append(int(Path(name).read_text()))
        except (OSError, ValueError):  # "max", among others
            continue
    return min(found)


def limit_files(limits: Limits) -> None:
    """Write no core dump and no large file, and open no more files than anyone needs."""
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    _lower(resource.RLIMIT_NOFILE, _MOST_FILES)


def limit_memory(limits: Limits) -> None:
    """Have allocations fail that exceed `Limits.memory_bytes` in one process.

    Where a control group can be made, too, all of its processes and what they share count together.
    """
    _lower(resource.RLIMIT_DATA, limits.memory_bytes)
    with suppress(Unavailable):
        join_group("memory", limits.memory_bytes)


def limit_processes(limits: Limits) -> None:
    """Have forks fail when there are so many processes more of this user than there are now.

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
                    # A folder has two links, and one more for each folder in it.
                    total += Path(entry.path, "task").stat().st_nlink - 2
            except OSError:  # it has just ended
                continue
    return total


def _lower(what: int, value: int) -> None:
    """Set a limit for good, unless it is lower already."""
    _, hard = resource.getrlimit(what)
    wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (wanted, wanted))


_ATTEMPTS = 3  # another candidate may sweep a new group away before anyone is in it
_FILES = {  # of the older hierarchies, and of the newer one
    "pids": ("pids.max", "pids.max"),
    "memory": ("memory.limit_in_bytes", "memory.max"),
    "freezer": ("freezer.state", "cgroup.freeze"),
}


def join_group(controller: str, limit: Optional[int] = None) -> None:
    """Move this process to a control group of its own.

    Groups of candidates that have ended are removed meanwhile.

    Parameters
    ----------
    controller : str
        What the group is for: ``pids``, ``memory`` or ``freezer``.
    limit : int, optional
        How many processes and threads, or bytes of memory, it may have in it.

    Raises
    ------
    Unavailable
        If none can be made here.
    """
    reason = f"no control group has {controller!r}"
    for parent, file in _groups_of_this_process(controller) * _ATTEMPTS:
        name = CONTROL_GROUP.format(pid=os.getpid())
        group = parent if parent.name == name else parent / name
        try:
            _sweep(parent)
            group.mkdir(exist_ok=True)
            if limit is not None:
                (group / file).write_text(str(limit))
            (group / file).read_text()
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError as error:
            reason = f"no control group can be created: {error.strerror}"
            _remove(group)
        else:
            return
    raise Unavailable(reason)


def remove_empty_groups() -> None:
    """Remove the groups of candidates that have ended; never raises."""
    for controller in _FILES:
        for parent, _ in _groups_of_this_process(controller):
            _sweep(parent)


def _groups_of_this_process(controller: str) -> list[tuple[Path, str]]:
    """Return the groups that count this process, each with the file of the controller."""
    groups, files = control_groups(), _FILES[controller]
    found = [(groups.get(name), file) for name, file in zip((controller, ""), files, strict=True)]
    # The newer freezer ends what is frozen when it is killed.
    found.sort(key=lambda item: item[1] != "cgroup.freeze")
    return [(group, file) for group, file in found if group is not None]


def _sweep(parent: Path) -> None:
    for group in parent.glob(CONTROL_GROUP.format(pid="*")):
        _remove(group)


def _remove(group: Path) -> None:
    try:
        group.rmdir()
    except OSError:  # somebody is in there
        _let_end(group)


def _let_end(group: Path) -> None:
    """Thaw a group whose processes have been killed while they were frozen."""
    with suppress(OSError, IndexError):
        first = (group / "cgroup.procs").read_text().split()[0]
        status = Path("/proc", first, "status").read_text()
        pending = int(status.partition("ShdPnd:")[2].split()[0], 16)
        freezer = Freezer.of_group(group)
        if freezer is not None and pending >> (signal.SIGKILL - 1) & 1:
            freezer.thaw()
