"""Folders are merged from their indexes just as sets in memory are."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashinfer_bench.data import TraceSet, merge_trace_sets
from flashinfer_bench.data.merge import merge_datasets
from flashinfer_bench.data.merged_set import MergedTraceSet

NAME = "gemm_n8_k4"


def in_memory(roots):
    """Return the union of sets whose traces were read before."""
    sets = [TraceSet.from_path(root) for root in roots]
    for one in sets:
        one.traces  # noqa: B018 - reads them
    return merge_trace_sets(sets)


def lazily(roots):
    merged = merge_trace_sets([TraceSet.from_path(root) for root in roots])
    assert isinstance(merged, MergedTraceSet)
    return merged


def lines_of(root):
    (path,) = root.glob("traces/*/*.jsonl")
    return path, path.read_bytes().splitlines(keepends=True)


def spelled_otherwise(line):
    """Return the same record as another text."""
    return json.dumps(json.loads(line), indent=None, separators=(" , ", " : ")).encode() + b"\n"


def changed(line, number):
    record = json.loads(line)
    record["evaluation"]["log"] = f"another {number}"
    return json.dumps(record).encode() + b"\n"


EDITS = {
    "same": lambda line, number: line,
    "otherwise": lambda line, number: spelled_otherwise(line),
    "changed": changed,
    "twice": lambda line, number: line + line,
    "gone": lambda line, number: b"",
}


@pytest.fixture
def two(dataset, tmp_path):
    """Return a function that makes a second dataset by editing the lines of the first."""
    import shutil

    made = iter(range(1000))

    def make(edits):
        other = tmp_path / f"other{next(made)}"
        shutil.copytree(dataset, other)
        path, lines = lines_of(other)
        path.write_bytes(
            b"".join(
                EDITS[edits[number % len(edits)]](line, number) for number, line in enumerate(lines)
            )
        )
        return [dataset, other]

    return make


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(edits=st.lists(st.sampled_from(sorted(EDITS)), min_size=1, max_size=4))
def test_equal_answers(two, edits):
    roots = two(edits)
    expected = in_memory(roots)
    assert lazily(roots).to_dict() == expected.to_dict()
    merged = lazily(roots)
    assert list(merged.run_rows()) == list(expected.run_rows())
    assert merged.summary() == expected.summary()
    assert merged.filter_traces(NAME) == expected.filter_traces(NAME)
    assert merged.get_best_trace(NAME) == expected.get_best_trace(NAME)
    assert merged.workload_uuids(NAME) == expected.workload_uuids(NAME)
    for name, columns in merged.run_columns().items():
        numbers = range(len(columns))
        wanted = expected.run_columns()[name]
        assert columns.details(numbers) == wanted.details(numbers)
    assert repr(merged).count("not read yet")


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(edits=st.lists(st.sampled_from(sorted(EDITS)), min_size=1, max_size=4))
def test_equal_folders(two, tmp_path_factory, edits):
    roots = two(edits)
    folder = tmp_path_factory.mktemp("merged")
    counts = merge_datasets([TraceSet.from_path(root) for root in roots], folder / "lazily")
    sets = [TraceSet.from_path(root) for root in roots]
    for one in sets:
        one.traces  # noqa: B018 - reads them
    assert merge_datasets(sets, folder / "memory") == counts
    contents = [
        {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        for out in (folder / "lazily", folder / "memory")
    ]
    assert contents[0] == contents[1]


def test_a_dataset_that_changes_meanwhile_is_read_anew(two):
    roots = two(["changed"])
    merged = lazily(roots)
    path, lines = lines_of(roots[1])
    path.write_bytes(b"".join(changed(line, 77) for line in lines[:1]))
    assert {one.evaluation.log for one in merged.filter_traces(NAME)} <= {
        one.evaluation.log for traces in merged.traces.values() for one in traces
    }
    assert "another 77" in {one.evaluation.log for one in merged.traces[NAME]}


def test_copies_and_additions_are_of_traces_in_memory(two, make):
    merged = lazily(two(["changed"]))
    twin = copy.deepcopy(merged)
    assert twin.to_dict() == merged.to_dict()
    merged = lazily(two(["changed"]))
    before = sum(len(one) for one in twin.traces.values())
    merged.add_traces([next(iter(twin.traces.values()))[0]])
    assert sum(len(one) for one in merged.traces.values()) == before + 1


def test_a_merged_set_has_no_errors_of_its_own(two):
    assert lazily(two(["same"])).load_errors == []
