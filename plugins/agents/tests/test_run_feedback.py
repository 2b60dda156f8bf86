"""``fib run --feedback``: records of a real run, in a file."""

import json
import signal
import subprocess
import sys
import time

import pytest

from fib_agents.feedback import MOST_BYTES, Feedback
from fib_tests.cli import *  # noqa: F403

RUN = ("run", "--device", "cpu", "--iterations", 5, "--num-trials", 2, "--warmup-runs", 1)
REFERENCE = "import torch\ndef run(a, b):\n    return a @ b\n"
TAIL = """import torch
def run(a, b):
    c = torch.zeros(a.shape[0], b.shape[1])
    c[:32] = a[:32] @ b
    return c
"""


def source(text, name, author="alice"):
    return {
        "name": name,
        "definition": "gemm",
        "author": author,
        "spec": {
            "language": "python",
            "target_hardware": ["cpu"],
            "entry_point": "main.py::run",
            "destination_passing_style": False,
        },
        "sources": [{"path": "main.py", "content": text}],
    }


@pytest.fixture
def dataset(tmp_path):
    """Returns the folder of a dataset with the given solutions."""
    root = tmp_path / "dataset"

    def write(*solutions, workloads=1):
        for folder in ("definitions/gemm", "solutions/gemm", "workloads/gemm"):
            (root / folder).mkdir(parents=True)
        definition = {
            "name": "gemm",
            "op_type": "matrix_product",
            "axes": {axis: {"type": "var"} for axis in "MKN"},
            "inputs": {
                "a": {"shape": ["M", "K"], "dtype": "float32"},
                "b": {"shape": ["K", "N"], "dtype": "float32"},
            },
            "outputs": {"c": {"shape": ["M", "N"], "dtype": "float32"}},
            "reference": REFERENCE,
        }
        (root / "definitions/gemm/gemm.json").write_text(json.dumps(definition))
        for one in solutions:
            (root / f"solutions/gemm/{one['name']}.json").write_text(json.dumps(one))
        inputs = {"a": {"type": "random"}, "b": {"type": "random"}}
        lines = [
            {
                "definition": "gemm",
                "workload": {
                    "uuid": f"w{number}",
                    "axes": {"M": 40, "K": 64, "N": 48 + number},
                    "inputs": inputs,
                },
            }
            for number in range(workloads)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (root / "workloads/gemm/gemm.jsonl").write_text(text)
        return root

    return write


def records(path):
    lines = path.read_bytes().splitlines()
    assert all(len(line) <= MOST_BYTES for line in lines)
    return [Feedback.from_json(line.decode()) for line in lines]


def test_a_record_for_each_evaluation_and_traces_as_without(dataset, fib, tmp_path):
    broken = "import torch\ndef run(a):\n    return a\n"
    root = dataset(
        source(REFERENCE, "right"), source(TAIL, "tail", "bob"), source(broken, "broken", "bob")
    )
    file = tmp_path / "feedback.jsonl"
    ran = fib(*RUN, "--local", root, "--feedback", file)
    assert ran.exit_code == 0, ran.output
    assert f"feedback appended to {file}" in ran.stderr.replace("\n", "")
    found = {one.solution: one for one in records(file)}
    assert sorted(found) == ["broken", "right", "tail"]
    right, tail, failed = found["right"], found["tail"], found["broken"]
    assert right.status == "PASSED"
    assert right.latency is not None
    assert right.latency.speedup
    assert right.limit is not None
    assert right.limit.nbytes == 4 * (40 * 64 + 64 * 48 + 40 * 48)
    assert right.best_known is None
    assert tail.status == "INCORRECT_NUMERICAL"
    assert tail.diagnosis_note == ""
    assert tail.likely_causes[0].cause == "missing_tail"
    assert tail.likely_causes[0].confidence == "likely"
    rows = tail.outputs[0].mismatch.dimensions[0]
    assert (rows.axis, rows.pattern, rows.ranges, rows.block) == ("M", "tail", ((32, 40),), 32)
    assert 0.1 < tail.outputs[0].wrong_share <= 0.2
    assert failed.status == "COMPILE_ERROR", failed.decisive_line
    assert failed.likely_causes[0].cause == "wrong_arguments"
    assert "positional argument" in failed.decisive_line
    # Bob's tries are in the order of their evaluation.
    tries = sorted((tail, failed), key=lambda one: one.timestamp)
    assert tries[0].since_last_try is None
    assert tries[1].since_last_try.solution == tries[0].solution
    assert tries[1].since_last_try.status_before == tries[0].status
    assert "+++" in tries[1].since_last_try.diff
    traces = list((root / "traces").rglob("*.jsonl"))
    assert "likely_causes" not in "".join(one.read_text() for one in traces)
    # A second run is appended, and compares with what the first one left.
    again = fib(*RUN, "--local", root, "--feedback", file, "--solutions", "tail", "-x")
    assert again.exit_code == 1, again.output
    assert len(records(file)) == 4
    last = records(file)[-1]
    assert last.likely_causes[0].cause == "missing_tail"
    assert last.best_known.solution == "right"


def test_only_some_workloads_of_a_wrong_solution_are_looked_into(dataset, fib, tmp_path):
    root, file = dataset(source(TAIL, "tail"), workloads=4), tmp_path / "feedback.jsonl"
    fib(*RUN, "--local", root, "--feedback", file, "--no-save-results")
    notes = [one.diagnosis_note for one in records(file)]
    assert notes[:3] == ["", "", ""]
    assert notes[3].startswith("not made: 3 workloads")


@pytest.mark.parametrize("name", ["-", "missing/file.jsonl", "."])
def test_refused_before_the_run(dataset, fib, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    root = dataset(source(REFERENCE, "right"))
    ran = fib(*RUN, "--local", root, "--feedback", name)
    assert ran.exit_code == 2
    assert "--feedback" in ran.stderr
    assert not (root / "traces").exists()


def test_an_interrupted_run_keeps_its_records(dataset, tmp_path):
    slow = (
        REFERENCE
        + "import time\nfirst = run\ndef run(a, b):\n    time.sleep(0.2)\n    return a @ b\n"
    )
    root = dataset(source(TAIL, "a_tail"), source(slow, "slow"), workloads=6)
    file = tmp_path / "feedback.jsonl"
    command = [sys.executable, "-m", "flashinfer_bench", *map(str, RUN), "--local", str(root)]
    process = subprocess.Popen(
        [*command, "--feedback", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 90
    while not (file.exists() and file.stat().st_size) and time.monotonic() < until:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    found = {(one.solution, one.workload): one for one in records(file)}
    wrong = [one for one in found.values() if one.solution == "a_tail"]
    assert wrong
    assert all("interrupted" in one.diagnosis_note for one in wrong)
    assert any(one.solution == "slow" for one in found.values())
