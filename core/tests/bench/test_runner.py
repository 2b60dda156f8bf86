from __future__ import annotations

from typing import Any

import pytest

from flashinfer_bench.bench import BenchmarkConfig, IsolatedRunner, PersistentRunner, Runner
from flashinfer_bench.bench.pool import RunInterrupted
from flashinfer_bench.errors import CapabilityError, DataError, RunnerError, RunnerFatalError

CONFIG = BenchmarkConfig(
    warmup_runs=1, iterations=2, num_trials=1, seed=5, interleave_reference=False
)
BOTH = [IsolatedRunner, PersistentRunner]


@pytest.fixture
def runner_of(executor: Any, catalog: Any) -> Any:
    return lambda kind: kind("cpu", executor=executor, catalog=catalog)


@pytest.mark.parametrize("kind", BOTH)
class TestBoth:
    def test_every_solution_gets_its_evaluation(
        self, kind: type[Runner], runner_of: Any, problems: Any
    ) -> None:
        solutions = [
            problems.good("a"),
            problems.solution("def run(x): raise Crash", "b"),
            problems.solution("def run(x): return x", "c"),
            problems.good("d"),
        ]
        with runner_of(kind) as runner:
            found = runner.run_workload(
                problems.definition(), problems.workload(), solutions, CONFIG
            )
        statuses = {name: str(evaluation.status) for name, evaluation in found.items()}
        assert statuses == {
            "a": "PASSED",
            "b": "RUNTIME_ERROR",
            "c": "INCORRECT_NUMERICAL",
            "d": "PASSED",
        }

    def test_reference_runs_once(
        self, kind: type[Runner], runner_of: Any, problems: Any, executor: Any
    ) -> None:
        solutions = [problems.good(name) for name in "abc"]
        runner_of(kind).run_workload(problems.definition(), problems.workload(), solutions, CONFIG)
        names = [name for _, name in executor.of("load")]
        assert names == ["double__reference", "a", "b", "c"]
        assert names.count("double__reference") == 1

    def test_evaluations_come_one_by_one(
        self, kind: type[Runner], runner_of: Any, problems: Any
    ) -> None:
        begun: list[str] = []
        running = runner_of(kind).evaluate_each(
            problems.definition(),
            problems.workload(),
            [problems.good("a"), problems.good("b")],
            CONFIG,
            on_start=lambda solution: begun.append(solution.name),
        )
        solution, evaluation = next(running)
        assert (solution.name, str(evaluation.status), begun) == ("a", "PASSED", ["a"])
        assert [item.name for item, _ in running] == ["b"]

    def test_seed(self, kind: type[Runner], runner_of: Any, problems: Any) -> None:
        def seeds(config: BenchmarkConfig) -> set[int]:
            found = runner_of(kind).run_workload(
                problems.definition(),
                problems.workload(),
                [problems.good("a"), problems.good("b")],
                config,
            )
            return {item.provenance.seed for item in found.values()}

        assert seeds(CONFIG) == {5}
        drawn = seeds(CONFIG.model_copy(update={"seed": None}))
        assert len(drawn) == 1
        assert drawn != seeds(CONFIG.model_copy(update={"seed": None}))

    def test_settings_are_those_of_the_definition(
        self, kind: type[Runner], runner_of: Any, problems: Any, executor: Any
    ) -> None:
        config = BenchmarkConfig(definition_config={"double": {"iterations": 7, "num_trials": 2}})
        runner_of(kind).run_workload(
            problems.definition(), problems.workload(), [problems.good()], config
        )
        fired = [(slot, timer) for pid, slot, timer in executor.of("fire") if pid == 1001]
        assert executor.fired(2 * (10 + 7), settling=2, pid=1001)
        assert set(fired) == {(0, "clock"), (1, "clock")}

    def test_trust(self, kind: type[Runner], runner_of: Any, problems: Any, executor: Any) -> None:
        config = BenchmarkConfig(iterations=7, num_trials=2, trust="off")
        found = runner_of(kind).run_workload(
            problems.definition(), problems.workload(), [problems.good("a")], config
        )
        fired = [event[1:] for event in executor.of("fire") if event[0] == 1001]
        assert len(fired) == 2 * (10 + 7)
        assert set(fired) == {(0, "clock"), (1, "clock")}
        assert executor.of("collect") == executor.of("inspect") == []
        assert found["a"].correctness.extra["integrity"] == {"trust": "off"}
        assert found["a"].provenance.extra["trust"] == "off"

    def test_failing_reference(self, kind: type[Runner], runner_of: Any, problems: Any) -> None:
        broken = problems.definition(reference="def run(x):\n    return 1 / 0")
        with pytest.raises(RunnerError, match="the reference of definition 'double' failed"):
            runner_of(kind).run_workload(broken, problems.workload(), [problems.good()], CONFIG)

    def test_bad_workload(self, kind: type[Runner], runner_of: Any, problems: Any) -> None:
        workload = problems.workload().model_copy(update={"inputs": {}})
        with pytest.raises(DataError, match="input 'x'"):
            runner_of(kind).run_workload(problems.definition(), workload, [problems.good()], CONFIG)

    def test_no_process(
        self, kind: type[Runner], runner_of: Any, problems: Any, executor: Any
    ) -> None:
        executor.broken = True
        with pytest.raises(RunnerFatalError):
            runner_of(kind).run_workload(
                problems.definition(), problems.workload(), [problems.good()], CONFIG
            )

    @pytest.mark.parametrize("setting", ["timer", "evaluator"])
    def test_unknown_plugin(
        self, setting: str, kind: type[Runner], runner_of: Any, problems: Any
    ) -> None:
        config = CONFIG.model_copy(update={setting: "absent"})
        with pytest.raises(CapabilityError, match="absent"):
            runner_of(kind).run_workload(
                problems.definition(), problems.workload(), [problems.good()], config
            )

    def test_interrupt(self, kind: type[Runner], runner_of: Any, problems: Any) -> None:
        runner = runner_of(kind)
        problem = (
            problems.definition(),
            problems.workload(),
            [problems.good("a"), problems.good("b")],
        )
        running = runner.evaluate_each(*problem, CONFIG)
        next(running)
        runner.interrupt()
        with pytest.raises(RunInterrupted):
            next(running)
        with pytest.raises(RunInterrupted):
            runner.run_workload(*problem, CONFIG)

    def test_interrupt_before_the_start(
        self, kind: type[Runner], runner_of: Any, problems: Any
    ) -> None:
        runner = runner_of(kind)
        runner.interrupt()
        with pytest.raises(RunInterrupted):
            runner.run_workload(
                problems.definition(), problems.workload(), [problems.good()], CONFIG
            )

    def test_close(self, kind: type[Runner], runner_of: Any, problems: Any, executor: Any) -> None:
        runner = runner_of(kind)
        runner.run_workload(problems.definition(), problems.workload(), [problems.good()], CONFIG)
        runner.close()
        runner.close()
        assert len(executor.of("close")) == len(executor.of("spawn"))
        assert executor.closed == 0  # it was given: its owner closes it

    def test_environment_is_this_machines(self, kind: type[Runner], runner_of: Any) -> None:
        from flashinfer_bench.tensors import env_snapshot

        runner = runner_of(kind)
        assert runner.environment == env_snapshot("cpu")
        assert runner.environment is runner.environment


