"""Solutions that do something else when they are timed, judged with scripted processes."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_judge import reference as baseline_module
from fib_judge.evaluate import evaluate_solution
from fib_judge.floor import Floor
from fib_judge.records import KeyedRandom
from fib_judge.reference import prepare_baseline
from flashinfer_bench.bench.measurement import Task
from flashinfer_bench.bench.plan import is_final
from flashinfer_bench.bench.pool import WorkerPool
from flashinfer_bench.bench.sandbox import Sandbox
from flashinfer_bench.compile import reference_solution
from flashinfer_bench.data import Evaluation, SafetensorsInput, Trace, TraceSet

HONEST = "def run(x): return x * 2\n"


@pytest.fixture
def judge(judging):
    """Evaluate a solution, given as source, with 2 x (1 + 20) calls by default."""
    return judging(n=200, reference=HONEST, config={"iterations": 20})


# Each is right in both trials. The first timed call is the fourth of all: there is one to warm up.
CHEATS = {
    "wrong from the first timed call on": """
n = [0]
def run(x):
    n[0] += 1
    return x * 2 if n[0] <= 3 else x * 3
""",
    "wrong after many calls": """
n = [0]
def run(x):
    n[0] += 1
    return x * 2 if n[0] <= 38 else x * 0
""",
    "cached by shape": """
seen, calls = {}, []
def run(x):
    calls.append(1)
    return x * 2 if len(calls) < 3 else seen.setdefault(tuple(x.shape), x * 2)
""",
    "cached by a part of the content": """
seen, calls = {}, []
def run(x):
    calls.append(1)
    return x * 2 if len(calls) < 3 else seen.setdefault(x[0, 0].item() > 0, x * 2)
""",
    "cached by the order of calls": """
results = []
def run(x):
    results.append(x * 2)
    return results[-1] if len(results) < 6 else results[3 + len(results) % 2]
""",
    "rotated copy of what it computed before": """
import torch
calls = []
def run(x):
    if len(calls) < 3:
        calls.append(x * 2)
        return calls[-1]
    return calls[-1].roll(1)
