"""Solutions that do something else when they are timed, judged with scripted processes."""

import builtins
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from fib_judge import reference as baseline_module
from fib_judge import ring, timed
from fib_judge.calibration import Ceilings
from fib_judge.evaluate import evaluate_solution
from fib_judge.floor import Floor
from fib_judge.integrity import Violation
from fib_judge.records import KeyedRandom
from fib_judge.reference import prepare_baseline
from fib_judge.ring import Ring
from fib_tests.scripted import Apart
from flashinfer_bench.bench.measurement import Task
from flashinfer_bench.bench.plan import is_final
from flashinfer_bench.bench.pool import WorkerPool
from flashinfer_bench.compile import reference_solution
from flashinfer_bench.data import Evaluation, SafetensorsInput, TensorSpec, Trace, TraceSet

QUIET = "OVERHEAD_MS = 0.01\n"  # no more is taken out, however long an exchange takes
HONEST = QUIET + "def run(x): return x * 2\n"
MEASURED = Ceilings("cpu", "A CPU")


@pytest.fixture
def judge(judging):
    """Evaluate a solution, given as source, with 2 x (1 + 20) calls; the same are compared."""
    return judging(n=200, reference=HONEST, config={"iterations": 20}, timed_seed=0)


# Right in both trials, wrong in half of all timed calls.
CHEATS = {
    "wrong after many calls": """
n = [0]
def run(x):
    n[0] += 1
    return x * 2 if n[0] <= 20 else x * 0
""",
    "cached by the order of calls": """
results = []
def run(x):
    results.append(x * 2)
    return results[-1] if len(results) < 6 else results[3 + len(results) % 2]
""",
}


def test_slow_solutions_are_timed_less_often_and_compared_as_often(judging):
    slow = "import time\ndef run(x):\n    time.sleep(0.03)\n    return x * 2\n"
    found = judging(n=200, reference=HONEST, config={"iterations": 50, "num_trials": 3})(slow)
    note = found.correctness.extra["integrity"]
    assert 30 <= note["timed_calls"] == len(found.performance.samples_ms) < 70
    assert 3 <= note["checked_calls"] <= timed.MOST_CHECKS


class TestOutputs:
    @pytest.mark.parametrize("name", CHEATS)
    def test_wrong_only_when_timed(self, name, judge):
        evaluation = judge(CHEATS[name])
        assert evaluation.status == "INCORRECT_NUMERICAL"
        assert evaluation.log.startswith("integrity: outputs: timed call ")
        note = evaluation.correctness.extra["integrity"]
        assert (note["rule"], note["timed_calls"]) == ("outputs", 40)
        assert 0 <= note["timed_call"] < 40
        assert evaluation.correctness.extra["first_failing"]["output"] == "y"
        assert not evaluation.provenance.transient

    def test_wrong_shape_when_timed(self, judge):
        evaluation = judge(
            "n = [0]\ndef run(x):\n    n[0] += 1\n    return x * 2 if n[0] < 4 else x[:1]"
        )
        assert evaluation.status == "INCORRECT_SHAPE"
        assert "integrity: outputs: timed call" in evaluation.log

    def test_work_that_is_left_undone_in_every_other_call(self, judge):
        source = (
            "import random\nn = [0]\nd = random.Random({seed})\ndef run(x):\n    n[0] += 1\n"
            "    return x * 2 if n[0] < 3 or d.random() > {share} else x"
        )
        found = {judge(source.format(seed=seed, share=0.5)).status for seed in range(8)}
        assert found == {"INCORRECT_NUMERICAL"}

    def test_wrong_in_a_later_process(self, judge, monkeypatch):
        monkeypatch.setattr(builtins, "fib_test_loads", [], raising=False)
        source = """
import builtins
builtins.fib_test_loads.append(1)
first = len(builtins.fib_test_loads) == 1
def run(x): return x * 2 if first else x * 3
"""
        evaluation = judge(source, config={"processes": 2})
        assert evaluation.status == "INCORRECT_NUMERICAL"
        assert evaluation.log.startswith("integrity: outputs: timed call ")

    def test_resting_after_each_look_is_found(self, judge):
        source = """
n, rest, last = [0], [0], [None]
def on_collect():
    rest[0] = 5
def run(x):
    n[0] += 1
    rest[0] -= 1
    if rest[0] < 0 or n[0] <= 2:
        last[0] = x * 2
    return last[0]
"""
        found = {judge(source, timed_seed=seed).status for seed in range(6)}
        assert found == {"INCORRECT_NUMERICAL"}


