"""Explanations say the same as the table, and give a reason for each run that does not count."""

import pytest

from fib_report.apply_choices import explain, explain_all
from fib_tests import table_dataset as make
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import SelectionError, UnknownNameError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))


HERE = make.HERE


@pytest.fixture
def dataset(tmp_path):
    """A dataset with a winner, a runner-up, and one run for each of many reasons."""
    big = make.workload(rows=8)
    short = make.workload(uuid="short")
    del short["axes"]["columns"]
    extra = {"integrity": {"violation": "floor"}}
    traces = [
        make.trace("fast", 1.0),
        make.trace("fast", 3.0),
        make.trace("slow", 4.0),
        make.trace("slow", 4.0, on=big),
        make.trace("elsewhere", 0.1, hardware=make.ELSEWHERE),
        make.trace("wild", 0.1, correctness=make.errors(0.5, 0.5)),
        make.trace("wild", 0.1, correctness=make.errors(0.7, 0.9)),
        make.trace("cheat", 0.1, correctness=make.errors(0, 0, extra=extra)),
        make.trace("stuck", 0.0),
        make.trace("stuck", 0.1, on=short),
        make.trace("stale", 0.1, provenance={"extra": {"solution_hash": "0" * 64}}),
        make.failed("TIMEOUT", "lazy"),
        make.trace("gone", 0.1),
        make.trace("misled", 0.1),
        make.trace("unsure", 0.1),
        make.failed("INCORRECT_NUMERICAL", "unsure"),
        make.failed("TIMEOUT", "fast", on=make.workload(rows=99)),
    ]
    names = ["fast", "slow", "elsewhere", "wild", "cheat", "stuck", "stale", "lazy", "unsure"]
    solutions = [
        *map(make.solution, names),
        make.solution("idle"),
        make.solution("misled", of="other"),
    ]
    definitions = [make.definition(), make.definition("other")]
    return make.Folder.of(tmp_path / "dataset", traces, definitions, solutions)


@pytest.fixture(params=["folder", "memory"])
def source(request, dataset):
    return dataset.root if request.param == "folder" else TraceSet.from_path(dataset.root)


class TestExplain:
    def test_each_solution_has_its_reasons(self, source):
        found = explain(source, "scale", hardware=HERE)
        kinds = {
            one["name"]: {why["kind"]: why["runs"] for why in one["refusals"]}
            for one in found["solutions"]
        }
        assert kinds == {
            "fast": {"status": 1},
            "slow": {},
            "elsewhere": {"hardware": 1},
            "wild": {"error": 2},
            "cheat": {"integrity": 1},
            "stuck": {"latency": 1, "key": 1},
            "stale": {"stale": 1},
            "lazy": {"status": 1},
            "unsure": {"status": 1, "incorrect": 1},
            "idle": {"no runs": 0},
            "gone": {"solution": 1},
            "misled": {"solution": 1},
        }

    def test_some_sizes_only(self, source):
        found = explain(source, "scale", hardware=HERE, axes={"rows": 8})
        assert [one["axes"]["rows"] for one in found["keys"]] == [8]
        found = explain(source, "scale", hardware=HERE, axes={"columns": 2})
        assert len(found["keys"]) == 3

    def test_of_many_sizes_the_nearest_are_named(self, tmp_path):
        sizes = [1, 2, 4, 8, 16, 32, 64, 4096]
        folder = make.Folder.of(
            tmp_path / "many", [make.trace(on=make.workload(rows=size)) for size in sizes]
        )
        with pytest.raises(SelectionError) as caught:
            explain(folder.root, "scale", hardware=HERE, axes={"rows": 50})
        assert f"'scale' with rows=50 on {HERE}" in caught.value.message
        found = [int(part.split("=")[1].split(",")[0]) for part in caught.value.hint.split("; ")]
        assert found == [64, 32, 16, 8, 4]
        assert caught.value.hint.endswith(" …")
        with pytest.raises(SelectionError, match="leave out --axes"):
            explain(folder.root, "scale", hardware="other", axes={"rows": 64})

    def test_unknown_axes(self, source):
        with pytest.raises(UnknownNameError, match="did you mean rows"):
            explain(source, "scale", hardware=HERE, axes={"row": 5})
        with pytest.raises(UnknownNameError, match="variable axis"):
            explain(source, "scale", hardware=HERE, axes={"depth": 4})


class TestExplainAll:
    def test_definitions_that_are_lacking_come_last(self, dataset):
        dataset.traces([make.trace("fast", of="aaa")], "traces/more.jsonl")
        lacking = explain_all(dataset.root, hardware=HERE)["definitions"][-1]
        assert (lacking["definition"], lacking["known"], lacking["op_type"]) == ("aaa", False, "")
        assert lacking["refused"] == {"definition": 1}
