"""One launch: how large it is, in which order its calls come, and what ends it."""

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_compare.paired.launch import Cores, LaunchSize, NoTimeLeft, take_launch
from flashinfer_bench.bench.executors.base import TimedCall
from flashinfer_bench.bench.transport.deadline import Deadline


@dataclass
class ScriptedSide:
    """Notes in `log` who is called on what; its clock counts calls."""

    role: str
    log: list[tuple[str, tuple[int, ...], Any]]
    rests: list[tuple[int, str]]
    at_once: int
    calls: list[TimedCall] = field(default_factory=list)
    attempt: Any = field(
        default_factory=lambda: SimpleNamespace(
            deadline=Deadline(60.0),
            worker=SimpleNamespace(candidate=SimpleNamespace(thread_times=dict)),
        )
    )

    def calls_at_once(self):
        return self.at_once

    def fire(self, numbers, checks=()):
        assert 0 < len(set(numbers)) == len(numbers) <= self.at_once
        assert {check.number for check in checks} <= set(numbers)
        self.log.append((self.role, tuple(numbers), tuple(checks)))
        told = float(len(self.log)), 1.0, 1.0, 0.0, 0.0, "clock", "1"
        return [TimedCall(*told, shared=len(numbers))] * len(numbers)

    def call_alone(self, checks):
        self.rests.append((len(self.log), "AB".replace(self.role, "")))

    def rest(self):
        self.rests.append((len(self.log), self.role))

    def samples_ms(self):
        return tuple(call.sample_ms for call in self.calls[:: self.calls[0].shared])


class QuietSession:
    def device_to_itself(self, deadline):
        return deadline.stopped()


def launch(size, *, schedule=None, number=0, cap=60, at_once=(1, 1)):
    log: list[tuple[str, tuple[int, ...], Any]] = []
    rests: list[tuple[int, str]] = []
    sides = tuple(
        ScriptedSide(role, log, rests, calls) for role, calls in zip("AB", at_once, strict=True)
    )
    parts: Any = QuietSession(), sides, random.Random(1), schedule or {}, (), size
    taken = take_launch(*parts, number=number, cap=Deadline(cap), cores=Cores("cuda:0"))
    return taken, log, rests


def test_the_order_is_abba_and_whoever_is_not_called_rests():
    taken, log, rests = launch(LaunchSize(4, 0))
    order = "".join(role for role, _, _ in log)
    assert order == "ABBAABBA"
    assert len(taken.baseline) == len(taken.candidate) == 4
    awake = dict.fromkeys(range(len(order)), "")
    for place, role in rests:
        awake.update(dict.fromkeys(range(place, len(order)), "AB".replace(role, "")))
    assert "".join(awake.values()) == order


@given(
    pairs=st.integers(1, 8).map(lambda n: 2 * n),
    warmup=st.integers(0, 4),
    turn=st.integers(0, 3),
    places=st.sets(st.integers(0, 15), max_size=3),
    at_once=st.tuples(st.sampled_from([1, 10]), st.sampled_from([1, 10])),
)
def test_both_calls_of_a_pair_see_the_same_and_no_other_call_does(
    pairs, warmup, turn, places, at_once
):
    schedule = {
        place: [SimpleNamespace(number=10 * place + n) for n in range(max(at_once))]
        for place in places
        if place < pairs
    }
    size = LaunchSize(pairs, warmup)
    taken, log, _ = launch(size, schedule=schedule, number=turn, at_once=at_once)
    assert {len(numbers) for _, numbers, _ in log} == {min(at_once)}
    seen = [(number, check) for _, number, check in log]
    assert seen[::2] == seen[1::2]
    assert len({number for number, _ in seen}) == len(seen) // 2
    for place, (baseline, candidate) in enumerate(
        zip(taken.baseline, taken.candidate, strict=True)
    ):
        # Who came first has the smaller number.
        assert (candidate < baseline) is (bool(place % 2) != taken.candidate_first)
        assert abs(candidate - baseline) == 1
        wanted = schedule.get(place, [])[: min(at_once)]  # all calls of the exchange
        assert list(log[int(baseline) - 1][2]) == wanted
    # After each look there are calls that do not count.
    assert len(log) // 2 == warmup + pairs + 2 * len(schedule)


def test_it_ends_when_the_time_is_over():
    with pytest.raises(NoTimeLeft, match="is over"):
        launch(LaunchSize(4, 0), cap=0.0)
