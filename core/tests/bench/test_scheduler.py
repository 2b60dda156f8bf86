from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from flashinfer_bench.bench.plan import WorkItem
from flashinfer_bench.bench.pool import RunInterrupted
from flashinfer_bench.bench.scheduler import Scheduler, WorkQueue
from flashinfer_bench.errors import RunnerFatalError


class StubRunner:
    """Only what the scheduler asks of a runner."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.stop = threading.Event()
        self.closed_by: list[str] = []

    def interrupt(self) -> None:
        self.stop.set()

    def close(self) -> None:
        self.closed_by.append(threading.current_thread().name)


@pytest.fixture
def items(problems: Any) -> Any:
    def make(**counts: int) -> list[WorkItem]:
        return [
            WorkItem(problems.definition(name), problems.workload(uuid=f"{name}{index}"), ())
            for name, count in counts.items()
            for index in range(count)
        ]

    return make


class TestQueue:
    def taken(self, queue: WorkQueue, *preferences: Any) -> list[str]:
        found = (queue.take(preference) for preference in preferences)
        return ["" if item is None else item.workload.uuid for item in found]

    def test_begins_with_the_longest_and_stays_with_it(self, items: Any) -> None:
        queue = WorkQueue(items(a=1, b=2, c=2))
        assert len(queue) == 5
        assert self.taken(queue, None, "b", "b", "c", "c", "c") == [
            "b0",
            "b1",
            "c0",
            "c1",
            "a0",
            "",
        ]

    def test_put_back_comes_first(self, items: Any) -> None:
        queue = WorkQueue(items(a=2))
        first = queue.take()
        assert first is not None
        queue.put_back(first)
        assert queue.take() is first

    def test_put_back_into_an_empty_one(self, items: Any) -> None:
        queue = WorkQueue([])
        assert queue.take("a") is None
        queue.put_back(items(a=1)[0])
        assert self.taken(queue, "z") == ["a0"]

    def test_many_threads_take_each_item_once(self, items: Any) -> None:
        queue, found = WorkQueue(items(a=50, b=50)), []

        def take() -> None:
            while (item := queue.take("a")) is not None:
                found.append(item.workload.uuid)

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == len(set(found)) == 100


def schedule(items: list[WorkItem], work: Any, devices: int = 1) -> tuple[list[Any], WorkQueue]:
    runners: list[Any] = [StubRunner(f"cuda:{index}") for index in range(devices)]
    queue = WorkQueue(items)
    try:
        Scheduler(queue, runners, work).run()
    finally:
        for runner in runners:
            assert runner.closed_by == [f"fib-{runner.device}"]
    return runners, queue


class TestScheduler:
    def test_everything_is_done_in_order(self, items: Any) -> None:
        done: list[str] = []
        schedule(items(a=3, b=1), lambda runner, item: done.append(item.workload.uuid))
        assert done == ["a0", "a1", "a2", "b0"]

    def test_nothing_to_do(self) -> None:
        schedule([], lambda runner, item: None, devices=2)

    def test_no_devices(self) -> None:
        schedule([], lambda runner, item: None, devices=0)

    def test_devices_share_the_work(self, items: Any) -> None:
        meeting = threading.Barrier(2, timeout=30)
        done: dict[str, list[str]] = {"cuda:0": [], "cuda:1": []}

        def work(runner: Any, item: WorkItem) -> None:
            if not done[runner.device]:
                meeting.wait()  # both are at work at the same time
            done[runner.device].append(item.definition.name)

        schedule(items(a=3, b=3), work, devices=2)
        assert sorted(done["cuda:0"] + done["cuda:1"]) == ["a"] * 3 + ["b"] * 3
        assert done["cuda:0"][0] != done["cuda:1"][0]

    def test_error_ends_the_run_everywhere(self, items: Any) -> None:
        def work(runner: Any, item: WorkItem) -> None:
            if runner.device == "cuda:0":
                raise LookupError("disk on fire")
            assert runner.stop.wait(30)
            raise RunInterrupted("as the runner would")

        with pytest.raises(LookupError, match="disk on fire"):
            schedule(items(a=2, b=2), work, devices=2)

    def test_a_runner_that_cannot_be_closed_ends_the_run(self, items: Any) -> None:
        class Stuck(StubRunner):
            def close(self) -> None:
                raise RuntimeError("can't start new thread")

        runners: list[Any] = [Stuck("cuda:0")]
        scheduler = Scheduler(WorkQueue(items(a=1)), runners, lambda runner, item: None)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            scheduler.run()

    def test_lost_device_leaves_the_work_to_the_others(
        self, items: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        done: list[str] = []
        lost = threading.Event()
        queue = WorkQueue(items(a=2, b=2))

        def work(runner: Any, item: WorkItem) -> None:
            if runner.device == "cuda:0":
                queue.put_back(item)
                lost.set()
                raise RunnerFatalError("fell off the bus")
            assert lost.wait(30)
            done.append(item.workload.uuid)

        runners: list[Any] = [StubRunner("cuda:0"), StubRunner("cuda:1")]
        Scheduler(queue, runners, work).run()
        assert sorted(done) == ["a0", "a1", "b0", "b1"]
        assert "cuda:0 is given up: fell off the bus" in caplog.messages

    def test_an_idle_device_takes_over_what_a_lost_one_had_begun(
        self, items: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The queue is empty and the other device at rest when the first one is lost."""
        done: list[str] = []
        queue = WorkQueue(items(a=1, b=1))
        idle = threading.Event()

        def work(runner: Any, item: WorkItem) -> None:
            if runner.device == "cuda:0":
                assert idle.wait(30)
                time.sleep(0.2)  # the other thread has found nothing left by now
                queue.put_back(item)
                raise RunnerFatalError("fell off the bus")
            done.append(item.workload.uuid)
            idle.set()

        runners: list[Any] = [StubRunner("cuda:0"), StubRunner("cuda:1")]
        Scheduler(queue, runners, work).run()
        assert sorted(done) == ["a0", "b0"]
        assert len(queue) == 0
        assert [m for m in caplog.messages if "is given up" in m] == [
            "cuda:0 is given up: fell off the bus"
        ]

    def test_one_of_many_devices_is_enough(
        self, items: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        done: list[str] = []
        queue = WorkQueue(items(a=5, b=5, c=5))
        lost = threading.Barrier(4, timeout=30)

        def work(runner: Any, item: WorkItem) -> None:
            if runner.device != "cuda:3":
                lost.wait()
                queue.put_back(item)
                raise RunnerFatalError(f"{runner.device} fell off the bus")
            if not done:
                lost.wait()
            done.append(item.workload.uuid)

        runners: list[Any] = [StubRunner(f"cuda:{index}") for index in range(4)]
        Scheduler(queue, runners, work).run()
        assert len(done) == len(set(done)) == 15
        told = [message for message in caplog.messages if "is given up" in message]
        assert len(told) == len(set(told)) == 3
        assert all(len(runner.closed_by) == 1 for runner in runners)

    def test_a_device_at_rest_ends_with_the_run(self, items: Any) -> None:
        """Waiting for what a busy device may give back must not outlast an error."""
        resting = threading.Event()

        def work(runner: Any, item: WorkItem) -> None:
            assert resting.wait(30)
            raise LookupError("disk on fire")

        queue = WorkQueue(items(a=1))
        take = queue.take

        def watched(definition: Any = None) -> Any:
            found = take(definition)
            if found is None:
                resting.set()
            return found

        queue.take = watched  # type: ignore[method-assign]
        runners: list[Any] = [StubRunner("cuda:0"), StubRunner("cuda:1")]
        with pytest.raises(LookupError, match="disk on fire"):
            Scheduler(queue, runners, work).run()

    def test_all_devices_lost(self, items: Any) -> None:
        def work(runner: Any, item: WorkItem) -> None:
            raise RunnerFatalError("fell off the bus")

        with pytest.raises(RunnerFatalError):
            schedule(items(a=3), work, devices=2)

    def test_ctrl_c_interrupts_and_waits(self, items: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        done: list[str] = []

        def work(runner: Any, item: WorkItem) -> None:
            assert runner.stop.wait(30)
            done.append(item.workload.uuid)
            raise RunInterrupted("as the runner would")

        def interrupted(self: Scheduler) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Scheduler, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            schedule(items(a=5), work)
        assert done == ["a0"]

    def test_work_is_not_done_in_the_calling_thread(self, items: Any) -> None:
        names: list[str] = []
        schedule(items(a=1), lambda runner, item: names.append(threading.current_thread().name))
        assert names == ["fib-cuda:0"]

    def test_a_thread_that_does_not_end_is_left_behind(
        self, items: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("flashinfer_bench.bench.scheduler._LAST_WORDS_S", 0.05)
        release = threading.Event()

        def interrupted(self: Scheduler) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Scheduler, "_wait", interrupted)
        scheduler = Scheduler(
            WorkQueue(items(a=1)),
            [StubRunner("cuda:0")],  # type: ignore[list-item]
            lambda runner, item: release.wait(30) and None,  # type: ignore[arg-type, return-value]
        )
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            scheduler.run()
        assert time.monotonic() - began < 20
        release.set()
        assert scheduler._all_ended.wait(30)
