"""Evaluations in which an exchange has several calls, as on a GPU, on the CPU."""

import pytest

from fib_judge import evaluate, ring
from fib_judge.integrity import Mode, Overhead
from fib_judge.reference import prepare_baseline
from fib_judge.ring import SLOTS_ON_DEVICE
from fib_judge.timed import Course
from fib_tests.rounds import COMPUTES_WHEN_ASKED, IDLE_ALONE, LIAR, SLOW_ALONE, TELLS_OTHERS
from flashinfer_bench.bench.evaluators import DefaultEvaluator
from flashinfer_bench.bench.executors.base import TimedCall
from flashinfer_bench.bench.measurement import Task
from flashinfer_bench.compile import reference_solution
from flashinfer_bench.data import Workload

ADD = "import os, time, torch\ndef run(x, y):\n    return x + y\n"
SETTINGS = {"iterations": 40, "num_trials": 1, "warmup_runs": 3, "watch": "off"}


@pytest.fixture
def judge(session_with_rounds, definition_of, solution_of, settings):
    """``judge(source)``: evaluate it, and return what is in its trace."""

    def run(*sources, n=1000, dps=False, apart=True, outputs=None, reference=None, **changes):
        running = session_with_rounds(apart)
        own = {"outputs": outputs, "reference": reference} if outputs else {}
        described = definition_of(**own)
        inputs = {name: {"type": "random"} for name in "xy"}
        task = Task(
            *(described, Workload(axes={"n": n}, inputs=inputs, uuid="w")),
            *(reference_solution(described), DefaultEvaluator()),
            *(settings(**{**SETTINGS, **changes}), None),
        )
        baseline = prepare_baseline(running, task)
        for source in sources:
            found = evaluate.evaluate_solution(running, solution_of(source, dps=dps), baseline)
        return found

    return run


def timed_after(line):
    """Return a solution that does something only in calls that are timed."""
    return f"""
import os, torch
n = [0]
def run(x, y):
    n[0] += 1
    if n[0] > 40: {line}
    return x + y
"""


def note(found):
    return found.correctness.extra["integrity"]


@pytest.mark.parametrize(
    ("source", "dps"),
    [
        (ADD, False),
        ("def run(x, y, z):\n    z.copy_(x + y)\n", True),
        ("import torch\ndef run(x, y):\n    return torch.stack((x + y, x), 1)[:, 0]\n", False),
    ],
)
def test_honest_solutions_pass(judge, source, dps):
    found = judge(source, dps=dps)
    assert found.status == "PASSED", found.log
    told = note(found)
    assert told["unaccounted_us"]["calls"] == SLOTS_ON_DEVICE
    assert told["alone_us"] > 0
    assert told["timed_calls"] == told["checked_calls"] == len(found.performance.samples_ms) == 40
    assert "calls wait for the device before they return" in found.log
    assert found.performance.speedup_factor > 0


@pytest.mark.parametrize("changes", [{"iterations": 4}, {"iterations": 1, "warmup_runs": 0}])
def test_fewer_calls_than_an_exchange_may_have(judge, changes):
    found = judge(ADD, **changes)
    assert found.status == "PASSED", found.log
    assert note(found)["timed_calls"] == changes["iterations"]


@pytest.mark.parametrize("changes", [{}, {"processes": 1}])
def test_calls_that_wait_are_made_in_several_processes(judge, tmp_path, monkeypatch, changes):
    """Their latency is the host's time, which differs from process to process; here it does."""
    monkeypatch.setattr(evaluate, "_READY_S", 60.0)  # however busy the machine
    pids, seen = tmp_path / "pids", tmp_path / "seen"
    pids.touch()
    source = f"""
import os, time
from pathlib import Path
pids = Path({str(pids)!r})
with pids.open("a") as file: print(os.getpid(), file=file)
own_s = 1e-3 * 4 ** (len(pids.read_text().split()) % 3)
def run(x, y):
    with open({str(seen)!r}, "a") as file: print(os.getpid(), float(x[0]), file=file)
    until = time.perf_counter() + own_s
    while time.perf_counter() < until: pass
    return x + y
"""
    found = judge(source, iterations=10, num_trials=3, **changes)
    assert found.status == "PASSED", found.log
    assert len(found.performance.samples_ms) == 30
    one, *others = pids.read_text().split()[:3]  # more if it is measured again
    low, high = found.performance.interval_ms
    assert len(others) == 2 or changes
    assert high > 4 * low or changes, (found.log, pids.read_text())
    calls = [line.split() for line in seen.read_text().splitlines()]
    values = [{value for pid, value in calls if pid == each} for each in (one, *others)]
    assert changes or sum(map(len, values)) == len(set.union(*values)), "seen by two processes"


def test_one_slot(judge, monkeypatch):
    monkeypatch.setattr(ring, "_MOST_BYTES", 1)
    found = judge(ADD)
    assert found.status == "PASSED", found.log
    assert (note(found)["slots"], note(found)["unaccounted_us"]["calls"]) == (1, 1)


