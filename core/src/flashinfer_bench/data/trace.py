"""Traces: results of running a solution on a workload."""

from __future__ import annotations

import base64
import binascii
import math
import struct
import sys
from typing import TYPE_CHECKING, Annotated, Any, Optional, Union

import pydantic
from pydantic import AfterValidator, AliasChoices, BeforeValidator, ConfigDict, Field

from flashinfer_bench.data.base import (
    JsonWords,
    NameEnum,
    NonEmptyStr,
    SchemaModel,
    Size,
    null_as,
    number_for_word,
)
from flashinfer_bench.data.workload import InputDesc as InputDesc  # older code imports these here
from flashinfer_bench.data.workload import RandomInput as RandomInput
from flashinfer_bench.data.workload import SafetensorsInput as SafetensorsInput
from flashinfer_bench.data.workload import ScalarInput as ScalarInput
from flashinfer_bench.data.workload import ScalarValue as ScalarValue
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable

# ------------------------------------------------------------- samples, as one short string
#
# ``f32:`` and the samples in Base64, which takes half the space of a list of numbers. Each is an
# IEEE 754 single-precision number, little-endian: 24 bits resolve a nanosecond in 16 ms, and clocks
# are not more precise. Samples are rounded by `rounded` before the median is taken, so that the
# median of the stored samples is exactly the latency of the trace.

PREFIX = "f32:"
_BYTES = 4


def rounded(values: Iterable[float]) -> tuple[float, ...]:
    """Return `values`, each rounded to the nearest single-precision number.

    Raises
    ------
    OverflowError
        If one is above the maximum of such numbers, 3.4e38.
    """
    given = tuple(values)
    return struct.unpack(f"<{len(given)}f", struct.pack(f"<{len(given)}f", *given))


def packed(values: list[float]) -> Union[str, list[float]]:
    """Return samples as a string, or unchanged if a string could not store them exactly."""
    form = f"<{len(values)}f"
    try:
        raw = struct.pack(form, *values)
    except OverflowError:
        return values
    if struct.unpack(form, raw) != tuple(values):
        return values
    return PREFIX + base64.b64encode(raw).decode("ascii")


