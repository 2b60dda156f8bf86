"""The evaluator for mixtures of experts and for low-precision inputs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fib_ops_llm.checks import error_size, number_of, with_size
from flashinfer_bench.bench.correctness import as_tensors
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators.base import Check, Trial
    from flashinfer_bench.data import Definition, Workload

#: Limit for the error of a single element, in units of the output's RMS.
ELEMENT_CAP = 10.0
#: Limit for the RMS of the unmatched elements' errors, relative to the RMS that zeros in all
#: elements that need not match would give.
ERROR_BUDGET = 0.5


class LowBitEvaluator(DefaultEvaluator):
    """Compare element by element, and bound the errors of elements that need not match.

    Rounding to few bits spoils individual elements and sends tokens to other experts, so only a
    share *r* of each output has to match: ``required_matched_ratio``, by default all of it. That
    alone would allow arbitrary values in the rest. Therefore the unmatched elements of each
    floating-point output must satisfy, in units of the RMS of the expected values:

    * None may be off by more than ``lowbit_element_cap`` (10). Another expert's result for a token
      is a result of the same size: of a million such differences the largest is about 7.
    * Their errors together, as an RMS over the whole output, may be at most ``lowbit_error_budget``
      (0.5) times √(1 - *r*). Zeros in the whole share that need not match give √(1 - *r*): so a
      quarter of that share may be zeros, or an eighth of it values of other tokens.
    * NaN and ±inf must occur exactly where they are expected, as usual.

    ``correctness.extra`` also contains ``unmatched_rms``, this RMS for the worst output.
    """

    name = "lowbit"
    version = "1"

    def check_settings(self, config: ResolvedEvalConfig) -> None:
        """See `Evaluator.check_settings`."""
        _limits(config)

    def check(
        self,
        definition: Definition,
        workload: Workload,
        trial: Trial,
        calls: Sequence[Sequence[Any]],
        config: ResolvedEvalConfig,
    ) -> Check:
        """See `Evaluator.check`."""
        cap, budget = _limits(config)
        found = super().check(definition, workload, trial, calls, config)
        if not found.passed or found.correctness is None:
            return found
        worst, problems = 0.0, []
        pairs = zip(definition.outputs, as_tensors(calls[-1]), trial.expected, strict=True)
        for name, actual, expected in pairs:
            if not expected.is_floating_point():
                continue  # integers and booleans match or do not; their errors have no size
            tolerance = config.tolerance_of(name)
            size = error_size(actual, expected, beyond=tolerance)
            worst = max(worst, size.relative_rms)
            allowed = budget * math.sqrt(1.0 - (tolerance.required_matched_ratio or 1.0))
            if size.largest > cap:
                problems.append(
                    f"output {name!r}: an element is off by {size.largest:.3g} times the RMS of "
                    f"the expected values, more than {cap:g}"
                )
            elif size.relative_rms > allowed:
                problems.append(
                    f"output {name!r}: the elements that do not match are off by "
                    f"{size.relative_rms:.3g} times the RMS of the expected values, more than "
                    f"the allowed {allowed:.3g}"
                )
        return with_size(found, "unmatched_rms", worst, problems)


def _limits(config: ResolvedEvalConfig) -> tuple[float, float]:
    return (
        number_of(config, "lowbit_element_cap", ELEMENT_CAP),
        number_of(config, "lowbit_error_budget", ERROR_BUDGET),
    )
