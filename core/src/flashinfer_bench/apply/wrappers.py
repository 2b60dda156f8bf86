"""Wrappers for decorated functions.

The wrapper is generated with the parameters of the function: passing them on is faster than packing
and unpacking them, and nothing else happens while apply is disabled. torch.compile traces through
it into the original.
"""

from __future__ import annotations

import functools
import inspect
import logging
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench.errors import ConfigError
from flashinfer_bench.routing import binding
from flashinfer_bench.routing.patch_points import PatchPoint, router

if TYPE_CHECKING:
    from collections.abc import Callable

    Resolver = Callable[..., Optional[str]]

logger = logging.getLogger(__name__)

_LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
_MOST_TOLD = 1024
_told: set[str] = set()


def tell_once(message: str, error: Exception) -> None:
    """Log a warning about an error, unless it has been logged before."""
    if message not in _told and len(_told) < _MOST_TOLD:
        _told.add(message)
        logger.warning("%s", message, exc_info=error)


def returns_later(function: Any) -> bool:
    """Return whether calling it returns a coroutine or a generator instead of a result."""
    called = inspect.getattr_static(type(function), "__call__", None)
    return any(test(each) for test in _LATER for each in (function, called))


def label_of(function: Callable[..., Any]) -> str:
    """Return the display name of a function: ``"package.module.function"``."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if isinstance(module, str) else str(name)


_NAMED = """\
        _fib_call = _fib_slot.call
"""

_RESOLVED = """\
        _fib_routes = _fib_slot.routes
        if _fib_routes is None:
            return _fib_function({arguments})
        try:
            _fib_call = _fib_routes[_fib_resolver({asked})]
        except Exception as _fib_error:
            _fib_call = _fib_failed(_fib_error)
"""

_WRAPPER = """\
def make(_fib_function, _fib_slot, _fib_resolver, _fib_failed):
    def wrapper({parameters}):
{find}\
        if _fib_call is None:
            return _fib_function({arguments})
        return _fib_call({args}, {kwargs}, _fib_function)
    return wrapper
"""


def decorate(target: Union[str, Resolver], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that passes calls to the enabled runtime, or to `function`.

    Parameters
    ----------
    target : str or callable
        Name of the definition; or a resolver, which takes the arguments of a call and returns the
        name.
    function : callable
        Called while nothing is enabled. A `staticmethod` or `classmethod` is preserved.

    Raises
    ------
    ConfigError
        If `function` is not callable, or returns a coroutine or a generator.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(decorate(target, function.__func__))
    if not callable(function):
        raise ConfigError(f"apply decorates functions, not {type(function).__name__}")
    if returns_later(function):
        raise ConfigError(
            f"apply cannot decorate {label_of(function)}: it returns a coroutine or a generator",
            hint="decorate the function that computes the outputs",
        )
    label, signature = label_of(function), _own_signature(function)
    point = PatchPoint(target if isinstance(target, str) else None, label, signature)
    message = f"the resolver of {label} failed; its calls go to the original"
    make = binding.compile_source(_source(target, signature))
    wrapper = make(function, point, target, functools.partial(tell_once, message))
    if signature is not None:
        _set_defaults(wrapper, signature)
    functools.update_wrapper(wrapper, function)
    wrapper.__apply_slot__ = point
    router.connect(point)
    dressed: Callable[..., Any] = wrapper
    return dressed


def _own_signature(function: Callable[..., Any]) -> Optional[Signature]:
    """Return the actual parameters of `function`, or None if they cannot be generated."""
    try:
        # For a function with the metadata of another (`functools.wraps`), use its own parameters.
        signature = inspect.signature(function, follow_wrapped=False)
    except (ValueError, TypeError):
        return None
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if kinds <= {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}:
        return None  # no parameter names: calls are passed on unchanged
    return signature if binding.writable(signature) else None


def _source(target: Union[str, Resolver], signature: Optional[Signature]) -> str:
    parts = ["*_fib_args, **_fib_kwargs"] * 2 + ["_fib_args", "_fib_kwargs"]
    if signature is not None:
        parts = [binding.parameter_list(signature), *binding.passing(signature)]
    names = dict(zip(("parameters", "arguments", "args", "kwargs"), parts, strict=True))
    find = _NAMED
    if not isinstance(target, str):
        asked = _asked(target, signature, names["arguments"])
        find = _RESOLVED.format(asked=asked, arguments=names["arguments"])
    return _WRAPPER.format(find=find, **names)


def _asked(resolver: Resolver, signature: Optional[Signature], everything: str) -> str:
    """Return how the resolver is called: with the arguments for which it has parameters.

    By name if all its names are among the function's parameters, else by position.
    """
    if signature is None:
        return everything
    try:
        wanted = list(inspect.signature(resolver).parameters.values())
    except (ValueError, TypeError):
        return everything
    kinds, parameters = {each.kind for each in wanted}, signature.parameters
    named = {each.name: each for each in wanted if each.kind not in binding.VARIABLE}
    if Parameter.VAR_POSITIONAL in kinds:
        return everything
    if not named.keys() <= parameters.keys():
        if Parameter.VAR_KEYWORD in kinds:
            return everything
        given = [each.name for each in parameters.values() if each.kind in binding.BY_POSITION]
        return ", ".join(given[: len(named)])
    parts = [
        name if each.kind is Parameter.POSITIONAL_ONLY else f"{name}={name}"
        for name, each in named.items()
    ]
    if Parameter.VAR_KEYWORD in kinds:
        others = [each for each in parameters.values() if each.name not in named]
        parts += [
            f"{each.name}={each.name}" for each in others if each.kind not in binding.VARIABLE
        ]
        parts += [f"**{each.name}" for each in others if each.kind is Parameter.VAR_KEYWORD]
    return ", ".join(parts)


def _set_defaults(wrapper: Any, signature: Signature) -> None:
    """Replace the placeholders in the source by the actual defaults."""
    given = [each for each in signature.parameters.values() if each.default is not Parameter.empty]
    wrapper.__defaults__ = (
        tuple(each.default for each in given if each.kind is not Parameter.KEYWORD_ONLY) or None
    )
    wrapper.__kwdefaults__ = {
        each.name: each.default for each in given if each.kind is Parameter.KEYWORD_ONLY
    } or None
