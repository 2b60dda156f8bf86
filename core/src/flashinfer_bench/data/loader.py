"""Reading a dataset folder."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Optional, TypeVar

from flashinfer_bench.data import layout
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.json_codec import decode, load_json_file, load_jsonl_file, parse_json
from flashinfer_bench.data.jsonl import read_records
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.trace_reader import TraceReader
from flashinfer_bench.errors import ConfigError, DataError, DuplicateNameError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_logger = logging.getLogger(__name__)

OnError = Literal["raise", "collect"]
_Named = TypeVar("_Named", Definition, Solution)
UNKNOWN_OP_TYPE = "unknown"


class Problems:
    """Handling of files and lines that cannot be read: raise at once, or collect.

    Parameters
    ----------
    on_error : str
        ``"raise"`` or ``"collect"``.

    Attributes
    ----------
    errors : list of DataError
        The collected errors.
    """

    def __init__(self, on_error: OnError = "raise") -> None:
        if on_error not in ("raise", "collect"):
            raise ConfigError(f"on_error={on_error!r}; allowed: 'raise', 'collect'")
        self.on_error = on_error
        self.errors: list[DataError] = []

    def add(self, error: DataError) -> None:
        """Raise an error, or collect it."""
        if self.on_error == "raise":
            raise error
        self.errors.append(error)

    @contextlib.contextmanager
    def guard(self, path: Path) -> Iterator[None]:
        """Treat errors in the block as problems of `path`."""
        try:
            yield
        except DataError as error:
            self.add(error)
        except FileNotFoundError:
            _logger.warning("%s: left out: deleted in the meantime", path)
        except OSError as error:
            self.add(unreadable(path, error))


def unreadable(path: Path, error: OSError) -> DataError:
    """Return the error for a file or folder that cannot be read."""
    return DataError(f"cannot be read: {error.strerror or error}", path=path)


@contextlib.contextmanager
def paused_gc() -> Iterator[None]:
    """Disable the cyclic garbage collector, which would traverse all records again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _files(folder: Path, problems: Problems, *suffixes: str) -> list[Path]:
    def tell(error: OSError) -> None:
        problems.add(unreadable(Path(error.filename or folder), error))

    return layout.files(folder, *suffixes, on_error=tell)


def data_files(root: Path, problems: Problems) -> Iterator[Path]:
    """Yield all files of workloads and traces; in old datasets workloads are in ``traces/``."""
    for folder in (layout.WORKLOADS, layout.TRACES):
        yield from _files(root / folder, problems, ".jsonl", ".json")


def load_definitions(root: Path, problems: Problems) -> dict[str, Definition]:
    """Read all definitions.

    Parameters
    ----------
    root : Path
        The dataset.
    problems : Problems
        Handling of invalid files and duplicate names.

    Returns
    -------
    dict of str to Definition
        By name.
    """
    read = partial(load_definition, root=root)
    found = _load("definition", root / layout.DEFINITIONS, read, problems)
    return {one.name: one for one in found}


def read_text(path: Path) -> str:
    """Return the text of a file with sources.

    Raises
    ------
    DataError
        If it is not UTF-8, or cannot be read.
    """
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"byte {error.start} is not UTF-8; sources must be text",
            path=path,
            hint="remove it from the folder, or give it a hidden name",
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def load_definition(path: Path, root: Path) -> Definition:
    """Read one definition; one of 2025-08 without an op type gets the name of its folder.

    Parameters
    ----------
    path : Path
        Its file.
    root : Path
        The dataset.

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
    """Read all solutions, by definition; parameters as for `load_definitions`."""
    read = partial(load_json_file, Solution)
    found: dict[str, list[Solution]] = {}
    for one in _load("solution", root / layout.SOLUTIONS, read, problems):
        found.setdefault(one.definition, []).append(one)
    return found


def _load(
    kind: str, folder: Path, read: Callable[[Path], _Named], problems: Problems
) -> Iterator[_Named]:
    files: dict[str, Path] = {}
    for path in _files(folder, problems, ".json"):
        with problems.guard(path):
            record = read(path)
            first = files.setdefault(record.name, path)
            if first is not path:
                message = f"another {kind} is named '{record.name}': {first}"
                hint = f"rename or remove one of them; {kind} names are unique in a dataset"
                raise DuplicateNameError(message, path=path, field="name", hint=hint)
            yield record


Records = dict[str, "list[Trace]"]


def load_traces(root: Path, problems: Problems) -> tuple[Records, Records]:
    """Read all workloads and traces, in whichever folder they are.

    Returns
    -------
    workloads, traces : dict of str to list of Trace
        By definition.
    """
    workloads: Records = {}
    traces: Records = {}
    reader = TraceReader()
    with paused_gc():
        for path in data_files(root, problems):
            with problems.guard(path):
                for line, text in read_records(path):
                    try:
                        trace = reader.read(text, path=path, line=line)
                    except DataError as error:  # the next line may be valid
                        problems.add(error)
                        continue
                    target = traces if trace.solution is not None else workloads
                    target.setdefault(trace.definition, []).append(trace)
    return workloads, traces


def read_workloads(
    root: Path, definition: Definition, uuids: Optional[Sequence[str]] = None
) -> list[Trace]:
    """Read workloads of one definition; other files than its own only if some are not in there.

    Parameters
    ----------
    root : Path
        The dataset.
    definition : Definition
        The definition.
    uuids : sequence of str, optional
        Of the workloads, in the order of the result; by default all.

    Raises
    ------
    UnknownNameError
        If the definition has no workload with one of the uuids.
    """
    path = layout.workloads_file(root, definition.op_type, definition.name)
    every = load_jsonl_file(Trace, path) if path.is_file() else []
    known = {one.workload.uuid: one for one in every if one.is_workload_trace()}
    if not known or not known.keys() >= set(uuids or ()):
        read, _ = load_traces(root, Problems("collect"))
        known |= {one.workload.uuid: one for one in read.get(definition.name, ())}
    if unknown := [uuid for uuid in uuids or () if uuid not in known]:
        raise UnknownNameError.of("workload", unknown, known)
    return [known[uuid] for uuid in dict.fromkeys(known if uuids is None else uuids)]
