"""Reading dataset folders: layouts of all releases, broken files, duplicates."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from queue import SimpleQueue

import pytest

from fib_tests.threads import at_once
from flashinfer_bench.data import TraceSet, layout
from flashinfer_bench.data import trace_set as trace_set_module
from flashinfer_bench.data.loader import load_definition
from flashinfer_bench.errors import DataError, DatasetNotFoundError, DuplicateNameError

NAME = "gemm_n8_k4"


load = TraceSet.from_path


def collect(root):
    return TraceSet.from_path(root, on_error="collect")


def test_no_folder_is_no_dataset(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=r"none does not exist") as caught:
        load(tmp_path / "none")
    assert isinstance(caught.value, FileNotFoundError)
    assert not (tmp_path / "none").exists()


def test_the_default_is_the_dataset_of_the_environment(dataset, monkeypatch):
    monkeypatch.setenv("FIB_DATASET_PATH", str(dataset))
    assert TraceSet.from_path().root == dataset


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
    trace_set = collect(dataset)
    errors = sorted(error.where for error in trace_set.load_errors)
    assert errors == sorted([*places.values(), second])
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
    with pytest.raises(DuplicateNameError, match="another solution is named 'alice_v1'") as caught:
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


@pytest.mark.parametrize(
    ("place", "named"), [(f"definitions/gemm/{NAME}.json",) * 2, ("traces/gemm", "traces")]
)
def test_what_cannot_be_read_is_named(dataset, monkeypatch, place, named):
    def refusing(real):
        def read(path):
            if str(path) == str(dataset / place):
                raise PermissionError(13, "Permission denied")
            return real(path)

        return read

    monkeypatch.setattr(Path, "read_bytes", refusing(Path.read_bytes))
    monkeypatch.setattr(os, "scandir", refusing(os.scandir))
    (error,) = collect(dataset).load_errors
    assert str(error).startswith(f"{dataset / named}: ")
    assert "cannot be read" in str(error)
    assert "Permission denied" in str(error)
    with pytest.raises(DataError, match="cannot be read"):
        load(dataset).traces  # noqa: B018


# ------------------------------------------------------------------------------ files, threads


FILE = f"traces/gemm/{NAME}.jsonl"


def uuids(root):
    return [trace.workload.uuid for trace in TraceSet.from_path(root).traces[NAME]]


@pytest.mark.parametrize(
    "spelled",
    [
        lambda records: json.dumps(records),
        lambda records: json.dumps(records) + "\n",
        lambda records: json.dumps(records, indent=2) + "\n",
        lambda records: json.dumps(records[0], indent=2),
    ],
)
def test_adding_to_a_file_that_is_one_document(dataset, make, spelled):
    file = dataset / FILE
    records = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text(spelled(records))
    before = uuids(dataset)
    TraceSet.from_path(dataset).add_traces([make.trace(uuid="new")])
    assert uuids(dataset) == [*before, "new"]
    assert len(file.read_text().splitlines()) == len(before) + 1


def test_backups_at_the_same_moment_do_not_meet(dataset, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda _: "20260101_000000")
    trace_set = TraceSet.from_path(dataset)
    at_once(6, trace_set.backup_traces)
    backups = [path for path in dataset.iterdir() if path.name.startswith("traces_backup_")]
    assert len(backups) == 6
    wanted = (dataset / FILE).read_bytes()
    assert all((path / "gemm" / f"{NAME}.jsonl").read_bytes() == wanted for path in backups)


@pytest.fixture
def reads(monkeypatch):
    """Each reading of traces, which takes its time."""
    real, found = trace_set_module.load_traces, SimpleQueue()

    def slow(root, problems):
        traces = real(root, problems)
        found.put(root)
        time.sleep(0.1)
        return traces

    monkeypatch.setattr(trace_set_module, "load_traces", slow)
    return found


def test_two_threads_that_ask_first_get_the_same_traces(dataset, reads):
    """Else the later one would put its own reading in place of what was added since."""
    trace_set = TraceSet.from_path(dataset)
    seen = at_once(4, lambda: trace_set.traces)
    assert reads.qsize() == 1
    assert all(traces is trace_set.traces for traces in seen)


def test_traces_added_while_another_thread_reads_are_there_once(dataset, make, reads):
    trace_set = TraceSet.from_path(dataset)
    reader = threading.Thread(target=lambda: trace_set.traces)
    reader.start()
    reads.get()
    trace_set.add_traces([make.trace(uuid="meanwhile")])
    reader.join()
    in_memory = [trace.workload.uuid for trace in trace_set.traces[NAME]]
    assert in_memory.count("meanwhile") == 1
    assert in_memory == uuids(dataset)


@pytest.mark.parametrize("ask", [TraceSet.run_rows, lambda loaded: loaded.traces])
def test_a_file_deleted_between_its_listing_and_its_reading(dataset, monkeypatch, ask):
    gone = dataset / "traces/gemm/gone.jsonl"
    gone.write_bytes((dataset / FILE).read_bytes())
    original = layout.files

    def listing(folder, *suffixes, **options):
        found = original(folder, *suffixes, **options)
        gone.unlink(missing_ok=True)
        return found

    loaded = TraceSet.from_path(dataset)
    monkeypatch.setattr(layout, "files", listing)
    ask(loaded)
    assert len(loaded.run_rows()) == 3
