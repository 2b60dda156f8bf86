"""Solutions that do something else when they are timed, judged with scripted processes."""

from __future__ import annotations

from typing import Any

import pytest

from flashinfer_bench.bench.judge import baseline as baseline_module
from flashinfer_bench.bench.judge.baseline import prepare_baseline
from flashinfer_bench.bench.judge.decidability import UndecidableWorkload
from flashinfer_bench.bench.judge.evaluate import evaluate_solution
from flashinfer_bench.bench.judge.floor import Floor
from flashinfer_bench.bench.pool import WorkerPool
from flashinfer_bench.bench.resume import is_final
from flashinfer_bench.compile import reference_solution
from flashinfer_bench.data import Evaluation, SafetensorsInput, Trace

HONEST = "def run(x): return x * 2\n"


@pytest.fixture
def judge(problems: Any, session: Any, settings: Any, evaluator: Any, executor: Any) -> Any:
    """Evaluate a solution, given as source, with 2 x (1 + 20) calls by default."""

    def run(source: str, *, n: int = 200, reference: str = HONEST, **options: Any) -> Evaluation:
        config = settings(**{"iterations": 20, **options.pop("config", {})})
        definition = problems.definition(reference=reference)
        running = session(**options)
        workload = problems.workload(n=n, uuid="w")
        made = prepare_baseline(
            running, definition, workload, reference_solution(definition), config, None, evaluator
        )
        executor.events.clear()
        solution = problems.solution(source)
        return evaluate_solution(running, solution, made, evaluator, made.config)

    return run


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
    def test_wrong_only_when_timed(self, name: str, judge: Any) -> None:
        evaluation = judge(CHEATS[name])
        assert evaluation.status == "INCORRECT_NUMERICAL"
        assert evaluation.log.startswith("integrity: outputs: timed call ")
        note = evaluation.correctness.extra["integrity"]
        assert (note["rule"], note["timed_calls"]) == ("outputs", 40)
        assert 0 <= note["timed_call"] < 40
        assert evaluation.correctness.extra["first_failing"]["output"] == "y"
        assert not evaluation.provenance.transient

    def test_wrong_shape_when_timed(self, judge: Any) -> None:
        evaluation = judge(
            "n = [0]\ndef run(x):\n    n[0] += 1\n    return x * 2 if n[0] < 4 else x[:1]"
        )
        assert evaluation.status == "INCORRECT_SHAPE"
        assert "integrity: outputs: timed call" in evaluation.log

    def test_work_that_is_left_undone_in_every_other_call(self, judge: Any) -> None:
        """Eight checks miss it once in 256 times."""
        source = (
            "import random\nn = [0]\nd = random.Random({seed})\ndef run(x):\n    n[0] += 1\n"
            "    return x * 2 if n[0] < 3 or d.random() > {share} else x"
        )
        found = [judge(source.format(seed=seed, share=0.5)).status for seed in range(8)]
        assert found.count("INCORRECT_NUMERICAL") >= 7


class TestInputs:
    def test_changed_input(self, judge: Any) -> None:
        evaluation = judge(
            "n = [0]\ndef run(x):\n    n[0] += 1\n    y = x * 2\n"
            "    if n[0] > 2: x.zero_()\n    return y"
        )
        assert evaluation.status == "INCORRECT_NUMERICAL"
        assert "changed its input 'x'" in evaluation.log
        note = evaluation.correctness.extra["integrity"]
        assert (note["rule"], note["changed_inputs"]) == ("inputs", ["x"])

    def test_honest_ones_are_left_alone(self, judge: Any) -> None:
        assert judge("def run(x): return x.clone().mul_(2)").status == "PASSED"


