"""TraceSet: plain dicts that write through to a folder."""

from __future__ import annotations

import json
import shutil

import pytest

from flashinfer_bench.data import Trace, TraceSet
from flashinfer_bench.errors import ConfigError, DataError, StorageError

NAME = "gemm_n8_k4"


def test_solutions_added_to_the_dict_are_found(make):
    trace_set = TraceSet()
    assert trace_set.get_solution("alice_v1") is None
    trace_set.solutions[NAME] = [make.solution()]
    assert trace_set.get_solution("alice_v1") is trace_set.solutions[NAME][0]


def test_traces_are_read_when_asked_for(dataset):
    trace_set = TraceSet.from_path(dataset)
    (dataset / "traces/gemm/gemm_n8_k4.jsonl").unlink()
    first = trace_set.traces
    assert first == {}
    assert len(trace_set.workloads[NAME]) == 2
    assert trace_set.traces is first


@pytest.mark.parametrize("read_first", [True, False])
def test_what_is_added_is_written(dataset, make, read_first):
    trace_set = TraceSet.from_path(dataset)
    if read_first:
        trace_set.traces  # noqa: B018
    workload, run = make.trace(None, uuid="new"), make.trace(uuid="new", log="é\n")
    trace_set.add_workload_traces([workload])
    trace_set.add_traces([run])
    again = TraceSet.from_path(dataset)
    for one in (trace_set, again):
        assert (one.workloads[NAME][-1], len(one.workloads[NAME])) == (workload, 3)
        assert (one.traces[NAME][-1], len(one.traces[NAME])) == (run, 4)
    assert (again.workloads, again.traces) == (trace_set.workloads, trace_set.traces)


def test_names_cannot_leave_the_folder(tmp_path, make):
    name = "../../evil"
    definition = make.definition(name, op_type="../..")
    root = tmp_path / "a" / "b" / "dataset"
    root.mkdir(parents=True)
    trace_set = TraceSet(root, {name: definition})
    trace_set.add_traces([make.trace(definition=name)])
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {
        "%2E.%2F..%2Fevil.jsonl",
        ".%2E.%2F..%2Fevil.jsonl.lock",
    }
    assert len(list((root / "traces").rglob("*.jsonl"))) == 1
    assert TraceSet.from_path(root).traces[name] == trace_set.traces[name]


def test_the_format_on_disk_is_that_of_the_first_release_too(dataset, make):
    """No field is renamed, none that readers require is left out, none that is None is added."""
    trace_set = TraceSet.from_path(dataset)
    trace_set.add_traces([make.trace(uuid="new")])
    path = dataset / "traces/gemm/gemm_n8_k4.jsonl"
    written = json.loads(path.read_text().splitlines()[-1])
    assert written == make.trace_record(uuid="new")


def test_what_does_not_fit_is_refused_with_all_that_comes_with_it(dataset, make):
    trace_set = TraceSet.from_path(dataset)
    with pytest.raises(DataError, match="no definition 'other' in the dataset"):
        trace_set.add_traces([make.trace(), make.trace(definition="other")])
    with pytest.raises(DataError, match="not a workload trace of 'gemm_n8_k4'"):
        trace_set.add_traces([make.trace(), make.trace(None)])
    with pytest.raises(DataError, match="not a run of 'gemm_n8_k4'"):
        trace_set.add_workload_traces([make.trace()])
    for one in (trace_set, TraceSet.from_path(dataset)):
        assert len(one.traces[NAME]) == 3


def test_paths(dataset):
    trace_set = TraceSet.from_path(dataset)
    assert trace_set.definitions_path == dataset / "definitions"
    assert trace_set.solutions_path == dataset / "solutions"
    assert trace_set.workloads_path == dataset / "workloads"
    assert trace_set.traces_path == dataset / "traces"
    assert trace_set.blob_path == dataset / "blob"
    assert trace_set.blob_workloads_path == dataset / "blob" / "workloads"


def test_a_set_in_memory_has_no_paths():
    trace_set = TraceSet()
    with pytest.raises(ConfigError, match="is in memory only"):
        trace_set.traces_path  # noqa: B018
    with pytest.raises(ValueError, match="is in memory only"):
        trace_set.add_workload_blob_tensor("d", "u", {})
    with pytest.raises(ValueError, match="is in memory only"):
        trace_set.backup_traces()


