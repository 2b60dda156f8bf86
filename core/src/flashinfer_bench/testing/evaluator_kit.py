"""What the tests of an evaluator work with: a trial, and outputs that are right or wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench.testing.builders.case import default_workload
from flashinfer_bench.testing.reference import run_reference
from flashinfer_bench.testing.verdict import fail, in_short, require, skip

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators import Check, Evaluator, Trial
    from flashinfer_bench.data import Definition, Workload
    from flashinfer_bench.plugins import EvaluatorSpec

    Outputs = list[Any]

_SEED = 11


@dataclass(frozen=True, kw_only=True)
class EvaluatorCase:
    """An evaluator, and a definition whose solutions it judges.

    Parameters
    ----------
    record : EvaluatorSpec or str
        What the plugin registers, or the path of the factory.
    definition : Definition
        One that it is for, with at least one output.
    workload : Workload, optional
        Default: small sizes and random tensors, which a definition with constraints, or with
        tensors that index into others, may not allow.
    root : Path, optional
        Where the workload's files are.
    correct : callable, optional
        Takes a `Trial` and the number of the call, and returns outputs that are right. Default:
        what the reference gave.
    wrong : mapping of str to callable
        Outputs that must fail, by what is wrong with them; each is made as `correct` is. Name those
        that a solution could get away with elsewhere.
    settings : mapping
        Fields of the configuration, such as ``rtol`` or ``extra``, that differ from the defaults.
    checks_values : bool
        Whether zeros are wrong. False for an evaluator that accepts many outputs.
    plugin : str, optional
        The plugin's module, as in its entry point. Default: the top-level package of the factory.
    """

    record: Union[EvaluatorSpec, str]
    definition: Definition
    workload: Optional[Workload] = None
    root: Optional[Path] = None
    correct: Optional[Callable[[Trial, int], Sequence[Any]]] = None
    wrong: Mapping[str, Callable[[Trial, int], Sequence[Any]]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    checks_values: bool = True
    plugin: Optional[str] = None

    def the_workload(self) -> Workload:
        """Return the workload, given or made."""
        return self.workload or default_workload(self.definition)

    def config(self) -> ResolvedEvalConfig:
        """Return the configuration that the benchmark would use, with the case's settings."""
        from flashinfer_bench.bench import BenchmarkConfig
        from flashinfer_bench.bench.config import EVAL_FIELDS

        explicit = {name: self.settings[name] for name in EVAL_FIELDS if name in self.settings}
        base = BenchmarkConfig(**explicit).resolve_eval_config(self.definition, self.the_workload())
        changed = {**base.model_dump(), **self.settings}
        changed["extra"] = {**base.extra, **self.settings.get("extra", {})}
        return type(base).model_validate(changed)

    def trial(self, index: int = 0) -> Trial:
        """Return inputs and what the reference makes of them."""
        import torch

        from flashinfer_bench.bench.evaluators import Trial
        from flashinfer_bench.tensors import generate_inputs

        inputs, again = (
            generate_inputs(
                self.definition, self.the_workload(), seed=_SEED + index, root=self.root
            )
            for _ in range(2)
        )
        expected = [torch.as_tensor(each) for each in run_reference(self.definition, again)]
        return Trial(index, _SEED + index, inputs, expected)


class EvaluatorKit:
    """A case, an evaluator, and a trial.

    Parameters
    ----------
    case : EvaluatorCase
        What the author gives.
    evaluator : Evaluator
        A new one.
    trial : Trial
        Of the case; not to be changed.
    """

    def __init__(self, case: EvaluatorCase, evaluator: Evaluator, trial: Trial) -> None:
        self.case = case
        self.evaluator = evaluator
        self.trial = trial
        self.config = case.config()

    def correct(self, trial: Optional[Trial] = None) -> list[Outputs]:
        """Return right outputs for as many calls as the evaluator asks for."""
        trial = trial or self.trial
        calls = self.evaluator.calls_per_trial(self.config)
        if self.case.correct is not None:
            return [list(self.case.correct(trial, index)) for index in range(calls)]
        dtypes = self.case.definition.torch_output_dtypes
        pairs = list(zip(trial.expected, dtypes, strict=True))
        return [[tensor.to(dtype, copy=True) for tensor, dtype in pairs] for _ in range(calls)]

    def wrong(self, name: str) -> list[Outputs]:
        """Return outputs of the case that must fail, for as many calls."""
        make, calls = self.case.wrong[name], self.evaluator.calls_per_trial(self.config)
        return [list(make(self.trial, index)) for index in range(calls)]

    def changed(self, change: Callable[[Outputs], Outputs]) -> list[Outputs]:
        """Return right outputs, changed in each call."""
        return [change(outputs) for outputs in self.correct()]

    def require_sound(self) -> None:
        """Skip the test unless right outputs pass, which one test reports."""
        see = "see test_correct_outputs_pass"
        case = self.case
        try:
            found = self.evaluator.check(
                case.definition, case.the_workload(), self.trial, self.correct(), self.config
            )
            passed = found.passed and found.correctness is not None
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
            skip(f"correct outputs cannot be judged ({in_short(error)}): {see}")
        if not passed:
            skip(f"correct outputs do not pass: {see}")

    def check(self, calls: Sequence[Sequence[Any]], trial: Optional[Trial] = None) -> Check:
        """Have outputs judged; fail if that raises, or the answer is no Check."""
        return self._ask("check", calls, trial)

    def check_timed(self, outputs: Sequence[Any], trial: Optional[Trial] = None) -> Check:
        """Have the outputs of one timed call judged, in the same way."""
        return self._ask("check_timed", outputs, trial)

    def _ask(self, method: str, outputs: Sequence[Any], trial: Optional[Trial]) -> Check:
        from flashinfer_bench.bench.evaluators import Check

        case, trial = self.case, trial or self.trial
        try:
            found: object = getattr(self.evaluator, method)(
                case.definition, case.the_workload(), trial, outputs, self.config
            )
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
            fail(
                f"{method} raised {in_short(error)}",
                why="outputs come from untrusted code: any number, shape, dtype and value may "
                "come, and an evaluator that raises ends the run instead of the evaluation",
                fix="look at number, type, shape and dtype first, and return a Check that says so",
            )
        if not isinstance(found, Check):
            fail(
                f"{method} returned a {type(found).__name__}, not a Check",
                why="the judge cannot read it",
                fix="return Check(status, correctness, message)",
            )
        return found

    def require_status(self, calls: Sequence[Sequence[Any]], what: str, *allowed: str) -> Check:
        """Have outputs judged, and fail unless the status is one of `allowed`."""
        return _require(self.check(calls), what, allowed)

    def require_timed(self, outputs: Sequence[Any], what: str, *allowed: str) -> Check:
        """Have the outputs of one timed call judged, and fail in the same way."""
        return _require(self.check_timed(outputs), f"timed call: {what}", allowed)


def _require(check: Check, what: str, allowed: Sequence[str]) -> Check:
    status = str(check.status.value)
    require(
        status in allowed,
        f"{what}: {status}, not {' or '.join(allowed)} ({check.message or 'no message'})",
        why="a wrong solution would be ranked"
        if status == "PASSED"
        else "the status is what users filter and count by",
        fix="compare every output's type, shape, dtype and values, in this order",
    )
    return check
