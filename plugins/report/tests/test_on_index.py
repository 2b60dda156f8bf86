"""Reports come from the index of a dataset, and say what they would say of its traces in memory."""

import json
import tempfile
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_report.ratings import make_scoreboard
from fib_tests.dataset_maker import DatasetMaker
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.run_source import read_details
from flashinfer_bench.data.selection import Selection
from flashinfer_bench.errors import DataError, FibError
from flashinfer_bench.report import (
    PageInfo,
    Result,
    best_solutions,
    collect_results,
    compare_dates,
    find_gaps,
    latest_results,
    render_page,
    score_solutions,
    summarize,
)

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
FIELDS = ("definition", "solution", "workload", "axes", "hardware", "clock")
FIELDS += tuple(name for name in Result.__struct_fields__[3:] if name not in ("place", "length"))
FINER = (Selection(authors=("alice",)), Selection(solutions=("gone",)))


def outcome(ask):
    """Return an answer, or the error, in a form in which NaN equals NaN."""
    try:
        return repr(ask())
    except FibError as error:
        return repr((type(error), str(error)))


def fields_of(results):
    return [[getattr(one, name) for name in FIELDS] for one in results]


def page_of(trace_set, selection):
    results = latest_results(collect_results(trace_set, selection))
    return render_page(results, INFO, find_gaps(trace_set, selection)) if results else ""


def reports(trace_set):
    """Yield everything that can be said of a dataset."""
    ask = partial(partial, trace_set=trace_set)
    yield "api", outcome(trace_set.summary)
    yield "api of alice", outcome(partial(trace_set.summary, "alice"))
    yield "api of gemm", outcome(partial(trace_set.summary, op_type="gemm"))
    yield "ranking", outcome(trace_set.rank_authors)
    yield "author", outcome(partial(trace_set.get_author_score, "alice"))
    for name in ("alice_double", "baseline_double", "bob_triple", "gone"):
        yield name, outcome(partial(trace_set.get_solution_score, name))
    for one in SELECTIONS:
        for say in (summarize, find_gaps, make_scoreboard, page_of):
            yield say.__name__, outcome(ask(say, selection=one))
        yield "of alice", outcome(ask(summarize, selection=one, baseline_author="alice"))
        yield "of solutions", outcome(ask(make_scoreboard, selection=one, solutions=True))
    for one in (*SELECTIONS, *FINER):
        for say in (results_of, best_of, changes_of):
            yield say.__name__, outcome(ask(say, selection=one))


def results_of(trace_set, selection):
    return fields_of(collect_results(trace_set, selection))


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
def rich(two_definitions):
    """A bit of everything that a dataset may hold."""
    maker = two_definitions
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


@given(traces=st.lists(runs, max_size=25), sound=st.booleans())
def test_random_datasets(traces, sound):
    with tempfile.TemporaryDirectory() as folder:
        maker = DatasetMaker(Path(folder))
        if sound:
            maker.sound()
        maker.definition("triple", op_type="gemm")
        maker.solution("bob_triple", definition="triple", author="bob")
        for one in traces:
            maker.trace(**one)
        assert_equal_reports(maker.root)


@pytest.mark.parametrize("rewritten", [True, False])
def test_a_file_that_changes_between_results_and_logs(maker, rewritten):
    maker.sound()
    file = maker.trace(log="before")
    results = collect_results(TraceSet.from_path(maker.root))
    maker.trace(log="after")
    if not rewritten:  # lines that are appended do no harm
        assert read_details(results[-1:])[0].log == "before"
        return
    file.write_text("".join(reversed(file.read_text().splitlines(keepends=True))))
    with pytest.raises(DataError, match="has changed"):
        read_details(results[-1:])
