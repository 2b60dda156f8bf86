"""Files that are not what they seem, and threads and processes that meet over them."""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import time
from pathlib import Path

import pytest

from flashinfer_bench.data import Definition, TraceSet, layout, load_json_file
from flashinfer_bench.data import read_safetensors_header as read_header
from flashinfer_bench.data import trace_set as trace_set_module
from flashinfer_bench.data.jsonl import read_whole
from flashinfer_bench.data.storage import append_lines
from flashinfer_bench.errors import BlobError, DataError, StorageError

sys.path.insert(0, str(Path(__file__).parent))
from damage import deepen

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
    ],
)
def test_adding_to_a_file_that_is_a_list(dataset, make, spelled):
    file = dataset / FILE
    records = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text(spelled(records))
    before = uuids(dataset)
    TraceSet.from_path(dataset).add_traces([make.trace(uuid="new")])
    assert uuids(dataset) == [*before, "new"]
    assert len(file.read_text().splitlines()) == len(before) + 1


def test_adding_to_a_file_that_is_one_indented_record(dataset, make):
    file = dataset / FILE
    record = json.loads(file.read_text().splitlines()[0])
    file.write_text(json.dumps(record, indent=2))
    TraceSet.from_path(dataset).add_traces([make.trace(uuid="new")])
    assert uuids(dataset) == [record["workload"]["uuid"], "new"]


@pytest.mark.parametrize(
    "text", ["", "\n\n", '{"a": 1}', '{"a": 1}\n{"b": 2}\n', '{"a": 1', "junk"]
)
def test_files_of_lines_are_left_alone(tmp_path, text):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    assert read_whole(path) is None


def test_a_very_long_unfinished_line(tmp_path):
    path = tmp_path / "x.jsonl"
    complete, torn = b'{"a": 1}\n', b'{"log": "' + b"x" * 300_000
    path.write_bytes(complete + torn)
    append_lines(path, [b'{"b": 2}\n'])
    assert path.read_bytes() == complete + b'{"b": 2}\n'
    assert (tmp_path / "x.jsonl.torn").read_bytes() == torn + b"\n"


# --------------------------------------------------------------------------------------- encoding


def test_a_byte_order_mark(dataset, writer, make):
    path = dataset / "definitions/gemm/marked.json"
    text = json.dumps(make.definition_record("marked"))
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert load_json_file(Definition, path).name == "marked"
    assert "marked" in TraceSet.from_path(dataset).definitions


def test_a_record_that_is_nested_too_deeply_is_not_repeated_in_the_message(dataset, make):
    record = make.definition_record("deep")
    text = json.dumps({**record, "note": 0}).replace('"note": 0', f'"note": {"[" * 300}{"]" * 300}')
    (dataset / "definitions/gemm/deep.json").write_text(text)
    with pytest.raises(DataError, match="recursion limit") as caught:
        TraceSet.from_path(dataset)
    assert "op_type" not in caught.value.message


# ------------------------------------------------------------------------------------------ blobs


def test_a_named_pipe_is_no_tensor_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BlobError, match="not a regular file"):
        read_header(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("header", "data", "problem"),
    [
        ({"a": ("F32", [1], [0, 4]), "b": ("F32", [1], [0, 4])}, 4, "begins at byte 0"),
        ({"a": ("F32", [1], [4, 8])}, 8, "begins at byte 4"),
        ({"a": ("F32", [1], [0, 4])}, 8, "4 bytes belong to no tensor"),
        ({"a": ("F32", [0, 10**30], [0, 0])}, 0, "shape and offsets"),
    ],
)
def test_headers_that_the_library_refuses_too(tmp_path, header, data, problem):
    keys = ("dtype", "shape", "data_offsets")
    record = {key: dict(zip(keys, value, strict=True)) for key, value in header.items()}
    write_blob(tmp_path / "x.safetensors", record, data)
    with pytest.raises(BlobError, match=problem):
        read_header(tmp_path / "x.safetensors")


