from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import pytest
import torch

from flashinfer_bench.bench import BenchmarkConfig, DefaultEvaluator, resolve_evaluator
from flashinfer_bench.bench.evaluators import Check, Trial
from flashinfer_bench.data import EvaluationStatus, TensorSpec
from flashinfer_bench.errors import PluginLoadError
from flashinfer_bench.plugins import Catalog, EvaluatorSpec

if TYPE_CHECKING:
    from collections.abc import Callable

PASSED = EvaluationStatus.PASSED
NUMERICAL = EvaluationStatus.INCORRECT_NUMERICAL


@pytest.fixture
def check(problems: Any, settings: Any, evaluator: DefaultEvaluator) -> Callable[..., Check]:
    """Judge outputs against expected ones; the definition has one 4x3 output if none is given."""

    def judge(expected: list[Any], *calls: list[Any], **options: Any) -> Check:
        definition = options.pop("definition", problems.definition())
        trial = Trial(index=1, seed=5, inputs=[], expected=expected)
        return evaluator.check(definition, problems.workload(), trial, calls, settings(**options))

    return judge


class TestDefaultOnTimedCalls:
    @pytest.fixture
    def check_timed(
        self, problems: Any, settings: Any, evaluator: DefaultEvaluator
    ) -> Callable[[torch.Tensor], Check]:
        trial = Trial(index=0, seed=5, inputs=[], expected=[torch.ones(4, 3)])
        parts = problems.definition(), problems.workload(), trial
        return lambda actual: evaluator.check_timed(*parts, [actual], settings(atol=0.1))

    def test_right(self, check_timed: Callable[[torch.Tensor], Check]) -> None:
        """Nobody reads how its errors are distributed."""
        found = check_timed(torch.full((4, 3), 1.0625))
        assert found.passed
        assert found.correctness is not None
        assert found.correctness.max_absolute_error == 0.0625
        assert found.correctness.extra == {"matched_ratio": 1.0}

    def test_wrong(self, check_timed: Callable[[torch.Tensor], Check]) -> None:
        found = check_timed(torch.full((4, 3), 2.0))
        assert found.status == NUMERICAL
        assert found.correctness is not None
        assert found.correctness.extra is not None
        assert found.correctness.extra["error_histogram"]["absolute"] == {"1e+00": 12}


class TestLooseTolerance:
    """What passes within 0.01 and not by dtype, here float32, is marked."""

    @pytest.fixture
    def checked(
        self, problems: Any, evaluator: DefaultEvaluator
    ) -> Callable[..., tuple[list[Check], dict[str, Any]]]:
        def check(*outputs: torch.Tensor, **settings: Any) -> tuple[list[Check], dict[str, Any]]:
            parts = problems.definition(), problems.workload()
            config = BenchmarkConfig(**settings).resolve_eval_config(*parts)
            trial = Trial(index=0, seed=5, inputs=[], expected=[torch.ones(4, 3)])
            checks = [evaluator.check(*parts, trial, [[one]], config) for one in outputs]
            return checks, evaluator.combine(checks).extra or {}

        return check

    def test_in_one_of_several_trials(self, checked: Callable[..., Any]) -> None:
        right, off = torch.ones(4, 3), torch.ones(4, 3)
        off[0] += 0.005
        checks, extra = checked(right, off, right)
        assert all(check.passed for check in checks)
        assert extra["loose_tolerance"] == {
            "y": {"atol": 2**-10, "rtol": 2**-10, "matched_ratio": 0.75}
        }

    @pytest.mark.parametrize(
        ("settings", "passed"),
        [
            ({"tolerance": "dtype"}, False),
            ({"atol": 0.01}, True),  # was asked for
            ({"required_matched_ratio": 0.75}, True),  # would do by dtype as well
        ],
    )
    def test_not_what_is_no_default(
        self, checked: Callable[..., Any], settings: dict[str, Any], passed: bool
    ) -> None:
        off = torch.ones(4, 3)
        off[0] += 0.005
        (check,), extra = checked(off, **settings)
        assert check.passed is passed
        assert "loose_tolerance" not in extra

    def test_nor_what_either_error_allows(self, checked: Callable[..., Any]) -> None:
        assert "loose_tolerance" not in checked(torch.full((4, 3), 1.0009))[1]

    @pytest.mark.parametrize(("value", "marked"), [(1.0005, False), (1.005, True), (1.05, None)])
    def test_timed_calls_that_are_right_by_it_alone(
        self, problems: Any, evaluator: DefaultEvaluator, value: float, marked: Optional[bool]
    ) -> None:
        parts = problems.definition(), problems.workload()
        trial = Trial(index=0, seed=5, inputs=[], expected=[torch.ones(4, 3)])
        config = BenchmarkConfig().resolve_eval_config(*parts)
        found = evaluator.check_timed(*parts, trial, [torch.full((4, 3), value)], config)
        assert found.correctness is not None
        assert found.passed == (marked is not None)
        assert ("loose_tolerance" in (found.correctness.extra or {})) == bool(marked)

    @pytest.mark.parametrize(
        ("own", "strict"),
        [
            ({"atol": 1e-6}, (1e-6, 2**-10)),
            ({"rtol": 1e-2}, (2**-10, 1e-2)),
            ({"atol": 1e-2, "rtol": 1e-2}, None),
            ({}, (2**-10, 2**-10)),
        ],
    )
    def test_what_somebody_has_set_stays(self, problems: Any, own: Any, strict: Any) -> None:
        definition = problems.definition(tolerance=own)
        found = BenchmarkConfig().resolve_eval_config(definition).by_dtype(definition, "y")
        assert (None if found is None else (found.atol, found.rtol)) == strict


