"""The whole loop with real candidate processes and core alone: nothing here is simulated."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import pytest

from fib_tests import forked
from fib_tests.plugins import PLUGIN_FOLDER
from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.data import (
    Evaluation,
    ScalarInput,
    TensorSpec,
    save_json_file,
    save_jsonl_file,
)
from flashinfer_bench.plugins import reset_default_catalog

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "warmup_runs": 1,
    "iterations": 5,
    "num_trials": 2,
    "seed": 9,
}
CORE_ALONE = {"FIB_NO_PLUGINS": "1", "FIB_PLUGINS": "candidate_test_plugin"}

# name: (source, expected status, transient, what its log must hold)
BEHAVIOUR = {
    "good": ("def run(x):\n    return x + x", "PASSED", False, ""),
    "in_a_tuple": ("def run(x):\n    return (x * 2,)", "PASSED", False, ""),
    "by_name": ("def run(x):\n    return {'y': x * 2}", "PASSED", False, ""),
    "transposed": ("def run(x):\n    return (x * 2).t().contiguous().t()", "PASSED", False, ""),
    "talks": ("print('hello')\ndef run(x):\n    return x * 2", "PASSED", False, "hello"),
    "wrong": ("def run(x):\n    return x * 3", "INCORRECT_NUMERICAL", False, "first at"),
    "not_a_number": (
        "def run(x):\n    return x * float('nan')",
        "INCORRECT_NUMERICAL",
        False,
        "out of place",
    ),
    "flat": ("def run(x):\n    return (x * 2).flatten()", "INCORRECT_SHAPE", False, "shape [12]"),
    "two": ("def run(x):\n    return x * 2, x", "INCORRECT_SHAPE", False, "2 outputs"),
    "nothing": ("def run(x):\n    pass", "INCORRECT_SHAPE", False, "0 outputs"),
    "half": ("def run(x):\n    return (x * 2).half()", "INCORRECT_DTYPE", False, "float16"),
    "syntax": ("def run(x:\n    return x", "COMPILE_ERROR", False, "SyntaxError"),
    "no_module": (
        "import no_such_module\ndef run(x):\n    pass",
        "COMPILE_ERROR",
        False,
        "no_such",
    ),
    "no_entry": ("def walk(x):\n    pass", "COMPILE_ERROR", False, "run"),
    "dies_on_import": (
        "import os\nos.kill(os.getpid(), 9)\ndef run(x):\n    pass",
        "COMPILE_ERROR",
        True,
        "SIGKILL",
    ),
    "raises": ("def run(x):\n    return 1 / 0", "RUNTIME_ERROR", False, "ZeroDivisionError"),
    "a_string": ("def run(x):\n    return 'y'", "RUNTIME_ERROR", False, "str"),
    "exits": ("import os\ndef run(x):\n    os._exit(0)", "RUNTIME_ERROR", True, "code 0"),
    "segfaults": (
        "import os, signal\ndef run(x):\n    os.kill(os.getpid(), signal.SIGSEGV)",
        "RUNTIME_ERROR",
        True,
        "SIGSEGV",
    ),
    "fails_when_timed": (
        "calls = []\ndef run(x):\n    calls.append(1)\n    assert len(calls) < 5\n    return x * 2",
        "RUNTIME_ERROR",
        False,
        "AssertionError",
    ),
}


OTHERS = {
    "destination": "def run(x, y):\n    y.copy_(x)\n    y.mul_(2)",
    "forgets_a_row": "def run(x, y):\n    y[1:] = x[1:] * 2",
    "dies_only_when_timed": "import os\nn = []\ndef run(x):\n    n.append(1)\n"
    "    return x * 2 if len(n) < 5 else os._exit(0)",
}
# What a solution leaves behind in its process is seen by nobody else.
LEAVES = """
import builtins
before = getattr(builtins, "left_behind", 0)
builtins.left_behind = before + 1
print("found", before)
def run(x):
    return x * 2
"""
HANGS = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def run(x):
    print("going", flush=True)
    time.sleep(1000)
"""
SEVERAL = """
def run(x, scale):
    y = x * scale
    return y, y.argmax(-1), float(y.float().sum())
"""
SEVERAL_IN_PLACE = """
def run(x, scale, y, top, total):
    y.copy_(x * scale)
    top.copy_(y.argmax(-1))
    total.copy_(y.float().sum())
"""


