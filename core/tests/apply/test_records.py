"""Runs read in the lean way are the runs that `TraceSet` has, whatever the files look like."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashinfer_bench.apply.records import RunReader
from flashinfer_bench.apply.records import reader as reader_module
from flashinfer_bench.apply.records.runs import Other
from flashinfer_bench.data import EvaluationStatus, Trace, TraceSet

_spec = importlib.util.spec_from_file_location(
    "fib_tests_table_dataset", Path(__file__).with_name("table_dataset.py")
)
make = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make)

PATH = Path("traces.jsonl")
IN_TIME = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def facts(file, texts):
    """Return what selection looks at of each run, in a form that can be compared."""
    workloads, environments = file.take_up(texts)
    return [
        repr(
            (
                group.definition,
                group.solution,
                workloads[group.workload].model_dump_json(),
                environments[group.environment].model_dump_json(),
                group.is_judged,
                group.solution_hash,
                run,
            )
        )
        for group in file.groups
        for run in (*group.plain(), *group.others)
    ]


def lean(data):
    """Return the facts of all runs in a file, and the number of problems."""
    reader = RunReader()
    return facts(reader.read(data, PATH).runs, reader.texts), len(reader.problems)


def ordinary(tmp_path, data):
    """Return the same, by way of `TraceSet`."""
    file = tmp_path / "dataset" / "traces" / "all.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    traces = TraceSet.from_path(tmp_path / "dataset", on_error="collect")
    reader = RunReader()
    every = [one for group in traces.traces.values() for one in group]
    return sorted(facts(reader.of_traces(every), reader.texts)), len(traces.load_errors)


def lines(*records):
    return "".join(json.dumps(one) + "\n" for one in records).encode()


def assert_same(tmp_path, data, *, torn=0):
    """Check that both ways give the same; a torn last line is a problem in the lean way only."""
    runs, problems = lean(data)
    assert (sorted(runs), problems - torn) == ordinary(tmp_path, data)
    return runs


RICH = {
    "provenance": {
        "seed": 3,
        "evaluator": "default 1",
        "transient": False,
        "wall_s": 1,
        "later": {"any": "thing"},
        "extra": {"solution_hash": "ab12", "trust": "full", "cpu_threads": 3},
    },
    "correctness": make.errors(
        0.5, 0.25, extra={"matched_ratio": 1, "integrity": {"hidden_ms": 0.1}, "other": [None]}
    ),
    "performance": {
        "latency_ms": 1,
        "reference_latency_ms": 0.0,
        "speedup_factor": 0,
        "samples_ms": [1, 1.5, 2e-3],
    },
}


class TestToday:
    """Lines of today's format take the quick way."""

    @pytest.fixture(autouse=True)
    def _quick_way_only(self, monkeypatch):
        def refuse(self, *given, **named):
            raise AssertionError("took the slow way")

        monkeypatch.setattr(RunReader, "_read_any", refuse)

    @pytest.mark.parametrize(
        "record",
        [
            make.trace(),
            make.trace(**RICH),
            make.trace(log=None, provenance=None),
            make.trace(provenance={}),
            make.trace(correctness=make.errors(0, 0, extra=None)),
            make.trace(correctness=make.errors(0, 0, extra={})),
            make.trace(correctness=make.errors("Infinity", "NaN")),
            make.failed("INCORRECT_NUMERICAL", correctness=make.errors("NaN", "NaN")),
            *(
                make.failed(status.value)
                for status in EvaluationStatus
                if status is not EvaluationStatus.PASSED
            ),
        ],
    )
    def test_every_kind_of_line(self, tmp_path, record):
        assert len(assert_same(tmp_path, lines(record))) == 1

    def test_a_workload_is_no_run(self, tmp_path):
        record = {"definition": "scale", "workload": make.workload(), "solution": None}
        assert assert_same(tmp_path, lines(record, {**record, "evaluation": None})) == []

    @pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n  \n"])
    def test_ends_and_blank_lines(self, tmp_path, end):
        first = lines(make.trace()).rstrip(b"\n")
        data = first + b"\n \n\r\n" + lines(make.trace("slow")).rstrip(b"\n") + end
        assert len(assert_same(tmp_path, data)) == 2

    def test_text_beyond_ascii(self, tmp_path):
        record = make.trace("schnell-ü", log="→ 10⁻³ ms 🙂")
        escaped = lines(record)
        plain = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        assert escaped != plain
        assert len(set(assert_same(tmp_path, escaped + plain))) == 1

    def test_an_empty_file_has_no_runs(self, tmp_path):
        assert assert_same(tmp_path, b"") == []

    def test_equal_workloads_and_environments_are_one_object(self):
        reader = RunReader()
        data = lines(make.trace(), make.trace("slow"), make.trace(latency=3.0))
        first = reader.read(data, PATH).runs
        assert [(group.solution, group.count()) for group in first.groups] == [
            ("fast", 2),
            ("slow", 1),
        ]
        (workload,), (environment,) = first.take_up(reader.texts)
        other = reader.read(lines(make.trace()), PATH).runs.take_up(reader.texts)
        assert other[0][0] is workload
        assert other[1][0] is environment

    def test_a_run_that_passed_has_its_figures(self):
        (group,) = RunReader().read(lines(make.trace(latency=0.25)), PATH).runs.groups
        assert (group.figures, group.others) == ([0.25, 1e-3, 1e-3], [])
        assert group.latencies() == [0.25]
        assert next(group.plain()) == group.worst() == Other("PASSED", 0.25, 1e-3, 1e-3)


