"""The rules that a claimed latency has to satisfy: each by itself, and how often they err."""

import math
import random
from dataclasses import replace
from functools import partial
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_judge.floor import Floor
from fib_judge.integrity import (
    Overhead,
    find_overlap,
    find_violation,
    least_alone_ms,
    shortest_call_ms,
    unaccounted_us,
    whole,
)
from flashinfer_bench.bench.executors.base import TimedCall

MS = st.floats(0.0, 1e6)
QUIET = Overhead(0.02, beyond_ms=0.1, spread_ms=0.002, enqueued_ms=0.05)


def call(sample=1.0, beyond=0.1, enqueued=0.05, version="1"):
    secured = sample + beyond + enqueued
    return TimedCall(sample, secured - 0.01, secured, enqueued, 0.0, "clock", version)


def jittered(count=50, **times):
    """Calls whose samples differ a little, as real ones do."""
    sample = times.pop("sample", 1.0)
    return [call(sample + i % 7 * 1e-4, **times) for i in range(count)]


def found(calls, overhead=QUIET, **known):
    given = {"device": "cuda:0", "timer": "clock", "timer_version": "1", "floor": None}
    return find_violation(calls, overhead=overhead, **{**given, **known})


class TestCertain:
    """No busy machine is the reason for these."""

    @pytest.mark.parametrize("device", ["cpu", "cuda:0"])
    @pytest.mark.parametrize(
        ("calls", "known", "rule", "text"),
        [
            (jittered(), {"timer": "other"}, "timer", "timer 'clock 1' answered instead of"),
            (jittered(), {"timer_version": "9"}, "timer", "instead of 'clock 9'"),
            (
                [*jittered(), call(version="2")],
                {"timer_version": None},
                "timer",
                "timer 'clock 2' answered",
            ),
            ([call(), call(math.nan)], {}, "samples", "a sample of nan ms is not a duration"),
            ([call(), call(-0.5)], {}, "samples", "a sample of -0.5 ms is not a duration"),
            ([replace(call(), secured_ms=0.4)], {}, "samples", "that took 0.4 ms"),
            ([call(0.0)] * 5, {}, "samples", "cannot tell the latency from zero"),
            ([call(1e-6)] * 5, {}, "samples", "an empty call takes"),
            (jittered(), {"floor": Floor(2.0, 1, 1, "call")}, "floor", "at least 2 ms here"),
        ],
    )
    def test_refused(self, calls, known, rule, text, device):
        violation = found(calls, device=device, **known)
        assert (violation.rule, violation.disputable) == (rule, False)
        assert str(violation).startswith(f"integrity: {rule}: ")
        assert text in violation.message

    @pytest.mark.parametrize(
        "calls",
        [
            jittered(),
            [call(1e-6), call(), call()],  # single short samples are noise
            [replace(call(), secured_ms=0.95)],  # clocks may disagree a little
            [call(0.5)] * 50,  # a clock may be coarse
        ],
    )
    def test_that_may_be(self, calls):
        assert found(calls, floor=Floor(0.1, 1, 1, "call"), timer_version=None) is None

    def test_the_least_that_timers_of_gpus_show_is_known(self):
        driver = pytest.importorskip("fib_timing_cuda.driver")
        assert shortest_call_ms("cuda:1") == driver.LEAST_MS


