"""What changed in a dataset is seen, and nothing is decoded twice."""

from __future__ import annotations

import json
import os

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.index import StaleIndexError, TraceIndex
from flashinfer_bench.data.index.part import Identity
from flashinfer_bench.data.storage import append_lines

NAME = "gemm_n8_k4"
FILE = f"traces/gemm/{NAME}.jsonl"


def total(root):
    return TraceIndex.open(root).counts(NAME)[0]


def line(make, *args, **changes):
    return json.dumps(make.trace_record(*args, **changes)).encode() + b"\n"


def test_the_second_time_nothing_is_decoded(dataset, kept, decoded):
    assert total(dataset) == 3
    assert [name for name, _ in decoded] == [f"{NAME}.jsonl"] * 2
    assert kept.exists()
    decoded.clear()
    assert total(dataset) == 3
    assert decoded == []


def test_only_what_was_appended_is_decoded(dataset, kept, decoded, make):
    total(dataset)
    size = (dataset / FILE).stat().st_size
    decoded.clear()
    append_lines(dataset / FILE, [line(make, latency_ms=0.1)])
    assert total(dataset) == 4
    assert decoded == [(f"{NAME}.jsonl", size)]
    assert TraceIndex.open(dataset).runs(NAME).best_ms["alice_v1"] == {"w1": 0.1}


def test_many_small_appends(dataset, kept, make):
    for count in range(4, 30):
        append_lines(dataset / FILE, [line(make, uuid=f"w{count % 5}", latency_ms=1 / count)])
        assert total(dataset) == count
    index = TraceIndex.open(dataset)
    assert index.runs(NAME) == TraceSet.from_path(dataset).run_source.runs(NAME)
    assert index.runs(NAME).best_ms["alice_v1"]["w4"] == 1 / 29
    columns = index._by_name[NAME][0].columns()
    assert len(columns.heads) == len({head.identity for head in columns.heads})


def test_an_edit_of_the_same_size_before_an_append_is_seen(dataset, kept, make):
    """Only the whole content shows it: the beginning and the end are as they were."""
    total(dataset)
    path = dataset / FILE
    text = path.read_bytes()
    assert text.count(b'"latency_ms": 1.5') == 1
    edited = text.replace(b'"latency_ms": 1.5', b'"latency_ms": 0.5')
    path.write_bytes(edited + line(make, uuid="w9"))
    assert TraceIndex.open(dataset).runs(NAME).best_ms["alice_v1"]["w1"] == 0.5


@pytest.mark.parametrize("put_back", [False, True])
def test_an_edit_of_the_same_size_is_seen(dataset, kept, put_back):
    path = dataset / FILE
    total(dataset)
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"latency_ms": 1.5', b'"latency_ms": 0.5'))
    if put_back:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert TraceIndex.open(dataset).runs(NAME).best_ms["alice_v1"] == {"w1": 0.5}


def test_a_change_within_the_same_tick_of_the_clock_is_seen(dataset, kept, monkeypatch):
    """The time stamps of a file that was just written prove nothing."""
    monkeypatch.setattr("flashinfer_bench.data.index.part.SETTLE_NS", 10**12)
    path = dataset / FILE
    total(dataset)
    text, frozen = path.read_bytes(), Identity.of(path.stat())
    path.write_bytes(text.replace(b'"latency_ms": 1.5', b'"latency_ms": 0.5'))
    monkeypatch.setattr(Identity, "of", classmethod(lambda cls, info: frozen))
    assert TraceIndex.open(dataset).runs(NAME).best_ms["alice_v1"] == {"w1": 0.5}


def test_touching_a_file_decodes_nothing(dataset, kept, decoded):
    total(dataset)
    decoded.clear()
    os.utime(dataset / FILE)
    assert total(dataset) == 3
    assert decoded == []


def test_files_that_come_and_go(dataset, kept, make, writer):
    total(dataset)
    writer.lines("traces/more/x.jsonl", make.trace_record())
    assert total(dataset) == 4
    (dataset / FILE).unlink()
    assert total(dataset) == 1
    writer.lines(FILE, make.trace_record(), make.trace_record())
    assert total(dataset) == 3


