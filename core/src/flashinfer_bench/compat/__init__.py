"""Old names of modules, of what is in them, of attributes and parameters: what `table` lists.

Nothing here is imported until somebody asks for one of them.
"""

from __future__ import annotations

import inspect
import warnings
from ast import literal_eval
from contextlib import suppress
from functools import partial
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench._lazy import import_provided, import_string
from flashinfer_bench.compat import table
from flashinfer_bench.errors import FibDeprecationWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

_ROOT = "flashinfer_bench"


def spec_of(module: str) -> Optional[ModuleSpec]:
    """Return how a module is imported by its old name; None if that is none."""
    own = module.partition(".")[2]
    if not any(old == own or old.startswith(f"{own}.") for old in table.MODULES):
        return None
    return ModuleSpec(module, _OldModule(), is_package=True)


class _OldModule(Loader):
    """Makes a module whose names are looked up where they are now."""

    def exec_module(self, module: ModuleType) -> None:
        """Have its names looked up when they are asked for."""
        name = module.__name__
        module.__doc__ = "Old names; see `flashinfer_bench.compat.table`."
        vars(module)["__getattr__"] = lambda asked: lookup(name, asked)
        vars(module)["__dir__"] = lambda: names_of(name)


def lookup(module: str, name: str) -> Any:
    """Return what an old name in a module stands for.

    Raises
    ------
    AttributeError
        If it stands for nothing.
    ImportError
        If a distribution provides it that is not installed.
    """
    if name == "__all__":
        return names_of(module)
    for old, target in _entries(module):
        if old == name:
            if instead := table.OBSOLETE.get(f"{module.partition('.')[2]}.{name}"):
                text = f"{name} is now called {instead}; the old name will be removed in 1.0"
                warnings.warn(text, FibDeprecationWarning, stacklevel=3)
            import_provided(target.partition(":")[0], f"{module}.{name}")
            return import_string(target)
        if old is None and not name.startswith("_"):
            try:
                return getattr(import_provided(target, module), name)
            except AttributeError:
                continue
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def names_of(module: str) -> list[str]:
    """Return the public names of a module that exists by its old name."""
    found: set[str] = set()
    for old, target in _entries(module):
        if old is not None:
            found.add(old)
        else:
            with suppress(ImportError):  # it is not installed
                there = import_provided(target, module)
                found.update(getattr(there, "__all__", None) or dir(there))
    return sorted(name for name in found if not name.startswith("_"))


def _entries(module: str) -> Iterator[tuple[Optional[str], str]]:
    """Yield the names that a module had and what they are now; None: all those of a module."""
    own = module.partition(".")[2]
    for entry in f"{table.MODULES.get(own, '')} {table.NAMES.get(own, '')}".split():
        old, _, target = entry.rpartition("=")
        path = target if target.startswith("fib_") else f"{_ROOT}.{target}"
        yield old or target.partition(":")[2] or None, path


def attribute(owner: Any, name: str) -> Any:
    """Return what an old name of an attribute stands for.

    Raises
    ------
    AttributeError
        If it stands for nothing.
    """
    for kind in type(owner).__mro__:
        for entry in table.ATTRIBUTES.get(_path_of(kind), "").split():
            old, _, new = entry.partition("=")
            if old != name:
                continue
            if ":" in new:
                return partial(import_string(f"{_ROOT}.{new}"), owner)
            if new.endswith("()"):
                return lambda: getattr(owner, new.removesuffix("()"))
            if new.replace(".", "").isidentifier() and new != "None":
                return attrgetter(new)(owner)
            return literal_eval(new)
    raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}")


def call_renamed(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    given: Mapping[str, Any],
    path: Optional[str] = None,
) -> Any:
    """Call a function with what it was given by old names of its parameters.

    Raises
    ------
    TypeError
        If one parameter is given twice, or there is none of some name.
    """
    entry = table.PARAMETERS.get(_path_of(function)) or table.PARAMETERS.get(path or "", "")
    known = dict(one.split("=") for one in entry.split())
    parameters = inspect.signature(function).parameters
    others = any(p.kind is p.VAR_KEYWORD and p.name != "old" for p in parameters.values())
    dropped = [old for old, new in known.items() if not new]
    arguments = arguments[: max(len(parameters), len(arguments) - len(dropped))]
    placed = [*parameters][: len(arguments)]
    by_name: dict[str, str] = {}
    for name in given:
        new = known.get(name, name)
        if not new:
            continue
        if new not in parameters and not others:
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
        if new in by_name or (name in known and new in placed):
            twice = f"{by_name.get(new, new)!r} and {name!r}"
            raise TypeError(f"{function.__name__}() got {twice}: they are one parameter, {new!r}")
        by_name[new] = name
    return function(*arguments, **{new: given[name] for new, name in by_name.items()})


def _path_of(code: Any) -> str:
    module, name = getattr(code, "__module__", ""), getattr(code, "__qualname__", "")
    return f"{module.removeprefix(f'{_ROOT}.')}:{name}"
