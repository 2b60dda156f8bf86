"""The whole loop with real candidate processes: nothing here is simulated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.data import Evaluation, ScalarInput, TensorSpec

pytestmark = pytest.mark.plugin("python")

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "warmup_runs": 1,
    "iterations": 5,
    "num_trials": 2,
    "seed": 9,
}

# name: (source, expected status, transient, what its log must hold)
BEHAVIOUR = {
    "good": ("def run(x):\n    return x + x", "PASSED", False, ""),
    "in_a_tuple": ("def run(x):\n    return (x * 2,)", "PASSED", False, ""),
    "by_name": ("def run(x):\n    return {'y': x * 2}", "PASSED", False, ""),
    "transposed_memory": (
        "def run(x):\n    return (x * 2).t().contiguous().t()",
        "PASSED",
        False,
        "",
    ),
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


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory, problems: Any) -> dict[str, Evaluation]:
    """One run over all kinds of solutions, by the fork executor where there is one."""
    solutions = [problems.solution(source, name) for name, (source, *_) in BEHAVIOUR.items()]
    solutions.append(
        problems.solution(
            "def run(x, y):\n    y.copy_(x)\n    y.mul_(2)",
            "destination",
            destination_passing_style=True,
        )
    )
    solutions.append(
        problems.solution(
            "def run(x, y):\n    y[1:] = x[1:] * 2",
            "forgets_a_row",
            destination_passing_style=True,
        )
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIB_CACHE_PATH", str(tmp_path_factory.mktemp("cache")))
        with Benchmark(problems.dataset(*solutions), BenchmarkConfig(**SETTINGS)) as benchmark:
            traces = benchmark.evaluate().traces["double"]
            assert benchmark.skipped == ()
    return {trace.solution: trace.evaluation for trace in traces}


@pytest.mark.parametrize("name", BEHAVIOUR)
def test_every_behaviour_gets_its_verdict(name: str, verdicts: dict[str, Evaluation]) -> None:
    _, status, transient, log = BEHAVIOUR[name]
    evaluation = verdicts[name]
    assert evaluation.provenance is not None
    assert (str(evaluation.status), evaluation.provenance.transient) == (status, transient)
    assert log in evaluation.log
    assert Evaluation.model_validate_json(evaluation.model_dump_json()) == evaluation


def test_destination_passing(verdicts: dict[str, Evaluation]) -> None:
    assert verdicts["destination"].status == "PASSED"


def test_outputs_are_poisoned(verdicts: dict[str, Evaluation]) -> None:
    evaluation = verdicts["forgets_a_row"]
    assert evaluation.status == "INCORRECT_NUMERICAL"
    assert evaluation.correctness is not None
    assert evaluation.correctness.extra is not None
    assert evaluation.correctness.extra["first_failing"]["index"] == [0, 0]
    assert evaluation.correctness.extra["first_failing"]["actual"] == "NaN"


def test_measurement(verdicts: dict[str, Evaluation]) -> None:
    performance, provenance = verdicts["good"].performance, verdicts["good"].provenance
    assert performance is not None
    assert performance.samples_ms is not None
    assert len(performance.samples_ms) == 10
    assert performance.latency_ms > 0
    assert performance.speedup_factor == pytest.approx(
        performance.reference_latency_ms / performance.latency_ms
    )
    assert provenance is not None
    assert (provenance.timer, provenance.seed, provenance.num_trials) == ("cpu", 9, 2)
    assert provenance.build_s is not None
    assert provenance.build_s > 0
    assert provenance.extra["cpu_threads"] >= 1


def test_hang_costs_its_time_limit_only(problems: Any) -> None:
    endless = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    endless += "def run(x):\n    print('going', flush=True)\n    time.sleep(1000)"
    dataset = problems.dataset(
        problems.solution(endless, "hangs"),
        problems.solution("import time\ntime.sleep(1000)", "hangs_on_import"),
    )
    config = BenchmarkConfig(**SETTINGS, timeout_seconds=2, profile_baseline=False)
    began = time.monotonic()
    with Benchmark(dataset, config) as benchmark:
        first, second = benchmark.evaluate().traces["double"]
    assert time.monotonic() - began < 60
    for trace in (first, second):
        assert trace.evaluation.status == "TIMEOUT"
        assert trace.evaluation.provenance.transient
        assert trace.evaluation.provenance.wall_s < 2 + 2
    assert "going" in first.evaluation.log
    assert "an evaluation may take 2 s" in first.evaluation.log


def test_reference_that_dies_is_a_skip(problems: Any) -> None:
    definition = problems.definition(reference="import os\ndef run(x):\n    os._exit(3)")
    dataset = problems.dataset(problems.good("a"), definitions=[definition])
    with Benchmark(dataset, BenchmarkConfig(**SETTINGS)) as benchmark:
        assert benchmark.evaluate().traces == {}
        (entry,) = benchmark.skipped
    assert entry.kind == "reference"
    assert "exited with code 3" in entry.reason


def test_scalars_and_several_outputs(problems: Any) -> None:
    definition = problems.definition(
        inputs={
            "x": TensorSpec(shape=["n", "k"], dtype="bfloat16"),
            "scale": TensorSpec(shape=None, dtype="float32"),
        },
        outputs={
            "y": TensorSpec(shape=["n", "k"], dtype="bfloat16"),
            "top": TensorSpec(shape=["n"], dtype="int64"),
            "total": TensorSpec(shape=None, dtype="float32"),
        },
        reference=(
            "def run(x, scale):\n"
            "    y = x * scale\n"
            "    return y, y.argmax(-1), float(y.float().sum())"
        ),
    )
    inplace = (
        "def run(x, scale, y, top, total):\n"
        "    y.copy_(x * scale)\n"
        "    top.copy_(y.argmax(-1))\n"
        "    total.copy_(y.float().sum())"
    )
    dataset = problems.dataset(
        problems.solution(definition.reference, "same"),
        problems.solution(inplace, "inplace", destination_passing_style=True),
        problems.solution(definition.reference.replace("argmax", "argmin"), "argmin"),
        definitions=[definition],
    )
    workload = dataset.workloads["double"][0].workload
    inputs = {**workload.inputs, "scale": ScalarInput(value=0.5)}
    changed = workload.model_copy(update={"inputs": inputs})
    dataset.workloads["double"][0] = dataset.workloads["double"][0].model_copy(
        update={"workload": changed}
    )
    with Benchmark(dataset, BenchmarkConfig(**SETTINGS)) as benchmark:
        found = benchmark.evaluate().traces["double"]
    statuses = {trace.solution: str(trace.evaluation.status) for trace in found}
    assert statuses == {"same": "PASSED", "inplace": "PASSED", "argmin": "INCORRECT_NUMERICAL"}


def test_same_seed_same_outputs(problems: Any) -> None:
    """Errors of a wrong solution depend on the inputs, and so show whether they are the same."""
    dataset = problems.dataset(problems.solution("def run(x):\n    return x * 3", "wrong"))
    errors = []
    with Benchmark(dataset) as benchmark:
        for seed in (1, 1, 2):
            config = BenchmarkConfig(**{**SETTINGS, "seed": seed, "profile_baseline": False})
            evaluation = benchmark.evaluate(config).traces["double"][0].evaluation
            assert evaluation is not None
            assert evaluation.correctness is not None
            errors.append(evaluation.correctness.max_absolute_error)
    assert errors[0] == errors[1] != errors[2]


@pytest.mark.parametrize("isolated", [False, True])
def test_state_of_a_process(isolated: bool, problems: Any) -> None:
    """What a solution leaves behind in its process is seen by nobody else."""
    leaves = (
        "import builtins, torch\n"
        "before = getattr(builtins, 'left_behind', 0)\n"
        "builtins.left_behind = before + 1\n"
        "print('found', before)\n"
        "def run(x):\n"
        "    return x * 2"
    )
    dataset = problems.dataset(
        problems.solution(leaves, "a"), problems.solution(leaves, "b"), workloads=2
    )
    # Without trust nothing is evaluated once more, for which there would be a fresh process.
    config = BenchmarkConfig(**SETTINGS, use_isolated_runner=isolated, trust="off")
    with Benchmark(dataset, config) as benchmark:
        found = benchmark.evaluate().traces["double"]
    logs = [trace.evaluation.log for trace in found]
    first_pass, second_pass = logs[:2], logs[2:]
    assert all("found 0" in log for log in first_pass)
    # A process that is kept has been built once; a fresh one builds, and prints, again.
    assert [("found 0" in log) for log in second_pass] == [isolated, isolated]


def test_spawn_executor(problems: Any) -> None:
    dataset = problems.dataset(
        problems.good("a"), problems.solution("import os\ndef run(x):\n    os._exit(1)", "exits")
    )
    with Benchmark(dataset, BenchmarkConfig(**SETTINGS, executor="spawn")) as benchmark:
        found = benchmark.evaluate().traces["double"]
    assert [str(trace.evaluation.status) for trace in found] == ["PASSED", "RUNTIME_ERROR"]


RUN_FOR_EVER = """
import sys
from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.data import TraceSet
with Benchmark(TraceSet.from_path(sys.argv[1]), BenchmarkConfig(device="cpu")) as benchmark:
    try:
        benchmark.run_all()
    except KeyboardInterrupt:
        print("interrupted")
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_ctrl_c_keeps_traces_and_leaves_no_process(problems: Any, tmp_path: Path) -> None:
    from flashinfer_bench.data import save_json_file, save_jsonl_file

    root, note = tmp_path / "dataset", tmp_path / "pid"
    endless = (
        "import os, pathlib, time\n"
        "def run(x):\n"
        f"    pathlib.Path({str(note)!r}).write_text(str(os.getpid()))\n"
        "    time.sleep(1000)"
    )
    dataset = problems.dataset(problems.good("a_quick"), problems.solution(endless, "b_endless"))
    save_json_file(dataset.definitions["double"], root / "definitions" / "double.json")
    for solution in dataset.solutions["double"]:
        save_json_file(solution, root / "solutions" / f"{solution.name}.json")
    save_jsonl_file(dataset.workloads["double"], root / "workloads" / "double.jsonl")
    with subprocess.Popen(
        [sys.executable, "-c", RUN_FOR_EVER, str(root)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            wait_for(lambda: note.exists() and note.read_text())
            candidate = int(note.read_text())
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of the group
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (output, process.returncode) == ("interrupted\n", 0)
    wait_for(lambda: not alive(candidate))
    (path,) = (root / "traces").rglob("*.jsonl")
    (line,) = path.read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["solution"] == "a_quick"


def has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.mark.gpu
@pytest.mark.skipif(not has_cuda(), reason="needs a CUDA device")
@pytest.mark.parametrize("isolated", [False, True])
def test_cuda(isolated: bool, problems: Any) -> None:
    out_of_bounds = (
        "import torch\n"
        "def run(x):\n"
        "    return x.flatten()[torch.full((4, 3), 2**40, device=x.device)]"
    )
    dataset = problems.dataset(
        problems.good("a_good"),
        problems.solution(out_of_bounds, "b_out_of_bounds"),
        problems.solution("def run(x):\n    return x.cpu() * 2", "c_on_the_cpu"),
        problems.solution("def run(x):\n    return x * 3", "d_wrong"),
        problems.good("e_good"),
        workloads=2,
    )
    settings = {**SETTINGS, "device": "cuda:0", "use_isolated_runner": isolated}
    with Benchmark(dataset, BenchmarkConfig(**settings)) as benchmark:
        found = benchmark.evaluate().traces["double"]
    statuses = {trace.solution: str(trace.evaluation.status) for trace in found}
    assert statuses["a_good"] == statuses["e_good"] == "PASSED"
    assert statuses["b_out_of_bounds"] == "RUNTIME_ERROR"
    assert statuses["d_wrong"] == "INCORRECT_NUMERICAL"
    assert len(found) == 10
