"""Putting wrappers in the place of functions, and the functions back."""

from __future__ import annotations

import importlib
import inspect
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.integration.adapter import PatchSpec as PatchSpec  # noqa: TC001 - old place

if TYPE_CHECKING:
    from collections.abc import Callable

    WrapperFactory = Callable[[PatchSpec, Callable[..., Any]], Callable[..., Any]]

_NOTHING = object()


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
        """What is called."""
        wrapped = isinstance(self.found, (staticmethod, classmethod))
        return self.found.__func__ if wrapped else self.found


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


class PatchManager:
    """Puts wrappers on, and takes them all off again."""

    def __init__(self) -> None:
        self._patched: dict[str, Target] = {}
        self._lock = threading.Lock()

    @property
    def patched(self) -> tuple[str, ...]:
        """The paths that wear a wrapper of this manager."""
        return tuple(self._patched)

    def patch(self, spec: PatchSpec, wrapper_factory: WrapperFactory) -> bool:
        """Put a wrapper on a target.

        Parameters
        ----------
        spec : PatchSpec
            Names the target.
        wrapper_factory : callable
            Makes the wrapper: `Adapter.make_wrapper`.

        Returns
        -------
        bool
            Whether it wears one now: False if there is no such target in the installed library.
            A target that wears one already keeps it.
        """
        with self._lock:
            if spec.path in self._patched:
                return True
            try:
                target = resolve(spec.path)
            except CapabilityError:
                return False
            wrapper: Any = wrapper_factory(spec, target.function)
            if isinstance(target.found, (staticmethod, classmethod)):
                wrapper = type(target.found)(wrapper)
            setattr(target.owner, target.attribute, wrapper)
            self._patched[spec.path] = target
            return True

    def unpatch_all(self) -> None:
        """Put every original back, the last one first."""
        with self._lock:
            while self._patched:
                _, target = self._patched.popitem()
                _restore(target)


def _restore(target: Target) -> None:
    if target.own:
        setattr(target.owner, target.attribute, target.found)
    elif target.attribute in vars(target.owner):
        delattr(target.owner, target.attribute)


_manager: Optional[PatchManager] = None
_manager_lock = threading.Lock()


def get_manager() -> PatchManager:
    """Return the manager that the whole process shares."""
    global _manager
    with _manager_lock:
        if _manager is None:
            _manager = PatchManager()
        return _manager