def unpacked(text: str) -> list[float]:
    """Return the samples in a string of `packed`.

    Raises
    ------
    ValueError
        If `packed` could not have written the string.
    """
    if not text.startswith(PREFIX):
        raise ValueError(f"samples must be a list of numbers, or begin with {PREFIX!r}")
    try:
        raw = base64.b64decode(text[len(PREFIX) :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"samples are not valid Base64: {error}") from error
    if len(raw) % _BYTES:
        raise ValueError(f"samples have {len(raw)} bytes, which is not a multiple of {_BYTES}")
    values = list(struct.unpack(f"<{len(raw) // _BYTES}f", raw))
    # The sum is not finite if any value is NaN, which min may miss.
    if values and not (min(values) >= 0 and math.isfinite(sum(values))):
        raise ValueError("samples must be finite and not negative")
    return values


def samples_from_json(value: Any) -> Any:
    """Unpack samples that are a string; leave all other values to validation."""
    return unpacked(value) if isinstance(value, str) else value


def dropped_numbers(rows: Optional[Iterable[tuple[int, int]]], count: int) -> set[int]:
    """Return the indices of dropped samples; ranges may overlap or exceed the samples.

    Parameters
    ----------
    rows : iterable of (int, int), optional
        Ranges ``[first, end)`` as in ``performance.dropped``.
    count : int
        Number of samples.
    """
    return {number for first, end in rows or () for number in range(first, min(end, count))}


# ------------------------------------------------------------------------------- records


def _not_negative(value: Any) -> Any:
    number = number_for_word(value)
    if isinstance(number, (int, float)) and number < 0:  # false for NaN: the output held one
        raise ValueError("must be a number that is not negative, or Infinity or NaN")
    return number


def _latency(value: Any) -> Any:
    number = number_for_word(value)
    # What JSON may hold and no float can is infinite, as in pydantic's own reader of JSON.
    return math.inf if isinstance(number, int) and number > sys.float_info.max else number


def _in_order(ends: tuple[float, float]) -> tuple[float, float]:
    if ends[0] > ends[1]:
        raise ValueError("an interval must be [low, high], with low <= high")
    return ends


Error = Annotated[float, Field(strict=True), BeforeValidator(_not_negative), JsonWords]
Duration = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Latency = Annotated[float, Field(strict=True, ge=0), BeforeValidator(_latency), JsonWords]
Samples = Annotated[
    list[Duration],
    BeforeValidator(samples_from_json),
    pydantic.PlainSerializer(packed, when_used="json"),
]
Range = Annotated[tuple[Duration, Duration], Field(strict=False), AfterValidator(_in_order)]


class EvaluationStatus(NameEnum):
    """How an evaluation ended.

    A member equals its name as a string.
    """

    PASSED = "PASSED"
    INCORRECT_SHAPE = "INCORRECT_SHAPE"
    INCORRECT_NUMERICAL = "INCORRECT_NUMERICAL"
    INCORRECT_DTYPE = "INCORRECT_DTYPE"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    COMPILE_ERROR = "COMPILE_ERROR"
    TIMEOUT = "TIMEOUT"

    @classmethod
    def _missing_(cls, value: object) -> Optional[EvaluationStatus]:
        name = value.upper() if isinstance(value, str) else ""
        return cls.__members__.get("INCORRECT_NUMERICAL" if name == "INCORRECT" else name)


GIVEN_WITH = {
    EvaluationStatus.PASSED: (True, True),
    EvaluationStatus.INCORRECT_NUMERICAL: (True, False),
}
"""Whether correctness and performance are present, by status; for other statuses neither is."""


class Correctness(SchemaModel):
    """Deviation of the outputs from those of the reference.

    Parameters
    ----------
    max_relative_error, max_absolute_error : float
        Largest error of all elements; may be Infinity or NaN.
    extra : dict, optional
        Further results of the evaluator.
    """

    max_relative_error: Error = 0.0
    max_absolute_error: Error = 0.0
    extra: Annotated[Optional[dict[str, Any]], JsonWords] = None

    @property
    def disputed(self) -> bool:
        """Whether the latency is disputed."""
        told = self.extra and self.extra.get("integrity")
        return isinstance(told, dict) and "disputed" in told


class Performance(SchemaModel):
    """Latencies of the solution and the reference.

    Parameters
    ----------
    latency_ms : float
        Latency of the solution in milliseconds; may be infinite in old files.
    reference_latency_ms : float
        Latency of the definition's reference in milliseconds; 0 if it was not timed.
    speedup_factor : float
        Reference latency over latency; 0 if the reference was not timed.
    samples_ms : list of float, optional
        Every timed call of the solution in milliseconds, in order. Written to JSON as a string (see
        `packed`); a list is accepted as well.
    interval_ms : (float, float), optional
        95 % confidence interval of the latency, in milliseconds.
    reference_samples_ms : list of float, optional
        Every timed call of the reference, like ``samples_ms``.
    speedup_interval : (float, float), optional
        95 % confidence interval of the speed-up factor.
    outliers : int, optional
        Number of outliers among the samples. They count like all others.
    dropped : list of (int, int), optional
        Ranges ``[first, end)`` of samples that do not count, because the device was throttled or
        the call had to wait for a core.
    """

    latency_ms: Latency = 0.0
    reference_latency_ms: Latency = 0.0
    speedup_factor: Annotated[Duration, BeforeValidator(number_for_word)] = 0.0
    samples_ms: Optional[Samples] = None
    interval_ms: Optional[Range] = None
    reference_samples_ms: Optional[Samples] = None
    speedup_interval: Optional[Range] = None
    outliers: Optional[Size] = None
    dropped: Optional[list[tuple[Size, Size]]] = None

    @property
    def counted_ms(self) -> list[float]:
        """The samples that count: those that were not dropped."""
        given = self.samples_ms or []
        out = dropped_numbers(self.dropped, len(given))
        return [one for number, one in enumerate(given) if number not in out]


class Environment(SchemaModel):
    """Device and libraries of a run.

    Parameters
    ----------
    hardware : str
        Name of the device. Its old name, ``device``, is accepted.
    libs : dict of str to str
        Versions of the relevant libraries.
    """

    hardware: NonEmptyStr = Field(validation_alias=AliasChoices("hardware", "device"))
    libs: Annotated[dict[str, str], null_as({})] = Field(default_factory=dict)


class Provenance(SchemaModel):
    """How the results were obtained, so that they can be reproduced.

    All fields are optional; unknown keys are kept.

    Parameters
    ----------
    seed : int, optional
        Seed of the inputs.
    timer, timer_version : str, optional
        The timer and its version.
    evaluator : str, optional
        The evaluator that checked the outputs.
    harness_version : str, optional
        Release of this project.
    warmup_runs, iterations, num_trials : int, optional
        Numbers of warm-up calls, timed calls in each trial, and trials.
    transient : bool
        Whether another attempt may end differently (after a timeout, a crash, or a disputed
        latency); ``--resume`` retries such evaluations.
    wall_s, build_s : float, optional
        Duration of the evaluation, and of the build, in seconds.
    device : str, optional
        The device: ``cuda:0``.
    stop_rule : str, optional
        The rule that decides how many calls are timed; ``fixed`` means the counts above.
    definition_hash : str, optional
        Digest of the definition: 16 hexadecimal digits.
    inputs_crc32 : str, optional
        CRC-32 over the inputs of all trials: 8 hexadecimal digits.
    host : str, optional
        Anonymous identity of the machine: 12 hexadecimal digits.
    driver : str, optional
        Version of the GPU driver.
    sm_clock_mhz, memory_clock_mhz : int, optional
        The GPU's clocks right after the evaluation, in MHz.
    timing : dict, optional
        How the samples were taken: parameters of the stop rule, state of the caches, when the
        reference was timed, and clocks, temperature and load during timing.
    settings : dict, optional
        Settings that differ from the defaults of the release.
    plugins : dict, optional
        Distribution and version of each plugin that took part, by its role.
    toolchain : dict, optional
        Compilers and their versions.
    extra : dict
        Further data.
    """

    model_config = ConfigDict(extra="allow")

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
    stop_rule: Optional[str] = None
    definition_hash: Optional[str] = None
    inputs_crc32: Optional[str] = None
    host: Optional[str] = None
    driver: Optional[str] = None
    sm_clock_mhz: Optional[int] = None
    memory_clock_mhz: Optional[int] = None
    timing: Annotated[Optional[dict[str, Any]], JsonWords] = None
    settings: Annotated[Optional[dict[str, Any]], JsonWords] = None
    plugins: Annotated[Optional[dict[str, Any]], JsonWords] = None
    toolchain: Annotated[Optional[dict[str, Any]], JsonWords] = None
    extra: Annotated[dict[str, Any], JsonWords] = Field(default_factory=dict)


class Evaluation(SchemaModel):
    """Result of one run. Unknown keys, such as an old ``error`` and ``log_file``, are kept.

    Parameters
    ----------
    status : EvaluationStatus
        How it ended.
    environment : Environment
        Device and libraries.
    timestamp : str
        Time in ISO 8601.
    log : str
        Output of the run and remarks of the judge; if empty, an old ``error`` and ``log_file``.
    correctness : Correctness, optional
        Present exactly if `status` is ``PASSED`` or ``INCORRECT_NUMERICAL``.
    performance : Performance, optional
        Present exactly if `status` is ``PASSED``.
    provenance : Provenance, optional
        How the results were obtained.
    """

    model_config = ConfigDict(extra="allow")

    status: EvaluationStatus
    environment: Environment
    timestamp: NonEmptyStr
    log: Annotated[str, null_as("")] = ""
    correctness: Optional[Correctness] = None
    performance: Optional[Performance] = None
    provenance: Optional[Provenance] = None

    @pydantic.model_validator(mode="after")
    def _fits_status(self) -> Evaluation:
        wanted = GIVEN_WITH.get(self.status, (False, False))
        for name, must in zip(("correctness", "performance"), wanted, strict=True):
            part = getattr(self, name)
            if part is not None and not must and not part.model_fields_set:  # an old {}
                part = None
                setattr(self, name, None)
            if (part is not None) is not must:
                rule = "must be given" if must else "must be absent"
                raise DataError(f"{name} {rule} when the status is {self.status}", field=name)
        if not self.log and (old := self.model_extra):
            lines = (old.get("error"), old.get("log_file") and f"log file: {old['log_file']}")
            self.log = "\n".join(str(line) for line in lines if line)
        return self


class Trace(SchemaModel):
    """A workload of a definition and, unless it is a workload trace, one run of a solution on it.

    Parameters
    ----------
    definition : str
        Name of the definition.
    workload : Workload
        The workload.
    solution : str, optional
        Name of the solution.
    evaluation : Evaluation, optional
        The result. Solution and evaluation are given together or not at all.
    """

    definition: NonEmptyStr
    workload: Workload
    solution: Optional[NonEmptyStr] = None
    evaluation: Optional[Evaluation] = None

    @staticmethod
    def upgrade(data: Any) -> Any:
        """Rewrite a trace of an older release."""
        if not isinstance(data, dict):
            return data
        left_out = [one for one in ("solution", "evaluation") if data.get(one) in ({}, "")]
        record = {**data, **dict.fromkeys(left_out)}
        name = record.get("definition")
        if "workload" in record:
            name = name if isinstance(name, str) else ""
            record["workload"] = Workload.upgrade(record["workload"], name)
        return record

    @pydantic.model_validator(mode="after")
    def _whole(self) -> Trace:
        if (self.solution is None) != (self.evaluation is None):
            missing = "solution" if self.solution is None else "evaluation"
            problem = f"{missing} is missing: give both solution and evaluation, or neither"
            raise DataError(problem, field=missing)
        return self

    def is_workload_trace(self) -> bool:
        """Return whether this is a workload alone, without a run."""
        return self.solution is None

    def is_successful(self) -> bool:
        """Return whether this is a run that passed."""
        return self.evaluation is not None and self.evaluation.status is EvaluationStatus.PASSED
