"""Files that are not what they seem, and threads and processes that meet over them."""

from __future__ import annotations

import json
import threading
import time

import pytest

from fib_tests.threads import at_once
from flashinfer_bench.data import TraceSet, layout
from flashinfer_bench.data import trace_set as trace_set_module

NAME = "gemm_n8_k4"
FILE = f"traces/gemm/{NAME}.jsonl"


def uuids(root):
    return [trace.workload.uuid for trace in TraceSet.from_path(root).traces[NAME]]


# ---------------------------------------------------------------------------- one JSON document


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


# ------------------------------------------------------------------------------ threads, processes


def test_backups_at_the_same_moment_do_not_meet(dataset, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda _: "20260101_000000")
    trace_set = TraceSet.from_path(dataset)
    at_once(6, trace_set.backup_traces)
    backups = [path for path in dataset.iterdir() if path.name.startswith("traces_backup_")]
    assert len(backups) == 6
    wanted = (dataset / FILE).read_bytes()
    assert all((path / "gemm" / f"{NAME}.jsonl").read_bytes() == wanted for path in backups)


def test_two_threads_that_ask_first_get_the_same_traces(dataset, monkeypatch):
    """Else the later one would put its own reading in place of what was added since."""
    real, reads = trace_set_module.load_traces, []

    def slow(root, problems):
        reads.append(root)
        found = real(root, problems)
        time.sleep(0.1)
        return found

    monkeypatch.setattr(trace_set_module, "load_traces", slow)
    trace_set = TraceSet.from_path(dataset)
    seen = at_once(4, lambda: trace_set.traces)
    assert len(reads) == 1
    assert all(traces is trace_set.traces for traces in seen)


def test_traces_added_while_another_thread_reads_are_there_once(dataset, make, monkeypatch):
    real, began = trace_set_module.load_traces, threading.Event()

    def slow(root, problems):
        found = real(root, problems)
        began.set()
        time.sleep(0.1)
        return found

    monkeypatch.setattr(trace_set_module, "load_traces", slow)
    trace_set = TraceSet.from_path(dataset)
    reader = threading.Thread(target=lambda: trace_set.traces)
    reader.start()
    began.wait()
    trace_set.add_traces([make.trace(uuid="meanwhile")])
    reader.join()
    in_memory = [trace.workload.uuid for trace in trace_set.traces[NAME]]
    assert in_memory.count("meanwhile") == 1
    assert in_memory == uuids(dataset)


# ----------------------------------------------------------------------------- odd folders


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
