"""Files of one record and of many: written, read, refused."""

from __future__ import annotations

import json
import math

import pytest

from flashinfer_bench import data
from flashinfer_bench.data import (
    Definition,
    Solution,
    Trace,
    append_jsonl_file,
    append_jsonl_line,
    append_jsonl_lines,
    from_json,
    load_json_file,
    load_jsonl_file,
    save_json_file,
    save_jsonl_file,
    to_json,
)
from flashinfer_bench.data.json_codec import decode, parse_json
from flashinfer_bench.errors import DataError, StorageError

# ----------------------------------------------------------------------------------- single files


def test_a_record_comes_back(make, tmp_path):
    for record in (make.definition(), make.solution(), make.trace(), make.trace(None)):
        path = tmp_path / "new" / "folder" / "record.json"
        save_json_file(record, path)
        assert load_json_file(type(record), path) == record


def test_paths_may_be_text(make, tmp_path):
    path = str(tmp_path / "d.json")
    save_json_file(make.definition(), path)
    assert load_json_file(Definition, path) == make.definition()


def test_the_old_order_of_arguments(make, tmp_path):
    path = tmp_path / "d.json"
    save_json_file(make.definition(), path)
    assert load_json_file(path, Definition) == make.definition()
    save_jsonl_file([make.trace()], path)
    assert load_jsonl_file(str(path), Trace) == [make.trace()]


def test_two_classes_or_two_paths_are_a_mistake(tmp_path):
    with pytest.raises(TypeError, match="one class and one path"):
        load_json_file(Definition, Definition)
    with pytest.raises(TypeError, match="one class and one path"):
        load_jsonl_file(tmp_path, tmp_path)


def test_what_is_none_is_not_written(make):
    text = to_json(make.trace())
    assert "samples_ms" not in text
    assert "provenance" not in text
    assert "null" not in to_json(make.solution())


def test_a_scalar_keeps_its_missing_shape(make):
    inputs = {"scale": {"shape": None, "dtype": "float32"}}
    definition = make.definition(inputs=inputs)
    written = json.loads(to_json(definition))
    assert written["inputs"]["scale"] == {"shape": None, "dtype": "float32"}
    assert from_json(to_json(definition), Definition) == definition


def test_axes_keep_their_type(make):
    written = json.loads(to_json(make.definition()))
    assert written["axes"]["M"] == {"type": "var"}


def test_a_workload_trace_says_that_there_is_no_run(make):
    written = json.loads(to_json(make.trace(None)))
    assert list(written) == ["definition", "workload", "solution", "evaluation"]
    assert written["solution"] is written["evaluation"] is None


def test_values_inside_free_fields_may_be_null(make):
    record = make.trace_record()
    record["evaluation"]["correctness"]["extra"] = {"note": None, "list": [None]}
    trace = Trace(**record)
    assert from_json(to_json(trace), Trace) == trace


def test_indentation(make):
    assert to_json(make.trace(), indent=None).count("\n") == 0
    assert to_json(make.trace()).startswith('{\n  "definition"')


def test_text_and_bytes_are_read(make):
    text = to_json(make.solution())
    assert from_json(text, Solution) == from_json(text.encode(), Solution) == make.solution()


def test_files_are_utf_8(make, tmp_path):
    solution = make.solution(description="schneller für große Größen 🚀")
    save_json_file(solution, tmp_path / "s.json")
    assert "🚀" in (tmp_path / "s.json").read_text(encoding="utf-8")
    assert load_json_file(Solution, tmp_path / "s.json") == solution


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_json_file(Definition, tmp_path / "none.json")
    with pytest.raises(FileNotFoundError):
        load_jsonl_file(Trace, tmp_path / "none.jsonl")


def test_a_syntax_error_has_file_and_line(tmp_path):
    path = tmp_path / "d.json"
    path.write_text('{\n  "name": "x",\n  "axes": {,\n}')
    with pytest.raises(DataError, match="not valid JSON") as caught:
        load_json_file(Definition, path)
    assert caught.value.path == path
    assert caught.value.line == 3
    assert "column 12" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        '{"name": "é"}'.encode("latin-1"),
        '{"name": "x"}'.encode("utf-16"),
        b"\0",
        b"{",
    ],
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


