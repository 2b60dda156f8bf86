"""The evaluator for attention over selected tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from fib_ops_llm.checks import number_of, with_size, worst_row_rms
from flashinfer_bench.bench.correctness import as_tensors
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators.base import Check, Trial
    from flashinfer_bench.data import Definition, Workload

#: Limit for the RMS of an output's errors relative to the output's RMS.
RMS_LIMIT = 0.02


class DsaSparseAttentionEvaluator(DefaultEvaluator):
    """Compare every output, and detect tokens that were left out.

    In addition to the element-wise comparison of all declared outputs:

    * For a log-sum-exp (an output whose name contains ``lse``) only the absolute error counts: it
      is the logarithm of a sum, so ``atol`` bounds the relative error of the sum, whereas ``rtol``
      would allow more error with more tokens. It must be -inf exactly where the reference is, which
      is where nothing is selected.
    * Where nothing is selected (-1 in all of ``sparse_indices``), outputs must equal the reference
      exactly.
    * For each token, the RMS of the errors of every other floating-point output must be at most
      ``dsa_relative_rms`` (0.02) times the RMS of the expected values. Averages over many tokens
      are small compared with ``atol``; omitting a share *s* of the tokens changes the average by
      about √*s* of its size. Rounding the weights and the result to bfloat16 changes it by 0.002.

    ``correctness.extra`` also contains ``relative_rms_error``, that of the worst token.
    """

    name = "dsa_sparse_attention"
    version = "1"

    def check_settings(self, config: ResolvedEvalConfig) -> None:
        """See `Evaluator.check_settings`."""
        _limit(config)

    def check(
        self,
        definition: Definition,
        workload: Workload,
        trial: Trial,
        calls: Sequence[Sequence[Any]],
        config: ResolvedEvalConfig,
    ) -> Check:
        """See `Evaluator.check`."""
        limit = _limit(config)
        config = _with_absolute_lse(definition, config)
        found = super().check(definition, workload, trial, calls, config)
        if not found.passed or found.correctness is None:
            return found
        empty, worst, problems = _empty_rows(definition, trial), 0.0, []
        pairs = zip(definition.outputs, as_tensors(calls[-1]), trial.expected, strict=True)
        for name, actual, expected in pairs:
            if empty is not None and _differs_in(empty, actual, expected):
                problems.append(f"output {name!r} differs where nothing is selected")
            if _is_lse(name) or not expected.is_floating_point():
                continue
            size = worst_row_rms(actual, expected)
            worst = max(worst, size)
            if size > limit:
                text = f"the errors of a token have {size:.3g} times the RMS of the expected values"
                text += f", more than {limit:g}"
                problems.append(f"output {name!r}: {text}")
        return with_size(found, "relative_rms_error", worst, problems)


def _limit(config: ResolvedEvalConfig) -> float:
    return number_of(config, "dsa_relative_rms", RMS_LIMIT)


def _is_lse(name: str) -> bool:
    return "lse" in name.lower()


def _with_absolute_lse(definition: Definition, config: ResolvedEvalConfig) -> ResolvedEvalConfig:
    """Return `config` without a relative tolerance for log-sum-exp outputs."""
    changed = {
        name: config.tolerance_of(name).model_copy(update={"rtol": 0.0})
        for name in definition.outputs
        if _is_lse(name)
    }
    return config.model_copy(update={"tolerances": {**config.tolerances, **changed}})


def _empty_rows(definition: Definition, trial: Trial) -> Optional[torch.Tensor]:
    """Return the output rows for which nothing is selected; None if unknown."""
    given = dict(zip(definition.inputs, trial.inputs, strict=True))
    selected = given.get("sparse_indices")
    if selected is None or selected.dim() < 2:
        return None
    nothing: torch.Tensor = (selected < 0).reshape(selected.shape[0], -1).all(dim=1)
    return nothing


def _differs_in(rows: torch.Tensor, actual: torch.Tensor, expected: torch.Tensor) -> bool:
    import torch

    if not expected.dim() or expected.shape[0] != rows.shape[0] or not bool(rows.any()):
        return False
    left, right = actual[rows].double(), expected[rows].double()
    return not torch.equal(left.nan_to_num(nan=0.0), right.nan_to_num(nan=0.0))
