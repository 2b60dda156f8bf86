"""Reading the runs in trace files, with only what choosing among solutions needs.

Very many lines are read while a program waits, so they are not made into `Trace` objects. A line is
decoded into lean structures. What these accept, `Trace` accepts as well, with the same values;
whatever else there is (old spellings, torn or broken lines, one document over many lines) takes the
ordinary way, through `Trace`, which knows all that and words the problems.
"""

from __future__ import annotations

import codecs
import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, TypeVar, Union, get_args

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

_PIECE = 1 << 18  # bytes that are decoded at once

_Name = Annotated[str, msgspec.Meta(min_length=1)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0.0)]
_Error = Union[_NotNegative, Literal["NaN", "Infinity"]]
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
    # Numbers, or the words for those that JSON lacks: what `float` takes.
    max_relative_error: _Error
    max_absolute_error: _Error
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
        self._last: tuple[Any, Optional[Workload]] = (None, None)

    def read(self, data: bytes, path: Path) -> Iterator[Run]:
        """Yield the runs in a file.

        Parameters
        ----------
        data : bytes
            The whole content of the file.
        path : Path
            Where it is from, for `problems`.
        """
        # The last line may have been cut off in the middle of an append.
        unfinished = 0 if data.endswith(b"\n") else 1 + data.rstrip().count(b"\n")
        view, is_ascii = memoryview(data), data.isascii()
        done = 0  # lines
        has_begun = False
        for start, end in _pieces(data):
            count = data.count(b"\n", start, end)
            piece = view[start:end]
            runs = self._read_piece(piece, count, is_ascii=is_ascii)
            if runs is None:
                texts = bytes(piece).split(b"\n")
                if not has_begun and (whole := _document(texts, data)) is not None:
                    yield from filter(None, (self._read_any(one, path) for one in whole))
                    return
                has_begun = has_begun or any(map(bytes.strip, texts))
                runs = [
                    self._read_line(text, path, line, is_unfinished=line == unfinished)
                    for line, text in enumerate(texts, done + 1)
                ]
            else:
                has_begun = True
            done += count
            yield from filter(None, runs)

    def _read_piece(
        self, piece: memoryview, count: int, *, is_ascii: bool
    ) -> Optional[list[Optional[Run]]]:
        """Return the runs of `count` lines if all have today's format, else None."""
        try:
            if not is_ascii:
                bytes(piece).decode()  # the decoder does not look into what it skips
            lines = self._decoder.decode_lines(piece)
            # It takes one record on two lines, and two on one.
            return self._shared(lines) if len(lines) == count else None
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None

    def _read_line(
        self, text: bytes, path: Path, line: int, *, is_unfinished: bool
    ) -> Optional[Run]:
        """Return the run of a line; None, and maybe a problem, if there is none."""
        if not text or text.isspace():
            return None
        try:
            if not text.isascii():
                text.decode()
            return self._shared([self._decoder.decode(text)])[0]
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return self._read_any(text, path, line, is_unfinished=is_unfinished)

    def _shared(self, lines: list[Run]) -> list[Optional[Run]]:
        """Give runs the objects that they share with others; None stands for a workload alone."""
        runs: list[Optional[Run]] = []
        environments = self._environments
        seen, workload = self._last  # lines with the same workload mostly follow one another
        for line in lines:
            if line.workload != seen:
                raw = bytes(line.workload)
                workload = self._workloads.get(raw) or _new(Workload, raw, self._workloads)
                seen = line.workload
            evaluation = line.evaluation
            if (evaluation is None) is not (line.solution is None):
                raise ValueError("half a run")
            if evaluation is None:
                runs.append(None)
                continue
            line.workload = workload
            raw = bytes(evaluation.environment)
            known = environments.get(raw)
            evaluation.environment = known or _new(Environment, raw, environments)
            runs.append(line)
        self._last = seen, workload
        return runs

    def _read_any(
        self,
        text: bytes,
        path: Path,
        line: Optional[int] = None,
        *,
        is_unfinished: bool = False,
    ) -> Optional[Run]:
        """Return the run of a record in any format; None, and maybe a problem, if there is none."""
        from flashinfer_bench.data.trace import Trace

        try:
            if is_unfinished and is_torn(text):
                raise DataError("left out an unfinished last line", path=path, line=line)
            return self.of_trace(decode(Trace, text.strip(), path=path, line=line))
        except DataError as error:  # one bad line; the next may be fine
            self.problems.append(error)
            return None

    def of_trace(self, trace: Trace) -> Optional[Run]:
        """Return the run that a trace tells of, None for a workload alone."""
        if trace.solution is None or trace.evaluation is None:
            return None
        workload = _shared(trace.workload, self._workloads)
        environment = _shared(trace.evaluation.environment, self._environments)
        evaluation = _of(trace.evaluation, environment)
        return Run(trace.definition, workload, trace.solution, evaluation)


_Part = TypeVar("_Part", bound=BaseModel)


def _new(kind: type[_Part], text: bytes, known: dict[bytes, _Part]) -> _Part:
    """Make the object for all that are written the same."""
    made: _Part = kind.__pydantic_validator__.validate_json(text)
    known[text] = made
    return made


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


def _pieces(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where to read: many lines at a time, but never all: what is made of them is large."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start + _PIECE) + 1 or len(data)
        yield start, end
        start = end


def _document(texts: list[bytes], data: bytes) -> Optional[list[bytes]]:
    """Return the records of a file that is one JSON document, None if it is one of lines."""
    first = next((text for text in texts if text.strip()), None)
    return None if first is None or _is_object(first) else _whole(data)


def _is_object(text: bytes) -> bool:
    text = text.removeprefix(codecs.BOM_UTF8)
    return text.lstrip().startswith(b"{") and _parsed(text) is not None


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _whole(data: bytes) -> Optional[list[bytes]]:
    """Return the records of a file that is one JSON document, None if it is not one."""
    document = _parsed(data.removeprefix(codecs.BOM_UTF8))
    if document is None:
        return None
    records = document if isinstance(document, list) else [document]
    return [json.dumps(record).encode() for record in records]
