"""Starting and stopping: by calls, by the environment, in forked children."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import weakref
from textwrap import dedent
from typing import Any

import pytest
from fib_tests_tracing import GEMM, Sink, gemm_inputs, written

from flashinfer_bench.apply import apply
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import ConfigError, DatasetNotFoundError
from flashinfer_bench.integration.slots import board
from flashinfer_bench.tracing import (
    TracingConfig,
    TracingRuntime,
    disable_tracing,
    enable_tracing,
    shutdown,
)

BY_AXES = TracingConfig(filter_policy="keep_first_by_axes")


def call(m: int = 3) -> Any:
    return apply(GEMM.name, gemm_inputs(m), fallback=lambda *x: "original")


def test_enabling_replaces_and_writes(root: Any) -> None:
    first = enable_tracing(root, BY_AXES)
    call(1)
    second = enable_tracing(str(root), BY_AXES)
    assert TracingRuntime.get_instance() is second
    assert second.is_active
    assert not first.is_active
    assert len(written(root)) == 1
    call(2)
    disable_tracing()
    disable_tracing()
    assert TracingRuntime.get_instance() is None
    assert not board.in_use
    assert [each["workload"]["axes"]["M"] for each in written(root)] == [1, 2]
    call(3)
    assert len(written(root)) == 2


def test_a_block_gives_back_what_it_replaced(root: Any, sink: Sink) -> None:
    outer = TracingRuntime(root, BY_AXES, store=sink).start()
    with TracingRuntime(root, BY_AXES, store=Sink()) as inner:
        call(1)
        assert inner.is_active
    assert outer.is_active
    call(2)
    with TracingRuntime(root, BY_AXES, store=Sink()):
        disable_tracing()
    assert not outer.is_active, "disabled is disabled"
    assert sink.axes() == [{"M": 2}]


def test_what_was_replaced_for_good_is_let_go(root: Any) -> None:
    first = weakref.ref(enable_tracing(root, BY_AXES))
    for _ in range(2):
        enable_tracing(root, BY_AXES)
    gc.collect()
    assert first() is None


def test_three_nested_blocks(root: Any) -> None:
    with enable_tracing(root) as one:
        with enable_tracing(root) as two:
            with enable_tracing(root) as three:
                assert three.is_active
            assert two.is_active
        assert one.is_active
    assert not board.in_use


def test_starting_and_stopping_twice(root: Any, sink: Sink) -> None:
    tracing = TracingRuntime(root, BY_AXES, store=sink)
    tracing.stop()
    assert tracing.start() is tracing.start()
    call(1)
    assert len(board.watchers) == 1
    tracing.stop()
    tracing.stop()
    assert len(sink.entries) == sink.closed == 1
    with tracing:
        call(1)
        call(2)
    assert sink.axes() == [{"M": 1}, {"M": 2}], "what was seen is remembered"


def test_started_again_while_it_still_writes(root: Any) -> None:
    """By another thread, say: what that has begun is not undone by the end of stopping."""

    class Slow(Sink):
        def close(self) -> None:
            super().close()
            if self.closed == 1:
                tracing.start()

    sink = Slow()
    tracing = TracingRuntime(root, BY_AXES, store=sink).start()
    call(1)
    tracing.stop()
    assert tracing.is_active
    call(2)
    shutdown.flush_all()
    assert sink.axes() == [{"M": 1}, {"M": 2}]
    tracing.stop()
    assert not board.in_use, "it watches no more"
    call(3)
    shutdown.flush_all()
    assert sink.axes() == [{"M": 1}, {"M": 2}]


def test_what_cannot_be_written_when_nothing_can_be_said(root: Any, monkeypatch: Any) -> None:
    """As when stderr is closed: `logging` raises then, which is no reason to fail as well."""

    def refuse(*args: Any, **more: Any) -> None:
        raise ValueError("I/O operation on closed file")

    class Broken(Sink):
        def close(self) -> None:
            raise OSError("gone")

    sink = Broken(OSError("the disk is full"))
    tracing = TracingRuntime(root, BY_AXES, store=sink).start()
    call(1)
    monkeypatch.setattr(logging.Logger, "handle", refuse)
    assert tracing.flush()["lost"] == 1
    tracing.stop()
    assert tracing.stats()["lost"] == 1


def test_the_older_interface_does_not_mix(root: Any) -> None:
    with pytest.raises(ConfigError, match="older interface"):
        enable_tracing(root, out_dir=root)
    assert TracingRuntime.get_instance() is None


def test_datasets_in_any_form(root: Any, tmp_path: Any, monkeypatch: Any) -> None:
    assert TracingRuntime(TraceSet.from_path(root)).root == root
    monkeypatch.setenv("FIB_DATASET_PATH", str(root))
    assert TracingRuntime().definitions.keys() == TraceSet.from_path(root).definitions.keys()
    monkeypatch.chdir(root.parent)
    relative = TracingRuntime(root.name)
    monkeypatch.chdir("/")
    assert relative.root == root
    with pytest.raises(DatasetNotFoundError, match="does not exist"):
        TracingRuntime(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="a TraceSet with a root"):
        TracingRuntime(TraceSet())


def test_a_broken_definition_costs_itself(root: Any, caplog: Any) -> None:
    (root / "definitions" / "op" / "broken.json").write_text("{")
    assert GEMM.name in TracingRuntime(root).names()
    assert "broken.json" in caplog.text


def run(
    code: str, root: Any, expected: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FIB_DATASET_PATH": str(root), **variables}
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == expected, done.stderr
    return done


PROGRAM = """
    import torch
    from flashinfer_bench import apply
    for m in (1, 2, 1):
        a, b = torch.zeros(m, 4, dtype=torch.float16), torch.zeros(8, 4, dtype=torch.float16)
        assert apply("gemm_n8_k4", (a, b), fallback=lambda *x: "original") == "original"
