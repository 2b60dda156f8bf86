"""What can be routed: a function, and how a call of it is told to be one of a definition.

A decorated function is described by its `Slot`, and so is one that an adapter routes
(`integration.routing`). Any other function is described by an `Api`, and wrapped by `routed`.

Light: importing this module imports neither torch nor pydantic.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from flashinfer_bench.apply.arguments import label_of, returns_later, tell_once
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.integration.canonical import UnroutableError as UnroutableError
from flashinfer_bench.integration.slots import Slot, board

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flashinfer_bench.data import Definition
    from flashinfer_bench.integration.slots import Args, Kwargs

    DefinitionOf = Callable[[Args, dict[str, Any]], Optional[str]]
    Bind = Callable[[Args, dict[str, Any], Optional[Definition]], "Bound"]

HINTS = frozenset({"enable_pdl"})
"""Parameters that may change how quick a call is, and nothing else."""

_ANYTHING = (Exception,)


class Bound(NamedTuple):
    """The arguments of one call, told apart.

    Attributes
    ----------
    inputs : dict of str to Any
        By the names that a solution knows them by, in the order of the definition if there is one.
    buffers : mapping of int to tensor
        Where outputs go, by position among the definition's outputs: passed in to be written to,
        or inputs that are worked on in place.
    returned : tuple of int, optional
        Which outputs the call returns; None: however many there are.
    """

    inputs: dict[str, Any]
    buffers: Mapping[int, Any] = MappingProxyType({})
    returned: Optional[tuple[int, ...]] = None


@dataclass(frozen=True, eq=False)
class Api:
    """A function whose calls can be answered by something else.

    Parameters
    ----------
    name : str
        What people call it: ``"flashinfer.norm.rmsnorm"``. Calls are counted under it.
    signature : inspect.Signature, optional
        Its parameters, and what it is annotated to return; None if that cannot be known.
    definition_of : callable, optional
        ``definition_of(args, kwargs)`` returns the name of the definition that a call is one of, or
        None. Whatever it raises counts as None. Not needed where the slot has a name.
    bind : callable, optional
        ``bind(args, kwargs, definition)`` tells the arguments of a call apart, or raises
        `UnroutableError`. The definition is None where it is not known. Default: by the signature.
    could_be : callable, optional
        ``could_be(name)`` returns whether any call can be one of that definition. Default: yes.
    definition : Definition, optional
        The definition itself, if it is known and all calls are of one.
    hints : frozenset of str
        Parameters that change nothing about the result.
    returns : Any
        What the function returns, as an annotation. Default: that of the signature.
    """

    name: str
    signature: Optional[inspect.Signature] = None
    definition_of: Optional[DefinitionOf] = None
    bind: Optional[Bind] = None
    could_be: Optional[Callable[[str], bool]] = None
    definition: Optional[Definition] = None
    hints: frozenset[str] = HINTS
    returns: Any = inspect.Signature.empty

    @classmethod
    def of_slot(cls, slot: Slot) -> Api:
        """Describe a decorated function."""
        fixed = slot.name
        could_be = slot.could_be if fixed is None else fixed.__eq__
        return cls(slot.label, slot.signature, could_be=could_be)

    @classmethod
    def of_function(cls, function: Callable[..., Any], name: str = "", **fields: Any) -> Api:
        """Describe a function by its own signature.

        Parameters
        ----------
        function : callable
            The function; a method takes its object first. A `staticmethod` or `classmethod` stands
            for the function in it.
        name : str
            What to call it; default: its module and qualified name.
        **fields
            Further fields of the class.
        """
        if isinstance(function, (staticmethod, classmethod)):
            function = function.__func__
        label = name or label_of(function)
        try:
            signature = inspect.signature(function)
        except (ValueError, TypeError):  # compiled functions and some callable objects do not tell
            signature = None
        return cls(label, signature, **fields)

    def may_be(self, name: str) -> bool:
        """Return whether any call can be one of the definition `name`."""
        return self.could_be is None or bool(self.could_be(name))


class ApiRegistry:
    """Knows which API stands behind a slot.

    Slots of decorated functions need no entry: what there is to know about them is in the slot.
    """

    def __init__(self) -> None:
        self._apis: weakref.WeakKeyDictionary[Slot, Api] = weakref.WeakKeyDictionary()

    def register(self, api: Api, slot: Slot) -> None:
        """Have `api` stand behind `slot`, as long as anything else holds the slot.

        Raises
        ------
        ConfigError
            If another one does already, or `api` cannot tell the definition of a call.
        """
        if not isinstance(api, Api):
            raise ConfigError(f"{api!r} is no Api; describe the function by an Api")
        if slot.name is None and api.definition_of is None:
            raise ConfigError(
                f"API {api.name}: nothing tells the definition of a call",
                hint="give the Api a definition_of, or the slot a name",
            )
        if self._apis.setdefault(slot, api) is not api:
            raise ConfigError(f"API {api.name}: the slot is that of {self._apis[slot].name}")

    def api_of(self, slot: Slot) -> Api:
        """Return what is behind a slot."""
        return self._apis.get(slot) or Api.of_slot(slot)

    def routable(self, names: set[str]) -> list[Api]:
        """Return the APIs in use of which a call can be one of the definitions `names`."""
        found = []
        for slot in board.slots():
            api = self.api_of(slot)
            wanted = names if slot.name is None else names & {slot.name}
            if any(api.may_be(name) for name in wanted):
                found.append(api)
        return found


apis = ApiRegistry()
"""The registry of this process."""


def routed(api: Api, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper that offers each call of `original` to what is enabled.

    While nothing is, it calls the original.

    Parameters
    ----------
    api : Api
        Describes the original; must have `definition_of`.
    original : callable
        What is wrapped. A `staticmethod` or `classmethod` stays one.

    Raises
    ------
    ConfigError
        If `api` cannot tell the definition of a call, or `original` returns no result but a
        coroutine or a generator, or is a class.
    """
    if isinstance(original, (staticmethod, classmethod)):
        dressed: Callable[..., Any] = type(original)(routed(api, original.__func__))
        return dressed
    _check_routable(api, original)
    slot = Slot(None, api.name)
    apis.register(api, slot)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        routes = slot.routes
        if routes is None:
            return original(*args, **kwargs)
        name = _name_of(api, args, kwargs)
        # A name that is not known is asked for as well: such calls are counted.
        call = routes[name] if name is not None else None
        if call is None:
            return original(*args, **kwargs)
        return call(args, kwargs or None, original)

    wrapper.__apply_slot__ = slot  # type: ignore[attr-defined]
    board.connect(slot)
    return wrapper


