"""Structures into which a line of a trace file is decoded: no more than choosing needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Union, get_args

import msgspec

from flashinfer_bench.data.samples import PREFIX

if TYPE_CHECKING:
    from flashinfer_bench.apply.records.runs import Other
    from flashinfer_bench.data import Evaluation

_Name = Annotated[str, msgspec.Meta(min_length=1)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0.0)]
_Error = Union[_NotNegative, Literal["NaN", "Infinity"]]
_Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class _ProvenanceExtra(msgspec.Struct, gc=False):
    solution_hash: Optional[str] = None


class Provenance(msgspec.Struct, gc=False):
    """Where the evaluation of a run is from; the fields are those of the record."""

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


# As text, see `flashinfer_bench.data.samples`. They are not used here, so they are not decoded. A
# pattern would say more, but msgspec 0.22 crashes now and then at exit when it has compiled one.
_Samples = Union[list[_NotNegative], Annotated[str, msgspec.Meta(min_length=len(PREFIX))], None]


class _Performance(msgspec.Struct, gc=False):
    latency_ms: _NotNegative
    reference_latency_ms: _NotNegative
    speedup_factor: _NotNegative
    samples_ms: _Samples = None
    reference_samples_ms: _Samples = None


class _Evaluation(msgspec.Struct, gc=False, tag_field="status"):
    environment: msgspec.Raw  # decoded later, once for each distinct text
    timestamp: _Name
    log: str = ""
    provenance: Optional[Provenance] = None


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
    workload : Raw
        The problem, as it is written.
    solution : str or None
        Name of the solution; None for a workload without a run.
    evaluation : struct or None
        What came of it; a `Passed` if the solution passed.
    """

    definition: _Name
    workload: msgspec.Raw
    solution: Optional[_Name] = None
    evaluation: Optional[_AnyEvaluation] = None


_BY_STATUS: dict[str, type[_Evaluation]] = {
    str(one.__struct_config__.tag): one for one in get_args(_AnyEvaluation)
}
_JUDGED = Provenance(evaluator="named")
_NOWHERE = msgspec.Raw(b"{}")


def passed(run: Other, *, is_judged: bool) -> Passed:
    """Return a run that has passed in the form in which it is judged.

    Parameters
    ----------
    run : Other
        Its figures.
    is_judged : bool
        Whether it names its evaluator.
    """
    extra = _Extra(run.matched_ratio, run.integrity)
    return Passed(
        environment=_NOWHERE,
        timestamp="",
        correctness=_Correctness(run.relative, run.absolute, extra),
        performance=_Performance(run.latency_ms, 0.0, 0.0),
        provenance=_JUDGED if is_judged else None,
    )


def evaluation_of(evaluation: Evaluation, environment: msgspec.Raw) -> Any:
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


def _provenance(provenance: Any) -> Provenance:
    known = provenance.extra.get("solution_hash")
    return Provenance(
        evaluator=provenance.evaluator,
        transient=provenance.transient,
        extra=_ProvenanceExtra(known if isinstance(known, str) else None),
    )
