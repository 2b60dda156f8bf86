"""Importing code by its name, as late as possible."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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

    Each name is imported when it is first used.

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
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = importlib.import_module(f"{package}.{modules[name]}")
        # A module that is called like a name in it stands for that: `apply` can be called.
        value = own[name] = found if modules[name] == name else getattr(found, name)
        return value

    return get, lambda: sorted({*own, *modules}), sorted(modules)


def moved(
    module: str, target: str, distribution: str = "flashinfer-bench-core"
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a module that another distribution provides now.

    Parameters
    ----------
    module : str
        The old import path, which keeps working.
    target : str
        The module that has its names now.
    distribution : str
        What to install for that. Default: core, which has it under another name.
    """

    def load() -> Any:
        try:
            return importlib.import_module(target)
        except ModuleNotFoundError as error:
            if error.name != target.partition(".")[0]:
                raise
            raise ImportError(
                f"{module} is provided by the distribution {distribution}, which is not "
                f"installed: pip install {distribution}",
                name=module,
            ) from error

    def get(name: str) -> Any:
        # What the import system asks of every module must not import anything.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(load(), name)

    return get, lambda: dir(load())
