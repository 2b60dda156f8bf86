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
from flashinfer_bench.apply.guarded import MISSED, Guarded
from flashinfer_bench.apply.reconcile import ARGUMENTS
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.integration.canonical import Canonical, reordered
from flashinfer_bench.integration.slots import no_fallback, opaque

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.apply.apis import Api, Bound
    from flashinfer_bench.apply.config import ApplyConfig
    from flashinfer_bench.apply.curated import Candidate
    from flashinfer_bench.apply.reconcile import Convention, Shortcut
    from flashinfer_bench.apply.tally import Tally
    from flashinfer_bench.data import Definition
    from flashinfer_bench.integration.slots import Args, Fallback, Kwargs

    Take = Callable[[Args, Kwargs, Fallback], Any]
    """Answers a call, refuses it by `MISSED`, or by an `UnroutableError` that says why.

    What it is told as the original, it does not call.
    """

logger = logging.getLogger(__name__)

SIGNATURE = "signature"
"""Reason of a call that goes to the original: no call of that function can be of the definition."""

_ADAPTER = "adapter failed"
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
        result, reason = MISSED, None
        if running.now:
            reason = REENTRANT
        else:
            running.now = True
            try:
                result = take(args, kwargs, fallback)
            except UnroutableError as error:
                reason = error.reason
            except _ANYTHING:
                self._tally.error()
                raise
            finally:
                running.now = False
        if result is not MISSED:
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
        guarded: Optional[Guarded] = None
        if definition is not None:
            guarded = Guarded(api.name, self._candidate, definition, self._config, self._tally)
        if isinstance(api.signature, Canonical):
            if guarded is not None:
                return _reordering(guarded, api.signature)
            assert function is not None
            return _alone(canonical(function, api.signature, taken_by(function)))
        if api.bind is not None:
            meaning = unsigned(api, name, definition, original)
            bind = partial(_bind_by_adapter, api, definition)
            return _taking(bind, guarded.run if guarded else _by_keyword(function), meaning)
        if api.signature is None and guarded is not None and not _is_in_place(guarded.definition):
            # A library's own arguments may be others; apply has been given the definition's.
            return _alone(guarded.take if api.definition_of is None else _counted(guarded))
        if api.signature is None and definition is None:
            return _as_it_comes(function)
        takes = None if function is None else taken_by(function)
        meaning = convention(api, name, definition, takes=takes, original=original)
        if guarded is None:
            return _taking(meaning.bind, _by_keyword(function), meaning)
        every = _taking(meaning.bind, guarded.run, meaning)
        return every if meaning.shortcut is None else _quickly(guarded, meaning.shortcut, every)


def _quickly(guarded: Guarded, usual: Shortcut, every: Take) -> Take:
    """Return what answers the usual call at once, and leaves others to `every`."""
    idle, most = usual.idle, usual.most
    least = max(usual.inputs, default=-1) + 1
    as_it_is = usual.inputs == tuple(range(most))

    def take(args: Args, kwargs: Kwargs, original: Fallback) -> Any:
        given = len(args)
        if kwargs or not least <= given <= most:
            return every(args, kwargs, original)
        for position, default in idle:
            # A default that is an equal, but another object, is found out the long way.
            if position < given and args[position] is not default:
                return every(args, kwargs, original)
        inputs = args if as_it_is else tuple([args[position] for position in usual.inputs])
        return guarded.take(inputs, None)

    return take


class _Later:
    """Stands for the original in a dispatcher: the call goes there later, if it is refused.

    Parameters
    ----------
    original : callable
        What stands for it in a routed call: may be asked for the outputs of other inputs.
    """

    __slots__ = ("_original",)

    def __init__(self, original: Any) -> None:
        self._original = original

    order = property(fset=lambda self, order: setattr(self._original, "order", order))

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        return MISSED

    def decline(self, reason: str) -> Any:
        raise UnroutableError(reason)

    def outputs(self, *inputs: Any) -> Any:
        """Return the outputs of the definition, computed by the original."""
        return self._original.outputs(*inputs)


def _reordering(guarded: Guarded, signature: Canonical) -> Take:
    """Return what answers calls with canonical arguments by a solution of a known definition."""
    call = reordered(guarded.answer, signature, list(guarded.definition.inputs))
    return lambda args, _kwargs, original: call(args, None, _Later(original))


def _alone(take: Callable[[Args, Kwargs], Any]) -> Take:
    return lambda args, kwargs, _original: take(args, kwargs)


def _counted(guarded: Guarded) -> Callable[[Args, Kwargs], Any]:
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
    def take(args: Args, kwargs: Kwargs, _original: Fallback) -> Any:
        bound = bind(args, kwargs)
        result = run(bound)
        return result if result is MISSED else meaning.deliver(bound, result)

    return take


def _refusal(reason: str) -> Take:
    def refuse(_args: Args, _kwargs: Kwargs, _original: Fallback) -> Any:
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
    return lambda args, kwargs, _original: function(*args, **(kwargs or {}))


def _by_keyword(function: Optional[Callable[..., Any]]) -> Callable[[Bound], Any]:
    assert function is not None
    return lambda bound: function(**bound.inputs)
