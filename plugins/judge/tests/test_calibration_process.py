"""Measuring for real: the child process, its protocol, and what comes of a broken one."""

import subprocess
import sys

import pytest

from fib_judge.calibration import Ceilings, calibrate, cpu
from flashinfer_bench.bench.locks import device_lock
from flashinfer_bench.errors import CapabilityError, RunnerError

# Children that stand for the one that measures; they get the device as their first argument.
CHILDREN = {
    "good": "print(json.dumps({'share': 0.5})); print('noise'); print(json.dumps(GOOD))",
    "no_figures": "print(json.dumps({'share': 1.0}))",
    "nonsense": "GOOD['ceilings']['call_ms'] = -1; print(json.dumps(GOOD))",
    "not_an_object": "print(json.dumps(['ceilings']))",
    "raises": "raise RuntimeError('the card has gone: ' + arguments[0])",
    "hangs": "time.sleep(600)",
    "killed": "os.kill(os.getpid(), 9)",
}
HEADER = "import json, os, sys, time\nGOOD = {good!r}\ndef main(arguments):\n    {body}\n"
FOUND = Ceilings("cpu", "A CPU", {4096: 1e9}, {"float32": 1e9}, 1e-3, "1", "now")


@pytest.fixture
def child(monkeypatch, tmp_path):
    """Puts another program in the place of the child."""

    def use(name):
        body = HEADER.format(good={"ceilings": FOUND.to_json()}, body=CHILDREN[name])
        (tmp_path / f"child_that_{name}.py").write_text(body)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr("fib_judge.calibration._MODULE", f"child_that_{name}")

    return use


def test_figures_and_progress_come_back(child):
    child("good")
    told = []
    assert calibrate("cpu", on_progress=told.append) == FOUND
    assert told == [0.5]


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("no_figures", CapabilityError, "exit code 0"),
        ("not_an_object", CapabilityError, "cpu cannot be measured"),
        ("nonsense", RunnerError, "call_ms"),
        ("raises", CapabilityError, "the card has gone: cpu"),
        ("killed", RunnerError, "was killed, or did not end in"),
    ],
)
def test_a_child_that_fails_is_told(child, name, error, words):
    child(name)
    with pytest.raises(error, match=words):
        calibrate("cpu")


def test_an_interruption_ends_the_child(child, monkeypatch):
    child("hangs")
    started = []

    def interrupted(process, on_progress):
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr("fib_judge.calibration._follow", interrupted)
    with pytest.raises(KeyboardInterrupt):
        calibrate("cpu")
    assert started[0].returncode == -9


def test_the_device_is_locked_meanwhile(child):
    child("good")
    seen = []

    def look(share):
        with device_lock("cpu", lambda: True) as held:
            seen.append(held)

    calibrate("cpu", on_progress=look)
    assert seen == [False]
    look(1.0)
    assert seen == [False, True]


@pytest.fixture(scope="module")
def found():
    """Measured for real in one short pass, so that figures are too low; but all are there."""
    return calibrate("cpu", budget_s=0.1)


def test_for_real_all_sizes_and_types_are_measured(found):
    assert found.device == "cpu"
    # How far up it goes depends on the memory that is free at that moment.
    sizes = sorted(found.bytes_per_s)
    assert sizes == [cpu.ladder()[0] << step for step in range(len(sizes))]
    assert len(sizes) >= 3
    assert "float32" in found.flops_per_s
    assert set(found.flops_per_s) <= set(cpu.DTYPES)


def test_loading_needs_no_torch():
    code = (
        "import sys\n"
        "from fib_judge.calibration import load_ceilings\n"
        "assert load_ceilings('cpu', 'nothing of this name') is None\n"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
