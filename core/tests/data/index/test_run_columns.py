"""Runs column by column: the same from the index as from memory, with logs on demand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.run_source import Clock, RunDetails, RunRow, count_dropped
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
    records.append(make.trace_record("alice_v1"))
    records[-1]["evaluation"]["performance"] |= MEASURED
    records[-1]["evaluation"]["provenance"] = {
        "timer": "cpu",
        "stop_rule": "rse",
        "timing": {"cache": "cold", "reference": "beside", "watched": {"cpu": {"load": [1, 2, 3]}}},
    }
    odd = json.loads(json.dumps(records[-1]))  # a key of a later release: for the models to read
    odd["evaluation"]["provenance"]["of_later"] = {"timing": 1}
    odd["evaluation"]["provenance"]["timing"]["cache"] = ["no", "text"]
    records.append(odd)
    writer.lines("traces/mixed.jsonl", *records)
    writer.text("traces/list.json", json.dumps(records[:2], indent=1))
    return dataset


MEASURED = {
    "samples_ms": [1.0, 1.1, 0.9, 7.0],
    "interval_ms": [0.9, 7.0],
    "speedup_interval": [0.5, 3.0],
    "outliers": 1,
    "dropped": [[1, 2], [3, 9]],
}


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


def test_how_a_run_was_timed(varied):
    for one in both(varied):
        rows = [row for row in one.run_columns()[NAME].rows() if row.interval_ms is not None]
        assert [row.clock for row in rows] == [
            Clock("cpu", "cold", "rse", "beside"),
            Clock("cpu", "", "rse", "beside"),
        ]
        assert {row.interval_ms for row in rows} == {(0.9, 7.0)}
        assert {row.speedup_interval for row in rows} == {(0.5, 3.0)}
        assert {row.dropped for row in rows} == {2}


def test_the_details_of_how_it_was_timed(varied):
    for one in both(varied):
        columns = one.run_columns()[NAME]
        timed = [n for n, ends in enumerate(columns.interval_ms) if ends is not None]
        first, second = columns.details(timed)
        assert first.dropped == second.dropped == ((1, 2), (3, 9))
        assert first.timing["watched"] == second.timing["watched"] == {"cpu": {"load": [1, 2, 3]}}
        assert columns.details([0])[0].timing == {}


@pytest.mark.parametrize(
    ("rows", "count"),
    [(None, 0), ([], 0), ([(0, 2)], 2), ([(2, 9)], 3), ([(9, 12)], 0), ([(3, 1)], 0)],
)
def test_dropped_samples_are_counted(rows, count):
    assert count_dropped(rows, 5) == count


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=6), st.integers(0, 10))
def test_rows_of_dropped_samples_may_overlap(rows, samples):
    dropped = {n for first, end in rows for n in range(first, end) if n < samples}
    assert count_dropped(rows, samples) == len(dropped)


@given(st.none() | st.integers() | st.dictionaries(st.text(max_size=3), st.integers()))
def test_a_clock_is_made_of_words_only(anything):
    assert Clock.of(anything, anything, anything) == Clock()
