"""Reading the runs in trace files, with only what choosing among solutions needs.

Very many lines are read while a program waits, so they are not made into `Trace` objects. A file is
decoded as a whole into lean structures. What these accept, `Trace` accepts as well, with the same
values; whatever else there is (old spellings, torn or broken lines, one document over many lines)
takes the ordinary way line by line, through `Trace`, which knows all that and words the problems.
"""

from __future__ import annotations

import codecs
import json
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeVar, Union, get_args

import msgspec
from pydantic import BaseModel

from flashinfer_bench.data.json_codec import decode
from flashinfer_bench.data.jsonl import is_torn
from flashinfer_bench.data.trace import Environment
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flashinfer_bench.data import Evaluation, Trace

    _Text = Any
else:
    _Text = msgspec.Raw  # decoded later, once for each distinct text

_Name = Annotated[str, msgspec.Meta(min_length=1)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0.0)]
_Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class _ProvenanceExtra(msgspec.Struct, gc=False):
    solution_hash: Optional[str] = None


class _Provenance(msgspec.Struct, gc=False):
    seed: Optional[int] = None
    timer: Optional[str] = None
    timer_version: Optional[str] = None
    evaluator: Optional[str] = None
    harness_version: Optional[str] = None
    warmup_runs: Optional[int] = None
    iterations: Optional[int] = None
    num_trials: Optional[int] = None
    transient: bool = False
    wall_s: Optional[float] = None
    build_s: Optional[float] = None
    device: Optional[str] = None
    extra: _ProvenanceExtra = msgspec.field(default_factory=_ProvenanceExtra)


class _Extra(msgspec.Struct, gc=False):
    # `integrity` is whatever a judge has noted.
    matched_ratio: Optional[_Share] = None
    integrity: Any = None


class _Correctness(msgspec.Struct, gc=False):
    max_relative_error: _NotNegative
    max_absolute_error: _NotNegative
    extra: Optional[_Extra] = None


class _Performance(msgspec.Struct, gc=False):
    latency_ms: _NotNegative
    reference_latency_ms: _NotNegative
    speedup_factor: _NotNegative
    samples_ms: Optional[list[_NotNegative]] = None


class _Evaluation(msgspec.Struct, gc=False, tag_field="status"):
    environment: _Text
    timestamp: _Name
    log: str = ""
    provenance: Optional[_Provenance] = None


# With each status exactly that is given which `Evaluation` wants to be given.
class Passed(_Evaluation, gc=False, tag="PASSED", kw_only=True):
    """The evaluation of a run that passed; its fields are those of `Evaluation`."""

    correctness: _Correctness
    performance: _Performance


class _IncorrectNumerical(_Evaluation, gc=False, tag="INCORRECT_NUMERICAL", kw_only=True):
    correctness: _Correctness
    performance: None = None


class _Failed(_Evaluation, gc=False, kw_only=True):
    correctness: None = None
    performance: None = None


class _IncorrectShape(_Failed, gc=False, tag="INCORRECT_SHAPE"): ...


class _IncorrectDtype(_Failed, gc=False, tag="INCORRECT_DTYPE"): ...


class _RuntimeError(_Failed, gc=False, tag="RUNTIME_ERROR"): ...


class _CompileError(_Failed, gc=False, tag="COMPILE_ERROR"): ...


class _Timeout(_Failed, gc=False, tag="TIMEOUT"): ...


_AnyEvaluation = Union[
    Passed,
    _IncorrectNumerical,
    _IncorrectShape,
    _IncorrectDtype,
    _RuntimeError,
    _CompileError,
    _Timeout,
]


class Run(msgspec.Struct, gc=False):
    """One line of a trace file: a run of a solution on a workload.

    Attributes
    ----------
    definition : str
        Name of the definition.
    workload : Workload
        The problem; one object for all lines that write it the same.
    solution : str or None
        Name of the solution; None for a workload without a run, which readers leave out.
    evaluation : struct or None
        What came of it; a `Passed` if the solution passed.
    """

    definition: _Name
    workload: _Text
    solution: Optional[_Name] = None
    evaluation: Optional[_AnyEvaluation] = None


_BY_STATUS: dict[str, type[_Evaluation]] = {
    str(one.__struct_config__.tag): one for one in get_args(_AnyEvaluation)
}


def status_of(run: Run) -> str:
    """Return the verdict of a run."""
    tag: str = run.evaluation.__struct_config__.tag  # type: ignore[union-attr,assignment]
    return tag


