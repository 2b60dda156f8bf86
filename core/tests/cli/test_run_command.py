"""``fib run``: real runs of real solutions on the CPU, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fib_tests.cli import rows
from flashinfer_bench.plugins import reset_default_catalog

pytestmark = [pytest.mark.torch, pytest.mark.plugin("python"), pytest.mark.timeout(400)]

QUICK = ["--device", "cpu", "--iterations", "2", "--warmup-runs", "0", "--num-trials", "1"]
WRONG = "def run(x):\n    return x * 3\n"
SLEEPER = """
import os, pathlib, time

def run(x):
    pathlib.Path({marker!r}).write_text(str(os.getpid()))
    time.sleep(600)
    return x * 2
"""


def traces_of(root):
    path = root / "traces/op/double.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def by_solution(text):
    return {row["solution"]: row for row in rows(text)}


@pytest.fixture
def dataset(maker, monkeypatch):
    """One definition and workload; a good, a wrong, and a solution that does not compile."""
    # Else what is disputed on a busy machine would be measured again.
    monkeypatch.setenv("FIB_DISABLE_PLUGINS", "judge")
    reset_default_catalog()
    maker.definition()
    maker.workload()
    maker.solution("good_double", author="alice")
    maker.solution("wrong_double", author="bob", code=WRONG)
    maker.solution("broken_double", author="carol", code="def run(x:\n")
    yield maker
    reset_default_catalog()  # the next test has the judge again


def test_a_run_records_traces_and_ends_with_a_table(fib_process, dataset):
    done = fib_process("run", "--local", dataset.root, *QUICK)
    assert done.returncode == 0, done.stderr
    results = by_solution(done.stdout)
    assert {name: row["status"] for name, row in results.items()} == {
        "good_double": "PASSED",
        "wrong_double": "INCORRECT_NUMERICAL",
        "broken_double": "COMPILE_ERROR",
    }
    assert float(results["good_double"]["geomean_ms"]) > 0
    assert float(results["good_double"]["speedup"]) > 0
    assert results["wrong_double"]["geomean_ms"] == ""
    recorded = {one["solution"]: one["evaluation"]["status"] for one in traces_of(dataset.root)}
    assert recorded == {name: row["status"] for name, row in results.items()}
    assert "3 evaluations in" in done.stderr
    assert f"traces written to {dataset.root / 'traces'}" in done.stderr
    assert "[3/3]" in done.stderr
    check = fib_process("validate", "--local", dataset.root)
    assert check.returncode == 0, check.stdout


def test_what_passes_only_within_the_default_tolerance_is_marked(fib_process, maker, monkeypatch):
    maker.definition()
    maker.workload()
    maker.solution("off_double", code="def run(x):\n    return x * 2.01\n")
    command = ["run", "--local", maker.root, *QUICK, "--seed", "1"]
    loose = fib_process(*command)
    assert by_solution(loose.stdout)["off_double"]["status"] == "PASSED, loose tolerance"
    strict = fib_process(*command, "--tolerance", "dtype")
    assert by_solution(strict.stdout)["off_double"]["status"] == "INCORRECT_NUMERICAL"
    asked = fib_process(*command, "--tolerance", "dtype", "--rtol", "0.01")
    assert by_solution(asked.stdout)["off_double"]["status"] == "PASSED"
    told = [one["evaluation"]["provenance"]["extra"]["tolerance"] for one in traces_of(maker.root)]
    assert told == ["fixed", "dtype", "dtype"]


def test_json_and_selected_solutions_and_settings(fib_process, dataset, tmp_path):
    (tmp_path / "config.yaml").write_text("iterations: 3\nnum_trials: 1\nwarmup_runs: 0\n")
    done = fib_process(
        "run", "--local", dataset.root, "--solutions", "good_double", "--device", "cpu", "--json",
        "--config", tmp_path / "config.yaml", "--seed", "7", "--log-level", "WARNING", "--strict",
        "--no-profile-baseline", "--use-isolated-runner",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema_version"] == 1
    assert document["interrupted"] is False
    (one,) = document["datasets"]
    assert (one["planned"], one["evaluations"], one["statuses"]) == (1, 1, {"PASSED": 1})
    (result,) = one["results"]
    assert result["solution"] == "good_double"
    assert result["speedup"] is None
    assert "[1/1]" not in done.stderr
    (trace,) = traces_of(dataset.root)
    provenance = trace["evaluation"]["provenance"]
    assert (provenance["seed"], provenance["iterations"]) == (7, 3)


def test_resume_does_what_is_left(fib_process, dataset):
    first = fib_process("run", "--local", dataset.root, *QUICK, "--solutions", "good_double")
    assert first.returncode == 0, first.stderr
    second = fib_process("run", "--local", dataset.root, *QUICK, "--resume")
    assert second.returncode == 0, second.stderr
    assert set(by_solution(second.stdout)) == {"wrong_double", "broken_double"}
    third = fib_process("run", "--local", dataset.root, *QUICK, "--resume")
    assert third.returncode == 0, third.stderr
    assert third.stdout == ""
    assert "nothing to do" in third.stderr
    assert len(traces_of(dataset.root)) == 3


def test_what_this_machine_cannot_build_is_skipped_with_the_reason(fib_process, dataset):
    dataset.solution("mojo_double", language="mojo", code="fn run(): pass")
    done = fib_process(
        "run", "--local", dataset.root, *QUICK, "--solutions", "good_double", "mojo_double"
    )
    assert done.returncode == 4
    assert set(by_solution(done.stdout)) == {"good_double"}
    assert "skipped 1 evaluations:" in done.stderr
    assert "No builder for language 'mojo'" in done.stderr


def test_datasets_are_run_one_after_the_other(fib_process, dataset, tmp_path):
    other = type(dataset)(tmp_path / "other")
    other.definition("double")
    other.workload("double")
    other.solution("other_double", "double")
    done = fib_process(
        "run", "--local", dataset.root, other.root, *QUICK, "--op-type", "op", "--strict"
    )
    assert done.returncode == 1
    assert set(by_solution(done.stdout)) == {
        "good_double",
        "wrong_double",
        "broken_double",
        "other_double",
    }
    assert len(traces_of(dataset.root)) == 3
    assert len(traces_of(other.root)) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="needs the limits of Linux")
def test_a_disk_that_fills_up_keeps_what_was_written(fib_process, dataset):
    import resource

    for index in range(5):
        dataset.solution(f"good_{index}", author="alice")
    limited = fib_process(
        "run", "--local", dataset.root, *QUICK,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)),
    )  # fmt: skip
    assert limited.returncode == 4, limited.stderr
    kept = traces_of(dataset.root)
    assert 1 <= len(kept) < 8
    resumed = fib_process("run", "--local", dataset.root, *QUICK, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    done = [one["solution"] for one in traces_of(dataset.root)]
    assert len(done) == len(set(done)) == 8


@pytest.fixture
def sleepy(maker, monkeypatch):
    """A solution that is done at once, and one that would take minutes."""
    monkeypatch.setenv("FIB_SANDBOX_WRITABLE", str(maker.root))  # for its marker
    maker.definition()
    maker.workload()
    maker.solution("a_quick", author="alice")
    code = SLEEPER.format(marker=str(maker.root / "asleep"))
    maker.solution("b_sleeper", author="bob", code=code)
    return maker


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_ctrl_c_keeps_what_is_done_and_leaves_no_process(sleepy, fib_process):
    marker = sleepy.root / "asleep"
    command = [sys.executable, "-m", "flashinfer_bench", "run", "--local", sleepy.root, *QUICK]
    with subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ,
    ) as process:
        try:
            _wait_for(lambda: marker.exists() and marker.read_text(), process)
            sleeper = Path(f"/proc/{marker.read_text()}/cmdline")
            assert sleeper.read_bytes()
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert "interrupted after 1 evaluation in" in err
    assert "Traceback" not in err
    assert set(by_solution(out)) == {"a_quick"}
    assert [one["solution"] for one in traces_of(sleepy.root)] == ["a_quick"]
    assert fib_process("validate", "--local", sleepy.root, "--strict").returncode == 0
    assert not sleeper.exists() or not sleeper.read_bytes()


def _wait_for(condition, process):
    deadline = time.monotonic() + 240
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


ADDITION = """
from typing import Annotated, Optional

