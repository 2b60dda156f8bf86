"""Problem folders of SOL-ExecBench: ``definition.json`` and ``workload.jsonl``.

They resemble this format. Differences: axes that are computed from others, workloads without a
wrapper, more kinds of inputs, hooks such as ``custom_inputs_entrypoint``, and solutions with a list
of languages. What has no counterpart is left out and reported.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fib_datasets.transfer.blob_plan import BlobRoot
from fib_datasets.transfer.sources import PROBLEM, PROBLEM_WORKLOADS, Source, add_record, is_problem
from flashinfer_bench.data import (
    Definition,
    OutputTolerance,
    Solution,
    Tolerance,
    Trace,
    TraceSet,
    Workload,
    layout,
    parse_constraint,
)
from flashinfer_bench.data.json_codec import decode, parse_json
from flashinfer_bench.data.jsonl import read_records
from flashinfer_bench.data.loader import Problems
from flashinfer_bench.errors import DataError, UnsafePathError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

REFERENCE = "reference.py"

_OP_TYPE = "sol_execbench"
_INPUTS = ("random", "scalar", "safetensors")
_TOLERANCE = {*Tolerance.model_fields, *OutputTolerance.model_fields, "max_atol", "max_rtol"}
_LANGUAGES = {"pytorch": "python", "cuda_cpp": "cuda"}


def read_folder(root: Path) -> Source | None:
    """Read the problems in a folder and its subfolders as one dataset; None if there are none.

    Tensor files may be anywhere in the folder.
    """
    folders = [file.parent for file in layout.files(root, PROBLEM) if file.name == PROBLEM]
    problems = Problems("collect")
    source = Source(TraceSet(), left_out=problems.errors)
    found = list(filter(is_problem, folders))
    for folder in found:
        with problems.guard(folder):
            name = _Problem(folder, source, problems).read()
            # Paths are relative to the problem, or to any folder above it.
            above = (one for one in folder.parents if one.is_relative_to(root))
            source.own_roots[name] = [BlobRoot(base, root) for base in (folder, *above)]
    return source if found else None


class _Problem:
    def __init__(self, folder: Path, source: Source, problems: Problems) -> None:
        self._folder = folder
        self._source = source
        self._problems = problems
        self._computed: dict[str, str] = {}
        self._definition: Definition

    def read(self) -> str:
        """Read the problem; return the name of the definition."""
        path = self._folder / PROBLEM
        record = _object(parse_json(path.read_bytes(), path=path), path)
        record = self._with_reference(record)
        self._note_extras(path, record, Definition.model_fields.keys() | {"type"})
        record = {"op_type": record.get("type") or _OP_TYPE, **record}
        self._definition = decode(Definition, json.dumps(self._plain_axes(record)), path=path)
        name = self._definition.name
        add_record(self._definition, path, self._source.trace_set)
        path = self._folder / PROBLEM_WORKLOADS
        kept = self._source.trace_set.workloads.setdefault(name, [])
        for line, text in read_records(path):
            with self._problems.guard(path):
                kept.append(self._workload(text, path, line))
        self._read_solutions()
        return name

    def _note_extras(self, path: Path, record: dict[str, Any], known: Collection[str]) -> None:
        extra = sorted(key for key, value in record.items() if key not in known and value)
        note = f"{path}: not imported: {', '.join(extra)}"
        if extra and note not in self._source.notes:
            self._source.notes.append(note)

    def _with_reference(self, record: dict[str, Any]) -> dict[str, Any]:
        """Read the reference from a file if the record lacks it or has only the file's name."""
        given = record.get("reference")
        if isinstance(given, str) and not given.endswith(".py") and given.strip():
            return record
        file = _inside(self._folder, given if isinstance(given, str) and given else REFERENCE)
        return {**record, "reference": _text(file)} if file.is_file() else record

    def _plain_axes(self, record: dict[str, Any]) -> dict[str, Any]:
        """Replace computed axes by variable ones with a constraint."""
        axes, constraints = record.get("axes"), record.get("constraints") or []
        # Validation rejects axes that are no object, and constraints that are no list.
        if not isinstance(axes, dict) or not isinstance(constraints, list):
            return record
        plain = {}
        for name, axis in axes.items():
            plain[name] = axis
            text = axis.get("expression") if isinstance(axis, dict) else None
            if isinstance(text, str) and axis.get("type") == "expr":
                self._computed[name] = text
                plain[name] = {"type": "var", "description": axis.get("description")}
        rules = [f"{name} == {text}" for name, text in self._computed.items()]
        return {**record, "axes": plain, "constraints": [*constraints, *rules]}

    # ------------------------------------------------------------------------------- workloads

    def _workload(self, text: bytes, path: Path, line: int | None) -> Trace:
        record = _object(parse_json(text, path=path, line=line), path, line)
        record = _object(record.get("workload", record), path, line)
        self._note_extras(path, record, Workload.model_fields.keys())
        inputs = record.get("inputs")
        for name, spec in inputs.items() if isinstance(inputs, dict) else ():
            kind = spec.get("type") if isinstance(spec, dict) else None
            if kind not in _INPUTS:
                raise DataError(
                    f"inputs of type {kind!r} are not supported; allowed are {', '.join(_INPUTS)}",
                    path=path,
                    line=line,
                    field=f"inputs.{name}",
                    hint="store such inputs as tensor files",
                )
        tolerance = record.get("tolerance")
        if isinstance(tolerance, dict):
            self._note_extras(path, tolerance, _TOLERANCE)
        try:
            record = {**record, "axes": self._variable_axes(record.get("axes"))}
        except DataError as error:
            raise DataError(error.message, path=path, line=line, field="axes") from error
        record = Workload.upgrade(record, self._definition.name)
        workload = decode(Workload, json.dumps(record), path=path, line=line)
        return Trace(definition=self._definition.name, workload=workload)

    def _variable_axes(self, given: Any) -> Any:
        """Return the values of the variable axes, including computed ones."""
        if not isinstance(given, dict) or not all(type(size) is int for size in given.values()):
            return given
        sizes = {**self._definition.const_axes}
        for name, size in given.items():
            if sizes.setdefault(name, size) != size:
                raise DataError(f"'{name}' is {size}, but the definition says {sizes[name]}")
        for name, text in self._computed.items():  # in declared order: one may need another
            size = _value(text, sizes)
            if sizes.setdefault(name, size) != size:
                raise DataError(f"'{name}' is {sizes[name]}, but {text} is {size}")
        const = self._definition.const_axes
        return {name: size for name, size in sizes.items() if name not in const}

    # ------------------------------------------------------------------------------- solutions

    def _read_solutions(self) -> None:
        files = [*self._folder.glob("solution*.json"), *self._folder.glob("solutions/**/*.json")]
        for path in sorted(files):
            with self._problems.guard(path):
                record = _object(parse_json(path.read_bytes(), path=path), path)
                solution = decode(Solution, json.dumps(self._solution(record, path)), path=path)
                add_record(solution, path, self._source.trace_set)

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
    """Return the size of a computed axis."""
    parsed = parse_constraint(expression)
    if not parsed.decidable(sizes):
        missing = ", ".join(sorted(parsed.names - sizes.keys())) or "more than axes"
        raise DataError(f"cannot compute '{expression}': it needs {missing}")
    return parsed.value(sizes)


def _only_language(languages: Any, path: Path) -> str:
    one = languages[0] if isinstance(languages, list) and len(languages) == 1 else None
    if not isinstance(one, str):
        problem = f"has languages {languages!r}; exactly one is allowed"
        raise DataError(problem, path=path, field="spec.languages")
    return _LANGUAGES.get(one, one)


def _object(document: Any, path: Path, line: int | None = None) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise DataError("must be an object", path=path, line=line)
    return document


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise DataError(f"byte {error.start} is not UTF-8", path=file) from error


def _inside(folder: Path, path: str) -> Path:
    file = (folder / path).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise UnsafePathError(f"{path!r} is outside the folder", path=folder)
    return file


def _with_content(source: Any, folder: Path) -> Any:
    """Read the content of a source that has only a path, relative to the solution."""
    if not isinstance(source, dict) or source.get("content") or not source.get("path"):
        return source
    file = _inside(folder, str(source["path"]))
    return {**source, "content": _text(file)} if file.is_file() else source
