"""The calls of one API that are of one mapped definition."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply.apis import UnroutableError
from flashinfer_bench.apply.arguments import tell_once
from flashinfer_bench.apply.conventions import canonical, convention, unsigned
from flashinfer_bench.apply.curated import taken_by
from flashinfer_bench.apply.dispatch.stats import REENTRANT
from flashinfer_bench.apply.reconcile import ARGUMENTS, memory_of
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.integration.canonical import Canonical, reordered
from flashinfer_bench.integration.slots import no_fallback, opaque

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashinfer_bench.apply.apis import Api, Bound
    from flashinfer_bench.apply.config import ApplyConfig
    from flashinfer_bench.apply.curated import Candidate
    from flashinfer_bench.apply.dispatch import Dispatcher, Target
    from flashinfer_bench.apply.keys import ApplyKey
    from flashinfer_bench.apply.reconcile import Convention, Shortcut
    from flashinfer_bench.apply.tally import Tally
    from flashinfer_bench.data import Definition
    from flashinfer_bench.integration.slots import Args, Fallback, Kwargs

    Take = Callable[[Args, Kwargs], Any]
    """Answers a call, refuses it by `_MISSED`, or by an `UnroutableError` that says why."""

logger = logging.getLogger(__name__)

SIGNATURE = "signature"
"""Reason of a call that goes to the original: no call of that function can be of the definition."""

_ADAPTER = "adapter failed"
_MISSED = object()
_ANYTHING = (Exception,)


class Running(threading.local):
    """Whether this thread is in a solution of one definition, whose own such calls are not taken.

    The functions of a library that are of one definition share it.
    """

    now = False


class MappedCalls:
    """Answers the calls of one API that are of one definition.

    What they mean is worked out at the first of them.

    Parameters
    ----------
    api : Api
        What is called.
    candidate : Candidate
        What answers.
    definition : Definition, optional
        If it is known.
    config : ApplyConfig
        Settings of its dispatcher.
    tally : Tally
        Counts the calls.
    running : Running
        Of the definition.

    Attributes
    ----------
    call : callable
        See `slots.Call`.
    """

    def __init__(
        self,
        api: Api,
        candidate: Candidate,
        definition: Optional[Definition],
        config: ApplyConfig,
        tally: Tally,
        running: Running,
    ) -> None:
        self._api = api
        self._candidate = candidate
        self._definition = definition
        self._config = config
        self._tally = tally
        self._running = running
        self._take: Optional[Take] = None
        self._routed = isinstance(api.signature, Canonical)

        @opaque
        def call(args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
            return self._answer(args, kwargs, fallback)

        self.call = call

    def _answer(self, args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
        take = self._take or self._prepare(fallback)
        running = self._running
        result, reason = _MISSED, None
        if running.now:
            reason = REENTRANT
        else:
            running.now = True
            try:
                result = take(args, kwargs)
            except UnroutableError as error:
                reason = error.reason
            except _ANYTHING:
                self._tally.error()
                raise
            finally:
                running.now = False
        if result is not _MISSED:
            self._tally.hits += 1
            if self._routed and fallback is not None:
                fallback.strict = True  # type: ignore[attr-defined]  # what stands for the original
            return result
        self._tally.fallback(reason)
        if fallback is None:
            why = reason or f"the call is not what '{self._candidate.name}' is for"
            raise RuntimeError(no_fallback(self._candidate.definition, why))
        return fallback(*args, **(kwargs or {}))

    def _prepare(self, original: Fallback) -> Take:
        """Work out what calls mean; of two threads that do, the last one counts."""
        self._tally.names.add(self._candidate.definition)
        try:
            self._take = self._plan(original)
        except ConfigError as error:
            logger.warning("apply: its calls go to the original: %s", error)
            self._take = _refusal(SIGNATURE)
        return self._take

    def _plan(self, original: Fallback) -> Take:
        api, definition, function = self._api, self._definition, self._candidate.function
        name = self._candidate.definition
        guarded: Optional[_Guarded] = None
        if definition is not None:
            guarded = _Guarded(api.name, self._candidate, definition, self._config, self._tally)
        if isinstance(api.signature, Canonical):
            if guarded is not None:
                return _reordering(guarded, api.signature)
            assert function is not None
            return canonical(function, api.signature, taken_by(function))
        if api.bind is not None:
            meaning = unsigned(api, name, definition, original)
            bind = partial(_bind_by_adapter, api, definition)
            return _taking(bind, guarded.run if guarded else _by_keyword(function), meaning)
        if api.signature is None and guarded is not None and not _is_in_place(guarded.definition):
            # A library's own arguments may be others; apply has been given the definition's.
            return guarded.take if api.definition_of is None else _counted(guarded)
        if api.signature is None and definition is None:
            return _as_it_comes(function)
        takes = None if function is None else taken_by(function)
        meaning = convention(api, name, definition, takes=takes, original=original)
        if guarded is None:
            return _taking(meaning.bind, _by_keyword(function), meaning)
        every = _taking(meaning.bind, guarded.run, meaning)
        return every if meaning.shortcut is None else _quickly(guarded, meaning.shortcut, every)


def _quickly(guarded: _Guarded, usual: Shortcut, every: Take) -> Take:
    """Return what answers the usual call at once, and leaves others to `every`."""
    idle, most = usual.idle, usual.most
    least = max(usual.inputs, default=-1) + 1
    as_it_is = usual.inputs == tuple(range(most))

    def take(args: Args, kwargs: Kwargs) -> Any:
        given = len(args)
        if kwargs or not least <= given <= most:
            return every(args, kwargs)
        for position, default in idle:
            # A default that is an equal, but another object, is found out the long way.
            if position < given and args[position] is not default:
                return every(args, kwargs)
        inputs = args if as_it_is else tuple([args[position] for position in usual.inputs])
        return guarded.take(inputs, None)

    return take


class _Declining:
    """Stands for the original where canonical arguments are put into order."""

    order: Any = None

    def decline(self, reason: str) -> Any:
        raise UnroutableError(reason)


def _reordering(guarded: _Guarded, signature: Canonical) -> Take:
    """Return what answers calls with canonical arguments by a solution of a known definition."""
    declining: Any = _Declining()
    call = reordered(
        lambda args, _kwargs, _fallback: guarded.take(args, None),
        signature,
        list(guarded.definition.inputs),
    )
    return lambda args, _kwargs: call(args, None, declining)


def _counted(guarded: _Guarded) -> Take:
    """Return what answers calls with all arguments of the definition, and no others."""
    inputs, outputs = (
        list(each) for each in (guarded.definition.inputs, guarded.definition.outputs)
    )
    several = ([*inputs, *outputs], inputs)

    def take(args: Args, kwargs: Kwargs) -> Any:
        named = kwargs or {}
        for names in several:
            if len(args) + len(named) == len(names) and named.keys() == {*names[len(args) :]}:
                return guarded.take(args, kwargs)
        raise UnroutableError(ARGUMENTS)

    return take


def _taking(
    bind: Callable[[Args, Kwargs], Bound], run: Callable[[Bound], Any], meaning: Convention
) -> Take:
    def take(args: Args, kwargs: Kwargs) -> Any:
        bound = bind(args, kwargs)
        result = run(bound)
        return result if result is _MISSED else meaning.deliver(bound, result)

    return take


def _refusal(reason: str) -> Take:
    def refuse(_args: Args, _kwargs: Kwargs) -> Any:
        raise UnroutableError(reason)

    return refuse


def _bind_by_adapter(
    api: Api, definition: Optional[Definition], args: Args, kwargs: Kwargs
) -> Bound:
    assert api.bind is not None
    try:
        return api.bind(args, kwargs or {}, definition)
    except UnroutableError:
        raise
    except _ANYTHING as error:  # the adapter's own failure; the call itself may be fine
        tell_once(
            f"API {api.name}: a call cannot be told apart; such calls go to the original", error
        )
        raise UnroutableError(_ADAPTER) from error


def _is_in_place(definition: Definition) -> bool:
    return any(spec.param is not None for spec in definition.outputs.values())


def _as_it_comes(function: Optional[Callable[..., Any]]) -> Take:
    assert function is not None
    return lambda args, kwargs: function(*args, **(kwargs or {}))


def _by_keyword(function: Optional[Callable[..., Any]]) -> Callable[[Bound], Any]:
    assert function is not None
    return lambda bound: function(**bound.inputs)


class _Guarded:
    """Runs a candidate through the dispatcher of its definition.

    Parameters
    ----------
    api : str
        Name of the API.
    candidate : Candidate
        What is run.
    definition : Definition
        Says what it may be run for.
    config : ApplyConfig
        Of the dispatcher.
    tally : Tally
        Counts what the dispatcher refuses.
    """

    def __init__(
        self,
        api: str,
        candidate: Candidate,
        definition: Definition,
        config: ApplyConfig,
        tally: Tally,
    ) -> None:
        self.definition = definition
        self._label = f"{candidate.name} (for {api})"
        self._candidate = candidate
        self._config = config
        self._tally = tally
        self._target: Optional[Target] = None
        self._dispatchers: dict[Any, Dispatcher] = {}

    def resolve(self, key: Optional[ApplyKey]) -> Target:
        """Return the candidate, built at the first time: it is the one for all keys.

        Raises
        ------
        BuildError
            If it cannot be built.
        """
        if self._target is None:
            self._target = self._build()
        return self._target

    def _build(self) -> Target:
        from flashinfer_bench.apply.dispatch import Target

        function, solution = self._candidate.function, self._candidate.solution
        if function is not None:
            return Target.from_callable(
                function, self.definition, by_keyword=True, solution=self._label
            )
        from flashinfer_bench.compile import default_registry

        assert solution is not None
        runnable = default_registry().build(self.definition, solution)
        return Target.from_runnable(runnable, self.definition, self._label)

    def _dispatcher(self, args: Sequence[Any]) -> Dispatcher:
        """Return the dispatcher for the device of the first tensor."""
        for each in args:
            device = getattr(each, "device", None)
            if device is not None:
                found = self._dispatchers.get(device)
                return found or self._make_dispatcher(device, str(device))
        return self._dispatchers.get(None) or self._make_dispatcher(None, "cpu")

    def _make_dispatcher(self, key: Any, device: str) -> Dispatcher:
        from flashinfer_bench.apply.dispatch import Dispatcher

        made = Dispatcher(
            self.definition,
            self,
            self._config,
            key_builder=None,  # there is one solution for all sizes
            device=device if device.startswith(("cpu", "cuda")) else "cpu",
        )
        if self._dispatchers.setdefault(key, made) is made:
            self._tally.include(made)
        return self._dispatchers[key]

    def take(self, args: Args, kwargs: Kwargs) -> Any:
        """Answer a call with the arguments of the definition."""
        values = (*args, *kwargs.values()) if kwargs else args
        return self._dispatcher(values).call(args, kwargs, _miss)

    def run(self, bound: Bound) -> Any:
        """Return the outputs of a call, or that it was refused."""
        args = tuple(bound.inputs.values())
        dispatcher = self._dispatcher(args)
        buffers = self._direct(bound)
        if not buffers:
            return dispatcher.call(args, None, _miss)
        # What is refused with these buffers is so without: it is asked, and counted, once.
        missed = dispatcher.call((*args, *buffers), None, _miss) is _MISSED
        return _MISSED if missed else buffers

    def _direct(self, bound: Bound) -> tuple[Any, ...]:
        """Return the buffers of all outputs, if the solution may write straight into them."""
        from flashinfer_bench.apply.dispatch.ordinary import is_plain

        target, given = self._target, bound.buffers
        if target is None or target.native_style != "destination":
            return ()
        if len(given) != len(self.definition.outputs):
            return ()
        buffers = tuple(given[index] for index in range(len(given)))
        memory = [memory_of(buffer) for buffer in buffers]
        apart = len({*memory}) == len(memory)
        used = {memory_of(value) for value in bound.inputs.values()}
        free = apart and used.isdisjoint(memory)
        return buffers if free and all(is_plain(each) for each in buffers) else ()


def _miss(*_args: Any, **_kwargs: Any) -> Any:
    """Is the fallback of the dispatcher: the call goes to the original later."""
    return _MISSED
