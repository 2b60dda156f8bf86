"""Runs row by row: the same from the index as from memory, with logs on demand."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.run_source import Clock, read_details
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


def test_what_a_row_and_its_details_say(varied):
    for one in both(varied):
        rows = one.run_rows(NAME)
        timed, odd = (row for row in rows if row.interval_ms is not None)
        assert (timed.definition, timed.solution, timed.workload) == (NAME, "alice_v1", "w1")
        assert (timed.axes, timed.passed) == ({"M": 2}, True)
        assert (timed.interval_ms, timed.speedup_interval) == ((0.9, 7.0), (0.5, 3.0))
        assert (timed.sample_total, timed.dropped) == (4, 2)
        assert timed.clock == Clock("cpu", "cold", "rse", "beside")
        assert odd.clock == Clock("cpu", "", "rse", "beside")
        assert [row.hardware for row in rows].count("B200") == 1
        failed = next(row for row in rows if row.status == "TIMEOUT")
        assert failed.latency_ms is failed.max_absolute_error is failed.interval_ms is None
        _, counted, dropped, timing = read_details([timed])[0]
        assert (counted, dropped) == ((1.0, 0.9), (1.1, 7.0))
        assert timing["watched"] == {"cpu": {"load": [1, 2, 3]}}
    assert "not read yet" in repr(one)


@pytest.mark.parametrize("numbers", [[], [0], [4, 1], [0, 3, 5], [6]])
def test_the_details_of_some_of_the_runs(varied, numbers):
    plain, quick = ((one, one.run_rows(NAME)) for one in both(varied))
    details = read_details(plain[1])
    for _, rows in (plain, quick):
        assert read_details(rows[number] for number in numbers) == [details[n] for n in numbers]


def test_workloads_wherever_they_lie(varied, make, writer):
    record = {"definition": NAME, "workload": make.workload_record()}
    writer.lines("workloads/w.jsonl", record, record)
    plain, quick = both(varied)
    expected = [trace.workload.uuid for trace in plain.workloads[NAME]]
    assert len(expected) >= 3
    assert quick.workload_uuids(NAME) == plain.workload_uuids(NAME) == expected
    assert "not read yet" in repr(quick)


def test_a_file_that_was_rewritten_is_noticed_and_one_that_grew_is_not(varied, make, writer):
    rows = TraceSet.from_path(varied).run_rows(NAME)
    before = read_details(rows)
    path = varied / "traces/mixed.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(make.trace_record("alice_v1", log="new")) + "\n")
    assert read_details(rows) == before
    writer.lines("traces/mixed.jsonl", make.trace_record("alice_v1", log="other"))
    with pytest.raises(DataError, match="has changed"):
        read_details(rows)
    path.unlink()
    with pytest.raises(DataError, match="has changed"):
        read_details(rows)


@given(st.none() | st.integers() | st.dictionaries(st.text(max_size=3), st.integers()))
def test_a_clock_is_made_of_words_only(anything):
    assert Clock.of(anything, anything, anything) == Clock()


def in_memory(trace_set):
    return "not read yet" not in repr(trace_set)


def test_edits_in_memory_count(dataset):
    one = TraceSet.from_path(dataset)
    assert len(one.run_rows()) == 3
    one.traces[NAME].pop()
    assert len(one.run_rows()) == 2
    assert one.get_best_trace(NAME) is one.traces[NAME][1]


@pytest.mark.parametrize("asked", [False, True])
def test_added_traces_count(dataset, make, asked):
    one = TraceSet.from_path(dataset)
    if asked:
        one.run_rows()
    one.add_traces([make.trace("alice_v1", speedup=9.0)])
    assert not in_memory(one)
    assert one.get_best_trace(NAME).evaluation.performance.speedup_factor == 9.0
    assert len(one.run_rows()) == 4
    assert len(one.traces[NAME]) == 4
    one.add_traces([make.trace("alice_v1", speedup=10.0)])
    assert one.get_best_trace(NAME).evaluation.performance.speedup_factor == 10.0


def test_a_rewritten_file_is_asked_anew(dataset, make, writer):
    one = TraceSet.from_path(dataset)
    assert len(one.run_rows()) == 3
    writer.lines(f"traces/gemm/{NAME}.jsonl", make.trace_record("alice_v1", speedup=5.0))
    assert one.get_best_trace(NAME).evaluation.performance.speedup_factor == 5.0
    assert len(one.run_rows()) == 1


def test_a_set_with_an_index_can_be_copied_and_pickled(dataset):
    unread, one = TraceSet.from_path(dataset), TraceSet.from_path(dataset)
    assert pickle.loads(pickle.dumps(unread)).to_dict() == unread.to_dict()
    one.run_rows()
    for again in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert len(again.run_rows()) == len(one.run_rows())
        assert again.get_best_trace(NAME) == one.get_best_trace(NAME)
        assert again.to_dict() == TraceSet.from_path(dataset).to_dict()
