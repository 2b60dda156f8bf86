"""Importing a folder of Python sources as a package of its own.

Two solutions may both have a ``helper.py`` and say ``import helper``. Neither ``sys.path`` nor a
top-level entry in ``sys.modules`` could serve both, so neither is used:

* All modules of a folder live in ``sys.modules`` below one package with a name of its own. One
  finder in ``sys.meta_path`` knows these packages; it is there while there are any.
* The modules see a version of ``__import__`` that turns ``import helper`` into the import of
  ``<package>.helper`` if the folder has such a module. This also holds for imports within
  functions, whenever they run.

Names of the standard library always mean the standard library. Any other name is looked for in the
folder of the importing file, then in the folders above it up to the root, then as usual.
"""

from __future__ import annotations

import builtins
import importlib
import linecache
import os
import sys
import threading
from importlib.abc import MetaPathFinder
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    ExtensionFileLoader,
    ModuleSpec,
    SourceFileLoader,
)
from importlib.util import spec_from_file_location
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

_INIT = "__init__"


class SourcePackage:
    """A folder that can be imported from. Make one with `open_package`.

    Attributes
    ----------
    name : str
        Name of the package; no other package of this process has it.
    root : Path
        The folder.
    """

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.root = root
        # Where modules are; those that are not listed are below their parent.
        self._places: dict[str, Path] = {name: root}
        self._namespace = _namespace_for(self)

    def import_file(self, path: str) -> ModuleType:
        """Import one file.

        Parameters
        ----------
        path : str
            The file, relative to the folder.

        Returns
        -------
        ModuleType
            Its module.

        Raises
        ------
        BaseException
            Whatever the file raises, SystemExit included.
        """
        parts = list(PurePosixPath(path).with_suffix("").parts)
        if parts[-1] == _INIT:
            parts.pop()
        full = self.name
        for part in parts:
            # A dot within a name ("kernel.v2.py") would read as a level of packages.
            parent, full = full, f"{full}.{part.replace('.', '_')}"
            self._places[full] = self._place(parent) / part
        return importlib.import_module(full)

    def close(self) -> None:
        """Forget all modules of the package; idempotent.

        What still refers to them keeps working, except for imports of further modules.
        """
        _finder.remove(self)
        prefix = f"{self.name}."
        for module in [m for m in sys.modules if m == self.name or m.startswith(prefix)]:
            del sys.modules[module]
        folder = f"{self.root}{os.sep}"
        for file in [f for f in linecache.cache if f.startswith(folder)]:
            del linecache.cache[file]

    def find_spec(self, fullname: str) -> Optional[ModuleSpec]:
        """Return how to import `fullname`, a module of this package, or None if there is none."""
        place = self._place(fullname)
        init = place / f"{_INIT}.py"
        if init.is_file():
            return self._file_spec(fullname, init, folder=place)
        if place == self.root:
            return _folder_spec(fullname, place)
        for suffix in (".py", *EXTENSION_SUFFIXES):
            file = place.with_name(place.name + suffix)
            if file.is_file():
                return self._file_spec(fullname, file)
        return _folder_spec(fullname, place) if place.is_dir() else None

    def _place(self, fullname: str) -> Path:
        """Return where `fullname` would be, without a suffix."""
        known = self._places.get(fullname)
        if known is not None:
            return known
        parent, _, last = fullname.rpartition(".")
        return self._place(parent) / last

    def _file_spec(
        self, fullname: str, file: Path, *, folder: Optional[Path] = None
    ) -> Optional[ModuleSpec]:
        loader: Any
        if file.suffix == ".py":
            loader = _Loader(fullname, str(file), self._namespace)
        else:
            loader = ExtensionFileLoader(fullname, str(file))
        search = [str(folder)] if folder is not None else None
        return spec_from_file_location(
            fullname, file, loader=loader, submodule_search_locations=search
        )


def open_package(name: str, root: Path) -> SourcePackage:
    """Make the folder `root` importable.

    Parameters
    ----------
    name : str
        Wanted name of the package, an identifier. If this process has one of that name already, a
        number is put behind it.
    root : Path
        A folder; its files are read when they are imported.

    Returns
    -------
    SourcePackage
        Call its `close` when it is no longer needed.
    """
    return _finder.add(name, root.resolve())


