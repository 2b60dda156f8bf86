"""Runs in groups: nothing is lost or mixed up, and the shortcuts decide as each run alone would."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashinfer_bench.apply import candidates
from flashinfer_bench.apply.records import RunReader, lean, passed
from flashinfer_bench.apply.records import reader as reader_module
from flashinfer_bench.apply.records.runs import FileRuns, Gatherer, Other, Runs, Texts
from flashinfer_bench.apply.selection import Limits, error_problem

_spec = importlib.util.spec_from_file_location(
    "fib_tests_table_dataset", Path(__file__).with_name("table_dataset.py")
)
make = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make)

PATH = Path("traces.jsonl")
IN_TIME = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def lines(*made):
    return "".join(json.dumps(one) + "\n" for one in made).encode()


def decoded(*made):
    return msgspec.json.Decoder(lean.Run).decode_lines(lines(*made))


def everything(file, texts):
    """Return all runs, one by one, sorted."""
    workloads, environments = file.take_up(texts)
    return sorted(
        repr(
            (
                group.definition,
                group.solution,
                workloads[group.workload],
                environments[group.environment],
                group.is_judged,
                group.solution_hash,
                run,
            )
        )
        for group in file.groups
        for run in (*group.plain(), *group.others)
    )


def read(data):
    reader = RunReader()
    return everything(reader.read(data, PATH).runs, reader.texts), len(reader.problems)


class TestGroups:
    def gather(self, *made):
        gatherer = Gatherer(Texts())
        gatherer.add(decoded(*made))
        return gatherer.outcome()

    @pytest.mark.parametrize(
        "other",
        [
            make.trace("slow"),
            make.trace(of="another"),
            make.trace(on=make.workload(7)),
            make.trace(hardware=make.ELSEWHERE),
            make.trace(provenance={"evaluator": "default 1"}),
            make.trace(provenance={"extra": {"solution_hash": "ab"}}),
        ],
    )
    def test_runs_that_differ_in_what_decides_are_apart(self, other):
        file = self.gather(make.trace(), other, make.trace(), other)
        assert [group.count() for group in file.groups] == [2, 2]

    @pytest.mark.parametrize(
        "other",
        [
            make.trace(log="another"),
            make.trace(timestamp="2027"),
            make.trace(provenance={"seed": 4, "evaluator": "", "extra": {}}),
            make.trace(correctness=make.errors(1e-3, 1e-3, extra={"note": 1})),
            make.trace(latency=7.0),
            make.failed("TIMEOUT"),
        ],
    )
    def test_other_runs_are_together(self, other):
        file = self.gather(make.trace(), other)
        assert [group.count() for group in file.groups] == [2]

    @pytest.mark.parametrize(
        "change",
        [
            {"latency": 0.0},
            {"correctness": make.errors("NaN", 0.0)},
            {"correctness": make.errors(0.0, "Infinity")},
            {"correctness": make.errors(0.0, 0.0, extra={"matched_ratio": 0.5})},
            {"correctness": make.errors(0.0, 0.0, extra={"integrity": "clean"})},
        ],
    )
    def test_what_is_not_plain_is_kept_whole(self, change):
        (group,) = self.gather(make.trace(**change)).groups
        assert (group.figures, len(group.others)) == ([], 1)
        assert group.others[0].status == "PASSED"

    def test_what_failed_has_its_status_alone(self):
        (group,) = self.gather(make.failed("INCORRECT_NUMERICAL"), make.failed("TIMEOUT")).groups
        assert [run.status for run in group.others] == ["INCORRECT_NUMERICAL", "TIMEOUT"]
        assert all(math.isnan(run.latency_ms) for run in group.others)

    @pytest.mark.parametrize(
        "bad",
        [
            {**make.trace(), "workload": {"axes": 5}},
            {**make.trace(), "workload": make.workload(9), "solution": None},
            make.trace("new", environment={"libs": {}}),
        ],
    )
    def test_all_lines_or_none(self, bad):
        gatherer = Gatherer(Texts())
        gatherer.add(decoded(make.trace()))
        with pytest.raises(ValueError, match=r"half a run|validation error"):
            gatherer.add(decoded(make.trace(), make.trace("other"), bad))
        assert [(one.solution, one.count()) for one in gatherer.outcome().groups] == [("fast", 1)]

    def test_workloads_alone_leave_nothing(self):
        record = {"definition": "scale", "workload": make.workload()}
        assert self.gather(record, record) == FileRuns([], [], [])


# ------------------------------------------------------------------------------ the largest errors

errors = st.floats(0, 0.2) | st.sampled_from([0.0, 0.01, 0.04, 0.05, 1e300])
limits = st.builds(
    Limits,
    atol=st.sampled_from([0.0, 0.01, 0.1, math.inf]),
    rtol=st.sampled_from([0.0, 0.01, 0.1, math.inf]),
    both=st.booleans(),
    coarse=st.booleans(),
    matched_ratio=st.sampled_from([0.9, 1.0]),
)


class TestShortcut:
    @settings(IN_TIME, max_examples=500)
    @given(st.lists(st.tuples(errors, errors), min_size=1, max_size=5), limits, st.booleans())
    def test_it_decides_as_every_single_run(self, pairs, allowed, is_judged):
        figures = [value for pair in pairs for value in (1.0, *pair)]
        group = Runs("d", "s", 0, 0, is_judged, None, figures)
        each = [
            error_problem(passed(run, is_judged=is_judged), allowed) is None
            for run in group.plain()
        ]
        if candidates._all_fit(group, allowed):
            assert all(each)
        if len(set(pairs)) == 1:
            assert candidates._all_fit(group, allowed) is all(each)

    @given(st.lists(st.tuples(st.floats(0.1, 9), errors, errors), min_size=1, max_size=4))
    def test_figures_are_of_whole_runs(self, runs):
        group = Runs("d", "s", 0, 0, False, None, [value for run in runs for value in run])
        assert group.count() == len(runs)
        assert group.latencies() == [run[0] for run in runs]
        assert list(group.plain()) == [Other("PASSED", *run) for run in runs]
        assert group.worst().absolute == max(run[1] for run in runs)
        assert group.worst().relative == max(run[2] for run in runs)


# ---------------------------------------------------------------------------- files that have grown

parts = st.sampled_from(
    [
        lines(make.trace()),
        lines(make.trace("slow", 2.0), make.trace(latency=3.0)),
        lines(make.trace(on=make.workload(5))),
        lines(make.trace("slow", log="ü" * 3)),
        json.dumps(make.trace(log="ü"), ensure_ascii=False).encode() + b"\n",
        lines(make.trace(provenance={"evaluator": "x", "extra": {"solution_hash": "y"}})),
        lines(make.failed("TIMEOUT", hardware=make.ELSEWHERE)),
        lines({"definition": "scale", "workload": make.workload(8), "solution": None}),
        lines(make.trace()).rstrip(b"\n"),
        json.dumps(make.trace(), indent=1).encode() + b"\n",
        json.dumps([make.trace()]).encode() + b"\n",
        *(b"\n", b" \n", b"{]\n", b"[", b"null\n", b"\xff\n", b"\xef\xbb\xbf", b"\0"),
    ]
)


class TestGrowth:
    @settings(IN_TIME, max_examples=300)
    @given(
        st.lists(parts, max_size=5),
        st.lists(parts, min_size=1, max_size=5),
        st.sampled_from([1, 900, 1 << 18]),
    )
    def test_in_two_steps_as_in_one(self, before, after, size):
        """A beginning that may grow, and the rest, are the whole."""
        start, whole = b"".join(before), b"".join(before + after)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader_module, "_PIECE", size)
            reader = RunReader()
            first = reader.read(start, PATH)
            if first.may_grow and not reader.problems:
                second = reader.read(whole, PATH, first.runs, len(start))
                assert (everything(second.runs, reader.texts), len(reader.problems)) == read(whole)
                assert second.may_grow is whole.endswith(b"\n")

    @settings(IN_TIME, max_examples=50)
    @given(st.integers(1, 6), st.data())
    def test_problems_tell_the_lines_of_the_whole_file(self, count, data):
        start = lines(*[make.trace()] * count)
        after = data.draw(st.integers(0, 3))
        whole = start + lines(*[make.trace()] * after) + b"{]\n"
        reader = RunReader()
        first = reader.read(start, PATH)
        reader.read(whole, PATH, first.runs, len(start))
        (problem,) = reader.problems
        assert str(problem).startswith(f"traces.jsonl:{count + after + 1}:")

    @pytest.mark.parametrize(
        ("data", "may_grow"),
        [
            (b"", False),
            (b"\n \n", False),  # a document may follow
            (lines(make.trace()), True),
            (lines(make.trace()) + b"\n", True),
            (lines(make.trace()).rstrip(b"\n"), False),  # and so may more of this line
            (lines(make.trace()) + b" ", False),
            (json.dumps([make.trace()]).encode() + b"\n", False),
            (json.dumps(make.trace(), indent=1).encode() + b"\n", False),
        ],
    )
    def test_what_may_grow(self, data, may_grow):
        assert RunReader().read(data, PATH).may_grow is may_grow

    @given(st.lists(st.sampled_from([b"\n", b"\n", b"{", b"}", b"{}", b"x"]), min_size=1))
    def test_lines_are_counted_and_looked_at(self, parts):
        data = b"".join(parts)
        count, is_regular = reader_module._lines(b"{}\n" + data, 3, 3 + len(data))
        texts = data.removesuffix(b"\n").split(b"\n")
        wanted = all(text.startswith(b"{") and text.endswith(b"}") for text in texts)
        assert count == data.count(b"\n")
        if data.endswith(b"\n"):
            assert is_regular is wanted

    @pytest.mark.parametrize("size", [1, 1 << 18])
    @pytest.mark.parametrize(
        "odd",
        [
            lines(make.trace()).strip() * 2 + b"\n\n",  # two lines, and two records
            lines(make.trace()).strip() * 2 + b"\n" + lines(make.trace()).replace(b" {", b"\n{", 1),
            lines(make.trace()).strip() * 2 + b"\n" + lines(make.trace()).replace(b"}, ", b"}\n,"),
        ],
    )
    def test_records_are_those_of_single_lines(self, monkeypatch, odd, size):
        monkeypatch.setattr(reader_module, "_PIECE", size)
        runs, problems = read(lines(make.trace()) + odd + lines(make.trace("slow")))
        assert len(runs) == 2
        assert problems == sum(bool(line.strip()) for line in odd.split(b"\n"))
