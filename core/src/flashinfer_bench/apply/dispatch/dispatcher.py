"""The dispatcher of a definition: who answers a call, a solution or the original."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Optional

from flashinfer_bench.apply.dispatch import stats as reasons
from flashinfer_bench.apply.dispatch.answers import Answers, WrongOutputError, packed
from flashinfer_bench.apply.dispatch.arguments import Arguments
from flashinfer_bench.apply.dispatch.capture import keep_for_ever
from flashinfer_bench.apply.dispatch.devices import Devices, is_current, on_device
from flashinfer_bench.apply.dispatch.entries import Entry, EntryTable, EntryView, shown
from flashinfer_bench.apply.dispatch.guards import make_guard
from flashinfer_bench.apply.dispatch.hot_path import FAILURES, write_call
from flashinfer_bench.apply.dispatch.keying import Keying
from flashinfer_bench.apply.dispatch.layout import Layout
from flashinfer_bench.apply.dispatch.learning import learn
from flashinfer_bench.apply.dispatch.recognition import recognition
from flashinfer_bench.apply.dispatch.refusals import Refusals
from flashinfer_bench.apply.dispatch.routes import Routes
from flashinfer_bench.apply.dispatch.runs import run_for
from flashinfer_bench.apply.dispatch.shadow import Disagreement, Shadow
from flashinfer_bench.apply.dispatch.stats import Counters, Stats
from flashinfer_bench.apply.dispatch.strided import Strided
from flashinfer_bench.integration.capture import is_capturing
from flashinfer_bench.integration.opaque import opaque

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from flashinfer_bench.apply.config import ApplyConfig
    from flashinfer_bench.apply.dispatch.runs import Run
    from flashinfer_bench.apply.dispatch.target import Resolver
    from flashinfer_bench.apply.keys import ApplyKeyBuilder
    from flashinfer_bench.data import Definition

    Args = tuple[Any, ...]
    Kwargs = Optional[dict[str, Any]]
    Fallback = Optional[Callable[..., Any]]

logger = logging.getLogger(__name__)

_MOST_ENTRIES = 4096
_MOST_ROUTES = 1024  # about 3 KB each


class Dispatcher:
    """Decides for each call of a definition who answers it.

    Everything may be called from several threads; calls of patterns that are known take no lock.

    Parameters
    ----------
    definition : Definition
        Whose calls it gets.
    resolver : Resolver
        Chooses and builds solutions.
    config : ApplyConfig
        How carefully they are used.
    key_builder : ApplyKeyBuilder, optional
        Makes the keys that the resolver is asked for. None: it is asked once, without a key.
    device : str
        Where solutions may be used: ``cpu``, or ``cuda:N`` for that GPU and those of its name.
    stats : Counters, optional
        What to add to: several dispatchers may share it.
    mutates : collection of str
        Inputs that the computation writes to, besides those that the definition declares.

    Attributes
    ----------
    call : callable
        ``call(args, kwargs=None, fallback=None)`` makes a call. As many arguments as there are
        inputs: what is computed is returned. As many as inputs and outputs together: it is written
        to the outputs, and None is returned. `kwargs` are by the names of the definition. What no
        solution may answer, or one has failed to, ``fallback(*args, **kwargs)`` does.

        A ValueError says that there are too few or too many arguments; a RuntimeError, that there
        is no solution for the call and no fallback. With ``config.strict`` a solution that cannot
        be built or called raises.

    Raises
    ------
    CapabilityError
        If torch is missing, or too old for a dtype of the definition.
    """

    def __init__(
        self,
        definition: Definition,
        resolver: Resolver,
        config: ApplyConfig,
        *,
        key_builder: Optional[ApplyKeyBuilder],
        device: str,
        stats: Optional[Counters] = None,
        mutates: Collection[str] = (),
    ) -> None:
        self.definition = definition
        self._resolver = resolver
        self._config = config
        self._counters = Counters() if stats is None else stats
        self._layout = layout = Layout.of(definition, mutates)
        self._keying = Keying(layout, key_builder)
        self._answers = Answers(definition, layout)
        self._shadow = Shadow(definition, layout, self._answers, config)
        self._table = EntryTable(_MOST_ENTRIES, self._forget_routes)
        self._routes = (Routes(_MOST_ROUTES), Routes(_MOST_ROUTES))
        self._told: set[str] = set()
        self._busy = threading.local()
        # Whether keys may be made here hangs on the state of the device: that is asked each time.
        self._by = None if self._keying.reads_data else recognition()
        self._learns = self._by is not None
        devices = Devices(device)
        self._strided = Strided(self, layout, devices)
        self._guards = tuple(
            Refusals(make_guard(layout, devices, into=into), layout, self._by)
            for into in (False, True)
        )
        self.call: Callable[..., Any] = self._write_call(Arguments(definition))

    def _write_call(self, arguments: Arguments) -> Callable[..., Any]:
        namespace = {
            "by_name": arguments.by_name,
            "wrong_count": arguments.wrong_count,
            "slow": self._answer,
            "failed": self._failed,
            "settle": self._settle,
            "missed": self._missed,
            "counters": self._counters,
            "returning": self._routes[False],
            "writing": self._routes[True],
        }
        return opaque(write_call(self._layout, self._keying, namespace, self._by))

    @property
    def stats(self) -> Stats:
        """The counts as they are now."""
        return self._counters.snapshot()

    def entries(self) -> list[EntryView]:
        """Return what was chosen for each key that has been seen, and what became of it."""
        return [entry.view() for entry in self._table]

    # ------------------------------------------------------------------------ who answers

    def _answer(self, a: Args, into: bool, args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
        """Make a call whose pattern is not known."""
        found = self._choose(a, into, self._guards[into])
        if found == reasons.LAYOUT and not into and hasattr(fallback, "outputs"):
            return self._strided.answer(a, args, kwargs, fallback)
        if isinstance(found, str):
            return self._missed(found, args, kwargs, fallback)
        if fallback is None:
            found.due = False  # there is nothing to compare with
        elif (found.state == "shadow" or found.due or found.draw()) and not is_capturing():
            return self._compare(found, a, into, args, kwargs, fallback)
        return self._serve(found, a, into, args, kwargs, fallback)

    def _choose(self, a: Args, into: bool, guard: Callable[..., Any]) -> Entry | str:
        """Return the entry that takes a call, or the reason for which none does."""
        try:
            reason = guard(*a)
        except Exception as error:  # noqa: BLE001  # whatever odd objects may raise when asked
            self._tell(f"a call of {self._name} cannot be examined: {error!r}", logging.DEBUG)
            reason = reasons.TYPE
        if reason is None and getattr(self._busy, "now", False):
            self._stop_learning()
            reason = reasons.REENTRANT
        if reason is None and self._keying.reads_data and is_capturing():
            reason = reasons.CAPTURE
        return self._look_up(a, into) if reason is None else reason

    def _look_up(self, a: Args, into: bool) -> Entry | str:
        try:
            key = self._keying.of(a)
            entry_key = () if self._keying.one_for_all else key
            found = self._table.get(entry_key)
        except FAILURES as error:
            self._tell(f"no key for a call of {self._name}: {error!r}")
            return reasons.KEY
        if found is None:
            if is_capturing():
                return reasons.CAPTURE
            found = self._resolve(entry_key, a)
        if isinstance(found, Entry) and found.state == "out":
            found = reasons.OUT
        elif isinstance(found, Entry) and found.state == "shadow" and is_capturing():
            return reasons.CAPTURE
        if isinstance(found, str) and self._learns:
            self._routes[into].close(key, found)
        return found

    def _resolve(self, key: Any, a: Args) -> Entry | str:
        try:
            apply_key = self._keying.key(a)
            target = self._resolver.resolve(apply_key)
        except FAILURES as error:
            if self._config.strict:
                raise
            self._tell(f"calls of {self._name} go to the original: {error}")
            return self._table.add(key, reasons.BUILD)
        if target is None:
            return self._table.add(key, reasons.NO_CHOICE)
        comparable = self._shadow.comparable
        entry = Entry(apply_key, target, self._config, comparable=comparable)
        return self._table.add(key, entry)

    # ------------------------------------------------------------------------- a solution

    def _serve(
        self, entry: Entry, a: Args, into: bool, args: Args, kwargs: Kwargs, fallback: Fallback
    ) -> Any:
        """Have a solution answer a call."""
        run = self._run(entry, a, into)
        if run is None:
            return self._missed(reasons.OUTPUTS, args, kwargs, fallback)
        try:
            result = self._call(run, a)
            if into:
                result = None  # many return what they have written to
            outputs = self._answers.check(result, a) if run.checks else None
        except FAILURES as error:
            caught = error
        else:
            self._counters.hits += 1
            self._learn(entry, run, a, into, result if outputs is None else outputs)
            return result if outputs is None else packed(outputs)
        return self._failed(entry, caught, args, kwargs, fallback)

    def _run(self, entry: Entry, a: Args, into: bool) -> Optional[Run]:
        run = run_for(entry.target, self._layout, self._answers, a, into=into)
        device = self._device(a)
        if run is None or device is None or device.type == "cpu":
            return run
        keep_for_ever(entry.target)
        current = is_current(device)
        if current is None or current():
            return run
        return run._replace(function=on_device(device, run.function))

    def _device(self, a: Args) -> Any:
        tensors = self._layout.tensors or range(len(self._layout.inputs), len(a))
        return next((a[index].device for index in tensors), None)

    def _call(self, run: Run, a: Args) -> Any:
        """Call a solution; calls that it makes itself go to the original."""
        self._busy.now = True
        try:
            return run.function(*a)
        finally:
            self._busy.now = False

    def _learn(self, entry: Entry, run: Run, a: Args, into: bool, result: Any) -> None:
        if not self._learns or self._by is None or entry.state != "plain":
            return
        route = learn(self._by, self._layout, entry, run, a, result)
        if route is not None:
            self._routes[into].add(self._keying.of(a), route, entry)

    def _settle(
        self, entry: Entry, result: Any, a: Args, args: Args, kwargs: Kwargs, fallback: Fallback
    ) -> Any:
        """Look at what a solution returned in a call of a known pattern: other than before."""
        try:
            outputs = self._answers.check(result, a)
        except WrongOutputError as error:
            caught = error
        else:
            self._counters.hits += 1
            return packed(outputs)
        return self._failed(entry, caught, args, kwargs, fallback)

    def _compare(
        self, entry: Entry, a: Args, into: bool, args: Args, kwargs: Kwargs, fallback: Any
    ) -> Any:
        """Have the original answer a call, and compare a solution with it."""
        entry.due = False
        run = self._run(entry, a, into)
        if run is None:
            return self._missed(reasons.OUTPUTS, args, kwargs, fallback)
        outputs = getattr(fallback, "outputs", None)
        expected: Any = None
        try:
            mine = self._shadow.prepare(a, into=into)
            if outputs is not None:
                # What it returns is a library's: the definition's outputs have to be asked for.
                expected = outputs(*self._shadow.prepare(a, into=False))
        except Exception as error:  # noqa: BLE001  # memory, say; the program's own call may be fine
            self._tell(f"calls of {self._name} cannot be compared: {error!r}")
            return self._missed(reasons.SHADOW, args, kwargs, fallback)
        compare = partial(self._shadow.compare, lambda *each: self._call(run, each), mine, a)
        self._counters.fallback()
        if outputs is not None:
            self._judge(entry, partial(compare, expected, into=into, pure=True))
            return fallback(*args, **(kwargs or {}))
        answer = fallback(*args, **(kwargs or {}))
        self._judge(entry, partial(compare, answer, into=into))
        return answer

    def _judge(self, entry: Entry, compare: Callable[[], None]) -> None:
        """Compare a solution with what the original has computed."""
        try:
            compare()
        except Disagreement as error:
            self._counters.error()
            self._retire(entry, f"disagrees with the original: {error}", always=True)
        except FAILURES as error:
            self._note_failure(entry, error)
        else:
            entry.agreed()

    # ----------------------------------------------------------------------- the original

    def _missed(self, reason: str, args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
        """Have the original answer a call that no solution was tried for."""
        if reason == reasons.NO_CHOICE and fallback is not None:
            self._counters.unknown += 1
            return fallback(*args, **kwargs) if kwargs else fallback(*args)
        self._counters.miss(reason)
        if fallback is None:
            raise RuntimeError(
                f"no solution of {self._name} can take this call ({reason}), and there is no "
                f"fallback; `fib apply explain DATASET {self.definition.name}` shows what there is"
            )
        self._counters.fallback()
        return fallback(*args, **(kwargs or {}))

    def _failed(
        self, entry: Entry, error: BaseException, args: Args, kwargs: Kwargs, fallback: Fallback
    ) -> Any:
        """Have the original answer a call that a solution has failed in."""
        self._note_failure(entry, error)
        solution = f"solution {entry.target.solution!r} of {self._name}"
        if self._layout.mutated:
            raise RuntimeError(
                f"{solution} failed, and may have changed inputs before: the original cannot "
                "be called in its place"
            ) from error
        if fallback is None:
            raise RuntimeError(f"{solution} failed, and there is no fallback") from error
        # Its traceback holds the frames of the call, and with them its arguments.
        error.__traceback__ = None
        del error
        self._counters.fallback()
        return fallback(*args, **(kwargs or {}))

    def _note_failure(self, entry: Entry, error: BaseException) -> None:
        """Count a failure; with ``strict``, raise it."""
        self._counters.error()
        if isinstance(error, RecursionError):
            self._stop_learning()  # it may have called itself: the slow way would see that
        if self._config.strict:
            self._raise(entry, error)
        told = entry.target.explained(error) if isinstance(error, Exception) else error
        problem = f"{type(told).__name__}: {told}"
        logger.debug("apply: %r of %s failed: %s", entry.target.solution, self._name, problem)
        if entry.failed(problem):
            self._retire(entry, f"has failed {entry.failures} times, last with {problem}")

    def _raise(self, entry: Entry, error: BaseException) -> NoReturn:
        if isinstance(error, WrongOutputError):
            raise RuntimeError(
                f"solution {entry.target.solution!r} of {self._name}: {error}"
            ) from None
        raise error

    def _retire(self, entry: Entry, why: str, *, always: bool = False) -> None:
        """Use an entry no more."""
        if always and not entry.take_out(why):
            return
        for routes in self._routes:
            routes.retire(entry)
        self._tell(f"solution {entry.target.solution!r} of {self._name} is not used any more "
                   f"for {shown(entry.key)}: it {why}")  # fmt: skip

    # ---------------------------------------------------------------------------- the rest

    @property
    def _name(self) -> str:
        return repr(self.definition.name)

    def _stop_learning(self) -> None:
        """Send every call the slow way, which sees it when a solution calls itself."""
        self._learns = False
        self._forget_routes()

    def _forget_routes(self) -> None:
        for routes in self._routes:
            routes.clear()

    def _tell(self, message: str, level: int = logging.WARNING) -> None:
        if message not in self._told and len(self._told) < _MOST_ENTRIES:
            self._told.add(message)
            logger.log(level, "apply: %s", message)