class TestDefault:
    def test_wrong(self, check: Callable[..., Check]) -> None:
        actual = torch.ones(4, 3)
        actual[2, 1] = 3.0
        found = check([torch.ones(4, 3)], [actual])
        assert found.status == NUMERICAL
        assert found.correctness is not None
        assert found.correctness.extra == {
            "matched_ratio": 11 / 12,
            "error_histogram": {
                "output": "y",
                "absolute": {"<1e-12": 11, "1e+00": 1},
                "relative": {"<1e-12": 11, "1e+00": 1},
            },
            "required_matched_ratio": 1.0,
            "nonfinite_mismatches": 0,
            "first_failing": {
                "output": "y",
                "index": [2, 1],
                "trial": 1,
                "actual": 3.0,
                "expected": 1.0,
            },
        }
        assert found.message == (
            "output 'y': 11 of 12 elements match, largest error 2 absolute, 2 relative; "
            "first at [2, 1]: 3 instead of 1"
        )

    def test_ratio_allows_a_few(self, check: Callable[..., Check]) -> None:
        actual = torch.ones(4, 3)
        actual[0, 0] = 9.0
        lenient = check([torch.ones(4, 3)], [actual], required_matched_ratio=0.9)
        assert lenient.passed
        assert lenient.correctness is not None
        extra = lenient.correctness.extra
        assert extra is not None
        assert extra["matched_ratio"] == pytest.approx(11 / 12)
        assert extra["first_failing"]["index"] == [0, 0]
        strict = check([torch.ones(4, 3)], [actual], required_matched_ratio=0.95)
        assert strict.status == NUMERICAL
        assert "(0.916667 < 0.95)" in strict.message

    def test_every_output_counts(self, check: Callable[..., Check], problems: Any) -> None:
        definition = problems.definition(
            outputs={
                "y": TensorSpec(shape=["n", "k"], dtype="float32"),
                "top": TensorSpec(shape=["n"], dtype="int64"),
                "s": TensorSpec(shape=None, dtype="float32"),
            }
        )
        expected = [torch.ones(4, 3), torch.arange(4), torch.tensor(2.0)]
        right = [torch.ones(4, 3), torch.arange(4), 2.0]
        assert check(expected, right, definition=definition).passed
        wrong = [torch.ones(4, 3), torch.arange(4), 3.0]
        found = check(expected, wrong, definition=definition)
        assert found.correctness is not None
        assert found.correctness.extra is not None
        assert found.correctness.extra["matched_ratio"] == 0.0
        assert found.correctness.extra["first_failing"]["output"] == "s"
        off_by_one = [torch.ones(4, 3), torch.tensor([0, 1, 2, 4]), 2.0]
        found = check(expected, off_by_one, definition=definition, rtol=1.0, atol=1.0)
        assert found.status == NUMERICAL


class TopK(DefaultEvaluator):
    """What a plugin would bring."""

    name = "topk"


class TestResolve:
    def catalog(self, factory: str, **options: Any) -> Catalog:
        default = EvaluatorSpec(
            name="default", factory="flashinfer_bench.bench.evaluators:DefaultEvaluator", priority=0
        )
        return Catalog.of(default, EvaluatorSpec(name="topk", factory=factory, **options))

    def test_by_op_type_and_by_name(self, problems: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        import sys
        import types

        module = types.ModuleType("a_plugin")
        module.TopK = TopK  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "a_plugin", module)
        catalog = self.catalog("a_plugin:TopK", op_types=("dsa",))
        assert resolve_evaluator(problems.definition(op_type="dsa"), catalog=catalog).name == "topk"
        assert resolve_evaluator(problems.definition(), "topk", catalog=catalog).name == "topk"
        assert (
            resolve_evaluator(problems.definition(), "default", catalog=catalog).name == "default"
        )

    def test_what_is_no_evaluator(self, problems: Any) -> None:
        catalog = self.catalog("math:sqrt", op_types=("dsa",))
        with pytest.raises(PluginLoadError, match="not a subclass of Evaluator"):
            resolve_evaluator(problems.definition(op_type="dsa"), catalog=catalog)