def old_trace(**changes):
    """Return a trace as releases of 2025 wrote it."""
    record = make.trace()
    evaluation = record["evaluation"]
    evaluation["log_file"] = "logs/1.txt"
    evaluation["error"] = None
    del evaluation["log"]
    evaluation["environment"] = {"device": make.HERE, "libs": None}
    del record["workload"]["uuid"]
    evaluation.update(changes)
    return record


class TestOthers:
    """Everything else takes the way that `TraceSet` takes."""

    @pytest.mark.parametrize(
        "record",
        [
            old_trace(),
            old_trace(status="INCORRECT", performance=None),
            old_trace(status="COMPILE_ERROR", correctness={}, performance={}),
            old_trace(correctness=make.errors("Infinity", "NaN")),
            old_trace(correctness=make.errors("inf", "nan")),
            make.trace(correctness=make.errors("Infinity", 0.0)),
            make.trace(correctness=make.errors(0.0, 0.0, extra={"matched_ratio": "all"})),
            make.trace(provenance={"seed": "7"}),
            make.trace(provenance={"extra": {"solution_hash": 12}}),
            {**make.trace(), "solution": "", "evaluation": {}},
            {**make.trace(), "solution": "", "evaluation": None},
        ],
    )
    def test_older_spellings(self, tmp_path, record):
        assert_same(tmp_path, lines(record))
        assert lean(lines(record))[1] == 0

    def test_workloads_without_identity_get_the_one_that_they_always_get(self):
        uuids = []
        for _ in range(2):
            reader = RunReader()
            (workload,), _ = reader.read(lines(old_trace()), PATH).runs.take_up(reader.texts)
            uuids.append(workload.uuid)
        assert uuids == [Trace.model_validate(old_trace()).workload.uuid] * 2

    def test_numbers_that_are_none(self):
        record = make.trace(correctness=make.errors("NaN", "Infinity"))
        (group,) = RunReader().read(lines(record), PATH).runs.groups
        assert not group.figures
        assert math.isnan(group.others[0].absolute)
        assert group.others[0].relative == math.inf

    def broken():
        good = make.trace()

        return {
            "no performance": make.trace(performance=None),
            "no correctness": make.trace(correctness=None),
            "performance of a failure": {
                **good,
                "evaluation": {**good["evaluation"], "status": "TIMEOUT"},
            },
            "unknown status": make.trace(status="MAYBE"),
            "no status": make.trace(status=None),
            "no timestamp": make.trace(timestamp=None),
            "empty timestamp": make.trace(timestamp=""),
            "a number as log": make.trace(log=5),
            "negative latency": make.trace(latency=-1.0),
            "latency as text": make.trace(performance={"latency_ms": "1"}),
            "negative error": make.trace(correctness=make.errors(-1.0, 0.0)),
            "no hardware": make.trace(environment={"libs": {}}),
            "empty hardware": make.trace(hardware=""),
            "libs as a list": make.trace(environment={"hardware": "x", "libs": []}),
            "provenance as text": make.trace(provenance="me"),
            "samples as text": make.trace(
                performance={**good["evaluation"]["performance"], "samples_ms": "1"}
            ),
            "negative sample": make.trace(
                performance={**good["evaluation"]["performance"], "samples_ms": [1.0, -1.0]}
            ),
            "extra as a list": make.trace(correctness=make.errors(0.0, 0.0, extra=[])),
            "no evaluation": {**good, "evaluation": None},
            "no solution": {**good, "solution": None},
            "no definition": {**good, "definition": ""},
            "no workload": {**good, "workload": None},
            "no axes": {**good, "workload": {"inputs": {}, "uuid": "w"}},
            "axis as text": {**good, "workload": make.workload(rows="1")},
            "negative axis": {**good, "workload": make.workload(rows=-1)},
            "a list": [good["definition"]],
            "a number": 5,
        }

    @pytest.mark.parametrize("record", broken().values(), ids=broken().keys())
    def test_broken_lines_cost_only_themselves(self, tmp_path, record):
        data = lines(make.trace(), record, make.trace("slow"))
        assert len(assert_same(tmp_path, data)) == 2
        assert lean(data)[1] == 1

    def test_problems_tell_the_file_and_the_line(self):
        reader = RunReader()
        data = lines(make.trace()) + b'{"definition": 5\n' + lines(make.trace())
        found = reader.read(data, Path("traces/x.jsonl")).runs
        assert [group.count() for group in found.groups] == [2]
        (problem,) = reader.problems
        assert str(problem).startswith("traces/x.jsonl:2: not valid JSON")

    @pytest.mark.parametrize(
        "data",
        [
            b"\xef\xbb\xbf" + lines(make.trace()),
            json.dumps(make.trace(), indent=2).encode(),
            json.dumps([make.trace(), make.trace("slow")]).encode(),
            json.dumps([make.trace(), make.trace("slow")], indent=1).encode(),
            json.dumps(make.trace(), indent=2).encode() * 2,
            b"\n\n" + json.dumps(make.trace(), indent=2).encode() + b"\n",
            lines(make.trace()) + b"\xff\xfe\n" + lines(make.trace()),
            lines(make.trace()).replace(b"all is well", b"\xff\xfe") + lines(make.trace()),
            lines(make.trace()).replace(b'"log"', b'"\xff"') + lines(make.trace()),
            lines(make.trace()).replace(b": 1.0,", b": 1e999,"),
            lines(make.trace()).replace(b"0.001", b"NaN"),
            lines(make.trace()).replace(b"0.001", b"Infinity"),
            lines(make.trace()) + b"null\n" + lines(make.trace()),
            b"[" * 5000 + b"\n" + lines(make.trace()),
            b"not json at all",
            b"{}\n",
            b"[]",
            lines(make.trace()).replace(b"\n", b"") + lines(make.trace(), make.trace("slow")),
            lines(make.trace()).replace(b', "solution"', b',\n"solution"'),
            lines(make.trace()) * 3 + b" " * 300_000 + b"\n" + lines(make.trace()) * 3 + b"[1]",
            b" \n" * 200_000 + json.dumps([make.trace()] * 3, indent=1).encode(),
            lines(*[make.trace()] * 500) + b"{]\n" + lines(*[make.trace()] * 500),
            b"\0\0\0\n",
        ],
    )
    def test_odd_files(self, tmp_path, data):
        assert_same(tmp_path, data)

    @pytest.mark.parametrize("cut", [1, 10, 100, 300, -5, -2])
    def test_a_half_written_last_line(self, tmp_path, cut):
        whole = lines(make.trace("slow", **RICH))
        data = lines(make.trace(), make.trace()) + whole[:cut]
        assert len(assert_same(tmp_path, data, torn=1)) == 2

    def test_zeros_in_place_of_the_last_line(self, tmp_path):
        data = lines(make.trace()) + b"\0" * 40
        assert len(assert_same(tmp_path, data, torn=1)) == 1

    def test_a_last_line_without_its_newline_is_whole(self, tmp_path):
        data = lines(make.trace(), old_trace()).rstrip(b"\n")
        assert len(assert_same(tmp_path, data)) == 2


