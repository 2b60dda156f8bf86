"""The evaluator for everything that has no special one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.evaluators.base import Check, Evaluator
from flashinfer_bench.bench.judge.correctness import compare
from flashinfer_bench.bench.judge.structure import as_tensors, find_problem, output_specs
from flashinfer_bench.data import Correctness, EvaluationStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators.base import Trial
    from flashinfer_bench.bench.judge.correctness import Comparison, Mismatch
    from flashinfer_bench.data import Definition, Workload


class DefaultEvaluator(Evaluator):
    """Compare every element with the reference.

    ``correctness.extra`` holds ``matched_ratio`` (of the worst output) and, when an element
    failed, ``required_matched_ratio``, ``nonfinite_mismatches`` and ``first_failing`` with its
    output, index, values and trial.
    """

    name = "default"
    version = "1"

    def check(
        self,
        definition: Definition,
        workload: Workload,
        trial: Trial,
        calls: Sequence[Sequence[Any]],
        config: ResolvedEvalConfig,
    ) -> Check:
        """See `Evaluator.check`."""
        specs = output_specs(definition, workload.axes)
        for outputs in calls:
            problem = find_problem(outputs, specs)
            if problem is not None:
                return Check(problem.status, None, problem.message)
        pairs = zip(specs, as_tensors(calls[-1]), trial.expected, strict=True)
        comparisons = {
            spec.name: compare(actual, expected, atol=config.atol, rtol=config.rtol)
            for spec, actual, expected in pairs
        }
        return _verdict(comparisons, config.required_matched_ratio or 1.0, trial)


def _verdict(comparisons: Mapping[str, Comparison], required: float, trial: Trial) -> Check:
    correctness = Correctness(
        max_relative_error=max((c.max_relative_error for c in comparisons.values()), default=0.0),
        max_absolute_error=max((c.max_absolute_error for c in comparisons.values()), default=0.0),
        extra=_extra(comparisons, required, trial.index),
    )
    failed = [name for name, item in comparisons.items() if not item.passes(required)]
    if not failed:
        return Check(EvaluationStatus.PASSED, correctness)
    message = "; ".join(_describe(name, comparisons[name], required) for name in failed)
    return Check(EvaluationStatus.INCORRECT_NUMERICAL, correctness, message)


def _extra(comparisons: Mapping[str, Comparison], required: float, trial: int) -> dict[str, Any]:
    ratio = min((item.matched_ratio for item in comparisons.values()), default=1.0)
    extra: dict[str, Any] = {"matched_ratio": ratio}
    name, first = _first_failing(comparisons, required)
    if first is None:
        return extra
    place = {"output": name, "index": list(first.index), "trial": trial}
    values = {"actual": plain_number(first.actual), "expected": plain_number(first.expected)}
    return {
        **extra,
        "required_matched_ratio": required,
        "nonfinite_mismatches": sum(c.nonfinite_mismatches for c in comparisons.values()),
        "first_failing": {**place, **values},
    }


def _first_failing(
    comparisons: Mapping[str, Comparison], required: float
) -> tuple[str, Optional[Mismatch]]:
    """Return the first failing element of an output that fails; else of any output."""
    ordered = sorted(comparisons.items(), key=lambda item: item[1].passes(required))
    for name, item in ordered:
        if item.first_failing is not None:
            return name, item.first_failing
    return "", None


def plain_number(value: float) -> Any:
    """Return a number that every JSON reader takes: NaN and ±inf as strings."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _describe(name: str, item: Comparison, required: float) -> str:
    text = f"output {name!r}: {item.matched} of {item.elements} elements match"
    if required < 1.0:
        text += f" ({item.matched_ratio:.6g} < {required:g})"
    text += f", largest error {item.max_absolute_error:.6g} absolute"
    text += f", {item.max_relative_error:.6g} relative"
    if item.nonfinite_mismatches:
        text += f", {item.nonfinite_mismatches} NaN or inf out of place"
    if (first := item.first_failing) is not None:
        text += f"; first at {list(first.index)}: {first.actual:g} instead of {first.expected:g}"
    return text