def test_a_backup_is_a_copy_beside_the_traces(dataset, make):
    trace_set = TraceSet.from_path(dataset)
    trace_set.add_traces([make.trace(uuid="new")])
    content = (dataset / "traces/gemm/gemm_n8_k4.jsonl").read_bytes()
    trace_set.backup_traces()
    [backup] = dataset.glob("traces_backup_*")
    assert {path.name for path in backup.rglob("*") if path.is_file()} == {"gemm_n8_k4.jsonl"}
    assert (backup / "gemm/gemm_n8_k4.jsonl").read_bytes() == content
    assert (dataset / "traces/gemm/gemm_n8_k4.jsonl").read_bytes() == content
    assert len(TraceSet.from_path(dataset).traces[NAME]) == 4


def test_a_backup_that_fails_leaves_nothing_behind(dataset, monkeypatch):
    def fail(source, target, **options):
        target.mkdir()
        raise shutil.Error([("a", "b", "no space")])

    monkeypatch.setattr(shutil, "copytree", fail)
    with pytest.raises(StorageError, match="cannot back up"):
        TraceSet.from_path(dataset).backup_traces()
    assert list(dataset.glob("traces_backup_*")) == []
    assert (dataset / "traces").is_dir()


def test_to_dict(dataset):
    plain = TraceSet.from_path(dataset).to_dict()
    assert list(plain) == ["definitions", "solutions", "workloads", "traces"]
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["definitions"][NAME]["op_type"] == "gemm"
    assert plain["solutions"][NAME][0]["spec"]["language"] == "python"
    again = [Trace.model_validate(trace) for trace in plain["traces"][NAME]]
    assert again == TraceSet.from_path(dataset).traces[NAME]


def traces_of(make, *speedups, **common):
    return [make.trace(f"s{n}_v1", speedup=s, **common) for n, s in enumerate(speedups)]


def test_what_is_disputed_is_not_the_best(make):
    doubt = {"integrity": {"disputed": "hidden time", "unseen_ms": 0.5}}
    errors = {"max_absolute_error": 0.0, "max_relative_error": 0.0, "extra": doubt}
    doubtful = make.trace("s9_v1", speedup=9.0, correctness=errors)
    trace_set = make.trace_set(doubtful, *traces_of(make, 1.0, 3.0))
    assert trace_set.get_best_trace(NAME).solution == "s1_v1"
    assert trace_set.filter_traces(NAME)[0] is doubtful, "it is right all the same"


def test_the_best_for_exactly_these_axes(make):
    traces = [*traces_of(make, 5.0, m=4), *traces_of(make, 1.0, m=8)]
    trace_set = make.trace_set(*traces)
    assert trace_set.get_best_trace(NAME, {"M": 8}) is traces[1]
    assert trace_set.get_best_trace(NAME, axes={"M": 9}) is None
    assert trace_set.get_best_trace(NAME, {}) is None
    assert trace_set.get_best_trace(NAME, {"M": 8, "N": 8}) is None
    assert trace_set.get_best_trace(NAME) is traces[0]


@pytest.mark.parametrize(
    ("error", "passes"),
    [(0.0, True), (0.01, True), (0.010001, False), (float("nan"), False), (float("inf"), False)],
)
def test_errors_are_bounded(make, error, passes):
    trace_set = make.trace_set(make.trace(error=error))
    assert (trace_set.get_best_trace(NAME) is not None) is passes
    assert bool(trace_set.filter_traces(NAME)) is passes


def test_absolute_and_relative_errors_have_their_own_bounds(make):
    errors = {"max_absolute_error": 0.5, "max_relative_error": 0.001}
    trace_set = make.trace_set(make.trace(correctness=errors))
    assert trace_set.filter_traces(NAME) == []
    assert len(trace_set.filter_traces(NAME, atol=0.5)) == 1
    assert trace_set.filter_traces(NAME, atol=0.5, rtol=0.0001) == []
    assert trace_set.get_best_trace(NAME, max_abs_error=0.5) is not None
    assert trace_set.get_best_trace(NAME, max_abs_error=0.5, max_rel_error=1e-4) is None