# ------------------------------------------------------------------------ records made at random

numbers = st.floats(-1, 10) | st.integers(-1, 3) | st.sampled_from(["NaN", "Infinity", 1e-300])
odd = (
    st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=3) | st.just({}) | st.just([])
)


def maybe(strategy):
    """Return mostly what is right, sometimes something odd."""
    return st.one_of(strategy, strategy, strategy, strategy, strategy, strategy, odd)


correctness = st.fixed_dictionaries(
    {"max_absolute_error": maybe(numbers), "max_relative_error": maybe(numbers)},
    optional={
        "extra": maybe(
            st.fixed_dictionaries(
                {}, optional={"matched_ratio": maybe(numbers), "integrity": odd, "more": odd}
            )
        )
    },
)
performance = st.fixed_dictionaries(
    {
        "latency_ms": maybe(numbers),
        "reference_latency_ms": maybe(numbers),
        "speedup_factor": maybe(numbers),
    },
    optional={"samples_ms": maybe(st.lists(numbers, max_size=3))},
)
environment = st.fixed_dictionaries(
    {"hardware": maybe(st.sampled_from([make.HERE, "CPU (2 cores)"]))},
    optional={"libs": maybe(st.dictionaries(st.text(max_size=3), maybe(st.text(max_size=3))))},
)
provenance = st.fixed_dictionaries(
    {},
    optional={
        "evaluator": maybe(st.text(max_size=3)),
        "transient": maybe(st.booleans()),
        "seed": maybe(st.integers()),
        "wall_s": maybe(numbers),
        "extra": maybe(st.fixed_dictionaries({}, optional={"solution_hash": maybe(st.text())})),
    },
)
statuses = st.sampled_from(["PASSED", "PASSED", "INCORRECT", *EvaluationStatus.__members__])
evaluation = st.fixed_dictionaries(
    {
        "status": maybe(statuses),
        "environment": maybe(environment),
        "timestamp": maybe(st.just("t")),
    },
    optional={
        "log": maybe(st.text(max_size=5)),
        "correctness": maybe(correctness),
        "performance": maybe(performance),
        "provenance": maybe(provenance),
        "error": odd,
    },
)
record = st.fixed_dictionaries(
    {
        "definition": maybe(st.sampled_from(["scale", "ü"])),
        "workload": maybe(st.just(make.workload()) | st.just({"axes": {}, "inputs": {}})),
    },
    optional={
        "solution": maybe(st.sampled_from(["fast", "slow"])),
        "evaluation": maybe(evaluation),
        "later": odd,
    },
)


