"""When what is compiled, with stand-ins for the processes."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from flashinfer_bench.bench.ahead import BuildAhead
from flashinfer_bench.bench.builds import Build
from flashinfer_bench.bench.executors.base import CandidateFailed, CandidateTimeout
from flashinfer_bench.bench.pool import RunInterrupted


@pytest.fixture
def ahead_of(executor: Any, problems: Any) -> Any:
    """Make `BuildAhead` of solutions, by default as on a GPU; all are closed after the test."""
    made: list[BuildAhead] = []

    def make(*solutions: Any, overlap: bool = True, jobs: int = 2, **options: Any) -> BuildAhead:
        builds = [Build(problems.definition(item.definition), item) for item in solutions]
        made.append(
            BuildAhead(builds, executor, jobs=jobs, timeout_s=30, overlap=overlap, **options)
        )
        return made[-1]

    yield make
    for ahead in made:
        ahead.close()


def gate(executor: Any, *names: str) -> list[threading.Event]:
    """Have the compilers of some solutions wait until their events are set."""
    executor.gates.update({name: threading.Event() for name in names})
    return [executor.gates[name] for name in names]


def compiled(executor: Any) -> list[str]:
    return [name for _, name in executor.of("compile")]


def eventually(condition: Any) -> bool:
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    return bool(condition())


class TestOnTheCpu:
    """Nothing is compiled while something may be timed."""

    def test_nothing_begins_by_itself(self, ahead_of: Any, executor: Any, problems: Any) -> None:
        ahead = ahead_of(problems.compiled("a"), overlap=False)
        ahead.start()
        time.sleep(0.05)
        assert executor.events == []

    def test_a_definition_is_compiled_before_anything_of_it_is_timed(
        self, ahead_of: Any, executor: Any, problems: Any
    ) -> None:
        solutions = [problems.compiled(name) for name in "abc"]
        ahead = ahead_of(*solutions, problems.compiled("d", "", "twice"), overlap=False)
        ahead.prepare("double")
        assert sorted(name for _, name in executor.of("compiled")) == ["a", "b", "c"]
        executor.events.clear()
        ahead.prepare("double")
        assert all(ahead.outcome(solution).state == "built" for solution in solutions)
        assert executor.events == []
        ahead.prepare("twice")
        assert compiled(executor) == ["d"]

    def test_several_at_a_time(self, ahead_of: Any, executor: Any, problems: Any) -> None:
        gates = gate(executor, "a", "b", "c")
        ahead = ahead_of(*(problems.compiled(name) for name in "abc"), overlap=False, jobs=2)
        preparing = threading.Thread(target=ahead.prepare, args=("double",))
        preparing.start()
        assert eventually(lambda: len(compiled(executor)) == 2)
        time.sleep(0.05)
        assert compiled(executor) == ["a", "b"]
        gates[0].set()
        assert eventually(lambda: len(compiled(executor)) == 3)
        for each in gates:
            each.set()
        preparing.join(30)

    def test_prepare_waits_for_the_slowest(
        self, ahead_of: Any, executor: Any, problems: Any
    ) -> None:
        (slow,) = gate(executor, "slow")
        ahead = ahead_of(problems.compiled("quick"), problems.compiled("slow"), overlap=False)
        threading.Timer(0.1, slow.set).start()
        ahead.prepare("double")
        assert slow.is_set()
        assert len(executor.of("compiled")) == 2

    def test_a_definition_without_compiled_solutions(self, ahead_of: Any, problems: Any) -> None:
        ahead_of(problems.compiled("a"), overlap=False).prepare("twice")

    def test_asking_without_preparing_compiles_too(
        self, ahead_of: Any, executor: Any, problems: Any
    ) -> None:
        ahead = ahead_of(problems.compiled("a"), overlap=False)
        assert ahead.outcome(problems.compiled("a")).state == "built"


class TestOnGpus:
    """Compilers work beside the timing."""

    def test_everything_begins_at_once(self, ahead_of: Any, executor: Any, problems: Any) -> None:
        gates = gate(executor, "a", "b")
        ahead = ahead_of(problems.compiled("a"), problems.compiled("b", "", "twice"))
        ahead.start()
        ahead.prepare("double")  # returns although nothing is done
        assert eventually(lambda: sorted(compiled(executor)) == ["a", "b"])
        assert executor.of("compiled") == []
        for each in gates:
            each.set()

    def test_an_outcome_is_waited_for(self, ahead_of: Any, executor: Any, problems: Any) -> None:
        (slow,) = gate(executor, "a")
        ahead = ahead_of(problems.compiled("a"))
        ahead.start()
        threading.Timer(0.05, slow.set).start()
        assert ahead.outcome(problems.compiled("a")).state == "built"
        assert slow.is_set()

    def test_no_one_waits_for_another_s_compiler(
        self, ahead_of: Any, executor: Any, problems: Any
    ) -> None:
        (slow,) = gate(executor, "slow")
        solutions = [problems.compiled("slow"), problems.good("python"), problems.compiled("quick")]
        ahead = ahead_of(solutions[0], solutions[2])
        ahead.start()
        assert eventually(lambda: len(executor.of("compiled")) == 1)
        order = []
        for solution in ahead.as_ready(solutions):
            order.append(solution.name)
            if len(order) == 2:
                slow.set()
        assert order == ["python", "quick", "slow"]

    def test_what_is_all_ready_keeps_its_order(self, ahead_of: Any, problems: Any) -> None:
        solutions = [problems.compiled(name) for name in "cab"]
        ahead = ahead_of(*solutions)
        ahead.start()
        for solution in solutions:
            ahead.outcome(solution)
        assert [solution.name for solution in ahead.as_ready(solutions)] == ["c", "a", "b"]

    def test_what_is_needed_next_is_compiled_next(
        self, ahead_of: Any, executor: Any, problems: Any
    ) -> None:
        (first,) = gate(executor, "a")
        solutions = [problems.compiled(name, "", d) for name, d in ("ax", "bx", "cy", "dx")]
        ahead = ahead_of(*solutions, jobs=1)
        ahead.start()
        assert eventually(lambda: compiled(executor) == ["a"])
        ahead.prepare("y")
        first.set()
        ahead.outcome(solutions[-1])
        assert compiled(executor) == ["a", "c", "b", "d"]

    def test_runners_of_several_devices_share_it(
        self, ahead_of: Any, executor: Any, problems: Any
    ) -> None:
        solutions = [problems.compiled(f"s{index}") for index in range(20)]
        ahead = ahead_of(*solutions, jobs=3)
        ahead.start()
        seen: list[list[str]] = [[], [], []]

        def device(names: list[str]) -> None:
            for solution in ahead.as_ready(solutions):
                assert ahead.outcome(solution).state == "built"
                names.append(solution.name)

        threads = [threading.Thread(target=device, args=(names,)) for names in seen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert [len(set(names)) for names in seen] == [20, 20, 20]
        assert sorted(compiled(executor)) == sorted(item.name for item in solutions)


class TestOutcomes:
    def test_a_failed_one_is_known_and_not_tried_again(
        self, ahead_of: Any, executor: Any, problems: Any
    ) -> None:
        ahead = ahead_of(problems.compiled("a", "build"))
        ahead.start()
        for _ in range(2):
            outcome = ahead.outcome(problems.compiled("a", "build"))
            assert isinstance(outcome.error, CandidateFailed)
            assert outcome.log == "build log"
        assert compiled(executor) == ["a"]

    def test_a_compiler_that_hangs_costs_its_solution_only(
        self, ahead_of: Any, problems: Any
    ) -> None:
        ahead = ahead_of(problems.compiled("a", "hang"), problems.compiled("b"), jobs=1)
        ahead.start()
        hung = ahead.outcome(problems.compiled("a", "hang"))
        assert isinstance(hung.error, CandidateTimeout)
        assert ahead.outcome(problems.compiled("b")).state == "built"

    def test_a_full_disk_is_left_to_the_evaluation(self, ahead_of: Any, problems: Any) -> None:
        told: list[Any] = []
        ahead = ahead_of(problems.compiled("a", "storage"), on_finished=told.append)
        ahead.start()
        assert ahead.outcome(problems.compiled("a", "storage")) is None
        assert [outcome.state for outcome in told] == ["unavailable"]

    def test_so_is_what_a_process_died_of(self, ahead_of: Any, problems: Any) -> None:
        """No code of the solution ran: the system may have killed it for lack of memory."""
        told: list[Any] = []
        ahead = ahead_of(problems.compiled("a", "crash"), on_finished=told.append)
        ahead.start()
        assert ahead.outcome(problems.compiled("a", "crash")) is None
        assert [outcome.state for outcome in told] == ["failed"]

    def test_so_is_everything_if_no_process_can_be_started(
        self, ahead_of: Any, executor: Any, problems: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        executor.broken = True
        told: list[Any] = []
        ahead = ahead_of(problems.compiled("a"), on_finished=told.append)
        ahead.start()
        assert ahead.outcome(problems.compiled("a")) is None
        assert told == []
        assert "a is not compiled ahead: no process can be started" in caplog.text

    def test_what_is_not_compiled_is_not_known(self, ahead_of: Any, problems: Any) -> None:
        assert ahead_of(problems.compiled("a")).outcome(problems.good("b")) is None

    def test_changed_contents_are_another_solution(self, ahead_of: Any, problems: Any) -> None:
        ahead = ahead_of(problems.compiled("a"))
        assert ahead.outcome(problems.compiled("a", "build")) is None

    def test_everything_is_told_before_it_is_known(self, ahead_of: Any, problems: Any) -> None:
        told: list[str] = []
        solutions = [problems.compiled(f"s{index}") for index in range(8)]
        ahead = ahead_of(*solutions, jobs=4, on_finished=lambda one: told.append(one.solution))
        ahead.start()
        for solution in solutions:
            ahead.outcome(solution)
            assert solution.name in told


class TestEnds:
    def test_interrupt_ends_compilers_and_whoever_waits(
        self, ahead_of: Any, executor: Any, problems: Any
    ) -> None:
        gate(executor, "a", "b", "c")
        told: list[Any] = []
        solutions = [problems.compiled(name) for name in "abc"]
        ahead = ahead_of(*solutions, on_finished=told.append)
        ahead.start()
        assert eventually(lambda: len(compiled(executor)) == 2)
        threading.Timer(0.05, ahead.interrupt).start()
        with pytest.raises(RunInterrupted):
            ahead.outcome(solutions[0])
        with pytest.raises(RunInterrupted):
            list(ahead.as_ready(solutions))
        ahead.close()
        assert told == []  # nobody is to blame for being killed
        assert len(executor.of("spawn")) == len(executor.of("close"))
        assert "c" not in compiled(executor)

    def test_interrupt_while_preparing(self, ahead_of: Any, executor: Any, problems: Any) -> None:
        gate(executor, "a")
        ahead = ahead_of(problems.compiled("a"), overlap=False)
        threading.Timer(0.05, ahead.interrupt).start()
        with pytest.raises(RunInterrupted):
            ahead.prepare("double")

    def test_after_the_end_what_is_known_stays_known(self, ahead_of: Any, problems: Any) -> None:
        ahead = ahead_of(problems.compiled("a"))
        ahead.start()
        ahead.outcome(problems.compiled("a"))
        ahead.close()
        ahead.close()
        assert ahead.outcome(problems.compiled("a")).state == "built"

    def test_one_who_is_told_and_raises_ends_the_run(self, ahead_of: Any, problems: Any) -> None:
        def raises(outcome: Any) -> None:
            raise LookupError("terminal is gone")

        ahead = ahead_of(problems.compiled("a"), on_finished=raises)
        ahead.start()
        with pytest.raises(LookupError, match="terminal is gone"):
            ahead.outcome(problems.compiled("a"))
        with pytest.raises(LookupError):
            ahead.check()
