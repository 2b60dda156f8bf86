"""Importing code by its name, as late as possible."""

from __future__ import annotations

import importlib
import sys
from functools import wraps
from typing import TYPE_CHECKING, Any, Optional, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_Function = TypeVar("_Function", bound="Callable[..., Any]")


def import_string(path: str) -> Any:
    """Import the object named by ``"package.module:Attribute"``.

    Parameters
    ----------
    path : str
        Module path and attribute, separated by a colon. The attribute may be dotted.

    Returns
    -------
    Any
        The object.

    Raises
    ------
    ValueError
        If `path` has no colon, or an empty side.
    ImportError
        If the module cannot be imported.
    AttributeError
        If the module has no such attribute.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ValueError(f"{path!r} is not of the form 'package.module:Attribute'")
    found: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def exports(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package: see PEP 562.

    Each name is imported when it is first used. Old names are those of `old_names`.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    names : mapping of str to str
        The names that each of its modules provides, separated by blanks.
    """
    modules = {name: module for module, text in names.items() for name in text.split()}
    own = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in modules:
            if not name[:1].isupper():  # a module, which ``from package import`` looks for so
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            return old_names(package)(name)
        found = importlib.import_module(f"{package}.{modules[name]}")
        # A module that is called like a name in it stands for that: `apply` can be called.
        value = own[name] = found if modules[name] == name else getattr(found, name)
        return value

    return get, lambda: sorted({*own, *modules}), sorted(modules)


def moved(
    module: str, target: str, distribution: Optional[str] = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a module that another distribution provides now.

    Parameters
    ----------
    module : str
        The old import path, which keeps working.
    target : str
        The module that has its names now.
    distribution : str, optional
        As of `import_provided`.
    """

    def get(name: str) -> Any:
        # What the import system asks of every module must not import anything.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_provided(target, module, distribution), name)

    return get, lambda: dir(import_provided(target, module, distribution))


def import_provided(target: str, asked: str, distribution: Optional[str] = None) -> ModuleType:
    """Import a module that may be of a distribution that is not installed.

    Parameters
    ----------
    target : str
        The module.
    asked : str
        By what name it was asked for.
    distribution : str, optional
        What provides it. Default: the one that is called like the package.

    Raises
    ------
    ImportError
        If it is not installed.
    """
    package = target.partition(".")[0]
    try:
        return importlib.import_module(target)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        distribution = distribution or package.replace("_", "-")
        hint = importlib.import_module("flashinfer_bench._providers").install_hint(distribution)
        raise ImportError(
            f"{asked} is provided by the distribution {distribution}, which is not installed; "
            f"{hint}",
            name=asked,
        ) from error


def _compat() -> Any:
    return importlib.import_module("flashinfer_bench.compat")


def old_names(module: str) -> Callable[[str], Any]:
    """Return ``__getattr__`` of a module that had other names once, too: those of a table."""

    def get(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return _compat().lookup(module, name)

    return get


def old_parameters(function: _Function, path: Optional[str] = None) -> _Function:
    """Let the parameters of a function be given by old names, too: those of a table.

    Nothing is translated before a call has failed; not for what is called in microseconds.

    Parameters
    ----------
    function : callable
        The function.
    path : str, optional
        Whose parameters those are, in the table. Default: of the function itself.
    """

    @wraps(function)
    def accept(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            # Raised by the call itself, not in the function: it has not begun.
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
        return _compat().call_renamed(function, args, kwargs, path)

    return accept  # type: ignore[return-value]


def with_old_parameters(function: Callable[..., Any], old: Mapping[str, Any], **given: Any) -> Any:
    """Call a function again that was given `old` by names that its parameters had.

    For what is called in microseconds: it takes ``**old``, and calls this if there is any.

    Parameters
    ----------
    function : callable
        The function.
    old : mapping
        What it was given by other names.
    **given
        What it was given by its own names; None: not given.

    Raises
    ------
    TypeError
        If one parameter is given twice, or there is none of some name.
    """
    named = {name: value for name, value in given.items() if value is not None}
    return _compat().call_renamed(function, (), {**named, **old})


class OldAttributes:
    """Base of what has attributes by old names, too: those of a table."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return old_attribute(self, name)


def old_attribute(owner: object, name: str) -> Any:
    """Return what stands for an attribute that an object had by another name once.

    Raises
    ------
    AttributeError
        If nothing does.
    """
    if name.startswith("_"):
        raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}")
    if hasattr(type(owner), name):  # a property that has raised an AttributeError: it says why
        return object.__getattribute__(owner, name)
    return _compat().attribute(owner, name)


def old_call(name: str, *args: Any) -> Any:
    """Call what understands arguments as they were given once: one of `compat.functions`."""
    return import_string(f"flashinfer_bench.compat.functions:{name}")(*args)


def old_value(field: str, value: str) -> Optional[str]:
    """Return what a value of a setting is called now that has another name; None: it never was."""
    found: Optional[str] = _compat().VALUES.get(f"{field}:{value}")
    return found


class _OldModules:
    """Finds modules by old names, after all who find others."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> Optional[ModuleSpec]:
        """See `importlib.abc.MetaPathFinder`."""
        if not name.startswith("flashinfer_bench."):
            return None
        found: Optional[ModuleSpec] = _compat().spec_of(name)
        return found


sys.meta_path.append(_OldModules)
