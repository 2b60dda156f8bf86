"""The suite for evaluators."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from flashinfer_bench.testing.evaluator_kit import EvaluatorCase, EvaluatorKit
from flashinfer_bench.testing.record_checks import require_constructible
from flashinfer_bench.testing.records import (
    RecordConformance,
    construct,
    factory_path,
    keep,
    load_factory,
    require_available,
    spec_of,
)
from flashinfer_bench.testing.verdict import fail, in_short, require, skip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashinfer_bench.bench.evaluators import Check

    Outputs = list[Any]


class EvaluatorConformance(RecordConformance):
    """All that an evaluator must keep to.

    Subclass it in a test module, and give it a fixture ``case`` that returns an `EvaluatorCase`.
    """

    kind: ClassVar[str] = "evaluator"
    case_type: ClassVar[type] = EvaluatorCase

    @pytest.fixture
    def kit(self, given: EvaluatorCase, request: pytest.FixtureRequest) -> EvaluatorKit:
        """Give the case and a new evaluator; skip the test if there is none here."""
        require_available(given, request)
        trial = keep(request, ("trial", given.definition.name), given.trial)
        return EvaluatorKit(given, construct(given), trial)

    @pytest.fixture
    def sound(self, kit: EvaluatorKit) -> EvaluatorKit:
        """Give the case; skip the test if not even right outputs pass."""
        kit.require_sound()
        return kit

    def test_the_factory_takes_what_it_is_given(
        self, given: EvaluatorCase, request: pytest.FixtureRequest
    ) -> None:
        """The host constructs evaluators itself, without arguments."""
        load_factory(given)
        require_available(given, request)
        require_constructible(factory_path(given))

    def test_it_has_name_and_version(self, kit: EvaluatorKit) -> None:
        """Both are set, and the name is the record's."""
        evaluator, record = kit.evaluator, kit.case.record
        require(
            evaluator.name and evaluator.version,
            f"its name is {evaluator.name!r} and its version {evaluator.version!r}",
            why="both go into every trace: verdicts of different evaluators are not comparable",
            fix="set name and version on the class; raise the version when a verdict may change",
        )
        require(
            isinstance(record, str) or evaluator.name == record.name,
            f"its name is {evaluator.name!r}, and the record's {getattr(record, 'name', '')!r}",
            why="a trace names an evaluator that nobody can find",
            fix="use one name",
        )

    def test_the_record_accepts_the_definition(self, given: EvaluatorCase) -> None:
        """The record's patterns match the case's definition, unless it is a fallback."""
        record: Any = spec_of(given)
        definition = given.definition
        require(
            record.is_fallback or record.accepts(definition),
            f"the record is for op types {record.op_types}, definitions {record.definitions} and "
            f"dtypes {record.dtypes} with inputs {record.inputs or '*'} and outputs "
            f"{record.outputs or '*'}, and the case's definition is {definition.name!r} of op type "
            f"{definition.op_type!r}",
            why="evaluators are chosen by the record: this one is never asked",
            fix="name the op type, or a pattern of the definition's name, in the record",
        )

    def test_correct_outputs_pass(self, kit: EvaluatorKit) -> None:
        """What the reference gave passes, with errors that can be stored."""
        check = kit.require_status(kit.correct(), "the reference's own outputs", "PASSED")
        require(
            check.correctness is not None,
            "a Check that passed has no correctness",
            why="a trace with status PASSED is not valid without it",
            fix="give Check a Correctness with the largest errors",
        )
        _require_storable(check)

    def test_zeros_fail(self, sound: EvaluatorKit) -> None:
        """Outputs of zeros are numerically wrong."""
        if not sound.case.checks_values:
            skip("the case says that zeros may be right (checks_values=False)")
        if not any(bool(tensor.any()) for tensor in sound.trial.expected):
            skip("the reference's outputs are zeros: give the case another workload")
        zeros = sound.changed(lambda outputs: [_zeros(each) for each in outputs])
        check = sound.require_status(zeros, "outputs of zeros", "INCORRECT_NUMERICAL")
        require(
            check.correctness is not None and check.message,
            "a Check that failed numerically has no correctness, or no message",
            why="a trace with INCORRECT_NUMERICAL is not valid without the one, and the author of "
            "the solution learns nothing without the other",
            fix="return Check(status, Correctness(…), message)",
        )
        _require_storable(check)

    def test_nan_fails(self, sound: EvaluatorKit) -> None:
        """NaN in the place of numbers is wrong."""
        floats = [index for index, t in enumerate(sound.trial.expected) if t.is_floating_point()]
        if not floats:
            skip("the definition has no floating-point output")
        nan = sound.changed(lambda outputs: _with_nan(outputs, floats))
        _require_storable(sound.require_status(nan, "outputs of NaN", "INCORRECT_NUMERICAL"))

    def test_a_wrong_shape_fails(self, sound: EvaluatorKit) -> None:
        """Outputs with one dimension more, and with more elements, have the wrong shape."""
        changes: dict[str, Callable[[Any], Any]] = {
            "outputs with one more dimension": lambda t: t.unsqueeze(0),
            "outputs with twice the elements": _doubled,
        }
        for what, change in changes.items():
            calls = [list(map(change, outputs)) for outputs in sound.correct()]
            sound.require_status(calls, what, "INCORRECT_SHAPE")

    def test_a_wrong_dtype_fails(self, sound: EvaluatorKit) -> None:
        """Outputs of another element type have the wrong dtype."""
        calls = sound.changed(lambda outputs: [_other_dtype(tensor) for tensor in outputs])
        sound.require_status(calls, "outputs of another dtype", "INCORRECT_DTYPE")

    def test_a_missing_output_fails(self, sound: EvaluatorKit) -> None:
        """Too few outputs, none, and too many have the wrong shape."""
        sound.require_status(sound.changed(lambda o: o[:-1]), "one output less", "INCORRECT_SHAPE")
        sound.require_status(sound.changed(lambda o: []), "no outputs", "INCORRECT_SHAPE")
        sound.require_status(
            sound.changed(lambda o: [*o, o[-1]]), "one output more", "INCORRECT_SHAPE"
        )

    def test_what_is_no_output_fails(self, sound: EvaluatorKit) -> None:
        """A Python number in place of a tensor, and a tensor without data, do not pass."""
        wrong = ("INCORRECT_SHAPE", "INCORRECT_DTYPE", "INCORRECT_NUMERICAL")
        numbers = sound.changed(lambda outputs: [2**70 for _ in outputs])
        sound.require_status(numbers, "Python integers", *wrong)
        empty = sound.changed(lambda outputs: [_doubled(t).to("meta") for t in outputs])
        sound.require_status(empty, "tensors that were too large to be sent", "INCORRECT_SHAPE")

    def test_every_call_is_looked_at(self, sound: EvaluatorKit) -> None:
        """An output of the wrong shape fails in whichever call it is."""
        right = sound.correct()
        if len(right) < 2:
            skip("the evaluator asks for one call in each trial")
        for index in sorted({0, len(right) // 2, len(right) - 1}):
            calls = [list(outputs) for outputs in right]
            calls[index] = []
            sound.require_status(calls, f"no outputs in call {index}", "INCORRECT_SHAPE")

    def test_what_the_case_calls_wrong_fails(self, sound: EvaluatorKit) -> None:
        """Outputs that the author named as wrong are numerically wrong."""
        if not sound.case.wrong:
            skip("the case names no outputs that are wrong: give it some (wrong={…})")
        for what in sound.case.wrong:
            check = sound.require_status(sound.wrong(what), what, "INCORRECT_NUMERICAL")
            _require_storable(check)

    def test_a_timed_call_is_judged(self, sound: EvaluatorKit) -> None:
        """`check_timed` passes a right call, and refuses what `check` would refuse."""
        right = sound.correct()[0]
        check = sound.require_timed(right, "right outputs", "PASSED")
        require(
            check.correctness is not None,
            "check_timed gave a Check that passed and has no correctness",
            why="what is noted about timed calls is stored with it",
            fix="return what check returns",
        )
        floats = [index for index, t in enumerate(sound.trial.expected) if t.is_floating_point()]
        changes: dict[str, Outputs] = {
            "no outputs": [],
            "one output more": [*right, right[-1]],
            "outputs of another dtype": [_other_dtype(tensor) for tensor in right],
        }
        if floats:  # anything else may be right in one call, and wrong in many
            changes["outputs of NaN"] = _with_nan(right, floats)
        for what, outputs in changes.items():
            alike = sound.check([outputs] * len(sound.correct()))
            sound.require_timed(outputs, what, str(alike.status.value))

    def test_its_settings_are_checked(self, kit: EvaluatorKit) -> None:
        """`check_settings` accepts the case's settings, and leaves settings of others alone."""
        others = {**kit.config.extra, "setting_of_another_evaluator": object}
        try:
            kit.evaluator.check_settings(kit.config)
            kit.evaluator.check_settings(kit.config.model_copy(update={"extra": others}))
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
            fail(
                f"check_settings raised {in_short(error)}",
                why="one extra holds the settings of all evaluators: the run would not start",
                fix="look at the keys that the evaluator knows, and at no others",
            )

    def test_it_is_deterministic(self, sound: EvaluatorKit) -> None:
        """The same outputs get the same Check."""
        calls = sound.correct()
        again = [[_copy(each) for each in outputs] for outputs in calls]
        first, second = sound.check(calls), sound.check(again)
        require(
            repr(first) == repr(second),
            f"the same outputs were judged as\n    {first}\n  and then as\n    {second}",
            why="`fib replay` must be able to reproduce a verdict",
            fix="seed whatever is random from trial.seed, and keep nothing between checks",
        )

    def test_it_changes_nothing(self, sound: EvaluatorKit) -> None:
        """Inputs, expected outputs and the solution's outputs are as they were."""
        trial, calls = sound.case.trial(), sound.correct()
        before = [_bytes(group) for group in (trial.inputs, trial.expected, *calls)]
        sound.check(calls, trial)
        after = [_bytes(group) for group in (trial.inputs, trial.expected, *calls)]
        groups = ["the inputs", "the expected outputs", *(f"call {i}" for i in range(len(calls)))]
        named = zip(groups, before, after, strict=True)
        changed = [name for name, old, new in named if old != new]
        require(
            not changed,
            f"check changed {', '.join(changed)}",
            why="they are used again, for the next solution and in what is stored",
            fix="work on copies: no functions whose name ends in '_', no out=",
        )

    def test_trials_are_combined(self, sound: EvaluatorKit) -> None:
        """`combine` merges the checks of several trials into one Correctness."""
        from flashinfer_bench.data import Correctness

        checks = [
            sound.check(sound.correct(trial), trial) for trial in (sound.trial, sound.case.trial(1))
        ]
        try:
            found: object = sound.evaluator.combine(checks)
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
            found = error
        require(
            isinstance(found, Correctness),
            f"combine gave {found!r} for two checks that passed",
            why="a trace has one Correctness for all trials",
            fix="return a Correctness with the largest errors of any trial",
        )


def _copy(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else value


def _zeros(tensor: Any) -> Any:
    import torch

    return torch.zeros_like(tensor)


def _with_nan(outputs: Outputs, places: Sequence[int]) -> Outputs:
    import torch

    return [
        torch.full_like(each, float("nan")) if index in places else each
        for index, each in enumerate(outputs)
    ]


def _doubled(tensor: Any) -> Any:
    import torch

    return torch.cat([tensor, tensor]) if tensor.dim() else torch.stack([tensor, tensor])


def _other_dtype(tensor: Any) -> Any:
    import torch

    return tensor.to(torch.float64 if tensor.dtype != torch.float64 else torch.float32)


def _bytes(values: Sequence[Any]) -> list[Any]:
    import torch

    return [
        each.contiguous().view(torch.uint8).numpy().tobytes()
        if isinstance(each, torch.Tensor) and each.dim()
        else repr(each)
        for each in values
    ]


def _require_storable(check: Check) -> None:
    if check.correctness is None:
        return
    try:
        json.dumps(check.correctness.model_dump(mode="json"), allow_nan=False)
    except Exception as error:  # noqa: BLE001 - `extra` may hold anything
        fail(
            f"its correctness cannot be written as JSON: {in_short(error)}",
            why="it is stored in the trace",
            fix="put plain numbers, strings, lists and dicts into extra; NaN and inf as strings",
        )
