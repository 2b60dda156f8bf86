"""A TraceSet answers from the index until its traces are in memory, and keeps both in step."""

from __future__ import annotations

import copy
import pickle

import pytest

from flashinfer_bench.data import TraceSet

NAME = "gemm_n8_k4"


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
