"""Problem folders of SOL-ExecBench: ``definition.json`` and ``workload.jsonl``.

They are close to our format. What differs: axes that are computed from others, workloads without
a wrapper, more kinds of inputs, hooks such as ``custom_inputs_entrypoint``, and solutions with a
list of languages. What has no counterpart here is left out, and said.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fib_datasets.transfer.sources import (
    PROBLEM,
    PROBLEM_WORKLOADS,
    Source,
    add_solution,
    is_problem,
)
from flashinfer_bench.data import layout
from flashinfer_bench.data.blob_plan import BlobRoot
from flashinfer_bench.data.constraints import parse_constraint
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.json_codec import decode, parse_json
from flashinfer_bench.data.jsonl import read_records
from flashinfer_bench.data.legacy import upgrade_workload
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.tolerance import OutputTolerance, Tolerance
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.errors import DataError, DuplicateNameError, UnsafePathError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

REFERENCE = "reference.py"

_OP_TYPE = "sol_execbench"
_INPUTS = ("random", "scalar", "safetensors")
_TOLERANCE = {*Tolerance.model_fields, *OutputTolerance.model_fields, "max_atol", "max_rtol"}
_LANGUAGES = {"pytorch": "python", "cuda_cpp": "cuda"}


def find_problems(folder: Path) -> list[Path]:
    """Return the problem folders at and below a folder, sorted."""
    parents = [file.parent for file in layout.files(folder, PROBLEM) if file.name == PROBLEM]
    return [parent for parent in parents if is_problem(parent)]


def read_folder(folder: Path) -> Source | None:
    """Read the problems at and below a folder; None if there are none."""
    problems = find_problems(folder)
    return read_problems(folder, problems) if problems else None


def read_problems(root: Path, folders: list[Path]) -> Source:
    """Read problem folders as one dataset.

    Parameters
    ----------
    root : Path
        Folder that all of them are in; tensor files may be anywhere in it.
    folders : list of Path
        The problem folders.

    Returns
    -------
    Source
        What could be carried over, and what could not.
    """
    source = Source(TraceSet())
    for folder in folders:
        try:
            name = _Problem(folder, source).read()
            source.own_roots[name] = [BlobRoot(base, root) for base in _up_to(root, folder)]
        except DataError as error:
            source.left_out.append(error)
        except OSError as error:
            source.left_out.append(DataError(f"cannot be read: {error}", path=folder))
    return source


def _up_to(root: Path, folder: Path) -> list[Path]:
    """Return a folder and those that it is in, up to the root: paths are relative to any."""
    above = [one for one in folder.parents if one.is_relative_to(root)]
    return [folder, *above] if folder != root else [root]


class _Problem:
    def __init__(self, folder: Path, source: Source) -> None:
        self._folder = folder
        self._source = source
        self._computed: dict[str, str] = {}
        self._definition: Definition

    def read(self) -> str:
        """Read all of it; return the name of the definition."""
        path = self._folder / PROBLEM
        record = _object(parse_json(path.read_bytes(), path=path), path)
        record = self._with_reference(record)
        self._note_extras(path, record, Definition.model_fields.keys() | {"type"})
        record = {"op_type": record.get("type") or _OP_TYPE, **record}
        self._definition = decode(Definition, json.dumps(self._plain_axes(record)), path=path)
        name = self._definition.name
        if name in self._source.trace_set.definitions:
            raise DuplicateNameError(f"there is another problem named '{name}'", path=path)
        self._source.trace_set.definitions[name] = self._definition
        self._read_workloads()
        self._read_solutions()
        return name

    def _note_extras(self, path: Path, record: dict[str, Any], known: Collection[str]) -> None:
        extra = sorted(key for key, value in record.items() if key not in known and value)
        if extra:
            self._note(path, f"not carried over: {', '.join(extra)}")

    def _note(self, path: Path, text: str) -> None:
        note = f"{path}: {text}"
        if note not in self._source.notes:
            self._source.notes.append(note)

    def _with_reference(self, record: dict[str, Any]) -> dict[str, Any]:
        """Take the reference from its own file where the record has none, or only its name."""
        given = record.get("reference")
        if isinstance(given, str) and not given.endswith(".py") and given.strip():
            return record
        file = _inside(self._folder, given if isinstance(given, str) and given else REFERENCE)
        return {**record, "reference": _text(file)} if file.is_file() else record

    def _plain_axes(self, record: dict[str, Any]) -> dict[str, Any]:
        """Make computed axes variable; a constraint says what they are computed from."""
        axes = record.get("axes")
        if not isinstance(axes, dict):
            return record
        self._computed = {
            name: axis["expression"]
            for name, axis in axes.items()
            if isinstance(axis, dict)
            and axis.get("type") == "expr"
            and isinstance(axis.get("expression"), str)
        }
        if not self._computed:
            return record
        plain = {
            name: {"type": "var", **_only(axis, "description")} if name in self._computed else axis
            for name, axis in axes.items()
        }
        rules = [f"{name} == {text}" for name, text in self._computed.items()]
        given = record.get("constraints") or []
        # What is no list is left to validation to refuse.
        constraints = [*given, *rules] if isinstance(given, list) else given
        return {**record, "axes": plain, "constraints": constraints}

    # ------------------------------------------------------------------------------- workloads

    def _read_workloads(self) -> None:
        path = self._folder / PROBLEM_WORKLOADS
        kept = self._source.trace_set.workloads.setdefault(self._definition.name, [])
        for line, text in read_records(path):
            try:
                kept.append(self._workload(text, path, line))
            except DataError as error:
                self._source.left_out.append(error)

    def _workload(self, text: bytes, path: Path, line: int | None) -> Trace:
        record = _object(parse_json(text, path=path, line=line), path, line)
        record = _object(record.get("workload", record), path, line)
        self._note_extras(path, record, Workload.model_fields.keys())
        self._require_known_inputs(record.get("inputs"), path, line)
        tolerance = record.get("tolerance")
        if isinstance(tolerance, dict):
            self._note_extras(path, tolerance, _TOLERANCE)
        try:
            record = {**record, "axes": self._variable_axes(record.get("axes"))}
        except DataError as error:
            raise DataError(error.message, path=path, line=line, field="axes") from error
        record = upgrade_workload(record, definition=self._definition.name)
        workload = decode(Workload, json.dumps(record), path=path, line=line)
        return Trace(definition=self._definition.name, workload=workload)

    def _require_known_inputs(self, inputs: Any, path: Path, line: int | None) -> None:
        for name, spec in inputs.items() if isinstance(inputs, dict) else ():
            kind = spec.get("type") if isinstance(spec, dict) else None
            if kind not in _INPUTS:
                raise DataError(
                    f"an input of type {kind!r} has no counterpart; allowed are "
                    f"{', '.join(_INPUTS)}",
                    path=path,
                    line=line,
                    field=f"inputs.{name}",
                    hint="store such inputs as tensor files, and name those",
                )

    def _variable_axes(self, given: Any) -> Any:
        """Return the values of the variable axes, those that are computed among them."""
        if not isinstance(given, dict) or not all(type(size) is int for size in given.values()):
            return given
        sizes = {**self._definition.const_axes}
        for name, size in given.items():
            if sizes.setdefault(name, size) != size:
                raise DataError(f"'{name}' is {size}, but the definition says {sizes[name]}")
        for name, text in self._computed.items():  # in the order declared, one may need another
            size = _value(text, sizes)
            if sizes.setdefault(name, size) != size:
                raise DataError(f"'{name}' is {sizes[name]}, but {text} is {size}")
        const = self._definition.const_axes
        return {name: size for name, size in sizes.items() if name not in const}

    # ------------------------------------------------------------------------------- solutions

    def _read_solutions(self) -> None:
        files = [*self._folder.glob("solution*.json"), *self._folder.glob("solutions/**/*.json")]
        for path in sorted(files):
            try:
                record = _object(parse_json(path.read_bytes(), path=path), path)
                solution = decode(Solution, json.dumps(self._solution(record, path)), path=path)
                add_solution(solution, path, self._source.trace_set)
            except DataError as error:
                self._source.left_out.append(error)

    def _solution(self, record: dict[str, Any], path: Path) -> dict[str, Any]:
        self._note_extras(path, record, Solution.model_fields.keys())
        spec, sources = record.get("spec"), record.get("sources")
        if isinstance(spec, dict) and "language" not in spec:
            language = _only_language(spec.get("languages"), path)
            spec = {key: value for key, value in spec.items() if key != "languages"}
            record = {**record, "spec": {**spec, "language": language}}
        if isinstance(sources, list):
            record = {**record, "sources": [_with_content(one, path.parent) for one in sources]}
        return {"definition": self._definition.name, **record}


def _value(expression: str, sizes: Mapping[str, int]) -> int:
    """Return the size that an axis is computed to be."""
    parsed = parse_constraint(expression)
    if not parsed.decidable(sizes):
        missing = ", ".join(sorted(parsed.names - sizes.keys())) or "more than axes"
        raise DataError(f"cannot be computed: '{expression}' needs {missing}")
    return parsed.value(sizes)


def _only_language(languages: Any, path: Path) -> str:
    one = languages[0] if isinstance(languages, list) and len(languages) == 1 else None
    if not isinstance(one, str):
        problem = f"has the languages {languages!r}; one is allowed"
        raise DataError(problem, path=path, field="spec.languages")
    return _LANGUAGES.get(one, one)


def _object(document: Any, path: Path, line: int | None = None) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise DataError("must be an object", path=path, line=line)
    return document


def _only(record: dict[str, Any], name: str) -> dict[str, Any]:
    return {name: record[name]} if record.get(name) is not None else {}


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise DataError(f"byte {error.start} is not UTF-8", path=file) from error


def _inside(folder: Path, path: str) -> Path:
    file = (folder / path).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise UnsafePathError(f"{path!r} leads out of the folder", path=folder)
    return file


def _with_content(source: Any, folder: Path) -> Any:
    """Read a source that is named by its path alone from beside the solution."""
    if not isinstance(source, dict) or source.get("content") or not source.get("path"):
        return source
    file = _inside(folder, str(source["path"]))
    return {**source, "content": _text(file)} if file.is_file() else source