class TestClock:
    def test_hidden_time(self, judge: Any, executor: Any) -> None:
        evaluation = judge("SAMPLES = [0.1]\nHIDDEN_MS = 1.9\n" + HONEST)
        assert evaluation.status == "RUNTIME_ERROR"
        assert evaluation.log.startswith("integrity: hidden time: calls take 1.9 ms (allowed: ")
        assert "(in a first attempt: hidden time: " in evaluation.log
        assert evaluation.correctness is None
        assert evaluation.performance is None

    def test_it_takes_three_attempts_to_be_convicted(self, judge: Any, executor: Any) -> None:
        judge("SAMPLES = [0.1]\nHIDDEN_MS = 1.9\n" + HONEST, pool=WorkerPool(executor, keep=9))
        loads = executor.of("load")
        assert [name.startswith("solution") for _, name in loads] == [True] * 3
        assert len({pid for pid, _ in loads}) == 3  # no process knows anything of those before
        # The reference is timed again before each further attempt, and after it.
        assert executor.fired(3 * 2 * (1 + 20) + 4 * (4 + 24), settling=1)

    def test_disturbance_is_forgiven(self, judge: Any) -> None:
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

            del builtins.was_here  # type: ignore[attr-defined]
        assert evaluation.status == "PASSED"
        assert evaluation.performance.latency_ms == 2.0
        assert "measured twice; at first: hidden time: calls take 1.5 ms" in evaluation.log

    def test_hidden_in_two_calls_of_three(self, judge: Any) -> None:
        source = "SAMPLES = [0.1, 0.1, 2.0]\nHIDDEN_MS = lambda i: 0 if i % 3 == 2 else 1.9\n"
        assert judge(source + HONEST).log.startswith("integrity: hidden time")

    def test_work_before_the_call(self, judge: Any) -> None:
        evaluation = judge("SAMPLES = [0.1]\nSTAGE_MS = 9.0\n" + HONEST)
        assert evaluation.log.startswith(
            "integrity: stage time: getting ready for a call takes 8 ms"
        )
        assert judge("SAMPLES = [0.1]\nSTAGE_MS = 1.9\n" + HONEST).status == "PASSED"

    def test_same_sample_every_time(self, judge: Any) -> None:
        reference = "SAMPLES = [2.0, 2.00001]\n" + HONEST
        evaluation = judge("SAMPLES = [1.0]\n" + HONEST, reference=reference)
        assert evaluation.log.startswith("integrity: samples: all 40 samples are 1 ms")
        assert judge("SAMPLES = [1.0]\n" + HONEST).status == "PASSED"  # the timer may be coarse

    @pytest.mark.parametrize("sample", ["0.0", "float('nan')", "-1.0", "1e-6"])
    def test_impossible_samples(self, sample: str, judge: Any, executor: Any) -> None:
        evaluation = judge(f"SAMPLES = [{sample}]\n" + HONEST)
        assert evaluation.status == "RUNTIME_ERROR"
        assert evaluation.log.startswith("integrity: samples: ")
        assert len(executor.of("load")) == 1  # no noise does that

    def test_another_timer(self, judge: Any) -> None:
        evaluation = judge("VERSION = 'mine'\n" + HONEST)
        assert evaluation.log.startswith("integrity: timer: timer 'clock mine' answered instead of")

    def test_on_a_machine_that_is_too_busy_nobody_is_blamed_and_nobody_gains(
        self, judge: Any
    ) -> None:
        reference = "OVERHEAD_MS = lambda i: 0.1 if i % 2 else 0.9\n" + HONEST
        evaluation = judge("SAMPLES = [0.1]\nHIDDEN_MS = 9\n" + HONEST, reference=reference)
        assert evaluation.status == "PASSED"
        assert evaluation.performance.latency_ms == pytest.approx(0.1 + 8.9, abs=0.25)
        note = evaluation.correctness.extra["integrity"]
        assert note["added_ms"] == pytest.approx(8.9, abs=0.25)
        assert "that the timer did not see" in evaluation.log
        certain = judge("VERSION = 'mine'\n" + HONEST, reference=reference)
        assert certain.status == "RUNTIME_ERROR"
        assert not certain.provenance.transient

    def test_few_calls_prove_nothing_and_gain_nothing(self, judge: Any) -> None:
        few = "SAMPLES = [0.1]\nHIDDEN_MS = 1.9\n" + HONEST
        evaluation = judge(few, config={"iterations": 3, "num_trials": 1})
        assert evaluation.status == "PASSED"
        assert evaluation.performance.latency_ms == pytest.approx(2.0)

    @pytest.mark.parametrize("hidden", [0.1, 0.2])
    def test_half_of_the_claim_is_the_most_that_noise_hides(
        self, hidden: float, judge: Any
    ) -> None:
        """However busy the machine: 0.125 ms if a latency of 0.2 ms is claimed."""
        reference = "CHANGE_MS = 9\n" + HONEST
        source = f"SAMPLES = [0.2]\nCHANGE_MS = {9 + hidden}\n"
        evaluation = judge(source + HONEST, reference=reference)
        assert evaluation.status == "PASSED"
        added = 0.2 if hidden > 0.125 else 0.0
        assert evaluation.performance.latency_ms == pytest.approx(0.2 + added)

    @pytest.mark.parametrize("hidden", [0.05, 0.1])
    def test_a_twentieth_is_the_most_within_the_call(self, hidden: float, judge: Any) -> None:
        """However busy the machine: 0.06 ms if a latency of 0.2 ms is claimed."""
        reference = "OVERHEAD_MS = 9\n" + HONEST
        source = f"SAMPLES = [0.2]\nOVERHEAD_MS = {9 + hidden}\n"
        evaluation = judge(source + HONEST, reference=reference)
        assert evaluation.status == "PASSED"
        added = 0.1 if hidden > 0.06 else 0.0
        assert evaluation.performance.latency_ms == pytest.approx(0.2 + added)

    def test_work_while_inputs_are_changed(self, judge: Any) -> None:
        """Whoever tells late that they are changed has hidden nothing by that."""
        source = "SAMPLES = [0.1]\nCHANGE_MS = 2.1\n"
        evaluation = judge(source + HONEST)
        assert evaluation.status == "RUNTIME_ERROR"
        assert evaluation.log.startswith("integrity: exchange time: exchanges take 1.9 ms")

    def test_what_may_be_noise_of_the_call_is_added(self, judge: Any) -> None:
        """It is more than is believed, and not enough to convict."""
        evaluation = judge("SAMPLES = [0.5]\nHIDDEN_MS = 0.065\n" + HONEST)
        assert evaluation.status == "PASSED"
        assert evaluation.performance.latency_ms == pytest.approx(0.565)
        assert evaluation.correctness.extra["integrity"]["added_ms"] == pytest.approx(0.065)

    def test_what_is_hidden_in_calls_is_added_once(self, judge: Any) -> None:
        """It is part of the exchange as well; here the reference's exchanges are noisy."""
        # Three values, so that the median does not depend on which calls are counted.
        reference = "CHANGE_MS = lambda i: (0.15, 0.2, 0.25)[i % 3]\n" + HONEST
        source = "SAMPLES = [0.2]\nHIDDEN_MS = 0.07\nCHANGE_MS = 0.3\n"
        evaluation = judge(source + HONEST, reference=reference)
        assert evaluation.status == "PASSED"
        assert evaluation.performance.latency_ms == pytest.approx(0.2 + 0.17, abs=0.06)

    def test_violations_are_final(self, judge: Any, problems: Any) -> None:
        evaluation = judge("SAMPLES = [0.1]\nHIDDEN_MS = 1.9\n" + HONEST)
        trace = Trace(
            definition="double", workload=problems.workload(), solution="s", evaluation=evaluation
        )
        assert is_final(trace)
        assert Evaluation.model_validate_json(evaluation.model_dump_json()) == evaluation


