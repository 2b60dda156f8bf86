"""What Linux tells about CPUs, read from its files; None or nothing where a file is missing."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Optional

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_STEAL = 7  # user nice system idle iowait irq softirq steal guest guest_nice: proc_stat(5)
_TIMES = 8  # guest times are part of user's
_NS, _US = 1e9, 1e6
_MOST_THREADS = 256


class CpuTimes(NamedTuple):
    """Ticks since the machine was started, summed over some CPUs.

    Attributes
    ----------
    steal : int
        In which the hypervisor ran somebody else.
    total : int
        All of them.
    """

    steal: int
    total: int


class Switches(NamedTuple):
    """How often threads have given their CPU away, and how often it was taken from them."""

    voluntary: int
    involuntary: int


def read_text(path: Path) -> str:
    """Return the content of a file; nothing if it cannot be read."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def number_in(path: Path) -> Optional[int]:
    """Return the number that is all of a file's content."""
    with suppress(ValueError):
        return int(read_text(path))
    return None


def cpu_times(root: Path, cpus: Iterable[int]) -> Optional[CpuTimes]:
    """Return the times of some CPUs from ``/proc/stat``."""
    wanted = {f"cpu{cpu}" for cpu in cpus}
    steal = total = found = 0
    for line in read_text(root / "proc/stat").splitlines():
        name, *fields = line.split()[: _TIMES + 1] or [""]
        if name in wanted and len(fields) == _TIMES and all(map(str.isdecimal, fields)):
            ticks = [int(field) for field in fields]
            steal, total, found = steal + ticks[_STEAL], total + sum(ticks), found + 1
    return CpuTimes(steal, total) if found else None


def switches(root: Path, pid: str) -> Optional[Switches]:
    """Return the context switches of all threads of a process."""
    voluntary = involuntary = found = 0
    with suppress(OSError):
        threads = sorted((root / "proc" / pid / "task").iterdir())[:_MOST_THREADS]
        for thread in threads:
            counts = pairs(read_text(thread / "status"))
            if "nonvoluntary_ctxt_switches" in counts:
                voluntary += counts.get("voluntary_ctxt_switches", 0)
                involuntary += counts["nonvoluntary_ctxt_switches"]
                found += 1
    return Switches(voluntary, involuntary) if found else None


def pairs(text: str) -> dict[str, int]:
    """Return the lines of a name and a number, with or without a colon between them."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.replace(":", " ").partition(" ")
        if value.strip().isdecimal():
            found[name] = int(value)
    return found


def quota_files(root: Path) -> list[Path]:
    """Return the ``cpu.stat`` of this process's control group and of all that it is part of.

    A limit may be set on any of them. In a container the group's own path may not be visible; then
    the root of what is visible is the group.
    """
    base = root / "sys/fs/cgroup"
    found = []
    for line in read_text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mounts = [base, base / "unified"]
        elif "cpu" in controllers.split(","):
            mounts = [base / controllers, base / "cpu"]
        else:
            continue
        for mount in mounts:
            group = mount / path.strip().lstrip("/")
            found += [place / "cpu.stat" for place in _up_to(group, mount)]
    return [path for path in dict.fromkeys(found) if path.is_file()]


def _up_to(group: Path, mount: Path) -> list[Path]:
    return [place for place in (group, *group.parents) if place == mount or mount in place.parents]


def quota_stalls_s(files: Iterable[Path]) -> Optional[float]:
    """Return the seconds for which a CPU quota has held processes back.

    The longest of the groups' times: a group that holds another one may have no limit of its own.
    """
    times = [stalled for file in files if (stalled := _stalled(pairs(read_text(file)))) is not None]
    return max(times, default=None)


def _stalled(stat: Mapping[str, int]) -> Optional[float]:
    if "throttled_usec" in stat:  # version 2
        return stat["throttled_usec"] / _US
    if "throttled_time" in stat:  # version 1
        return stat["throttled_time"] / _NS
    return None


class KeptOpen:
    """Files of the system that hold one number each, and are read often.

    Parameters
    ----------
    paths : iterable of Path
        The files; those that cannot be opened are left out.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._descriptors: list[int] = []
        for path in paths:
            with suppress(OSError):
                self._descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def __len__(self) -> int:
        return len(self._descriptors)

    def read(self, index: int) -> Optional[int]:
        """Return the number that is now in file `index`, counted from 0 and around."""
        if not self._descriptors:
            return None
        with suppress(OSError, ValueError):
            return int(os.pread(self._descriptors[index % len(self)], 32, 0))
        return None

    def total(self) -> Optional[int]:
        """Return the sum of all numbers; None if there are none."""
        numbers = [number for i in range(len(self)) if (number := self.read(i)) is not None]
        return sum(numbers) if numbers else None

    def close(self) -> None:
        """Close them."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def __del__(self) -> None:
        """Close them where a timing that failed has not."""
        self.close()
