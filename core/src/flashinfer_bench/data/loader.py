"""Reading a dataset folder."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flashinfer_bench.data import layout
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.json_codec import decode, parse_json
from flashinfer_bench.data.jsonl import read_records
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.trace_reader import TraceReader
from flashinfer_bench.errors import ConfigError, DataError, DuplicateNameError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.data.trace import Trace

_logger = logging.getLogger(__name__)

OnError = Literal["raise", "collect"]
UNKNOWN_OP_TYPE = "unknown"


class Problems:
    """What to do with files and lines that cannot be read: raise at once, or collect.

    Parameters
    ----------
    on_error : str
        ``"raise"`` or ``"collect"``.
    """

    def __init__(self, on_error: OnError = "raise") -> None:
        if on_error not in ("raise", "collect"):
            raise ConfigError(f"on_error={on_error!r}; allowed are 'raise' and 'collect'")
        self.on_error = on_error
        self.errors: list[DataError] = []

    def add(self, error: DataError) -> None:
        """Raise `error`, or keep it."""
        if self.on_error == "raise":
            raise error
        self.errors.append(error)

    @contextlib.contextmanager
    def guard(self, path: Path) -> Iterator[None]:
        """Treat what goes wrong in the block as a problem of `path`."""
        try:
            yield
        except DataError as error:
            self.add(error)
        except FileNotFoundError:
            _logger.warning("%s: left out: it was deleted meanwhile", path)
        except OSError as error:
            self.add(_unreadable(path, error))


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"cannot be read: {error.strerror or error}", path=path)


@contextlib.contextmanager
def paused_gc() -> Iterator[None]:
    """Switch the cyclic garbage collector off: it would walk all records again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _files(folder: Path, problems: Problems, *suffixes: str) -> list[Path]:
    def tell(error: OSError) -> None:
        problems.add(_unreadable(Path(error.filename or folder), error))

    return layout.files(folder, *suffixes, on_error=tell)


def load_definitions(root: Path, problems: Problems) -> dict[str, Definition]:
    """Read all definitions.

    Parameters
    ----------
    root : Path
        The dataset.
    problems : Problems
        What to do with broken files and duplicate names.

    Returns
    -------
    dict of str to Definition
        By name.
    """
    found: dict[str, Definition] = {}
    paths: dict[str, Path] = {}
    for path in _files(root / layout.DEFINITIONS, problems, ".json"):
        with problems.guard(path):
            definition = load_definition(path, root)
            _claim("definition", definition.name, path, paths)
            found[definition.name] = definition
    return found


def load_definition(path: Path, root: Path) -> Definition:
    """Read one definition; one of 2025-08 that has no op type gets the name of its folder.

    Raises
    ------
    DataError
        If it is not a definition.
    """
    text = path.read_bytes()
    try:
        return decode(Definition, text, path=path)
    except DataError as error:
        data = parse_json(text, path=path)
        if not isinstance(data, dict) or data.keys() & {"op_type", "type"}:
            raise error
    parts = path.relative_to(root / layout.DEFINITIONS).parts
    data["op_type"] = parts[0] if len(parts) > 1 else UNKNOWN_OP_TYPE
    return decode(Definition, json.dumps(data), path=path)


def load_solutions(root: Path, problems: Problems) -> dict[str, list[Solution]]:
    """Read all solutions, by definition."""
    found: dict[str, list[Solution]] = {}
    paths: dict[str, Path] = {}
    for path in _files(root / layout.SOLUTIONS, problems, ".json"):
        with problems.guard(path):
            solution = decode(Solution, path.read_bytes(), path=path)
            _claim("solution", solution.name, path, paths)
            found.setdefault(solution.definition, []).append(solution)
    return found


def _claim(kind: str, name: str, path: Path, paths: dict[str, Path]) -> None:
    first = paths.setdefault(name, path)
    if first is not path:
        raise DuplicateNameError(
            f"there is another {kind} named '{name}': {first}",
            path=path,
            field="name",
            hint=f"rename or remove one of the two; names of {kind}s are unique in a dataset",
        )


Records = dict[str, "list[Trace]"]


def load_traces(root: Path, problems: Problems) -> tuple[Records, Records]:
    """Read all workloads and traces, wherever they lie.

    Old datasets keep workloads below ``traces/``.

    Returns
    -------
    workloads, traces : dict of str to list of Trace
        By definition.
    """
    workloads: Records = {}
    traces: Records = {}
    reader = TraceReader()
    with paused_gc():
        for folder in (layout.WORKLOADS, layout.TRACES):
            for path in _files(root / folder, problems, ".jsonl", ".json"):
                for trace in _read_traces(path, reader, problems):
                    target = traces if trace.solution is not None else workloads
                    target.setdefault(trace.definition, []).append(trace)
    return workloads, traces


def _read_traces(path: Path, reader: TraceReader, problems: Problems) -> Iterator[Trace]:
    with problems.guard(path):
        for line, text in read_records(path):
            try:
                yield reader.read(text, path=path, line=line)
            except DataError as error:  # one bad line; the next may be fine
                problems.add(error)
