import pytest

from flashinfer_bench.bench import BenchmarkConfig, IsolatedRunner, PersistentRunner
from flashinfer_bench.bench.pool import RunInterrupted

CONFIG = BenchmarkConfig(
    warmup_runs=1, iterations=2, num_trials=1, seed=5, interleave_reference=False
)


@pytest.fixture
def runner_of(executor, catalog):
    return lambda kind=PersistentRunner: kind("cpu", executor=executor, catalog=catalog)


class TestRunner:
    def test_evaluations_come_one_by_one(self, runner_of, problems):
        begun = []
        running = runner_of().evaluate_each(
            problems.definition(),
            problems.workload(),
            [problems.good("a"), problems.good("b")],
            CONFIG,
            on_start=lambda solution: begun.append(solution.name),
        )
        solution, evaluation = next(running)
        assert (solution.name, str(evaluation.status), begun) == ("a", "PASSED", ["a"])
        assert [item.name for item, _ in running] == ["b"]

    def test_interrupt(self, runner_of, problems):
        runner = runner_of()
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


def test_failed_builds_are_forgotten_with_their_definition(runner_of, problems, executor):
    runner = runner_of(IsolatedRunner)
    broken = [problems.solution("import nothing_of_this_name", "broken")]
    first, second = problems.definition(), problems.definition("twice")
    for definition in (first, first, second):
        runner.run_workload(definition, problems.workload(), broken, CONFIG)
    names = [name for _, name in executor.of("load")]
    assert names.count("broken") == 2


def test_own_executor_is_made_and_closed(problems, executor, catalog, monkeypatch):
    asked = []

    def make(catalog, device, name):
        asked.append((device, name))
        return executor

    monkeypatch.setattr("flashinfer_bench.bench.backends.make_executor", make)
    config = CONFIG.model_copy(update={"executor": "spawn"})
    with IsolatedRunner("cpu", catalog=catalog) as runner:
        for _ in range(2):
            runner.run_workload(
                problems.definition(), problems.workload(), [problems.good()], config
            )
    assert asked == [("cpu", "spawn")]
    assert executor.closed == 1


def test_what_cannot_be_built_here_is_left_out_with_a_warning(runner_of, problems, caplog):
    source = (
        "from flashinfer_bench.bench.executors.base import CandidateFailed\n"
        "raise CandidateFailed('K: no frob', stage='load', kind='K', traceback='',"
        " about='capability')"
    )
    solutions = [problems.solution(source, "a"), problems.good("b")]
    with runner_of() as runner:
        found = runner.run_workload(problems.definition(), problems.workload(), solutions, CONFIG)
    assert list(found) == ["b"]
    assert "no result for a: no frob" in caplog.text
