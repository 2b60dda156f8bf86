"""Runs column by column: the same from the index as from memory, with logs on demand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.run_source import Clock, RunRow
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
        for field in RunRow.__struct_fields__:
            assert len(getattr(columns, field)) == len(columns) > 0
    assert "not read yet" in repr(quick)


@pytest.mark.parametrize("numbers", [[], [0], [1, 4], [0, 3, 5], [6]])
def test_the_details_of_some_of_the_runs(varied, numbers):
    for one in both(varied):
        columns = one.run_columns()[NAME]
        details = columns.details(range(len(columns)))
        assert columns.details(numbers) == [details[number] for number in numbers]


def test_workloads_wherever_they_lie(varied, make, writer):
    record = {"definition": NAME, "workload": make.workload_record()}
    writer.lines("workloads/w.jsonl", record, record)
    plain, quick = both(varied)
    expected = [trace.workload.uuid for trace in plain.workloads[NAME]]
    assert len(expected) >= 3
    assert quick.workload_uuids(NAME) == plain.workload_uuids(NAME) == expected
    assert "not read yet" in repr(quick)


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


def test_the_details_of_how_it_was_timed(varied):
    for one in both(varied):
        columns = one.run_columns()[NAME]
        timed = [n for n, ends in enumerate(columns.interval_ms) if ends is not None]
        first, second = columns.details(timed)
        assert first.dropped == second.dropped == ((1, 2), (3, 9))
        assert first.timing["watched"] == second.timing["watched"] == {"cpu": {"load": [1, 2, 3]}}
        assert columns.details([0])[0].timing == {}


@given(st.none() | st.integers() | st.dictionaries(st.text(max_size=3), st.integers()))
def test_a_clock_is_made_of_words_only(anything):
    assert Clock.of(anything, anything, anything) == Clock()
