"""Places that calls go through, and those who take calls, or watch them.

Light: importing this module imports neither torch nor pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Protocol

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Collection

    Args = tuple[Any, ...]
    Kwargs = Optional[dict[str, Any]]
    Fallback = Optional[Callable[..., Any]]
    Call = Callable[[Args, Kwargs, Fallback], Any]
    """Takes the arguments of a call by position and by name (or None), and what to run instead."""

    Observer = Callable[[str, "Optional[Slot]", Args, Kwargs], None]
    """Is told of a call: the definition, the slot (None for the function form), the arguments."""

    Note = Callable[[Args, Kwargs], None]
    """Is told of a call of one definition from one place: its arguments by position and by name."""


class Runtime(Protocol):
    """What takes calls while it is active."""

    def names(self) -> Collection[str]:
        """Return the definitions whose calls it takes."""
        ...

    def route(self, name: str, slot: Optional[Slot]) -> Optional[Call]:
        """Return what is called for a definition.

        Asked when the first such call arrives, from any thread and perhaps twice at once.

        Parameters
        ----------
        name : str
            One of `names`.
        slot : Slot, optional
            Where the call came from, whose arguments are those of its own signature; None for the
            function form, whose arguments are those of the definition.

        Returns
        -------
        callable or None
            None if no call from there can be taken.
        """
        ...

    def stop(self) -> None:
        """Be active no more."""
        ...


class Watcher(Protocol):
    """What is told of calls before they are made, taken by a runtime or not."""

    def names(self) -> Collection[str]:
        """Return the definitions of whose calls it is told; asked when slots are filled."""
        ...

    def watch(self, name: str, slot: Optional[Slot]) -> Optional[Note]:
        """Return what is told of the calls of a definition that come from one place.

        Asked when the first such call arrives, from any thread and perhaps twice at once. What the
        function raises is logged once and goes no further.

        Parameters
        ----------
        name : str
            One of `names`.
        slot : Slot, optional
            Where the calls come from; see `Runtime.route`.

        Returns
        -------
        callable or None
            None if calls from there do not matter.
        """
        ...


class Slot:
    """A place that calls go through: a decorated function, or a patched one.

    Parameters
    ----------
    name : str, optional
        The definition that all its calls are of; None if that differs from call to call.
    label : str
        What people call the place: ``"package.module.function"``.
    signature : inspect.Signature, optional
        Of the function, None if it cannot be known. A call's arguments come with it: the parameters
        that may be given by position as a tuple, defaults filled in, those by keyword alone as a
        dict. Without it, as the caller gave them.
    could_be : callable, optional
        Of a slot without a name: ``could_be(name)`` returns whether any call can be one of that
        definition. Default: any.

    Attributes
    ----------
    call : callable or None
        If it has a name: what takes its calls now; None if nothing does.
    routes : dict or None
        If it has none: what takes a call, by definition; None for definitions that nothing takes.
        The attribute is None if there is nothing at all.
    """

    __slots__ = ("__weakref__", "call", "could_be", "label", "name", "routes", "signature")

    def __init__(
        self,
        name: Optional[str],
        label: str,
        signature: Optional[inspect.Signature] = None,
        could_be: Optional[Callable[[str], bool]] = None,
    ) -> None:
        self.name = name
        self.label = label
        self.signature = signature
        self.could_be = could_be
        self.call: Optional[Call] = None
        self.routes: Optional[dict[str, Optional[Call]]] = None

    def __repr__(self) -> str:
        return f"<Slot {self.label!r}: {self.name or 'several definitions'}>"
