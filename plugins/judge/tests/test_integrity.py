"""The rules that a claimed latency has to satisfy: each by itself, and how often they err."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_judge.floor import Floor
from fib_judge.integrity import (
    EXCHANGE,
    HIDDEN,
    Claim,
    Normal,
    Normals,
    Violation,
    inquire,
)
from flashinfer_bench.bench.calls import TimedCall

QUIET = Normals(Normal(0.1, 0.002, 75), Normal(0.4, 0.02, 75), Normal(1.0, 0.01, 75), 1e-5)
MS = st.floats(0.0, 1e6)


def call(sample=1.0, overhead=0.1, stage=1.0, change=0.3):
    return TimedCall(sample, change, sample + overhead, stage, "clock", "1")


def claim(calls, **known):
    return Claim(tuple(calls), **{"timer": "clock", "timer_version": "1", **known})


def jittered(count=150, **times):
    return [
        call(**{**times, "sample": times.get("sample", 1.0) + i % 7 * 1e-4}) for i in range(count)
    ]


def overhead(calls, **known):
    return inquire(claim(calls, **known), QUIET).overhead


def exchange(calls, **known):
    return inquire(claim(calls, **known), QUIET).exchange


def stage(calls, **known):
    return inquire(claim(calls, **known), QUIET).stage


class TestNormal:
    def test_a_quiet_moment_hides_nothing(self):
        """The reference waited for a millisecond, the liar did not, and hides that one."""
        overhead, exchange = Normal(1.1, 0.1, 75), Normal(1.4, 0.1, 75, 0.45)
        disturbed = replace(QUIET, overhead=overhead, exchange=exchange)
        found = inquire(claim(jittered(sample=0.3, overhead=1.0)), disturbed).violation
        assert (found.rule, found.undecided) == ("exchange time", True)


class TestNormals:
    def test_a_judge_that_was_late_to_hear_of_a_call_says_nothing_about_the_least(self):
        calls = [call(overhead=-0.8, change=1.2)] * 3 + [call()] * 9
        found = Normals.of(calls)
        assert found.overhead.usual_ms == pytest.approx(0.1)
        assert found.exchange.usual_ms == pytest.approx(0.4)


class TestHiddenTime:
    @pytest.mark.parametrize(("margins", "most"), [(HIDDEN, 1.05), (EXCHANGE, 1.5)])
    @given(claimed=MS, middle=MS, spread=MS)
    def test_no_noise_makes_a_lie_win_more(self, margins, most, claimed, middle, spread):
        normal = Normal(middle, spread, 9)
        believed = claimed + margins.allowed_ms(claimed, normal)
        assert believed <= (most * claimed + margins.slack_ms) * (1 + 1e-9)
        assert margins.allowed_ms(claimed, normal) <= margins.noise_ms(claimed, normal)

    @given(
        st.floats(0.5, 2.0),
        st.floats(0.03, 0.3),
        st.floats(0.0, 0.1),
        st.floats(0.0, 5.0),
        st.floats(0.2, 0.9),
    )
    def test_a_lie_of_a_fifth_is_never_believed(self, latency, overhead, spread, change, lie):
        """However busy the machine is while inputs are changed; what that costs is not in it."""
        normals = replace(
            QUIET,
            overhead=Normal(overhead, spread, 25),
            exchange=Normal(overhead + change, change / 2, 25),
        )
        hidden, claimed = lie * latency, (1 - lie) * latency
        calls = jittered(sample=claimed, overhead=overhead + hidden, change=change)
        found = inquire(claim(calls), normals)
        assert found.violation.disputable
        assert found.unseen_ms >= 0.99 * hidden

    def test_half_of_the_calls_must_be_falsified_and_these_are_seen(self):
        honest, false = jittered(74), jittered(76, sample=0.2, overhead=0.9)
        assert overhead(honest + false).ms == pytest.approx(0.8)

    @pytest.mark.parametrize("phase", [0, 50, 100])
    def test_hiding_in_one_round_of_three_gains_nothing(self, phase):
        calls = jittered(150)
        calls[phase : phase + 50] = jittered(50, sample=0.2, overhead=0.9)
        assert claim(calls).latency_ms >= 1.0
        assert overhead(calls).too_much

    def test_disturbed_calls_do_not_count(self):
        calls = jittered(150)
        calls[:70] = jittered(70, sample=5.0, overhead=30.0)
        assert not overhead(calls).too_much

    def test_own_noise_widens_nothing(self):
        """Else a candidate would sleep at random, and hide its time behind that."""
        rng = random.Random(3)
        calls = [call(0.2 + rng.random() / 1e3, 0.9 + rng.choice([0, 9])) for _ in range(150)]
        assert overhead(calls).too_much


class TestDescribeTime:
    def test_computing_after_the_end_is_seen(self):
        calls = [replace(each, enqueue_ms=0.1, describe_ms=0.5) for each in jittered(sample=0.05)]
        normals = replace(QUIET, describe=Normal(0.1, 0.01, 75))
        found = inquire(claim(calls, device="cuda:0"), normals)
        assert found.describe.too_much
        assert not found.overhead.too_much
        assert "answers come 0.4 ms (allowed: 0.1 ms) longer than" in found.violation.message
        assert found.unseen_ms == pytest.approx(0.4)


class TestExchangeTime:
    def test_computing_while_inputs_are_changed_is_seen(self):
        calls = jittered(sample=0.2, change=1.1)
        assert not overhead(calls).too_much
        found = exchange(calls)
        assert found.ms == pytest.approx(0.8)
        assert found.too_much
        assert not found.may_be_noise

    @given(st.floats(0.0, 2.0), st.floats(0.0, 1.0))
    def test_when_the_candidate_tells_of_its_changes_wins_nothing(self, hidden, late):
        """The exchange is as long, whatever part of it is said to be the changing."""
        early = jittered(sample=0.2, overhead=0.1 + hidden)
        moved = jittered(sample=0.2, overhead=0.1 + hidden * (1 - late), change=0.3 + hidden * late)
        expected = exchange(early).ms
        assert exchange(moved).ms == pytest.approx(expected)

    def test_devices_are_heard_sooner_and_changed_later(self):
        calls = jittered(sample=0.3, overhead=0.145, change=1.2)
        hidden, exchanged = (
            [each(calls, device=device) for device in ("cpu", "cuda:0")]
            for each in (overhead, exchange)
        )
        assert [found.too_much for found in hidden] == [False, True]
        assert [found.too_much for found in exchanged] == [True, False]
        assert hidden[0].ms == hidden[1].ms
        assert exchange(jittered(sample=0.3, change=4.0), device="cuda:0").too_much


class TestStageTime:
    def test_computing_there_is_seen_if_it_is_much(self):
        assert stage(jittered(sample=0.01, stage=2.2)).too_much
        assert not stage(jittered(sample=0.01, stage=1.9)).too_much

    def test_outputs_that_the_reference_does_not_get(self):
        calls = jittered(sample=0.01, stage=3.5)
        assert stage(calls, poisoned_bytes=2**20).too_much
        assert not stage(calls, poisoned_bytes=2**21).too_much


class TestInquiry:
    @pytest.mark.parametrize(
        ("calls", "known", "rule", "disputable"),
        [
            (jittered(), {"timer_version": "9"}, "timer", False),
            ([call(math.nan)] * 3, {}, "samples", False),
            (jittered(), {"floor": Floor(2.0, 1, 1, "call")}, "floor", False),
            (jittered(overhead=0.9), {}, "hidden time", True),
            (jittered(change=2.3), {}, "exchange time", True),
            (jittered(stage=9.0), {}, "stage time", True),
            ([call()] * 99, {}, "samples", False),
        ],
    )
    def test_rules(self, calls, known, rule, disputable):
        violation = inquire(claim(calls, **known), QUIET).violation
        assert (violation.rule, violation.disputable) == (rule, disputable)
        assert str(violation).startswith(f"integrity: {rule}: ")

    def test_honest(self):
        found = inquire(claim(jittered(), floor=Floor(0.1, 1, 1, "call")), QUIET)
        assert found.violation is None

    @pytest.mark.parametrize(
        ("overhead", "undecided"),
        [
            (Normal(0.1, 0.002, 75), False),
            (Normal(1.2, 0.01, 75), True),
            (Normal(0.1, 0.06, 9), True),
        ],
        ids=["quiet", "slow", "noisy"],
    )
    def test_what_noise_may_explain_proves_nothing(self, overhead, undecided):
        """But a claim that it could explain as well is not believed for that."""
        calls = jittered(sample=0.2, overhead=overhead.median_ms + 0.25)
        spread = 3 * overhead.spread_ms
        exchange = Normal(overhead.median_ms + 0.3, spread, overhead.count)
        normals = replace(QUIET, overhead=overhead, exchange=exchange)
        found = inquire(claim(calls), normals).violation
        assert (found.rule, found.undecided) == ("hidden time", undecided)

    @pytest.mark.parametrize("times", [{"overhead": 0.9}, {"change": 1.0}, {"stage": 9.0}])
    @pytest.mark.parametrize(("waited", "undecided"), [(0.0, False), (0.3, False), (9.0, True)])
    def test_who_was_kept_from_the_cores_for_as_long_is_not_convicted(
        self, times, waited, undecided
    ):
        """And gains nothing: what is added to the latency is the same."""
        found = inquire(claim(jittered(**times), waited_ms=waited), QUIET)
        assert found.violation.undecided is undecided
        assert found.unseen_ms == inquire(claim(jittered(**times)), QUIET).unseen_ms > 0.5

    def test_what_is_certain_comes_first(self):
        slow = replace(QUIET, overhead=Normal(9.0, 0.1, 75), exchange=Normal(9.3, 0.1, 75))
        calls = jittered(sample=0.2, overhead=9.5, stage=9.0)
        found = inquire(claim(calls), slow).violation
        assert (found.rule, found.undecided) == ("stage time", False)

    @pytest.mark.parametrize(
        ("times", "added"),
        [
            ({}, 0.0),
            ({"overhead": 0.9}, 0.8),  # of the call, of the exchange as well, and once
            ({"change": 1.0}, 0.7),
            ({"overhead": 0.9, "change": 1.0}, 1.5),
            ({"overhead": 0.9, "change": 0.0}, 0.8),
            ({"stage": 9.0}, 8.0),
            ({"overhead": 0.9, "stage": 9.0}, 8.8),
            ({"overhead": 0.9, "change": 1.0, "stage": 9.0}, 9.5),
        ],
    )
    def test_what_a_latency_lacks(self, times, added):
        assert inquire(claim(jittered(**times)), QUIET).unseen_ms == pytest.approx(added)

    @given(st.lists(st.tuples(MS, MS, MS, MS), min_size=1, max_size=40))
    def test_any_figures_get_an_answer(self, times):
        calls = [TimedCall(*each, "clock", "1") for each in times]
        found = inquire(claim(calls), QUIET)
        assert found.violation is None or found.violation.message


# ---- how often the rules err, with noise like that of real machines -------------------------


def steady(rng):
    return max(0.0, rng.gauss(0.09, 0.006))


def two_heaps(rng):
    """An idle core wakes up at once, or late."""
    return max(0.0, rng.gauss(rng.choice([0.07, 0.12]), 0.005))


def heavy_tail(rng):
    """One call in five waits for other processes, some of them for milliseconds."""
    return (
        0.08 + rng.expovariate(200.0) + (rng.paretovariate(1.1) / 20 if rng.random() < 0.2 else 0)
    )


NOISES = [steady, two_heaps, heavy_tail]


def run_of(noise, rng, *, latency=0.5, factor=1.0, hidden=0.0, share=1.0, count=150):
    """Simulate calls that take `latency`, on a machine slower by `factor`, and hide some of it.

    To change the inputs takes three times as long as the rest, and now and then the judge is late
    to hear of it.
    """
    calls = []
    for _ in range(count):
        late = noise(rng) / 2 if rng.random() < 0.05 else 0.0
        true = latency * factor * (1 + abs(rng.gauss(0, 0.03)))
        lie = hidden if rng.random() < share else 0.0
        change = sum(noise(rng) for _ in range(3)) * factor
        beyond = noise(rng) * factor + min(lie, true - 1e-3)
        calls.append(call(max(true - lie, 1e-3), beyond - late, change=change + late))
    return calls


def verdicts(noise, runs, seed, **changes):
    """Return in how many simulated evaluations time looks hidden in all attempts, and how surely.

    ``believed``, ``undecided``, or ``convicted``: of three attempts, as evaluations have.
    """
    rng, found = random.Random(seed), Counter[str]()
    drift = changes.pop("drift", lambda rng: 1.0)
    for _ in range(runs):
        normal = Normals.of(run_of(noise, rng))
        violation: Violation | None = None
        for attempt in range(3):
            if attempt:
                normal = normal.or_slower(Normals.of(run_of(noise, rng, count=24)))
            calls = claim(run_of(noise, rng, factor=drift(rng), **changes))
            violation = inquire(calls, normal).violation
            if violation is None:
                break
        undecided = violation is not None and violation.undecided
        found["believed" if violation is None else "undecided" if undecided else "convicted"] += 1
    return found


@pytest.mark.parametrize("noise", NOISES)
class TestErrorRates:
    def test_honest_solutions_are_believed(self, noise):
        found = verdicts(noise, 400, seed=5)
        assert found["convicted"] == 0
        assert found["undecided"] <= 1

    def test_also_on_a_machine_whose_speed_drifts(self, noise):
        def drift(rng):
            return rng.uniform(0.8, 1.25)

        found = verdicts(noise, 400, seed=6, drift=drift)
        assert found["convicted"] <= 2
        assert found["convicted"] + found["undecided"] <= 4

    @pytest.mark.parametrize(("hidden", "power"), [(0.125, 0.97), (0.25, 0.99)])
    def test_a_quarter_of_a_latency_cannot_be_hidden(self, hidden, power, noise):
        assert verdicts(noise, 100, seed=8, hidden=hidden)["believed"] <= 100 * (1 - power)


@pytest.mark.parametrize("factor", [3.0, 10.0, 30.0])
class TestBusyMachines:
    """Everything there takes a random time, many times that of the same work on a quiet one."""

    @staticmethod
    def noise(factor):
        return lambda rng: 0.1 + factor * rng.expovariate(10.0)

    def test_honest_solutions_are_never_convicted(self, factor):
        found = verdicts(self.noise(factor), 200, seed=10, latency=2.0)
        assert found["convicted"] == 0
        assert found["believed"] > (190 if factor <= 10 else 0)


@given(st.integers(0, 2**32), st.sampled_from(NOISES), st.floats(0.3, 50.0))
def test_what_is_not_noticed_is_little(seed, noise, latency):
    """Whatever is claimed: either it is disputed, or it is nearly true."""
    rng = random.Random(seed)
    normal = Normals.of(run_of(noise, rng))
    calls = run_of(noise, rng, latency=latency, hidden=rng.uniform(0, latency))
    found = inquire(claim(calls), normal)
    if found.violation is None:
        believed = median(item.sample_ms for item in calls)
        allowed = HIDDEN.allowed_ms(believed, normal.overhead)
        assert believed >= latency - allowed - 4 * normal.overhead.spread_ms
        assert allowed <= HIDDEN.slack_ms + 0.05 * believed
