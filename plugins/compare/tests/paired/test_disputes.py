"""Which claims count, which are set aside, and who is not believed in the end."""

from types import SimpleNamespace
from typing import Any

import pytest

from fib_compare.paired.sides import CannotCompare, Disputes, Side
from fib_judge.integrity import Mode, Overhead
from fib_judge.timed import Course
from flashinfer_bench.bench.executors.base import TimedCall


def calls(sample_ms=5.0, unseen_ms=0.0, enqueued_ms=0.0):
    """Return timed calls that take what they claim, and `unseen_ms` more."""
    made = []
    for number in range(16):
        sample = sample_ms * (1 + number % 5 * 1e-3)
        wall = sample + 0.1 + 1e-3 * (number % 3) + unseen_ms + enqueued_ms
        made.append(TimedCall(sample, wall, wall, enqueued_ms, 0.0, "clock", "1"))
    return made


EMPTY = [TimedCall(0.0, 0.1, 0.1, 0.0, 0.0, "clock", "1")] * 8
OVERHEAD = Overhead.of({False: EMPTY, True: EMPTY}, calls())


def sides(first, second, overhead=OVERHEAD, device="cuda:0"):
    session = SimpleNamespace(timer="clock", timer_version="1", device=device)
    baseline = SimpleNamespace(overhead=overhead, floor=None, usual=lambda mode, into: overhead)
    attempt: Any = SimpleNamespace(baseline=baseline, session=session)
    made = Side("baseline", attempt), Side("candidate", attempt)
    for side, taken in zip(made, (first, second), strict=True):
        side.calls.extend(taken)
        if overhead is not None:  # a course without a process
            ring = SimpleNamespace(writes_there=False)
            side.course = object.__new__(Course)
            vars(side.course).update(attempt=attempt, ring=ring, mode=None, made_alone=[])
    return made


def test_a_launch_with_unseen_time_is_set_aside_whoevers_it_is():
    held = Disputes()
    told = [
        sides(calls(), calls(4.0)),
        sides(calls(), calls(2.5, 2.5)),
        sides(calls(2, 3), calls()),
    ]
    assert list(map(held.accepts, told)) == [True, False, False]
    assert held.set_aside == 2


def test_whoever_is_disputed_more_often_than_not_is_not_believed():
    held = Disputes()
    for _ in range(3):
        assert not held.accepts(sides(calls(), calls(2.5, 2.5)))
    with pytest.raises(CannotCompare, match=r"unaccounted time: .*4 of 4 launches") as caught:
        held.accepts(sides(calls(), calls(2.5, 2.5)))
    assert (caught.value.obstacle.role, caught.value.obstacle.kind) == ("candidate", "not believed")


def test_now_and_then_is_noise():
    held = Disputes()
    told = [held.accepts(sides(calls(), calls(5, 2.5 * (n % 3 == 0)))) for n in range(30)]
    assert told.count(False) == held.set_aside == 10


def test_the_time_that_the_host_is_held_counts_where_it_is_far_more_than_the_references():
    short, long = sides(calls(enqueued_ms=0.05), calls(2.5, enqueued_ms=2.5))
    assert min(short.samples_ms()) == 5.0
    assert min(long.samples_ms()) == 5.0
    assert Disputes().accepts((short, long))
    trusted = sides(calls(), calls(2.5, enqueued_ms=2.5), overhead=None)
    assert min(trusted[1].samples_ms()) == 2.5


def test_what_takes_longer_for_both_is_the_machine():
    pair = sides(calls(unseen_ms=0.45), calls(unseen_ms=0.45))
    for side in pair:
        side.course.mode = Mode(gated=True, calls=1)
    assert all(side.violation() is not None for side in pair)
    assert Disputes().accepts(pair) is False  # by more than a GPU with more processes is slower
    pair = sides(calls(unseen_ms=0.32), calls(4.7, unseen_ms=0.62))
    for side in pair:
        side.course.mode = Mode(gated=True, calls=1)
    held = Disputes()
    assert held.accepts(pair) is False
    assert pair[0].violation(pair[0].growth_ms()) is None


def changed(**facts):
    return [TimedCall(**{**vars(call), **facts}) for call in calls()]


@pytest.mark.parametrize(
    ("device", "role", "claimed", "text"),
    [
        ("cpu", "baseline", calls(0.0), "zero"),
        ("cuda:0", "candidate", calls(500.0, -495.0), "in a call"),
        ("cuda:0", "candidate", changed(sample_ms=float("nan")), "not a duration"),
        ("cuda:0", "baseline", calls(-1.0), "not a duration"),
        ("cpu", "candidate", changed(timer="another"), "instead of"),
        ("cpu", "baseline", changed(timer_version="2"), "instead of"),
    ],
)
def test_what_cannot_be_ends_it_at_once(device, role, claimed, text):
    told = {"baseline": calls(), "candidate": calls(), role: claimed}
    with pytest.raises(CannotCompare, match=text) as caught:
        Disputes().accepts(sides(told["baseline"], told["candidate"], device=device))
    assert caught.value.obstacle.role == role


def test_not_even_whoever_is_trusted_may_claim_what_cannot_be():
    with pytest.raises(CannotCompare, match="zero"):
        Disputes().accepts(sides(calls(), calls(0.0), overhead=None))
