"""The suite for evaluators."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Optional

import pytest

from fib_testing.records import (
    RecordConformance,
    check_name_and_version,
    keep,
    must_work,
    record_of,
    require,
    require_none,
)
from fib_testing.samples import DefinitionCase, default_workload, run_reference
from flashinfer_bench.data import Correctness, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators import Check, Trial

Outputs = list[Any]

_SEED = 11
_NUMERICAL = "INCORRECT_NUMERICAL"
_SHAPE = "INCORRECT_SHAPE"
_DTYPE = "INCORRECT_DTYPE"


@dataclass(frozen=True, kw_only=True)
class EvaluatorCase(DefinitionCase):
    """An evaluator, and a definition whose solutions it evaluates.

    Parameters
    ----------
    record : EvaluatorSpec or str
        The record that the plugin registers, or the path of the factory.
    definition : Definition
        A definition that it supports, with at least one output.
    workload : Workload, optional
        Default: small sizes and random tensors, which may not be valid for a definition with
        constraints or index tensors.
    root : Path, optional
        Folder of the workload's files.
    correct : callable, optional
        Takes a `Trial` and the number of the call, and returns correct outputs. Default: those of
        the reference.
    wrong : mapping of str to callable
        Functions like `correct` that return outputs which must fail, by a description of what is
        wrong, especially outputs that other evaluators would accept.
    settings : mapping
        Fields of the configuration, such as ``rtol`` or ``extra``, that differ from the defaults.
    checks_values : bool
        Whether zeros are wrong. False for an evaluator that accepts many outputs.
    plugin : str, optional
        The plugin's module, as in its entry point. Default: the top-level package of the factory.
    """

    workload: Optional[Workload] = None
    correct: Optional[Callable[[Trial, int], Sequence[Any]]] = None
    wrong: Mapping[str, Callable[[Trial, int], Sequence[Any]]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    checks_values: bool = True

    def the_workload(self) -> Workload:
        """Return the workload of the case, or a default."""
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
        """Return inputs and the reference's outputs."""
        import torch

        from flashinfer_bench.bench.evaluators import Trial

        seed = _SEED + index
        # Created twice, because the reference may write to its inputs.
        inputs, again = (self.generate(self.workload, seed) for _ in range(2))
        expected = [torch.as_tensor(each) for each in run_reference(self.definition, again)]
        return Trial(index, seed, inputs, expected)


class EvaluatorKit:
    """A case, a new evaluator, and a trial that must not be changed."""

    def __init__(self, case: EvaluatorCase, evaluator: Any, trial: Trial) -> None:
        self.case = case
        self.evaluator = evaluator
        self.trial = trial
        self.config = case.config()
        self.calls: int = evaluator.calls_per_trial(self.config)

    def correct(self, trial: Optional[Trial] = None) -> list[Outputs]:
        """Return correct outputs for the evaluator's number of calls."""
        trial = trial or self.trial
        if self.case.correct is not None:
            return [list(self.case.correct(trial, index)) for index in range(self.calls)]
        dtypes = self.case.definition.torch_output_dtypes
        pairs = list(zip(trial.expected, dtypes, strict=True))
        return [[tensor.to(dtype, copy=True) for tensor, dtype in pairs] for _ in range(self.calls)]

    def with_nan(self, outputs: Outputs) -> Outputs:
        """Return outputs with all floating-point numbers replaced by NaN."""
        import torch

        floats = [tensor.is_floating_point() for tensor in self.trial.expected]
        pairs = zip(outputs, floats, strict=True)
        return [torch.full_like(t, float("nan")) if is_float else t for t, is_float in pairs]

    def ask(self, method: str, outputs: Any, trial: Optional[Trial] = None) -> Check:
        """Return the result of ``check`` or ``check_timed`` for outputs."""
        case = self.case
        found: Check = getattr(self.evaluator, method)(
            case.definition, case.the_workload(), trial or self.trial, outputs, self.config
        )
        return found

    def check(self, outputs: Any, trial: Optional[Trial] = None, method: str = "check") -> Check:
        """Return the Check of outputs; fail if that raises or returns something else."""
        from flashinfer_bench.bench.evaluators import Check

        with must_work(method):
            found = self.ask(method, outputs, trial)
        require(
            isinstance(found, Check), f"{method} returned a {type(found).__name__}, not a Check"
        )
        return found

    def require_status(
        self, outputs: Any, what: str, *allowed: str, method: str = "check"
    ) -> Check:
        """Check outputs, and fail unless the status is one of `allowed`."""
        check = self.check(outputs, method=method)
        status = str(check.status.value)
        require(
            status in allowed,
            f"{what}: {status}, not {' or '.join(allowed)} ({check.message or 'no message'})",
        )
        if check.correctness is not None and method == "check":
            with must_work("writing its correctness as JSON"):
                json.dumps(check.correctness.model_dump(mode="json"), allow_nan=False)
        return check


