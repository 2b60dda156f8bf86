"""Which workloads two solutions have in common, and what stops a comparison before it begins."""

import pytest

from fib_compare.paired.comparer import Comparer, CompareSettings, find_contests
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.errors import CapabilityError, RunnerFatalError, SelectionError


@pytest.fixture
def dataset(problems):
    other = problems.definition("other")
    return problems.dataset(
        problems.good("old"),
        problems.good("new"),
        problems.good("far", definition="other"),
        workloads=3,
        definitions=[problems.definition(), other],
    )


def names(contests):
    return [contest.workload.uuid for contest in contests]


def test_all_workloads_of_their_definition(dataset):
    found = find_contests(dataset, "old", "new")
    assert names(found) == ["double-0", "double-1", "double-2"]
    assert {one.baseline.name for one in found} == {"old"}
    assert {one.candidate.name for one in found} == {"new"}


def test_a_workload_that_is_stored_twice_comes_once(dataset):
    dataset.workloads["double"].append(dataset.workloads["double"][0])
    assert len(find_contests(dataset, "old", "new")) == 3


def test_the_beginning_of_a_uuid_will_do(dataset):
    assert names(find_contests(dataset, "old", "new", None, ["double-1"])) == ["double-1"]
    assert len(find_contests(dataset, "old", "new", ["double"], ["double"])) == 3


def test_a_definition_without_workloads(problems):
    empty = problems.dataset(problems.good("old"), problems.good("new"), workloads=0)
    with pytest.raises(SelectionError, match="has no workload"):
        find_contests(empty, "old", "new")


@pytest.fixture
def comparer(dataset, catalog, executor, monkeypatch):
    made = []
    monkeypatch.setattr("flashinfer_bench.bench.backends.make_executor", lambda *_: executor)

    def make(trace_set=dataset, **changes):
        values = {"num_trials": 2, "sandbox": "off", "device": "cpu", **changes}
        config = BenchmarkConfig.default(**values)
        made.append(Comparer(trace_set, config, CompareSettings(max_seconds=2.0), catalog=catalog))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.torch
def test_every_workload_gets_a_result_and_nothing_is_written(comparer, dataset, executor):
    started = []
    with comparer() as held:
        contests = find_contests(dataset, "old", "new")
        results = list(held.run(contests, on_start=lambda one: started.append(one.workload.uuid)))
    assert started == [one.workload for one in results] == names(contests)
    assert all(one.obstacle is None for one in results), results
    assert executor.closed == 1
    assert len(executor.of("spawn")) == len(executor.of("close"))
    assert not any(dataset.traces.values())


@pytest.mark.torch
def test_a_solution_for_another_device_is_refused(comparer, problems):
    for_gpu = problems.solution("pass", "gpu", language="gpu_language")
    dataset = problems.dataset(problems.good("old"), for_gpu)
    with comparer(dataset) as held, pytest.raises(CapabilityError, match="'gpu'"):
        list(held.run(find_contests(dataset, "old", "gpu")))


@pytest.mark.torch
def test_where_no_process_can_be_started_it_ends(comparer, dataset, executor):
    executor.broken = True
    with comparer() as held, pytest.raises(RunnerFatalError, match="no process"):
        list(held.run(find_contests(dataset, "old", "new")))


@pytest.mark.torch
def test_a_device_that_disappears_ends_it(comparer, problems, monkeypatch):
    broken = problems.solution("def run(x):\n    raise Crash", "new")
    dataset = problems.dataset(problems.good("old"), broken)

    def gone(executor):
        raise RunnerFatalError("cuda:0 no longer works")

    monkeypatch.setattr("flashinfer_bench.bench.session.Runner.require_working_device", gone)
    with comparer(dataset) as held, pytest.raises(RunnerFatalError, match="no longer works"):
        list(held.run(find_contests(dataset, "old", "new")))
