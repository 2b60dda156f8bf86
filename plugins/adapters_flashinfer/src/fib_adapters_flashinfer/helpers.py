"""Helpers for wrappers: arguments by name, and data stored per object."""

from __future__ import annotations

import inspect
import weakref
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Optional, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


class ArgBinder:
    """Maps the arguments of a call to names, according to a function's signature.

    The signature is read once. Binding takes microseconds: suitable for `plan`, but too slow for
    functions that are called in every layer.

    Parameters
    ----------
    fn : callable
        The function.

    Raises
    ------
    ValueError
        If it has no signature, like some built-in functions.
    TypeError
        If it is not callable.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._signature = inspect.signature(fn)

    @classmethod
    @lru_cache(maxsize=1024)
    def from_callable(cls, fn: Callable[..., Any]) -> ArgBinder:
        """Return the binder of a function, from the cache if possible."""
        return cls(fn)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments by name.

        Parameters
        ----------
        args : tuple
            Positional arguments.
        kwargs : mapping
            Keyword arguments.

        Returns
        -------
        dict
            One entry per parameter, with defaults filled in. Entries of ``**kwargs`` are merged
            into this dict: options of FlashInfer's ``plan`` are declared in some releases and taken
            by ``**kwargs`` in others.

        Raises
        ------
        TypeError
            If the arguments do not match the signature.
        """
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        named = dict(bound.arguments)
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                named = {**named.pop(name), **named}
        return named


class PerObject(Generic[T]):
    """Stores a value for each object, for the lifetime of the object.

    Objects are compared by identity, even if they define equality, and need not be hashable: a
    look-up by weak reference would compute a hash each time.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], T]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, obj: Any) -> Optional[T]:
        """Return the value of an object."""
        # The reference tells whether the identity still belongs to this object.
        found = self._known.get(id(obj))
        return found[1] if found is not None and found[0]() is obj else None

    def keep(self, obj: Any, value: T) -> T:
        """Store the value of an object."""
        self._known[id(obj)] = self._entry(obj, value)
        return value

    def _entry(self, obj: Any, value: T) -> tuple[weakref.ref[Any], T]:
        key, known = id(obj), self._known

        # By then the identity may belong to another object with its own entry.
        def forget(gone: weakref.ref[Any]) -> None:
            entry = known.get(key)
            if entry is not None and entry[0] is gone:
                known.pop(key, None)

        return weakref.ref(obj, forget), value

    def discard(self, obj: object) -> None:
        """Forget an object."""
        self._known.pop(id(obj), None)


class ContextStore(PerObject["dict[str, Any]"]):
    """Stores a dict for each object, for the lifetime of the object.

    An object without support for weak references gets a new dict each time.
    """

    def get(self, inst: object) -> dict[str, Any]:
        """Return the dict of an object: the same one each time, initially empty."""
        try:
            made = self._entry(inst, {})
        except TypeError:
            return {}
        # If several threads race, the first entry wins. No lock, because a finalizer or a forked
        # child could wait for it forever.
        return self._known.setdefault(id(inst), made)[1]
