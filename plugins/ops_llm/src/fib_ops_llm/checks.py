"""What several evaluators here do to make a `Check`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.correctness import compare, find_problem, output_specs
from flashinfer_bench.bench.evaluators.base import Check
from flashinfer_bench.bench.evaluators.default import plain_number
from flashinfer_bench.data import EvaluationStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.correctness import Comparison
    from flashinfer_bench.data import Correctness, Definition, Workload


def wrong_form(
    definition: Definition, workload: Workload, calls: Sequence[Sequence[Any]]
) -> Optional[Check]:
    """Return the check of outputs that are not of the form that is declared; None if all are."""
    specs = output_specs(definition, workload.axes)
    for outputs in calls:
        problem = find_problem(outputs, specs)
        if problem is not None:
            return Check(problem.status, None, problem.message)
    return None


def compare_output(
    name: str, actual: torch.Tensor, expected: torch.Tensor, config: ResolvedEvalConfig
) -> tuple[Comparison, bool]:
    """Compare one output within its own tolerance; also return whether it passes."""
    tolerance = config.tolerance_of(name)
    found = compare(actual, expected, atol=tolerance.atol or 0.0, rtol=tolerance.rtol or 0.0)
    return found, found.passes(tolerance.required_matched_ratio or 1.0)


def verdict(correctness: Correctness, problems: Sequence[str]) -> Check:
    """Return that all is right, or what is not."""
    if not problems:
        return Check(EvaluationStatus.PASSED, correctness)
    return Check(EvaluationStatus.INCORRECT_NUMERICAL, correctness, "; ".join(problems))


def with_size(found: Check, name: str, size: float, problems: Sequence[str]) -> Check:
    """Add the size of the errors of outputs that passed, and what is wrong nevertheless."""
    assert found.correctness is not None
    extra = {**(found.correctness.extra or {}), name: plain_number(size)}
    correctness = found.correctness.model_copy(update={"extra": extra})
    return verdict(correctness, problems) if problems else replace(found, correctness=correctness)
