"""The fields of a line as the quick way reads them: decoders at least as narrow as the models."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal, Optional, Union

import msgspec
from pydantic import PlainSerializer, ValidationError

from flashinfer_bench.data.trace import Provenance

Duration = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Error = Union[Duration, Literal["NaN", "Infinity"]]
Text = Annotated[str, msgspec.Meta(min_length=1)]

NULL = msgspec.Raw(b"null")
_DEEPEST = 100  # the models' parser gives up at 200 levels, this one does not


class LeanCorrectness(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """As `flashinfer_bench.data.trace.Correctness`."""

    max_relative_error: Error
    max_absolute_error: Error
    extra: Optional[dict[str, Any]] = None


class LeanPerformance(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """As `flashinfer_bench.data.trace.Performance`; what its texts hold is not looked at yet."""

    latency_ms: Duration
    reference_latency_ms: Duration
    speedup_factor: Duration
    samples_ms: Union[list[Duration], str, None] = None
    interval_ms: Optional[tuple[Duration, Duration]] = None
    reference_samples_ms: Union[list[Duration], str, None] = None
    speedup_interval: Optional[tuple[Duration, Duration]] = None
    outliers: Optional[Count] = None
    dropped: Optional[list[tuple[Count, Count]]] = None


class LeanEnvironment(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """As `flashinfer_bench.data.trace.Environment`."""

    hardware: Text
    libs: Optional[dict[str, str]] = None


class LeanEvaluation(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """As `flashinfer_bench.data.trace.Evaluation`; what is raw is not looked at yet."""

    status: str
    environment: msgspec.Raw
    timestamp: Text
    log: str = ""
    correctness: Optional[LeanCorrectness] = None
    performance: Optional[LeanPerformance] = None
    provenance: msgspec.Raw = NULL


class LeanStart(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """What comes before the solution of a line."""

    definition: Text
    workload: msgspec.Raw
    solution: None


class LeanRest(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """What comes from the solution on."""

    solution: Text
    evaluation: LeanEvaluation


class LeanRun(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A whole line."""

    definition: str
    workload: msgspec.Raw
    solution: str
    evaluation: LeanEvaluation


decode_start = msgspec.json.Decoder(LeanStart).decode
decode_rest = msgspec.json.Decoder(LeanRest).decode
decode_run = msgspec.json.Decoder(LeanRun).decode
decode_environment = msgspec.json.Decoder(LeanEnvironment).decode


class UnusualLineError(ValueError):
    """A line is for the models to read."""


UNUSUAL = (msgspec.MsgspecError, ValidationError, ValueError, RecursionError)
"""What the quick way raises for a line that is not for it."""

_PLAIN = (int, str, float, bool, dict[str, Any])
_PLAIN_TYPES = (*_PLAIN, *(Optional[one] for one in _PLAIN))


def _lean_provenance() -> Optional[msgspec.json.Decoder[Any]]:
    """Return a decoder at least as narrow as `Provenance`; None where that has rules of its own."""
    fields = Provenance.model_fields
    rules = Provenance.__pydantic_decorators__
    plain = all(
        field.annotation in _PLAIN_TYPES
        and all(isinstance(one, PlainSerializer) for one in field.metadata)
        for field in fields.values()
    )
    if not plain or rules.field_validators or rules.model_validators or rules.validators:
        return None
    members = [(name, field.annotation, None) for name, field in fields.items()]
    made = msgspec.defstruct("_Provenance", members, forbid_unknown_fields=True)
    return msgspec.json.Decoder(made)


_lean = _lean_provenance()


def is_shallow(text: bytes) -> bool:
    """Return whether JSON text is so little nested that every parser reads it."""
    return text.count(b"[") + text.count(b"{") <= _DEEPEST


def read_provenance(text: bytes) -> Any:
    """Return the provenance of a run, checked as the model does it; None for ``null``."""
    if _lean is not None and is_shallow(text):
        try:
            return _lean.decode(text)
        except UNUSUAL:
            pass  # the model takes more: further keys, numbers as text
    if text == b"null":
        return None
    return Provenance.__pydantic_validator__.validate_json(text)
