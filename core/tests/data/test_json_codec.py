"""Files of one record and of many: written, read, refused."""

from __future__ import annotations

import json
import math

import pytest

from flashinfer_bench.data import (
    Definition,
    Trace,
    append_jsonl_file,
    append_jsonl_line,
    append_jsonl_lines,
    load_json_file,
    load_jsonl_file,
    save_json_file,
    save_jsonl_file,
    to_json,
)
from flashinfer_bench.errors import DataError

# ----------------------------------------------------------------------------------- single files


def test_a_record_comes_back(make, tmp_path):
    for record in (make.definition(), make.solution(), make.trace(), make.trace(None)):
        path = tmp_path / "new" / "folder" / "record.json"
        save_json_file(record, path)
        assert load_json_file(type(record), path) == record


def test_the_old_order_of_arguments(make, tmp_path):
    path = tmp_path / "d.json"
    save_json_file(make.definition(), path)
    assert load_json_file(path, Definition) == make.definition()
    save_jsonl_file([make.trace()], path)
    assert load_jsonl_file(str(path), Trace) == [make.trace()]


def test_a_workload_trace_says_that_there_is_no_run(make):
    written = json.loads(to_json(make.trace(None)))
    assert list(written) == ["definition", "workload", "solution", "evaluation"]
    assert written["solution"] is written["evaluation"] is None


def test_a_syntax_error_has_file_and_line(tmp_path):
    path = tmp_path / "d.json"
    path.write_text('{\n  "name": "x",\n  "axes": {,\n}')
    with pytest.raises(DataError, match="not valid JSON") as caught:
        load_json_file(Definition, path)
    assert caught.value.path == path
    assert caught.value.line == 3
    assert "column 12" in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b'{"name": "\xe9"}', '{"name": "x"}'.encode("utf-16"), b"\0"]
)
def test_what_is_no_json_is_refused_with_the_file(tmp_path, content):
    path = tmp_path / "d.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match="not valid JSON") as caught:
        load_json_file(Definition, path)
    assert caught.value.path == path


def test_deeply_nested_json_is_refused(tmp_path):
    path = tmp_path / "d.json"
    path.write_text("[" * 100_000)
    with pytest.raises(DataError):
        load_json_file(Definition, path)
    path.write_text('{"a":' * 3000 + "1" + "}" * 3000)
    with pytest.raises(DataError):
        load_json_file(Trace, path)


# ------------------------------------------------------------------------------------- JSON lines


def test_appending(make, tmp_path):
    path = tmp_path / "t.jsonl"
    append_jsonl_file([make.trace(uuid="a")], path)
    append_jsonl_lines(path, [make.trace(uuid="b"), make.trace(uuid="c")])
    append_jsonl_line(path, make.trace(uuid="d"))
    append_jsonl_file([], path)
    assert [trace.workload.uuid for trace in load_jsonl_file(Trace, path)] == ["a", "b", "c", "d"]


def test_a_wrong_record_has_its_number_and_field(make, tmp_path):
    path = tmp_path / "t.jsonl"
    wrong = {**make.trace_record(), "definition": ""}
    path.write_text(to_json(make.trace(), indent=None) + "\n" + json.dumps(wrong) + "\n")
    with pytest.raises(DataError) as caught:
        load_jsonl_file(Trace, path)
    assert (caught.value.line, caught.value.field) == (2, "definition")


def test_bare_tokens_are_read_and_words_written(make, tmp_path):
    path = tmp_path / "t.jsonl"
    record = json.dumps(make.trace_record(status="INCORRECT_NUMERICAL", error=math.inf))
    assert "Infinity" in record
    path.write_text(record + "\n")
    [trace] = load_jsonl_file(Trace, path)
    assert trace.evaluation.correctness.max_absolute_error == math.inf
    save_jsonl_file([trace], path)
    assert '"Infinity"' in path.read_text()
    json.loads(path.read_text(), parse_constant=pytest.fail)
    assert load_jsonl_file(Trace, path) == [trace]
