"""No workload may let an output pass that computes nothing; honest ones are left alone."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fib_judge.decidability import UndecidableWorkload, tightened
from flashinfer_bench.bench import BenchmarkConfig, DefaultEvaluator, Evaluator
from flashinfer_bench.bench.evaluators import Check, Trial
from flashinfer_bench.data import Definition, EvaluationStatus, TensorSpec, Tolerance, Workload


class Case:
    """A definition ``x -> outputs`` over tensors of one shape, with given trials."""

    evaluator: Evaluator = DefaultEvaluator()

    def __init__(self, *trials, dtype="float32", **changes):
        axes = {f"a{index}": {"type": "var"} for index in range(trials[0][1].dim())}
        names = "yz"[: len(trials[0]) - 1]
        shape = list(axes) or None
        self.definition = Definition(
            name="d",
            op_type="o",
            axes=axes,
            inputs={"x": TensorSpec(shape=shape, dtype=dtype)},
            outputs={
                name: TensorSpec(shape=shape, dtype=str(out.dtype)[6:])
                for name, out in zip(names, trials[0][1:], strict=True)
            },
            reference="def run(x): pass",
            **changes,
        )
        sizes = dict(zip(axes, trials[0][1].shape, strict=True))
        self.workload = Workload(axes=sizes, inputs={}, uuid="w1")
        self.trials = [
            Trial(index, index, [trial[0]], list(trial[1:])) for index, trial in enumerate(trials)
        ]

    def resolve(self, **options):
        config = BenchmarkConfig(**options).resolve_eval_config(self.definition, self.workload)
        problem = self.definition, self.workload, self.trials
        return config, tightened(*problem, self.evaluator, config)

    def passes(self, config, *outputs):
        """Whether outputs, each the same in all trials, pass in all of them."""
        return all(
            self.evaluator.check(
                self.definition, self.workload, trial, [list(outputs)], config
            ).passed
            for trial in self.trials
        )


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def trials(make, count=3, shape=(8, 16)):
    return [
        (x, *outputs)
        for x in (drawn(*shape, seed=seed) for seed in range(count))
        if (outputs := make(x))
    ]


def masked(x):
    return (torch.where(x > 0, x * 3, float("-inf")),)


HONEST = {
    "unit scale": trials(lambda x: (x * 2,)),
    "a copy is the answer": trials(lambda x: (x.clone(),)),
    "the same inputs every time": trials(lambda x: (x * 2,))[:1] * 3,
    "single numbers": [(torch.tensor(float(n)), torch.tensor(n * 3.0)) for n in (1, 2)],
    "a single number": [(torch.tensor(1.0), torch.tensor(3.0))],
    "integers": trials(lambda x: ((x * 9).to(torch.int32),)),
    "one constant output of two": trials(lambda x: (x * 2, torch.ones_like(x))),
    "inf": trials(masked),
}


class TestHonest:
    @pytest.mark.parametrize("made", HONEST.values(), ids=HONEST)
    def test_is_left_alone(self, made):
        config, found = Case(*made).resolve()
        assert found == config

    @pytest.mark.parametrize("scale", [0.2, 1.0, 100.0])
    def test_what_was_set_is_left_alone_where_nothing_trivial_passes(self, scale):
        config, found = Case(*trials(lambda x: (x * scale,))).resolve(atol=0.05, rtol=0.05)
        assert found == config

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("scale", [1.0, 1e-2, 1e-4])
    def test_rounding_still_passes_at_any_scale(self, dtype, scale):
        made = trials(lambda x: ((x * scale).to(dtype),), shape=(64, 64))
        case = Case(*made, dtype=str(dtype)[6:])
        config = case.resolve()[1]
        for trial in case.trials:
            right = trial.expected[0].double()
            half = torch.finfo(dtype).eps / 2
            for error in (1 + half, 1 - half):
                again = [(right * error).to(dtype)]
                check = case.evaluator.check(case.definition, case.workload, trial, [again], config)
                assert check.passed, check.message


class TestSmallOutputs:
    @pytest.mark.parametrize(
        ("tolerance", "reason"), [("fixed", "zeros would pass"), ("dtype", "on the order of")]
    )
    def test_zeros_pass_before_and_not_after(self, tolerance, reason):
        case = Case(*trials(lambda x: (x * 1e-4,)))
        config, found = case.resolve(tolerance=tolerance)
        zeros = torch.zeros(8, 16)
        assert case.passes(config, zeros)
        assert not case.passes(found, zeros)
        assert found.tolerance_of("y").atol < 1e-5
        assert found.tolerance_of("y").rtol == config.tolerance_of("y").rtol
        assert set(found.tightened) == {"y"}
        assert reason in found.tightened["y"]

    @pytest.mark.parametrize("by", ["user", "definition"])
    def test_also_where_it_was_set(self, by):
        own = {"tolerance": Tolerance(atol=0.5)} if by == "definition" else {}
        case = Case(*trials(lambda x: (x * 1e-4,)), **own)
        config, found = case.resolve(**({"atol": 0.5} if by == "user" else {}))
        assert case.passes(config, torch.zeros(8, 16))
        assert not case.passes(found, torch.zeros(8, 16))
        assert "zeros would pass" in found.tightened["y"]

    def test_nearly_constant(self):
        case = Case(*trials(lambda x: (5 + 1e-3 * x,)))
        config, found = case.resolve()
        five = torch.full((8, 16), 5.0)
        assert case.passes(config, five)
        assert not case.passes(found, five)
        assert (
            "the constant 5" in found.tightened["y"] or "the constant 4.99" in found.tightened["y"]
        )

    def test_nearly_a_copy(self):
        case = Case(*trials(lambda x: (x + 1e-4,)))
        found = case.resolve()[1]
        assert "a copy of input 'x'" in found.tightened["y"]

    def test_nearly_the_same_every_time(self):
        base = drawn(8, 16, seed=9)
        case = Case(*trials(lambda x: (base + 1e-4 * x,)))
        found = case.resolve()[1]
        assert "the result of another trial" in found.tightened["y"]

    def test_only_the_output_that_needs_it(self):
        found = Case(*trials(lambda x: (x * 2, x * 1e-4))).resolve()[1]
        assert set(found.tightened) == {"z"}

    def test_mostly_zeros_under_a_share(self):
        def sparse(x):
            y = torch.zeros_like(x)
            y[0, :3] = x[0, :3] + 3
            return (y,)

        case = Case(*trials(sparse))
        config, found = case.resolve(required_matched_ratio=0.9)
        assert case.passes(config, torch.zeros(8, 16))
        assert not case.passes(found, torch.zeros(8, 16))
        ratio = found.tolerance_of("y").required_matched_ratio
        assert 0.9 < ratio < 1.0

    @given(
        st.floats(-6, 2),
        st.floats(-6, 2),
        st.sampled_from([torch.float32, torch.bfloat16]),
    )
    def test_never_looser_and_never_trivial(self, scale, atol, dtype):
        made = trials(lambda x: ((x * 10**scale).to(dtype),))
        case = Case(*made, dtype=str(dtype)[6:])
        config, found = case.resolve(atol=10**atol)
        before, after = config.tolerance_of("y"), found.tolerance_of("y")
        assert after.atol <= before.atol
        assert after.rtol <= before.rtol
        assert not case.passes(found, torch.zeros(8, 16, dtype=dtype))
        for trial in case.trials:
            right = [trial.expected[0]]
            problem = case.definition, case.workload, trial
            assert case.evaluator.check(*problem, [right], found).passed


class TestUndecidable:
    @pytest.mark.parametrize("value", [0.0, 1.0, -7.5, float("nan")])
    def test_constants(self, value):
        case = Case(*trials(lambda x: (torch.full_like(x, value),)))
        if value != value:  # zeros do not pass as NaN, nor is there a finite constant
            assert case.resolve()[0] == case.resolve()[1]
            return
        with pytest.raises(UndecidableWorkload) as caught:
            case.resolve()
        message = caught.value.message
        assert "w1" in message
        assert "'d'" in message
        assert "'y'" in message
        assert ("zeros" if value == 0 else f"the constant {value:g}") in message
        assert caught.value.hint

    def test_every_output_has_to_be_one(self):
        with pytest.raises(UndecidableWorkload, match="zeros as 'y'; the constant 1 as 'z'"):
            Case(*trials(lambda x: (torch.zeros_like(x), torch.ones_like(x)))).resolve()

    def test_constant_up_to_rounding(self):
        made = trials(lambda x: (torch.full_like(x, 3.0) + 1e-6 * x.sign(),))
        with pytest.raises(UndecidableWorkload, match="the constant 3"):
            Case(*made).resolve()

    def test_integers_and_booleans(self):
        with pytest.raises(UndecidableWorkload):
            Case(*trials(lambda x: (x > 100,))).resolve()
        with pytest.raises(UndecidableWorkload):
            Case(*trials(lambda x: (torch.full_like(x, 4).to(torch.int64),))).resolve()


class Anything(DefaultEvaluator):
    one_answer: ClassVar[bool] = False


class Broken(DefaultEvaluator):
    def check(self, *problem):
        raise RuntimeError("no")


class Nothing(DefaultEvaluator):
    def check(self, *problem):
        return Check(EvaluationStatus.INCORRECT_DTYPE, None, "never")


@pytest.mark.parametrize("evaluator", [Anything(), Broken(), Nothing()])
def test_evaluators_that_cannot_be_asked(evaluator):
    case = Case(*trials(lambda x: (torch.zeros_like(x),)))
    case.evaluator = evaluator
    config, found = case.resolve()
    assert found == config
