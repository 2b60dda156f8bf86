"""The evaluator for everything that has no special one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from flashinfer_bench.bench.evaluators.base import Check, Evaluator
from flashinfer_bench.bench.judge.correctness import compare
from flashinfer_bench.bench.judge.histogram import error_histogram
from flashinfer_bench.bench.judge.structure import as_tensors, find_problem, output_specs
from flashinfer_bench.data import Correctness, EvaluationStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators.base import Trial
    from flashinfer_bench.bench.judge.correctness import Comparison
    from flashinfer_bench.data import Definition, Tolerance, Workload


@dataclass(frozen=True)
class _Result:
    """One output and how it compares with the reference's."""

    name: str
    comparison: Comparison
    tolerance: Tolerance
    histogram: Callable[[], dict[str, Any]]

    @property
    def required(self) -> float:
        return self.tolerance.required_matched_ratio or 1.0

    @property
    def cap(self) -> float:
        cap = self.tolerance.max_error_cap
        return math.inf if cap is None else cap

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

    ``correctness.extra`` holds ``matched_ratio`` (of the worst output) and, where there is an
    error, ``error_histogram`` of the worst output (see `error_histogram`). When an element failed:
    ``required_matched_ratio``, ``nonfinite_mismatches`` and ``first_failing`` with its output,
    index, values and trial. ``tightened`` says which tolerances are smaller than was asked for.
    """

    name = "default"
    version = "2"

    def check(
        self,
        definition: Definition,
        workload: Workload,
        trial: Trial,
        calls: Sequence[Sequence[Any]],
        config: ResolvedEvalConfig,
    ) -> Check:
        """See `Evaluator.check`."""
        return _judge(definition, workload, trial, calls, config, describes=True)

    def check_timed(
        self,
        definition: Definition,
        workload: Workload,
        trial: Trial,
        outputs: Sequence[Any],
        config: ResolvedEvalConfig,
    ) -> Check:
        """See `Evaluator.check_timed`; the errors of what passes are not counted."""
        if type(self).check is not DefaultEvaluator.check:  # of a derived class: the last word
            return super().check_timed(definition, workload, trial, outputs, config)
        return _judge(definition, workload, trial, [outputs], config, describes=False)


def _judge(
    definition: Definition,
    workload: Workload,
    trial: Trial,
    calls: Sequence[Sequence[Any]],
    config: ResolvedEvalConfig,
    *,
    describes: bool,
) -> Check:
    specs = output_specs(definition, workload.axes)
    for outputs in calls:
        problem = find_problem(outputs, specs)
        if problem is not None:
            return Check(problem.status, None, problem.message)
    pairs = zip(specs, as_tensors(calls[-1]), trial.expected, strict=True)
    results = [
        _compare(spec.name, actual, expected, config.tolerance_of(spec.name))
        for spec, actual, expected in pairs
    ]
    return _verdict(results, trial.index, config, describes=describes)


def _compare(
    name: str, actual: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance
) -> _Result:
    found = compare(actual, expected, atol=tolerance.atol or 0.0, rtol=tolerance.rtol or 0.0)
    return _Result(name, found, tolerance, partial(error_histogram, actual, expected))


def _verdict(
    results: Sequence[_Result], trial: int, config: ResolvedEvalConfig, *, describes: bool
) -> Check:
    failed = [result for result in results if not result.passes]
    ordered = sorted(results, key=lambda result: result.rank)  # the worst one first
    items = [result.comparison for result in ordered]
    correctness = Correctness(
        max_relative_error=max((item.max_relative_error for item in items), default=0.0),
        max_absolute_error=max((item.max_absolute_error for item in items), default=0.0),
        extra=_extra(ordered, trial, config, describes=describes or bool(failed)),
    )
    if not failed:
        return Check(EvaluationStatus.PASSED, correctness)
    message = "; ".join(_describe(result) for result in failed)
    return Check(EvaluationStatus.INCORRECT_NUMERICAL, correctness, message)


def _extra(
    ordered: Sequence[_Result], trial: int, config: ResolvedEvalConfig, *, describes: bool
) -> dict[str, Any]:
    extra: dict[str, Any] = {
        "matched_ratio": min((each.comparison.matched_ratio for each in ordered), default=1.0)
    }
    if describes and ordered and ordered[0].comparison.max_absolute_error > 0.0:
        extra["error_histogram"] = {"output": ordered[0].name, **ordered[0].histogram()}
    if config.tightened:
        extra["tightened"] = dict(config.tightened)
    failing = next((each for each in ordered if each.comparison.first_failing is not None), None)
    if failing is None:
        return extra
    return {
        **extra,
        "required_matched_ratio": failing.required,
        "nonfinite_mismatches": sum(each.comparison.nonfinite_mismatches for each in ordered),
        "first_failing": _place(failing, trial),
    }


def _place(result: _Result, trial: int) -> dict[str, Any]:
    first = result.comparison.first_failing
    assert first is not None
    return {
        "output": result.name,
        "index": list(first.index),
        "trial": trial,
        "actual": plain_number(first.actual),
        "expected": plain_number(first.expected),
    }


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
