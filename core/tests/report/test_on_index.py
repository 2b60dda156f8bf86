"""Reports come from the index of a dataset, and say what they would say of its traces in memory."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import DataError, FibError
from flashinfer_bench.report import (
    PageInfo,
    Selection,
    best_solutions,
    collect_results,
    compare_dates,
    find_gaps,
    latest_results,
    render_page,
    score_solutions,
    summarize,
)
from flashinfer_bench.report.results import read_details
from flashinfer_bench.report.scoreboard import make_scoreboard

ALL = Selection()
DATE = datetime(2026, 2, 1, tzinfo=timezone.utc)
INFO = PageInfo("Results", "here", "today")
SELECTIONS = (
    ALL,
    Selection(definitions=("double",)),
    Selection(op_types=("gemm",)),
    Selection(hardware=("h200",)),
    Selection(hardware=("none",)),
)
FINER = (Selection(authors=("alice",)), Selection(solutions=("gone",)))

_path = Path(__file__).parents[1] / "cli" / "dataset_maker.py"
_spec = importlib.util.spec_from_file_location("fib_tests_maker_of_random_datasets", _path)
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)


def outcome(ask):
    """Return an answer, or the error, in a form in which NaN equals NaN."""
    try:
        return repr(ask())
    except FibError as error:
        return repr((type(error), str(error)))


def fields_of(results):
    return [[getattr(one, name) for name in one.__struct_fields__[:17]] for one in results]


def page_of(trace_set, selection):
    results = latest_results(collect_results(trace_set, selection))
    return render_page(results, INFO, find_gaps(trace_set, selection)) if results else ""


def reports(trace_set):
    """Yield everything that can be said of a dataset."""
    for one in SELECTIONS:
        yield "summary", outcome(lambda: summarize(trace_set, one))  # noqa: B023 - called here
        yield "of alice", outcome(lambda: summarize(trace_set, one, "alice"))  # noqa: B023
        yield "gaps", outcome(lambda: find_gaps(trace_set, one))  # noqa: B023
        for solutions in (False, True):
            board = outcome(lambda: make_scoreboard(trace_set, one, solutions=solutions))  # noqa: B023
            yield "scores", board
        yield "page", outcome(lambda: page_of(trace_set, one))  # noqa: B023
    for one in (*SELECTIONS, *FINER):
        yield "results", outcome(lambda: fields_of(collect_results(trace_set, one)))  # noqa: B023
        yield "best", outcome(lambda: best_of(trace_set, one))  # noqa: B023
        yield "changes", outcome(lambda: changes_of(trace_set, one))  # noqa: B023


def best_of(trace_set, selection):
    return best_solutions(score_solutions(latest_results(collect_results(trace_set, selection))))


def changes_of(trace_set, selection):
    found = compare_dates(collect_results(trace_set, selection), DATE)
    listed = [(c.kind, c.ratio, fields_of([c.before, c.after])) for c in found.changes]
    return listed, found.compared, found.added, found.unreadable


def assert_equal_reports(root):
    plain = TraceSet.from_path(root, on_error="collect")
    quick = TraceSet.from_path(root, on_error="collect")
    plain.traces  # noqa: B018 - from now on its answers come from memory
    found = list(reports(quick))
    assert "not read yet" in repr(quick)  # else nothing was tested
    assert found == list(reports(plain))


@pytest.fixture
def rich(maker):
    """A bit of everything that a dataset may hold."""
    maker.sound()
    maker.definition("triple", op_type="gemm")
    maker.solution("bob_triple", definition="triple", author="bob")
    maker.workload("triple", op_type="gemm")
    maker.workload("triple", uuid="old", op_type="gemm", folder="traces")
    maker.workload("triple", uuid="old", op_type="gemm", folder="traces")
    maker.trace("bob_triple", definition="triple", hardware="NVIDIA H200", status="TIMEOUT")
    for status in ("COMPILE_ERROR", "INCORRECT_NUMERICAL", "RUNTIME_ERROR"):
        maker.trace("bob_triple", "triple", status=status, log=f"ValueError: {status}\n")
    maker.trace("gone", "lost", hardware="NVIDIA H200", log="fine")
    maker.trace("gone", uuid="gone")
    maker.trace(reference_ms=0.0, timestamp="no date")
    for day, times in (("01-05", [1.0, 1.1, 1.2]), ("02-05", [1.15, 1.2, 1.3]), ("03-05", None)):
        maker.trace(uuid="w2", latency_ms=1.0, timestamp=f"2026-{day}", samples_ms=times)
        maker.trace("baseline_double", hardware="H200", timestamp=f"2026-{day}", latency_ms=2.0)
    maker.trace(hardware="H200", latency_ms=3.0)
    maker.raw("traces/op/broken.jsonl", "nonsense\n")
    return maker


def test_all_reports(rich):
    assert_equal_reports(rich.root)


def test_files_that_hold_several_definitions(rich):
    """The runs of a definition are then some lines of several files."""
    files = sorted(rich.root.glob("traces/**/*.jsonl"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    for file in files:
        file.unlink()
    rich.raw("traces/a.jsonl", "\n".join(lines[::2]) + "\n")
    rich.raw("traces/b.jsonl", "\n".join(lines[1::2]) + "\n")
    assert_equal_reports(rich.root)


def test_lines_of_older_releases_and_documents_over_several_lines(rich):
    file = rich.root / "traces/op/double.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for record in records[::2]:
        record["evaluation"]["log_file"] = record["evaluation"].pop("log") + "old"
    rich.raw("traces/op/double.jsonl", "".join(json.dumps(one) + "\n" for one in records))
    rich.raw("traces/op/pretty.json", json.dumps(records[:3], indent=2))
    assert_equal_reports(rich.root)


runs = st.fixed_dictionaries(
    {
        "definition": st.sampled_from(["double", "double", "triple", "lost"]),
        "solution": st.sampled_from(["alice_double", "baseline_double", "bob_triple", "gone"]),
        "uuid": st.sampled_from(["w1", "w2", "gone"]),
        "status": st.sampled_from(["PASSED"] * 4 + ["TIMEOUT", "INCORRECT_NUMERICAL"]),
        "latency_ms": st.sampled_from([0.5, 1.0, 1.01, 2.0, 0.0]),
        "reference_ms": st.sampled_from([1.0, 2.0, 0.0]),
        "hardware": st.sampled_from(["Test CPU", "NVIDIA H200"]),
        "timestamp": st.sampled_from(["2026-01-01", "2026-02-02T10:00:00Z", "2026-03-01", "?"]),
        "log": st.sampled_from(["", "fine\n", "Traceback\nValueError: 3\n", 'é "solution" \\']),
        "samples_ms": st.sampled_from([None, None, [], [1, 2.5, 3.0, 3.5], [0.9, 1.0, 1.1]]),
        "error": st.sampled_from([0.0, 1e-3, float("inf"), float("nan")]),
    }
)


@settings(deadline=None, max_examples=25)
@given(traces=st.lists(runs, max_size=25), sound=st.booleans())
def test_random_datasets(traces, sound):
    with tempfile.TemporaryDirectory() as folder:
        maker = _module.DatasetMaker(Path(folder))
        if sound:
            maker.sound()
        maker.definition("triple", op_type="gemm")
        maker.solution("bob_triple", definition="triple", author="bob")
        for one in traces:
            maker.trace(**one)
        assert_equal_reports(maker.root)


def test_a_stored_result_equals_one_made_of_the_same_values(maker, make_result):
    maker.sound()
    maker.trace(log="fine", samples_ms=[1.0, 2.0])
    found = collect_results(TraceSet.from_path(maker.root))[-1]
    values = {"log": "fine", "samples_ms": (1.0, 2.0), "max_absolute_error": 1e-6}
    made = make_result(max_relative_error=1e-6, **values)
    assert found == made
    assert made == found
    assert found != make_result(max_relative_error=1e-6, **{**values, "log": "other"})
    assert found != "fine"
    with pytest.raises(TypeError):
        hash(found)
    with pytest.raises(AttributeError):
        found.status = "PASSED"


@pytest.fixture
def read(monkeypatch):
    """Number of lines of each look into the files for logs and samples."""
    from flashinfer_bench.data.index import TraceIndex

    seen = []
    original = TraceIndex._details

    def spy(self, part, numbers):
        seen.append(len(numbers))
        return original(self, part, numbers)

    monkeypatch.setattr(TraceIndex, "_details", spy)
    return seen


def test_logs_are_read_only_where_they_are_shown(maker, read):
    maker.sound()
    for day in range(1, 8):
        maker.trace(timestamp=f"2026-01-0{day}T12:00", log=f"day {day}")
    trace_set = TraceSet.from_path(maker.root)
    results = latest_results(collect_results(trace_set))
    score_solutions(results)
    summarize(trace_set, ALL)
    find_gaps(trace_set, ALL)
    make_scoreboard(trace_set, ALL)
    assert read == []
    render_page(results, INFO)
    assert read == [4]  # of eleven; once
    assert [one.log for one in results].count("day 7") == 1
    assert read == [4]


def test_samples_are_read_only_of_what_changed(maker, read):
    for uuid, latency in (("w1", 1.0), ("w2", 3.0), ("w3", 1.0)):
        samples = [latency - 0.1, latency, latency + 0.1] if uuid != "w3" else None
        for day, factor in (("2026-01-01", 1.0), ("2026-03-01", 1.0 if uuid == "w1" else 2.0)):
            maker.trace(uuid=uuid, latency_ms=latency * factor, timestamp=day, samples_ms=samples)
    maker.definition()
    found = compare_dates(collect_results(TraceSet.from_path(maker.root)), DATE)
    assert [one.after.workload for one in found.changes] == ["w3"]  # those of w2 overlap
    assert read == [2]


def test_one_log_may_be_asked_for(maker, read):
    maker.sound()
    maker.trace(log="late")
    results = collect_results(TraceSet.from_path(maker.root))
    assert [one.log for one in results] == ["", "", "", "", "late"]
    assert read == [5]
    read_details(results)
    assert read == [5]


def test_a_file_that_is_rewritten_between_results_and_logs_is_an_error(maker):
    maker.sound()
    maker.trace(log="before")
    results = collect_results(TraceSet.from_path(maker.root))
    file = maker.root / "traces/op/double.jsonl"
    file.write_text("".join(reversed(file.read_text().splitlines(keepends=True))))
    with pytest.raises(DataError, match="was changed"):
        results[-1].log  # noqa: B018


def test_lines_that_are_appended_meanwhile_do_no_harm(maker):
    maker.sound()
    maker.trace(log="before")
    results = collect_results(TraceSet.from_path(maker.root))
    maker.trace(log="after")
    assert results[-1].log == "before"
