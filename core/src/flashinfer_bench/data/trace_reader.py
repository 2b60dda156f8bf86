"""Reading very many traces: each distinct workload is validated once, and shared.

A line is first cut into its four fields, without looking into them. The workload's text is looked
up among those seen before; only the evaluation is new in each line. Where a line is not exactly of
today's format (or broken), it takes the ordinary way, which knows old spellings and has the error
messages. Both ways give equal traces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

import msgspec
from pydantic import BaseModel, ValidationError

from flashinfer_bench.data.json_codec import decode
from flashinfer_bench.data.trace import Correctness, Environment, Evaluation, Performance, Trace
from flashinfer_bench.data.workload import Workload

if TYPE_CHECKING:
    from pathlib import Path


class _Line(msgspec.Struct, gc=False):
    definition: str
    workload: msgspec.Raw
    solution: Optional[str] = None
    evaluation: msgspec.Raw = msgspec.Raw(b"null")


_MODELS: tuple[type[BaseModel], ...] = (Trace, Evaluation, Correctness, Performance)
_FIELDS_SET = "__pydantic_fields_set__"
_ALL_FIELDS = {model: set(model.model_fields) for model in _MODELS}
_set = object.__setattr__  # past the model's own, which would validate


def _compact(model: BaseModel) -> None:
    """Let a model share its class's set of field names instead of owning one (200 to 700 bytes)."""
    _set(model, _FIELDS_SET, _ALL_FIELDS[type(model)])


def _assemble(fields: dict[str, object]) -> Trace:
    """Make a trace of parts that are valid; to validate it as a whole would validate them again."""
    trace = Trace.__new__(Trace)
    _set(trace, "__dict__", fields)
    _set(trace, "__pydantic_extra__", None)
    _set(trace, "__pydantic_private__", None)
    _compact(trace)
    return trace


class TraceReader:
    """Makes traces from the lines of many files.

    One reader is meant for one dataset; what it keeps for sharing goes when the reader goes.
    """

    def __init__(self) -> None:
        self._split = msgspec.json.Decoder(_Line)
        self._by_text: dict[bytes, Workload] = {}
        self._by_uuid: dict[tuple[str, str], Workload] = {}
        self._environments: dict[tuple[object, ...], Environment] = {}
        self._names: dict[str, str] = {}

    def read(self, text: bytes, *, path: Path, line: Optional[int]) -> Trace:
        """Make a trace from one JSON document.

        Parameters
        ----------
        text : bytes
            The document.
        path : Path
            Its file.
        line : int or None
            Its line, if it is one of many.

        Raises
        ------
        DataError
            If it is not JSON, or not a trace.
        """
        try:
            if not text.isascii():
                text.decode()  # the quick decoder does not look into what it skips
            trace = self._read_current(self._split.decode(text))
        except (msgspec.MsgspecError, ValidationError, ValueError, RecursionError):
            trace = None
        if trace is None:
            trace = decode(Trace, text, path=path, line=line)
            trace.workload = self._shared(trace.definition, trace.workload)
        return trace

    def _read_current(self, cut: _Line) -> Optional[Trace]:
        """Return the trace of a line of today's format, None if it is not one as a whole."""
        evaluation = self._evaluation(bytes(cut.evaluation))
        if not cut.definition or cut.solution == "":
            return None
        if (cut.solution is None) is not (evaluation is None):
            return None
        return _assemble(
            {
                "definition": self._name(cut.definition),
                "workload": self.read_workload(cut.definition, bytes(cut.workload)),
                "solution": None if cut.solution is None else self._name(cut.solution),
                "evaluation": evaluation,
            }
        )

    def _name(self, name: str) -> str:
        return self._names.setdefault(name, name)

    def read_workload(self, definition: str, text: bytes) -> Workload:
        """Make a workload from JSON text; the same text gives the same object.

        Raises
        ------
        ValidationError
            If it is not one of today's format.
        """
        workload = self._by_text.get(text)
        if workload is None:
            made = Workload.__pydantic_validator__.validate_json(text)
            workload = self._by_text[text] = self._shared(definition, made)
        return workload

    def _shared(self, definition: str, workload: Workload) -> Workload:
        """Return an equal workload that was met before, written with other blanks maybe."""
        known = self._by_uuid.setdefault((definition, workload.uuid), workload)
        # Compared as text, because to Python a scalar of 1 equals one of 1.0 and one of true.
        same = known is workload or known.model_dump_json() == workload.model_dump_json()
        return known if same else workload

    def _evaluation(self, text: bytes) -> Optional[Evaluation]:
        if text == b"null":
            return None
        made: Evaluation = Evaluation.__pydantic_validator__.validate_json(text)
        environment = made.environment
        key = (environment.hardware, *environment.libs.items())
        made.__dict__["environment"] = self._environments.setdefault(key, environment)
        _compact(made)
        if made.correctness is not None:
            _compact(made.correctness)
        if made.performance is not None:
            _compact(made.performance)
        return made
