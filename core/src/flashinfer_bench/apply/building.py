"""From the name of a solution to what can be called: when it is first needed, or ahead."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, Optional, Protocol

from flashinfer_bench.errors import (
    BuildCapabilityError,
    BuildError,
    ConfigError,
    DataError,
    FibError,
    StorageError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flashinfer_bench.compile import BuilderRegistry, Runnable
    from flashinfer_bench.data import Definition, Solution

    OnBuilt = Callable[[str, Optional[Exception]], None]
    Results = SimpleQueue[tuple[str, Optional[Exception]]]

_LOOK_S = 0.5  # how often those who wait look up: Ctrl-C gets through then on every platform


class Source(Protocol):
    """Where definitions and solutions are read from, such as the `source` of a table."""

    def definition(self, name: str) -> Definition:
        """Return the definition of that name."""
        ...

    def solution(self, name: str) -> Solution:
        """Return the solution of that name."""
        ...


class _Failure(NamedTuple):
    """Why there is no build."""

    kind: type[BuildError]
    message: str
    hint: Optional[str]
    log: str

    def error(self) -> BuildError:
        """Return a new exception: raising one object again would let its traceback grow."""
        return self.kind(self.message, hint=self.hint, log=self.log)


class _Build:
    """One solution: not built yet, being built, built, or failed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.builder: Optional[int] = None  # the thread that is at it
        self.runnable: Optional[Runnable] = None
        self.failure: Optional[_Failure] = None

    def ready(self) -> Optional[Runnable]:
        """Return what was built, unless it has been cleaned up elsewhere."""
        runnable = self.runnable
        return None if runnable is None or runnable.closed else runnable


class Builds:
    """The solutions of a dataset, built once for each and kept.

    Everything may be called from several threads. A solution that cannot be built costs itself
    only; the reason is kept, and it is not tried again on the way of a call.

    Parameters
    ----------
    source : Source
        Gives definitions and solutions by name; may raise anything for what it cannot read.
    registry : BuilderRegistry, optional
        Builds them. Default: that of the process, which keeps builds of the same content for all.
    """

    def __init__(self, source: Source, registry: Optional[BuilderRegistry] = None) -> None:
        self._source = source
        self._registry = registry
        self._builds: dict[str, _Build] = {}
        self._lock = threading.Lock()
        self._closed = False

    def get(self, solution_name: str) -> Runnable:
        """Return a solution, built; of several threads that want the same, one builds it.

        Parameters
        ----------
        solution_name : str
            Name of the solution.

        Returns
        -------
        Runnable
            The same object each time, until it is cleaned up.

        Raises
        ------
        BuildError
            If there is no such solution, it cannot be read, or it cannot be built, now or before;
            if this thread is just building it; if it is not built yet after `close`.
        BuildCapabilityError
            If this machine lacks something for it; `ahead` would try again.
        """
        build = self._builds.get(solution_name) or self._entry(solution_name)
        return build.ready() or self._build(solution_name, build, again=False)

    def ahead(
        self,
        names: Iterable[str],
        jobs: Optional[int] = None,
        on_built: Optional[OnBuilt] = None,
    ) -> dict[str, Exception]:
        """Build several solutions at the same time, the first ones first, and wait for them.

        What failed earlier for lack of something on this machine is tried again. If this is
        interrupted, by Ctrl-C or by `on_built`, no further build is begun. One that has begun goes
        on in a thread that keeps nobody waiting, not even the end of the process.

        Parameters
        ----------
        names : iterable of str
            Names of solutions.
        jobs : int, optional
            How many at the same time. Default: one for each core, as far as memory goes.
        on_built : callable, optional
            Told, in this thread, of each that is done: its name, and why it failed or None.

        Returns
        -------
        dict of str to Exception
            Why each that failed did, by name.

        Raises
        ------
        ConfigError
            If `jobs` is not allowed.
        """
        todo = deque(dict.fromkeys(names))
        left, stop = len(todo), threading.Event()
        results: Results = SimpleQueue()
        failures: dict[str, Exception] = {}

        def work() -> None:
            while todo and not stop.is_set():
                name = _next(todo)
                if name is not None:
                    results.put((name, self._attempt(name)))

        try:
            if not _start_threads(work, min(_checked_jobs(jobs), left)):
                work()
            for _ in range(left):
                name, error = _wait(results)
                if error is not None:
                    failures[name] = error
                if on_built is not None:
                    on_built(name, error)
        finally:
            stop.set()
        return failures

    @property
    def failed(self) -> dict[str, str]:
        """Why each solution that could not be built could not, by name."""
        builds = dict(self._builds)
        reasons = {name: build.failure for name, build in builds.items()}
        return {name: reason.message for name, reason in reasons.items() if reason is not None}

    def close(self) -> None:
        """Begin no further build. What is built stays: others may use it, and calls may run."""
        self._closed = True

    def _entry(self, name: str) -> _Build:
        with self._lock:
            return self._builds.setdefault(name, _Build())

    def _build(self, name: str, build: _Build, *, again: bool) -> Runnable:
        if build.builder == threading.get_ident():
            # Its module calls, when it is imported, what it is to be substituted for.
            raise BuildError(f"solution {name!r} is needed while it is being built")
        with build.lock:
            ready = build.ready()
            if ready is not None:
                return ready
            if build.failure is not None and not (again and _of_machine(build.failure)):
                raise build.failure.error()
            if self._closed:
                raise BuildError(f"solution {name!r} is not built: this runtime has been closed")
            build.builder = threading.get_ident()
            try:
                build.runnable, build.failure = self._make(name), None
                return build.runnable
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a builder is a plugin
                build.failure = _failure(name, error)
            finally:
                build.builder = None
            raise build.failure.error()

    def _make(self, name: str) -> Runnable:
        solution = self._source.solution(name)
        definition = self._source.definition(solution.definition)
        return self._builders().build(definition, solution)

    def _builders(self) -> BuilderRegistry:
        if self._registry is None:
            from flashinfer_bench.compile import default_registry

            self._registry = default_registry()
        return self._registry

    def _attempt(self, name: str) -> Optional[Exception]:
        """Build in a thread of its own, whatever comes."""
        build = self._entry(name)
        try:
            self._build(name, build, again=True)
        except Exception as error:  # noqa: BLE001 - it is what is asked for
            return error
        except BaseException as error:  # noqa: BLE001 - a module may raise KeyboardInterrupt, too
            build.failure = _failure(name, error)
            return build.failure.error()
        return None


