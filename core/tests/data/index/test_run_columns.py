"""Runs column by column: the same from the index as from memory, with logs on demand."""

from __future__ import annotations

import json

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.run_source import RunDetails, RunRow
from flashinfer_bench.errors import DataError

NAME = "gemm_n8_k4"


@pytest.fixture
def varied(dataset, make, writer):
    """Further files: of two definitions, with logs and samples, in old spelling and in one list."""
    old = make.trace_record("alice_v1")
    old["evaluation"]["log_file"] = "of old"
    old["evaluation"]["environment"] = {"device": "B200"}
    del old["evaluation"]["log"]
    records = [
        make.trace_record("alice_v1", definition="other", log="another"),
        make.trace_record("alice_v1", log='é "solution" \\'),
        {key: old[key] for key in ("definition", "workload")},
        old,
        make.trace_record("alice_v1", status="TIMEOUT", log="Traceback\n"),
    ]
    records[1]["evaluation"]["performance"]["samples_ms"] = [1, 2.5]
    writer.lines("traces/mixed.jsonl", *records)
    writer.text("traces/list.json", json.dumps(records[:2], indent=1))
    return dataset


def both(root):
    plain, quick = TraceSet.from_path(root), TraceSet.from_path(root)
    plain.traces  # noqa: B018 - from now on its answers come from memory
    return plain, quick


def test_the_columns_are_those_of_the_traces(varied):
    plain, quick = both(varied)
    assert list(quick.run_columns()) == list(plain.run_columns())
    for name, columns in quick.run_columns().items():
        expected = plain.run_columns()[name]
        assert list(columns.rows()) == list(expected.rows())
        assert list(columns.sample_counts) == list(expected.sample_counts)
        everything = range(len(columns))
        assert columns.details(everything) == expected.details(everything)
        for field in RunRow._fields:
            assert len(getattr(columns, field)) == len(columns) > 0
    assert "not read yet" in repr(quick)


def test_details_are_those_of_the_traces(varied):
    plain, quick = both(varied)
    columns = quick.run_columns(NAME)[NAME]
    runs = plain.traces[NAME]
    found = columns.details(range(len(columns)))
    assert [one.log for one in found] == [trace.evaluation.log for trace in runs]
    assert RunDetails('é "solution" \\', (1.0, 2.5)) in found
    assert "log file: of old" in [one.log for one in found]
    assert [len(one.samples_ms) for one in found] == list(columns.sample_counts)


@pytest.mark.parametrize("numbers", [[], [0], [1, 4], [0, 3, 5], [6]])
def test_some_of_the_runs(varied, numbers):
    for one in both(varied):
        columns = one.run_columns()[NAME]
        rows, details = list(columns.rows()), columns.details(range(len(columns)))
        some = columns.take(numbers)
        assert len(some) == len(numbers)
        assert list(some.rows()) == [rows[number] for number in numbers]
        assert some.details(range(len(some))) == [details[number] for number in numbers]
        assert columns.details(numbers) == [details[number] for number in numbers]


def test_a_definition_without_runs(varied):
    for one in both(varied):
        assert one.run_columns("unknown") == {}
        assert list(one.run_rows("unknown")) == []
        assert one.workload_uuids("unknown") == []


def test_workloads_wherever_they_lie(varied, make, writer):
    record = {"definition": NAME, "workload": make.workload_record()}
    writer.lines("workloads/w.jsonl", record, record)
    plain, quick = both(varied)
    expected = [trace.workload.uuid for trace in plain.workloads[NAME]]
    assert len(expected) >= 3
    assert quick.workload_uuids(NAME) == plain.workload_uuids(NAME) == expected
    assert "not read yet" in repr(quick)


def test_the_kept_index_knows_all_that_the_new_one_knows(varied, kept):
    new = TraceSet.from_path(varied).run_columns()
    assert kept.exists()
    for name, columns in TraceSet.from_path(varied).run_columns().items():
        assert list(columns.rows()) == list(new[name].rows())
        assert list(columns.sample_counts) == list(new[name].sample_counts)
        everything = range(len(columns))
        assert columns.details(everything) == new[name].details(everything)


def test_a_file_that_was_rewritten_is_noticed_and_one_that_grew_is_not(varied, make, writer):
    columns = TraceSet.from_path(varied).run_columns()[NAME]
    before = columns.details(range(len(columns)))
    path = varied / "traces/mixed.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(make.trace_record("alice_v1", log="new")) + "\n")
    assert columns.details(range(len(columns))) == before
    writer.lines("traces/mixed.jsonl", make.trace_record("alice_v1", log="other"))
    with pytest.raises(DataError, match="was changed"):
        columns.details(range(len(columns)))
