"""Starting and stopping: by calls, by the environment, in forked children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from textwrap import dedent

import pytest

from fib_tests.recorded import GEMM, Sink, gemm_inputs, written
from fib_tests.threads import forked_while_held
from flashinfer_bench.apply import apply
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import ConfigError, DatasetNotFoundError
from flashinfer_bench.routing.patch_points import router
from flashinfer_bench.tracing import (
    TracingConfig,
    TracingRuntime,
    disable_tracing,
    enable_tracing,
)

BY_AXES = TracingConfig(filter_policy="keep_first_by_axes")


def call(m=3):
    return apply(GEMM.name, gemm_inputs(m), fallback=lambda *x: "original")


def test_enabling_replaces_and_writes(root):
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
    assert not router.in_use
    assert [each["workload"]["axes"]["M"] for each in written(root)] == [1, 2]
    call(3)
    assert len(written(root)) == 2


def test_a_block_gives_back_what_it_replaced(root, sink):
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


def test_starting_and_stopping_twice(root, sink):
    tracing = TracingRuntime(root, BY_AXES, store=sink)
    tracing.stop()
    assert tracing.start() is tracing.start()
    call(1)
    assert len(router.watchers) == 1
    tracing.stop()
    tracing.stop()
    assert len(sink.entries) == 1
    with tracing:
        call(1)
        call(2)
    assert sink.axes() == [{"M": 1}, {"M": 2}], "what was seen is remembered"


def test_datasets_in_any_form(root, tmp_path, monkeypatch):
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


def run(code, root, expected=0, **variables):
    environment = {**os.environ, "FIB_DATASET_PATH": str(root), **variables}
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
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
    @pytest.mark.parametrize(("value", "count"), [("1", 1), ("0", 0)])
    def test_a_signal_ends_the_program(self, root, value, count):
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

    @pytest.mark.parametrize(("value", "warnings"), [("perhaps", "default"), ("1", "error")])
    def test_what_fails_is_a_warning(self, tmp_path, value, warnings):
        settings = {"FIB_ENABLE_TRACING": value, "PYTHONWARNINGS": warnings}
        done = run(PROGRAM, tmp_path / "nothing", **settings)
        assert "tracing stays off" in done.stderr

    def test_without_a_call_torch_is_not_even_imported(self, root):
        """At exit that would be too late: torch complains when it is torn down."""
        code = """
            import atexit, sys
            atexit.register(lambda: print("torch" in sys.modules))
            import flashinfer_bench
            flashinfer_bench.enable_tracing(tracing_config=flashinfer_bench.TracingConfig())
        """
        done = run(code, root)
        assert (done.stdout, done.stderr) == ("False\n", "")

    def test_what_is_turned_off_stays_off(self, root):
        code = """
            import os
            import flashinfer_bench
            flashinfer_bench.disable_tracing()
            os.environ["FIB_ENABLE_TRACING"] = "1"
        """
        run(dedent(code) + dedent(PROGRAM), root)
        assert not (root / "workloads").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_while_another_thread_holds_the_locks(root, sink):
    tracing = TracingRuntime(root, BY_AXES, store=sink).start()

    def works():
        call(1)
        return tracing.flush()["entries"] == 1

    assert forked_while_held([tracing.lock, tracing._write_lock], works)
