"""One launch: how large it is, in which order its calls come, and what ends it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_compare.paired.launch import Cores, LaunchSize, NoTimeLeft, launch_schedule, take_launch
from flashinfer_bench.bench.calls import Deadline, TimedCall


@dataclass
class ScriptedSide:
    """Notes who is asked for what, in `log`."""

    role: str
    log: list[tuple[str, str, Any]]
    calls: list[TimedCall] = field(default_factory=list)
    attempt: Any = field(
        default_factory=lambda: SimpleNamespace(
            deadline=Deadline(60.0),
            worker=SimpleNamespace(candidate=SimpleNamespace(thread_times=dict)),
        )
    )

    def shoot(self, variation: Any) -> TimedCall:
        self.log.append(("shoot", self.role, variation))
        return TimedCall(float(len(self.log)), 0.1, 1.0, 0.1, "clock", "1")

    def rest(self) -> None:
        self.log.append(("rest", self.role, None))

    def look(self, check: Any) -> None:
        self.log.append(("look", self.role, check))


class Numbers:
    """Draws 0, 1, 2, … as variations."""

    def __init__(self) -> None:
        self.count = 0

    def draw(self) -> int:
        self.count += 1
        return self.count - 1


class QuietSession:
    def device_to_itself(self, deadline: Deadline) -> Any:
        return deadline.stopped()


def launch(size: LaunchSize, *, schedule: Any = None, number: int = 0, cap: float = 60) -> Any:
    log: list[tuple[str, str, Any]] = []
    sides = ScriptedSide("A", log), ScriptedSide("B", log)
    parts: Any = QuietSession(), sides, Numbers(), schedule or {}, size
    taken = take_launch(*parts, number=number, cap=Deadline(cap), cores=Cores("cuda:0"))
    return taken, log, sides


def test_the_order_is_abba():
    taken, log, _ = launch(LaunchSize(4, 0))
    assert "".join(role for what, role, _ in log if what == "shoot") == "ABBAABBA"
    assert len(taken.baseline) == len(taken.candidate) == 4


@given(
    pairs=st.integers(1, 8).map(lambda n: 2 * n), warmup=st.integers(0, 4), turn=st.integers(0, 3)
)
def test_samples_belong_to_pairs_that_saw_the_same(pairs, warmup, turn):
    taken, log, sides = launch(LaunchSize(pairs, warmup), number=turn)
    seen = {role: {} for role in "AB"}
    for number, (what, role, variation) in enumerate(log, 1):
        if what == "shoot":
            seen[role][float(number)] = variation
    for first, second in zip(taken.baseline, taken.candidate, strict=True):
        assert seen["A"][first] == seen["B"][second]
    assert [call.sample_ms for call in sides[0].calls] == list(taken.baseline)


@given(places=st.sets(st.integers(0, 7), max_size=3), data=st.data())
def test_blocks_that_are_looked_at_are_claimed_but_not_counted(places, data):
    checks = {
        place: SimpleNamespace(variation=f"v{place}") if data.draw(st.booleans()) else None
        for place in places
    }
    taken, log, sides = launch(LaunchSize(8, 1), schedule=checks)
    looks = [(role, check) for what, role, check in log if what == "look"]
    assert len(taken.baseline) == 8 - 2 * len({place // 2 for place in places})
    assert len(sides[0].calls) == len(sides[1].calls) == 8
    for role in "AB":
        assert [check for who, check in looks if who == role] == [
            checks[place] for place in sorted(places)
        ]
    for place, check in checks.items():
        shots = [role for what, role, variation in log if variation == f"v{place}"]
        assert sorted(shots) == (["A", "B"] if check is not None else [])


@given(places=st.sets(st.integers(0, 15), max_size=6))
def test_a_block_has_a_pair_in_either_order(places):
    taken, _, _ = launch(LaunchSize(16, 2), schedule=dict.fromkeys(places))
    first = [a < b for a, b in zip(taken.baseline, taken.candidate, strict=True)]
    assert all(one != two for one, two in zip(first[::2], first[1::2], strict=True))


@given(pairs=st.integers(2, 16).map(lambda n: 2 * n), seed=st.integers(0, 2**32))
def test_the_schedule_leaves_a_block_alone_and_makes_every_check(pairs, seed):
    checks: Any = [object() for _ in range(min(2, pairs // 4))]
    schedule = launch_schedule(pairs, checks, random.Random(seed))
    assert len({place // 2 for place in schedule}) < pairs // 2
    assert all(check in schedule.values() for check in checks)
    assert all(0 <= place < pairs for place in schedule)


def test_it_ends_when_the_time_is_over():
    with pytest.raises(NoTimeLeft, match="are over"):
        launch(LaunchSize(4, 0), cap=0.0)


@given(
    pairs=st.integers(1, 8).map(lambda n: 2 * n),
    warmup=st.integers(0, 4),
    turn=st.integers(0, 3),
    places=st.sets(st.integers(0, 15), max_size=3),
)
def test_it_is_told_who_was_called_first(pairs, warmup, turn, places):
    schedule = {place: None for place in places if place // 2 < pairs // 2 - 1}
    taken, _, _ = launch(LaunchSize(pairs, warmup), schedule=schedule, number=turn)
    for place, (baseline, candidate) in enumerate(
        zip(taken.baseline, taken.candidate, strict=True)
    ):
        # The scripted clock counts calls: who came first has the smaller number.
        assert (candidate < baseline) is (bool(place % 2) != taken.candidate_first)
