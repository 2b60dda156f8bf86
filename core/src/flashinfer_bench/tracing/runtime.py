"""`TracingRuntime`, which records calls for a dataset; started by `enable_tracing`."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench import env
from flashinfer_bench._lazy import old_names, old_parameters
from flashinfer_bench.data import layout
from flashinfer_bench.data.loader import Problems, load_definitions
from flashinfer_bench.errors import CapabilityError, ConfigError
from flashinfer_bench.routing.patch_manager import UnroutableError
from flashinfer_bench.routing.patch_points import Note, PatchPoint, is_capturing, router
from flashinfer_bench.tracing.config import TracingLimits, as_registry
from flashinfer_bench.tracing.policies import PolicyRegistry, WorkloadEntry
from flashinfer_bench.tracing.recorder import Recorder, record_of
from flashinfer_bench.tracing.shutdown import flush_at_exit, held_back, runtimes, warn
from flashinfer_bench.tracing.store import Added, Store

if TYPE_CHECKING:
    from flashinfer_bench.data import Definition, TraceSet
    from flashinfer_bench.tracing.config import TracingConfig, TracingConfigRegistry

    Dataset = Union[TraceSet, str, Path]
    Config = Union[TracingConfig, TracingConfigRegistry, Mapping[str, TracingConfig], None]

_logger = logging.getLogger(__name__)

__getattr__ = old_names(__name__)

WRITE_AFTER_S = 1.0
"""Minimum seconds between early writes, and before the first; longer if writing is slow."""

_lock = threading.RLock()
_active: Optional[TracingRuntime] = None


def active() -> Optional[TracingRuntime]:
    """Return the runtime that is recording calls now, or None."""
    return _active


class TracingRuntime:
    """Records the calls of a dataset's definitions while it is active.

    Only one runtime is active at a time: starting one stops the previous one. Used as a context
    manager, it is active in the body, and the runtime that it stopped resumes afterwards.

    Kept entries are written within seconds by a background thread, or when the runtime is flushed;
    `docs/reference/tracing.md` gives the details.

    Errors while recording or writing never reach the program: they are counted in `stats`, and
    logged once per definition.

    Parameters
    ----------
    trace_set : TraceSet, str or Path, optional
        The dataset, or its folder; default: ``FIB_DATASET_PATH``.
    config : TracingConfig, TracingConfigRegistry or mapping of str to TracingConfig, optional
        Settings for all definitions, or by name. Default: `get_default_configs`.
    limits : TracingLimits, optional
        Memory limits.
    store : optional
        Receives entries instead of the dataset's own store. Its method ``add(entries)`` returns an
        `Added`. It may be called from any thread, by one at a time.

    Raises
    ------
    DatasetNotFoundError
        If the dataset does not exist.
    ConfigError, UnknownNameError
        If the settings are invalid, or name a policy or an input that does not exist.
    """

    @old_parameters
    def __init__(
        self,
        trace_set: Optional[Dataset] = None,
        config: Config = None,
        *,
        limits: Optional[TracingLimits] = None,
        store: Any = None,
    ) -> None:
        self.root, self.definitions = _dataset(trace_set)
        self.config = as_registry(config)
        self.limits = TracingLimits() if limits is None else limits
        self.policies = PolicyRegistry.get_instance()
        self.orders = count()
        configs = {name: self.config.get(name) for name in self.definitions}
        self._names = {
            name: each
            for name, each in configs.items()
            if each is not None and each.filter_policy != "keep_none"
        }
        self.problems: dict[str, str] = {}
        self._check()
        self._made: dict[str, Recorder] = {}
        self._scope = threading.local()
        self._given = store
        self._begin()
        self._notes: dict[str, Optional[Note]] = {}
        self._unknown = 0
        self._end: Optional[Callable[[], None]] = None
        self._replaced: Optional[TracingRuntime] = None
        self._entered = False
        flush_at_exit(self)

    def _check(self) -> None:
        """Report mistakes in the settings now rather than in a log during the run."""
        for config in {id(each): each for each in self._names.values()}.values():
            try:
                self.policies.make_filter_policy(config)
            except CapabilityError as error:
                left_out = [name for name, each in self._names.items() if each is config]
                for name in left_out:
                    self.problems[name] = str(error)
                    del self._names[name]
                _logger.warning("calls of %s are not recorded: %s", ", ".join(left_out), error)
        for name, config in self.config.per_definition.items():
            definition, wanted = self.definitions.get(name), config.input_dump_policy
            if definition is None or not isinstance(wanted, list):
                continue
            tensors = [each for each, spec in definition.inputs.items() if spec.shape is not None]
            missing = [each for each in wanted if each not in tensors]
            if missing:
                raise ConfigError(
                    f"input_dump_policy of '{name}': it has no tensor input '{missing[0]}'; "
                    f"it has {', '.join(tensors) or 'none'}"
                )

    def _begin(self) -> None:
        """Reset to the initial state: nothing in memory, no thread running."""
        # Held while a call is recorded, but not while entries are written.
        self.lock = threading.RLock()
        self.busy = False  # whether a call is being recorded; guarded by the lock
        self._waiting: list[WorkloadEntry] = []
        self._emptied()
        self._write_lock = threading.RLock()
        self._writing = False
        self._told: set[bool] = set()
        self._totals = Counter(written=0, known=0, lost=0)
        self._reported = Counter(self._totals)
        self._has_writer = False  # whether the early writer thread runs; guarded by the lock
        self._store = Store(self.root, self.definitions) if self._given is None else self._given

    def _emptied(self) -> None:
        self._entries = self._nbytes = 0
        self._deferred: list[WorkloadEntry] = []
        self._fresh = False  # whether the early writer thread has new entries

    def __repr__(self) -> str:
        return f"<TracingRuntime of {str(self.root)!r}>"

    # ------------------------------------------------------------------------------ activity

    @classmethod
    def get_instance(cls) -> Optional[TracingRuntime]:
        """Return the active runtime, or None."""
        router.settle()
        return active()

    @property
    def is_active(self) -> bool:
        """Whether the runtime has been started, and neither stopped nor replaced."""
        return _active is self

    def start(self) -> TracingRuntime:
        """Make this the active runtime and stop the previous one; does nothing if it is active."""
        global _active
        with _lock:
            before = _active
            if before is self:
                return self
            if before is not None:
                before.stop()
                if not before._entered:  # it will not be resumed
                    before._replaced = None
            self._replaced = before
            _active = self
            self._end = router.watch(self)
        return self

    def stop(self) -> None:
        """Stop recording and write what was recorded; does nothing if the runtime is not active.

        Raises
        ------
        RuntimeError
            If another runtime has been started since and is still active.
        """
        global _active
        with _lock:
            if _active is not self:
                later = _active
                while later is not None and later._replaced is not self:
                    later = later._replaced
                if later is not None:
                    raise RuntimeError(
                        f"{self!r}: another has been started since; they are stopped in reverse "
                        "order (LIFO)"
                    )
                return
            _active = None
            # Another thread may restart it while this one still writes; leave that alone.
            end, self._end = self._end, None
            if end is not None:
                end()
        self.flush()

    def __enter__(self) -> TracingRuntime:
        self._entered = True
        return self.start()

    def __exit__(self, *error: object) -> None:
        was_active, before = self.is_active, self._replaced
        self._replaced, self._entered = None, False
        if was_active:  # otherwise another runtime, started in the body, is active
            self.stop()
        if was_active and before is not None:
            outer = before._replaced
            before.start()
            before._replaced = outer

    # ------------------------------------------------------------------------------- calls

    def names(self) -> Collection[str]:
        """Return the names of the definitions whose calls are recorded."""
        return self._names

    def definition(self, name: str) -> Optional[Definition]:
        """Return the dataset's definition of that name, or None."""
        return self.definitions.get(name)

    def watch(self, name: str, point: Optional[PatchPoint]) -> Optional[Note]:
        """Return the function that handles calls of a definition from one call site, or None."""
        try:
            return self._recorder(name).note(point)
        except Exception as error:
            place = name if point is None else f"{point.label} as {name}"
            self.problems[place] = str(error)
            _logger.debug("calls of %s are not recorded", place, exc_info=True)
            return None

    def collect(
        self,
        def_name: str,
        args: Any = (),
        kwargs: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """Record one call, whether or not the runtime is active. Never raises.

        Parameters
        ----------
        def_name : str
            Name of the definition.
        args : mapping or sequence
            The inputs by name; or by position, optionally followed by the outputs.
        kwargs : mapping, optional
            Further inputs by name.
        """
        try:
            note = self._notes[def_name]
        except (KeyError, TypeError):
            note = self._note(def_name)
        if note is None:
            return
        if type(args) is tuple:
            note(args, kwargs)  # type: ignore[arg-type]
        elif isinstance(args, Mapping):
            note((), {**args, **kwargs} if kwargs else args)  # type: ignore[arg-type]
        else:
            try:
                given = tuple(args)
            except Exception:  # noqa: BLE001 - not iterable, or iterating it fails
                self._recorder(def_name).fail(UnroutableError("arguments"))
            else:
                note(given, kwargs)  # type: ignore[arg-type]

    def _recorder(self, name: str) -> Recorder:
        """Return the recorder of a definition in `names`."""
        with held_back(), self.lock:
            if name not in self._made:
                self._made[name] = Recorder(self, self.definitions[name], self._names[name])
            return self._made[name]

    def _note(self, name: Any) -> Optional[Note]:
        if isinstance(name, str) and name in self.names():
            note = self._notes[name] = self.watch(name, None)
            return note
        self._unknown += 1
        return None

    # --------------------------------------------------------------------------- CUDA graphs

    @contextmanager
    def cuda_graph_scope(self) -> Iterator[None]:
        """Defer copying the inputs of calls that this thread makes in the body.

        References are kept instead. They are read by `snapshot_graph_tensors` after the graph has
        been replayed, or otherwise when entries are written. Without a scope, the same applies
        while a stream is being captured.
        """
        self._scope.depth = getattr(self._scope, "depth", 0) + 1
        try:
            yield
        finally:
            self._scope.depth -= 1

    def deferring(self) -> bool:
        """Return whether copies must be deferred because a CUDA graph is being captured."""
        return getattr(self._scope, "depth", 0) > 0 or is_capturing()

    def snapshot_graph_tensors(self) -> int:
        """Copy the tensors of deferred calls now; a later snapshot replaces an earlier one.

        Returns
        -------
        int
            Number of entries copied; 0 while a stream is being captured.
        """
        if is_capturing():
            return 0
        with held_back(), self.lock:
            found = [*self._waiting, *self._deferred]
            deferred = [each for each in found if each.is_deferred]
            return sum(self._made[entry.def_name].settle(entry) for entry in deferred)

    # ------------------------------------------------------------------------------ writing

    def flush(self) -> dict[str, int]:
        """Write all kept entries. Never raises an `Exception`.

        Returns
        -------
        dict of str to int
            ``entries`` to be written since the last flush, and how they ended: ``written``,
            ``known`` (in the dataset already), ``lost``.
        """
        self._write(last=True)
        with held_back(), self._write_lock:
            new = {name: count - self._reported[name] for name, count in self._totals.items()}
            self._reported.update(new)
        return {"entries": sum(new.values()), **new}

    def took(self, entry: WorkloadEntry, displaced: Optional[WorkloadEntry]) -> None:
        """Account for a new entry and the entry it displaced, if any."""
        self._count([entry], 1)
        if entry.is_deferred:
            self._deferred.append(entry)
        if displaced is not None:
            self._count([displaced], -1)

    def relieve(self) -> None:
        """Write everything if a limit is exceeded."""
        if self._entries >= self.limits.max_entries or self._nbytes >= self.limits.max_bytes:
            self._write()

    def write_soon(self) -> None:
        """Have a thread write the final entries; the caller holds the lock.

        The thread ends after a period without new entries.
        """
        self._fresh = True
        if not self._has_writer:
            writer = threading.Thread(target=self._write_early, name="fib-tracing", daemon=True)
            with suppress(RuntimeError):  # no new threads at interpreter shutdown
                writer.start()
                self._has_writer = True

    def _write_early(self) -> None:
        delay = WRITE_AFTER_S
        try:
            while True:
                time.sleep(delay)
                with self.lock:
                    if not self._fresh:
                        self._has_writer = False
                        return
                    self._fresh = False
                start = time.monotonic()
                self._write(early=True)
                # Write for at most 10 % of the time: each write reads the whole workload file.
                delay = max(WRITE_AFTER_S, 9 * (time.monotonic() - start))
        except BaseException:  # the next kept call starts a new thread
            self._has_writer = False
            raise

    def _drain_early(self) -> list[WorkloadEntry]:
        """Return final entries that hold no tensors of the program, without touching a device."""
        ready = []
        with self.lock:
            for held in [self._waiting, *(each.settled() for each in self._made.values())]:
                ready += [entry for entry in held if not entry.is_deferred]
                held[:] = [entry for entry in held if entry.is_deferred]
            self._count(ready, -1)
        return sorted(ready, key=lambda entry: entry.order)

    def _count(self, entries: Collection[WorkloadEntry], sign: int) -> None:
        self._entries += sign * len(entries)
        self._nbytes += sign * sum(entry.nbytes() for entry in entries)

    def _drain(self, *, last: bool) -> list[WorkloadEntry]:
        """Return the kept entries, ready to be written, in call order.

        Entries of CUDA graphs that cannot be read now, or need not be yet, stay for the next time.

        Parameters
        ----------
        last : bool
            Whether to read them even if no snapshot has been requested.
        """
        with held_back(), self.lock:
            entries = [*self._waiting]
            for recorder in list(self._made.values()):
                entries += recorder.drain()
            self._emptied()
            self._waiting = []
            readable = not is_capturing()
            ready = []
            for entry in sorted(entries, key=lambda entry: entry.order):
                fresh = entry.is_deferred and entry.cuda_graph_snapshot is None
                early = fresh and not last and len(self._waiting) < self.limits.max_entries // 2
                if entry.is_deferred and (early or not readable):
                    self._waiting.append(entry)
                elif self._made[entry.def_name].finish(entry):
                    ready.append(entry)
            return ready

    def _write(self, *, last: bool = False, early: bool = False) -> None:
        """Write in one thread at a time; see `_drain`, and `_drain_early` for early writing."""
        with held_back(), self._write_lock:
            if self._writing:  # re-entered from a signal handler or from writing itself
                return
            self._writing = True
            try:
                entries = self._drain_early() if early else self._drain(last=last)
                if entries:
                    self._totals.update(self._add(entries, early=early).counts())
            finally:
                self._writing = False

    def _add(self, entries: list[WorkloadEntry], *, early: bool) -> Added:
        try:
            added: Added = self._store.add(entries)
            added.counts()  # without a valid answer of the store all are lost
        except Exception as error:  # noqa: BLE001 - counted, and logged once
            added = Added(lost=len(entries), problem=error)
        again = added.again if early else ()
        if added.problem is not None and bool(again) not in self._told:
            self._told.add(bool(again))
            how = ", and will be retried" if again else ""
            message = f"%d workloads could not be written{how}; reported once"
            warn(message, added.lost, exc_info=added.problem)
        if again:
            with self.lock:
                self._waiting += again
                self._count(again, 1)
                self._fresh = True
        return added._replace(lost=added.lost - len(again))

    def stats(self) -> dict[str, Any]:
        """Return the outcome counts of all calls as plain data, with ``definitions`` one by one."""
        counters = {name: made.counters for name, made in list(self._made.items())}
        return {
            **record_of(list(counters.values())),
            "buffered": {"entries": self._entries, "bytes": self._nbytes},
            "definitions": {name: record_of([each]) for name, each in counters.items()},
            **self._totals,
            "unknown": self._unknown,
            "problems": dict(self.problems),
        }

    def after_fork(self) -> None:
        """Reset in a forked child: entries recorded by the parent are written by the parent.

        Seen keys are kept. Other threads of the parent may have been running at the fork.
        """
        self._begin()
        for recorder in self._made.values():
            recorder.drain()


def _dataset(trace_set: Optional[Dataset]) -> tuple[Path, dict[str, Definition]]:
    """Return the folder and the definitions of a dataset."""
    root = getattr(trace_set, "root", None)
    if trace_set is not None and not isinstance(trace_set, (str, os.PathLike)):
        if root is None:
            raise ConfigError(
                "tracing writes into a dataset folder, and this dataset has none",
                hint="give the folder, or a TraceSet with a root",
            )
        return Path(root), dict(trace_set.definitions)
    path = env.dataset_path() if trace_set is None else Path(trace_set)
    layout.require_folder(path)
    # Absolute: the program may change its working directory before anything is written.
    path = path.absolute()
    problems = Problems("collect")
    definitions = load_definitions(path, problems)
    for error in problems.errors:
        _logger.warning("skipping a definition: %s", error)
    return path, definitions


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    for runtime in runtimes():
        runtime.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