def _folder_spec(fullname: str, folder: Path) -> ModuleSpec:
    spec = ModuleSpec(fullname, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    return spec


class _Loader(SourceFileLoader):
    """Loads a source file without caching bytecode, with our own ``__import__`` in reach."""

    def __init__(self, fullname: str, path: str, namespace: Optional[dict[str, Any]]) -> None:
        super().__init__(fullname, path)
        self._builtins = namespace

    def exec_module(self, module: ModuleType) -> None:
        if self._builtins is not None:
            module.__dict__["__builtins__"] = self._builtins
        super().exec_module(module)

    def source_to_code(  # type: ignore[override]  # to typeshed it is static
        self, data: Any, path: Any, **options: Any
    ) -> Any:
        """Compile text, which was written as UTF-8 whatever encoding it may declare."""
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
        return super().source_to_code(text, path, **options)

    def set_data(self, path: Any, data: Any, *, _mode: int = 0o666) -> None:
        """Do not write bytecode: the folder is read once."""


class _Finder(MetaPathFinder):
    """Finds the modules of all open packages."""

    def __init__(self) -> None:
        self._packages: dict[str, SourcePackage] = {}
        self._lock = threading.Lock()

    def add(self, wanted: str, root: Path) -> SourcePackage:
        with self._lock:
            name, number = wanted, 1
            while name in self._packages or name in sys.modules:
                number += 1
                name = f"{wanted}_{number}"
            package = self._packages[name] = SourcePackage(name, root)
            if self not in sys.meta_path:
                # In front, for the usual finders would also find submodules, with another loader.
                sys.meta_path.insert(0, self)
            return package

    def remove(self, package: SourcePackage) -> None:
        with self._lock:
            if self._packages.get(package.name) is package:
                del self._packages[package.name]
            if not self._packages and self in sys.meta_path:
                sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Optional[Sequence[str]] = None,
        target: Optional[ModuleType] = None,
    ) -> Optional[ModuleSpec]:
        package = self._packages.get(fullname.partition(".")[0])
        return package.find_spec(fullname) if package is not None else None


_finder = _Finder()


def _namespace_for(package: SourcePackage) -> Optional[dict[str, Any]]:
    """Return the builtins for the package's modules, or None where the usual ones do."""
    names = _module_names(package.root)
    if len(names) < 2:  # a single file has nothing to import from beside it
        return None
    namespace = dict(vars(builtins))
    own = names - {_INIT} - sys.stdlib_module_names
    namespace["__import__"] = _make_import(package, own)
    return namespace


def _module_names(root: Path) -> frozenset[str]:
    names = set()
    suffixes = (".py", *EXTENSION_SUFFIXES)
    for _, folders, files in os.walk(root):
        names.update(folders)
        names.update(file.partition(".")[0] for file in files if file.endswith(suffixes))
    return frozenset(names)


def _make_import(package: SourcePackage, names: frozenset[str]) -> Callable[..., Any]:
    def import_module(
        name: str,
        globals: Optional[Mapping[str, Any]] = None,
        locals: Optional[Mapping[str, Any]] = None,
        fromlist: Optional[Sequence[str]] = (),
        level: int = 0,
    ) -> Any:
        top = name.partition(".")[0]
        base = _local_parent(package, top, globals) if level == 0 and top in names else None
        if base is None:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        module = builtins.__import__(f"{base}.{name}", globals, locals, fromlist or (), 0)
        # "import a.b" binds a, which for the usual import would be our package.
        return module if fromlist else sys.modules[f"{base}.{top}"]

    return import_module


def _local_parent(
    package: SourcePackage, top: str, importer: Optional[Mapping[str, Any]]
) -> Optional[str]:
    """Return the nearest package, from the importing module upwards, that holds `top`."""
    own_name = str((importer or {}).get("__name__", ""))
    base = str((importer or {}).get("__package__") or package.name)
    while base.partition(".")[0] == package.name:
        full = f"{base}.{top}"
        # A file that is called like an installed library may still import that library.
        if full != own_name and (full in sys.modules or package.find_spec(full) is not None):
            return base
        base = base.rpartition(".")[0]
    return None