import typer

from flashinfer_bench.cli.run_options import RunAddition
from flashinfer_bench.plugins import CommandSpec, hookimpl

class Counting(RunAddition):
    def __init__(self, word):
        self.word, self.count = word, 0

    def choose(self, trace_set):
        trace_set.definitions.pop("triple")
        return trace_set

    def evaluation_finished(self, trace):
        self.count += 1

    def sum_up(self):
        print(f"{self.word}: {self.count}")

def count(word: Annotated[Optional[str], typer.Option("--count")] = None):
    return Counting(word) if word else None

def clash(seed: Annotated[Optional[int], typer.Option("--seed")] = None):
    return None

@hookimpl
def fib_register_commands():
    yield CommandSpec(name="run count", factory="counting:count", summary="Count.")
    yield CommandSpec(name="run clash", factory="counting:clash", summary="Steal a name.")
    yield CommandSpec(name="run broken", factory="nowhere:count", summary="Fail.")
"""


def test_plugins_add_options_that_watch_and_narrow_a_run(fib_process, dataset, tmp_path):
    (tmp_path / "counting.py").write_text(ADDITION)
    env = {"FIB_PLUGINS": "counting", "PYTHONPATH": str(tmp_path), "FIB_STRICT_PLUGINS": "0"}
    dataset.definition("triple")
    dataset.workload("triple")
    dataset.solution("good_triple", definition="triple")
    done = fib_process("run", dataset.root, *QUICK, "--count", "seen", env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\nseen: 3\n")
    assert "'run clash' of counting is refused: --seed is already an option" in done.stderr
    assert "'run broken' of counting is refused: " in done.stderr
    done = fib_process("run", dataset.root, *QUICK, "--solution", "good*", env=env)
    assert set(by_solution(done.stdout)) == {"good_double", "good_triple"}