class EvaluatorConformance(RecordConformance):
    """The contract of evaluators.

    Subclass it in a test module, and give it a fixture ``case`` that returns an `EvaluatorCase`.
    """

    kind: ClassVar[str] = "evaluator"
    case_type: ClassVar[type] = EvaluatorCase

    @pytest.fixture
    def kit(self, given: EvaluatorCase, made: Any, request: pytest.FixtureRequest) -> EvaluatorKit:
        """Return the kit of the case; skip the test if the evaluator is unavailable here."""
        trial = keep(request, ("trial", given.definition.name), given.trial)
        return EvaluatorKit(given, made, trial)

    @pytest.fixture
    def sound(self, kit: EvaluatorKit) -> EvaluatorKit:
        """Return the kit; skip the test if correct outputs do not pass."""
        see = "test_correct_outputs_pass"
        with must_work("checking correct outputs", see=see):
            found = kit.ask("check", kit.correct())
            passed = found.passed and found.correctness is not None
        if not passed:
            pytest.skip(f"correct outputs do not pass: see {see}")
        return kit

    test_it_has_name_and_version = check_name_and_version

    def test_the_record_accepts_the_definition(self, given: EvaluatorCase) -> None:
        """The record's patterns match the case's definition, unless it is a fallback.

        Why it matters: evaluators are chosen by their records, so this one would never be used.

        To do: add the op type, or a pattern of the definition's name, to the record.
        """
        record, definition = record_of(given), given.definition
        require(
            record.is_fallback or record.accepts(definition),
            f"the record is for op types {record.op_types}, definitions {record.definitions} and "
            f"dtypes {record.dtypes} with inputs {record.inputs or '*'} and outputs "
            f"{record.outputs or '*'}; the case's definition is {definition.name!r} of op type "
            f"{definition.op_type!r}",
        )

    def test_correct_outputs_pass(self, kit: EvaluatorKit) -> None:
        """The reference's outputs pass, with errors that can be stored.

        Why it matters: a trace with status PASSED is invalid without its correctness, and stores
        it as JSON; an evaluator that raises ends the run instead of the evaluation.

        To do: return Check(status, correctness, message), with a Correctness that has the largest
        errors. Put only numbers, strings, lists and dicts in extra; NaN and inf as strings.
        """
        check = kit.require_status(kit.correct(), "the reference's outputs", "PASSED")
        require(check.correctness is not None, "a Check that passed has no correctness")

    def test_wrong_outputs_fail(self, sound: EvaluatorKit) -> None:
        """Wrong values, shapes, dtypes and numbers of outputs fail with the matching status.

        Why it matters: a wrong solution would be ranked. Users filter and count by status; a trace
        with INCORRECT_NUMERICAL is invalid without the correctness. Outputs of untrusted code can
        be anything, and an evaluator that raises ends the run.

        To do: compare number, type, shape, dtype and values of all outputs, in this order, and
        return Check(status, Correctness(…), message). A NaN is wrong wherever the reference has a
        number; comparisons with NaN are false.
        """
        expected = sound.trial.expected
        changes: dict[str, tuple[Callable[[Outputs], Outputs], tuple[str, ...]]] = {
            "one more dimension": (lambda out: [one.unsqueeze(0) for one in out], (_SHAPE,)),
            "twice the elements": (lambda out: list(map(_doubled, out)), (_SHAPE,)),
            "another dtype": (_other_dtypes, (_DTYPE,)),
            "one output less": (lambda out: out[:-1], (_SHAPE,)),
            "no outputs": (lambda out: [], (_SHAPE,)),
            "one output more": (lambda out: [*out, out[-1]], (_SHAPE,)),
            "Python integers": (
                lambda out: [2**70 for _ in out],
                (_SHAPE, _DTYPE, _NUMERICAL),
            ),
            "tensors that were too large to send": (
                lambda out: [_doubled(one).to("meta") for one in out],
                (_SHAPE,),
            ),
        }
        if any(tensor.is_floating_point() for tensor in expected):
            changes["NaN"] = (sound.with_nan, (_NUMERICAL,))
        if sound.case.checks_values and any(bool(tensor.any()) for tensor in expected):
            changes["zeros"] = (_zeros, (_NUMERICAL,))
        wrong = []
        for what, (change, allowed) in changes.items():
            check = sound.check([change(each) for each in sound.correct()])
            status = str(check.status.value)
            if status not in allowed:
                wrong.append(f"{what}: {status}, not {' or '.join(allowed)}")
            elif what == "zeros" and not (check.correctness is not None and check.message):
                wrong.append(f"{what}: the Check has no correctness, or no message")
        require_none(wrong, "outputs that are wrong")

    def test_every_call_is_looked_at(self, sound: EvaluatorKit) -> None:
        """An output of the wrong shape fails in any call.

        Why it matters: a solution could be correct in only one call of a trial.

        To do: check the outputs of all calls.
        """
        right = sound.correct()
        if len(right) < 2:
            pytest.skip("the evaluator uses one call in each trial")
        for index in sorted({0, len(right) // 2, len(right) - 1}):
            calls = [*right[:index], [], *right[index + 1 :]]
            sound.require_status(calls, f"no outputs in call {index}", _SHAPE)

    def test_what_the_case_calls_wrong_fails(self, sound: EvaluatorKit) -> None:
        """Outputs that the case lists as wrong get INCORRECT_NUMERICAL.

        Why it matters: a wrong solution would be ranked.

        To do: fix the evaluator, or the wrong outputs of the case.
        """
        if not sound.case.wrong:
            pytest.skip("the case has no wrong outputs: add some (wrong={…})")
        for what, make in sound.case.wrong.items():
            calls = [list(make(sound.trial, index)) for index in range(sound.calls)]
            sound.require_status(calls, what, _NUMERICAL)

    def test_a_timed_call_is_judged(self, sound: EvaluatorKit) -> None:
        """`check_timed` accepts a correct call, and rejects what `check` rejects.

        Why it matters: a solution could be correct only in calls that are not timed. The result is
        stored with the correctness.

        To do: return the same as check, for the outputs of one call.
        """
        right = sound.correct()[0]

        def require_timed(outputs: Outputs, what: str, status: str) -> Check:
            return sound.require_status(
                outputs, f"timed call: {what}", status, method="check_timed"
            )

        check = require_timed(right, "correct outputs", "PASSED")
        require(
            check.correctness is not None,
            "check_timed returned a Check that passed without a correctness",
        )
        changes: dict[str, Outputs] = {
            "no outputs": [],
            "one output more": [*right, right[-1]],
            "outputs of another dtype": _other_dtypes(right),
        }
        if any(tensor.is_floating_point() for tensor in sound.trial.expected):
            # Other values may be correct in one call and wrong in many.
            changes["outputs of NaN"] = sound.with_nan(right)
        for what, outputs in changes.items():
            alike = sound.check([outputs] * sound.calls)
            require_timed(outputs, what, str(alike.status.value))

    def test_its_settings_are_checked(self, kit: EvaluatorKit) -> None:
        """`check_settings` accepts the case's settings, and ignores those of other evaluators.

        Why it matters: extra has the settings of all evaluators, and the run would not start.

        To do: check only the keys that the evaluator uses.
        """
        others = {**kit.config.extra, "setting_of_another_evaluator": object}
        with must_work("check_settings"):
            kit.evaluator.check_settings(kit.config)
            kit.evaluator.check_settings(kit.config.model_copy(update={"extra": others}))

    def test_it_is_deterministic(self, sound: EvaluatorKit) -> None:
        """The same outputs get the same Check.

        Why it matters: `fib replay` must be able to reproduce a status.

        To do: seed everything random from trial.seed, and keep no state between checks.
        """
        calls = sound.correct()
        again = [[each.clone() for each in outputs] for outputs in calls]
        first, second = sound.check(calls), sound.check(again)
        require(
            repr(first) == repr(second),
            f"checking the same outputs gave\n    {first}\n  and then\n    {second}",
        )

    def test_it_changes_nothing(self, sound: EvaluatorKit) -> None:
        """Inputs, expected outputs and the solution's outputs are not changed.

        Why it matters: they are used again, for the next solution and for the trace.

        To do: work on copies: do not use functions whose name ends in '_', or out=.
        """
        trial, calls = sound.case.trial(), sound.correct()
        groups = {"the inputs": trial.inputs, "the expected outputs": trial.expected}
        groups |= {f"call {index}": outputs for index, outputs in enumerate(calls)}
        before = {name: _bytes(values) for name, values in groups.items()}
        sound.check(calls, trial)
        changed = [name for name, values in groups.items() if _bytes(values) != before[name]]
        require(not changed, f"check changed {', '.join(changed)}")

    def test_trials_are_combined(self, sound: EvaluatorKit) -> None:
        """`combine` merges the checks of several trials into one Correctness.

        Why it matters: a trace has one Correctness for all trials.

        To do: return a Correctness with the largest errors of all trials.
        """
        trials = (sound.trial, sound.case.trial(1))
        checks = [sound.check(sound.correct(trial), trial) for trial in trials]
        with must_work("combine"):
            found = sound.evaluator.combine(checks)
        require(
            isinstance(found, Correctness),
            f"combine returned {found!r} for two checks that passed",
        )


def _doubled(tensor: Any) -> Any:
    import torch

    return torch.cat([tensor, tensor]) if tensor.dim() else torch.stack([tensor, tensor])


def _zeros(outputs: Outputs) -> Outputs:
    return [tensor.new_zeros(tensor.shape) for tensor in outputs]


def _other_dtypes(outputs: Outputs) -> Outputs:
    import torch

    return [t.to(torch.float64 if t.dtype != torch.float64 else torch.float32) for t in outputs]


def _bytes(values: Sequence[Any]) -> list[Any]:
    import torch

    return [
        each.contiguous().view(torch.uint8).numpy().tobytes()
        if isinstance(each, torch.Tensor) and each.dim()
        else repr(each)
        for each in values
    ]