def test_a_file_that_shrinks(dataset, kept):
    path = dataset / FILE
    total(dataset)
    path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n")
    assert total(dataset) == 1


def test_a_torn_line_is_told_each_time_and_read_once_it_is_whole(dataset, kept, make, caplog):
    path, record = dataset / FILE, line(make)
    with path.open("ab") as file:
        file.write(record[:40])
    for _ in range(2):
        caplog.clear()
        assert total(dataset) == 3
        assert "unfinished last line: 40 bytes" in caplog.text
    with path.open("ab") as file:
        file.write(record[40:])
    assert total(dataset) == 4


def test_a_last_line_without_its_newline(dataset, kept, make):
    path, record = dataset / FILE, line(make)
    with path.open("ab") as file:
        file.write(record[:-1])
    assert total(dataset) == 4
    append_lines(path, [record])
    assert total(dataset) == 5


def test_a_document_that_becomes_lines(dataset, kept, make, writer):
    writer.text("traces/x.json", json.dumps(make.trace_record(), indent=2))
    assert total(dataset) == 4
    append_lines(dataset / "traces/x.json", [line(make)])
    assert total(dataset) == 5


def test_a_broken_line_that_becomes_a_document(dataset, kept, make, writer):
    text = json.dumps(make.trace_record(), indent=2)
    half = text.index("\n", 40)
    writer.text("traces/x.json", text[:half])
    total(dataset)
    writer.text("traces/x.json", text)
    assert total(dataset) == 4
    assert not TraceIndex.open(dataset).has_bad_lines()


def test_a_very_long_line(dataset, kept, make, writer):
    records = [make.trace_record(log="x" * size) for size in (1 << 18, 3 << 18, 10, 1 << 19)]
    writer.lines("traces/long.jsonl", *records)
    index = TraceIndex.open(dataset)
    assert index.counts(NAME)[0] == 7
    logs = [trace.evaluation.log for trace in index.filtered(NAME, 1, 1)]
    assert [len(log) for log in logs[2:]] == [1 << 18, 3 << 18, 10, 1 << 19]


def test_offsets_are_right_at_every_edge_of_a_block(dataset, kept, make, writer, monkeypatch):
    monkeypatch.setattr("flashinfer_bench.data.index.scan._BLOCK", 1000)
    writer.lines("traces/z.jsonl", *[make.trace_record(log="é" * n) for n in range(200)])
    traces = TraceIndex.open(dataset).filtered(NAME, 1, 1)
    assert [trace.evaluation.log for trace in traces[2:]] == ["é" * n for n in range(200)]


def test_a_file_that_grew_still_gives_its_traces(dataset, kept, make):
    index = TraceIndex.open(dataset)
    append_lines(dataset / FILE, [line(make, speedup=99.0)])
    assert index.best(NAME, None, 1, 1).evaluation.performance.speedup_factor == 2.0


def test_a_file_that_was_rewritten_is_stale(dataset, kept, make, writer):
    index = TraceIndex.open(dataset)
    writer.lines(FILE, make.trace_record(uuid="other", speedup=5.0))
    with pytest.raises(StaleIndexError, match="was changed"):
        index.best(NAME, None, 1, 1)
    (dataset / FILE).unlink()
    with pytest.raises(StaleIndexError):
        index.filtered(NAME, 1, 1)


def test_broken_lines_are_named_again(dataset, kept, writer):
    writer.text("traces/x.jsonl", '{"definition": 3}\n\nnonsense\n')
    for _ in range(2):
        errors = TraceIndex.open(dataset).errors()
        assert [(one.path.name, one.line) for one in errors] == [("x.jsonl", 1), ("x.jsonl", 3)]
    index = TraceIndex.open(dataset)
    (dataset / "traces/x.jsonl").write_text("{}\n")
    with pytest.raises(StaleIndexError):
        index.errors()
