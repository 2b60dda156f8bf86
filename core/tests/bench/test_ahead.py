"""When what is compiled, with stand-ins for the processes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fib_tests.threads import eventually
from flashinfer_bench.bench.builds import BuildAhead
from flashinfer_bench.bench.plan import Build
from flashinfer_bench.bench.pool import RunInterrupted
from flashinfer_bench.bench.sandbox import Sandbox


@pytest.fixture
def ahead_of(executor: Any, problems: Any) -> Any:
    """Make `BuildAhead` of solutions, by default as on a GPU; all are closed after the test."""
    made: list[BuildAhead] = []

    def make(*solutions: Any, overlap: bool = True, jobs: int = 2, **options: Any) -> BuildAhead:
        builds = [Build(problems.definition(item.definition), item) for item in solutions]
        made.append(
            BuildAhead(
                builds,
                executor,
                jobs=jobs,
                timeout_s=30,
                overlap=overlap,
                sandbox=Sandbox("off"),
                **options,
            )
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


class TestOutcomes:
    def test_so_is_everything_if_no_process_can_be_started(
        self, ahead_of: Any, executor: Any, problems: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        executor.broken = True
        told: list[Any] = []
        ahead = ahead_of(problems.compiled("a"), on_finished=told.append)
        ahead.start()
        assert ahead.outcome(problems.compiled("a")) is None
        assert told == []
        assert "a was not compiled in advance: no process can be started" in caplog.text


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
            ahead.outcome(solutions[2])
        ahead.close()
        assert told == []  # nobody is to blame for being killed
        assert len(executor.of("spawn")) == len(executor.of("close"))
        assert "c" not in compiled(executor)


class TestOnGpus:
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