CHANGES = {
    "an input was overwritten": """
n = [0]
def run(x):
    n[0] += 1
    y = x * 2
    if n[0] > 2: x.zero_()
    return y
""",
    "outputs were still written after the answer": """
n, last = [0], [None]
def on_collect():
    last[0].mul_(2)
def run(x):
    n[0] += 1
    last[0] = x.clone()
    return last[0] if n[0] > 2 else x * 2
""",
}


@pytest.mark.parametrize("told", CHANGES)
def test_what_is_changed_when_it_must_not_be(told, judge):
    evaluation = judge(CHANGES[told])
    assert evaluation.status == "INCORRECT_NUMERICAL"
    note = evaluation.correctness.extra["integrity"]
    assert note["rule"] == "memory"
    where = f"timed call {note['timed_call']} of 40"
    assert evaluation.log.startswith(f"integrity: {where}: {told}")


@pytest.fixture
def violations(monkeypatch):
    """Put in it what is found in one attempt after the other."""
    queue = []
    monkeypatch.setattr(timed, "find_violation", lambda calls, **known: queue.pop(0))
    return queue


UNSEEN = Violation("unaccounted time", "1900 us unaccounted for", 1.9)


class TestClock:
    @pytest.mark.parametrize("claimed", [0.1, 1.0, 1.9])
    def test_the_judges_own_counts(self, claimed, judge):
        source = f"SAMPLES = [{claimed}]\nHIDDEN_MS = {2.0 - claimed}\n"
        evaluation = judge(source + HONEST)
        assert evaluation.status == "PASSED"
        assert evaluation.performance.latency_ms == pytest.approx(2.0)
        assert evaluation.performance.reference_latency_ms == pytest.approx(2.0)

    def test_who_nearly_always_waits_for_a_core_may_be_faster(self, judge, monkeypatch):
        told = itertools.count()
        monkeypatch.setattr(Ring, "waits_ms", lambda ring: (float(next(told)), 0.0))
        times = judge(HONEST).performance
        assert times.latency_ms == pytest.approx(2.0)
        assert times.interval_ms == pytest.approx((1.0, 2.0))

    def test_another_timer_is_refused(self, judge, executor, problems):
        evaluation = judge("VERSION = 'mine'\n" + HONEST)
        assert evaluation.status == "RUNTIME_ERROR"
        assert evaluation.log.startswith("integrity: timer: timer 'clock mine' answered instead of")
        assert (evaluation.correctness, evaluation.performance) == (None, None)
        assert not evaluation.provenance.transient
        assert len(executor.of("load")) == 1  # no noise does that
        assert is_final(trace_of(evaluation, problems))

    def test_it_is_disputed_if_it_comes_again(self, judge, executor, problems, violations):
        violations += [UNSEEN, UNSEEN]
        kept = WorkerPool(executor, keep=9, sandbox=Apart("off"))
        evaluation = judge("SAMPLES = [0.1, 0.102, 0.104]\n" + HONEST, pool=kept)
        assert evaluation.status == "PASSED"
        note = evaluation.correctness.extra["integrity"]
        assert (note["disputed"], note["unseen_ms"]) == ("unaccounted time", 1.9)
        times = evaluation.performance
        assert {round(sample, 6) for sample in times.samples_ms} == {0.1, 0.102, 0.104}
        assert times.latency_ms == pytest.approx(2.002)
        low, high = times.interval_ms
        assert low <= 0.102 < 2.002 <= high < 2.004 + 1e-6
        assert times.speedup_factor == pytest.approx(times.reference_latency_ms / 2.002)
        assert "the latency is between 0.102 and 2.002 ms" in evaluation.log
        trace = trace_of(evaluation, problems)
        assert not is_final(trace)  # --resume tries it again
        (row,) = TraceSet(traces={"d": [trace]}).run_rows()
        assert row.disputed
        own = {pid for pid, name in executor.of("load") if "reference" not in name}
        assert len(own) == 2  # one knows nothing of the other

    def test_it_is_forgiven_if_it_does_not(self, judge, violations):
        violations += [UNSEEN, None]
        evaluation = judge(HONEST)
        assert evaluation.performance.latency_ms == pytest.approx(2.0)
        assert "disputed" not in evaluation.correctness.extra["integrity"]
        assert "measured twice; the first time: 1900 us unaccounted for" in evaluation.log


def trace_of(evaluation, problems):
    again = Evaluation.model_validate_json(evaluation.model_dump_json())
    assert again == evaluation
    return Trace(definition="d", workload=problems.workload(), solution="s", evaluation=again)


