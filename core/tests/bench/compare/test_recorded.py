"""Comparing recorded samples: which runs meet, and what makes them incomparable."""

from __future__ import annotations

import random

import pytest

from flashinfer_bench.bench.compare.contest import CompareSettings
from flashinfer_bench.bench.compare.recorded import Names, compare_recorded, read_traces
from flashinfer_bench.data import (
    Correctness,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    Provenance,
    Trace,
)
from flashinfer_bench.errors import ConflictError, DatasetNotFoundError, SelectionError
from flashinfer_bench.stats.compare import Verdict

SETTINGS = CompareSettings()


@pytest.fixture
def trace(problems):
    rng = random.Random(7)

    def make(
        ms: float = 5.0,
        solution: str = "s",
        workload: str = "w1",
        *,
        hardware: str = "H",
        time: str = "2026-01-01T00:00:00",
        count: int = 150,
        status: str = "PASSED",
        definition: str = "double",
        **provenance,
    ):
        samples = [ms * rng.lognormvariate(0, 0.01) for _ in range(count)]
        passed = status == "PASSED"
        told = {"timer": "cpu", "timer_version": "1", "definition_hash": "0" * 16, **provenance}
        performance = Performance(
            latency_ms=ms, reference_latency_ms=0.0, speedup_factor=0.0, samples_ms=samples or None
        )
        return Trace(
            definition=definition,
            workload=problems.workload(uuid=workload),
            solution=solution,
            evaluation=Evaluation(
                status=EvaluationStatus(status),
                environment=Environment(hardware=hardware),
                timestamp=time,
                correctness=Correctness(max_relative_error=0.0, max_absolute_error=0.0)
                if passed
                else None,
                performance=performance if passed else None,
                provenance=Provenance(**told),
            ),
        )

    return make


def compare(before, after, *, force=False, **names):
    return compare_recorded(before, after, Names(**names), SETTINGS, force=force)


@pytest.mark.parametrize(
    ("ms", "verdict"), [(5.5, Verdict.SLOWER), (4.5, Verdict.FASTER), (5.0, Verdict.AMBIGUOUS)]
)
def test_samples_decide(trace, ms, verdict):
    (found,) = compare([trace(5.0, count=2000)], [trace(ms, count=2000)])
    assert found.comparison.verdict is verdict
    assert not found.comparison.paired
    assert found.comparison.ratio.estimate == pytest.approx(ms / 5.0, rel=5e-3)
    assert "unpaired" in found.notes[0]
    assert (found.hardware, found.timer, found.stopped) == ("H", "cpu", "")
    assert len(found.samples_ms[0]) == 2000


def test_each_solution_meets_itself_on_each_workload(trace):
    both = [trace(solution=s, workload=w) for s in ("a", "b") for w in ("w1", "w2")]
    found = compare(both, [*both, trace(solution="c")])
    assert [(one.candidate, one.workload) for one in found] == [
        ("a", "w1"),
        ("a", "w2"),
        ("b", "w1"),
        ("b", "w2"),
    ]


def test_names_choose(trace):
    both = [trace(solution=s, workload=w) for s in ("a", "b") for w in ("w1", "w2")]
    assert len(compare(both, both, solutions=("a",))) == 2
    assert len(compare(both, both, workloads=("w2",))) == 2
    assert len(compare(both, both, definitions=("double",))) == 4
    (found,) = compare(both, both, baseline="a", candidate="b", workloads=("w1",))
    assert (found.baseline, found.candidate) == ("a", "b")


def test_the_latest_run_counts(trace):
    old = trace(9.0, time="2026-01-01T00:00:00")
    new = trace(5.0, time="2026-02-01T00:00:00")
    (found,) = compare([old, new], [trace(5.0)])
    assert found.baseline_ms == pytest.approx(5.0, rel=1e-2)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"hardware": "other"}, "hardware"),
        ({"timer": "cuda_event"}, "timer"),
        ({"timer_version": "2"}, "timer version"),
        ({"definition_hash": "f" * 16}, "definition"),
    ],
)
def test_what_cannot_be_compared_is_refused_unless_forced(trace, changes, text):
    pair = [trace()], [trace(**changes)]
    with pytest.raises(ConflictError, match=text) as caught:
        compare(*pair)
    assert "--force" in caught.value.hint
    (found,) = compare(*pair, force=True)
    assert found.comparison is not None
    assert any(note.startswith(f"forced, although they differ in {text}") for note in found.notes)


def test_what_an_old_trace_does_not_tell_is_no_conflict(trace):
    (found,) = compare([trace(definition_hash=None)], [trace()])
    assert "definition: not recorded on both sides" in found.notes


def test_without_samples_there_is_no_comparison(trace):
    (found,) = compare([trace(count=0)], [trace()])
    assert (found.obstacle.role, found.obstacle.kind) == ("baseline", "not recorded")
    (found,) = compare([trace()], [trace(count=3)])
    assert found.obstacle.message.startswith("3 samples are recorded")


def test_a_median_of_zero_has_no_ratio(trace):
    (found,) = compare([trace()], [trace(0.0)])
    assert (found.obstacle.role, found.obstacle.kind) == ("both", "not recorded")


def test_a_run_that_failed_is_an_obstacle(trace):
    (found,) = compare([trace()], [trace(status="RUNTIME_ERROR")])
    assert (found.obstacle.role, found.obstacle.kind) == ("candidate", "wrong")
    assert "RUNTIME_ERROR" in found.obstacle.message


def test_nothing_in_common_is_told(trace):
    with pytest.raises(SelectionError, match="none on the same workload"):
        compare([trace(workload="w1")], [trace(workload="w2")])


def test_files_and_folders_are_read(trace, tmp_path):
    file = tmp_path / "runs.jsonl"
    runs = [trace(time="2026-02-01T00:00:00"), trace(time="2026-01-01T00:00:00")]
    file.write_text("".join(one.model_dump_json() + "\n" for one in runs))
    times = [one.evaluation.timestamp for one in read_traces(file)]
    assert times == sorted(times)
    with pytest.raises(DatasetNotFoundError, match="neither"):
        read_traces(tmp_path / "nothing")
    (tmp_path / "definitions").mkdir()
    with pytest.raises(SelectionError, match="no runs"):
        read_traces(tmp_path)
