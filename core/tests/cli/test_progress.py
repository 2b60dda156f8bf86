"""What is shown of a run, and what becomes of its end."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from flashinfer_bench.bench import BenchmarkConfig, BuildOutcome, Skipped
from flashinfer_bench.bench.executors.base import CandidateFailed
from flashinfer_bench.cli import run_session
from flashinfer_bench.cli.datasets import dataset_roots, open_datasets
from flashinfer_bench.cli.progress import (
    BarProgress,
    PlainProgress,
    RunCollector,
    _duration,
    make_progress,
)
from flashinfer_bench.cli.run_session import RunSession
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import (
    CapabilityError,
    ConfigError,
    ConflictError,
    SelectionError,
    StorageError,
    UnknownNameError,
)


@pytest.fixture
def traces(maker):
    """Recorded traces: two that passed, and one that did not."""
    maker.sound()
    maker.trace(status="TIMEOUT")
    group = TraceSet.from_path(maker.root).traces["double"]
    return [group[0], group[1], group[-1]]


def skip(kind="capability", count=1, solution="mojo_double"):
    return Skipped(kind, "double", solution, None, count, "no builder\n  hint: install one")


# ------------------------------------------------------------------------------------ plainly


def test_a_line_for_each_evaluation(traces, capsys):
    progress = PlainProgress()
    progress.started(3)
    for trace in traces:
        progress.evaluation_finished(trace)
    progress.finished()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "3 evaluations to do",
        "[1/3] PASSED double / baseline_double: 2 ms (1x)",
        "[2/3] PASSED double / alice_double: 0.5 ms (4x)",
        "[3/3] TIMEOUT double / alice_double",
    ]


def test_names_cannot_forge_lines(traces, capsys):
    progress = PlainProgress()
    progress.started(2)
    progress.evaluation_finished(traces[0].model_copy(update={"solution": "x\n[2/2] PASSED y"}))
    progress.skipped(skip(count=1, solution="x\ny"))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert r"x\n[2/2] PASSED y" in lines[1]
    assert lines[2].endswith(r"skipped double / x\ny")


def test_time_left_after_a_few(traces, capsys):
    progress = PlainProgress()
    progress.started(100)
    for _ in range(4):
        progress.evaluation_finished(traces[0])
    lines = capsys.readouterr().err.splitlines()
    assert not any(line.endswith("left") for line in lines[:3])
    assert lines[4].endswith(" s left")


def test_time_left_is_that_of_evaluations(traces, capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("flashinfer_bench.cli.progress.time.monotonic", lambda: now[0])
    progress = PlainProgress()
    progress.started(13)
    now[0] = 600.0  # of compiling
    for _ in range(3):
        progress.evaluation_started("double", traces[0].workload, "s")
        now[0] += 2.0
        progress.evaluation_finished(traces[0])
    assert capsys.readouterr().err.splitlines()[-1].endswith("; 20 s left")


def test_skips_during_the_run_count_as_done(traces, capsys):
    progress = PlainProgress()
    progress.skipped(skip(count=5))  # known beforehand: not part of the total
    progress.started(2)
    progress.skipped(skip("reference"))
    progress.evaluation_finished(traces[0])
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "[1/2] skipped double / mojo_double"
    assert lines[2].startswith("[2/2] PASSED")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.4, "0 s"),
        (42, "42 s"),
        (89, "89 s"),
        (150, "2 min"),
        (3000, "50 min"),
        (7500, "2 h 05 min"),
    ],
)
def test_durations(seconds, shown):
    assert _duration(seconds) == shown


def built(solution="c_double", seconds=1.26, **details):
    return BuildOutcome("double", solution, "c", seconds=seconds, **details)


BROKEN = CandidateFailed("K: no", stage="compile", kind="K", traceback="", about="build")


def test_a_line_for_each_build(traces, capsys):
    progress = PlainProgress()
    progress.started(1)
    progress.builds_started(3)
    progress.build_finished(built(fresh=True))
    progress.build_finished(built("x\nbuild 3/3: built y", error=BROKEN))
    progress.build_finished(built("later", seconds=0.0))
    progress.evaluation_finished(traces[0])
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:] == [
        "3 solutions to build",
        "build 1/3: built double / c_double in 1.3 s",
        "build 2/3: failed double / x\\nbuild 3/3: built y in 1.3 s",
        "build 3/3: cached double / later",
        "[1/1] PASSED double / baseline_double: 2 ms (1x)",
    ]


# ---------------------------------------------------------------------------------- as a bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_counts_and_goes_away(traces, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    bar = BarProgress()
    bar.skipped(skip())  # before the beginning
    bar.started(4)
    bar.evaluation_started("double", traces[0].workload, "\x1b[2J" + "long" * 40)
    for trace in traces:
        bar.evaluation_finished(trace)
    bar.skipped(skip("workload"))
    bar.finished()
    shown = terminal.getvalue()
    assert "4/4" in shown
    assert "1 failed" in shown
    assert "\x1b[2J" not in shown
    assert "…" in shown
    assert shown.rstrip().endswith("\x1b[2K")  # the line is empty again


@pytest.mark.parametrize("evaluations", [True, False], ids=["in a run", "alone"])
def test_a_second_bar_for_builds(traces, monkeypatch, evaluations):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    bar = BarProgress()
    if evaluations:
        bar.started(1)
    bar.builds_started(2)
    bar.build_finished(built("\x1b[2J" + "long" * 40, fresh=True))
    bar.build_finished(built("other", error=BROKEN))
    if evaluations:
        bar.evaluation_finished(traces[0])
    bar.finished()
    shown = terminal.getvalue()
    assert "2/2" in shown
    assert "1 failed" in shown
    assert "\x1b[2J" not in shown
    assert ("1/1" in shown) is evaluations


def test_bar_on_a_terminal_lines_elsewhere(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert [type(one) for one in make_progress(quiet=False)] == [PlainProgress]
    assert make_progress(quiet=True) == []
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert [type(one) for one in make_progress(quiet=True)] == [BarProgress]
    monkeypatch.setenv("TERM", "dumb")
    assert make_progress(quiet=True) == []


# ------------------------------------------------------------------------------- the session


class FakeBenchmark:
    """Stands for the benchmark: tells observers what a test wants it to tell."""

    traces = ()
    skips = ()
    error = None
    flushed = 0

    def __init__(self, trace_set, config, log_level, observers):
        self.observers = observers
        type(self).config = config

    def __enter__(self):
        return self

    def __exit__(self, *args):
        pass

    def run_all(self, dump_traces, resume):
        for observer in self.observers:
            for one in self.skips:
                observer.skipped(one)
            observer.started(len(self.traces))
            for trace in self.traces:
                observer.evaluation_finished(trace)
            observer.finished()
        if self.error is not None:
            raise self.error

    def flush(self):
        type(self).flushed += 1
        if isinstance(self.error, StorageError):
            raise self.error


@pytest.fixture
def session(maker, monkeypatch, traces):
    """Carries out a session with a `FakeBenchmark`; returns it after it has shown its end."""

    def carry_out(as_json=False, save=True, resume=False, op_types=(), **behaviour):
        fake = type("Fake", (FakeBenchmark,), {"traces": traces, **behaviour})
        monkeypatch.setattr("flashinfer_bench.bench.Benchmark", fake)
        made = RunSession(BenchmarkConfig(), save=save, resume=resume, level="WARNING")
        made.fake = fake
        try:
            made.run(open_datasets([maker.root]), op_types)
        finally:
            made.show(as_json=as_json)
        return made

    return carry_out


def test_everything_evaluated_is_ok(session, capsys):
    made = session()
    assert (made.exit_code(strict=False), made.exit_code(strict=True)) == (0, 1)
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].split("\t")[:3] == ["definition", "solution", "author"]
    assert "3 evaluations in" in captured.err
    assert "2 PASSED, 1 TIMEOUT" in captured.err
    assert "traces written to" in captured.err


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        (["capability"], 4),
        (["reference"], 1),
        (["workload"], 1),
        (["capability", "workload"], 1),
        (["device", "capability"], 4),
        (["device"], 0),
        ([], 0),
    ],
)
def test_skips_decide_the_exit_code(session, kinds, code):
    assert session(skips=[skip(kind) for kind in kinds]).exit_code(strict=False) == code


def test_a_run_for_which_nothing_is_meant_lacks_a_device(session, capsys):
    made = session(traces=[], skips=[skip("device"), skip("device", solution="other")])
    assert made.exit_code(strict=False) == 4
    assert "  2 solutions: " in capsys.readouterr().err


def test_unreadable_records_are_findings(session, maker):
    maker.raw("solutions/broken.json", "{")
    assert session().exit_code(strict=False) == 1


def test_names_of_skips_stay_on_their_line(session, capsys):
    session(skips=[skip(count=1, solution="x\nerror: y")])
    assert r"  double / x\nerror: y: no builder" in capsys.readouterr().err


def test_skips_are_summed_up(session, capsys):
    session(skips=[skip(count=3, solution=f"s{n}") for n in range(8)])
    shown = capsys.readouterr().err
    assert "skipped 24 evaluations:" in shown
    assert "  double / s4: no builder\n" in shown
    assert "s5" not in shown
    assert "… and 3 more" in shown


def test_ctrl_c_shows_what_is_done(session, capsys):
    made = session(error=KeyboardInterrupt())
    assert made.interrupted
    captured = capsys.readouterr()
    assert "interrupted after 3 evaluations" in captured.err
    assert len(captured.out.splitlines()) == 3


def test_after_ctrl_c_no_further_dataset_is_begun(session, maker):
    made = session(error=KeyboardInterrupt())
    made.run(open_datasets([maker.root]))
    assert len(made.runs) == 1


def test_a_disk_that_fails_is_tried_once_more(session, capsys):
    error = StorageError("traces/x.jsonl: no space left", hint="free some")
    with pytest.raises(StorageError, match="the run stopped") as caught:
        session(error=error)
    assert "--resume" in caught.value.hint
    assert "3 evaluations in" in capsys.readouterr().err


def test_without_torch_the_remedy_is_told(session):
    with pytest.raises(CapabilityError, match="needs torch") as caught:
        session(error=ModuleNotFoundError("No module named 'torch'", name="torch"))
    assert "flashinfer-bench-core[torch]" in caught.value.hint


def test_without_torch_nothing_else_that_is_missing_comes_first(session, monkeypatch):
    monkeypatch.setattr("flashinfer_bench.cli.run_session.find_spec", lambda name: None)
    with pytest.raises(CapabilityError, match="needs torch"):
        session(error=CapabilityError("No builder for language 'python'. Available: none."))


def test_with_torch_the_missing_thing_is_named(session, monkeypatch):
    monkeypatch.setattr("flashinfer_bench.cli.run_session.find_spec", lambda name: object())
    with pytest.raises(CapabilityError, match="No builder"):
        session(error=CapabilityError("No builder for language 'python'. Available: none."))


def test_any_other_missing_module_is_a_bug(session):
    with pytest.raises(ModuleNotFoundError):
        session(error=ModuleNotFoundError("No module named 'x'", name="x"))


def test_nothing_left_to_do(session, capsys):
    session(resume=True, traces=())
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "nothing was left to do" in captured.err


def test_nothing_is_shown_of_a_run_that_could_not_begin(session, capsys, monkeypatch):
    def run_all(self, dump_traces, resume):
        raise SelectionError("there is nothing to evaluate")

    with pytest.raises(SelectionError):
        session(run_all=run_all)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_results_as_json(session, capsys):
    session(as_json=True, save=False, skips=[skip()])
    document = json.loads(capsys.readouterr().out)
    (one,) = document["datasets"]
    assert (one["planned"], one["evaluations"], one["saved"]) == (3, 3, False)
    assert one["statuses"] == {"PASSED": 2, "TIMEOUT": 1}
    assert {result["solution"] for result in one["results"]} == {"alice_double", "baseline_double"}
    assert one["skipped"][0]["reason"].startswith("no builder")


def test_op_types_choose_definitions(session, maker):
    maker.definition("triple", op_type="gemm")
    made = session(op_types=("gemm",))
    assert made.fake.config.definitions == ["triple"]
    with pytest.raises(UnknownNameError, match="'conv'") as caught:
        session(op_types=("conv",))
    assert caught.value.hint == "there are: gemm, op"


def test_op_types_narrow_chosen_definitions_down(maker):
    maker.definition()
    maker.definition("triple", op_type="gemm")
    maker.definition("quadruple", op_type="gemm")
    config = BenchmarkConfig(definitions=["double", "triple"])
    trace_set = TraceSet.from_path(maker.root)
    assert run_session._with_op_types(config, trace_set, ("gemm",)).definitions == ["triple"]
    assert run_session._with_op_types(config, trace_set, ()) is config


def test_a_collector_keeps_everything(traces):
    collector = RunCollector()
    assert collector.total is None
    collector.started(3)
    collector.skipped(skip())
    for trace in traces:
        collector.evaluation_finished(trace)
    assert collector.statuses() == {"PASSED": 2, "TIMEOUT": 1}
    assert (collector.total, len(collector.traces), len(collector.skips)) == (3, 3, 1)


# ------------------------------------------------------------------------------------ datasets


def test_roots(monkeypatch, tmp_path):
    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path))
    assert dataset_roots(None) == (tmp_path,)
    assert dataset_roots([Path("a"), Path("b")]) == (Path("a"), Path("b"))
    with pytest.raises(ConfigError, match="'a b' is not a dataset of the hub"):
        dataset_roots([Path("a")], hub="a b")


def test_several_datasets_are_merged(maker, tmp_path):
    other = type(maker)(tmp_path / "other")
    other.definition("triple")
    opened = open_datasets([maker.sound().root, other.root])
    assert set(opened.trace_set.definitions) == {"double", "triple"}
    assert opened.name == f"{maker.root}, {other.root}"
    assert opened.exit_code() == 0
    other.definition("double", tags=["different"])
    with pytest.raises(ConflictError):
        open_datasets([maker.root, other.root])


def test_one_dataset_keeps_its_folder(maker):
    assert open_datasets([maker.sound().root]).trace_set.root == maker.root