class TestOtherDevices:
    """What a GPU's timer has not seen may be the host's work, which is no lie; nor is it free."""

    @pytest.mark.parametrize(
        ("times", "added"),
        [("HIDDEN_MS = 1.9", 1.9), ("STAGE_MS = 9", 8.0), ("HIDDEN_MS = 1.9\nSTAGE_MS = 9", 9.9)],
    )
    def test_it_is_added_to_the_latency(self, times: str, added: float, judge: Any) -> None:
        source = f"SAMPLES = [0.1, 0.102, 0.104]\n{times}\n"
        evaluation = judge(source + HONEST, device="cuda:0")
        assert evaluation.status == "PASSED"
        note = evaluation.correctness.extra["integrity"]
        assert note["added_ms"] == pytest.approx(added, abs=1e-3)
        samples = evaluation.performance.samples_ms
        claims = [0.1, 0.102, 0.104]
        assert {round(sample - note["added_ms"], 6) for sample in samples} == set(claims)
        assert evaluation.performance.latency_ms == pytest.approx(0.102 + note["added_ms"])
        assert (
            f"latency includes {note['added_ms']:g} ms that the timer did not see" in evaluation.log
        )
        assert not evaluation.provenance.transient

    def test_only_if_it_persists(self, judge: Any, executor: Any) -> None:
        judge("SAMPLES = [0.1]\nHIDDEN_MS = 1.9\n" + HONEST, device="cuda:0")
        assert len([name for _, name in executor.of("load") if name.startswith("solution")]) == 2

    def test_little_is_not_added(self, judge: Any) -> None:
        evaluation = judge("SAMPLES = [1.0]\nHIDDEN_MS = 0.05\n" + HONEST, device="cuda:0")
        assert evaluation.performance.latency_ms == 1.0
        assert "added_ms" not in evaluation.correctness.extra["integrity"]

    def test_busy_machine(self, judge: Any) -> None:
        reference = "OVERHEAD_MS = lambda i: 0.1 if i % 2 else 0.9\n" + HONEST
        source = "SAMPLES = [0.1]\nHIDDEN_MS = 9\n" + HONEST
        evaluation = judge(source, reference=reference, device="cuda:0")
        assert evaluation.performance.latency_ms > 8.0

    @pytest.mark.parametrize("lie", ["SAMPLES = [4e-4]", "VERSION = 'mine'", "SAMPLES = [-1]"])
    def test_what_is_certain_is_still_refused(self, lie: str, judge: Any) -> None:
        evaluation = judge(f"{lie}\nHIDDEN_MS = 1.9\n" + HONEST, device="cuda:0")
        assert evaluation.status == "RUNTIME_ERROR"
        assert evaluation.log.startswith("integrity: ")


