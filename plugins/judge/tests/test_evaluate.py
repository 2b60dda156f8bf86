import pytest
import torch

from fib_judge.evaluate import evaluate_solution
from fib_tests.scripted import Apart
from flashinfer_bench._version import __version__
from flashinfer_bench.bench.digests import trial_seed
from flashinfer_bench.bench.evaluation import NotEvaluated
from flashinfer_bench.bench.evaluators import DefaultEvaluator
from flashinfer_bench.bench.measurement import ReferenceFailed
from flashinfer_bench.bench.pool import WorkerPool
from flashinfer_bench.bench.timing.wall import WallClockTimer
from flashinfer_bench.data import Evaluation
from flashinfer_bench.tensors import cpu_threads

GOOD = "def run(x): return x * 2"


@pytest.fixture
def judge(judging):
    """Evaluate a solution, given as source or object, against the doubling reference."""
    return judging(tightened=False)


class TestStatuses:
    @pytest.mark.parametrize(
        ("source", "status", "transient", "log"),
        [
            ("def run(x): return x + x", "PASSED", False, ""),
            ("import nothing_of_this_name", "COMPILE_ERROR", False, "load: No module named"),
            ("def run(x: return", "COMPILE_ERROR", False, "SyntaxError"),
            ("raise Crash", "COMPILE_ERROR", True, "load: was killed by SIGSEGV"),
            ("raise Hang", "TIMEOUT", True, "load: no answer"),
            ("def run(x): return 1 / 0", "RUNTIME_ERROR", False, "call: division by zero"),
            ("def run(x): raise Crash", "RUNTIME_ERROR", True, "call: was killed by SIGSEGV"),
            ("def run(x): raise Hang", "TIMEOUT", True, "may take 30 s"),
            ("def run(x): raise Misbehave", "RUNTIME_ERROR", False, "call: bad frame"),
            ("def run(x): return x[:2]", "INCORRECT_SHAPE", False, "shape [2, 3] instead"),
            ("def run(x): return x, x", "INCORRECT_SHAPE", False, "2 outputs instead of 1"),
            ("def run(x): return (x + x).half()", "INCORRECT_DTYPE", False, "torch.float16"),
            ("def run(x): return x * 3", "INCORRECT_NUMERICAL", False, "elements match"),
            (f"def on_time(): 1 / 0\n{GOOD}", "RUNTIME_ERROR", False, "time: division by zero"),
            (f"def on_time(): raise Hang\n{GOOD}", "TIMEOUT", True, "time: no answer"),
        ],
    )
    def test_each(self, source, status, transient, log, judge):
        evaluation = judge(source)
        assert evaluation.status == status
        assert evaluation.provenance.transient is transient
        assert log in evaluation.log
        assert Evaluation.model_validate_json(evaluation.model_dump_json()) == evaluation

    def test_later_trials_count_too(self, judge, executor):
        evaluation = judge(
            "seen = []\ndef run(x):\n    seen.append(x)\n    return x * len(seen) * 2"
        )
        assert evaluation.status == "INCORRECT_NUMERICAL"
        assert evaluation.correctness.extra["first_failing"]["trial"] == 1
        assert executor.of("fire") == []


def test_what_is_loose_in_timed_calls_alone_is_marked(judge):
    source = """
seen = []
def run(x):
    seen.append(x)
    return x * (2 if len(seen) <= 2 else 2.012)
"""
    for more, marked in (("", False), (source, True)):
        unset = {f"{kind}_by_dtype": frozenset({"y"}) for kind in ("atol", "rtol")}
        evaluation = judge(more or GOOD, config=unset)
        assert evaluation.status == "PASSED"
        assert ("loose_tolerance" in evaluation.correctness.extra["integrity"]) == marked


def test_record_provenance(judge, problems):
    solution = problems.good()
    provenance = judge(solution).provenance
    assert (provenance.seed, provenance.device) == (11, "cpu")
    assert (provenance.timer, provenance.timer_version) == ("clock", WallClockTimer.version)
    assert provenance.evaluator == "default 2"
    assert provenance.harness_version == __version__
    counts = provenance.warmup_runs, provenance.iterations, provenance.num_trials
    assert counts == (1, 4, 2)
    assert provenance.build_s == 0.25
    assert provenance.wall_s >= 0
    extra = {"solution_hash": solution.hash(), "reference_calls": 8, "measurement": "verified"}
    extra.update(trust="full", tolerance="fixed", timed_checks=8, cpu_threads=cpu_threads())
    assert 0 <= provenance.extra.pop("rotation_seed") < 2**53
    assert len(provenance.extra.pop("checks_id")) == 8
    assert provenance.extra == extra


class TestProcesses:
    def test_rounds_are_spread_over_fresh_ones(self, judge, executor):
        """None of the later ones has been called before it is timed."""
        kept = WorkerPool(executor, keep=9, sandbox=Apart("off"))
        evaluation = judge(GOOD, config={"processes": 2}, pool=kept)
        assert len(evaluation.performance.samples_ms) == 8
        assert evaluation.correctness.extra["integrity"]["timed_calls"] == 8
        fired = [pid for pid, *_ in executor.of("fire")]
        first, second = dict.fromkeys(fired)
        called = {pid for pid, _ in executor.of("call")}
        assert called == {first}
        assert executor.fired(4 + 1, settling=2, pid=second)

    def test_reference_and_solution_never_share_one(self, problems, session, executor, prepare):
        shared = session(pool=WorkerPool(executor, keep=9, sandbox=Apart("off")))
        for _ in range(2):
            baseline = prepare(running=shared)
            for solution in (problems.good("a"), problems.good("b")):
                evaluate_solution(shared, solution, baseline)
        loads = executor.of("load")
        assert sorted(name for _, name in loads) == ["a", "b", "double__reference"]
        assert len({pid for pid, _ in loads}) == 3

    def test_others_have_ended_before_it_is_called(self, judge, session, executor, monkeypatch):
        pool = WorkerPool(executor, keep=0, sandbox=Apart("off"))
        monkeypatch.setattr(pool, "settle", lambda: executor.events.append(("settled",)))
        judge(GOOD, pool=pool)
        kinds = [event[0] for event in executor.events]
        assert kinds[:4] == ["spawn", "load", "settled", "inputs"]


