"""The suite for evaluators."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Optional

import pytest

from fib_testing.records import (
    RecordCase,
    RecordConformance,
    check_name_and_version,
    in_short,
    keep,
    must_work,
    record_of,
    require,
    require_none,
)
from fib_testing.samples import default_workload, run_reference
from flashinfer_bench.data import Correctness, Definition, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators import Check, Trial

Outputs = list[Any]

_SEED = 11
_NUMERICAL = "INCORRECT_NUMERICAL"
_SHAPE = "INCORRECT_SHAPE"
_DTYPE = "INCORRECT_DTYPE"


@dataclass(frozen=True, kw_only=True)
class EvaluatorCase(RecordCase):
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

    definition: Definition
    workload: Optional[Workload] = None
    root: Optional[Path] = None
    correct: Optional[Callable[[Trial, int], Sequence[Any]]] = None
    wrong: Mapping[str, Callable[[Trial, int], Sequence[Any]]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    checks_values: bool = True

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

        seed = _SEED + index
        # Made twice, for the reference may write into what it is given.
        inputs, again = (
            generate_inputs(self.definition, self.the_workload(), seed=seed, root=self.root)
            for _ in range(2)
        )
        expected = [torch.as_tensor(each) for each in run_reference(self.definition, again)]
        return Trial(index, seed, inputs, expected)


class EvaluatorKit:
    """A case, a new evaluator, and a trial that is not to be changed."""

    def __init__(self, case: EvaluatorCase, evaluator: Any, trial: Trial) -> None:
        self.case = case
        self.evaluator = evaluator
        self.trial = trial
        self.config = case.config()
        self.calls: int = evaluator.calls_per_trial(self.config)

    def correct(self, trial: Optional[Trial] = None) -> list[Outputs]:
        """Return right outputs for as many calls as the evaluator asks for."""
        trial = trial or self.trial
        if self.case.correct is not None:
            return [list(self.case.correct(trial, index)) for index in range(self.calls)]
        dtypes = self.case.definition.torch_output_dtypes
        pairs = list(zip(trial.expected, dtypes, strict=True))
        return [[tensor.to(dtype, copy=True) for tensor, dtype in pairs] for _ in range(self.calls)]

    def with_nan(self, outputs: Outputs) -> Outputs:
        """Return outputs with NaN in the place of all floating-point numbers."""
        import torch

        floats = [tensor.is_floating_point() for tensor in self.trial.expected]
        pairs = zip(outputs, floats, strict=True)
        return [torch.full_like(t, float("nan")) if is_float else t for t, is_float in pairs]

    def ask(self, method: str, outputs: Any, trial: Optional[Trial] = None) -> Check:
        """Have outputs judged by ``check`` or ``check_timed``."""
        case = self.case
        found: Check = getattr(self.evaluator, method)(
            case.definition, case.the_workload(), trial or self.trial, outputs, self.config
        )
        return found

    def check(self, outputs: Any, trial: Optional[Trial] = None, method: str = "check") -> Check:
        """Have outputs judged; fail if that raises, or the answer is no Check."""
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
        """Have outputs judged, and fail unless the status is one of `allowed`."""
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
    """All that an evaluator must keep to.

    Subclass it in a test module, and give it a fixture ``case`` that returns an `EvaluatorCase`.
    """

    kind: ClassVar[str] = "evaluator"
    case_type: ClassVar[type] = EvaluatorCase

    @pytest.fixture
    def kit(self, given: EvaluatorCase, made: Any, request: pytest.FixtureRequest) -> EvaluatorKit:
        """Give the case and a new evaluator; skip the test if there is none here."""
        trial = keep(request, ("trial", given.definition.name), given.trial)
        return EvaluatorKit(given, made, trial)

    @pytest.fixture
    def sound(self, kit: EvaluatorKit) -> EvaluatorKit:
        """Give the case; skip the test if not even right outputs pass."""
        see = "see test_correct_outputs_pass"
        try:
            found = kit.ask("check", kit.correct())
            passed = found.passed and found.correctness is not None
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
            pytest.skip(f"correct outputs cannot be judged ({in_short(error)}): {see}")
        if not passed:
            pytest.skip(f"correct outputs do not pass: {see}")
        return kit

    test_it_has_name_and_version = check_name_and_version

    def test_the_record_accepts_the_definition(self, given: EvaluatorCase) -> None:
        """The record's patterns match the case's definition, unless it is a fallback.

        Why it matters: evaluators are chosen by the record: this one is never asked.

        To do: name the op type, or a pattern of the definition's name, in the record.
        """
        record, definition = record_of(given), given.definition
        require(
            record.is_fallback or record.accepts(definition),
            f"the record is for op types {record.op_types}, definitions {record.definitions} and "
            f"dtypes {record.dtypes} with inputs {record.inputs or '*'} and outputs "
            f"{record.outputs or '*'}, and the case's definition is {definition.name!r} of op type "
            f"{definition.op_type!r}",
        )

    def test_correct_outputs_pass(self, kit: EvaluatorKit) -> None:
        """What the reference gave passes, with errors that can be stored.

        Why it matters: a trace with status PASSED is not valid without its correctness, and holds
        it as JSON; an evaluator that raises ends the run instead of the evaluation.

        To do: return Check(status, correctness, message), with a Correctness that has the largest
        errors. Put plain numbers, strings, lists and dicts into extra; NaN and inf as strings.
        """
        check = kit.require_status(kit.correct(), "the reference's own outputs", "PASSED")
        require(check.correctness is not None, "a Check that passed has no correctness")

    def test_wrong_outputs_fail(self, sound: EvaluatorKit) -> None:
        """Wrong values, shapes, dtypes and numbers of outputs fail, as what they are.

        Why it matters: a wrong solution would be ranked. The status is what users filter and count
        by; a trace with INCORRECT_NUMERICAL is not valid without the correctness. Outputs come from
        untrusted code: anything may come, and an evaluator that raises ends the run.

        To do: compare number, type, shape, dtype and values of all outputs, in this order, and
        return Check(status, Correctness(…), message). A NaN is wrong wherever the reference has a
        number; comparisons with it are false.
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
            "tensors that were too large to be sent": (
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
        """An output of the wrong shape fails in whichever call it is.

        Why it matters: a solution could be right in one call of a trial only.

        To do: look at the outputs of all calls.
        """
        right = sound.correct()
        if len(right) < 2:
            pytest.skip("the evaluator asks for one call in each trial")
        for index in sorted({0, len(right) // 2, len(right) - 1}):
            calls = [*right[:index], [], *right[index + 1 :]]
            sound.require_status(calls, f"no outputs in call {index}", _SHAPE)

    def test_what_the_case_calls_wrong_fails(self, sound: EvaluatorKit) -> None:
        """Outputs that the author named as wrong are numerically wrong.

        Why it matters: a wrong solution would be ranked.

        To do: mend the evaluator, or the outputs that the case calls wrong.
        """
        if not sound.case.wrong:
            pytest.skip("the case names no outputs that are wrong: give it some (wrong={…})")
        for what, make in sound.case.wrong.items():
            calls = [list(make(sound.trial, index)) for index in range(sound.calls)]
            sound.require_status(calls, what, _NUMERICAL)

    def test_a_timed_call_is_judged(self, sound: EvaluatorKit) -> None:
        """`check_timed` passes a right call, and refuses what `check` would refuse.

        Why it matters: a solution could be right only while nobody measures. What is noted about
        timed calls is stored with the correctness.

        To do: return what check returns, for the outputs of one call.
        """
        right = sound.correct()[0]

        def require_timed(outputs: Outputs, what: str, status: str) -> Check:
            return sound.require_status(
                outputs, f"timed call: {what}", status, method="check_timed"
            )

        check = require_timed(right, "right outputs", "PASSED")
        require(
            check.correctness is not None,
            "check_timed gave a Check that passed and has no correctness",
        )
        changes: dict[str, Outputs] = {
            "no outputs": [],
            "one output more": [*right, right[-1]],
            "outputs of another dtype": _other_dtypes(right),
        }
        if any(tensor.is_floating_point() for tensor in sound.trial.expected):
            # Anything else may be right in one call, and wrong in many.
            changes["outputs of NaN"] = sound.with_nan(right)
        for what, outputs in changes.items():
            alike = sound.check([outputs] * sound.calls)
            require_timed(outputs, what, str(alike.status.value))

    def test_its_settings_are_checked(self, kit: EvaluatorKit) -> None:
        """`check_settings` accepts the case's settings, and leaves settings of others alone.

        Why it matters: one extra holds the settings of all evaluators: the run would not start.

        To do: look at the keys that the evaluator knows, and at no others.
        """
        others = {**kit.config.extra, "setting_of_another_evaluator": object}
        with must_work("check_settings"):
            kit.evaluator.check_settings(kit.config)
            kit.evaluator.check_settings(kit.config.model_copy(update={"extra": others}))

    def test_it_is_deterministic(self, sound: EvaluatorKit) -> None:
        """The same outputs get the same Check.

        Why it matters: `fib replay` must be able to reproduce a verdict.

        To do: seed whatever is random from trial.seed, and keep nothing between checks.
        """
        calls = sound.correct()
        again = [[each.clone() for each in outputs] for outputs in calls]
        first, second = sound.check(calls), sound.check(again)
        require(
            repr(first) == repr(second),
            f"the same outputs were judged as\n    {first}\n  and then as\n    {second}",
        )

    def test_it_changes_nothing(self, sound: EvaluatorKit) -> None:
        """Inputs, expected outputs and the solution's outputs are as they were.

        Why it matters: they are used again, for the next solution and in what is stored.

        To do: work on copies: no functions whose name ends in '_', no out=.
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

        To do: return a Correctness with the largest errors of any trial.
        """
        trials = (sound.trial, sound.case.trial(1))
        checks = [sound.check(sound.correct(trial), trial) for trial in trials]
        with must_work("combine"):
            found = sound.evaluator.combine(checks)
        require(
            isinstance(found, Correctness),
            f"combine gave {found!r} for two checks that passed",
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
