"""Import Python sources of a solution, or of a language embedded in Python, as a function.

Two solutions may both contain a ``helper.py`` and ``import helper``. Neither ``sys.path`` nor
top-level entries in ``sys.modules`` can serve both, so this module uses neither:

* All modules of a folder live in ``sys.modules`` below one uniquely named package. Each package has
  a finder in ``sys.meta_path``.
* The modules get a version of ``__import__`` that resolves ``import helper`` to
  ``<package>.helper`` if the folder has such a module. This also covers imports inside functions,
  whenever they run.

Names of the standard library always refer to the standard library. Any other name is searched in
the folder of the importing file, then in its parent folders up to the root, then as usual.
"""

from __future__ import annotations

import builtins
import difflib
import importlib
import inspect
import linecache
import os
import shutil
import sys
import threading
import typing
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from itertools import chain, count
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from flashinfer_bench.compile import builder
from flashinfer_bench.compile.builder import describe_exception
from flashinfer_bench.compile.cache import scratch_folder
from flashinfer_bench.compile.runnable import Runnable, RunnableMetadata
from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType, ModuleType

    from flashinfer_bench.data import Definition, Solution

    _Function = Union[Callable[..., Any], inspect.Signature]

_opening = threading.Lock()
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class LoadedPython(NamedTuple):
    """An imported solution.

    Attributes
    ----------
    function : callable
        The function that the entry point names.
    destination_passing_style : bool
        Whether it takes its outputs as arguments.
    package : str
        Name of the package that contains its modules.
    cleaner : callable
        Unloads the modules and removes the files; idempotent.
    root : Path
        Folder of the sources.
    """

    function: Callable[..., Any]
    destination_passing_style: bool
    package: str
    cleaner: Callable[[], None]
    root: Path

    def as_runnable(
        self,
        build_type: str,
        definition: Definition,
        solution: Solution,
        *,
        explain: Optional[Callable[[Exception], Optional[BuildError]]] = None,
        **misc: Any,
    ) -> Runnable:
        """Return the loaded solution as a `Runnable`.

        Parameters
        ----------
        build_type : str
            For `RunnableMetadata`.
        definition, solution
            The definition and the solution that was built.
        explain : callable, optional
            See `Runnable`.
        **misc
            Added to `RunnableMetadata.misc`, besides package and entry point.
        """
        metadata = RunnableMetadata(
            build_type=build_type,
            definition_name=definition.name,
            solution_name=solution.name,
            destination_passing_style=self.destination_passing_style,
            definition=definition,
            misc={"package": self.package, "entry_point": solution.spec.entry_point, **misc},
        )
        return Runnable(self.function, metadata, self.cleaner, explain=explain)


def load_python(definition: Definition, solution: Solution, *, prefix: str) -> LoadedPython:
    """Import a solution's entry point.

    The sources are written to a folder of this process and imported as a separate package, so that
    modules of the same name in different solutions do not collide. Files that are not Python are
    placed next to them.

    Parameters
    ----------
    definition : Definition
        The function is checked against it.
    solution : Solution
        Its entry file must be a ``.py`` file.
    prefix : str
        Prefix of the package name.

    Returns
    -------
    LoadedPython
        The function, and a cleaner that unloads it.

    Raises
    ------
    BuildError
        If the import fails, or the entry point is missing or cannot be called with the definition's
        arguments.
    StorageError
        If the sources cannot be written.
    """
    path, name = solution.get_entry_path(), solution.name
    if PurePosixPath(path).suffix != ".py":
        raise BuildError(
            f"solution {name!r}: the entry file of a {solution.spec.language} solution "
            f"must be a .py file, not {path!r}"
        )
    wanted = builder.package_name(
        prefix, solution, builder.content_digest(definition, solution, prefix)
    )
    root = scratch_folder(wanted[: len(prefix) + 40]).resolve()
    package = open_package(wanted, root)

    def discard() -> None:
        package.close()
        shutil.rmtree(root, ignore_errors=True)

    module, headline, log = None, "", ""
    try:
        builder.write_sources(root, solution.sources)
        try:
            module = package.import_file(path)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - candidate code may raise SystemExit
            headline, log = describe_exception(error, root)
        if module is None:  # raised here to drop the traceback of the candidate's frames
            raise BuildError(f"solution {name!r}: importing {path} failed: {headline}", log=log)
        function = find_entry(module, solution)
        style = choose_style(function, definition, solution)
    except BaseException:
        discard()
        raise
    return LoadedPython(function, style, package.name, discard, root)


def find_entry(module: ModuleType, solution: Solution) -> Callable[..., Any]:
    """Return the callable that a solution's entry point names.

    Parameters
    ----------
    module : ModuleType
        The imported entry file.
    solution : Solution
        Its entry point names the symbol.

    Raises
    ------
    BuildError
        If the module has no such symbol, or the symbol is not callable.
    """
    symbol = solution.get_entry_symbol()
    place = f"solution {solution.name!r}: {solution.get_entry_path()}"
    if not hasattr(module, symbol):
        near = difflib.get_close_matches(symbol, [n for n in dir(module) if n[:1] != "_"], n=1)
        hint = f"Did you mean {near[0]!r}?" if near else None
        raise BuildError(f"{place} defines no {symbol!r}", hint=hint)
    found = getattr(module, symbol)
    if not callable(found):
        raise BuildError(f"{place}: {symbol!r} is a {type(found).__name__}, which cannot be called")
    function: Callable[..., Any] = found
    return function