class RunReader:
    """Reads the runs of the trace files of one dataset.

    Attributes
    ----------
    problems : list of DataError
        What was left out because it cannot be read, in the order met.
    """

    def __init__(self) -> None:
        self.problems: list[DataError] = []
        self._decoder = msgspec.json.Decoder(Run)
        self._workloads: dict[bytes, Workload] = {}
        self._environments: dict[bytes, Environment] = {}

    def read(self, data: bytes, path: Path) -> list[Run]:
        """Return the runs in a file.

        Parameters
        ----------
        data : bytes
            The whole content of the file.
        path : Path
            Where it is from, for `problems`.
        """
        try:
            runs = self._read_current(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            runs = None
        return list(self._read_any(data, path)) if runs is None else runs

    def _read_current(self, data: bytes) -> Optional[list[Run]]:
        """Return the runs of a file that has today's format throughout, else None, or raise."""
        if not data.isascii():
            data.decode()  # the decoder does not look into what it skips
        runs = []
        seen, workload = b"", None  # lines with the same workload mostly follow one another
        for line in self._decoder.decode_lines(data):
            evaluation = line.evaluation
            if (evaluation is None) is not (line.solution is None):
                return None
            text = bytes(line.workload)
            if text != seen:
                seen, workload = text, self._workloads.get(text) or self._workload(text)
            if evaluation is not None:
                line.workload = workload
                text = bytes(evaluation.environment)
                evaluation.environment = self._environments.get(text) or self._environment(text)
                runs.append(line)
        return runs

    def _workload(self, text: bytes) -> Workload:
        if b"\n" in text:
            raise ValueError("a record over several lines")
        made: Workload = Workload.__pydantic_validator__.validate_json(text)
        self._workloads[text] = made
        return made

    def _environment(self, text: bytes) -> Environment:
        made: Environment = Environment.__pydantic_validator__.validate_json(text)
        self._environments[text] = made
        return made

    def _read_any(self, data: bytes, path: Path) -> Iterator[Run]:
        from flashinfer_bench.data.trace import Trace

        for number, text in _documents(data):
            try:
                if text is None:
                    raise DataError("left out an unfinished last line", path=path, line=number)
                trace = decode(Trace, text, path=path, line=number)
            except DataError as error:  # one bad line; the next may be fine
                self.problems.append(error)
                continue
            run = self.of_trace(trace)
            if run is not None:
                yield run

    def of_trace(self, trace: Trace) -> Optional[Run]:
        """Return the run that a trace tells of, None for a workload alone."""
        if trace.solution is None or trace.evaluation is None:
            return None
        workload = _shared(trace.workload, self._workloads)
        environment = _shared(trace.evaluation.environment, self._environments)
        evaluation = _of(trace.evaluation, environment)
        return Run(trace.definition, workload, trace.solution, evaluation)


_Part = TypeVar("_Part", bound=BaseModel)


def _shared(part: _Part, known: dict[bytes, _Part]) -> _Part:
    """Return one object for all that are written the same."""
    return known.setdefault(part.model_dump_json().encode(), part)


def _of(evaluation: Evaluation, environment: Environment) -> Any:
    """Return the lean form of an evaluation; its numbers may be NaN or infinite."""
    given: dict[str, Any] = {}
    if evaluation.correctness is not None:
        errors = evaluation.correctness
        given["correctness"] = _Correctness(
            errors.max_relative_error, errors.max_absolute_error, _extra(errors.extra)
        )
    if evaluation.performance is not None:
        times = evaluation.performance
        given["performance"] = _Performance(
            times.latency_ms, times.reference_latency_ms, times.speedup_factor
        )
    if evaluation.provenance is not None:
        given["provenance"] = _provenance(evaluation.provenance)
    made = _BY_STATUS[evaluation.status.value]
    return made(environment=environment, timestamp=evaluation.timestamp, **given)


def _extra(extra: Optional[dict[str, Any]]) -> Optional[_Extra]:
    if extra is None:
        return None
    ratio = extra.get("matched_ratio")
    if isinstance(ratio, bool) or not (isinstance(ratio, (int, float)) and 0 <= ratio <= 1):
        return _Extra(None, extra.get("integrity"))
    return _Extra(float(ratio), extra.get("integrity"))


def _provenance(provenance: Any) -> _Provenance:
    known = provenance.extra.get("solution_hash")
    return _Provenance(
        evaluator=provenance.evaluator,
        transient=provenance.transient,
        extra=_ProvenanceExtra(known if isinstance(known, str) else None),
    )


# ------------------------------------------------------------------------- broken and odd files


def _documents(data: bytes) -> Iterator[tuple[Optional[int], Optional[bytes]]]:
    """Yield what `flashinfer_bench.data.jsonl.read_records` would, and None for a torn line."""
    data = data.removeprefix(codecs.BOM_UTF8)
    lines = [(number, line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    if lines and not _is_object(lines[0][1]):
        whole = _whole(data)
        if whole is not None:
            yield from ((None, text) for text in whole)
            return
    for number, line in lines:
        is_last = number == lines[-1][0] and not data.endswith(b"\n")
        yield number, None if is_last and is_torn(line) else line.strip()


def _is_object(text: bytes) -> bool:
    return text.lstrip().startswith(b"{") and _parsed(text) is not None


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _whole(data: bytes) -> Optional[list[bytes]]:
    """Return the records of a file that is one JSON document, None if it is not one."""
    document = _parsed(data)
    if document is None:
        return None
    records = document if isinstance(document, list) else [document]
    return [json.dumps(record).encode() for record in records]
