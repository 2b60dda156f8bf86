"""Lazy imports, and lookup of old names."""

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

    Each name is imported on first use. Old names are looked up with `old_names`.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    names : mapping of str to str
        By module: the names that it provides, separated by spaces.
    """
    modules = {name: module for module, text in names.items() for name in text.split()}
    own = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in modules:
            if not name[:1].isupper():  # a submodule, looked up here by ``from package import``
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            return old_names(package)(name)
        found = importlib.import_module(f"{package}.{modules[name]}")
        # A module with the same name as its export is returned itself: `apply` is callable.
        value = own[name] = found if modules[name] == name else getattr(found, name)
        return value

    return get, lambda: sorted({*own, *modules}), sorted(modules)


def moved(
    module: str, target: str, distribution: Optional[str] = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a module that moved to another distribution.

    Parameters
    ----------
    module : str
        The old import path, which keeps working.
    target : str
        The new module.
    distribution : str, optional
        As for `import_provided`.
    """

    def get(name: str) -> Any:
        # The import system looks these up on every module; they must not import anything.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_provided(target, module, distribution), name)

    return get, lambda: dir(import_provided(target, module, distribution))


def import_provided(target: str, asked: str, distribution: Optional[str] = None) -> ModuleType:
    """Import a module of a distribution that may not be installed.

    Parameters
    ----------
    target : str
        The module.
    asked : str
        The name under which it was requested.
    distribution : str, optional
        The distribution that provides it. Default: named after the package.

    Raises
    ------
    ImportError
        If the distribution is not installed.
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
    """Return a ``__getattr__`` that finds a module's old names in the table of `compat`."""

    def get(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return _compat().lookup(module, name)

    return get


def old_parameters(function: _Function, path: Optional[str] = None) -> _Function:
    """Let a function accept the old names of its parameters, as in the table of `compat`.

    Names are translated only after a call has failed. The wrapper is too slow for functions that
    take microseconds; see `with_old_parameters`.

    Parameters
    ----------
    function : callable
        The function.
    path : str, optional
        Entry of the function in the table. Default: its own path.
    """

    @wraps(function)
    def accept(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            # No inner frame: the call itself failed, before the function began.
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
        return _compat().call_renamed(function, args, kwargs, path)

    return accept  # type: ignore[return-value]


def with_old_parameters(function: Callable[..., Any], old: Mapping[str, Any], **given: Any) -> Any:
    """Call a function again, with its old parameter names translated.

    For functions that take microseconds: they accept ``**old``, and call this if it is not empty.

    Parameters
    ----------
    function : callable
        The function.
    old : mapping
        Arguments by names that are not those of parameters.
    **given
        Arguments by current names; None means not given.

    Raises
    ------
    TypeError
        If a parameter is given twice, or a name is unknown.
    """
    named = {name: value for name, value in given.items() if value is not None}
    return _compat().call_renamed(function, (), {**named, **old})


class OldAttributes:
    """Base of classes whose attributes have old names in the table of `compat`."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return old_attribute(self, name)


def old_attribute(owner: object, name: str) -> Any:
    """Return the current value of an attribute that is given by its old name.

    Raises
    ------
    AttributeError
        If it is not an old name.
    """
    if name.startswith("_"):
        raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}")
    if hasattr(type(owner), name):  # a property that raised AttributeError: raise it again
        return object.__getattribute__(owner, name)
    return _compat().attribute(owner, name)


def old_call(name: str, *args: Any) -> Any:
    """Call the function of `compat.functions` that accepts arguments in an old form."""
    return import_string(f"flashinfer_bench.compat.functions:{name}")(*args)


def old_value(field: str, value: str) -> Optional[str]:
    """Return the current name of an old value of a setting; None if there was no such value."""
    found: Optional[str] = _compat().table.VALUES.get(f"{field}:{value}")
    return found


class _OldModules:
    """Finds modules by old names, after all other finders."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> Optional[ModuleSpec]:
        """See `importlib.abc.MetaPathFinder`."""
        if not name.startswith("flashinfer_bench."):
            return None
        found: Optional[ModuleSpec] = _compat().spec_of(name)
        return found


sys.meta_path.append(_OldModules)
