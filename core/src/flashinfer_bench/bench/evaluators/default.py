"""The evaluator for everything that has no special one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.correctness import (
    Comparison,
    OutputSpec,
    as_tensors,
    compare,
    find_problem,
    output_specs,
)
from flashinfer_bench.bench.evaluators.base import Check, Evaluator, Trial
from flashinfer_bench.data import Correctness, Definition, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from flashinfer_bench.bench.config import ResolvedEvalConfig

LOOSE = "loose_tolerance"
"""Key of ``correctness.extra``."""


@dataclass(frozen=True)
class _Result:
    """One output and how it compares with the reference's."""

    name: str
    actual: torch.Tensor
    expected: torch.Tensor
    comparison: Comparison
    required: float
    cap: float

    @property
    def passes(self) -> bool:
        return self.comparison.passes(self.required, self.cap)

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Smallest for the worst output."""
        item = self.comparison
        return self.passes, item.matched_ratio, -item.max_absolute_error


class DefaultEvaluator(Evaluator):
    """Compare every element with the reference.

    ``correctness.extra`` holds ``matched_ratio`` (of the worst output). When an element failed:
    ``required_matched_ratio``, ``nonfinite_mismatches`` and ``first_failing`` with its output,
    index, values and trial. ``tightened`` says which tolerances are smaller than was asked for,
    ``loose_tolerance`` which outputs pass, but would not by dtype: what they would be held to, and
    how much of them matches then.
    """

    name = "default"
    version = "2"

    @property
    def any_device(self) -> bool:  # type: ignore[override]
        """Whether outputs may be on a device; not those that a derived class judges."""
        return type(self).check is DefaultEvaluator.check

    def check(
        self,
        definition: Definition,
        workload: Workload,
        trial: Trial,
        calls: Sequence[Sequence[Any]],
        config: ResolvedEvalConfig,
    ) -> Check:
        """See `Evaluator.check`."""
        return _judge(definition, workload, trial, calls, config, marks=True)

    def check_timed(
        self,
        definition: Definition,
        workload: Workload,
        trial: Trial,
        outputs: Sequence[Any],
        config: ResolvedEvalConfig,
    ) -> Check:
        """See `Evaluator.check_timed`."""
        if type(self).check is not DefaultEvaluator.check:  # of a derived class: the last word
            return super().check_timed(definition, workload, trial, outputs, config)
        parts = definition, workload, trial, [outputs]
        strict = config.held_to_dtypes(definition)
        found = _judge(*parts, strict or config)
        if strict is None or found.passed or found.correctness is None:
            return found
        share = (found.correctness.extra or {}).get("matched_ratio")
        found = _judge(*parts, config)
        if found.passed and found.correctness is not None:
            extra = {**(found.correctness.extra or {}), LOOSE: {"matched_ratio": share}}
            loose = found.correctness.model_copy(update={"extra": extra})
            return replace(found, correctness=loose)
        return found

    def combine(self, checks: Sequence[Check]) -> Correctness:
        """See `Evaluator.combine`; what is loose in one trial is loose."""
        found = super().combine(checks)
        extras = [one.correctness.extra or {} for one in checks if one.correctness is not None]
        loose = next((each[LOOSE] for each in extras if LOOSE in each), None)
        if loose is None:
            return found
        return found.model_copy(update={"extra": {**(found.extra or {}), LOOSE: loose}})


def _judge(
    definition: Definition,
    workload: Workload,
    trial: Trial,
    calls: Sequence[Sequence[Any]],
    config: ResolvedEvalConfig,
    *,
    marks: bool = False,
) -> Check:
    specs = output_specs(definition, workload.axes)
    if (wrong := wrong_form(specs, calls)) is not None:
        return wrong
    results = []
    for spec, actual, expected in zip(specs, as_tensors(calls[-1]), trial.expected, strict=True):
        own = config.tolerance_of(spec.name)
        found = compare(actual, expected, atol=own.atol or 0.0, rtol=own.rtol or 0.0)
        cap = math.inf if own.max_error_cap is None else own.max_error_cap
        required = own.required_matched_ratio or 1.0
        results.append(_Result(spec.name, actual, expected, found, required, cap))
    failed = [result for result in results if not result.passes]
    results.sort(key=lambda result: result.rank)  # the worst one first
    extra = _extra(results, trial, config)
    # Only where nothing is timed: it may mean to compare once more.
    if marks and not failed and (loose := _loose(definition, results, config)):
        extra[LOOSE] = loose
    correctness = Correctness(
        max_relative_error=max((one.comparison.max_relative_error for one in results), default=0.0),
        max_absolute_error=max((one.comparison.max_absolute_error for one in results), default=0.0),
        extra=extra,
    )
    return Check.of(correctness, [_describe(result) for result in failed])


def wrong_form(specs: Sequence[OutputSpec], calls: Sequence[Sequence[Any]]) -> Optional[Check]:
    """Return a failed check if an output does not have its declared form; None otherwise."""
    for outputs in calls:
        problem = find_problem(outputs, specs)
        if problem is not None:
            return Check(problem.status, None, problem.message)
    return None


def _extra(results: Sequence[_Result], trial: Trial, config: ResolvedEvalConfig) -> dict[str, Any]:
    items = [result.comparison for result in results]
    extra: dict[str, Any] = {
        "matched_ratio": min((item.matched_ratio for item in items), default=1.0)
    }
    if config.tightened:
        extra["tightened"] = dict(config.tightened)
    for result in results:
        if (first := result.comparison.first_failing) is not None:
            extra["required_matched_ratio"] = result.required
            extra["nonfinite_mismatches"] = sum(item.nonfinite_mismatches for item in items)
            extra["first_failing"] = {
                "output": result.name,
                "index": list(first.index),
                "trial": trial.index,
                "actual": plain_number(first.actual),
                "expected": plain_number(first.expected),
            }
            break
    return extra


def _loose(
    definition: Definition, results: Sequence[_Result], config: ResolvedEvalConfig
) -> dict[str, dict[str, float]]:
    """Return which outputs would not have passed by dtype, and why."""
    found = {}
    for one in results:
        strict = config.by_dtype(definition, one.name)
        if strict is None:
            continue
        limits = {"atol": strict.atol or 0.0, "rtol": strict.rtol or 0.0}
        known = one.comparison
        if known.max_absolute_error <= limits["atol"] or known.max_relative_error <= limits["rtol"]:
            continue  # then each element is
        again = compare(one.actual, one.expected, **limits)
        if not again.passes(one.required, one.cap):
            found[one.name] = {**limits, "matched_ratio": again.matched_ratio}
    return found


def plain_number(value: float) -> Any:
    """Return a number that every JSON reader takes: NaN and ±inf as strings."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _describe(result: _Result) -> str:
    item, required = result.comparison, result.required
    text = f"output {result.name!r}: {item.matched} of {item.elements} elements match"
    if required < 1.0:
        relation = "<" if item.matched_ratio < required else ">="
        text += f" ({item.matched_ratio:.6g} {relation} {required:g})"
    text += f", largest error {item.max_absolute_error:.6g} absolute"
    if item.max_absolute_error > result.cap:
        text += f" (more than the cap of {result.cap:g})"
    text += f", {item.max_relative_error:.6g} relative"
    if item.nonfinite_mismatches:
        text += f", {item.nonfinite_mismatches} NaN or inf out of place"
    if (first := item.first_failing) is not None:
        text += f"; first at {list(first.index)}: {first.actual:g} instead of {first.expected:g}"
    return text