"""


class TestEnvironment:
    def test_a_program_is_recorded_without_a_change(self, root: Any) -> None:
        run(PROGRAM, root, FIB_ENABLE_TRACING="1")
        assert [each["workload"]["axes"]["M"] for each in written(root)] == [1, 2]

    def test_not_unless_asked(self, root: Any) -> None:
        run(PROGRAM, root, FIB_ENABLE_TRACING="0")
        run(PROGRAM, root)
        assert not (root / "workloads").exists()

    def test_with_apply_as_well(self, root: Any) -> None:
        run(PROGRAM, root, FIB_ENABLE_TRACING="yes", FIB_ENABLE_APPLY="1")
        assert len(written(root)) == 2

    def test_importing_tracing_is_enough(self, root: Any) -> None:
        code = """
            import flashinfer_bench.tracing as tracing
            assert tracing.TracingRuntime.get_instance() is not None
            from flashinfer_bench.integration.slots import board
            assert "gemm_n8_k4" in board.wanted()
        """
        run(code, root, FIB_ENABLE_TRACING="1")

    @pytest.mark.parametrize(("value", "count"), [("1", 1), ("0", 0)])
    def test_a_signal_ends_the_program(self, root: Any, value: str, count: int) -> None:
        code = """
            import os, signal, torch
            from flashinfer_bench import apply
            x, w = torch.ones(1, 4).half(), torch.ones(8, 4).half()
            apply("gemm_n8_k4", args=(x, w), fallback=lambda a, b: None)
            os.kill(os.getpid(), signal.SIGTERM)
        """
        settings = {"FIB_ENABLE_TRACING": "1", "FIB_TRACING_SIGNALS": value}
        run(code, root, -signal.SIGTERM, **settings)
        assert len(written(root) if (root / "workloads").exists() else []) == count

    def test_a_thread_cannot_take_signals(self, root: Any) -> None:
        code = """
            import signal, threading
            before = signal.getsignal(signal.SIGTERM)
            thread = threading.Thread(target=lambda: __import__("flashinfer_bench.tracing"))
            thread.start(); thread.join()
            assert signal.getsignal(signal.SIGTERM) is before
        """
        run(code, root, FIB_ENABLE_TRACING="1", FIB_TRACING_SIGNALS="1")

    @pytest.mark.parametrize("value", ["1", "perhaps"])
    def test_what_fails_is_a_warning(self, tmp_path: Any, value: str) -> None:
        done = run(PROGRAM, tmp_path / "nothing", FIB_ENABLE_TRACING=value)
        assert "tracing stays off" in done.stderr

    def test_warnings_as_errors_break_nothing(self, tmp_path: Any) -> None:
        run(PROGRAM, tmp_path / "nothing", FIB_ENABLE_TRACING="1", PYTHONWARNINGS="error")

    def test_without_a_call_torch_is_not_even_imported(self, root: Any) -> None:
        """At exit that would be too late: torch complains when it is torn down."""
        code = """
            import atexit, sys
            atexit.register(lambda: print("torch" in sys.modules))
            import flashinfer_bench
            flashinfer_bench.enable_tracing()
        """
        done = run(code, root)
        assert (done.stdout, done.stderr) == ("False\n", "")

    def test_what_is_turned_off_stays_off(self, root: Any) -> None:
        code = """
            import os
            import flashinfer_bench
            flashinfer_bench.disable_tracing()
            os.environ["FIB_ENABLE_TRACING"] = "1"
        """
        run(dedent(code) + dedent(PROGRAM), root)
        assert not (root / "workloads").exists()

    def test_the_command_line_records_nothing(self, root: Any) -> None:
        code = """
            import flashinfer_bench.cli.main
            import flashinfer_bench.tracing as tracing
            assert tracing.TracingRuntime.get_instance() is None
        """
        run(code, root, FIB_ENABLE_TRACING="1")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
class TestFork:
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_a_child_begins_with_empty_buffers(self, root: Any) -> None:
        tracing = enable_tracing(root, BY_AXES)
        call(1)
        child = os.fork()
        if child == 0:
            try:
                empty = tracing.stats()["buffered"]["entries"] == 0
                call(1)
                call(2)
                done = tracing.flush()
                os._exit(0 if empty and done["entries"] == 1 else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        disable_tracing()
        assert sorted(each["workload"]["axes"]["M"] for each in written(root)) == [1, 2]

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_locks_that_another_thread_holds(self, root: Any, sink: Sink) -> None:
        import threading

        tracing = TracingRuntime(root, BY_AXES, store=sink).start()
        holding, done = threading.Event(), threading.Event()

        def hold() -> None:
            with tracing._recorders._buffer.lock, tracing._writer._lock:
                holding.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        holding.wait()
        child = os.fork()
        if child == 0:
            try:
                call(1)
                os._exit(0 if tracing.flush()["entries"] == 1 else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        done.set()
        thread.join()
