"""The parts of a timed exchange, with and without a device that works by itself."""

from __future__ import annotations

import types

import pytest

from flashinfer_bench.bench.candidate.shots import Changes, Shots
from flashinfer_bench.bench.executors.base import CandidateFailed, Shot
from flashinfer_bench.bench.executors.process import ProcessCandidate
from flashinfer_bench.bench.executors.shots import _shot_of
from flashinfer_bench.bench.transport import messages as wire
from flashinfer_bench.bench.transport.deadline import Deadline
from flashinfer_bench.errors import ProtocolError

NOTHING = Changes((), (), ())


class Log:
    """Remembers what happens to a candidate's call, in order."""

    def __init__(self, device, call=lambda: None):
        self.events = []
        self.call = call
        tending = types.SimpleNamespace(
            device=device,
            settle_inputs=self.tell("settled"),
            flush_caches=self.tell("flushed"),
            synchronize=self.tell("waited"),
        )
        inputs = types.SimpleNamespace(mix=self.tell("mixed"), at=lambda shifts: ())
        subject = types.SimpleNamespace(
            function=self.function, new_outputs=lambda *_: [], listed=lambda *_: []
        )
        self.shots = Shots(tending)
        self.shots.stage(subject, inputs, (), 0)

    def tell(self, name):
        return lambda *_, **__: self.events.append(name)

    def function(self):
        self.events.append("call")
        return self.call()

    def time_call(self, function, arguments, *, device):
        self.events.append("start")
        result = function(*arguments)
        self.events.append("stop")
        return 1.0, result

    def fire(self):
        del self.events[:]
        tell = map(self.tell, ("changed", "enqueued", "finished"))
        self.shots.fire(self, NOTHING, *tell)


class TestTheCandidate:
    def test_on_the_cpu(self):
        log = Log("cpu")
        log.fire()
        assert log.events == ["mixed", "settled", "changed", "start", "call", "stop"]

    def test_on_a_device(self):
        log = Log("cuda:1")
        log.fire()
        assert log.events[2:5] == ["changed", "start", "call"]
        assert log.events[5:] == ["enqueued", "stop", "waited", "finished"]

    def test_a_call_that_raises_has_not_been_enqueued(self):
        log = Log("cuda:1", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            log.fire()
        assert log.events[2:] == ["changed", "start", "call"]


class Channel:
    """Hears what it is given, each a second after the one before."""

    def __init__(self, replies):
        self.replies = list(replies)
        self.heard_at = 0.0
        self.spun = 0.0

    def spin(self, seconds):
        self.spun = seconds

    def send_packed(self, packed, deadline):
        import time

        self.heard_at = time.perf_counter()

    def receive_undecoded(self, deadline):
        self.heard_at += 1.0
        return wire.encode(self.replies.pop(0))

    def decode(self, payload):
        return wire.REPLIES.decode(payload)


REQUEST = wire.Fire(7, "clock", [], [], [])
CHANGED, ENQUEUED, FINISHED = wire.Changed(7), wire.Enqueued(7), wire.Finished(7)
FIRED = wire.Fired(7, "1", 1.0, [], [])
FAILED = wire.Failed(7, "ValueError", "no", "", False)


class TestTheJudge:
    def exchange(self, device, *replies):
        shooting = object.__new__(ProcessCandidate)
        shooting._device, shooting._channel = device, Channel(replies)
        seconds, payload = shooting._timed_exchange(REQUEST, b"", Deadline.never())
        assert wire.REPLIES.decode(payload) == replies[-1]
        assert (shooting._channel.spun > 0) is (device != "cpu")
        return [round(each) for each in seconds]

    def test_on_the_cpu(self):
        assert self.exchange("cpu", CHANGED, FIRED) == [1, 2]

    def test_on_a_device(self):
        assert self.exchange("cuda:0", CHANGED, ENQUEUED, FINISHED, FIRED) == [1, 2, 3, 4]

    def test_what_took_how_long(self):
        assert _shot_of([1.0, 3.0], 5.0, "clock", "1", ("cold",)) == Shot(
            5.0, 1.0, 2.0, "clock", "1", ("cold",)
        )
        assert _shot_of([1.0, 3.0, 7.0, 15.0], 5.0, "clock", "1", ()) == Shot(
            5.0, 1.0, 4.0, "clock", "1", enqueue_s=2.0, describe_s=8.0
        )

    def test_a_step_of_other_devices_comes_too_early(self):
        """It is read as the answer, which it is not; see the hostile processes."""
        assert self.exchange("cpu", CHANGED, ENQUEUED) == [1, 2]

    @pytest.mark.parametrize(
        ("replies", "words"),
        [
            ((ENQUEUED, CHANGED, FIRED), "Enqueued came where Changed is due"),
            ((CHANGED, FIRED), "Fired came where Enqueued is due"),
            ((CHANGED, CHANGED), "Changed came where Enqueued is due"),
            ((CHANGED, wire.Enqueued(8)), "another request"),
            ((CHANGED, ENQUEUED, FIRED), "Fired came where Finished is due"),
        ],
    )
    def test_steps_are_taken_in_order(self, replies, words):
        with pytest.raises(ProtocolError, match=words):
            self.exchange("cuda:0", *replies)

    def test_a_failure_in_place_of_a_step(self):
        with pytest.raises(CandidateFailed, match="no"):
            self.exchange("cuda:0", CHANGED, FAILED)
