"""Those who are told of calls, and what tells them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.integration.opaque import opaque

if TYPE_CHECKING:
    from flashinfer_bench.integration.places import (
        Args,
        Call,
        Fallback,
        Kwargs,
        Note,
        Observer,
        Slot,
        Watcher,
    )

logger = logging.getLogger(__name__)

_ANYTHING = (Exception,)


class Observing:
    """Has a function told of calls.

    Parameters
    ----------
    observer : callable
        The function.
    name : str, optional
        The only definition that matters.
    """

    def __init__(self, observer: Observer, name: Optional[str]) -> None:
        self._observer = observer
        self._names: Collection[str] = Everything() if name is None else (name,)

    def names(self) -> Collection[str]:
        """Return the definitions of whose calls it is told."""
        return self._names

    def watch(self, name: str, slot: Optional[Slot]) -> Note:
        """Return what tells the function of calls from one place."""
        observer = self._observer
        return lambda args, kwargs: observer(name, slot, args, kwargs)


class Everything(Collection[str]):
    """Some names, and any other if asked for it.

    Parameters
    ----------
    names : collection of str
        Those that it lists.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = names

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def note_of(watcher: Watcher, name: str, slot: Optional[Slot]) -> Optional[Note]:
    """Ask a watcher for what is told of some calls; None, too, if it raises, which is logged."""
    try:
        return watcher.watch(name, slot)
    except _ANYTHING:  # a watcher only watches
        logger.warning("calls of '%s' are not watched", name, exc_info=True)
        return None


def watched(notes: list[Note], name: str, call: Call) -> Call:
    """Return `call` behind those who are told of it.

    Parameters
    ----------
    notes : list of callable
        Are told first, in this order. The first thing that any of them raises is logged; nothing of
        it goes further.
    name : str
        The definition, for the log.
    call : callable
        Takes the call.
    """
    told = False
    # No globals: while the interpreter is torn down modules lose theirs, and anything may fail.
    anything, ending = _ANYTHING, sys.is_finalizing

    def failed(error: Exception) -> None:
        nonlocal told
        if not (told or ending()):
            told = True
            logger.warning("watching a call of '%s' failed; told once", name, exc_info=error)

    if len(notes) > 1:

        @opaque
        def watched(args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
            for note in notes:
                try:
                    note(args, kwargs)
                except anything as error:  # a watcher only watches
                    failed(error)
            return call(args, kwargs, fallback)

        return watched
    (only,) = notes

    @opaque
    def watched_by_one(args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
        try:
            only(args, kwargs)
        except anything as error:
            failed(error)
        return call(args, kwargs, fallback)

    return watched_by_one