def _dataset(problems):
    several = problems.definition(
        "several",
        inputs={
            "x": TensorSpec(shape=["n", "k"], dtype="bfloat16"),
            "scale": TensorSpec(shape=None, dtype="float32"),
        },
        outputs={
            "y": TensorSpec(shape=["n", "k"], dtype="bfloat16"),
            "top": TensorSpec(shape=["n"], dtype="int64"),
            "total": TensorSpec(shape=None, dtype="float32"),
        },
        reference=SEVERAL,
    )
    dying = problems.definition("dying", reference="import os\ndef run(x):\n    os._exit(3)")
    made = problems.dataset(
        *(problems.solution(source, name) for name, (source, *_) in BEHAVIOUR.items()),
        *(
            problems.solution(source, name, destination_passing_style="x, y" in source)
            for name, source in OTHERS.items()
        ),
        problems.solution(SEVERAL, "same", "several"),
        problems.solution(SEVERAL_IN_PLACE, "inplace", "several", destination_passing_style=True),
        problems.solution(SEVERAL.replace("argmax", "argmin"), "argmin", "several"),
        problems.good("of_nothing", "dying"),
        problems.solution(LEAVES, "a", "leaving"),
        problems.solution(LEAVES, "b", "leaving"),
        problems.solution(HANGS, "hangs", "slow"),
        problems.solution("import time\ntime.sleep(1000)", "hangs_on_import", "slow"),
        definitions=[
            *(problems.definition(name) for name in ("double", "leaving", "slow")),
            *(several, dying),
        ],
    )
    (trace,) = made.workloads["several"]
    inputs = {**trace.workload.inputs, "scale": ScalarInput(value=0.5)}
    workload = trace.workload.model_copy(update={"inputs": inputs})
    made.workloads["several"] = [trace.model_copy(update={"workload": workload})]
    (trace,) = made.workloads["leaving"]
    again = trace.workload.model_copy(update={"uuid": "again"})
    made.workloads["leaving"] = [trace, trace.model_copy(update={"workload": again})]
    return made