def test_time_limit_covers_the_whole_evaluation(judge):
    evaluation = judge(
        "import time\ndef run(x):\n    time.sleep(0.06)\n    return x * 2", timeout_seconds=0.1
    )
    assert evaluation.status == "TIMEOUT"
    assert "no time left of 0.1 s" in evaluation.log


LACKS = """
from flashinfer_bench.bench.executors.base import CandidateFailed
calls = []
def lack(stage):
    raise CandidateFailed("K: no GPU", stage=stage, kind="K", traceback="", about="{about}")
"""


@pytest.mark.parametrize("about", ["capability", "storage"])
class TestWhatTheMachineLacks:
    """Languages that compile when they are first called find it out only then."""

    def test_the_first_call_says_so(self, about, judge):
        with pytest.raises(NotEvaluated, match=r"^no GPU$"):
            judge(LACKS.format(about=about) + "def run(x): lack('call')")

    @pytest.mark.parametrize(("calls", "per_trial"), [(1, 1), (1, 3), (3, 3)])
    def test_a_later_call_is_not_believed(self, about, calls, per_trial, judge):
        """Neither in the same trial nor in the next one: what was called once has been built."""
        source = (
            f"def run(x):\n    if len(calls) == {calls}: lack('call')\n"
            "    calls.append(x)\n    return x * 2"
        )
        evaluator = Repeating() if per_trial == 3 else DefaultEvaluator()
        evaluation = judge(LACKS.format(about=about) + source, evaluator=evaluator)
        assert evaluation.status == "RUNTIME_ERROR"
        assert "no GPU" in evaluation.log


class Repeating(DefaultEvaluator):
    """Wants three calls of each trial, and notes what it gets."""

    name = "repeating"

    def __init__(self):
        self.seen = []

    def calls_per_trial(self, config):
        return 3

    def check(self, definition, workload, trial, calls, config):
        self.seen.append(len(calls))
        return super().check(definition, workload, trial, calls, config)


class Broken(DefaultEvaluator):
    name = "broken"

    def __init__(self, where):
        def fail(*args, **options):
            raise LookupError("oops")

        setattr(self, where, fail)


class TestEvaluators:
    def test_several_calls_of_a_trial(self, judge, executor):
        repeating = Repeating()
        evaluation = judge(GOOD, evaluator=repeating)
        assert evaluation.provenance.evaluator == f"repeating {DefaultEvaluator.version}"
        assert repeating.seen[:2] == [3, 3]
        assert set(repeating.seen[2:]) == {1}  # timed calls
        assert [slot for _, slot in executor.of("call")] == [0, 0, 0, 1, 1, 1]

    @pytest.mark.parametrize("where", ["check", "combine", "calls_per_trial"])
    def test_one_that_raises_is_not_the_solutions_fault(self, where, judge):
        evaluation = judge(GOOD, evaluator=Broken(where))
        assert evaluation.status == "RUNTIME_ERROR"
        assert evaluation.provenance.transient
        assert evaluation.log.startswith(
            "evaluator 'broken' failed on these outputs: LookupError: oops"
        )


# ----------------------------------------------------------------------------------- the baseline


class TestContent:
    def test_one_input_set_per_trial(self, prepare):
        baseline = prepare()
        assert [trial.index for trial in baseline.trials] == [0, 1]
        assert [trial.seed for trial in baseline.trials] == [trial_seed(11, 0), trial_seed(11, 1)]
        first, second = (trial.inputs[0] for trial in baseline.trials)
        assert first.shape == (4, 3)
        assert not torch.equal(first, second)
        for trial in baseline.trials:
            assert torch.equal(trial.expected[0], trial.inputs[0] * 2)

    def test_wider_type_is_kept(self, prepare, problems):
        reference = "def run(x):\n    return x.double() * 2"
        assert prepare(reference).trials[0].expected[0].dtype == torch.float64


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("raise OSError('no such library')\ndef run(x): pass", r"\(load\): no such library"),
        ("def run(x):\n    return x @ x", r"\(call\): "),
        ("def run(x):\n    raise Crash", r"\(call\): was killed by SIGSEGV"),
        ("def run(x):\n    raise Hang", r"\(call\): no answer"),
        ("def run(x):\n    raise Misbehave", r"\(call\): bad frame"),
        ("def run(x):\n    return x, x", "2 outputs instead of 1"),
        ("def run(x):\n    return x[0]", r"shape \[3\] instead of \[4, 3\]"),
        ("def run(x):\n    return x.int()", "dtype torch.int32 instead of torch.float32"),
    ],
)
def test_a_failure_is_named_as_the_references(reference, text, prepare, problems, executor):
    with pytest.raises(ReferenceFailed, match=text) as caught:
        prepare(reference)
    assert "the reference of definition 'double'" in caught.value.message
    assert executor.of("close") == [(1000,)]
