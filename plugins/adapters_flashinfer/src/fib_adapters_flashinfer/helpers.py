"""What wrappers are often in need of: arguments by name, and a memory for each object."""

from __future__ import annotations

import inspect
import weakref
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Optional, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


class ArgBinder:
    """Gives the arguments of a call by name, as the signature of a function says.

    The signature is read once. Binding takes microseconds: fine for a `plan`, too long for what is
    called in every layer.

    Parameters
    ----------
    fn : callable
        The function.

    Raises
    ------
    ValueError
        If it has no signature, as some built-in functions have none.
    TypeError
        If it cannot be called.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._signature = inspect.signature(fn)

    @classmethod
    def from_callable(cls, fn: Callable[..., Any]) -> ArgBinder:
        """Return the binder of a function: one that was made before, if there is one."""
        try:
            return _binder(fn) if cls is ArgBinder else cls(fn)
        except TypeError:
            if not callable(fn):
                raise
            return cls(fn)  # one that cannot be hashed

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments by name.

        Parameters
        ----------
        args : tuple
            Those by position.
        kwargs : mapping
            Those by name.

        Returns
        -------
        dict
            One entry per parameter, defaults filled in. Of ``**kwargs`` the entries stand beside
            the others, not in a dict of their own: options of FlashInfer's ``plan`` are declared
            in some releases and taken by ``**kwargs`` in others.

        Raises
        ------
        TypeError
            If they do not fit.
        """
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        named = dict(bound.arguments)
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                named = {**named.pop(name), **named}
        return named


@lru_cache(maxsize=1024)
def _binder(fn: Callable[..., Any]) -> ArgBinder:
    return ArgBinder(fn)


class PerObject(Generic[T]):
    """What is known of each of some objects, for as long as it lives.

    Objects count by identity, whatever they say of their equality, and need not be hashable: to
    look one up by a weak reference would cost a hash of it each time.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], T]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, obj: Any) -> Optional[T]:
        """Return what is known of an object."""
        # The reference says whether the identity is still this object's.
        found = self._known.get(id(obj))
        return found[1] if found is not None and found[0]() is obj else None

    def keep(self, obj: Any, value: T) -> T:
        """Keep what is known of an object."""
        self._known[id(obj)] = self._entry(obj, value)
        return value

    def _entry(self, obj: Any, value: T) -> tuple[weakref.ref[Any], T]:
        key, known = id(obj), self._known

        # By then the identity may be that of another object, with an entry of its own.
        def forget(gone: weakref.ref[Any]) -> None:
            entry = known.get(key)
            if entry is not None and entry[0] is gone:
                known.pop(key, None)

        return weakref.ref(obj, forget), value

    def discard(self, obj: object) -> None:
        """Forget an object."""
        self._known.pop(id(obj), None)


class ContextStore(PerObject["dict[str, Any]"]):
    """Remembers something for each object, for as long as the object lives.

    An object that cannot be referred to weakly gets a new dict each time.
    """

    def get(self, inst: object) -> dict[str, Any]:
        """Return the dict of an object: the same one each time, empty at first."""
        known = self.find(inst)
        if known is not None:
            return known
        try:
            made = self._entry(inst, {})
        except TypeError:
            return {}
        # No lock, which a finalizer that asks in between would wait for, or a forked child. Of
        # several threads the first one's entry counts, unless it is of an object that is gone.
        found = self._known.setdefault(id(inst), made)
        if found[0]() is not inst:
            found = self._known[id(inst)] = made
        return found[1]