class TestAtRandom:
    @settings(IN_TIME, max_examples=250)
    @given(records=st.lists(record, max_size=4), ascii_only=st.booleans())
    def test_both_ways_agree(self, tmp_path, records, ascii_only):
        text = "".join(json.dumps(one, ensure_ascii=ascii_only) + "\n" for one in records)
        assert_same(tmp_path, text.encode("utf-8", "surrogatepass"))

    @settings(IN_TIME, max_examples=150)
    @given(data=st.data())
    def test_damage_anywhere(self, tmp_path, data):
        whole = lines(make.trace(), make.trace("slow", **RICH), make.failed("TIMEOUT"))
        place = data.draw(st.integers(0, len(whole) - 1))
        byte = data.draw(st.integers(0, 255))
        damaged = whole[:place] + bytes([byte]) + whole[place + 1 :]
        reader = RunReader()
        runs = sorted(facts(reader.read(damaged, PATH).runs, reader.texts))
        wanted, problems = ordinary(tmp_path, damaged)
        assert runs == wanted
        assert len(reader.problems) - problems in (0, 1)  # a torn last line is told here only

    @settings(IN_TIME, max_examples=100)
    @given(
        st.lists(
            st.sampled_from(
                [
                    *(lines(make.trace(name)).strip() for name in ("fast", "slow")),
                    lines(make.trace("slow", log="ü" * 3)).strip(),
                    json.dumps(old_trace()).encode(),
                    json.dumps(make.trace()).encode()[:200],
                    *(b"\n", b"\n", b"\n", b"\r\n", b" ", b"\xff", b"{}", b"[", b"null"),
                ]
            ),
            max_size=12,
        ),
        st.sampled_from([1, 700, 1 << 18]),
    )
    def test_any_arrangement_in_pieces_of_any_size(self, tmp_path, parts, size):
        data = b"".join(parts)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader_module, "_PIECE", size)
            runs, problems = lean(data)
        wanted, known = ordinary(tmp_path, data)
        assert sorted(runs) == wanted
        assert problems - known in (0, 1)  # a torn last line is told here only

    @IN_TIME
    @given(st.binary(max_size=60))
    def test_any_bytes_are_read_without_raising(self, tmp_path, data):
        reader = RunReader()
        assert reader.read(data, PATH).runs.groups == []