class SourcePackage(MetaPathFinder):
    """A folder whose modules can be imported. Create one with `open_package`.

    Attributes
    ----------
    name : str
        Name of the package, unique in this process.
    root : Path
        The folder.
    """

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.root = root
        # Locations of modules; modules that are not listed are below their parent.
        self._places: dict[str, Path] = {name: root}
        self._builtins: Optional[dict[str, Any]] = None

    def import_file(self, path: str) -> ModuleType:
        """Import one file.

        Parameters
        ----------
        path : str
            The file, relative to the folder.

        Returns
        -------
        ModuleType
            The imported module.

        Raises
        ------
        BaseException
            Whatever the file raises, including SystemExit.
        """
        if self._builtins is None:
            self._builtins = self._with_own_import()
        parts = list(PurePosixPath(path).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        full = self.name
        for part in parts:
            # A dot within a name ("kernel.v2.py") would be read as a package level.
            parent, full = full, f"{full}.{part.replace('.', '_')}"
            self._places[full] = self._place(parent) / part
        return importlib.import_module(full)

    def close(self) -> None:
        """Unload all modules of the package; idempotent.

        Objects that are still referenced keep working, but cannot import further modules.
        """
        with _opening:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
        prefix = f"{self.name}."
        for module in [m for m in sys.modules if m == self.name or m.startswith(prefix)]:
            del sys.modules[module]
        folder = f"{self.root}{os.sep}"
        for file in [f for f in linecache.cache if f.startswith(folder)]:
            del linecache.cache[file]

    def find_spec(
        self,
        fullname: str,
        path: Optional[Sequence[str]] = None,
        target: Optional[ModuleType] = None,
    ) -> Optional[ModuleSpec]:
        """Return the import spec of `fullname` if it is a module of this package, else None."""
        if fullname.partition(".")[0] != self.name:
            return None
        place = self._place(fullname)
        for file, folder in (
            (place / "__init__.py", [str(place)]),
            (place.with_name(f"{place.name}.py"), None),
        ):
            if file.is_file() and not (folder is None and place == self.root):
                loader = _Loader(fullname, str(file), self._builtins)
                return spec_from_file_location(
                    fullname, file, loader=loader, submodule_search_locations=folder
                )
        if not place.is_dir():
            return None
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [str(place)]
        return spec

    def _place(self, fullname: str) -> Path:
        # Without suffix; it may not exist.
        if fullname in self._places:
            return self._places[fullname]
        parent, _, last = fullname.rpartition(".")
        return self._place(parent) / last

    def _with_own_import(self) -> Optional[dict[str, Any]]:
        names: set[str] = set()
        for _, folders, files in os.walk(self.root):
            names.update(folders)
            names.update(file.partition(".")[0] for file in files if file.endswith(".py"))
        if len(names) < 2:
            return None  # a single file has no sibling modules
        names -= {"__init__", *sys.stdlib_module_names}

        def import_module(
            name: str,
            globals: Optional[Mapping[str, Any]] = None,
            locals: Optional[Mapping[str, Any]] = None,
            fromlist: Optional[Sequence[str]] = (),
            level: int = 0,
        ) -> Any:
            top = name.partition(".")[0]
            base = self._nearest(top, globals or {}) if level == 0 and top in names else None
            if base is None:
                return builtins.__import__(name, globals, locals, fromlist or (), level)
            module = builtins.__import__(f"{base}.{name}", globals, locals, fromlist or (), 0)
            # "import a.b" binds a; the built-in __import__ would return our package.
            return module if fromlist else sys.modules[f"{base}.{top}"]

        return {**vars(builtins), "__import__": import_module}

    def _nearest(self, top: str, importer: Mapping[str, Any]) -> Optional[str]:
        # The nearest package that contains `top`, from the importing module upwards.
        base = str(importer.get("__package__") or self.name)
        while base.partition(".")[0] == self.name:
            full = f"{base}.{top}"
            # A file named like an installed library may still import that library.
            known = full in sys.modules or self.find_spec(full) is not None
            if known and full != importer.get("__name__"):
                return base
            base = base.rpartition(".")[0]
        return None


def open_package(name: str, root: Path) -> SourcePackage:
    """Make the folder `root` importable.

    Parameters
    ----------
    name : str
        Desired package name, an identifier. If it is taken in this process, a number is appended.
    root : Path
        A folder; files are read when they are imported.

    Returns
    -------
    SourcePackage
        Call its `close` when it is no longer needed.
    """
    with _opening:
        taken = {each.name for each in sys.meta_path if isinstance(each, SourcePackage)}
        numbered = (f"{name}_{number}" for number in count(2))
        free = (each for each in chain([name], numbered) if each not in taken | sys.modules.keys())
        package = SourcePackage(next(free), root.resolve())
        # First, because the standard finders would load submodules with their own loader.
        sys.meta_path.insert(0, package)
        return package


class _Loader(SourceFileLoader):
    """Loads a source file without caching bytecode, and injects our ``__import__``."""

    def __init__(self, fullname: str, path: str, namespace: Optional[dict[str, Any]]) -> None:
        super().__init__(fullname, path)
        self._builtins = namespace

    def exec_module(self, module: ModuleType) -> None:
        if self._builtins is not None:
            module.__dict__["__builtins__"] = self._builtins
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        """Compile the text as UTF-8, ignoring any encoding declaration."""
        text = self.get_data(self.path).decode("utf-8-sig")
        return compile(text, self.path, "exec", dont_inherit=True)


class Arity(NamedTuple):
    """The number of positional arguments that a function accepts.

    Attributes
    ----------
    least : int
        Number of parameters without a default.
    most : int or None
        Number of parameters; None for any number (``*args``).
    """

    least: int
    most: Optional[int]

    def accepts(self, count: int) -> bool:
        """Return whether a call with `count` positional arguments is valid."""
        return self.least <= count and (self.most is None or count <= self.most)

    def __str__(self) -> str:
        if self.most is None:
            return f"{self.least} or more"
        return str(self.least) if self.most == self.least else f"{self.least} to {self.most}"


def read_arity(function: _Function) -> Optional[Arity]:
    """Return how many positional arguments `function` takes, or None if unknown.

    For a function without a Python signature, an `inspect.Signature` may be passed instead.

    Raises
    ------
    BuildError
        If it has a keyword-only parameter without a default, so that it cannot be called by
        position.
    """
    try:
        known = function if isinstance(function, inspect.Signature) else inspect.signature(function)
    except (ValueError, TypeError):  # compiled functions and some callables have no signature
        return None
    empty, parameters = inspect.Parameter.empty, known.parameters.values()
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is empty:
            raise BuildError(
                f"parameter {parameter.name!r} is keyword-only and has no default, "
                "but arguments are passed by position"
            )
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return Arity(
        sum(p.default is empty for p in positional), None if any_number else len(positional)
    )


def choose_style(function: _Function, definition: Definition, solution: Solution) -> bool:
    """Decide whether a function takes its outputs as arguments, and check that it can.

    If the solution states `destination_passing_style`, the function must match it. Otherwise the
    signature decides: a function that can be called with the inputs alone returns its outputs; one
    that needs inputs and outputs is destination-passing. If both are possible, as with ``*args``,
    it is value-returning, unless it is annotated to return None.

    Parameters
    ----------
    function : callable
        The entry point; or, for a compiled function, the `inspect.Signature` that it reports.
    definition : Definition
        Determines the number of inputs and outputs.
    solution : Solution
        May state the calling convention.

    Returns
    -------
    bool
        True for destination-passing.

    Raises
    ------
    BuildError
        If the function cannot be called that way, or returns a tuple of the wrong length.
    """
    inputs, outputs = len(definition.inputs), len(definition.outputs)
    both, style = inputs + outputs, builder.declared_style(solution.spec)
    problem = hint = None
    try:
        arity = read_arity(function)
    except BuildError as error:
        arity, problem = None, error.message
    if style is None:
        # Nothing decides: use the default of the format.
        style = arity is None or arity.accepts(both)
        if style and arity is not None and arity.accepts(inputs):
            style = outputs > 0 and _returned_type(function) is type(None)
    wanted, other = (both, inputs) if style else (inputs, both)
    length = None if style else annotated_length(function)
    if arity is not None and not arity.accepts(wanted):
        names = ", ".join([*definition.inputs, *(definition.outputs if style else ())])
        convention = "destination-passing" if style else "value-returning"
        problem = (
            f"takes {arity} positional arguments, but a {convention} solution of "
            f"{definition.name!r} gets {wanted}: {names}"
        )
        hint = (
            "It fits the other convention: set destination_passing_style to "
            f"{str(not style).lower()}."
            if arity.accepts(other)
            else f"Value-returning takes {inputs} arguments, destination-passing {both}."
        )
    elif problem is None and length not in (None, outputs):
        problem = (
            f"is annotated to return a tuple of {length}, but {definition.name!r} has {outputs} "
            f"outputs: {', '.join(definition.outputs) or 'none'}"
        )
    if problem is not None:
        symbol = solution.get_entry_symbol()
        raise BuildError(f"solution {solution.name!r}: {symbol}: {problem}", hint=hint)
    return style


def annotated_length(function: _Function) -> Optional[int]:
    """Return the length of the tuple in the return annotation of `function`; None if not fixed."""
    returned = _returned_type(function)
    if typing.get_origin(returned) is not tuple:
        return None
    members = typing.get_args(returned)
    if Ellipsis in members:
        return None
    return 0 if members == ((),) else len(members)


def _returned_type(function: _Function) -> Any:
    """Return the return annotation, or None if it is missing or unreadable."""
    if isinstance(function, inspect.Signature):
        return function.return_annotation
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - annotations are candidate code
        return None
    return hints.get("return")