@pytest.mark.parametrize(
    ("line", "status", "text"),
    [
        ("return x + y if n[0] % 7 else x", "INCORRECT_NUMERICAL", "integrity: outputs"),
        ("x.zero_(); return x + y", "INCORRECT_NUMERICAL", "an input was overwritten"),
        ("return (x + y)[:5]", "INCORRECT_SHAPE", "gave different outputs"),
        ("return (x + y).double()", "INCORRECT_DTYPE", "gave different outputs"),
        ("return x + y, x", "INCORRECT_SHAPE", "2 outputs"),
        ("1 / 0", "RUNTIME_ERROR", "ZeroDivisionError"),
        ("os._exit(3)", "RUNTIME_ERROR", "exited with code 3"),
    ],
)
def test_what_goes_wrong_in_a_timed_call(judge, line, status, text):
    found = judge(timed_after(line))
    assert (found.status, text in found.log) == (status, True), found.log


def test_calls_made_alone_are_compared(judge):
    """Who overlaps others, and does nothing when alone, would not be found to be slower then."""
    found = judge(IDLE_ALONE)
    assert found.status == "INCORRECT_NUMERICAL", found.log
    assert "a call made alone gave different outputs" in found.log


def test_of_calls_that_wait_no_claim_counts(judge):
    found = judge(LIAR)
    assert found.status == "PASSED", found.log
    assert found.performance.latency_ms > 0.2  # 0.075 is claimed


def test_who_takes_longer_alone_is_in_doubt(judge):
    found = judge(SLOW_ALONE)
    assert found.status == "PASSED", found.log
    assert note(found)["disputed"] == "overlap"
    assert found.performance.latency_ms > 4


SCALAR = {"z": {"shape": ["n"], "dtype": "float32"}, "s": {"shape": None, "dtype": "float32"}}
BOTH = "def run(x, y):\n    return x + y, float((x * y).sum())\n"


@pytest.mark.parametrize(
    ("source", "status"),
    [
        (BOTH, "PASSED"),
        (COMPUTES_WHEN_ASKED, "INCORRECT_NUMERICAL"),
        (TELLS_OTHERS, "INCORRECT_NUMERICAL"),
    ],
)
def test_outputs_are_those_of_the_answer_numbers_too(judge, source, status):
    found = judge(source, outputs=SCALAR, reference=BOTH)
    assert found.status == status, found.log
    assert status == "PASSED" or "gave different outputs" in found.log


def test_who_is_measured_again_sees_new_values(judge, tmp_path):
    """It could have kept the others in its folder, to know which calls are compared."""
    seen = tmp_path / "seen"
    record = (
        f"    with open({str(seen)!r}, 'a') as file: print(os.getpid(), float(x[0]), file=file)\n"
    )
    head = "def run(x, y):\n"  # of a solution that is in doubt
    found = judge("import os\n" + SLOW_ALONE.replace(head, head + record))
    assert found.status == "PASSED", found.log
    lines = [line.split() for line in seen.read_text().splitlines()]
    pids = dict.fromkeys(pid for pid, _ in lines)
    first, second = ({value for pid, value in lines if pid == one} for one in pids)
    assert "measured twice" in found.log
    assert min(len(first), len(second)) > 40
    assert len(first & second) == 1, "those of the untimed call"


@pytest.mark.parametrize("apart", [True, False])
def test_solutions_that_are_not_kept_apart_get_values_of_their_own(judge, tmp_path, apart):
    """Else one could tell another, by a file, what to return."""
    source = f"""
def run(x, y):
    print(float(x[0]), file=open({str(tmp_path)!r} + "/" + NAME, "a"), flush=True)
    return x + y
"""
    found = judge(*(f"NAME = {name!r}\n{source}" for name in "ab"), apart=apart)
    assert found.status == "PASSED", found.log
    assert found.provenance.extra.get("checks_anew", False) is not apart
    first, second = (set((tmp_path / name).read_text().split()) for name in "ab")
    common = {*first} & second
    assert len(common) > 40 if apart else len(common) == 1, "those of the untimed call"


@pytest.mark.parametrize(
    ("tried", "later", "most", "calls"),
    [
        (5.0, 0.42, 10, 10),
        (5.0, 3.0, 10, 1),
        (6.0, 1.2, 10, 10),  # it is compiled in the first calls
        (6.0, 1.2, 1, 1),  # … and has many launches
        (1.0, 0.8, 10, 10),
        (1.0, 0.42, 1, 1),
        (1.0, 0.42, 0, 1),  # it waits
    ],
)
def test_who_is_slow_only_when_tried_has_no_exchanges_of_its_own(tried, later, most, calls):
    """With a gate, which the CPU has not: `round` plays calls of which so many can be enqueued."""

    class Played(Course):
        def __init__(self):
            usual = Overhead(0.05, beyond_ms=0.4)
            self._known = {Mode(gated, n): usual for gated in (False, True) for n in (1, 10)}
            self.mode, self._most, self._tried_ms, self._single_gated = None, 10, 0.0, False

        def round(self, numbers, mode, **how):
            self.took_ms = tried
            gated = mode.gated and len(numbers) <= most
            return [TimedCall(0.1, 0.2, 0.2, 0.0, 0.0, "clock", "1", gated=gated)]

    course = Played()
    assert course.at_once() == (1 if tried > 2.5 else calls)
    course.took_ms = later
    assert course.at_once() == calls
    assert course.at_once() == calls
    assert course.mode == Mode(most > 0, calls)
