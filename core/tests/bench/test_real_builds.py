"""Runs and builds of compiled solutions: real compilers in real processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fib_tests.plugins import PLUGIN_FOLDER
from fib_tests.threads import eventually
from flashinfer_bench import bench
from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.errors import CapabilityError
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
def catalog(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The plugin of these tests, for this process and for those that it starts."""
    monkeypatch.syspath_prepend(PLUGIN_FOLDER)
    monkeypatch.setenv("FIB_PLUGINS", "compiling_plugin")
    return discover()


@pytest.fixture
def in_c(problems: Any) -> Any:
    """Make a solution in C; `directives` say what else its builder does."""

    def make(name: str, *directives: str, code: str = DOUBLE, **spec: Any) -> Any:
        source = "".join(f"//! {line}\n" for line in directives) + code
        options = {"language": "testc", "destination_passing_style": True, **spec}
        return problems.solution(source, name, **options)

    return make


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class TestRun:
    def test_every_way_to_build_has_its_verdict(
        self, in_c: Any, problems: Any, catalog: Any
    ) -> None:
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
            "testgpu solutions run on cuda; this run uses cpu",
        )
        assert {kind for kind, _ in reasons.values()} == {"capability"}
        assert "the cache has no space left" in reasons["storage"][1]
        for name in ("capability", "call_capability"):
            assert "the tool 'frob' was not found" in reasons[name][1]
        assert "there is no frob" in reasons["decline"][1]

    def test_a_hung_compiler_costs_its_solution_only(
        self, in_c: Any, problems: Any, catalog: Any, tmp_path: Path
    ) -> None:
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


CTRL_C = """
import json, sys
from flashinfer_bench import bench
from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.data import Definition, Solution, Trace, TraceSet
from flashinfer_bench.plugins import default_catalog

definition, solution, workload = (open(path).read() for path in sys.argv[2:5])
definition = Definition.model_validate_json(definition)
dataset = TraceSet(
    definitions={"double": definition},
    solutions={"double": [Solution.model_validate_json(solution)]},
    workloads={"double": [Trace.model_validate_json(workload)]},
)
config = BenchmarkConfig(device="cpu", build_jobs=2)
try:
    if sys.argv[1] == "run":
        with Benchmark(dataset, config) as benchmark:
            benchmark.run_all()
    else:
        bench.BuildRun(dataset, config, default_catalog()).run()
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    "command", ["run", pytest.param("build", marks=pytest.mark.plugin("datasets"))]
)
def test_ctrl_c_ends_compilers(command: str, in_c: Any, problems: Any, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    dataset = problems.dataset(in_c("hangs", f"hang {note}"))
    records = {
        "definition": dataset.definitions["double"],
        "solution": dataset.solutions["double"][0],
        "workload": dataset.workloads["double"][0],
    }
    for name, record in records.items():
        (tmp_path / name).write_text(record.model_dump_json())
    (tmp_path / "tmp").mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PLUGIN_FOLDER), *(p for p in sys.path if p)]),
        "TMPDIR": str(tmp_path / "tmp"),
    }
    files = [str(tmp_path / name) for name in records]
    with subprocess.Popen(
        [sys.executable, "-c", CTRL_C, command, *files],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment,
    ) as process:
        try:
            assert eventually(note.exists)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of the group
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (output, process.returncode) == ("interrupted\n", 0)
    assert eventually(lambda: not alive(int(note.read_text())))
    assert eventually(lambda: not list((tmp_path / "tmp").iterdir()))


@pytest.mark.plugin("datasets")
class TestBuildRun:
    def run(self, dataset: Any, catalog: Any, *, compile_only: bool = False, **settings: Any):
        config = BenchmarkConfig(**{"device": "cpu", "build_jobs": 2, **settings})
        run = bench.BuildRun(dataset, config, catalog, compile_only=compile_only)
        outcomes = run.run()
        return {outcome.solution: outcome for outcome in outcomes}, run

    def test_every_way_to_end(self, in_c: Any, problems: Any, catalog: Any) -> None:
        dataset = problems.dataset(
            in_c("good"),
            in_c("broken", code="void run( {\n"),
            in_c("load_build", "load build"),
            in_c("storage", "storage"),
            in_c("capability", "capability"),
            in_c("only_gpu", language="testgpu"),
            problems.solution("x", "mojo", language="mojo"),
            problems.good("python"),
            problems.solution("1 / 0", "python_broken"),
        )
        found, run = self.run(dataset, catalog)
        assert {name: outcome.state for name, outcome in found.items()} == {
            "good": "built",
            "broken": "failed",
            "load_build": "failed",
            "storage": "unavailable",
            "capability": "unavailable",
            "only_gpu": "other device",
            "mojo": "unavailable",
            "python": "built",
            "python_broken": "failed",
        }
        assert (found["good"].builder, found["broken"].builder) == ("testc", "testc")
        assert found["mojo"].builder == ""
        assert found["good"].seconds > 0
        assert "error:" in found["broken"].log
        assert "ZeroDivisionError" in found["python_broken"].reason
        assert "No builder for language 'mojo'" in found["mojo"].reason
        assert run.left_out == ()
        again, _ = self.run(dataset, catalog)
        assert (again["good"].state, again["broken"].state) == ("cached", "failed")

    def test_without_torch_there_is_only_compiling(
        self, in_c: Any, problems: Any, catalog: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("fib_datasets.build.find_spec", lambda name: None)
        dataset = problems.dataset(in_c("a"))
        with pytest.raises(CapabilityError, match="needs torch") as caught:
            self.run(dataset, catalog)
        assert "compile-only" not in str(caught.value)  # it does without; builders may not
        assert self.run(dataset, catalog, compile_only=True)[0]["a"].state == "built"