class TestOverhead:
    @pytest.mark.parametrize(
        ("factor", "least"), [(1, (0.006, 0.004, 0.03)), (900, (0.05, 0.05, 0.1))]
    )
    def test_of_calls(self, factor, least):
        """On a machine that is busy all the time, an exchange is not believed to take as long."""
        exchange = [0.006 * factor + number for number in range(20)]
        one = replace(call(), woken_ms=0.03 * factor)
        empty = {
            into: [
                replace(one, secured_ms=took, sample_ms=took)
                for took in (each - 0.002 * factor * into for each in exchange)
            ]
            for into in (False, True)
        }
        slow = jittered(20, sample=9.0, beyond=7.0, enqueued=5.0)
        figures = (*least[:2], 0.1, 0.0, 0.05, least[2])
        overhead = Overhead.of(empty, [*jittered(21), *slow])
        assert vars(overhead) == pytest.approx(vars(Overhead(*figures)))

    def test_calls_that_wait_take_what_the_judge_has_seen(self):
        usual = Overhead(0.0, beyond_ms=0.5, copied_ms=0.1, bare_ms=0.4)
        claims = [replace(one, secured_ms=2.4) for one in in_row(0.01, count=10, rounds=1)]
        for into, wanted in ((False, 0.2), (True, 0.21)):
            made = usual.for_outputs(into=into).timed_on_host(claims)
            assert [one.sample_ms for one in made] == pytest.approx([wanted] * 10)
        early = [replace(claims[0], secured_ms=0.3)]
        assert usual.timed_on_host(early)[0].sample_ms == shortest_call_ms("cuda")

    def test_a_machine_that_was_busy_meanwhile_hides_little(self):
        """A solution's compiler may have kept it so, for the solution to claim what it likes."""
        busy = [*(call(1.0, 4.0) for _ in range(20)), call(1.0, 0.1)]
        for empty, calls in ((busy, [call()]), ([call()], busy), (busy, busy)):
            overhead = Overhead.of({False: empty, True: empty}, calls)
            assert overhead.beyond_ms == pytest.approx(0.2)

    def test_a_reference_that_runs_while_it_is_enqueued(self):
        """Such calls end when they return to the host; those of others need the exchange, too."""
        overlapping = [replace(one, sample_ms=1.9, enqueued_ms=1.8) for one in jittered(21)]
        calls = [replace(one, secured_ms=2.3, wall_ms=2.3) for one in overlapping]
        empty = [replace(one, secured_ms=0.4 + one.sample_ms) for one in jittered(20)]
        overhead = Overhead.of({False: empty, True: empty}, calls)
        assert overhead.beyond_ms == pytest.approx(0.35, abs=0.1)

    @pytest.mark.parametrize(
        ("secured_ms", "woken_ms", "into", "sample_ms"),
        [
            (1.0, 0.0, False, 0.98),
            (1.0, 0.03, True, 0.99),
            (1.0, 0.43, True, 1.39),  # it could have worked instead of waiting for its release
            (0.01, 0.0, False, shortest_call_ms("cpu")),
        ],
    )
    def test_the_judges_own_time(self, secured_ms, woken_ms, into, sample_ms):
        claimed = replace(call(9.0), secured_ms=secured_ms, woken_ms=woken_ms)
        timed = Overhead(0.02, into_ms=0.01, woken_ms=0.03).timed(claimed, into=into)
        assert timed.sample_ms == pytest.approx(sample_ms)

    def test_the_first_look_counts_as_the_work_may_have_gone_on_until_then(self):
        looked = replace(call(9.0), secured_ms=1.0, glance_ms=0.002)
        assert Overhead(0.02).timed(looked, into=False).sample_ms == pytest.approx(0.982)
        held_up = replace(looked, glance_ms=0.9)  # no sample is longer than its call
        assert Overhead(0.02).timed(held_up, into=False).sample_ms == pytest.approx(1.0)

    @given(MS, MS)
    def test_no_noise_hides_much(self, beyond, spread):
        assert 0.05 <= Overhead(0.0, beyond_ms=beyond, spread_ms=spread).allowed_ms <= 0.1

    @pytest.mark.parametrize(("beyond", "now"), [(0.02, 0.1), (0.14, 0.14), (9.0, 0.2)])
    def test_an_exchange_that_takes_longer_by_and_by(self, beyond, now):
        """Others' processes make it so; a solution that does it too gains a tenth at most."""
        usual, later = Overhead(0.0, beyond_ms=0.1), jittered(21, beyond=beyond)
        for empty in (later, ()):
            found = usual.longer(usual.growth_ms(empty, later))
            assert found.beyond_ms == pytest.approx(now, abs=0.01)
        few = jittered(3, beyond=0.0)  # who slows only some exchanges gains nothing
        assert usual.growth_ms(few, later) == usual.growth_ms(later, few) == 0.0

    def test_who_does_nothing_on_the_device(self):
        """What is there afterwards comes from the host: its time counts."""
        assert QUIET.holds_host(jittered(sample=0.0001, enqueued=0.01))
        assert not QUIET.holds_host(jittered(sample=0.001, enqueued=0.01))

    @pytest.mark.parametrize(("enqueued", "holds"), [(0.06, False), (0.19, False), (0.21, True)])
    def test_who_keeps_the_host_far_longer_than_the_reference(self, enqueued, holds):
        assert QUIET.holds_host(jittered(enqueued=enqueued)) is holds


