"""What changed in a dataset is seen, and nothing is decoded twice."""

from __future__ import annotations

import json
import os

import pytest

from flashinfer_bench.data import index as index_module
from flashinfer_bench.data.index import TraceIndex
from flashinfer_bench.data.storage import append_lines
from flashinfer_bench.data.trace_reader import TraceReader

NAME = "gemm_n8_k4"
FILE = f"traces/gemm/{NAME}.jsonl"


def total(root):
    return len(TraceIndex.open(root).rows(NAME))


def latencies(root, name=NAME):
    rows = TraceIndex.open(root).rows(name)
    return [row.latency_ms for row in rows if row.solution == "alice_v1" and row.passed]


def line(make, *args, **changes):
    return json.dumps(make.trace_record(*args, **changes)).encode() + b"\n"


@pytest.mark.parametrize("suffix", ["jsonl", "json"])
@pytest.mark.parametrize("settle_ns", [-1, 10**12], ids=["touched", "too young"])
def test_nothing_is_decoded_of_what_is_the_same(
    dataset, kept, decoded, make, writer, monkeypatch, suffix, settle_ns
):
    text = json.dumps([make.trace_record()], indent=2 if suffix == "json" else None)
    path = writer.text(f"traces/x.{suffix}", text)
    monkeypatch.setattr(index_module, "SETTLE_NS", settle_ns)
    before = TraceIndex.open(dataset)
    assert kept.exists()
    decoded.clear()
    monkeypatch.setattr(index_module, "_pack", None)  # nor are its rows written anew
    os.utime(path)
    after = TraceIndex.open(dataset)
    assert decoded == []
    assert len(after.rows(NAME)) == len(before.rows(NAME)) > 0


def test_a_document_that_changes_while_it_is_read_is_read_again(
    dataset, kept, make, writer, monkeypatch
):
    records = [make.trace_record(definition="other", latency_ms=value) for value in (0.5, 0.7)]
    old, new = (json.dumps([record], indent=2) for record in records)
    path = writer.text("traces/x.json", old)
    original = index_module.read_whole

    def meanwhile(file):
        found = original(file)
        path.write_text(new)
        return found

    monkeypatch.setattr(index_module, "read_whole", meanwhile)
    TraceIndex.open(dataset)
    monkeypatch.setattr(index_module, "read_whole", original)
    assert latencies(dataset, "other") == [0.7]


def test_only_what_was_appended_is_decoded(dataset, kept, decoded, make):
    assert total(dataset) == 3
    assert kept.exists()
    decoded.clear()
    append_lines(dataset / FILE, [line(make, latency_ms=0.1)])
    assert total(dataset) == 4
    assert len(decoded) == 1
    assert min(latencies(dataset)) == 0.1


def edited(path):
    """Return the content of a file, with one digit changed."""
    return path.read_bytes().replace(b'"latency_ms": 1.5', b'"latency_ms": 0.5')


@pytest.mark.parametrize("then", ["", "append", "put back the time"])
def test_an_edit_of_the_same_size_is_seen(dataset, kept, make, then):
    path = dataset / FILE
    total(dataset)
    before = path.stat()
    path.write_bytes(edited(path) + (line(make, uuid="w9") if then == "append" else b""))
    if then == "put back the time":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert min(latencies(dataset)) == 0.5


def test_a_change_within_the_same_tick_of_the_clock_is_seen(dataset, kept, monkeypatch):
    """The time stamps of a file that was just written prove nothing."""
    monkeypatch.setattr(index_module, "SETTLE_NS", 10**12)
    path = dataset / FILE
    total(dataset)
    assert kept.exists()
    with path.open("rb") as file:
        frozen = index_module._identity(file)
    monkeypatch.setattr(index_module, "_identity", lambda _: frozen)
    path.write_bytes(edited(path))
    assert min(latencies(dataset)) == 0.5


def test_a_file_that_changes_while_it_is_read_is_read_again(dataset, kept, monkeypatch):
    path, original = dataset / FILE, TraceReader.read_line

    def meanwhile(self, text):
        path.write_bytes(edited(path))
        return original(self, text)

    monkeypatch.setattr(TraceReader, "read_line", meanwhile)
    total(dataset)
    monkeypatch.setattr(TraceReader, "read_line", original)
    assert min(latencies(dataset)) == 0.5


def test_files_that_come_and_go(dataset, kept, make, writer):
    total(dataset)
    writer.lines("traces/more/x.jsonl", make.trace_record())
    assert total(dataset) == 4
    (dataset / FILE).unlink()
    assert total(dataset) == 1
    writer.lines(FILE, make.trace_record(), make.trace_record())
    assert total(dataset) == 3


def test_a_torn_line_is_told_each_time_and_read_once_it_is_whole(dataset, kept, make, caplog):
    path, record = dataset / FILE, line(make)
    with path.open("ab") as file:
        file.write(record[:40])
    for _ in range(2):
        caplog.clear()
        assert total(dataset) == 3
        assert "unfinished last line of 40 bytes" in caplog.text
    caplog.clear()
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    assert total(dataset) == 3
    assert "unfinished last line" not in caplog.text
    path.write_bytes(whole + record[40:])
    assert total(dataset) == 4


def test_a_broken_line_that_becomes_a_document(dataset, kept, make, writer):
    text = json.dumps(make.trace_record(), indent=2)
    half = text.index("\n", 40)
    writer.text("traces/x.json", text[:half])
    total(dataset)
    writer.text("traces/x.json", text)
    assert total(dataset) == 4
    assert not TraceIndex.open(dataset).errors
