"""The evaluator for mixtures of experts, and for inputs of few bits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flashinfer_bench.bench.evaluators.base import Check
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator, plain_number
from flashinfer_bench.bench.evaluators.error_size import error_size
from flashinfer_bench.bench.evaluators.extras import number_of
from flashinfer_bench.bench.judge.structure import as_tensors
from flashinfer_bench.data import EvaluationStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators.base import Trial
    from flashinfer_bench.bench.evaluators.error_size import ErrorSize
    from flashinfer_bench.data import Definition, Workload

#: Largest error of an element, in units of the output's RMS.
ELEMENT_CAP = 10.0
#: RMS of the unmatched elements' errors, as a share of what zeros in place of all elements that
#: need not match would give.
ERROR_BUDGET = 0.5


class LowBitEvaluator(DefaultEvaluator):
    """Compare element by element, and bound the errors of the elements that need not match.

    Rounding to few bits spoils single elements and sends tokens to other experts, so that only a
    share *r* of each output has to match: ``required_matched_ratio``, by default all of it. That
    alone would let anything stand in the rest. So of every floating-point output, in units of the
    RMS of what is expected, and looking only at the elements that do not match:

    * none may be off by more than ``lowbit_element_cap`` (10). What another expert would have made
      of a token is a result of the same size: of a million such differences the largest is about 7;
    * their errors together, as an RMS over the whole output, may be ``lowbit_error_budget`` (0.5)
      times √(1 - *r*). Zeros in the whole share that need not match give √(1 - *r*): so a quarter
      of that share may be zeros, or an eighth of it what belongs to other tokens;
    * NaN and ±inf must stand where they are expected, as always.

    ``correctness.extra`` also holds ``unmatched_rms``, this RMS, of the worst output.
    """

    name = "lowbit"
    version = "1"

    def check_settings(self, config: ResolvedEvalConfig) -> None:
        """See `Evaluator.check_settings`."""
        _Limits.of(config)

    def check(
        self,
        definition: Definition,
        workload: Workload,
        trial: Trial,
        calls: Sequence[Sequence[Any]],
        config: ResolvedEvalConfig,
    ) -> Check:
        """See `Evaluator.check`."""
        limits = _Limits.of(config)
        found = super().check(definition, workload, trial, calls, config)
        if not found.passed or found.correctness is None:
            return found
        worst, problems = 0.0, []
        pairs = zip(definition.outputs, as_tensors(calls[-1]), trial.expected, strict=True)
        for name, actual, expected in pairs:
            if not expected.is_floating_point():
                continue  # integers and booleans match or do not; they have no size
            tolerance = config.tolerance_of(name)
            size = error_size(actual, expected, beyond=tolerance)
            worst = max(worst, size.relative_rms)
            problem = limits.find_problem(size, tolerance.required_matched_ratio or 1.0)
            problems += [f"output {name!r}: {problem}"] if problem else []
        return _verdict(found, worst, problems)


@dataclass(frozen=True)
class _Limits:
    """What the elements that do not match may be."""

    element_cap: float
    error_budget: float

    @classmethod
    def of(cls, config: ResolvedEvalConfig) -> _Limits:
        return cls(
            number_of(config, "lowbit_element_cap", ELEMENT_CAP),
            number_of(config, "lowbit_error_budget", ERROR_BUDGET),
        )

    def find_problem(self, size: ErrorSize, required: float) -> str:
        if size.largest > self.element_cap:
            return (
                f"an element is off by {size.largest:.3g} times the RMS of what is expected, "
                f"more than {self.element_cap:g}"
            )
        allowed = self.error_budget * math.sqrt(1.0 - required)
        if size.relative_rms > allowed:
            return (
                f"the elements that do not match are off by {size.relative_rms:.3g} times the RMS "
                f"of what is expected, together more than the {allowed:.3g} that is left to them"
            )
        return ""


def _verdict(found: Check, worst: float, problems: Sequence[str]) -> Check:
    assert found.correctness is not None
    extra = {**(found.correctness.extra or {}), "unmatched_rms": plain_number(worst)}
    correctness = found.correctness.model_copy(update={"extra": extra})
    if not problems:
        return replace(found, correctness=correctness)
    return Check(EvaluationStatus.INCORRECT_NUMERICAL, correctness, "; ".join(problems))