def test_huge_integers_are_refused(make):
    record = json.dumps(make.trace_record()).replace('"M": 2', '"M": ' + "9" * 5000)
    with pytest.raises(DataError):
        decode(Trace, record)
    with pytest.raises(DataError):
        parse_json("9" * 5000)


def test_a_wrong_field_has_file_and_field(make, tmp_path):
    path = tmp_path / "d.json"
    path.write_text(json.dumps(make.definition_record(op_type="")))
    with pytest.raises(DataError, match="at least 1 character") as caught:
        load_json_file(Definition, path)
    assert (caught.value.path, caught.value.line, caught.value.field) == (path, None, "op_type")


def test_old_records_are_read_from_files(make, tmp_path):
    record = make.definition_record(constraints=None)
    record["type"] = record.pop("op_type")
    (tmp_path / "d.json").write_text(json.dumps(record))
    assert load_json_file(Definition, tmp_path / "d.json").op_type == "gemm"


# ------------------------------------------------------------------------------------- JSON lines


def test_records_come_back(make, tmp_path):
    path = tmp_path / "t.jsonl"
    traces = [make.trace(uuid=str(index)) for index in range(5)] + [make.trace(None)]
    save_jsonl_file(traces, path)
    assert path.read_bytes().count(b"\n") == 6
    assert load_jsonl_file(Trace, path) == traces


def test_no_records(tmp_path):
    path = tmp_path / "t.jsonl"
    save_jsonl_file([], path)
    assert load_jsonl_file(Trace, path) == []


def test_saving_replaces(make, tmp_path):
    path = tmp_path / "t.jsonl"
    save_jsonl_file([make.trace(), make.trace()], path)
    save_jsonl_file([make.trace(None)], path)
    assert load_jsonl_file(Trace, path) == [make.trace(None)]


def test_appending(make, tmp_path):
    path = tmp_path / "t.jsonl"
    append_jsonl_file([make.trace(uuid="a")], path)
    append_jsonl_lines(path, [make.trace(uuid="b"), make.trace(uuid="c")])
    append_jsonl_line(path, make.trace(uuid="d"))
    append_jsonl_file([], path)
    assert [trace.workload.uuid for trace in load_jsonl_file(Trace, path)] == ["a", "b", "c", "d"]


def test_newlines_in_a_log_stay_in_the_line(make, tmp_path):
    path = tmp_path / "t.jsonl"
    trace = make.trace(log="one\ntwo\r\n\u2028three\x85")
    append_jsonl_file([trace, trace], path)
    assert load_jsonl_file(Trace, path) == [trace, trace]


def test_a_broken_line_has_its_number(make, tmp_path):
    path = tmp_path / "t.jsonl"
    good = to_json(make.trace(), indent=None)
    path.write_text(f"{good}\n\n{{bad}}\n{good}\n")
    with pytest.raises(DataError, match="not valid JSON") as caught:
        load_jsonl_file(Trace, path)
    assert (caught.value.path, caught.value.line) == (path, 3)


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


def test_saving_to_an_impossible_place(make, tmp_path):
    (tmp_path / "file").write_text("")
    for save in (
        lambda path: save_json_file(make.trace(), path),
        lambda path: save_jsonl_file([make.trace()], path),
        lambda path: append_jsonl_file([make.trace()], path),
    ):
        with pytest.raises(StorageError, match="cannot write") as caught:
            save(tmp_path / "file" / "t.jsonl")
        assert isinstance(caught.value, OSError)
        assert caught.value.errno


def test_every_owed_name_is_there():
    for name in data.__all__:
        assert getattr(data, name) is not None
    owed = (
        "AxisConst AxisVar AxisSpec TensorSpec DType Definition SourceFile BuildSpec "
        "SupportedLanguages SupportedBindings Solution RandomInput ScalarInput SafetensorsInput "
        "InputSpec Workload Correctness Performance Environment EvaluationStatus Evaluation Trace "
        "TraceSet TraceSetSummary SpeedupMetrics save_json_file load_json_file save_jsonl_file "
        "load_jsonl_file append_jsonl_file to_json from_json append_jsonl_line append_jsonl_lines"
    )
    assert set(owed.split()) <= set(data.__all__)
    assert sorted(data.__all__, key=str.lower) == sorted(set(data.__all__), key=str.lower)
