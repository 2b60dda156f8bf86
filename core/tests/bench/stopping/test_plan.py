"""Plans: batches, limits over the rule, and the counts that users have always set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.config import BenchmarkConfig, ResolvedEvalConfig
from flashinfer_bench.bench.stopping.base import StoppingRule
from flashinfer_bench.bench.stopping.fixed import Fixed
from flashinfer_bench.bench.stopping.plan import Ending, Step, TimingPlan
from flashinfer_bench.bench.stopping.rse import RelativeStandardError
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class UpTo(StoppingRule):
    """Content with any `enough` samples."""

    name: ClassVar[str] = "up_to"
    enough: int

    def wants_more(self, samples_ms: Sequence[float]) -> bool:
        return len(samples_ms) < self.enough


def plan_of(**settings: Any) -> TimingPlan:
    return TimingPlan.of(BenchmarkConfig(**settings))


def followed(plan: TimingPlan, call_s: float = 0.0) -> tuple[list[Step], int, Ending]:
    """Follow a plan as its docstring says; return the steps, the timed calls, and the ending."""
    seconds, taken, steps = 0.0, 0, []
    while (ending := plan.ending([1.0] * taken, seconds)) is None:
        step = plan.step(taken)
        steps.append(step)
        for place in range(step.warmup + step.calls):
            if taken and plan.out_of_time(seconds):
                break
            seconds += call_s
            taken += place >= step.warmup
    return steps, taken, ending


class TestFixed:
    @given(st.integers(1, 9), st.integers(0, 20), st.integers(1, 60))
    def test_is_rounds_of_warmup_and_iterations(self, trials: int, warmup: int, calls: int) -> None:
        plan = plan_of(num_trials=trials, warmup_runs=warmup, iterations=calls)
        steps, taken, ending = followed(plan, call_s=100.0)
        assert steps == [Step(warmup, calls)] * trials
        assert taken == trials * calls == plan.max_samples
        assert ending is Ending.RULE

    def test_by_default(self) -> None:
        plan = plan_of()
        assert plan == TimingPlan(Fixed(150), 10, 50, 1, 150, None, rounds=True)
        assert followed(plan)[0] == [Step(10, 50)] * 3

    def test_limits_add_and_take_away(self) -> None:
        assert followed(plan_of(max_samples=70))[0] == [Step(10, 50), Step(10, 20)]
        assert followed(plan_of(max_samples=70))[1:] == (70, Ending.MAX_SAMPLES)
        assert followed(plan_of(min_samples=190))[1] == 190
        assert followed(plan_of(min_samples=2))[1] == 150

    def test_time(self) -> None:
        _, taken, ending = followed(plan_of(max_seconds=100), call_s=1.0)
        assert (taken, ending) == (80, Ending.MAX_SECONDS)  # with 20 of warm-up


class TestOthers:
    def test_by_default(self) -> None:
        plan = plan_of(stop_rule="rse", stop_params={"target": "1%"})
        rule = RelativeStandardError(target=0.01)
        assert plan == TimingPlan(rule, 10, 10, 30, 1000, 15.0, rounds=False)

    def test_settings_are_taken_over(self) -> None:
        plan = plan_of(
            stop_rule="entropy", warmup_runs=3, min_samples=5, max_samples=7, max_seconds=0.5
        )
        assert (plan.warmup, plan.min_samples, plan.max_samples, plan.max_seconds) == (3, 5, 7, 0.5)

    def test_one_limit_moves_the_default_of_the_other(self) -> None:
        few, many = (
            plan_of(stop_rule="rse", max_samples=9),
            plan_of(stop_rule="rse", min_samples=5000),
        )
        assert (few.min_samples, few.max_samples) == (9, 9)
        assert (many.min_samples, many.max_samples) == (5000, 5000)

    def test_iterations_and_trials_mean_nothing(self) -> None:
        assert plan_of(stop_rule="rse", iterations=7, num_trials=9) == plan_of(stop_rule="rse")

    def test_one_warmup(self) -> None:
        plan = TimingPlan(UpTo(55), 4, 10, 30, 1000)
        steps, taken, ending = followed(plan)
        assert steps == [Step(4, 10), *([Step(0, 10)] * 5)]
        assert (taken, ending) == (60, Ending.RULE)

    def test_rule_is_not_asked_before_the_least(self) -> None:
        assert followed(TimingPlan(UpTo(1), 0, 10, 30, 1000))[1] == 30

    def test_rule_is_not_asked_to_end_at_the_most(self) -> None:
        assert followed(TimingPlan(UpTo(10**9), 0, 10, 30, 95))[1:] == (95, Ending.MAX_SAMPLES)

    def test_batches_grow(self) -> None:
        sizes = [step.calls for step in followed(TimingPlan(UpTo(10**9), 0, 10, 1, 2000))[0]]
        assert sizes[:8] == [10] * 8
        assert max(sizes) == 50
        assert len(sizes) < 60

    @given(
        st.integers(1, 400),
        st.integers(1, 50),
        st.integers(1, 200),
        st.integers(1, 400),
        st.floats(0, 2),
    )
    def test_always_ends_within_the_limits(
        self, enough: int, batch: int, least: int, more: int, call_s: float
    ) -> None:
        plan = TimingPlan(UpTo(enough), 3, batch, least, least + more, max_seconds=50.0)
        _, taken, ending = followed(plan, call_s)
        assert 1 <= taken <= plan.max_samples
        if ending is Ending.RULE:
            assert taken >= max(enough, least)
        if ending is Ending.MAX_SECONDS:
            assert (taken + 3) * call_s >= 50.0
        assert (taken - 1) * call_s < 50.0

    def test_a_kernel_slower_than_the_limit_has_one_sample(self) -> None:
        _, taken, ending = followed(plan_of(stop_rule="rse", warmup_runs=0), call_s=20.0)
        assert (taken, ending) == (1, Ending.MAX_SECONDS)


class TestEnding:
    plan = TimingPlan(UpTo(5), 0, 1, 3, 8, max_seconds=10.0)

    def test_there_must_be_a_sample(self) -> None:
        assert self.plan.ending([], 1e9) is None

    def test_the_rule_comes_first(self) -> None:
        assert self.plan.ending([1.0] * 8, 99.0) is Ending.RULE

    def test_samples_that_do_not_count_are_no_reason_to_go_on_for_ever(self) -> None:
        assert self.plan.ending([1.0] * 2, 0.0, taken=7) is None
        assert self.plan.ending([1.0] * 2, 0.0, taken=8) is Ending.MAX_SAMPLES
        assert self.plan.ending([], 0.0, taken=8) is Ending.MAX_SAMPLES

    @pytest.mark.parametrize("sample", [math.nan, math.inf, -math.inf, -1e-9])
    def test_what_cannot_be_a_latency_ends_it(self, sample: float) -> None:
        assert self.plan.ending([1.0, sample], 0.0) is Ending.IMPOSSIBLE

    def test_names_are_those_of_the_trace(self) -> None:
        assert [one.value for one in Ending] == ["rule", "max_samples", "max_seconds", "impossible"]

    def test_time(self) -> None:
        assert self.plan.out_of_time(10.0)
        assert not self.plan.out_of_time(9.99)
        assert not plan_of().out_of_time(1e9)


class TestWithin:
    def test_what_fits_stays(self) -> None:
        plan = plan_of()
        assert plan.within(180.0, 1.0) is plan

    def test_rounds_shrink(self) -> None:
        plan = plan_of().within(90.0, 1.0)
        assert followed(plan)[0] == [Step(5, 25)] * 3
        assert followed(plan_of().within(0.0, 1.0))[0] == [Step(0, 1)] * 3

    @given(st.floats(-1, 500), st.floats(1e-6, 10))
    def test_shrunk_rounds_take_no_longer_than_allowed(self, budget: float, call: float) -> None:
        plan = plan_of().within(budget, call)
        calls = sum(step.warmup + step.calls for step in followed(plan)[0])
        assert calls == 3 or calls * call <= budget * (1 + 1e-9)

    def test_others_get_less_time(self) -> None:
        plan = plan_of(stop_rule="rse")
        assert plan.within(4.0, 1.0).max_seconds == 4.0
        assert plan.within(40.0, 1.0).max_seconds == 15.0
        assert plan.within(-1.0, 1.0).max_seconds == 0.0
        assert followed(plan.within(-1.0, 1.0), call_s=1.0)[1] == 1


def test_a_resolved_configuration_is_enough() -> None:
    resolved = ResolvedEvalConfig(rtol=0, atol=0, stop_rule="rse", max_samples=40)
    assert TimingPlan.of(resolved).max_samples == 40


def test_what_slipped_past_the_settings_is_refused() -> None:
    copied = BenchmarkConfig().model_copy(update={"stop_rule": "never"})
    with pytest.raises(ConfigError, match="there is no stop rule 'never'"):
        TimingPlan.of(copied)
