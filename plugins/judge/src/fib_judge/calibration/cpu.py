"""What a CPU can do: memory bandwidth by size, matrix products by dtype, the shortest call."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fib_judge.calibration.passes import Probe, doubling, nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BUDGET_S = 9.0
"""Time for all measurements; starting the process and torch comes on top."""

DTYPES = ("float32", "bfloat16", "float16", "float64", "int8")
SIDES = (256, 512, 1024, 2048)

_SMALLEST = 16 << 10
_LARGEST = 2 << 30
_SLICE_S = 0.004  # of the time of one probe; at least a few repetitions are made
_REPETITIONS = 2
_LONGEST_S = 0.1  # of one call; a dtype that the CPU only emulates takes far longer
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def probes() -> list[Probe]:
    """Return the measurements, each with as many threads as solutions get and with all cores."""
    import torch

    from flashinfer_bench.tensors.devices import cpu_threads, usable_cores

    threads = sorted({cpu_threads(), usable_cores()})
    space = torch.ones(ladder()[-1] // 4, dtype=torch.float32)
    found = [Probe(("call", "cpu"), _call_rate)]
    for count in threads:
        found += [_with_threads(count, probe) for probe in _memory(space)]
        found += [
            _with_threads(count, Probe(("flops", dtype), _product(dtype, side)))
            for dtype in DTYPES
            for side in SIDES
        ]
    return found


def ladder() -> list[int]:
    """Return the sizes of working sets: doubling from 16 KiB to 4 times the last-level cache."""
    largest = min(4 * last_level_cache(), _LARGEST, max(_usable_memory() // 4, 4 * _SMALLEST))
    return doubling(_SMALLEST, largest)


def last_level_cache() -> int:
    """Return the size in bytes of the largest cache of the first core; 32 MiB if unknown."""
    sizes = []
    for file in _CACHES.glob("index*/size"):
        try:
            text = file.read_text().strip()
            sizes.append(int(text[:-1]) * _UNITS[text[-1]])
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return max(sizes, default=32 << 20)


def _usable_memory() -> int:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(free, int(_MEMORY_LIMIT.read_text()))
    except (OSError, ValueError):  # there is none, or it says "max"
        return free


def _with_threads(count: int, probe: Probe) -> Probe:
    def rate() -> float:
        import torch

        torch.set_num_threads(count)
        return probe.rate()

    return Probe(probe.key, rate)


def _memory(space: Any) -> Iterator[Probe]:
    """Read, copy and write working sets of each size."""
    import torch

    for name in ("sum", "dot", "copy", "fill"):
        for size in ladder():
            elements = min(size // 4, space.numel())
            whole = space[:elements]
            first, second = whole[: elements // 2], whole[elements // 2 : elements // 2 * 2]
            yield Probe(("bytes", size), _rate_of(_OPERATIONS[name](torch, first, second), size))


# Each touches all of a working set that is in two halves.
_OPERATIONS: dict[str, Callable[[Any, Any, Any], Callable[[], object]]] = {
    "sum": lambda torch, a, b: lambda: (torch.sum(a), torch.sum(b)),
    "dot": lambda torch, a, b: lambda: torch.dot(a, b),
    "copy": lambda torch, a, b: lambda: a.copy_(b),
    "fill": lambda torch, a, b: lambda: (a.fill_(1.0), b.fill_(1.0)),
}


def _product(dtype: str, side: int) -> Callable[[], float]:
    def rate() -> float:
        from fib_judge.calibration.passes import product

        small = _rate_of(product("cpu", dtype, SIDES[0]), 2 * SIDES[0] ** 3)()
        if 2 * side**3 / small > _LONGEST_S:
            return 0.0  # too slow to tell anything, or the machine was busy just now
        return _rate_of(product("cpu", dtype, side), 2 * side**3)()

    return rate


def _rate_of(work: Callable[[], object], amount: int) -> Callable[[], float]:
    """Return a measurement: `amount` by the shortest time that `work` takes."""

    def rate() -> float:
        return amount / (_shortest_ns(work) / 1e9)

    return rate


def _shortest_ns(work: Callable[[], object]) -> int:
    clock, shortest, count = time.perf_counter_ns, 1 << 62, 0
    end = clock() + int(_SLICE_S * 1e9)
    while count < _REPETITIONS or clock() < end:
        began = clock()
        work()
        shortest = min(shortest, clock() - began)
        count += 1
    return max(shortest, 1)


def _call_rate() -> float:
    """Return the rate of calls of nothing; the timer takes readings of the clock out, too."""
    clock = time.perf_counter_ns
    reading = min(-clock() + clock() for _ in range(255))
    return 1e9 / max(_shortest_ns(nothing) - reading, 1)
