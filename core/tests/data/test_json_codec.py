"""Files of one record and of many: written, read, refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data import (
    Trace,
    append_jsonl_file,
    append_jsonl_line,
    append_jsonl_lines,
    load_json_file,
    load_jsonl_file,
    save_json_file,
)
from flashinfer_bench.data.jsonl import is_torn, read_records


def test_a_record_comes_back(make, tmp_path):
    for record in (make.definition(), make.solution(), make.trace(), make.trace(None)):
        path = tmp_path / "new" / "folder" / "record.json"
        save_json_file(record, path)
        assert load_json_file(type(record), path) == record


def test_appending(make, tmp_path):
    path = tmp_path / "t.jsonl"
    append_jsonl_file([make.trace(uuid="a")], path)
    append_jsonl_lines(path, [make.trace(uuid="b"), make.trace(uuid="c")])
    append_jsonl_line(path, make.trace(uuid="d"))
    append_jsonl_file([], path)
    assert [trace.workload.uuid for trace in load_jsonl_file(Trace, path)] == ["a", "b", "c", "d"]


def records_of(path, content):
    path.write_bytes(content)
    return list(read_records(path))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.jsonl"


@pytest.mark.parametrize("record", [{"a": [1, {"b": None}], "é": "ü"}, [{"a": 1}, {"b": 2}]])
def test_a_pretty_printed_file_is_one_document_or_a_list_of_them(path, record):
    found = records_of(path, json.dumps(record, indent=2).encode())
    assert {line for line, _ in found} == {None}
    documents = [json.loads(text) for _, text in found]
    assert documents == (record if isinstance(record, list) else [record])


def test_a_broken_pretty_printed_record_is_refused_by_line(path):
    found = records_of(path, b'{\n  "a": 1,\n}\n')
    assert [line for line, _ in found] == [1, 2, 3]


@pytest.mark.parametrize("content", [b'{"a": 1}\n{"b": 2}\n', b'[\n{"a": 1},\n{"b": 2}\n]\n'])
def test_a_file_is_opened_once(path, content, monkeypatch):
    """It may be replaced meanwhile, and then a part of each would be read."""
    path.write_bytes(content)
    opened, original = [], Path.open
    monkeypatch.setattr(Path, "open", lambda *args: opened.append(args) or original(*args))
    assert [json.loads(text) for _, text in read_records(path)] == [{"a": 1}, {"b": 2}]
    assert opened == [(path, "rb")]


TORN = (b'{"a": tr', b'{"a": "\\u00', b'{"a": "\xf0\x9f\x98', b'{"a": 1\0\0', b"\0\0", b' {"a"')
WHOLE = (b"  ", b"{not json", b"{]", b'{"a": 1}}', b"text", b"[1, 2", b'"x', b"12", b'{"a" 1')


@pytest.mark.parametrize("tail", TORN + WHOLE)
def test_only_beginnings_of_an_object_are_torn(tail):
    assert is_torn(tail) is (tail in TORN)


def test_a_torn_line_is_left_out_with_a_warning(path, caplog):
    with caplog.at_level(logging.WARNING):
        assert records_of(path, b'{"a":1}\n{"b": "tw') == [(1, b'{"a":1}')]
    assert "unfinished last line" in caplog.text
    assert str(path) in caplog.text


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), _JSON, max_size=4), st.booleans(), st.data())
def test_every_proper_beginning_of_an_object_is_torn(record, ascii_only, data):
    text = json.dumps(record, ensure_ascii=ascii_only).encode("utf-8", "replace")
    assert not is_torn(text)
    cut = data.draw(st.integers(1, len(text) - 1))
    assert is_torn(text[:cut])