@pytest.fixture(scope="module", autouse=True)
def core_alone(tmp_path_factory):
    """No plugin is loaded but that of the tests, whatever is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PLUGIN_FOLDER)
        for name, value in CORE_ALONE.items():
            patch.setenv(name, value)
        patch.setenv("FIB_CACHE_PATH", str(tmp_path_factory.mktemp("cache")))
        reset_default_catalog()
        yield
    reset_default_catalog()


@pytest.fixture(scope="module")
def benchmark(core_alone, problems):
    """One fork server for all runs."""
    with Benchmark(_dataset(problems), BenchmarkConfig(**SETTINGS)) as benchmark:
        yield benchmark


@pytest.fixture(scope="module")
def found(benchmark):
    """What came of one run over all kinds of solutions, by their names."""
    names = ["double", "several", "dying"]
    config = BenchmarkConfig(**SETTINGS, definitions=names)
    traces = benchmark.evaluate(config).traces
    (skipped,) = benchmark.skipped
    assert (skipped.kind, "exited with code 3" in skipped.reason) == ("reference", True)
    assert set(traces) == {"double", "several"}
    return {trace.solution: trace.evaluation for group in traces.values() for trace in group}


@pytest.mark.parametrize("name", BEHAVIOUR)
def test_every_behaviour_gets_its_verdict(name, found):
    _, status, transient, log = BEHAVIOUR[name]
    evaluation = found[name]
    assert evaluation.provenance is not None
    assert (str(evaluation.status), evaluation.provenance.transient) == (status, transient)
    assert log in evaluation.log
    assert evaluation.provenance.extra["measurement"] == "basic"
    assert Evaluation.model_validate_json(evaluation.model_dump_json()) == evaluation


def test_destinations_are_poisoned(found):
    assert found["destination"].status == "PASSED"
    evaluation = found["forgets_a_row"]
    assert evaluation.status == "INCORRECT_NUMERICAL"
    assert evaluation.correctness is not None
    assert evaluation.correctness.extra is not None
    assert evaluation.correctness.extra["first_failing"]["index"] == [0, 0]
    assert evaluation.correctness.extra["first_failing"]["actual"] == "NaN"


def test_hang_costs_its_time_limit_only(benchmark):
    settings = {"timeout_seconds": 3, "profile_baseline": False, "definitions": ["slow"]}
    first, second = benchmark.evaluate(BenchmarkConfig(**SETTINGS, **settings)).traces["slow"]
    for trace in (first, second):
        assert trace.evaluation.status == "TIMEOUT"
        assert trace.evaluation.provenance.transient
        assert trace.evaluation.provenance.wall_s < 60
    assert "going" in first.evaluation.log
    assert "an evaluation may take 3 s" in first.evaluation.log


def test_an_interrupted_run_keeps_what_it_has_and_the_next_one_is_whole(problems, tmp_path):
    note = tmp_path / "note"
    at_once = f"import time\nopen({str(note)!r}, 'w').close()\ntime.sleep(1000)"
    when_called = "def run(x):\n    " + at_once.replace("\n", "\n    ")
    dataset = problems.dataset(
        problems.good("good"),
        problems.solution(when_called, "call"),
        problems.solution(at_once, "import"),
        problems.good("reference", "slow"),
        definitions=[problems.definition(), problems.definition("slow", reference=when_called)],
    )

    def interrupt():
        while not note.exists():
            time.sleep(0.01)
        benchmark.interrupt()

    with Benchmark(dataset, BenchmarkConfig(**SETTINGS)) as benchmark:
        benchmark.interrupt()  # of no run
        for name in ("call", "import", "reference"):
            note.unlink(missing_ok=True)
            threading.Thread(target=interrupt, daemon=True).start()
            benchmark.config = BenchmarkConfig(**SETTINGS, solutions=["good", name])
            found = benchmark.run_all().traces
            assert [trace.solution for trace in found.get("double", [])] == ["good"]
            assert "slow" not in found
            assert benchmark.skipped == ()


@pytest.mark.parametrize("isolated", [False, True])
def test_state_of_a_process(isolated, benchmark):
    config = BenchmarkConfig(**SETTINGS, use_isolated_runner=isolated, definitions=["leaving"])
    logs = [trace.evaluation.log for trace in benchmark.evaluate(config).traces["leaving"]]
    first_pass, second_pass = logs[:2], logs[2:]
    assert all("found 0" in log for log in first_pass)
    # A process that is kept has been built once; a fresh one builds, and prints, again.
    assert [("found 0" in log) for log in second_pass] == [isolated, isolated]


def test_spawn_executor(benchmark):
    config = BenchmarkConfig(**SETTINGS, executor="spawn", solutions=["good", "exits"])
    traces = benchmark.evaluate(config).traces["double"]
    statuses = {trace.solution: str(trace.evaluation.status) for trace in traces}
    assert statuses == {"good": "PASSED", "exits": "RUNTIME_ERROR"}


def _stored(problems, root, **sources):
    """Write a dataset with the smallest problem and these solutions."""
    solutions = [problems.solution(source, name) for name, source in sources.items()]
    dataset = problems.dataset(*solutions)
    save_json_file(dataset.definitions["double"], root / "definitions" / "double.json")
    for solution in dataset.solutions["double"]:
        save_json_file(solution, root / "solutions" / f"{solution.name}.json")
    save_jsonl_file(dataset.workloads["double"], root / "workloads" / "double.jsonl")
    return root


class TestPluginsOfStrangers:
    """By the command line, as users do; the broken ones among them are only told of."""

    @pytest.fixture
    def fib_run(self, problems, tmp_path):
        source = "import os\nprint(os.environ.get('STRANGERS_SANDBOX'))\ndef run(x): return x * 2"
        root = _stored(problems, tmp_path / "dataset", good=source)

        def run(*options, plugins="candidate_test_plugin"):
            path = os.pathsep.join([str(PLUGIN_FOLDER), *(entry for entry in sys.path if entry)])
            env = {"FIB_PLUGINS": plugins, "FIB_STRICT_PLUGINS": "0", "PYTHONPATH": path}
            command = [sys.executable, "-m", "flashinfer_bench", "run", "--local", str(root)]
            words = ["--device", "cpu", "--iterations", "5", *options]
            done = forked.run([*command, *words], env={**os.environ, **env})
            lines = [path.read_text() for path in (root / "traces").rglob("*.jsonl")]
            return done, [json.loads(line)["evaluation"] for line in "".join(lines).splitlines()]

        return run

    def test_none_at_all(self, fib_run):
        done, evaluations = fib_run("--sandbox", "strict")
        assert done.returncode == 4, done.stderr
        assert "fib-sandbox-linux==" in done.stderr
        assert evaluations == []
        done, (evaluation,) = fib_run()
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("solutions run without a sandbox: none is installed") == 1
        assert evaluation["provenance"]["extra"]["measurement"] == "basic"
        assert evaluation["log"] == "--- output ---\nNone"

    def test_a_measurement_and_a_sandbox(self, fib_run):
        plugins = "candidate_test_plugin,strangers_plugin"
        done, (evaluation,) = fib_run("--sandbox", "strict", plugins=plugins)
        assert done.returncode == 0, done.stderr
        assert evaluation["status"] == "PASSED"
        assert evaluation["provenance"]["extra"]["measurement"] == "stranger"
        assert "cpu in True" in evaluation["log"]
        assert "measured by a stranger, for the last time" in evaluation["log"]
        for kind in ("measurement", "sandbox"):
            assert done.stderr.count(f"{kind} 'raising' of") == 1
        assert "it has come apart" in done.stderr
