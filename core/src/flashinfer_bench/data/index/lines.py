"""From the lines of a data file to rows, as strictly as the models would read them.

A line is decoded into structures; whatever these accept the models accept as well, with the same
values. Every other line (old spellings, unusual numbers, broken ones) is left to the models.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Annotated, Any, Literal, Optional, Union

import msgspec

from flashinfer_bench.data import samples
from flashinfer_bench.data.trace import GIVEN_WITH, EvaluationStatus, Provenance

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


_environment = lru_cache(msgspec.json.Decoder(_Environment).decode)  # many lines have the same


class _Evaluation(msgspec.Struct, gc=False):
    status: EvaluationStatus
    environment: msgspec.Raw
    timestamp: _Text
    log: str = ""
    correctness: Optional[_Correctness] = None
    performance: Optional[_Performance] = None
    provenance: Any = None


class Line(msgspec.Struct, gc=False):
    """A line of today's format, with the fields of `Trace`."""

    definition: _Text
    workload: msgspec.Raw
    solution: Optional[_Text] = None
    evaluation: Optional[_Evaluation] = None


_decode = msgspec.json.Decoder(Line).decode


def _complete(run: _Evaluation) -> bool:
    """Decode what is still text; return whether the rules hold that go beyond single fields."""
    times = run.performance
    run.environment = _environment(bytes(run.environment))  # type: ignore[assignment]
    if run.provenance is not None:
        run.provenance = Provenance.__pydantic_validator__.validate_python(run.provenance)
    if times is not None:
        for ends in (times.interval_ms, times.speedup_interval):
            if ends is not None and ends[0] > ends[1]:
                return False
        if times.samples_ms is not None:
            times.samples_ms = samples.from_json(times.samples_ms)
        if times.reference_samples_ms is not None:
            samples.from_json(times.reference_samples_ms)
    form = run.correctness is not None, times is not None
    return form == GIVEN_WITH.get(run.status, (False, False))


def decode_line(text: bytes) -> Optional[Line]:
    """Return what a line holds, but for its workload; None if it is for the models to read."""
    try:
        if not text.isascii():
            text.decode()  # the decoder does not look into what it skips
        line = _decode(text)
        run = line.evaluation
        if (line.solution is None) is not (run is None) or not (run is None or _complete(run)):
            return None
        return line
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
