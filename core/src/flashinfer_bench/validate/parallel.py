"""Sharing files among processes: decoding JSON is all CPU, so threads would not help."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from typing import TYPE_CHECKING, Optional, TypeVar

from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

T = TypeVar("T")

MOST_JOBS = 8
_FILE_COST = 4096  # bytes of JSON that take as long as opening a file
_WORTH = 128 << 20  # below so many bytes, starting processes takes longer than they save


def usable_cores() -> int:
    """Return how many processes are of use here."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        cores = os.cpu_count() or 1
    return min(cores, MOST_JOBS)


def _cost(path: Path) -> int:
    try:
        return path.stat().st_size + _FILE_COST
    except OSError:  # the reader will say what is wrong with it
        return _FILE_COST


def share(costs: Sequence[int], shares: int) -> list[list[int]]:
    """Divide things into `shares` parts of about equal cost; return the indices of each."""
    parts: list[list[int]] = [[] for _ in range(shares)]
    loads = [0] * shares
    for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
        least = loads.index(min(loads))
        parts[least].append(index)
        loads[least] += costs[index]
    return [sorted(part) for part in parts if part]


class Workers:
    """Maps functions over files, in this process or in several.

    Parameters
    ----------
    jobs : int, optional
        The most processes; by default as many as there are cores, where it is worth it. With 1
        everything happens here.
    """

    def __init__(self, jobs: Optional[int] = None) -> None:
        self._jobs = jobs
        self._stack = ExitStack()
        self._pool: Optional[ProcessPoolExecutor] = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def map_files(
        self, function: Callable[[Sequence[Path]], list[T]], paths: Sequence[Path]
    ) -> list[T]:
        """Call a function that can be pickled with parts of `paths`.

        Returns
        -------
        list
            One result per path, in the order of `paths`.

        Raises
        ------
        CapabilityError
            If a process was killed, for lack of memory most likely.
        """
        costs = [_cost(path) for path in paths]
        jobs = self._jobs_for(sum(costs))
        if jobs == 1 or len(paths) < 2:
            return function(paths)
        parts = share(costs, jobs)
        pool = self._started(jobs)
        futures = [pool.submit(function, [paths[index] for index in part]) for part in parts]
        results: dict[int, T] = {}
        try:
            for part, future in zip(parts, futures, strict=True):
                results.update(zip(part, future.result(), strict=True))
        except BrokenProcessPool as error:
            raise CapabilityError(
                "a process of the validation was killed", hint="try again with --jobs 1"
            ) from error
        return [results[index] for index in range(len(paths))]

    def _jobs_for(self, cost: int) -> int:
        if self._jobs is not None:
            return self._jobs
        return usable_cores() if cost >= _WORTH else 1

    def _started(self, jobs: int) -> ProcessPoolExecutor:
        if self._pool is None:
            # A fork of a process with threads may hang; a fresh one costs half a second.
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(jobs, mp_context=context)
            self._pool = self._stack.enter_context(pool)
        return self._pool
