"""The dispatcher of a definition: decides whether a solution or the original answers a call."""

from __future__ import annotations

import logging
import threading
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench.apply.dispatch import guards, layout
from flashinfer_bench.apply.dispatch import stats as reasons
from flashinfer_bench.apply.dispatch import target as targets
from flashinfer_bench.apply.dispatch.hot_path import FAILURES, Entry, Routes, write_call
from flashinfer_bench.apply.dispatch.recognition import (
    recogniser,
    recogniser_of,
    recognition,
    when_quicker,
)
from flashinfer_bench.apply.dispatch.shadow import Disagreement, Shadow
from flashinfer_bench.routing.patch_points import Args, Fallback, Kwargs, is_capturing, opaque

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.apply.config import ApplyConfig
    from flashinfer_bench.apply.keys import ApplyKeyBuilder
    from flashinfer_bench.data import Definition

    Function = Callable[..., Any]

logger = logging.getLogger(__name__)

_MOST_ENTRIES = 4096
_MOST_STRIDES = 64


class Dispatcher:
    """Decides what answers each call of a definition.

    Thread-safe; calls of known patterns take no lock.

    Parameters
    ----------
    definition : Definition
        The definition.
    resolver : Resolver
        Selects and builds solutions.
    config : ApplyConfig
        Settings of the safeguards.
    key_builder : ApplyKeyBuilder, optional
        Makes the keys passed to the resolver. None: it is called once, without a key.
    device : str, optional
        Where solutions may be used: ``cpu``, or ``cuda:N`` for that GPU and others of the same
        name. None for any device.
    stats : Counters, optional
        Counters to add to; several dispatchers may share them.

    Attributes
    ----------
    call : callable
        ``call(args, kwargs=None, fallback=None)`` makes a call. With the inputs as arguments, the
        outputs are returned. With inputs and outputs, the results are written to the outputs and
        None is returned. `kwargs` uses the names of the definition. If no solution may answer, or
        the solution fails, ``fallback(*args, **kwargs)`` does.

        Raises ValueError if there are too few or too many arguments, and RuntimeError if there is
        neither a solution for the call nor a fallback. With ``config.strict`` it raises if a
        solution cannot be built or called.

    Raises
    ------
    CapabilityError
        If torch is missing, or too old for a dtype of the definition.
    """

    def __init__(
        self,
        definition: Definition,
        resolver: targets.Resolver,
        config: ApplyConfig,
        *,
        key_builder: Optional[ApplyKeyBuilder],
        device: Optional[str],
        stats: Optional[reasons.Counters] = None,
    ) -> None:
        self.definition = definition
        self._name = repr(definition.name)
        self._resolver = resolver
        self._config = config
        self._counters = reasons.Counters() if stats is None else stats
        self.layout = layout.Layout.of(definition)
        self._keying = layout.Keying(self.layout, key_builder)
        self._shadow = Shadow(self.layout, config)
        # By the values that make up the key; or the reason why there is none.
        self._entries: dict[Any, Union[Entry, str]] = {}
        self._lock = threading.Lock()
        self._routes = (Routes(), Routes())
        self._told: set[str] = set()
        self._busy = threading.local()
        # Whether keys may be made depends on the state of the device, so check each time.
        self._by = None if self._keying.reads_data else recognition()
        self._learns = self._by is not None
        self._keys_on = guards.ordinary_keys_on(device)
        self._guards = tuple(
            guards.make_guard(self.layout, self._keys_on, into=into) for into in (False, True)
        )
        namespace = {
            "slow": self._answer,
            "failed": self._failed,
            "checked": self._checked,
            "missed": self.missed,
            "counters": self._counters,
            "returning": self._routes[False],
            "writing": self._routes[True],
        }
        self.call: Function = opaque(write_call(self.layout, self._keying, namespace, self._by))
        if self._learns:
            when_quicker(self._learn_anew)

    @property
    def stats(self) -> reasons.Stats:
        """The current counts."""
        return self._counters.snapshot()

    def entries(self) -> list[Entry]:
        """Return the choice for each key that has been seen, and its state."""
        return [each for each in list(self._entries.values()) if isinstance(each, Entry)]

    def accepts(self, *args: Any) -> bool:
        """Return whether a solution may get these inputs and write to these outputs."""
        try:
            return self._guards[True](*args) is None
        except Exception:  # noqa: BLE001  # unusual objects may raise anything
            return False

    def _learn_anew(self) -> None:
        """Switch to the faster recognition that has been compiled in the meantime."""
        self._by = recognition()
        self._forget_routes()

    # -------------------------------------------------------------------------- choosing an entry

    def _answer(self, a: Args, into: bool, args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
        """Make a call whose pattern is not known."""
        found = self._choose(a, into, self._guards[into])
        if found == reasons.LAYOUT and not into and hasattr(fallback, "outputs"):
            return self._answer_strided(a, args, kwargs, fallback)
        if isinstance(found, str):
            return self.missed(found, args, kwargs, fallback)
        if fallback is None:
            found.due = False  # nothing to compare with
        elif (found.state == "shadow" or found.due or found.draw()) and not is_capturing():
            return self._compare(found, a, into, args, kwargs, fallback)
        return self._serve(found, a, into, args, kwargs, fallback)

    def _choose(self, a: Args, into: bool, guard: guards.Guard) -> Union[Entry, str]:
        """Return the entry for a call, or the reason why there is none."""
        try:
            reason = guard(*a)
        except Exception as error:  # noqa: BLE001  # unusual objects may raise anything
            self._tell(f"a call of {self._name} cannot be examined: {error!r}", logging.DEBUG)
            return reasons.TYPE
        if reason is not None:
            return reason
        if getattr(self._busy, "now", False):
            self._stop_learning()
            return reasons.REENTRANT
        if self._keying.reads_data and is_capturing():
            return reasons.CAPTURE
        try:
            key = self._keying.of(a)
            entry_key = () if self._keying.builder is None else key
            found = self._entries.get(entry_key)
        except FAILURES as error:
            self._tell(f"no key for a call of {self._name}: {error!r}")
            return reasons.KEY
        if (found is None or getattr(found, "state", "") == "shadow") and is_capturing():
            return reasons.CAPTURE
        if found is None:
            found = self._add(entry_key, self._resolve(a))
        if isinstance(found, Entry):
            if found.state != "out":
                return found
            found = reasons.OUT
        if self._learns:
            self._routes[into].close(key, found)
        return found

    def _resolve(self, a: Args) -> Union[Entry, str]:
        try:
            key = self._keying.key(a)
            target = self._resolver.resolve(key)
        except FAILURES as error:
            if self._config.strict:
                raise
            self._tell(f"calls of {self._name} go to the original: {error}")
            return reasons.BUILD
        if target is None:
            return reasons.NO_CHOICE
        return Entry(key, target, self._config, comparable=self._shadow.comparable)

    def _add(self, key: Any, found: Union[Entry, str]) -> Union[Entry, str]:
        """Store an entry, and return the stored one: the first if several threads race.

        If there are too many, all are dropped, and made again on demand. Disabled entries are kept,
        so that the reasons are not lost.
        """
        with self._lock:
            if len(self._entries) >= _MOST_ENTRIES and key not in self._entries:
                out = {k: e for k, e in self._entries.items() if getattr(e, "state", "") == "out"}
                if len(out) >= _MOST_ENTRIES:
                    return reasons.OUT
                self._entries = out
                self._forget_routes()
            return self._entries.setdefault(key, found)

    # ------------------------------------------------------------------------- a solution

    def _serve(
        self, entry: Entry, a: Args, into: bool, args: Args, kwargs: Kwargs, fallback: Fallback
    ) -> Any:
        """Let a solution answer a call."""
        function = self._function(entry, a, into)
        if function is None:
            return self.missed(reasons.OUTPUTS, args, kwargs, fallback)
        outputs: Optional[list[Any]] = None
        try:
            result = self._call(function, *a)
            if into:
                result = None  # many return the outputs they wrote to
            elif not entry.target.destination_passing:
                outputs = targets.checked_outputs(self.layout, result, a)
                result = targets.packed(outputs)
        except FAILURES as error:
            caught = error
        else:
            self._counters.hits += 1
            if self._learns and entry.state == "plain":
                self._learn(entry, function, a, into, outputs)
            return result
        return self._failed(entry, caught, args, kwargs, fallback)

    def _function(self, entry: Entry, a: Args, into: bool) -> Optional[Function]:
        """Return how to call the solution with such arguments; None if that is impossible."""
        function = targets.function_for(entry.target, self.layout, a, self._by, into=into)
        device = self.layout.tensors_of(a)[0].device  # the guard requires a tensor
        if function is None or device.type == "cpu":
            return function
        targets.keep_for_ever(entry.target)
        current = guards.is_current(device)
        return function if current is None or current() else guards.on_device(device, function)

    def _call(self, function: Function, *args: Any) -> Any:
        """Call a solution; nested calls of the same definition go to the original."""
        self._busy.now = True
        try:
            return function(*args)
        finally:
            self._busy.now = False

    def _learn(
        self, entry: Entry, run: Function, a: Args, into: bool, outputs: Optional[list[Any]]
    ) -> None:
        """Add a route for calls like this successful one, unless each call needs a decision."""
        by, tensors = self._by, self.layout.tensors_of(a)  # at least one: the guard requires it
        written = [self.layout.tensors.index(index) for index in sorted(self.layout.mutated)]
        written += range(len(self.layout.tensors), len(tensors))
        check = recogniser(by, tensors, written)
        current = guards.is_current(tensors[0].device)
        if check is None or (current is not None and not current()):
            return
        extra = current
        if entry.share:
            extra = lambda: not entry.draw() and (current is None or current())  # noqa: E731
        good = _always if outputs is None else recogniser_of(by, outputs)
        self._routes[into].add(self._keying.of(a), (check, extra, run, good, entry))

    def _checked(self, result: Any, a: Args) -> Any:
        """Return the result of a call of a known pattern that differs from earlier results."""
        return targets.packed(targets.checked_outputs(self.layout, result, a))

    # ----------------------------------------------------------------------- the original

    def missed(self, reason: str, args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
        """Let the original answer a call for which no solution was tried."""
        self._counters.miss(reason)
        if fallback is None:
            raise RuntimeError(
                f"no solution of {self._name} can take this call ({reason}), and there is no "
                f"fallback; `fib apply explain {self.definition.name} DATASET` shows why"
            )
        return self._original(args, kwargs, fallback)

    def _original(self, args: Args, kwargs: Kwargs, fallback: Callable[..., Any]) -> Any:
        self._counters.fallbacks += 1
        return fallback(*args, **(kwargs or {}))

    def _failed(
        self, entry: Entry, error: BaseException, args: Args, kwargs: Kwargs, fallback: Fallback
    ) -> Any:
        """Let the original answer a call in which a solution has failed."""
        self._note_failure(entry, error)
        solution = f"solution {entry.target.solution!r} of {self._name}"
        if self.layout.mutated:
            raise RuntimeError(
                f"{solution} failed, and may have changed its inputs: the original cannot "
                "be called instead"
            ) from error
        if fallback is None:
            raise RuntimeError(f"{solution} failed, and there is no fallback") from error
        # The traceback would keep the frames of the call and their arguments alive.
        error.__traceback__ = None
        del error
        return self._original(args, kwargs, fallback)

    def _note_failure(self, entry: Entry, error: BaseException) -> None:
        """Count a failure; raise it with ``strict``."""
        self._counters.errors += 1
        if isinstance(error, RecursionError):
            self._stop_learning()  # it may have called itself: only the slow path detects that
        solution = f"solution {entry.target.solution!r} of {self._name}"
        if self._config.strict:
            if isinstance(error, targets.WrongOutputError):
                raise RuntimeError(f"{solution}: {error}") from None
            raise error
        told = entry.target.explained(error) if isinstance(error, Exception) else error
        problem = f"{type(told).__name__}: {told}"
        logger.debug("apply: %s failed: %s", solution, problem)
        if entry.failed():
            self._take_out(entry, f"has failed {entry.failures} times, last with {problem}")

    def _take_out(self, entry: Entry, why: str) -> None:
        """Disable an entry."""
        if entry.take_out(why):
            for routes in self._routes:
                routes.retire(entry)
            self._tell(f"solution {entry.target.solution!r} of {self._name} is no longer used "
                       f"for {entry}: it {why}")  # fmt: skip

    # --------------------------------------------------------------------------------- comparison

    def _compare(
        self, entry: Entry, a: Args, into: bool, args: Args, kwargs: Kwargs, fallback: Any
    ) -> Any:
        """Let the original answer a call, and compare a solution with it."""
        entry.due = False
        if not getattr(fallback, "comparable", True):
            return self.missed(reasons.SHADOW, args, kwargs, fallback)
        function = self._function(entry, a, into)
        if function is None:
            return self.missed(reasons.OUTPUTS, args, kwargs, fallback)
        # A routed call returns the library's result; the definition's outputs must be requested.
        ask = getattr(fallback, "outputs", None)
        answer = expected = None
        try:
            mine = self._shadow.prepare(a, into=into)
            if ask is not None:
                expected = ask(*self._shadow.prepare(a, into=False))
        except Exception as error:  # noqa: BLE001  # out of memory, for example
            self._tell(f"calls of {self._name} cannot be compared: {error!r}")
            return self.missed(reasons.SHADOW, args, kwargs, fallback)
        self._counters.fallbacks += 1
        if ask is None:
            expected = answer = fallback(*args, **(kwargs or {}))
        run = partial(self._call, function)
        try:
            self._shadow.compare(run, mine, a, expected, into=into, pure=ask is not None)
        except Disagreement as error:
            self._counters.errors += 1
            self._take_out(entry, f"disagrees with the original: {error}")
        except FAILURES as error:
            self._note_failure(entry, error)
        else:
            entry.agreed()
        return answer if ask is None else fallback(*args, **(kwargs or {}))

    # Solutions are judged on contiguous inputs, and may rely on them. Engines also pass views: keys
    # and values are often slices of one tensor. If the original can compute outputs without side
    # effects, it answers the first call with such strides, and its outputs are compared with those
    # of the solution on the same inputs. The inputs are not copied, because a cache takes most of a
    # GPU's memory. If the outputs agree, the solution answers calls with these strides from then
    # on.

    @cached_property
    def _strided_guard(self) -> guards.Guard:
        return guards.make_guard(self.layout, self._keys_on, into=False, strided=True)

    def _answer_strided(self, a: Args, args: Args, kwargs: Kwargs, fallback: Any) -> Any:
        """Make a call that was rejected because its inputs are not contiguous."""
        # Inputs that are written to would have to be copied.
        if self.layout.mutated:
            return self.missed(reasons.LAYOUT, args, kwargs, fallback)
        found = self._choose(a, False, self._strided_guard)
        if isinstance(found, str):
            return self.missed(found, args, kwargs, fallback)
        strides = tuple([each.stride() for each in self.layout.tensors_of(a)])
        agrees = found.layouts.get(strides)
        if agrees is None:
            due = len(found.layouts) < _MOST_STRIDES
        else:  # randomly drawn comparisons
            due = agrees and (found.state == "shadow" or found.due or found.draw())
        if due and not is_capturing():
            # Otherwise the draw stays due forever, and no call is recognised any more.
            found.due = False
            found.layouts[strides] = self._agrees(found, a, fallback)
            if found.layouts[strides]:
                found.agreed()
            elif agrees:  # calls with these strides are recognised, until this disables them
                self._counters.errors += 1
                self._take_out(found, "disagrees with the original")
        elif agrees and found.state == "plain":
            return self._serve(found, a, False, args, kwargs, fallback)
        return self.missed(reasons.LAYOUT, args, kwargs, fallback)

    def _agrees(self, entry: Entry, a: Args, fallback: Any) -> bool:
        """Return whether a solution and the original agree on the same inputs."""
        function = self._function(entry, a, False)
        if function is None:
            return False
        try:
            self._shadow.compare_outputs(self._call(function, *a), a, fallback.outputs(*a))
        except Exception as error:  # noqa: BLE001  # raised by the solution or the original
            self._tell(
                f"solution {entry.target.solution!r} of {self._name} does not take "
                f"inputs with such strides: {error}"
            )
            return False
        return True

    # -------------------------------------------------------------------------------------- other

    def _stop_learning(self) -> None:
        """Send every call through the slow path, which detects solutions that call themselves."""
        self._learns = False
        self._forget_routes()

    def _forget_routes(self) -> None:
        for routes in self._routes:
            routes.clear()

    def _tell(self, message: str, level: int = logging.WARNING) -> None:
        if message not in self._told and len(self._told) < _MOST_ENTRIES:
            self._told.add(message)
            logger.log(level, "apply: %s", message)


def _always(*_args: Any) -> bool:
    return True