class TestUnaccountedTime:
    @pytest.mark.parametrize(
        ("times", "excess"),
        [
            ({}, 0.0),
            ({"beyond": 0.19}, 0.0),  # up to 0.05 ms, and a twentieth of the claim
            ({"beyond": 0.21}, 0.11),
            ({"beyond": 9.0}, 8.9),
            ({"sample": 10.0, "beyond": 0.6}, 0.0),
            ({"sample": 10.0, "beyond": 0.7}, 0.6),
            ({"enqueued": 9.0}, 0.0),  # has been told; see `Overhead.holds_host`
            ({"beyond": 0.0}, 0.0),
        ],
    )
    def test_each(self, times, excess):
        violation = found(jittered(**times))
        if not excess:
            assert violation is None
            return
        assert (violation.rule, violation.disputable) == ("unaccounted time", True)
        assert violation.unseen_ms == pytest.approx(excess)
        assert f"{1e3 * excess:.3g} us unaccounted for around a" in violation.message

    def test_on_the_cpu_the_clock_is_the_judges(self):
        assert found(jittered(beyond=9.0), device="cpu") is None

    def test_a_busy_machine_is_nobodys_fault(self):
        noisy = replace(QUIET, spread_ms=0.04)
        assert found(jittered(beyond=0.25), noisy) is None
        assert found(jittered(beyond=0.25)) is not None

    def test_disturbed_calls_do_not_count_and_false_ones_do(self):
        honest = jittered(26)
        assert found([*honest, *jittered(24, sample=5.0, beyond=30.0)]) is None
        false = jittered(26, sample=0.2, beyond=0.9)
        assert found([*honest[:24], *false]).unseen_ms == pytest.approx(0.8)

    @given(st.lists(st.tuples(MS, MS, MS, MS, MS), min_size=1, max_size=40))
    def test_any_figures_get_an_answer(self, times):
        violation = found([TimedCall(*each, "clock", "1") for each in times])
        assert violation is None or violation.message


# ---- how often the rule errs, with noise like that of real machines --------------------------


def steady(rng):
    return max(0.0, rng.gauss(0.09, 0.006))


def heavy_tail(rng):
    """One call in five waits for other processes, some of them for milliseconds."""
    return 0.08 + rng.expovariate(200) + (rng.paretovariate(1.1) / 20 if rng.random() < 0.2 else 0)


NOISES = [steady, heavy_tail]
EMPTY = {False: [call()], True: [call()]}


def run_of(noise, rng, *, latency=0.5, hidden=0.0, count=150):
    """Simulate calls that take `latency`, and hide some of it."""
    calls = []
    for _ in range(count):
        true = latency * (1 + abs(rng.gauss(0, 0.03)))
        lie = min(hidden, true - 1e-3)
        calls.append(call(true - lie, noise(rng) + lie))
    return calls


@pytest.mark.parametrize("noise", NOISES)
class TestErrorRates:
    @staticmethod
    def disputed(noise, runs, **changes):
        """Return how many evaluations are disputed, after two attempts as they have."""
        rng = random.Random(5)
        simulated = partial(run_of, noise, rng)
        count = 0
        for _ in range(runs):
            overhead = Overhead.of(EMPTY, simulated())
            count += all(found(simulated(**changes), overhead) for _ in range(2))
        return count

    def test_honest_solutions_are_believed(self, noise):
        assert self.disputed(noise, 200) <= 1

    def test_a_quarter_of_a_latency_cannot_be_hidden(self, noise):
        assert self.disputed(noise, 100, hidden=0.125) >= 97


@given(st.integers(0, 2**32), st.sampled_from(NOISES), st.floats(0.3, 50.0))
def test_what_is_not_noticed_is_little(seed, noise, latency):
    """Whatever is claimed: either it is disputed, or it is nearly true."""
    rng = random.Random(seed)
    overhead = Overhead.of(EMPTY, run_of(noise, rng))
    calls = run_of(noise, rng, latency=latency, hidden=rng.uniform(0, latency))
    if found(calls, overhead) is None:
        claimed = median(item.sample_ms for item in calls)
        allowed = overhead.allowed_ms + 0.05 * claimed
        assert claimed >= latency - allowed - 4 * overhead.spread_ms - 0.01


def test_what_is_unaccounted_for_is_told_beside_what_is_usual():
    calls = [*jittered(40, beyond=0.22), *jittered(10, beyond=5.0, sample=2.0)]
    told = unaccounted_us(calls, QUIET)
    assert told == {"low": 220.0, "median": 220.0, "usual": 100.0, "margin": 50.0, "calls": 1}
    assert found(calls, QUIET).unseen_ms == pytest.approx(0.12)
    assert found(jittered(beyond=0.149), QUIET) is None


