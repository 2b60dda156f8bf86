"""What wrappers are often in need of: arguments by name, and a memory for each object."""

from __future__ import annotations

import inspect
import weakref
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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


class ContextStore:
    """Remembers something for each object, for as long as the object lives.

    Objects count by identity, whatever they say of their equality, and need not be hashable. An
    object that cannot be referred to weakly gets a new dict each time.
    """

    def __init__(self) -> None:
        self._contexts: dict[int, tuple[weakref.ref[object], dict[str, Any]]] = {}

    def get(self, inst: object) -> dict[str, Any]:
        """Return the dict of an object: the same one each time, empty at first."""
        # The reference says whether the identity is still this object's.
        known = self._contexts.get(id(inst))
        if known is not None and known[0]() is inst:
            return known[1]
        return self._make(inst)

    def discard(self, inst: object) -> None:
        """Forget an object."""
        self._contexts.pop(id(inst), None)

    def __len__(self) -> int:
        return len(self._contexts)

    def _make(self, inst: object) -> dict[str, Any]:
        # No lock, which a finalizer that asks in between would wait for, or a forked child.
        key, contexts = id(inst), self._contexts

        # By then the identity may be that of another object, with an entry of its own.
        def forget(gone: weakref.ref[object]) -> None:
            entry = contexts.get(key)
            if entry is not None and entry[0] is gone:
                contexts.pop(key, None)

        context: dict[str, Any] = {}
        try:
            made = (weakref.ref(inst, forget), context)
        except TypeError:
            return context
        known = contexts.setdefault(key, made)  # of several threads, the first one's
        if known[0]() is not inst:  # an object that is gone, and not forgotten yet
            contexts[key] = known = made
        return known[1]