@pytest.mark.parametrize("metadata", [5, {"a": 1}, ["x"], None])
def test_metadata_is_text(tmp_path, metadata):
    write_blob(tmp_path / "x.safetensors", {"__metadata__": metadata}, 0)
    with pytest.raises(BlobError, match="__metadata__"):
        read_header(tmp_path / "x.safetensors")


def write_blob(path, header, data_bytes):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * data_bytes)


def test_long_names_still_make_a_file_name(tmp_path):
    path = layout.blob_file(tmp_path, "gemm", "n" * 170, "u" * 170)
    assert len(path.name.encode()) < 255
    other = layout.blob_file(tmp_path, "gemm", "n" * 170, "u" * 171)
    assert path != other


# ------------------------------------------------------------------------------ threads, processes


def test_backups_at_the_same_moment_do_not_meet(dataset, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda _: "20260101_000000")
    trace_set = TraceSet.from_path(dataset)
    start = threading.Barrier(6)

    def back_up():
        start.wait()
        trace_set.backup_traces()

    threads = [threading.Thread(target=back_up) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    backups = [path for path in dataset.iterdir() if path.name.startswith("traces_backup_")]
    assert len(backups) == 6
    wanted = (dataset / FILE).read_bytes()
    assert all((path / "gemm" / f"{NAME}.jsonl").read_bytes() == wanted for path in backups)


def test_a_backup_that_was_made_by_another_process_is_not_removed(dataset, monkeypatch):
    """The name is free when it is looked at and taken when it is made."""
    monkeypatch.setattr(time, "strftime", lambda _: "20260101_000000")
    theirs = dataset / "traces_backup_20260101_000000"
    theirs.mkdir()
    (theirs / "precious").touch()
    TraceSet.from_path(dataset).backup_traces()
    assert [path.name for path in theirs.iterdir()] == ["precious"]
    assert (dataset / "traces_backup_20260101_000000_2" / "gemm").is_dir()


def test_a_backup_where_no_folder_can_be_made(dataset, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda _: "x" * 300)
    with pytest.raises(StorageError, match="cannot be made"):
        TraceSet.from_path(dataset).backup_traces()


def test_two_threads_that_ask_first_get_the_same_traces(dataset, monkeypatch):
    """Else the later one would put its own reading in place of what was added since."""
    real, reads = trace_set_module.load_traces, []

    def slow(root, problems):
        reads.append(root)
        found = real(root, problems)
        time.sleep(0.1)
        return found

    monkeypatch.setattr(trace_set_module, "load_traces", slow)
    trace_set, seen = TraceSet.from_path(dataset), []
    threads = [threading.Thread(target=lambda: seen.append(trace_set.traces)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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


def test_a_folder_too_deep_to_read_costs_itself_alone(dataset):
    deepen(dataset / "traces")
    with pytest.raises(DataError, match="cannot be read: File name too long"):
        TraceSet.from_path(dataset).summary()
    loaded = TraceSet.from_path(dataset, on_error="collect")
    assert loaded.summary().total == 3
    assert [error.message for error in loaded.load_errors] == ["cannot be read: File name too long"]


def test_a_link_to_itself_costs_itself_alone(dataset):
    (dataset / "definitions/round.json").symlink_to("round.json")
    (dataset / "traces/round").symlink_to("round")
    assert TraceSet.from_path(dataset).summary().total == 3


@pytest.mark.parametrize("ask", [TraceSet.summary, lambda loaded: loaded.traces])
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
    assert loaded.summary().total == 3


def test_a_definition_deleted_between_its_listing_and_its_reading(dataset, monkeypatch, caplog):
    gone = dataset / "definitions/zz.json"
    gone.write_text("{}")
    original = layout.files

    def listing(folder, *suffixes, **options):
        found = original(folder, *suffixes, **options)
        gone.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(layout, "files", listing)
    assert list(TraceSet.from_path(dataset).definitions) == [NAME]
    assert "deleted meanwhile" in caplog.text
