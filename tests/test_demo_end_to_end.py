"""`fib run` on the sample dataset ends as announced, for every solution and status."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fib_tests import forked
from flashinfer_bench.data import Trace, TraceSet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
EXPECTED = json.loads((EXAMPLES / "sources" / "expected.json").read_text(encoding="utf-8"))
# An extension of torch takes as long to compile as ten others: one that can be compiled is enough.
LEFT_OUT = {
    name
    for name, row in EXPECTED.items()
    if (row["language"], row["binding"]) == ("cpp", "torch")
    and row["role"] != "no-compile"
    and name != "grace_rmsnorm_torch_ext"
}
# A run on the CPU leaves out what only works on CUDA devices.
RUNS = {
    name: row
    for name, row in EXPECTED.items()
    if row["language"] != "cuda" and name not in LEFT_OUT
}
if shutil.which("c++") is None:
    pytestmark.append(pytest.mark.skip(reason="no C++ compiler: some solutions cannot be built"))


def telling_workloads() -> set[str]:
    """Return as few workloads as show every status that a solution ends with."""
    shown: set[tuple[str, str]] = set()
    chosen = set()
    for name, row in RUNS.items():
        for uuid, status in row["status"].items():
            if (name, status) not in shown and uuid not in chosen:
                chosen.add(uuid)
                shown |= {(n, r["status"][uuid]) for n, r in RUNS.items() if uuid in r["status"]}
    return chosen


WORKLOADS = telling_workloads()
QUICK = ["--device", "cpu", "--iterations", "5", "--warmup-runs", "1", "--num-trials", "1"]


@dataclass
class Run:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


@dataclass
class Demo(Run):
    """A finished run on a copy of the dataset."""

    dataset: Path


def fib(dataset: Path, cache: str, *arguments: str) -> Run:
    command = [sys.executable, "-m", "flashinfer_bench", *arguments, "--local", str(dataset)]
    # Triton's interpreter stands in for a device.
    environment = {**os.environ, "FIB_CACHE_PATH": cache, "TRITON_INTERPRET": "1"}
    done = forked.run(command, env=environment, timeout=500)
    return Run(done.returncode, done.stdout, done.stderr)


def run_demo(folder: Path, cache: str) -> None:
    ignored = shutil.ignore_patterns("traces", *(f"{name}.json" for name in LEFT_OUT))
    shutil.copytree(EXAMPLES / "sample-dataset", folder / "dataset", ignore=ignored)
    for path in (folder / "dataset" / "workloads").rglob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        kept = (line for line in lines if json.loads(line)["workload"]["uuid"] in WORKLOADS)
        path.write_text("".join(kept))
    outcome = fib(folder / "dataset", cache, "run", *QUICK)
    (folder / "run.json").write_text(json.dumps(vars(outcome)))


@pytest.fixture(scope="module")
def demo(once, build_cache) -> Demo:
    folder = once("sample-demo", lambda folder: run_demo(folder, build_cache))
    return Demo(**json.loads((folder / "run.json").read_text()), dataset=folder / "dataset")


@pytest.fixture(scope="module")
def traces(demo: Demo) -> dict[tuple[str, str], Trace]:
    loaded = TraceSet.from_path(str(demo.dataset)).traces.values()
    listed = [trace for traces in loaded for trace in traces]
    by_key = {(trace.solution, trace.workload.uuid): trace for trace in listed}
    assert len(by_key) == len(listed), "a pair was run twice"
    return by_key


def test_the_run_ends_well(demo: Demo):
    assert demo.returncode == 0, demo.stderr


def test_every_pair_was_run_once(traces):
    announced = {
        (name, uuid) for name, row in RUNS.items() for uuid in WORKLOADS & {*row["status"]}
    }
    assert set(traces) == announced


def test_what_is_for_another_device_is_told(demo: Demo):
    assert len(EXPECTED) - len(LEFT_OUT) - len(RUNS) >= 10
    assert "skipped" in demo.stderr
    assert "cuda" in demo.stderr


@pytest.mark.parametrize("solution", RUNS)
def test_solution_ends_as_announced(solution, traces):
    announced = EXPECTED[solution]["status"]
    for uuid, status in ((uuid, announced[uuid]) for uuid in WORKLOADS & {*announced}):
        evaluation = traces[solution, uuid].evaluation
        assert evaluation.status == status, evaluation.log


def test_passing_traces_carry_a_measurement(traces):
    passed = [trace.evaluation for trace in traces.values() if trace.is_successful()]
    assert passed
    for evaluation in passed:
        assert evaluation.performance.latency_ms > 0
        assert evaluation.performance.reference_latency_ms > 0
        assert evaluation.correctness.max_absolute_error >= 0


def test_failures_say_why(traces):
    for (solution, _), trace in traces.items():
        if EXPECTED[solution]["role"] in {"crash", "no-compile"}:
            assert trace.evaluation.log.strip(), solution


def test_the_table_names_every_solution(demo: Demo):
    for solution in RUNS:
        assert solution in demo.stdout


def test_the_dataset_itself_is_untouched(demo: Demo):
    for path in (EXAMPLES / "sample-dataset").rglob("*.*"):
        relative = path.relative_to(EXAMPLES / "sample-dataset")
        others = relative.parts[0] in ("traces", "workloads") or path.stem in LEFT_OUT
        if path.is_file() and not others:
            assert (demo.dataset / relative).read_bytes() == path.read_bytes(), relative


def test_the_result_is_a_sound_dataset(demo: Demo, build_cache):
    checked = fib(demo.dataset, build_cache, "validate", "--json")
    assert checked.returncode == 0, checked.stderr
    named = {name for name in EXPECTED if f"{name}.json" in checked.stdout}
    assert {EXPECTED[name]["role"] for name in named} <= {"no-compile"}