def _check_routable(api: Api, original: Any) -> None:
    if isinstance(original, type) or not callable(original):
        raise ConfigError(
            f"API {api.name}: a {type(original).__name__} cannot be wrapped",
            hint="wrap functions and methods; of a class, the method that computes the outputs",
        )
    if returns_later(original):
        raise ConfigError(
            f"API {api.name} cannot be wrapped: it returns a coroutine or a generator",
            hint="wrap the function that computes the outputs",
        )


def _name_of(api: Api, args: Args, kwargs: dict[str, Any]) -> Optional[str]:
    assert api.definition_of is not None
    try:
        name = api.definition_of(args, kwargs)
    except _ANYTHING as error:  # an adapter's own failure; the call itself may be fine
        tell_once(f"API {api.name}: the definition of a call cannot be told", error)
        return None
    return name if isinstance(name, str) else None  # anything else may not even be hashed


def quick_binder(
    signature: inspect.Signature,
) -> Callable[[Args, Kwargs], dict[str, Any]]:
    """Return what tells the arguments of a call apart, by name and with defaults.

    Parameters
    ----------
    signature : inspect.Signature
        Of the function that is called.

    Returns
    -------
    callable
        ``binder(args, kwargs)`` returns the arguments by name; ``*args`` as a tuple and
        ``**kwargs`` as a dict, under their own names. It raises `UnroutableError` for arguments
        that do not fit: the original says best what is wrong with them.
    """
    parameters = signature.parameters.values()
    plain = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    if not {each.kind for each in parameters} <= plain:
        return functools.partial(_bind_slowly, signature)
    positional = [
        each.name for each in parameters if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    names = frozenset(signature.parameters)
    defaults = {
        each.name: each.default
        for each in parameters
        if each.default is not inspect.Parameter.empty
    }

    def bind(args: Args, kwargs: Kwargs) -> dict[str, Any]:
        values = {**defaults, **dict(zip(positional, args, strict=False)), **(kwargs or {})}
        twice = kwargs and not kwargs.keys().isdisjoint(positional[: len(args)])
        if len(args) > len(positional) or twice or values.keys() != names:
            raise UnroutableError("arguments")
        return values

    return bind


def _bind_slowly(signature: inspect.Signature, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    try:
        bound = signature.bind(*args, **(kwargs or {}))
    except TypeError:
        raise UnroutableError("arguments") from None
    bound.apply_defaults()
    return bound.arguments