class TestDecoys:
    def test_more_calls_are_looked_at_than_compared(self, judge: Any, executor: Any) -> None:
        looks = set()
        for _ in range(12):
            note = judge(HONEST).correctness.extra["integrity"]
            assert note["checked_calls"] == 8
            assert 0 <= note["decoys"] <= 8
            assert len(executor.of("collect")) == len(executor.of("inspect")) == 8 + note["decoys"]
            looks.add(note["decoys"])
        assert len(looks) > 2

    def test_resting_after_each_look_is_found(self, judge: Any) -> None:
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
    def floor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def known(definition: Any, axes: Any, ceilings: Any) -> Floor:
            assert ceilings == "measured"
            return Floor(1.0, axes["n"], 7, "bytes")

        monkeypatch.setattr(baseline_module, "physics_floor", known)

    def test_below(self, judge: Any, executor: Any) -> None:
        evaluation = judge("SAMPLES = [0.9]\n" + HONEST, ceilings="measured")
        assert evaluation.status == "RUNTIME_ERROR"
        assert evaluation.log.startswith("integrity: floor: a latency of 0.9 ms; moving 200 bytes")
        assert len(executor.of("load")) == 1

    def test_above(self, judge: Any) -> None:
        evaluation = judge(HONEST, ceilings="measured")
        assert evaluation.correctness.extra["integrity"]["floor_ms"] == 1.0

    @pytest.mark.parametrize("options", [{}, {"ceilings": "measured", "trust": "off"}])
    def test_not_known_or_not_wanted(self, options: dict[str, Any], judge: Any) -> None:
        assert judge("SAMPLES = [0.9]\n" + HONEST, **options).status == "PASSED"


