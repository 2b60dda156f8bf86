"""Which claims count, which are set aside, and who is not believed in the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fib_compare.paired import sides as belief
from fib_compare.paired.sides import Beliefs, CannotCompare
from fib_judge.integrity import Normals
from flashinfer_bench.bench.calls import TimedCall


def calls(sample_ms: float = 5.0, hidden_ms: float = 0.0, count: int = 16, **changes: Any) -> Any:
    """Return timed calls that take what they claim, and `hidden_ms` more."""
    made = []
    for number in range(count):
        sample = sample_ms * (1 + number % 5 * 1e-3)
        facts = {
            "sample_ms": sample,
            "change_ms": 0.2,
            "wall_ms": sample + 0.1 + 1e-3 * (number % 3) + hidden_ms,
            "stage_ms": 1.0,
            "timer": "clock",
            "timer_version": "1",
        }
        made.append(TimedCall(**{**facts, **changes}))
    return made


def pair(first: Any, second: Any) -> Any:
    worker = SimpleNamespace(loaded=None)
    attempt = SimpleNamespace(worker=worker)
    return (
        SimpleNamespace(role="baseline", calls=first, attempt=attempt),
        SimpleNamespace(role="candidate", calls=second, attempt=attempt),
    )


@pytest.fixture
def beliefs(monkeypatch):
    renewed = []

    def renew(session, baseline, normal):
        renewed.append(session)
        return normal

    monkeypatch.setattr(belief, "renewed_normal", renew)

    def make(device: str = "cpu", *, trusted: bool = False) -> Any:
        session: Any = SimpleNamespace(timer="clock", timer_version="1", device=device)
        normal = None if trusted else Normals.of(calls())
        made = Beliefs(session, SimpleNamespace(normal=normal, floor=None))
        made.renewed = renewed
        return made

    return make


def test_honest_claims_count_as_they_are(beliefs):
    held = beliefs()
    for _ in range(5):
        assert held.weigh(pair(calls(), calls(4.0))) == (0.0, 0.0)
    assert held.set_aside == 0
    assert not held.renewed


def test_nobody_may_claim_what_cannot_be(beliefs):
    with pytest.raises(CannotCompare, match="zero"):
        beliefs(trusted=True).weigh(pair(calls(), calls(0.0)))


def test_a_disputed_launch_is_set_aside_and_the_reference_asked_once_more(beliefs):
    held = beliefs()
    assert held.weigh(pair(calls(), calls(2.5, 2.5))) is None
    assert held.weigh(pair(calls(2.5, 2.5), calls())) is None
    assert held.set_aside == 2
    assert len(held.renewed) == 1
    assert held.weigh(pair(calls(), calls())) == (0.0, 0.0)


def test_whoever_is_disputed_more_often_than_not_is_not_believed(beliefs):
    held = beliefs()
    for _ in range(3):
        assert held.weigh(pair(calls(), calls(2.5, 2.5))) is None
    with pytest.raises(CannotCompare, match="hidden time") as caught:
        held.weigh(pair(calls(), calls(2.5, 2.5)))
    assert caught.value.obstacle.role == "candidate"
    assert caught.value.obstacle.kind == "not believed"
    assert "4 of 4 launches" in str(caught.value)


def weighed_often(held, first, second):
    """Return who is not believed in the end."""
    try:
        for _ in range(8):
            held.weigh(pair(first, second))
    except CannotCompare as error:
        return error.obstacle.role
    return None


@pytest.mark.parametrize("slow", [{"change_ms": 3.0}, {"stage_ms": 90.0}])
def test_what_both_sides_need_alike_is_no_lie(beliefs, slow):
    """On one core inputs are changed by one thread, where the reference had several."""
    held = beliefs()
    for _ in range(8):
        assert held.weigh(pair(calls(**slow), calls(4.0, **slow))) == (0.0, 0.0)
    assert weighed_often(beliefs(), calls(), calls(4.0, **slow)) == "candidate"


def test_now_and_then_is_noise_and_never_gains(beliefs):
    held = beliefs()
    told = [held.weigh(pair(calls(), calls(2.5, 2.5 * (number % 3 == 0)))) for number in range(30)]
    assert told.count(None) == 10
    assert {one for one in told if one is not None} == {(0.0, 0.0)}


def test_on_a_device_the_time_that_was_not_seen_is_added(beliefs):
    held = beliefs("cuda:0")
    lying = pair(calls(), calls(2.5, 2.5))
    assert [held.weigh(lying) for _ in range(3)] == [None] * 3
    first, second = held.weigh(lying)
    assert first == 0.0
    assert second == pytest.approx(2.5, rel=0.05)
    assert held.added_ms == {"candidate": second}


@pytest.mark.parametrize(
    ("role", "claimed", "text"),
    [
        ("baseline", calls(0.0), "zero"),
        ("candidate", calls(500.0, -495.0), "in a call"),
        ("candidate", calls(float("nan")), "not a duration"),
        ("baseline", calls(-1.0), "not a duration"),
        ("candidate", calls(timer="another"), "instead of"),
        ("baseline", calls(timer_version="2"), "instead of"),
    ],
)
def test_what_cannot_be_ends_it_at_once(beliefs, role, claimed, text):
    sides = {"baseline": calls(), "candidate": calls(), role: claimed}
    with pytest.raises(CannotCompare, match=text) as caught:
        beliefs().weigh(pair(sides["baseline"], sides["candidate"]))
    assert caught.value.obstacle.role == role
