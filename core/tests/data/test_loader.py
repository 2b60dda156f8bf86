"""Reading dataset folders: layouts of all releases, broken files, duplicates."""

from __future__ import annotations

import json

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.loader import load_definition
from flashinfer_bench.errors import DataError, DatasetNotFoundError, DuplicateNameError


def load(root):
    return TraceSet.from_path(root)


def collect(root):
    trace_set = TraceSet.from_path(root, on_error="collect")
    return trace_set, [error.where for error in trace_set.load_errors]


def test_a_dataset(dataset):
    trace_set = load(dataset)
    assert list(trace_set.definitions) == ["gemm_n8_k4"]
    names = [solution.name for solution in trace_set.solutions["gemm_n8_k4"]]
    assert names == ["alice_v1", "baseline_v1"]
    assert [w.workload.uuid for w in trace_set.workloads["gemm_n8_k4"]] == ["w1", "w2"]
    assert len(trace_set.traces["gemm_n8_k4"]) == 3
    assert trace_set.load_errors == []


def test_no_folder_is_no_dataset(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=r"none does not exist") as caught:
        load(tmp_path / "none")
    assert isinstance(caught.value, FileNotFoundError)
    assert not (tmp_path / "none").exists()


def test_the_default_is_the_dataset_of_the_environment(dataset, monkeypatch):
    monkeypatch.setenv("FIB_DATASET_PATH", str(dataset))
    assert TraceSet.from_path().root == dataset


# ---------------------------------------------------------------------------------------- layouts


def test_old_workloads_lie_below_traces(writer, make):
    record = {**make.trace_record(None), "solution": "", "evaluation": {}}
    del record["workload"]["uuid"]
    writer.lines("traces/workloads/gemm/gemm.workload.jsonl", record)
    [workload] = load(writer.root).workloads["gemm_n8_k4"]
    assert workload.workload.uuid


@pytest.mark.parametrize(
    ("place", "op_type"),
    [("definitions/prefill/d.json", "prefill"), ("definitions/d.json", "unknown")],
)
def test_a_definition_without_op_type_takes_that_of_its_folder(writer, make, place, op_type):
    record = make.definition_record()
    del record["op_type"]
    path = writer.json(place, record)
    assert load(writer.root).definitions["gemm_n8_k4"].op_type == op_type
    assert load_definition(path, writer.root).op_type == op_type


# ------------------------------------------------------------------------------- what is not valid


def break_everything(writer, make):
    """Add one mistake of each kind; return the places as the errors should name them."""
    places = {}
    bad = make.definition_record("no_dtype", inputs={"a": {"shape": ["M"]}})
    path = writer.json("definitions/gemm/no_dtype.json", bad)
    places[path] = f"{path}: inputs.a.dtype"
    path = writer.text("definitions/gemm/syntax.json", '{\n "name" "x",\n}')
    places[path] = f"{path}:2"
    path = writer.json("definitions/other/again.json", make.definition_record())
    places[path] = f"{path}: name"
    path = writer.json("solutions/bob/s.json", make.solution_record("bad", sources=[]))
    places[path] = f"{path}: sources"
    path = writer.json("solutions/zoe/alice_v1.json", make.solution_record())
    places[path] = f"{path}: name"
    good = json.dumps(make.trace_record(uuid="good"))
    bad = json.dumps({**make.trace_record(), "definition": ""})
    path = writer.text("traces/gemm/mixed.jsonl", f"{good}\n{{oops\n{bad}\n{good}\n")
    places[path] = f"{path}:2"
    return places, f"{path}:3: definition"


def test_the_rest_stays_usable(dataset, writer, make):
    places, second = break_everything(writer, make)
    trace_set, errors = collect(dataset)
    assert sorted(errors) == sorted([*places.values(), second])
    assert list(trace_set.definitions) == ["gemm_n8_k4"]
    assert len(trace_set.solutions["gemm_n8_k4"]) == 2
    assert len(trace_set.traces["gemm_n8_k4"]) == 5
    assert len(trace_set.run_rows()) == 5


@pytest.mark.parametrize("index", range(6))
def test_each_mistake_alone_is_raised(dataset, writer, make, index):
    places, _ = break_everything(writer, make)
    for number, path in enumerate(places):
        if number != index:
            path.unlink()
    path = list(places)[index]
    with pytest.raises(DataError) as caught:
        load(dataset).load_errors  # noqa: B018 - reads the traces too
    assert caught.value.where == places[path]


def test_duplicates_name_both_files(dataset, writer, make):
    again = writer.json("solutions/zoe/alice_v1.json", make.solution_record())
    with pytest.raises(DuplicateNameError, match="another solution named 'alice_v1'") as caught:
        load(dataset)
    first = dataset / "solutions/alice/gemm/gemm_n8_k4/alice_v1.json"
    assert str(first) in str(caught.value)
    assert str(again) in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert "rename or remove" in str(caught.value)


def test_errors_of_traces_come_when_traces_are_read(dataset, writer):
    writer.text("traces/gemm/bad.jsonl", "nonsense\n")
    trace_set = load(dataset)
    with pytest.raises(DataError, match="not valid JSON"):
        trace_set.traces  # noqa: B018
    with pytest.raises(DataError, match="not valid JSON"):  # and again: nothing is half-read
        trace_set.traces  # noqa: B018


def test_a_file_that_cannot_be_read_is_named(dataset, monkeypatch):
    from pathlib import Path

    path = dataset / "definitions/gemm/gemm_n8_k4.json"
    real = Path.read_bytes

    def read_bytes(self):
        if self == path:
            raise PermissionError(13, "Permission denied")
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    trace_set, _ = collect(dataset)
    assert [str(error) for error in trace_set.load_errors] == [
        f"{path}: cannot be read: Permission denied"
    ]
    assert trace_set.definitions == {}


def test_a_folder_that_cannot_be_listed_is_named(dataset, monkeypatch):
    import os

    folder = str(dataset / "traces" / "gemm")
    real = os.scandir

    def scandir(path):
        if path == folder:
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    _, errors = collect(dataset)
    assert errors == [str(dataset / "traces")]
    trace_set = load(dataset)
    with pytest.raises(DataError, match="cannot be read"):
        trace_set.traces  # noqa: B018