def _start_threads(work: Callable[[], None], count: int) -> int:
    """Start up to `count` threads, as many as the system allows; return how many."""
    for index in range(count):
        try:
            threading.Thread(target=work, name=f"fib-apply-build-{index}", daemon=True).start()
        except RuntimeError:
            return index
    return count


def _next(todo: deque[str]) -> Optional[str]:
    try:
        return todo.popleft()
    except IndexError:  # another thread was quicker
        return None


def _wait(results: Results) -> tuple[str, Optional[Exception]]:
    while True:
        try:
            return results.get(timeout=_LOOK_S)
        except Empty:
            continue


def _checked_jobs(jobs: Optional[int]) -> int:
    if jobs is None:
        from flashinfer_bench.bench.crew import default_jobs

        return default_jobs()
    if type(jobs) is not int or jobs < 1:
        raise ConfigError(f"jobs={jobs!r} is not allowed; give a whole number from 1 on, or None")
    return jobs


def _of_machine(failure: _Failure) -> bool:
    return issubclass(failure.kind, BuildCapabilityError)


def _failure(name: str, error: BaseException) -> _Failure:
    """Return what is kept of an error: no exception, which would keep frames and inputs alive."""
    if isinstance(error, BuildError):
        lacking = isinstance(error, BuildCapabilityError)
        kind = BuildCapabilityError if lacking else BuildError
        return _Failure(kind, error.message, error.hint, error.log)
    if isinstance(error, StorageError):
        return _Failure(BuildCapabilityError, error.message, error.hint, "")
    if isinstance(error, FibError):  # of the source
        place = f"{error.where}: " if isinstance(error, DataError) and error.where else ""
        message = f"solution {name!r} cannot be read: {place}{error.message}"
        return _Failure(BuildError, message, error.hint, "")
    told = "".join(traceback.format_exception(error))
    reason = f"{type(error).__name__}: {error}"
    return _Failure(BuildError, f"solution {name!r} cannot be built: {reason}", None, told)
