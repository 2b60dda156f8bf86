import pytest
import torch

from flashinfer_bench.bench import BenchmarkConfig, DefaultEvaluator, resolve_evaluator
from flashinfer_bench.bench.evaluators import Trial
from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.errors import PluginLoadError
from flashinfer_bench.plugins import Catalog, EvaluatorSpec

PASSED = EvaluationStatus.PASSED
NUMERICAL = EvaluationStatus.INCORRECT_NUMERICAL


@pytest.fixture
def check(problems, settings, evaluator):
    """Judge outputs against expected ones; the definition has one 4x3 output if none is given."""

    def judge(expected, *calls, **options):
        definition = options.pop("definition", problems.definition())
        trial = Trial(index=1, seed=5, inputs=[], expected=expected)
        return evaluator.check(definition, problems.workload(), trial, calls, settings(**options))

    return judge


class TestDefaultOnTimedCalls:
    @pytest.fixture
    def check_timed(self, problems, settings, evaluator):
        trial = Trial(index=0, seed=5, inputs=[], expected=[torch.ones(4, 3)])
        parts = problems.definition(), problems.workload(), trial
        return lambda actual: evaluator.check_timed(*parts, [actual], settings(atol=0.1))

    def test_right(self, check_timed):
        found = check_timed(torch.full((4, 3), 1.0625))
        assert found.passed
        assert found.correctness is not None
        assert found.correctness.max_absolute_error == 0.0625
        assert found.correctness.extra == {"matched_ratio": 1.0}

    def test_wrong(self, check_timed):
        found = check_timed(torch.full((4, 3), 2.0))
        assert found.status == NUMERICAL
        assert found.correctness is not None
        assert found.correctness.extra is not None
        assert found.correctness.extra["first_failing"]["actual"] == 2.0


class TestLooseTolerance:
    """What passes within 0.01 and not by dtype, here float32, is marked."""

    @pytest.fixture
    def checked(self, problems, evaluator):
        def check(*outputs, **settings):
            parts = problems.definition(), problems.workload()
            config = BenchmarkConfig(**settings).resolve_eval_config(*parts)
            trial = Trial(index=0, seed=5, inputs=[], expected=[torch.ones(4, 3)])
            checks = [evaluator.check(*parts, trial, [[one]], config) for one in outputs]
            return checks, evaluator.combine(checks).extra or {}

        return check

    def test_in_one_of_several_trials(self, checked):
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
    def test_not_what_is_no_default(self, checked, settings, passed):
        off = torch.ones(4, 3)
        off[0] += 0.005
        (check,), extra = checked(off, **settings)
        assert check.passed is passed
        assert "loose_tolerance" not in extra

    def test_nor_what_either_error_allows(self, checked):
        assert "loose_tolerance" not in checked(torch.full((4, 3), 1.0009))[1]

    @pytest.mark.parametrize(("value", "marked"), [(1.0005, False), (1.005, True), (1.05, None)])
    def test_timed_calls_that_are_right_by_it_alone(self, problems, evaluator, value, marked):
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
    def test_what_somebody_has_set_stays(self, problems, own, strict):
        definition = problems.definition(tolerance=own)
        found = BenchmarkConfig().resolve_eval_config(definition).by_dtype(definition, "y")
        assert (None if found is None else (found.atol, found.rtol)) == strict


def test_what_is_told_of_wrong_outputs(check):
    actual = torch.ones(4, 3)
    actual[2, 1] = 3.0
    found = check([torch.ones(4, 3)], [actual])
    assert found.status == NUMERICAL
    assert found.correctness is not None
    assert found.correctness.extra == {
        "matched_ratio": 11 / 12,
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


class TopK(DefaultEvaluator):
    """What a plugin would bring."""

    name = "topk"


class TestResolve:
    def catalog(self, factory, **options):
        default = EvaluatorSpec(
            name="default", factory="flashinfer_bench.bench.evaluators:DefaultEvaluator", priority=0
        )
        return Catalog.of(default, EvaluatorSpec(name="topk", factory=factory, **options))

    def test_by_op_type_and_by_name(self, problems, monkeypatch):
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

    def test_what_is_no_evaluator(self, problems):
        catalog = self.catalog("math:sqrt", op_types=("dsa",))
        with pytest.raises(PluginLoadError, match="not a subclass of Evaluator"):
            resolve_evaluator(problems.definition(op_type="dsa"), catalog=catalog)
