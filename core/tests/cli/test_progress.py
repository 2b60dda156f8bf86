"""What is shown of a run, and what becomes of its end."""

from __future__ import annotations

import io
import sys

import pytest

from fib_tests.cli import Terminal
from flashinfer_bench.bench import BenchmarkConfig, Skipped
from flashinfer_bench.cli.datasets import open_datasets
from flashinfer_bench.cli.progress import BarProgress, PlainProgress, make_progress
from flashinfer_bench.cli.run import RunSession
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import CapabilityError, StorageError, UnknownNameError


@pytest.fixture
def traces(maker):
    """Recorded traces: two that passed, and one that did not."""
    maker.sound()
    maker.trace(status="TIMEOUT")
    group = TraceSet.from_path(maker.root).traces["double"]
    return [group[0], group[1], group[-1]]


def skip(kind="capability", count=1, solution="mojo_double"):
    return Skipped(kind, "double", solution, None, count, "no builder\n  hint: install one")


def test_a_line_for_each_evaluation(traces, capsys):
    progress = PlainProgress()
    progress.skipped(skip(count=5))  # known beforehand: not part of the total
    progress.started(5)
    times = traces[1].evaluation.performance
    traces[1].evaluation.performance = times.model_copy(update={"interval_ms": (0.45, 0.55)})
    for trace in traces:
        progress.evaluation_finished(trace)
    progress.skipped(skip("reference", solution="x\ny"))
    # Names cannot forge lines.
    progress.evaluation_finished(traces[0].model_copy(update={"solution": "x\n[2/2] PASSED y"}))
    progress.finished()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line.partition(";")[0] for line in captured.err.splitlines()] == [
        "5 evaluations to do",
        "[1/5] PASSED double / baseline_double: 2 ms (1x)",
        "[2/5] PASSED double / alice_double: 0.5 ms ±10% (4x)",
        "[3/5] TIMEOUT double / alice_double",
        r"[4/5] skipped double / x\ny",
        r"[5/5] PASSED double / x\n[2/2] PASSED y: 2 ms (1x)",
    ]


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


def test_bar_on_a_terminal_lines_elsewhere(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert [type(one) for one in make_progress(quiet=False)] == [PlainProgress]
    assert make_progress(quiet=True) == []
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert [type(one) for one in make_progress(quiet=True)] == [BarProgress]
    monkeypatch.setenv("TERM", "dumb")
    assert make_progress(quiet=True) == []


class FakeBenchmark:
    """Stands for the benchmark: tells observers what a test wants it to tell."""

    traces, skips, error = (), (), None

    def __init__(self, trace_set, config, log_level, observers):
        self.observers = observers
        type(self).trace_set = trace_set

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
        if isinstance(self.error, StorageError):
            raise self.error


@pytest.fixture
def session(maker, monkeypatch, traces):
    """Carries out a session with a `FakeBenchmark`; returns it after it has shown its end."""

    def carry_out(op_types=None, **behaviour):
        fake = type("Fake", (FakeBenchmark,), {"traces": traces, **behaviour})
        monkeypatch.setattr("flashinfer_bench.bench.Benchmark", fake)
        made = RunSession(BenchmarkConfig(), save=True, resume=False, level="WARNING")
        made.fake = fake
        try:
            made.run(open_datasets([maker.root]), op_types=op_types)
        finally:
            made.show(as_json=False)
        return made

    return carry_out


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        ("", 0),
        ("device", 0),
        ("reference", 1),
        ("capability workload", 1),
        ("capability", 4),
        ("device capability", 4),
    ],
)
def test_skips_decide_the_exit_code(session, kinds, code):
    assert session(skips=[skip(one) for one in kinds.split()]).exit_code(strict=False) == code


def test_skips_are_summed_up(session, capsys):
    # Names cannot forge lines.
    session(skips=[skip(count=3, solution=f"s{n}\nerror: x") for n in range(8)])
    shown = capsys.readouterr().err
    assert "skipped 24 evaluations:" in shown
    assert "  24 x double / s0\\nerror: x and others: no builder\n" in shown
    assert "s1" not in shown


def test_after_ctrl_c_no_further_dataset_is_begun(session, maker):
    made = session(error=KeyboardInterrupt())
    made.run(open_datasets([maker.root]))
    assert len(made.runs) == 1


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'torch'", name="torch"),
        CapabilityError("No builder for language 'python'. Available: none."),
    ],
)
def test_without_torch_nothing_else_that_is_missing_comes_first(session, monkeypatch, error):
    monkeypatch.setattr("flashinfer_bench.cli.run.find_spec", lambda name: None)
    with pytest.raises(CapabilityError, match="needs torch") as caught:
        session(error=error)
    assert "pip install torch" in caught.value.hint


def test_op_types_choose_definitions(session, maker):
    maker.definition("triple", op_type="gemm")
    maker.solution("bob_triple", definition="triple")
    maker.workload("triple", op_type="gemm")
    made = session(op_types=("gemm",))
    assert list(made.fake.trace_set.definitions) == ["triple"]
    with pytest.raises(UnknownNameError, match="'conv'") as caught:
        session(op_types=("conv",))
    assert caught.value.hint == "available op_types: gemm, op"