@given(seed=st.integers(0, 2**53 - 1), bits=st.integers(1, 200))
def test_secret_chance_is_repeatable_and_even(seed, bits):
    one, other = KeyedRandom(seed), KeyedRandom(seed)
    drawn = [one.getrandbits(bits) for _ in range(50)]
    assert drawn == [other.getrandbits(bits) for _ in range(50)]
    assert 0 <= min(drawn) <= max(drawn) < 2**bits
    assert 0.0 <= one.random() < 1.0
    ones = sum(KeyedRandom(seed + n).getrandbits(64).bit_count() for n in range(200))
    assert 6400 - 400 < ones < 6400 + 400  # seven standard deviations
    assert sorted(one.sample(range(50), 50)) == list(range(50))


class TestFloor:
    @pytest.fixture(autouse=True)
    def floor(self, monkeypatch):
        def known(definition, axes, ceilings, inputs):
            assert ceilings is MEASURED
            return Floor(1.0, axes["n"], 7, "bytes")

        monkeypatch.setattr(baseline_module, "physics_floor", known)

    def test_below(self, judge, executor):
        evaluation = judge("SAMPLES = [0.9]\n" + HONEST, ceilings=MEASURED)
        assert evaluation.status == "RUNTIME_ERROR"
        assert evaluation.log.startswith("integrity: floor: a latency of 0.9 ms; moving 200 bytes")
        assert len(executor.of("load")) == 1

    def test_above(self, judge):
        evaluation = judge(HONEST, ceilings=MEASURED)
        assert evaluation.correctness.extra["integrity"]["floor_ms"] == 1.0

    @pytest.mark.parametrize("options", [{}, {"ceilings": MEASURED, "trust": "off"}])
    def test_not_known_or_not_wanted(self, options, judge):
        assert judge("SAMPLES = [0.9]\n" + HONEST, **options).status == "PASSED"


class TestRecord:
    def test_what_was_checked(self, judge):
        note = judge(HONEST).correctness.extra["integrity"]
        assert 3 <= note.pop("checked_calls") <= timed.MOST_CHECKS
        assert note == {
            "trust": "full",
            "timed_calls": 40,
            "values": {"x": "mixed"},
            "sandbox": ["landlock-files", "network-namespace"],
        }

    def test_large_inputs_have_fewer_slots(self, judge, monkeypatch):
        monkeypatch.setattr(ring, "_MOST_BYTES", 5000)
        evaluation = judge(HONEST)
        assert evaluation.correctness.extra["integrity"]["slots"] == 1


def test_checks_hold_the_references_outputs(prepare, evaluator):
    baseline = prepare(HONEST, n=200, judged_by=evaluator, config={"iterations": 30})
    assert len(baseline.checks) == timed.MOST_CHECKS
    assert not baseline.replayable
    assert not baseline.values.kept, "a shorter pause would tell which calls are compared"
    inputs = [baseline.values.draw(check.number)[0] for check in baseline.checks]
    for one, check in zip(inputs, baseline.checks, strict=True):
        assert (one * 2).equal(check.expected[0])
    assert not inputs[0].equal(inputs[1])


def test_what_the_reference_overwrites_a_solution_may(judge):
    """Such as a buffer for intermediate states."""
    writes = "def run(x):\n    y = x * 2\n    x.zero_()\n    return y\n"
    assert judge(writes, reference=writes).status == "PASSED"
    assert judge(HONEST, reference=writes).status == "PASSED"
    refused = judge(writes, reference=HONEST)
    assert refused.log.endswith("an input was overwritten")


class TestReplayable:
    """What every call may answer from memory is marked."""

    def test_recorded_integers(self, problems, session, settings, evaluator, tmp_path):
        spec = TensorSpec(shape=["n", "k"], dtype="int32")
        definition = problems.definition(inputs={"x": spec}, outputs={"y": spec})
        values = torch.arange(12, dtype=torch.int32).reshape(4, 3)
        save_file({"t": values}, tmp_path / "x.safetensors")
        workload = problems.workload(x=SafetensorsInput(path="x.safetensors", tensor_key="t"))
        running, config = session(), settings(processes=1)
        reference = reference_solution(definition)
        task = Task(definition, workload, reference, evaluator, config, tmp_path)
        made = prepare_baseline(running, task)
        evaluation = evaluate_solution(running, problems.solution(HONEST), made)
        note = evaluation.correctness.extra["integrity"]
        assert (note["values"], note["replayable"]) == ({"x": "kept"}, True)

    def test_outputs_that_do_not_depend_on_inputs(self, judge):
        constant = "import torch\ndef run(x): return torch.arange(x.numel()).view_as(x) * 1.0\n"
        note = judge(constant, reference=constant).correctness.extra["integrity"]
        assert (note["values"], note["replayable"]) == ({"x": "mixed"}, True)
