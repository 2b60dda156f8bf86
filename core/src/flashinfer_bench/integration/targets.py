"""Finding what a dotted path leads to, and saying whether it can be wrapped."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Optional, cast

from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.integration.status import State

_NOTHING = object()
_ANYTHING = (Exception,)

# Has no public name. A library's own modules that make names on demand are another matter.
_LAZY = getattr(importlib.util, "_LazyModule", None)

# What is looked up on an object, and does not get called as it is stored.
_COMPUTED = (property, functools.cached_property)


class NotFoundError(Exception):
    """There is nothing to wrap at a path, now.

    Parameters
    ----------
    state : str
        ``"waiting"`` if that may change when something is imported, else ``"missing"``.
    reason : str
        What is not there.
    module : str
        What would have to be imported, if it waits.
    """

    def __init__(self, state: State, reason: str, module: str = "") -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason
        self.module = module


@dataclass(frozen=True)
class Target:
    """A function or method, and where it is.

    Parameters
    ----------
    owner : module or type
        What it is an attribute of.
    attribute : str
        Name of the attribute.
    found : Any
        The attribute as it is stored: a function, or a `staticmethod` or `classmethod` around one.
    own : bool
        Whether the owner itself has it; otherwise a base class has.
    """

    owner: Any
    attribute: str
    found: Any
    own: bool

    @property
    def function(self) -> Any:
        """What is called; a method takes its object first."""
        if isinstance(self.found, (staticmethod, classmethod)):
            return self.found.__func__
        if isinstance(self.found, functools.partialmethod):
            return self.found.__get__(None, self.owner)
        return self.found

    @property
    def place(self) -> tuple[int, str]:
        """The owner's identity, and the attribute."""
        return id(self.owner), self.attribute

    def refusal(self) -> Optional[str]:
        """Return why it cannot be wrapped; None if it can."""
        if isinstance(self.found, _COMPUTED):
            return "is a property: it is read, not called"
        if isinstance(self.found, type):
            return "is a class: name one of its methods"
        if not callable(self.function):
            return f"is a {type(self.found).__name__}, which cannot be called"
        return None

    def dressed(self, wrapper: Callable[..., Any]) -> Any:
        """Return `wrapper` as it has to be stored to be called like what is there now."""
        if isinstance(self.found, (staticmethod, classmethod)):
            return type(self.found)(wrapper)
        # A function of a class is given the object that it is called on; built-in ones, and other
        # objects that can be called, are not.
        if isinstance(self.owner, type) and not hasattr(type(self.found), "__get__"):
            return staticmethod(wrapper)
        return wrapper

    def stored(self) -> Any:
        """Return what the owner itself has there now; a private object if nothing."""
        return namespace(self.owner).get(self.attribute, _NOTHING)

    def replace(self, value: Any) -> None:
        """Store something else there; raises what the owner raises."""
        setattr(self.owner, self.attribute, value)
        if self.stored() is not value:
            raise AttributeError(f"{self.owner!r} does not keep what is assigned to it")

    def restore(self) -> None:
        """Make it what it was."""
        if self.own:
            setattr(self.owner, self.attribute, self.found)
        elif self.attribute in namespace(self.owner):
            delattr(self.owner, self.attribute)


def namespace(owner: Any) -> dict[str, Any]:
    """Return the attributes of a module or class, without waking a module that loads lazily."""
    if isinstance(owner, type):
        return cast("dict[str, Any]", vars(owner))
    try:
        found = object.__getattribute__(owner, "__dict__")
    except AttributeError:  # an object with slots stands in for the module
        return {}
    return found if isinstance(found, dict) else {}


def is_complete(module: Any) -> bool:
    """Return whether a module has been run to its end."""
    if is_lazy(module):
        return False
    spec = namespace(module).get("__spec__")
    return not getattr(spec, "_initializing", False)


def is_lazy(module: Any) -> bool:
    """Return whether a module is loaded when somebody looks into it (`importlib.util`)."""
    return type(module) is _LAZY


