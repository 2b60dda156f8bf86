"""The forms in which a call may be handed to apply."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashinfer_bench.integration.slots import Args, Fallback, Kwargs

    Resolver = Callable[..., Optional[str]]
    Positional = Union[Sequence[Any], Mapping[str, Any], None]
    Named = Union[Mapping[str, Any], Fallback]

logger = logging.getLogger(__name__)

_MOST_TOLD = 1024
_ANYTHING = (Exception,)
_LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
_told: set[str] = set()


def arguments(args: Positional, kwargs: Named, fallback: Fallback) -> tuple[Args, Kwargs, Fallback]:
    """Return the arguments of a call by position and by name, and its fallback.

    Parameters
    ----------
    args : sequence, mapping or None
        By position; in the old form ``(name, runtime_kwargs, fallback)`` those by name.
    kwargs : mapping, callable or None
        By name; in the old form the fallback.
    fallback : callable, optional
        What to call instead.

    Returns
    -------
    tuple of (tuple, dict or None, callable or None)

    Raises
    ------
    TypeError
        If they are something else.
    """
    plain = (args is None or type(args) is tuple) and (kwargs is None or type(kwargs) is dict)
    if plain and (fallback is None or callable(fallback)):
        return args or (), kwargs or None, fallback  # type: ignore[return-value]
    if isinstance(args, Mapping):
        old = callable(kwargs) and not isinstance(kwargs, Mapping)
        return arguments((), args, kwargs if old else fallback)  # type: ignore[arg-type]
    if isinstance(args, str):
        raise TypeError(f"args={args!r} is a string; give the arguments as a tuple")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(
            f"kwargs is a {type(kwargs).__name__}; give the arguments by name in a dict"
        )
    if fallback is not None and not callable(fallback):
        raise TypeError(f"fallback is a {type(fallback).__name__}, which cannot be called")
    return tuple(args or ()), dict(kwargs) if kwargs else None, fallback


def resolve(
    target: Union[str, Resolver], args: Args, kwargs: Kwargs, fallback: Fallback
) -> Optional[str]:
    """Return the definition of a call.

    Parameters
    ----------
    target : str or callable
        Its name, or a resolver, which gets the arguments.
    args, kwargs
        The arguments.
    fallback : callable, optional
        If there is one, a resolver that fails is logged, once.

    Returns
    -------
    str or None
        None if the resolver knows none, and there is a fallback.

    Raises
    ------
    ConfigError
        If `target` is something else.
    RuntimeError
        If the resolver returns no name, and there is no fallback.
    Exception
        What the resolver raises, if there is no fallback.
    """
    if type(target) is str:
        return target
    if not callable(target):
        raise ConfigError(f"{target!r} is neither the name of a definition nor a resolver")
    try:
        name = target(*args, **(kwargs or {}))
    except _ANYTHING as error:
        if fallback is None:
            raise
        tell_once(f"the resolver {label_of(target)} failed; its calls go to the original", error)
        return None
    if isinstance(name, str):
        return str(name)
    if fallback is None:
        told = f"the resolver {label_of(target)} names no definition but returns {name!r}"
        raise RuntimeError(f"{told}, and no fallback is given")
    return None


def tell_once(message: str, error: Exception) -> None:
    """Log a warning about an error, unless it has been logged before."""
    if message not in _told and len(_told) < _MOST_TOLD:
        _told.add(message)
        logger.warning("%s", message, exc_info=error)


def returns_later(function: Any) -> bool:
    """Return whether calling it gives a coroutine or a generator, and no result."""
    called = inspect.getattr_static(type(function), "__call__", None)
    return any(test(each) for test in _LATER for each in (function, called))


def label_of(function: Callable[..., Any]) -> str:
    """Return what people call a function: ``"package.module.function"``."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if isinstance(module, str) else str(name)