def in_row(sample, *, count=10, rounds=12, beyond=0.1, claim=1.0):
    """Calls in exchanges of several, enqueued before their release; they claim a share."""
    made = []
    for number in range(rounds):
        secured = count * sample + beyond + number % 3 * 1e-3
        told = sample * claim, secured - 0.01, secured, 5.0, 0.0, "clock", "1"
        made += [TimedCall(*told, shared=count, gated=True) for _ in range(count)]
    return made


class TestRows:
    def test_the_calls_of_an_exchange_are_weighed_together(self):
        calls = [*in_row(0.1), *in_row(0.2, count=3, rounds=2)]
        exchanges = whole(calls)
        assert [one.shared for one in exchanges] == [10] * 12 + [3] * 2
        assert exchanges[0].sample_ms == pytest.approx(1.0)
        assert whole(jittered()) == jittered()

    @pytest.mark.parametrize("claim", [0.5, 0.75, 0.9])
    def test_a_share_shows_in_a_row_that_is_lost_in_a_single_call(self, claim):
        """Time to return to the host has passed before, however long it is."""
        sample = 0.1
        assert found(jittered(sample=sample * claim, beyond=0.1 + sample * (1 - claim))) is None
        violation = found(in_row(sample, claim=claim))
        assert violation.rule == "unaccounted time"
        assert violation.disputable
        assert violation.unseen_ms == pytest.approx(sample * (1 - claim), abs=1e-3)

    def test_what_is_usual_is_that_of_a_whole_exchange(self):
        assert found(in_row(0.1, beyond=0.149)) is None
        assert found(in_row(0.1, beyond=0.249)) is not None

    def test_what_is_not_the_calls_own(self):
        """Copies, and what all exchanges take by now."""
        longer = in_row(0.1, beyond=0.3)
        assert found(longer) is not None
        assert found(longer, QUIET.longer(0.12)) is None
        copying = replace(QUIET, beyond_ms=0.3, copied_ms=0.2)
        assert found(longer, copying.for_outputs(into=False)) is None
        assert found(longer, copying.for_outputs(into=True)) is not None

    @pytest.mark.parametrize("low", [1, 4, 6, 9])
    def test_a_low_median_is_seen_beside_a_right_sum(self, low):
        """Some calls claim nearly nothing, and the others of their exchange the rest."""
        claims = [0.002] * low + [(1.0 - 0.002 * low) / (10 - low)] * (10 - low)
        calls = [
            replace(call, sample_ms=claims[number % 10]) for number, call in enumerate(in_row(0.1))
        ]
        violation = found(calls)
        if low < 5:
            assert violation is None
        else:
            assert violation.unseen_ms == pytest.approx(0.098, abs=0.01)

    def test_calls_that_were_late_are_not_excused_by_what_they_tell(self):
        late = [replace(call, gated=False, enqueued_ms=0.0) for call in in_row(0.1, claim=0.2)]
        assert found(late).unseen_ms == pytest.approx(0.08, abs=0.01)

    def test_shorter_rows_are_left_out(self):
        calls = [*in_row(0.1), *in_row(0.1, count=3, rounds=4, beyond=9.0)]
        assert found(calls) is None
        assert unaccounted_us(calls, QUIET)["calls"] == 10

    @pytest.mark.parametrize(
        ("alone", "beyond", "believed"),
        [
            (0.02, 0.1, True),
            (0.02, 0.14, True),
            (0.03, 0.14, False),
            (0.05, 0.1, False),
            (0.02, 0.2, False),
        ],
    )
    def test_calls_that_overlap_take_longer_alone(self, alone, beyond, believed):
        least = least_alone_ms(in_row(alone, count=1, rounds=5, beyond=beyond), QUIET)
        violation = find_overlap(0.02, least)
        assert (violation is None) == believed
        if violation is not None:
            assert violation.rule == "overlap"
            assert "us alone" in violation.message
            assert violation.disputable

    def test_one_call_that_is_quick_alone_is_enough(self):
        single = in_row(0.05, count=1, rounds=5)
        quick = [*single, *in_row(0.02, count=1, rounds=1)]
        assert least_alone_ms(quick, QUIET) == pytest.approx(0.02)
        late = replace(single[0], sample_ms=0.02)  # it claims less, and the judge has seen more
        assert least_alone_ms([*single, replace(late, secured_ms=0.3)], QUIET) > 0.04
