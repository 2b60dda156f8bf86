"""Reading many traces, which share equal workloads and environments.

`TraceReader.read` makes a trace with the models. `TraceReader.read_line` only decodes a line of the
current format, three times as fast: it accepts only lines that the models accept, with the same
values. All other lines (old spellings, unusual numbers, invalid ones) are read with the models.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Union

import msgspec
from pydantic import ValidationError

from flashinfer_bench.data.json_codec import decode
from flashinfer_bench.data.trace import (
    GIVEN_WITH,
    Correctness,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    Provenance,
    Trace,
    samples_from_json,
)
from flashinfer_bench.data.workload import Workload

if TYPE_CHECKING:
    from pathlib import Path

_Duration = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Error = Union[_Duration, Literal["NaN", "Infinity"]]
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Ends = Optional[tuple[_Duration, _Duration]]


class _Correctness(msgspec.Struct, gc=False):
    max_relative_error: _Error
    max_absolute_error: _Error
    extra: Optional[dict[str, Any]] = None


class _Performance(msgspec.Struct, gc=False):
    latency_ms: _Duration
    reference_latency_ms: _Duration
    speedup_factor: _Duration
    samples_ms: Union[list[_Duration], str, None] = None
    interval_ms: _Ends = None
    reference_samples_ms: Union[list[_Duration], str, None] = None
    speedup_interval: _Ends = None
    outliers: Optional[_Count] = None
    dropped: Optional[list[tuple[_Count, _Count]]] = None


class _Environment(msgspec.Struct, gc=False):
    hardware: _Text
    libs: dict[str, str] = {}


_environment = lru_cache(msgspec.json.Decoder(_Environment).decode)  # many lines share one


class _Evaluation(msgspec.Struct, gc=False):
    status: EvaluationStatus
    environment: msgspec.Raw
    timestamp: _Text
    log: str = ""
    correctness: Optional[_Correctness] = None
    performance: Optional[_Performance] = None
    provenance: Any = None


class Line(msgspec.Struct, gc=False):
    """A line of the current format, with the fields of `Trace`."""

    definition: _Text
    workload: msgspec.Raw
    solution: Optional[_Text] = None
    evaluation: Optional[_Evaluation] = None


_decode = msgspec.json.Decoder(Line).decode
_FIELDS = {one: set(one.model_fields) for one in (Trace, Evaluation, Correctness, Performance)}


class TraceReader:
    """Makes traces from the lines of the files of one dataset.

    The reader keeps the workloads and environments that traces share.
    """

    def __init__(self) -> None:
        self._by_text: dict[bytes, Workload] = {}
        self._workloads: dict[tuple[str, str], Workload] = {}
        self._environments: dict[tuple[object, ...], Environment] = {}

    def read(self, text: bytes, *, path: Path, line: Optional[int]) -> Trace:
        """Return a trace from one JSON document.

        Parameters
        ----------
        text : bytes
            The document.
        path : Path
            Its file.
        line : int or None
            Its line, in a file with one record per line.

        Raises
        ------
        DataError
            If it is not JSON, or not a trace.
        """
        trace = decode(Trace, text, path=path, line=line)
        # Attributes are set in `vars`, which is faster.
        vars(trace)["workload"] = self._shared(trace.definition, trace.workload)
        run = trace.evaluation
        if run is not None:
            where = run.environment
            key = (where.hardware, *where.libs.items())
            vars(run)["environment"] = self._environments.setdefault(key, where)
            for model in (trace, run, run.correctness, run.performance):
                if model is not None:
                    # Shared, to save 200 to 700 bytes for each model.
                    object.__setattr__(model, "__pydantic_fields_set__", _FIELDS[type(model)])
        return trace

    def read_line(self, text: bytes) -> Optional[Line]:
        """Return a decoded line with its workload, or None if it must be read with the models."""
        try:
            if not text.isascii():
                text.decode()  # the decoders do not check the parts that they skip
            line = _decode(text)
            run = line.evaluation
            if (line.solution is None) is not (run is None):
                return None
            if run is not None:
                _complete(run)
            workload = bytes(line.workload)
            if workload not in self._by_text:
                made = Workload.__pydantic_validator__.validate_json(workload)
                self._by_text[workload] = self._shared(line.definition, made)
            line.workload = self._by_text[workload]  # type: ignore[assignment]
        except (msgspec.MsgspecError, ValidationError, ValueError, RecursionError):
            return None
        return line

    def _shared(self, definition: str, workload: Workload) -> Workload:
        """Return the first equal workload, ignoring differences in formatting."""
        # Compared as text, because in Python 1, 1.0 and True are equal.
        return self._workloads.setdefault((definition, workload.model_dump_json()), workload)


def _complete(run: _Evaluation) -> None:
    """Decode the undecoded parts; raise ValueError if fields contradict each other."""
    times, errors = run.performance, run.correctness
    run.environment = _environment(bytes(run.environment))  # type: ignore[assignment]
    if run.provenance is not None:
        run.provenance = Provenance.__pydantic_validator__.validate_python(run.provenance)
    if times is not None:
        for ends in (times.interval_ms, times.speedup_interval):
            if ends is not None and ends[0] > ends[1]:
                raise ValueError(ends)
        times.samples_ms = samples_from_json(times.samples_ms)
        samples_from_json(times.reference_samples_ms)
    if errors is not None:  # errors may be strings such as "NaN"
        errors.max_absolute_error = float(errors.max_absolute_error)
        errors.max_relative_error = float(errors.max_relative_error)
    if GIVEN_WITH.get(run.status, (False, False)) != (errors is not None, times is not None):
        raise ValueError(run.status)