class TestReuse:
    def spawned(
        self, kind: type[Runner], runner_of: Any, problems: Any, executor: Any
    ) -> list[str]:
        runner = runner_of(kind)
        solutions = [problems.good("a"), problems.good("b")]
        first, second = problems.definition(), problems.definition("twice")
        for definition, workload in [(first, 1), (first, 2), (second, 3)]:
            runner.run_workload(definition, problems.workload(workload), solutions, CONFIG)
        return [name for _, name in executor.of("load")]

    def test_isolated(self, runner_of: Any, problems: Any, executor: Any) -> None:
        loads = self.spawned(IsolatedRunner, runner_of, problems, executor)
        reference = ["double__reference", "a", "b"]
        assert loads == [*reference, *reference, "twice__reference", "a", "b"]
        assert len(executor.of("close")) == 9

    def test_persistent(self, runner_of: Any, problems: Any, executor: Any) -> None:
        loads = self.spawned(PersistentRunner, runner_of, problems, executor)
        assert loads == ["double__reference", "a", "b", "twice__reference", "a", "b"]
        # Those of the first definition were ended when the second one began.
        assert sorted(executor.of("close")) == [(1000,), (1001,), (1002,)]

    def test_failed_builds_are_forgotten_with_their_definition(
        self, runner_of: Any, problems: Any, executor: Any
    ) -> None:
        runner = runner_of(IsolatedRunner)
        broken = [problems.solution("import nothing_of_this_name", "broken")]
        first, second = problems.definition(), problems.definition("twice")
        for definition in (first, first, second):
            runner.run_workload(definition, problems.workload(), broken, CONFIG)
        names = [name for _, name in executor.of("load")]
        assert names.count("broken") == 2


def test_own_executor_is_made_and_closed(
    problems: Any, executor: Any, catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def make(catalog: Any, device: str, name: Any) -> Any:
        asked.append((device, name))
        return executor

    monkeypatch.setattr("flashinfer_bench.bench.runner.make_executor", make)
    config = CONFIG.model_copy(update={"executor": "spawn"})
    with IsolatedRunner("cpu", catalog=catalog) as runner:
        for _ in range(2):
            runner.run_workload(
                problems.definition(), problems.workload(), [problems.good()], config
            )
    assert asked == [("cpu", "spawn")]
    assert executor.closed == 1


@pytest.mark.parametrize("kind", BOTH)
def test_what_cannot_be_built_here_is_left_out_with_a_warning(
    kind: type[Runner], runner_of: Any, problems: Any, caplog: pytest.LogCaptureFixture
) -> None:
    source = (
        "from flashinfer_bench.bench.executors.base import CandidateFailed\n"
        "raise CandidateFailed('K: no frob', stage='load', kind='K', traceback='',"
        " about='capability')"
    )
    solutions = [problems.solution(source, "a"), problems.good("b")]
    with runner_of(kind) as runner:
        found = runner.run_workload(problems.definition(), problems.workload(), solutions, CONFIG)
        told: list[tuple[str, str]] = []
        again = runner.evaluate_each(
            problems.definition(),
            problems.workload(),
            solutions,
            CONFIG,
            on_skip=lambda solution, why: told.append((solution.name, why.message)),
        )
        assert [solution.name for solution, _ in again] == ["b"]
    assert list(found) == ["b"]
    assert "no verdict on a: no frob" in caplog.text
    assert told == [("a", "no frob")]
