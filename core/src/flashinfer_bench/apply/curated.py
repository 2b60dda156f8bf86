"""One chosen solution for each definition: what a mapping, or a folder, says."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench import env
from flashinfer_bench.apply.arguments import returns_later
from flashinfer_bench.errors import (
    ConfigError,
    DataError,
    DatasetNotFoundError,
    DuplicateNameError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from flashinfer_bench.data import Definition, Solution, TraceSet

    Value = Union[Callable[..., Any], Solution, str, Path]
    Dataset = Union[TraceSet, str, Path, None]

_ALLOWED = "a callable, a Solution, or the path of a solution's JSON file"
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Candidate:
    """What is to be run for a definition.

    Parameters
    ----------
    definition : str
        Name of the definition.
    function : callable, optional
        A function of the user, called by keyword.
    solution : Solution, optional
        If there is no function.
    """

    definition: str
    function: Optional[Callable[..., Any]] = None
    solution: Optional[Solution] = None

    @property
    def name(self) -> str:
        """What it is called in messages."""
        if self.solution is not None:
            return self.solution.name
        function: Any = self.function
        return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def read_mapping(mapping: Mapping[str, Value]) -> dict[str, Candidate]:
    """Check what stands for each definition, and read the files among it.

    Parameters
    ----------
    mapping : mapping of str to callable, Solution or path
        By name of the definition.

    Returns
    -------
    dict of str to Candidate
        In the order of the mapping.

    Raises
    ------
    ConfigError
        If a key is no name, or a value something else.
    DataError
        If a file cannot be read, or a solution is one of another definition.
    """
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"a mapping from definitions to solutions is a {_type(mapping)}")
    return {_checked_name(name): _candidate(name, value) for name, value in mapping.items()}


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{name!r} is no name of a definition; the keys of a mapping are names")
    return name


def _candidate(name: str, value: Any) -> Candidate:
    from flashinfer_bench.data import Solution

    if isinstance(value, Solution):
        return Candidate(name, solution=_of_definition(name, value))
    if isinstance(value, (str, os.PathLike)):
        path = Path(value)
        return Candidate(name, solution=_of_definition(name, read_solution(path), path))
    if not callable(value):
        raise ConfigError(f"the solution of '{name}' is a {_type(value)}; give {_ALLOWED}")
    if returns_later(value):
        raise ConfigError(
            f"the solution of '{name}' returns a coroutine or a generator, and no outputs",
            hint=f"give {_ALLOWED} that returns the outputs",
        )
    return Candidate(name, function=value)


def _of_definition(name: str, solution: Solution, path: Optional[Path] = None) -> Solution:
    if solution.definition != name:
        raise DataError(
            f"solution '{solution.name}' is one of definition '{solution.definition}', "
            f"not of '{name}'",
            path=path,
            field="definition",
            hint=f"put it under '{solution.definition}', or take one of '{name}'",
        )
    return solution


def _type(value: Any) -> str:
    return type(value).__name__


def read_solution(path: Path) -> Solution:
    """Read the file of a solution.

    Raises
    ------
    DataError
        If it cannot be read, or is no solution.
    """
    from flashinfer_bench.data import Solution
    from flashinfer_bench.data.json_codec import decode

    try:
        data = path.expanduser().read_bytes()
    except OSError as error:
        raise DataError(
            f"cannot be read: {error.strerror or error}",
            path=path,
            hint="give the path of a solution's JSON file",
        ) from error
    return decode(Solution, data, path=path)


def read_folder(folder: Path) -> dict[str, Candidate]:
    """Read a folder of chosen solutions: all files below its ``solutions/``.

    Parameters
    ----------
    folder : Path
        With a folder ``solutions``. One solution for each definition, in files of any name.

    Returns
    -------
    dict of str to Candidate
        By name of the definition.

    Raises
    ------
    DatasetNotFoundError
        If there is no such folder.
    DuplicateNameError
        If there are two solutions for a definition.
    DataError
        If a file is no solution, or there is none.
    """
    from flashinfer_bench.data import layout

    root = folder.expanduser()
    if not (root / layout.SOLUTIONS).is_dir():
        raise DatasetNotFoundError(
            f"{root / layout.SOLUTIONS} is no folder",
            hint="put the chosen solutions, one for each definition, into a folder 'solutions'",
        )
    found: dict[str, Candidate] = {}
    paths: dict[str, Path] = {}
    for path in layout.files(root / layout.SOLUTIONS, ".json"):
        solution = read_solution(path)
        name = solution.definition
        if paths.setdefault(name, path) is not path:
            raise DuplicateNameError(
                f"there is another solution for definition '{name}': {paths[name]}",
                path=path,
                field="definition",
                hint="remove one of the two: there is one solution for each definition",
            )
        found[name] = Candidate(name, solution=solution)
    if not found:
        raise DataError(f"there is no solution in {root / layout.SOLUTIONS}", path=root)
    return found


def find_definitions(names: Iterable[str], dataset: Dataset = None) -> dict[str, Definition]:
    """Return those of some definitions that a dataset has.

    Parameters
    ----------
    names : iterable of str
        Which ones are wanted.
    dataset : TraceSet, str or Path, optional
        The dataset or its folder. Default: that of ``FIB_DATASET_PATH``; it may be missing.

    Returns
    -------
    dict of str to Definition
        By name; those that the dataset lacks are left out.

    Raises
    ------
    DatasetNotFoundError
        If `dataset` names no folder.
    DataError
        If the file of one of them is not valid.
    """
    wanted = dict.fromkeys(names)
    definitions = getattr(dataset, "definitions", None)
    if isinstance(definitions, Mapping):
        return {name: definitions[name] for name in wanted if name in definitions}
    root = env.dataset_path() if dataset is None else Path(str(dataset)).expanduser()
    if not root.is_dir():
        if dataset is None:
            return {}
        raise DatasetNotFoundError(f"there is no dataset at {root}")
    return _read_definitions(root, list(wanted))


def gather_definitions(names: Collection[str], *datasets: Dataset) -> dict[str, Definition]:
    """Return each definition from the first dataset that has it, or else from the default one.

    Parameters
    ----------
    names : collection of str
        Which ones are wanted.
    *datasets : TraceSet, str, Path or None
        Where to look first; None is passed over.

    Raises
    ------
    DatasetNotFoundError, DataError
        As of `find_definitions`.
    """
    found: dict[str, Definition] = {}
    for dataset in (*(each for each in datasets if each is not None), None):
        lacking = [name for name in names if name not in found]
        found.update(find_definitions(lacking, dataset) if lacking else {})
    return found


def _read_definitions(root: Path, names: list[str]) -> dict[str, Definition]:
    """Read only files in which one of the names stands."""
    from flashinfer_bench.data import layout
    from flashinfer_bench.data.loader import load_definition

    found: dict[str, Definition] = {}
    marks = [f'"{name}"'.encode() for name in names]
    files = {layout.safe_segment(name) for name in names}
    for path in layout.files(root / layout.DEFINITIONS, ".json"):
        data = path.read_bytes()
        if path.stem not in files and not any(mark in data for mark in marks):
            continue
        definition = load_definition(path, root)
        if definition.name in names:
            found[definition.name] = definition
    return found


def taken_by(function: Callable[..., Any]) -> Optional[dict[str, bool]]:
    """Return what a function takes by name, in order, and whether it needs it.

    Returns
    -------
    dict of str to bool, or None
        None if it takes anything, or does not tell.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return None
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    by_name = [each for each in parameters if each.kind in _BY_KEYWORD]
    return {each.name: each.default is each.empty for each in by_name}


def check_takes(candidate: Candidate, definition: Definition) -> None:
    """Check that a function can be called with the inputs of a definition.

    Raises
    ------
    ConfigError
        If it cannot; the message names the input or the parameter.
    """
    assert candidate.function is not None
    try:
        signature = inspect.signature(candidate.function)
    except (ValueError, TypeError):  # compiled functions and some callable objects do not tell
        return
    try:
        signature.bind(**dict.fromkeys(definition.inputs))
    except TypeError as error:
        raise ConfigError(
            f"{candidate.name}{signature} cannot be called with the inputs of definition "
            f"'{definition.name}' ({', '.join(definition.inputs)}): {error}",
            hint="name its parameters as the definition names the inputs; further ones need a "
            "default",
        ) from None
