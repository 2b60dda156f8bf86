"""Plans: batches, limits over the rule, and the counts that users have always set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.stopping import (
    Step,
    StoppingRule,
    TimingPlan,
)


@dataclass(frozen=True)
class UpTo(StoppingRule):
    """Content with any `enough` samples."""

    name: ClassVar[str] = "up_to"
    enough: int

    def wants_more(self, samples_ms):
        return len(samples_ms) < self.enough


def plan_of(**settings):
    return TimingPlan.of(BenchmarkConfig(**settings))


def followed(plan, call_s=0.0):
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
    def test_is_rounds_of_warmup_and_iterations(self, trials, warmup, calls):
        plan = plan_of(num_trials=trials, warmup_runs=warmup, iterations=calls)
        steps, taken, ending = followed(plan, call_s=100.0)
        assert steps == [Step(warmup, calls)] * trials
        assert taken == trials * calls == plan.max_samples
        assert ending == "rule"

    def test_limits_add_and_take_away(self):
        assert followed(plan_of(max_samples=70))[0] == [Step(10, 50), Step(10, 20)]
        assert followed(plan_of(max_samples=70))[1:] == (70, "max_samples")
        assert followed(plan_of(min_samples=190))[1] == 190
        assert plan_of(max_samples=1000).max_samples == 150  # or looks would be planned in vain
        assert followed(plan_of(min_samples=2))[1] == 150

    @given(
        st.integers(1, 9), st.integers(0, 20), st.integers(1, 60), st.integers(1, 30), st.booleans()
    )
    def test_split_has_the_same_calls(self, trials, warmup, calls, count, capped):
        limits = {"max_samples": 40} if capped else {}
        plan = plan_of(num_trials=trials, warmup_runs=warmup, iterations=calls, **limits)
        total = followed(plan)[1]
        parts = plan.split(min(count, total))
        assert len(parts) == min(count, total)
        found = [followed(part) for part in parts]
        assert sum(taken for _, taken, _ in found) == total
        sizes = [step.calls for (step,), _, _ in found]
        assert max(sizes) - min(sizes) <= 1
        assert all(step.warmup >= min(3, warmup) for (step,), _, _ in found)

    @given(st.integers(1, 200), st.integers(1, 9), st.integers(0, 20), st.integers(1, 60))
    def test_at_most(self, count, trials, warmup, calls):
        plan = plan_of(num_trials=trials, warmup_runs=warmup, iterations=calls)
        steps, taken, _ = followed(plan.at_most(count))
        assert taken == min(count, plan.total)
        assert len(steps) <= trials
        assert all(min(3, warmup) <= step.warmup <= warmup for step in steps)

    @pytest.mark.parametrize(("call_s", "least", "most"), [(1.0, 30, 30), (0.02, 70, 100)])
    def test_slow_calls_make_rounds_shorter(self, call_s, least, most):
        steps, taken, ending = followed(plan_of().shortened(call_s))
        assert least <= taken <= most
        assert (len(steps), ending) == (3, "rule")
        assert plan_of(num_trials=1, iterations=9).shortened(call_s).total == 9

    def test_short_calls_and_set_limits_leave_rounds_alone(self):
        assert plan_of().shortened(0.01) == plan_of()
        limited = plan_of(max_seconds=1e3)
        assert limited.shortened(1.0) == limited
        assert plan_of(min_samples=120).shortened(1.0).total == 120

    def test_parts_share_the_time(self):
        parts = plan_of(max_seconds=9.0).split(6)
        assert [part.max_seconds for part in parts] == [1.5] * 6


@given(
    st.integers(1, 400),
    st.integers(1, 50),
    st.integers(1, 200),
    st.integers(1, 400),
    st.floats(0, 2),
)
def test_always_ends_within_the_limits(enough, batch, least, more, call_s):
    plan = TimingPlan(UpTo(enough), 3, batch, least, least + more, max_seconds=50.0)
    _, taken, ending = followed(plan, call_s)
    assert 1 <= taken <= plan.max_samples
    if ending == "rule":
        assert taken >= max(enough, least)
    if ending == "max_seconds":
        assert (taken + 3) * call_s >= 50.0
    assert (taken - 1) * call_s < 50.0


class TestWithin:
    def test_rounds_shrink(self):
        plan = plan_of().within(90.0, 1.0)
        assert followed(plan)[0] == [Step(5, 25)] * 3
        assert followed(plan_of().within(0.0, 1.0))[0] == [Step(0, 1)] * 3

    @given(st.floats(-1, 500), st.floats(1e-6, 10))
    def test_shrunk_rounds_take_no_longer_than_allowed(self, budget, call):
        plan = plan_of().within(budget, call)
        calls = sum(step.warmup + step.calls for step in followed(plan)[0])
        assert calls == 3 or calls * call <= budget * (1 + 1e-9)