def version_of(library: str) -> str:
    """Return the version that an imported library gives itself; empty if it gives none."""
    module = sys.modules.get(library)
    found = namespace(module).get("__version__", "") if module is not None else ""
    return found if isinstance(found, str) else ""


def resolve(path: str) -> Target:
    """Import what a path leads through, and return what it leads to.

    Parameters
    ----------
    path : str
        ``"library.module.function"`` or ``"library.module.Class.method"``.

    Returns
    -------
    Target
        The function or method.

    Raises
    ------
    CapabilityError
        If there is nothing of that name, or its module cannot be imported.
    """
    parts = path.split(".")
    owner = _import_longest(parts[:-1], path)
    found = inspect.getattr_static(owner, parts[-1], _NOTHING)
    if found is _NOTHING:
        raise CapabilityError(f"{path}: {'.'.join(parts[:-1])} has no {parts[-1]!r}")
    return Target(owner, parts[-1], found, parts[-1] in vars(owner))


def _import_longest(parts: list[str], path: str) -> Any:
    """Return the object that `parts` name: a module as far as there are any, attributes beyond."""
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        try:
            found: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            # Of a class the import says that it is no module; a module that lacks a library is
            # another matter.
            if error.name is not None and f"{name}.".startswith(f"{error.name}.") and length > 1:
                continue
            raise CapabilityError(f"{path}: {name} cannot be imported: {error}") from error
        except ImportError as error:
            raise CapabilityError(f"{path}: {name} cannot be imported: {error}") from error
        for part in parts[length:]:
            if not hasattr(found, part):
                raise CapabilityError(f"{path}: {name} has no {part!r}")
            found = getattr(found, part)
        return found
    raise CapabilityError(f"{path}: not a dotted path")


def look_up(path: str) -> Target:
    """Return what a path leads to in what is imported already; nothing is imported or woken.

    Parameters
    ----------
    path : str
        See `resolve`.

    Returns
    -------
    Target
        The function or method.

    Raises
    ------
    NotFoundError
        If there is none, and whether it is worth to wait.
    """
    parts = path.split(".")
    owner, name = _loaded(parts[0]), parts[0]
    for part in parts[1:-1]:
        owner, name = _next(owner, name, part), f"{name}.{part}"
    found = _attribute(owner, parts[-1])
    if found is _NOTHING:
        on_demand = "__getattr__" in namespace(owner) and not isinstance(owner, type)
        more = " of its own; it makes some names on demand" if on_demand else ""
        raise NotFoundError("missing", f"{name} has no {parts[-1]!r}{more}")
    return Target(owner, parts[-1], found, parts[-1] in namespace(owner))


def _loaded(name: str) -> Any:
    module = sys.modules.get(name)
    if module is None:
        raise NotFoundError("waiting", f"{name} is not imported yet", name)
    if is_lazy(module):
        raise NotFoundError("waiting", f"{name} is loaded when it is first used", name)
    if not is_complete(module):
        raise NotFoundError("waiting", f"{name} is being imported", name)
    return module


def _next(owner: Any, name: str, part: str) -> Any:
    """Return the module or class that `part` of a module or class is."""
    inner = f"{name}.{part}"
    if not isinstance(owner, type) and sys.modules.get(inner) is not None:
        return _loaded(inner)
    found = _attribute(owner, part)
    if isinstance(found, (type, ModuleType)):
        return found
    if found is not _NOTHING:
        raise NotFoundError("missing", f"{inner} is neither a module nor a class")
    if not isinstance(owner, type) and _is_installed(inner):
        raise NotFoundError("waiting", f"{inner} is not imported yet", inner)
    raise NotFoundError("missing", f"{name} has no {part!r}")


def _attribute(owner: Any, name: str) -> Any:
    if isinstance(owner, type):
        return inspect.getattr_static(owner, name, _NOTHING)
    return namespace(owner).get(name, _NOTHING)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except _ANYTHING:  # the finders of others may raise what they like
        return False
