"""Trying the checker of torch out in another process, and remembering what came of it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from flashinfer_bench.apply import disk
from flashinfer_bench.apply.dispatch import trial


@pytest.fixture(autouse=True)
def unknown(monkeypatch, tmp_path):
    """A torch of which nothing is known, and an empty cache."""
    monkeypatch.setattr(trial, "KNOWN_RELEASES", ("0.4",))
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))


@pytest.fixture
def runs(monkeypatch):
    """Answers of other processes, which are not started; returns how often one was asked."""
    asked = []

    def answer(*answers):
        queue = list(answers)

        def run():
            asked.append(1)
            return queue.pop(0) if len(queue) > 1 else queue[0]

        monkeypatch.setattr(trial, "_run", run)
        return asked

    return answer


def said(*lines, status=0):
    return status, "\n".join([json.dumps(trial._identity()), *lines]) + "\n"


GOOD = "verdict: null"


def test_a_known_release_starts_no_process(monkeypatch, runs):
    release = ".".join(torch.__version__.split(".")[:2])
    monkeypatch.setattr(trial, "KNOWN_RELEASES", (release,))
    asked = runs(said(GOOD))
    assert trial.problem() is None
    assert asked == []


def test_a_release_is_no_prefix_of_another(monkeypatch, runs):
    monkeypatch.setattr(trial, "KNOWN_RELEASES", ("2.1", "2"))
    asked = runs(said(GOOD))
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    trial.problem()
    assert asked == [1]


def test_another_process_is_asked_once():
    assert trial.problem() is None
    kept = [path.name for path in disk.folder().iterdir()]
    assert len(kept) == 1
    done = subprocess.run(
        [sys.executable, "-c", "from flashinfer_bench.apply.dispatch import trial\n"
         "trial.KNOWN_RELEASES = ('0.4',)\ntrial._run = None\nprint(trial.problem())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "None"


def test_the_other_process_enables_nothing_and_finds_what_this_one_would(monkeypatch, tmp_path):
    monkeypatch.setenv("FIB_ENABLE_APPLY", "1")
    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch.py").write_text("raise SystemExit(7)\n")
    status, text = trial._run()
    assert (status, text.splitlines()[0]) == (0, json.dumps(trial._identity()))
    assert text.splitlines()[-1] == GOOD


def test_a_verdict_is_kept(runs):
    asked = runs(said('verdict: "takes a slice for a tensor"'))
    for _ in range(3):
        assert trial.problem() == "takes a slice for a tensor"
    assert asked == [1]


@pytest.mark.parametrize("ended", [said(status=-11), said(status=-6), said("noise", status=3)])
def test_a_process_that_ended_is_not_started_again(runs, ended):
    asked = runs(ended)
    for _ in range(3):
        assert "ended the process" in trial.problem()
    assert asked == [1]


@pytest.mark.parametrize(
    "ended",
    [
        (None, "timed out"),
        (1, ""),
        (-9, ""),
        (0, "noise\n" + GOOD),
        (0, json.dumps(["2.0", "", "/elsewhere/torch/__init__.py", "3.9"]) + "\n" + GOOD),
    ],
)
def test_a_process_that_says_nothing_of_this_torch_is_asked_again(runs, ended):
    asked = runs(ended, said(GOOD))
    assert "could not be tried out" in trial.problem()
    assert trial.problem() is None
    assert asked == [1, 1]
    assert trial.problem() is None
    assert asked == [1, 1]


def test_a_damaged_answer_is_asked_for_again(runs):
    asked = runs(said(GOOD))
    trial.problem()
    (path,) = disk.folder().iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    assert trial.problem() is None
    assert asked == [1, 1]


def test_a_cache_that_cannot_be_written_is_no_failure(runs, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "file"))
    asked = runs(said(GOOD))
    assert trial.problem() is None
    assert trial.problem() is None
    assert asked == [1, 1]


def test_without_an_interpreter_there_is_no_trial(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    assert "no interpreter" in trial.problem()
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert "could not be tried out" in trial.problem()


def test_one_that_ends_its_process_harms_nobody(monkeypatch):
    """The checker of this torch does, for a nested tensor."""
    deadly = trial._START.replace(
        "report()\n",
        "import torch\n"
        "from flashinfer_bench.apply.dispatch import tensor_guards, trial\n"
        "nested = torch.nested.nested_tensor([torch.zeros(8)] * 4)\n"
        "def deadly(maker):\n"
        "    maker(torch.zeros(4, 8), dynamic_dims_sizes=[[4, 8]],\n"
        "          dynamic_dims_strides=[[8, 1]]).check(nested)\n"
        "    import os; os.abort()\n"
        "tensor_guards.problem_of = deadly\n"
        "report()\n",
        1,
    )
    assert deadly.count("report()") == 1
    monkeypatch.setattr(trial, "_START", deadly)
    assert "exit status -6" in trial.problem()


def test_what_is_missing_is_said(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch._C._dynamo.guards", type(sys)("empty"))
    monkeypatch.setattr(trial, "_leave_no_core", lambda: None)
    trial.report()
    identity, verdict = capsys.readouterr().out.splitlines()
    assert json.loads(identity) == trial._identity()
    assert "is missing" in verdict
