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


_cut = msgspec.json.Decoder(_Line).decode
_MODELS: tuple[type[BaseModel], ...] = (Trace, Evaluation, Correctness, Performance)
_FIELDS = {model: set(model.model_fields) for model in _MODELS}


class TraceReader:
    """Makes traces from the lines of many files.

    One reader is meant for one dataset; what it keeps for sharing goes when the reader goes.
    """

    def __init__(self) -> None:
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
            trace = self._read_current(_cut(text))
        except (msgspec.MsgspecError, ValueError, RecursionError):
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
        name = self._names.setdefault
        # All parts are valid; to validate the trace as a whole would validate them again.
        return Trace.model_construct(
            _FIELDS[Trace],
            definition=name(cut.definition, cut.definition),
            workload=self._read_workload(cut.definition, bytes(cut.workload)),
            solution=None if cut.solution is None else name(cut.solution, cut.solution),
            evaluation=evaluation,
        )

    def knows_workload(self, definition: str, text: bytes) -> bool:
        """Return whether JSON text is a workload of today's format."""
        try:
            self._read_workload(definition, text)
        except ValidationError:
            return False
        return True

    def _read_workload(self, definition: str, text: bytes) -> Workload:
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
        made.environment = self._environments.setdefault(key, environment)
        for model in (made, made.correctness, made.performance):
            if model is not None:
                # Shared, instead of a set of 200 to 700 bytes for each.
                object.__setattr__(model, "__pydantic_fields_set__", _FIELDS[type(model)])
        return made
