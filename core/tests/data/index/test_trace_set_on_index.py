"""A TraceSet answers from the index until its traces are in memory, and keeps both in step."""

from __future__ import annotations

import copy
import os
import pickle

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import DataError

NAME = "gemm_n8_k4"


def in_memory(trace_set):
    return "not read yet" not in repr(trace_set)


def test_questions_read_no_traces(dataset):
    one = TraceSet.from_path(dataset)
    assert one.summary().total == 3
    assert one.get_best_trace(NAME).solution == "alice_v1"
    assert len(one.filter_traces(NAME)) == 2
    assert one.get_solution_score("alice_v1").avg_speedup == 0.0
    assert one.get_author_score("alice").avg_speedup == 0.0
    assert [name for name, _ in one.rank_authors()] == ["alice"]
    assert one.load_errors == []
    assert len(list(one.run_rows())) == 3
    assert not in_memory(one)


def test_edits_in_memory_count(dataset):
    one = TraceSet.from_path(dataset)
    assert one.summary().total == 3
    one.traces[NAME].pop()
    assert one.summary().total == 2
    assert one.get_solution_score("alice_v1").avg_speedup == 2.0
    assert one.get_best_trace(NAME) is one.traces[NAME][1]


def test_workloads_that_were_looked_at_bring_the_traces_with_them(dataset):
    one = TraceSet.from_path(dataset)
    one.workloads.clear()
    assert in_memory(one)
    assert one.summary().total == 3


@pytest.mark.parametrize("asked", [False, True])
def test_added_traces_count(dataset, make, asked):
    one = TraceSet.from_path(dataset)
    if asked:
        one.summary()
    one.add_traces([make.trace("alice_v1", speedup=9.0)])
    assert not in_memory(one)
    assert one.get_best_trace(NAME).evaluation.performance.speedup_factor == 9.0
    assert one.summary().total == 4
    assert len(one.traces[NAME]) == 4
    one.add_traces([make.trace("alice_v1", speedup=10.0)])
    assert one.get_best_trace(NAME).evaluation.performance.speedup_factor == 10.0


def test_a_rewritten_file_is_asked_anew(dataset, make, writer):
    one = TraceSet.from_path(dataset)
    assert one.summary().total == 3
    writer.lines(f"traces/gemm/{NAME}.jsonl", make.trace_record("alice_v1", speedup=5.0))
    assert one.get_best_trace(NAME).evaluation.performance.speedup_factor == 5.0
    assert one.summary().total == 1


def test_a_set_with_an_index_can_be_copied_and_pickled(dataset):
    one = TraceSet.from_path(dataset)
    one.summary()
    for again in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert again.summary() == one.summary()
        assert again.get_best_trace(NAME) == one.get_best_trace(NAME)
        assert again.to_dict() == TraceSet.from_path(dataset).to_dict()


def test_broken_lines(dataset, writer):
    writer.text("traces/x.jsonl", "nonsense\n")
    for ask in (TraceSet.summary, TraceSet.rank_authors, lambda one: one.load_errors):
        with pytest.raises(DataError, match="not valid JSON"):
            ask(TraceSet.from_path(dataset))
    one = TraceSet.from_path(dataset, on_error="collect")
    assert [error.line for error in one.load_errors] == [1]
    assert one.summary().total == 3
    assert not in_memory(one)
    assert len(one.traces[NAME]) == 3
    assert [error.line for error in one.load_errors] == [1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_cannot_be_read(dataset, writer):
    writer.text("traces/x.jsonl", "{}\n").chmod(0)
    one = TraceSet.from_path(dataset, on_error="collect")
    assert one.summary().total == 3
    assert "cannot be read" in str(one.load_errors[0])


def test_rows_are_those_of_the_traces(dataset):
    one = TraceSet.from_path(dataset)
    rows = list(one.run_rows(NAME))
    assert [row.solution for row in rows] == ["baseline_v1", "alice_v1", "alice_v1"]
    assert rows[1].latency_ms == 1.5
    assert rows[1].axes == {"M": 2}
    assert rows[2].latency_ms is rows[2].max_absolute_error is None
    assert list(one.run_rows("unknown")) == []
    one.traces  # noqa: B018
    assert list(one.run_rows()) == rows
