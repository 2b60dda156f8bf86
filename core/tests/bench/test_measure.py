from __future__ import annotations

from statistics import median
from typing import Any

import pytest
import torch

from flashinfer_bench.bench.executors.base import CandidateMisbehaved, CandidateTimeout
from flashinfer_bench.bench.judge.deadline import Deadline
from flashinfer_bench.bench.judge.measure import measure, measurement_of
from flashinfer_bench.bench.judge.rounds import Taken, fixed_rounds
from flashinfer_bench.bench.judge.shots import TimedCall, time_left
from flashinfer_bench.bench.timing.wall import WallClockTimer
from flashinfer_bench.data.samples import packed
from flashinfer_bench.tensors.vary import Freedom


class TestTimedCall:
    def test_what_is_beyond_the_sample(self) -> None:
        assert TimedCall(1.0, 0.2, 1.5, 0.1, "clock", "1").overhead_ms == 0.5
        assert TimedCall(1.0, 0.25, 0.5, 0.1, "clock", "1").exchange_ms == -0.25

    def test_a_device_may_have_worked_before_the_call_returned(self) -> None:
        call = TimedCall(1.0, 0.25, 0.5, 0.1, "clock", "1", enqueue_ms=0.8)
        assert (call.overhead_ms, call.exchange_ms) == (0.0, 0.25)


class TestTimeLeft:
    def test_some(self, executor: Any) -> None:
        candidate = executor.spawn()
        assert 0 < time_left(Deadline(9.0), candidate, "call") <= 9.0
        assert candidate.alive

    def test_none(self, executor: Any) -> None:
        candidate = executor.spawn()
        with pytest.raises(CandidateTimeout, match="no time left of -1 s") as caught:
            time_left(Deadline(-1.0), candidate, "call")
        assert caught.value.stage == "call"
        assert not candidate.alive


class TestMeasure:
    def take(self, source: str, executor: Any, problems: Any, session: Any, **rounds: Any) -> Any:
        candidate = executor.spawn()
        candidate.load(problems.definition(), problems.solution(source), timeout_s=1.0)
        inputs = [[torch.full((4, 3), float(slot))] for slot in range(2)]
        for slot, values in enumerate(inputs):
            candidate.put_inputs(slot, values, {"n": 4}, ways=["signs"], timeout_s=1.0)
        wanted = fixed_rounds(**{"count": 2, "warmup": 1, "iterations": 3, **rounds})
        free = [Freedom("signs")]
        return measure(session(), candidate, free, inputs, wanted, Deadline(9.0))

    def test_rounds_go_over_all_sets(self, executor: Any, problems: Any, session: Any) -> None:
        self.take("def run(x): return x", executor, problems, session, iterations=20)
        fired = executor.of("fire")
        assert {slot for _, slot, _ in fired} == {0, 1}
        assert len(fired) == 2 * (1 + 20)
        assert executor.of("collect") == executor.of("inspect") == []

    def test_inputs_vary_as_they_do_without_trust(
        self, executor: Any, problems: Any, session: Any
    ) -> None:
        source = """
            seen = set()
            def run(x):
                assert set(x.abs().flatten().tolist()) in ({0.0}, {1.0}), "written by another call"
                seen.add(tuple(x.flatten().tolist()))
                SAMPLES[:] = [float(len(seen))]
                return x.fill_(7.0)
            SAMPLES = [1.0]
        """
        found = self.take(source, executor, problems, session, iterations=30)
        assert max(found.samples_ms) > 9.0

    def test_latency_is_the_median_of_all_timed_calls(
        self, executor: Any, problems: Any, session: Any
    ) -> None:
        source = """
            NOTES = ["warm", "warm"]
            SAMPLES = [9.0, 1.0, 2.0, 30.0]
            def run(x): return x
        """
        found = self.take(source, executor, problems, session)
        assert found.samples_ms == (1.0, 2.0, 30.0) * 2
        assert found.latency_ms == 2.0
        assert (found.timer, found.timer_version) == ("clock", WallClockTimer.version)
        assert found.notes == ("warm",)

    def test_a_note_on_some_calls_is_counted(self) -> None:
        calls = [
            TimedCall(1.0, 0.2, 2.0, 0.1, "clock", "1", notes)
            for notes in (("cold", "late"), ("cold",), ("late", "cold", "late"))
        ]
        assert measurement_of(Taken(tuple(calls), "rule")).notes == (
            "cold",
            "late (in 2 of 3 calls)",
        )

    @pytest.mark.parametrize(("enqueued", "told"), [(0.0, False), (0.9, False), (1.1, True)])
    def test_a_host_that_takes_longer_than_the_device(self, enqueued: float, told: bool) -> None:
        call = TimedCall(1.0, 0.2, 2.0, 0.1, "clock", "1", enqueue_ms=enqueued)
        notes = measurement_of(Taken((call,) * 3, "rule")).notes
        assert notes == (("the host takes 1.1 ms to enqueue a call: longer than it runs",) * told)

    def test_samples_are_stored_as_they_count(
        self, executor: Any, problems: Any, session: Any
    ) -> None:
        source = "SAMPLES = [0.123456789012]\ndef run(x): return x"
        found = self.take(source, executor, problems, session)
        assert found.samples_ms[0] == pytest.approx(0.123456789012, rel=1e-7)
        assert isinstance(packed(list(found.samples_ms)), str)
        assert found.latency_ms == median(found.samples_ms)

    @pytest.mark.parametrize("samples", ["[0.0]", "[float('nan')]", "[-1.0]"])
    def test_nonsense_is_misbehaviour(
        self, samples: str, executor: Any, problems: Any, session: Any
    ) -> None:
        with pytest.raises(CandidateMisbehaved) as caught:
            self.take(f"SAMPLES = {samples}\ndef run(x): return x", executor, problems, session)
        assert caught.value.stage == "time"
        assert executor.of("close") == [(1000,)]

    def test_device_is_locked_meanwhile(self, executor: Any, problems: Any, session: Any) -> None:
        source = """
            from filelock import FileLock, Timeout
            from flashinfer_bench.bench.locks import lock_path
            def run(x):
                try:
                    FileLock(lock_path("cpu")).acquire(timeout=0)
                except Timeout:
                    return x
                raise AssertionError("anybody could time now")
        """
        self.take(source, executor, problems, session)