class TestRecord:
    def test_what_was_checked(self, judge: Any) -> None:
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

    def test_latency_is_the_candidates(self, judge: Any) -> None:
        evaluation = judge("SAMPLES = [1.75, 1.25, 1.5]\nOVERHEAD_MS = 0.2\n" + HONEST)
        assert evaluation.performance.latency_ms == 1.5

    def test_trust_off(self, judge: Any, executor: Any) -> None:
        evaluation = judge("HIDDEN_MS = 9\nSAMPLES = [0.1]\n" + HONEST, trust="off")
        assert evaluation.status == "PASSED"
        assert evaluation.correctness.extra["integrity"] == {"trust": "off"}
        assert executor.of("collect") == executor.of("inspect") == []
        assert len(executor.of("fire")) == 2 * (1 + 20)

    def test_given_rotation_seed(self, judge: Any) -> None:
        first, again = (judge(HONEST, rotation_seed=3).provenance.extra for _ in range(2))
        other = judge(HONEST).provenance.extra
        assert first["rotation_seed"] != 3
        assert other["rotation_seed"] != first["rotation_seed"] == again["rotation_seed"]


class TestBaseline:
    @pytest.fixture
    def prepare(self, problems: Any, session: Any, settings: Any, evaluator: Any) -> Any:
        def make(reference: str = HONEST, workload: Any = None, **options: Any) -> Any:
            config = settings(**options.pop("config", {}))
            definition = problems.definition(reference=reference)
            return prepare_baseline(
                session(**options),
                definition,
                workload or problems.workload(n=200, uuid="w"),
                reference_solution(definition),
                config,
                options.pop("root", None),
                evaluator,
            )

        return make

    def test_checks_hold_the_references_outputs(self, prepare: Any) -> None:
        baseline = prepare(config={"iterations": 30})
        assert len(baseline.checks) == 8
        for check in baseline.checks:
            trial = check.trial
            assert (trial.inputs[0] * 2).equal(trial.expected[0])
            assert not trial.inputs[0].equal(baseline.trials[trial.index].inputs[0])

    def test_nothing_is_computed_twice(self, prepare: Any, executor: Any) -> None:
        prepare()
        assert executor.fired(2 * (1 + 4), settling=1)
        assert len(executor.of("call")) == 2

    def test_what_is_normal(self, prepare: Any) -> None:
        normal = prepare("OVERHEAD_MS = 0.3\nSTAGE_MS = 0.7\n" + HONEST).normal
        assert normal.overhead.median_ms == pytest.approx(0.3)
        assert normal.stage.median_ms == pytest.approx(0.7)

    def test_a_few_calls_even_if_it_is_not_timed(self, prepare: Any, executor: Any) -> None:
        baseline = prepare(profile_baseline=False)
        assert baseline.measurement is None
        assert baseline.latency_ms == 0.0
        assert len(baseline.checks) == 6
        assert executor.fired(4 + 24, settling=2)

    def test_without_trust_there_is_nothing_of_it(self, prepare: Any) -> None:
        baseline = prepare(trust="off")
        assert (baseline.checks, baseline.normal) == ((), None)

    def test_reference_that_goes_wrong_when_timed(self, prepare: Any) -> None:
        reference = "n = [0]\ndef run(x):\n    n[0] += 1\n    return x * 2 if n[0] < 4 else x[0]"
        with pytest.raises(baseline_module.ReferenceFailed, match=r"shape \[3\]"):
            prepare(reference, config={"iterations": 20})

    def test_undecidable_workload(self, prepare: Any, problems: Any, executor: Any) -> None:
        with pytest.raises(UndecidableWorkload):
            prepare("def run(x): return x * 0")

    def test_recorded_inputs(
        self, problems: Any, session: Any, settings: Any, evaluator: Any, tmp_path: Any
    ) -> None:
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
        made = prepare_baseline(running, definition, workload, reference, config, tmp_path)
        assert [item.way for item in made.freedoms] == ["move"]
        evaluation = evaluate_solution(running, problems.solution(HONEST), made, evaluator, config)
        assert evaluation.correctness is not None
        assert evaluation.correctness.extra is not None
        assert evaluation.correctness.extra["integrity"]["fresh"] == "recorded inputs only"
