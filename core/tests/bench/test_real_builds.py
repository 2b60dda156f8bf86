"""Runs and builds of compiled solutions: real compilers in real processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fib_tests.plugins import PLUGIN_FOLDER
from fib_tests.threads import eventually
from flashinfer_bench import bench
from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.data import save_json_file, save_jsonl_file
from flashinfer_bench.plugins import discover

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler 'cc'"),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

DOUBLE = """
void run(const float *x, float *y, long n) { for (long i = 0; i < n; i++) y[i] = 2 * x[i]; }
"""
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "warmup_runs": 1,
    "iterations": 3,
    "num_trials": 1,
    "build_jobs": 2,
    "executor": "fork",
}


@pytest.fixture(autouse=True)
def catalog(monkeypatch):
    """The plugin of these tests, for this process and for those that it starts."""
    monkeypatch.syspath_prepend(PLUGIN_FOLDER)
    monkeypatch.setenv("FIB_PLUGINS", "compiling_plugin")
    return discover()


@pytest.fixture
def in_c(problems):
    """Make a solution in C; `directives` say what else its builder does."""

    def make(name, *directives, code=DOUBLE, **spec):
        source = "".join(f"//! {line}\n" for line in directives) + code
        options = {"language": "testc", "destination_passing_style": True, **spec}
        return problems.solution(source, name, **options)

    return make


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class TestRun:
    def test_every_way_to_build_has_its_verdict(self, in_c, problems, catalog):
        wrong = DOUBLE.replace("2 *", "3 *")
        dataset = problems.dataset(
            in_c("good"),
            in_c("wrong", code=wrong),
            in_c("broken", code="void run( {\n"),
            in_c("crash", "crash"),
            in_c("load_storage", "load storage"),
            in_c("load_build", "load build"),
            in_c("storage", "storage"),
            in_c("capability", "capability"),
            in_c("decline", "decline"),
            in_c("first_call", "call build"),
            in_c("call_capability", "call capability"),
            in_c("call_storage", "call storage"),
            in_c("only_gpu", language="testgpu"),
            problems.good("python"),
            workloads=2,
        )
        with Benchmark(dataset, BenchmarkConfig(**SETTINGS), catalog=catalog) as benchmark:
            found = benchmark.evaluate().traces["double"]
        statuses = {trace.solution: str(trace.evaluation.status) for trace in found}
        assert statuses == {
            "good": "PASSED",
            "wrong": "INCORRECT_NUMERICAL",
            "broken": "COMPILE_ERROR",
            "crash": "COMPILE_ERROR",
            "load_build": "COMPILE_ERROR",
            "first_call": "COMPILE_ERROR",
            "python": "PASSED",
        }
        logs = {trace.solution: trace.evaluation.log for trace in found}
        assert logs["broken"].startswith(
            "compile: BuildError: solution 'broken': cc failed: main.c"
        )
        assert "error:" in logs["broken"]
        assert "SIGABRT" in logs["crash"]
        assert "call: BuildError: a template is too deep" in logs["first_call"]
        assert "line 7: error: too deep" in logs["first_call"]
        failed = [trace for trace in found if trace.evaluation.status != "PASSED"]
        transient = {trace.solution: trace.evaluation.provenance.transient for trace in failed}
        assert [name for name, value in transient.items() if value] == ["crash"]
        reasons = {skip.solution: (skip.kind, skip.reason) for skip in benchmark.skipped}
        assert set(reasons) == {
            *("load_storage", "storage", "call_storage"),
            *("capability", "call_capability", "decline", "only_gpu"),
        }
        assert reasons.pop("only_gpu") == (
            "device",
            "testgpu solutions need cuda; this run uses cpu",
        )
        assert {kind for kind, _ in reasons.values()} == {"capability"}
        assert "the cache has no space left" in reasons["storage"][1]
        for name in ("capability", "call_capability"):
            assert "the tool 'frob' was not found" in reasons[name][1]
        assert "there is no frob" in reasons["decline"][1]

    def test_a_hung_compiler_costs_its_solution_only(self, in_c, problems, catalog, tmp_path):
        note = tmp_path / "pid"
        dataset = problems.dataset(in_c("hangs", f"hang {note}"), in_c("good"), workloads=3)
        config = BenchmarkConfig(**SETTINGS, timeout_seconds=5)
        with Benchmark(dataset, config, catalog=catalog) as benchmark:
            found = benchmark.evaluate().traces["double"]
        statuses = [(trace.solution, str(trace.evaluation.status)) for trace in found]
        assert statuses == [("hangs", "TIMEOUT"), ("good", "PASSED")] * 3
        assert eventually(lambda: not alive(int(note.read_text())))
        assert "an evaluation may take 5 s" in found[0].evaluation.log
        assert found[0].evaluation.provenance.transient

    def test_interrupt_ends_compilers(self, in_c, problems, catalog, tmp_path):
        note = tmp_path / "pid"
        dataset = problems.dataset(in_c("hangs", f"hang {note}"), in_c("good"))

        def interrupt():
            assert eventually(note.exists)
            benchmark.interrupt()

        with Benchmark(dataset, BenchmarkConfig(**SETTINGS), catalog=catalog) as benchmark:
            threading.Thread(target=interrupt, daemon=True).start()
            assert benchmark.evaluate().traces == {}
            assert eventually(lambda: not alive(int(note.read_text())))
            config = BenchmarkConfig(**SETTINGS, solutions=["good"])
            (trace,) = benchmark.evaluate(config).traces["double"]
            assert trace.evaluation.status == "PASSED"


def test_ctrl_c_ends_compilers(in_c, problems, tmp_path):
    note, root = tmp_path / "pid", tmp_path / "dataset"
    dataset = problems.dataset(in_c("hangs", f"hang {note}"))
    save_json_file(dataset.definitions["double"], root / "definitions" / "double.json")
    save_json_file(dataset.solutions["double"][0], root / "solutions" / "hangs.json")
    save_jsonl_file(dataset.workloads["double"], root / "workloads" / "double.jsonl")
    (tmp_path / "tmp").mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PLUGIN_FOLDER), *(p for p in sys.path if p)]),
        "TMPDIR": str(tmp_path / "tmp"),
        "FIB_SANDBOX_WRITABLE": str(tmp_path),  # for the note
    }
    command = [sys.executable, "-m", "flashinfer_bench", "run", "--local", str(root)]
    with subprocess.Popen(
        [*command, "--device", "cpu"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment,
    ) as process:
        try:
            assert eventually(note.exists)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of the group
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, said
    assert "interrupted after 0 evaluations" in said
    assert eventually(lambda: not alive(int(note.read_text())))
    assert eventually(lambda: not list((tmp_path / "tmp").iterdir()))


@pytest.mark.plugin("datasets")
def test_builds_without_a_run(in_c, problems, catalog):
    """What the tests of ``fib build`` do not show."""
    dataset = problems.dataset(
        in_c("load_build", "load build"),
        in_c("storage", "storage"),
        in_c("only_gpu", language="testgpu"),
        problems.solution("1 / 0", "python_broken"),
    )
    run = bench.BuildRun(dataset, BenchmarkConfig(device="cpu", build_jobs=2), catalog)
    found = {outcome.solution: outcome for outcome in run.run()}
    assert {name: outcome.state for name, outcome in found.items()} == {
        "load_build": "failed",
        "storage": "unavailable",
        "only_gpu": "other device",
        "python_broken": "failed",
    }
    assert "ZeroDivisionError" in found["python_broken"].reason
