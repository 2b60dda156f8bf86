"""Whatever a source says: a named error or a dataset that loads, and never anything outside it."""

from __future__ import annotations

import copy
import json

from hypothesis import given
from hypothesis import strategies as st

from fib_datasets.transfer.exporting import export_archive
from fib_datasets.transfer.importing import import_dataset
from flashinfer_bench.data import TraceSet, merge_trace_sets
from flashinfer_bench.errors import FibError

NAME = "gemm_n8_k4"

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from(["", "run", "../x", "/x", "expr", "const", "A * B", "A ** A", "\0", "a.py::f"]),
    st.text(max_size=5),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
edits = st.lists(st.tuples(st.integers(0, 200), st.booleans(), values), min_size=1, max_size=4)


def places_in(document, path=()):
    """Return the path of each value in a document."""
    found = [path] if path else []
    items = ()
    if isinstance(document, dict):
        items = document.items()
    elif isinstance(document, list):
        items = enumerate(document)
    for key, value in items:
        found += places_in(value, (*path, key))
    return found


def damaged(document, changes):
    """Return a document with values replaced, or taken out."""
    document = copy.deepcopy(document)
    for number, remove, value in changes:
        places = places_in(document)
        if not places:
            break
        *path, last = places[number % len(places)]
        inner = document
        for key in path:
            inner = inner[key]
        if remove:
            del inner[last]
        else:
            inner[last] = value
    return document


PROBLEM = {
    "name": "p",
    "op_type": "op",
    "axes": {
        "A": {"type": "var"},
        "B": {"type": "const", "value": 4},
        "C": {"type": "expr", "expression": "A * B"},
    },
    "inputs": {"x": {"shape": ["C", "B"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["C"], "dtype": "float32"}},
    "reference": "def run(x):\n    return x\n",
    "constraints": ["A > 0"],
}
WORKLOAD = {
    "uuid": "u",
    "axes": {"A": 2, "B": 4},
    "inputs": {"x": {"type": "safetensors", "path": "x.safetensors", "tensor_key": "x"}},
    "tolerance": {"max_atol": 0.1, "allow_negative_inf": True},
    "checks": [],
}
SOLUTION = {
    "name": "s",
    "author": "me",
    "spec": {"languages": ["triton"], "target_hardware": ["x"], "entry_point": "a.py::run"},
    "sources": [{"path": "a.py", "content": "def run(): ..."}, {"path": "b.py"}],
}


def import_into_new(source, place):
    """Import; whatever comes of it must load, and lie in one folder."""
    new = place / "new"
    try:
        import_dataset(source, new)
    except FibError:
        assert not new.exists()
    else:
        loaded = TraceSet.from_path(new)
        assert loaded.load_errors == []
        for traces in loaded.workloads.values():
            assert all(trace.is_workload_trace() for trace in traces)
    assert {path.name for path in place.iterdir()} <= {source.name, "new"}


@given(which=st.sampled_from(["definition.json", "workload.jsonl", "solution.json"]), changes=edits)
def test_problem_folders(which, changes, tmp_path_factory, new_writer):
    place = tmp_path_factory.mktemp("case")
    documents = {"definition.json": PROBLEM, "workload.jsonl": WORKLOAD, "solution.json": SOLUTION}
    writer = new_writer(place / "problem")
    for name, document in documents.items():
        writer.lines(name, damaged(document, changes) if name == which else document)
    writer.text("x.safetensors", b"x")
    writer.text("b.py", b"")
    import_into_new(writer.root, place)


@given(which=st.sampled_from(["definitions", "solutions", "traces", "workloads"]), changes=edits)
def test_datasets(which, changes, make, tmp_path_factory, new_writer):
    place = tmp_path_factory.mktemp("case")
    documents = {
        "definitions": make.definition_record(),
        "solutions": make.solution_record(),
        "traces": make.trace_record(),
        "workloads": make.trace_record(None),
    }
    path = {"type": "safetensors", "path": "./blob/x.safetensors", "tensor_key": "x"}
    documents["workloads"]["workload"]["inputs"]["a"] = path
    writer = new_writer(place / "source")
    for name, document in documents.items():
        changed = damaged(document, changes) if name == which else document
        writer.text(f"{name}/x.json", json.dumps(changed))
    import_into_new(writer.root, place)


# ------------------------------------------------------------------------- any sound dataset


@st.composite
def datasets(draw, make):
    """Draw a dataset in memory; what has one name is the same in all that are drawn."""
    strange = ["a", "b", "ü/..", "..", "CON", "new\nline", "x" * 300]
    names = draw(st.lists(st.sampled_from(strange), max_size=3, unique=True))
    found = TraceSet()
    for name in names:
        found.definitions[name] = make.definition(name)
        authors = draw(st.lists(st.sampled_from(["x", "y", "../z"]), max_size=3, unique=True))
        found.solutions[name] = [make.solution(f"{one}{name}", name, one) for one in authors]
        runs = draw(st.lists(st.tuples(st.integers(1, 3), st.sampled_from([0.5, 1.0])), max_size=4))
        found.workloads[name] = [
            make.trace(None, name, uuid=f"w{m}", m=m) for m in dict.fromkeys(m for m, _ in runs)
        ]
        found.traces[name] = [
            make.trace(f"x{name}", name, uuid=f"w{m}", m=m, latency_ms=ms) for m, ms in runs
        ]
    return found


def content_of(trace_set):
    """Return all records, each once, whatever their order."""
    return {
        kind: {json.dumps(one) for group in _groups(records) for one in group}
        for kind, records in trace_set.to_dict().items()
    }


def _groups(records):
    return [group if isinstance(group, list) else [group] for group in records.values()]


@given(data=st.data())
def test_a_merge_is_the_union(data, make):
    one, other = (data.draw(datasets(make)) for _ in range(2))
    first, second = content_of(one), content_of(other)
    union = {kind: first[kind] | second[kind] for kind in first}
    merged = merge_trace_sets([one, other])
    assert content_of(merged) == union
    assert content_of(merge_trace_sets([other, one])) == union
    assert merge_trace_sets([merged, one, other]).to_dict() == merged.to_dict()
    for traces in merged.traces.values():
        lines = [trace.model_dump_json() for trace in traces]
        assert len(set(lines)) == len(lines)


@given(data=st.data())
def test_export_and_import_bring_everything_and_nothing_else(data, make, tmp_path_factory):
    one, other = (data.draw(datasets(make)) for _ in range(2))
    place = tmp_path_factory.mktemp("case")
    for number, trace_set in enumerate((one, other)):
        if not trace_set.definitions:
            return
        export_archive(trace_set, place / f"{number}.tar.gz")
        import_dataset(place / f"{number}.tar.gz", place / "dataset")
    first, second = content_of(one), content_of(other)
    got = TraceSet.from_path(place / "dataset")
    assert content_of(got) == {kind: first[kind] | second[kind] for kind in first}
    assert got.load_errors == []
    again = import_dataset(place / "0.tar.gz", place / "dataset")
    assert set(again.added.values()) == {0}
