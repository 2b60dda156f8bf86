"""Frequency, load and what is taken from this machine's CPUs by others, as Linux tells it."""

from __future__ import annotations

import math
import os
import re
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from fib_judge.watch.base import Reading, Summary, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_STEAL = 7  # user nice system idle iowait irq softirq steal guest guest_nice: proc_stat(5)
_TIMES = 8  # guest times are part of user's
_NS, _US = 1e9, 1e6
_MOST_THREADS = 256
_SWITCHES = re.compile(r"^(voluntary|nonvoluntary)_ctxt_switches:\s*(\d+)$", re.MULTILINE)


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


def cpu_times(root: Path, cpus: Iterable[int]) -> dict[str, float]:
    """Return the ticks of some CPUs, and those in which the hypervisor ran somebody else."""
    wanted = {f"cpu{cpu}" for cpu in cpus}
    steal = total = 0
    for line in read_text(root / "proc/stat").splitlines():
        name, *fields = line.split()[: _TIMES + 1] or [""]
        if name in wanted and len(fields) == _TIMES and all(map(str.isdecimal, fields)):
            ticks = [int(field) for field in fields]
            steal, total = steal + ticks[_STEAL], total + sum(ticks)
    return {"steal": steal, "ticks": total} if total else {}


def switches(root: Path, pid: str) -> dict[str, float]:
    """Return how often a process's threads gave their CPU away, and how often it was taken."""
    found: Counter[str] = Counter()
    with suppress(OSError):
        for thread in sorted((root / "proc" / pid / "task").iterdir())[:_MOST_THREADS]:
            for kind, count in _SWITCHES.findall(read_text(thread / "status")):
                found[kind] += int(count)
    if "nonvoluntary" not in found:
        return {}
    both = found["voluntary"], found["nonvoluntary"]
    return {"voluntary_switches": both[0], "involuntary_switches": both[1]}


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
            found += [
                place / "cpu.stat"
                for place in (group, *group.parents)
                if place == mount or mount in place.parents
            ]
    return [path for path in dict.fromkeys(found) if path.is_file()]


def quota_stalls_s(files: Iterable[Path]) -> Optional[float]:
    """Return the seconds for which a CPU quota has held processes back.

    The longest of the groups' times: a group that holds another one may have no limit of its own.
    """
    times = []
    for file in files:
        counts = pairs(read_text(file))
        if "throttled_usec" in counts:  # version 2
            times.append(counts["throttled_usec"] / _US)
        elif "throttled_time" in counts:  # version 1
            times.append(counts["throttled_time"] / _NS)
    return max(times, default=None)


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


_FEW = 8  # CPUs whose frequency is looked at, one at a time: some systems need 10 µs for each
_LOAD_EVERY_S = 5.0  # as often as Linux does
_KHZ = 1e3
_NOTABLE_STEAL, _NOTABLE_STALL = 0.02, 0.01
_DIGITS = 4


class CpuWatcher(Watcher):
    """Reads ``/proc``, ``/sys`` and the control group.

    Only one thing counts as throttling: that the processor has slowed down for its temperature, as
    its own counters tell (Intel). What the hypervisor takes is reported, and so are stalls by a CPU
    quota: a solution with many threads brings those about itself.

    Parameters
    ----------
    root : Path
        Where ``proc`` and ``sys`` are.
    clock : callable
        Tells the time in seconds.
    """

    name = "cpu"
    devices = ("cpu", "cuda")

    def __init__(
        self,
        *,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._clock = clock

    def start(self, device: str) -> None:
        """Remember the counts; see `Watcher.start`."""
        self._is_timed = device.partition(":")[0] == "cpu"
        self._cpus = _allowed_cpus()
        places = [self._root / f"sys/devices/system/cpu/cpu{cpu}" for cpu in self._cpus]
        self._frequencies = KeptOpen(place / "cpufreq/scaling_cur_freq" for place in places[:_FEW])
        self._heat = KeptOpen(_heat_counters(places))
        self._governors = {
            read_text(place / "cpufreq/scaling_governor").strip() for place in places
        }
        self._quota = quota_files(self._root)
        self._slowdowns = self._heat.total()
        self._turn = 0
        self._load, self._load_due = _load(), -math.inf
        self._begin = self._count()

    def sample(self) -> Optional[Reading]:
        """Read the load, the frequency of one CPU, and the counters of slow-downs."""
        values: dict[str, float] = {}
        self._turn += 1
        frequency = self._frequencies.read(self._turn)
        if frequency is not None:
            values["frequency_mhz"] = frequency / _KHZ
        now = self._clock()
        if now >= self._load_due:
            self._load_due, load = now + _LOAD_EVERY_S, _load()
            if load is not None:
                values["load"] = load
        slowdowns, before = self._heat.total(), self._slowdowns
        self._slowdowns = slowdowns
        hot = slowdowns is not None and before is not None and slowdowns > before
        thermal = ("cpu_thermal",) if hot else ()
        return Reading(values, thermal) if self._is_timed else Reading(values, states=thermal)

    def stop(self) -> Summary:
        """Say what has been added to the counts; see `Watcher.stop`."""
        self._frequencies.close()
        self._heat.close()
        end = self._count()
        grown = {name: max(end[name] - self._begin[name], 0) for name in self._begin if name in end}
        steal = stall = None
        if grown.get("ticks"):
            steal = round(grown["steal"] / grown["ticks"], _DIGITS)
        if "stalls_s" in grown and grown["at_s"]:
            # Above 1 if threads on several CPUs were stalled.
            stall = round(grown["stalls_s"] / grown["at_s"], _DIGITS)
        facts: dict[str, Any] = {
            "cpus": len(self._cpus),
            "governor": ", ".join(sorted(self._governors - {""})) or None,
            "steal_share": steal,
            "quota_stalls": stall,
            **{name: count for name, count in grown.items() if name.endswith("_switches")},
        }
        known = {key: value for key, value in facts.items() if value is not None}
        return Summary(known, self._notes(steal, stall))

    def _count(self) -> dict[str, float]:
        """Return counts that only grow, as far as they are known."""
        found = {"at_s": self._clock(), **cpu_times(self._root, self._cpus)}
        stalls_s = quota_stalls_s(self._quota)
        if stalls_s is not None:
            found["stalls_s"] = stalls_s
        return {**found, **switches(self._root, "self")}

    def _notes(self, steal: Optional[float], stall: Optional[float]) -> tuple[str, ...]:
        notes = []
        if steal is not None and steal > _NOTABLE_STEAL:
            notes.append(f"the hypervisor took {steal:.1%} of the CPU time")
        if stall is not None and stall > _NOTABLE_STALL:
            notes.append(f"a CPU quota held threads back for {stall:.2g} s in each second")
        if self._load is not None and self._load > len(self._cpus):
            notes.append(f"the load was {self._load:.1f} on {len(self._cpus)} CPUs before timing")
        return tuple(notes)


def _allowed_cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _load() -> Optional[float]:
    """Return the average number of tasks that run or want to, over the last minute."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _heat_counters(places: list[Path]) -> list[Path]:
    """Return the files that count thermal slow-downs: one of each package, and of a few cores."""
    packages = {number_in(place / "topology/physical_package_id"): place for place in places}
    of_packages = [place / "thermal_throttle/package_throttle_count" for place in packages.values()]
    return of_packages + [place / "thermal_throttle/core_throttle_count" for place in places[:_FEW]]