""",
}


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
        """Eight checks miss it once in 256 times."""
        source = (
            "import random\nn = [0]\nd = random.Random({seed})\ndef run(x):\n    n[0] += 1\n"
            "    return x * 2 if n[0] < 3 or d.random() > {share} else x"
        )
        found = [judge(source.format(seed=seed, share=0.5)).status for seed in range(8)]
        assert found.count("INCORRECT_NUMERICAL") >= 7


class TestInputs:
    def test_changed_input(self, judge):
        evaluation = judge(
            "n = [0]\ndef run(x):\n    n[0] += 1\n    y = x * 2\n"
            "    if n[0] > 2: x.zero_()\n    return y"
        )
        assert evaluation.status == "INCORRECT_NUMERICAL"
        assert "changed its input 'x'" in evaluation.log
        note = evaluation.correctness.extra["integrity"]
        assert (note["rule"], note["changed_inputs"]) == ("inputs", ["x"])

    def test_honest_ones_are_left_alone(self, judge):
        assert judge("def run(x): return x.clone().mul_(2)").status == "PASSED"


HIDES = "SAMPLES = [0.1]\nHIDDEN_MS = 1.9\n"
# Source and reference, without what they compute, and what is found first.
REFUSED = [
    (HIDES, "", "hidden time: calls take 1.9 ms (allowed: "),
    ("SAMPLES = [0.1, 0.1, 2.0]\nHIDDEN_MS = lambda i: 0 if i % 3 == 2 else 1.9\n", "", "hidden"),
    ("SAMPLES = [0.1]\nSTAGE_MS = 9.0\n", "", "stage time: getting ready for a call takes 8 ms"),
    # Whoever tells late that inputs are changed has hidden nothing by that.
    ("SAMPLES = [0.1]\nCHANGE_MS = 2.1\n", "", "exchange time: exchanges take 1.9 ms"),
    ("SAMPLES = [1.0]\n", "SAMPLES = [2.0, 2.00001]\n", "samples: all 40 samples are 1 ms"),
    *((f"SAMPLES = [{each}]\n", "", "samples: ") for each in ("0.0", "float('nan')", -1.0, 1e-6)),
    ("VERSION = 'mine'\n", "", "timer: timer 'clock mine' answered instead of"),
    ("VERSION = 'mine'\n", "OVERHEAD_MS = lambda i: 0.1 if i % 2 else 0.9\n", "timer: "),
]
NOISY = "OVERHEAD_MS = lambda i: 0.1 if i % 2 else 0.9\n"
# The latency that is reported, which has in it what was hidden.
PASSED = [
    ("SAMPLES = [0.1]\nSTAGE_MS = 1.9\n", "", 0.1, 1e-6),
    ("SAMPLES = [1.0]\n", "", 1.0, 1e-6),  # the timer may be coarse
    # On a machine that is too busy nobody is blamed, and nobody gains.
    ("SAMPLES = [0.1]\nHIDDEN_MS = 9\n", NOISY, 0.1 + 8.9, 0.25),
    # However busy it is, noise hides at most half of the claim, 0.125 ms of 0.2, …
    ("SAMPLES = [0.2]\nCHANGE_MS = 9.1\n", "CHANGE_MS = 9\n", 0.2, 1e-6),
    ("SAMPLES = [0.2]\nCHANGE_MS = 9.2\n", "CHANGE_MS = 9\n", 0.4, 1e-6),
    # … and within the call a twentieth of it, 0.06 ms.
    ("SAMPLES = [0.2]\nOVERHEAD_MS = 9.05\n", "OVERHEAD_MS = 9\n", 0.2, 1e-6),
    ("SAMPLES = [0.2]\nOVERHEAD_MS = 9.1\n", "OVERHEAD_MS = 9\n", 0.3, 1e-6),
    # More than is believed, and not enough to convict.
    ("SAMPLES = [0.5]\nHIDDEN_MS = 0.065\n", "", 0.565, 1e-6),
    # What is hidden in calls is part of the exchange as well, and is added once. Three values, so
    # that the median does not depend on which calls are counted.
    (
        "SAMPLES = [0.2]\nHIDDEN_MS = 0.07\nCHANGE_MS = 0.3\n",
        "CHANGE_MS = lambda i: (0.15, 0.2, 0.25)[i % 3]\n",
        0.2 + 0.17,
        0.06,
    ),
]


class TestClock:
    @pytest.mark.parametrize(("source", "reference", "told"), REFUSED)
    def test_refused(self, source, reference, told, judge, executor, problems):
        evaluation = judge(source + HONEST, reference=reference + HONEST)
        assert evaluation.status == "RUNTIME_ERROR"
        assert evaluation.log.startswith(f"integrity: {told}")
        assert (evaluation.correctness, evaluation.performance) == (None, None)
        assert not evaluation.provenance.transient
        certain = told.startswith(("samples", "timer"))  # no noise does that
        assert len(executor.of("load")) == 1 if certain else "first attempt" in evaluation.log
        workload = problems.workload()
        trace = Trace(definition="d", workload=workload, solution="s", evaluation=evaluation)
        assert is_final(trace)
        assert Evaluation.model_validate_json(evaluation.model_dump_json()) == evaluation

    @pytest.mark.parametrize(("source", "reference", "latency", "about"), PASSED)
    def test_what_was_not_seen_is_in_the_latency(self, source, reference, latency, about, judge):
        evaluation = judge(source + HONEST, reference=reference + HONEST)
        assert evaluation.status == "PASSED"
        found = evaluation.performance.latency_ms
        assert found == pytest.approx(latency, abs=about)
        claimed = float(source.partition("[")[2].partition("]")[0])
        added = evaluation.correctness.extra["integrity"].get("unseen_ms", 0.0)
        assert found == pytest.approx(claimed + added)
        assert ("disputed: " in evaluation.log) == (added > 0.0)

    def test_few_calls_prove_nothing_and_gain_nothing(self, judge):
        evaluation = judge(HIDES + HONEST, config={"iterations": 3, "num_trials": 1})
        assert evaluation.status == "PASSED"
        assert evaluation.performance.latency_ms == pytest.approx(2.0)

    def test_it_takes_three_attempts_to_be_convicted(self, judge, executor):
        judge(HIDES + HONEST, pool=WorkerPool(executor, keep=9, sandbox=Sandbox("off")))
        loads = executor.of("load")
        assert [name.startswith("solution") for _, name in loads] == [True] * 3
        assert len({pid for pid, _ in loads}) == 3  # no process knows anything of those before
        # The reference is timed again before each further attempt, and after it.
        assert executor.fired(3 * 2 * (1 + 20) + 4 * (4 + 24), settling=1)

    def test_disturbance_is_forgiven(self, judge):
        """The latency is then that of the second attempt, whose calls are all right."""
        source = (
            "import builtins\n"
            "first = not hasattr(builtins, 'was_here')\n"
            "builtins.was_here = True\n"
            "SAMPLES = [0.5] if first else [2.0]\n"
            "HIDDEN_MS = 1.5 if first else 0\n" + HONEST
        )
        try:
            evaluation = judge(source)
        finally:
            import builtins

            del builtins.was_here
        assert evaluation.status == "PASSED"
        assert evaluation.performance.latency_ms == 2.0
        assert "measured twice; at first: hidden time: calls take 1.5 ms" in evaluation.log


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


class TestOtherDevices:
    """What a GPU's timer has not seen may be the host's work, which is no lie; nor is it free."""

    @pytest.mark.parametrize(
        ("times", "added"),
        [("HIDDEN_MS = 1.9", 1.9), ("STAGE_MS = 9", 8.0), ("HIDDEN_MS = 1.9\nSTAGE_MS = 9", 9.9)],
    )
    def test_the_latency_is_disputed(self, times, added, judge, problems):
        source = f"SAMPLES = [0.1, 0.102, 0.104]\n{times}\n"
        evaluation = judge(source + HONEST, device="cuda:0")
        assert evaluation.status == "PASSED"
        note = evaluation.correctness.extra["integrity"]
        assert note["disputed"] in ("hidden time", "exchange time", "stage time")
        assert note["unseen_ms"] == pytest.approx(added, abs=1e-3)
        times = evaluation.performance
        claims = [0.1, 0.102, 0.104]
        assert {round(sample, 6) for sample in times.samples_ms} == set(claims)
        upper = 0.102 + note["unseen_ms"]
        assert times.latency_ms == pytest.approx(upper)
        low, high = times.interval_ms
        assert low <= 0.102 < upper <= high < 0.104 + note["unseen_ms"] + 1e-6
        assert times.speedup_factor == pytest.approx(times.reference_latency_ms / upper)
        assert f"the latency is between 0.102 and {upper:.4g} ms" in evaluation.log
        trace = Trace(
            definition="d", workload=problems.workload(), solution="s", evaluation=evaluation
        )
        assert not is_final(trace)  # --resume tries it again
        (row,) = TraceSet(traces={"d": [trace]}).run_rows()
        assert row.disputed

    def test_only_if_it_persists(self, judge, executor):
        judge("SAMPLES = [0.1]\nHIDDEN_MS = 1.9\n" + HONEST, device="cuda:0")
        assert len([name for _, name in executor.of("load") if name.startswith("solution")]) == 2

    def test_little_is_no_matter(self, judge):
        evaluation = judge("SAMPLES = [1.0]\nHIDDEN_MS = 0.05\n" + HONEST, device="cuda:0")
        assert evaluation.performance.latency_ms == 1.0
        assert "disputed" not in evaluation.correctness.extra["integrity"]

    @pytest.mark.parametrize("lie", ["SAMPLES = [4e-4]", "VERSION = 'mine'", "SAMPLES = [-1]"])
    def test_what_is_certain_is_still_refused(self, lie, judge):
        evaluation = judge(f"{lie}\nHIDDEN_MS = 1.9\n" + HONEST, device="cuda:0")
        assert evaluation.status == "RUNTIME_ERROR"
        assert evaluation.log.startswith("integrity: ")


class TestDecoys:
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
        found = [judge(source).status for _ in range(6)]
        assert found.count("INCORRECT_NUMERICAL") >= 5


class TestFloor:
    @pytest.fixture(autouse=True)
    def floor(self, monkeypatch):
        def known(definition, axes, ceilings):
            assert ceilings == "measured"
            return Floor(1.0, axes["n"], 7, "bytes")

        monkeypatch.setattr(baseline_module, "physics_floor", known)

    def test_below(self, judge, executor):
        evaluation = judge("SAMPLES = [0.9]\n" + HONEST, ceilings="measured")
        assert evaluation.status == "RUNTIME_ERROR"
        assert evaluation.log.startswith("integrity: floor: a latency of 0.9 ms; moving 200 bytes")
        assert len(executor.of("load")) == 1

    def test_above(self, judge):
        evaluation = judge(HONEST, ceilings="measured")
        assert evaluation.correctness.extra["integrity"]["floor_ms"] == 1.0

    @pytest.mark.parametrize("options", [{}, {"ceilings": "measured", "trust": "off"}])
    def test_not_known_or_not_wanted(self, options, judge):
        assert judge("SAMPLES = [0.9]\n" + HONEST, **options).status == "PASSED"


class TestRecord:
    def test_what_was_checked(self, judge):
        evaluation = judge(HONEST)
        assert evaluation.correctness.extra["integrity"] == {
            "trust": "full",
            "timed_calls": 40,
            "checked_calls": 8,
            "decoys": evaluation.correctness.extra["integrity"]["decoys"],
            "fresh": ["x"],
            "sandbox": [],
            "hidden_ms": pytest.approx(0.0, abs=1e-6),
            "allowed_ms": pytest.approx(0.15),
            "exchange_ms": pytest.approx(0.0, abs=1e-6),
            "exchange_allowed_ms": pytest.approx(0.2),
            "floor_ms": None,
        }

    def test_trust_off(self, judge, executor):
        evaluation = judge("HIDDEN_MS = 9\nSAMPLES = [0.1]\n" + HONEST, trust="off")
        assert evaluation.status == "PASSED"
        assert evaluation.correctness.extra["integrity"] == {"trust": "off"}
        assert executor.of("collect") == executor.of("inspect") == []
        assert len(executor.of("fire")) == 2 * (1 + 20)


class TestBaseline:
    @pytest.fixture
    def prepare(self, prepare, evaluator):
        return partial(prepare, n=200, judged_by=evaluator)

    def test_checks_hold_the_references_outputs(self, prepare):
        baseline = prepare(HONEST, config={"iterations": 30})
        assert len(baseline.checks) == 8
        for check in baseline.checks:
            trial = check.trial
            assert (trial.inputs[0] * 2).equal(trial.expected[0])
            assert not trial.inputs[0].equal(baseline.trials[trial.index].inputs[0])

    def test_without_trust_there_is_nothing_of_it(self, prepare):
        baseline = prepare(HONEST, trust="off")
        assert (baseline.checks, baseline.normal) == ((), None)

    def test_recorded_inputs(self, problems, session, settings, evaluator, tmp_path):
        import torch
        from safetensors.torch import save_file

        from flashinfer_bench.data import TensorSpec

        definition = problems.definition(
            inputs={"x": TensorSpec(shape=["n", "k"], dtype="int32")},
            outputs={"y": TensorSpec(shape=["n", "k"], dtype="int32")},
        )
        values = torch.arange(12, dtype=torch.int32).reshape(4, 3)
        save_file({"t": values}, tmp_path / "x.safetensors")
        workload = problems.workload(x=SafetensorsInput(path="x.safetensors", tensor_key="t"))
        running, config = session(), settings()
        reference = reference_solution(definition)
        task = Task(definition, workload, reference, evaluator, config, tmp_path)
        made = prepare_baseline(running, task)
        assert [item.way for item in made.freedoms] == ["move"]
        evaluation = evaluate_solution(running, problems.solution(HONEST), made)
        assert evaluation.correctness.extra["integrity"]["fresh"] == "recorded inputs only"
