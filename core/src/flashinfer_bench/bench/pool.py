"""The processes in which solutions run: starting, reusing and ending them."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Optional, TypeVar

from flashinfer_bench.bench.executors.base import CandidateError
from flashinfer_bench.errors import RunnerError
from flashinfer_bench.tensors.devices import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flashinfer_bench.bench.executors.base import Candidate, Confinement, Executor, Loaded
    from flashinfer_bench.bench.sandbox import Sandbox
    from flashinfer_bench.data import Definition, Solution

#: What a worker is for: role, definition, and for a solution its name and content hash.
WorkerKey = tuple[str, ...]

# What compiling a large source takes at its peak; torch's headers with nvcc take 3 GB.
_MEMORY_OF_A_COMPILER = 2 * 2**30
_REFERENCE = "reference"
_REST_S = 10.0
_FEW = 4  # idle workers are kept however much of a GPU's memory is taken
LAST_WORDS_S = 10.0  # how long threads may take to end once their processes are killed

T = TypeVar("T")


def solution_key(solution: Solution) -> WorkerKey:
    """Return the identity under which processes and builds of `solution` are kept."""
    return ("solution", solution.definition, solution.name, solution.hash())


class RunInterrupted(RunnerError):
    """An evaluation was interrupted because the run is ending; it has no status."""


def in_thread(
    name: str, work: Callable[..., T], *arguments: object, result: Optional[Future[T]] = None
) -> Future[T]:
    """Call in a thread of its own; unlike for an executor's, the end of the process never waits.

    Parameters
    ----------
    name : str
        The thread's name.
    work : callable
        What to call.
    *arguments : object
        What it is given.
    result : Future, optional
        Where the result goes; nothing is called if it has been cancelled by then.
    """
    future: Future[T] = result or Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work(*arguments))
        except BaseException as error:  # noqa: BLE001 - handed to the threads that wait
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class BusyCandidates:
    """The processes that work now, so that another thread can end them."""

    def __init__(self) -> None:
        self._candidates: set[Candidate] = set()
        self._lock = threading.Lock()
        self._interrupted = threading.Event()

    @property
    def interrupted(self) -> bool:
        """Whether `interrupt` has been called."""
        return self._interrupted.is_set()

    @contextmanager
    def having(self, candidate: Candidate) -> Iterator[None]:
        """Count a process in during the body of a ``with`` statement."""
        with self._lock:
            self._candidates.add(candidate)
        if self.interrupted:  # it may have come before the process was counted in
            candidate.close()
        try:
            yield
        finally:
            with self._lock:
                self._candidates.discard(candidate)

    def interrupt(self) -> None:
        """End all that are busy, and all that will be; from any thread."""
        self._interrupted.set()
        with self._lock:
            busy = list(self._candidates)
        for candidate in busy:
            candidate.close()


@dataclass(eq=False)
class Worker:
    """A candidate process together with what it has loaded.

    Attributes
    ----------
    candidate : Candidate
        The process.
    sandbox : Sandbox
        Confines it before it loads anything.
    device : str
        What it works on.
    loaded : Loaded, optional
        What it answered when the solution was loaded; None before that.
    confinement : Confinement, optional
        What holds the process back; None before anything is loaded, and without a sandbox.
    reusable : bool
        Whether the pool may keep it; set to False for one that holds much memory.
    """

    candidate: Candidate
    sandbox: Sandbox
    device: str
    confinement: Optional[Confinement] = None
    loaded: Optional[Loaded] = None
    reusable: bool = True
    _output_seen: str = ""

    def load(self, definition: Definition, solution: Solution, *, timeout_s: float) -> Loaded:
        """Build the solution, unless this process has done so for an earlier evaluation."""
        if self.loaded is None:
            self.confinement = self.sandbox.confine(
                self.candidate, definition, solution, device=self.device
            )
            self.loaded = self.candidate.load(definition, solution, timeout_s=timeout_s)
        return self.loaded

    def new_output(self) -> str:
        """Return what the process has printed since the last call of this method."""
        output, seen = self.candidate.log(), self._output_seen
        self._output_seen = output
        # Once long output is cut in the middle it no longer begins with what was there before.
        return output.removeprefix(seen) if output.startswith(seen) else output


@dataclass(eq=False)
class WorkerPool:
    """Workers on one device, each for one solution only.

    A worker goes back into the pool if nothing went wrong with it and there is room, or it is the
    reference's; whoever came first stays. Evaluations go round the same solutions again and again,
    and dropping the one that was not used for longest would then drop each of them just before its
    next turn.

    Attributes
    ----------
    executor : Executor
        Starts the processes. The pool does not close it.
    keep : int
        How many idle workers are kept at most; 0 gives every solution a fresh one.
    sandbox : Sandbox
        Confines the processes.
    """

    executor: Executor
    _: KW_ONLY
    keep: int
    sandbox: Sandbox

    def __post_init__(self) -> None:
        self._closing: list[Future[None]] = []
        # A process that has no solution yet, and what the sandbox does for it.
        self._next: Optional[Future[Candidate]] = None
        self._adopting: Optional[Future[None]] = None
        self._idle: dict[WorkerKey, Worker] = {}
        self._busy = BusyCandidates()

    @property
    def interrupted(self) -> bool:
        """Whether `interrupt` has been called."""
        return self._busy.interrupted

    @contextmanager
    def worker(self, key: WorkerKey) -> Iterator[Worker]:
        """Lend a worker for the body of a ``with`` statement.

        Parameters
        ----------
        key : tuple of str
            Identity of the solution. Workers are never lent under another key.

        Raises
        ------
        RunnerFatalError
            If no process can be started.
        """
        worker = self._take(key)
        kept = False
        try:
            with self._busy.having(worker.candidate):
                yield worker
            count = len(self._idle)
            of_reference = key[0] == _REFERENCE
            wanted = (count < self.keep or of_reference) and key not in self._idle
            kept = wanted and not self.interrupted and worker.reusable and worker.candidate.alive
            few = count < _FEW and not of_reference
            kept = kept and (few or _has_room(self.executor.device)) and _rests(worker.candidate)
        finally:
            if kept:
                self._idle[key] = worker
            else:
                self._end(worker.candidate)

    def _take(self, key: WorkerKey) -> Worker:
        worker = self._idle.pop(key, None)
        if worker is not None and not worker.candidate.alive:
            self._end(worker.candidate)
            worker = None
        if worker is None:
            self.executor.start()
            worker = Worker(self._spawned(), self.sandbox, self.executor.device)
        return worker

    def _spawned(self) -> Candidate:
        """Return a fresh process, and have the next one started while this one loads."""
        candidate = self._taken()
        if self.executor.ahead and not self.interrupted:
            self._next = in_thread("fib-next", self._spawn_ahead)
        return candidate or self.executor.spawn()

    def _spawn_ahead(self) -> Candidate:
        candidate, device = self.executor.spawn(), self.executor.device
        # It sleeps, mostly: nobody has to wait for it before something is timed.
        self._adopting = in_thread("fib-adopt", self.sandbox.adopt, candidate, device)
        return candidate

    def _taken(self) -> Optional[Candidate]:
        started, self._next = self._next, None
        if started is None or started.exception() is not None:  # another try tells
            return None
        candidate = started.result()
        if self._adopting is not None:
            self._adopting.result()
        if candidate.alive:
            return candidate
        self._end(candidate)
        return None

    def _end(self, candidate: Candidate) -> None:
        # In the background, while the next one starts: the end of a process takes as long.
        self._closing.append(in_thread("fib-close", candidate.close))

    def settle(self) -> None:
        """Wait until the workers that were given up have really ended, and the next one is up."""
        while self._closing:
            self._closing.pop().result()
        if self._next is not None:
            wait([self._next])

    def clear(self) -> None:
        """Give up all idle workers; `settle` waits until they have ended."""
        while self._idle:
            _, worker = self._idle.popitem()
            self._end(worker.candidate)
        if (candidate := self._taken()) is not None:
            self._end(candidate)

    def interrupt(self) -> None:
        """End the workers that are busy; to be called from another thread, once and for all."""
        self._busy.interrupt()


def _rests(candidate: Candidate) -> bool:
    """Stop a process that is kept, and what it has started: else it would run beside others."""
    try:
        candidate.rest(timeout_s=_REST_S)
    except CandidateError:
        return False
    return True


def _has_room(device: str) -> bool:
    """Return whether at least half of a GPU's memory is free: each process holds a context."""
    if device == "cpu":
        return True
    import torch

    if not torch.cuda.is_available():  # it works for another process, such as an executor's
        return True
    free, total = torch.cuda.mem_get_info(device)
    return free > total / 2


def default_jobs(*, spare: int = 1) -> int:
    """Return how many compilers may run at once: one for each core, as far as memory goes.

    Parameters
    ----------
    spare : int
        Number of cores to leave to others.
    """
    cores, memory = usable_cores(), _available_memory()
    room = memory // _MEMORY_OF_A_COMPILER if memory is not None else cores
    return max(1, min(cores - spare, room))


def _available_memory() -> Optional[int]:
    """Return the bytes that processes can still get, or None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split() for line in lines if line.startswith("MemAvailable:")]
    return int(found[0][1]) * 1024 if found else None
