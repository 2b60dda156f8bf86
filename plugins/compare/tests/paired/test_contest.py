"""Comparing on one workload: what is called when, what stands in the way, and when it ends."""

import pytest

from fib_compare.paired import comparer as contests
from fib_compare.stats import Verdict
from fib_tests.scripted import steady

pytestmark = pytest.mark.torch

GOOD = steady(1.0)


@pytest.fixture
def launches(monkeypatch):
    """Ends comparisons after so many launches, whatever they say."""

    def stop_after(count):
        monkeypatch.setattr(contests, "enough", lambda taken, *rest, **more: len(taken) >= count)

    return stop_after


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.1, Verdict.SLOWER), (0.9, Verdict.FASTER), (1.0, Verdict.SAME), (1.002, Verdict.SAME)],
)
def test_a_difference_is_found_and_none_is_imagined(compare, factor, verdict):
    found = compare(GOOD, steady(factor))
    assert found.obstacle is None
    assert found.comparison.verdict is verdict
    assert found.comparison.ratio.estimate == pytest.approx(factor, rel=5e-3)
    assert found.candidate_ms == pytest.approx(factor * found.baseline_ms, rel=1e-2)
    assert found.stopped == "decided"


def test_each_launch_has_two_fresh_processes_and_only_the_first_is_checked(
    compare, executor, launches
):
    launches(3)
    found = compare(GOOD, steady(1.1))
    assert len(found.launches) == found.comparison.launches == 3
    loads = executor.of("load")
    assert [name for _, name in loads if name in ("old", "new")].count("old") == 3
    assert len({pid for pid, _ in loads}) == len(loads)
    calls = {pid: len([one for one in executor.of("call") if one[0] == pid]) for pid, _ in loads}
    told = [calls[pid] for pid, name in loads if name in ("old", "new")]
    assert told[:2] == [2, 2]
    assert not any(told[2:])


def test_whoever_waits_is_at_rest_unless_it_is_trusted(compare, executor, launches, monkeypatch):
    launches(2)
    rested = []
    kind = type(executor.spawn())
    monkeypatch.setattr(kind, "rest", lambda self, *, timeout_s: rested.append(self.pid))
    compare(GOOD, GOOD)
    assert len(set(rested)) == 4 + 1, "and the reference"
    rested.clear()
    compare(GOOD, GOOD, trust="off")
    assert len(set(rested)) == 1, "the reference alone"


@pytest.mark.parametrize(
    ("role", "source", "kind", "text"),
    [
        ("baseline", "def run(x):\n    return x * 3", "wrong", "INCORRECT_NUMERICAL"),
        ("candidate", "def run(x):\n    return x[:1]", "wrong", "INCORRECT_SHAPE"),
        ("candidate", "def run(x):\n    raise ValueError('broken')", "failed", "broken"),
        ("baseline", "def run(x):\n    raise Crash", "failed", "SIGSEGV"),
        ("candidate", "def run(x):\n    raise Hang", "failed", "no answer"),
        ("candidate", "def run(x):\n    raise Misbehave", "failed", "bad frame"),
        ("candidate", "raise SyntaxError('no')\ndef run(x):\n    return x", "failed", "no"),
    ],
)
def test_whoever_fails_is_named(compare, executor, role, source, kind, text):
    pair = {"baseline": GOOD, "candidate": GOOD, role: source}
    found = compare(**pair)
    assert (found.obstacle.role, found.obstacle.kind) == (role, kind)
    assert text in found.obstacle.message
    assert found.comparison is None
    assert found.launches == ()
    assert set(executor.of("spawn")) <= set(executor.of("close")), "no process is left behind"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("return x * 0 if timed else x + x", "timed call"),
        ("y = x + x\n    if timed:\n        x.zero_()\n    return y", "input was overwritten"),
    ],
)
def test_a_solution_that_does_otherwise_in_timed_calls_is_wrong(compare, body, text):
    source = steady(0.5, "timed = False\ndef on_time():\n    global timed\n    timed = True\n")
    found = compare(GOOD, source.replace("return x + x", body))
    assert (found.obstacle.role, found.obstacle.kind) == ("candidate", "wrong")
    assert text in found.obstacle.message


def test_on_the_cpu_what_a_solution_claims_counts_only_if_it_is_trusted(compare, launches):
    launches(4)
    cheat = steady(0.5, "HIDDEN_MS = 2.5\n")
    assert compare(GOOD, cheat).comparison.ratio.estimate == pytest.approx(1.0, rel=1e-2)
    found = compare(GOOD, cheat, trust="off")
    assert found.comparison.ratio.estimate == pytest.approx(0.5, rel=1e-2)
    assert found.notes == ()


def test_a_reference_that_fails_is_an_obstacle(compare, problems):
    broken = problems.definition(reference="def run(x):\n    raise RuntimeError('ref')")
    found = compare(GOOD, GOOD, problem={"definition": broken})
    assert (found.obstacle.role, found.obstacle.kind) == ("reference", "failed")
    assert "ref" in found.obstacle.message


def test_when_the_time_is_over_what_there_is_counts(compare, monkeypatch):
    monkeypatch.setattr(contests, "enough", lambda *launches, **more: False)
    found = compare(GOOD, steady(1.2), max_seconds=1.0)
    assert found.stopped == "time"
    assert len(found.launches) >= 2
    assert found.comparison is not None


@pytest.mark.parametrize("reference_is_slow", [False, True])
def test_no_two_launches_get_the_same_check_unless_the_reference_is_slow(
    compare, launches, monkeypatch, reference_is_slow
):
    launches(10)
    taken = []
    take = contests.CheckSupply.take

    def note(self, count):
        groups, alone = take(self, count)
        assert not alone  # on the CPU all calls are
        taken.extend(check.number for group in groups for check in group)
        return groups, alone

    monkeypatch.setattr(contests.CheckSupply, "take", note)
    if reference_is_slow:
        monkeypatch.setattr("fib_compare.paired.sides._TIME_SHARE", -1.0)
    found = compare(GOOD, GOOD)
    assert len(taken) == 60
    assert (len(set(taken)) < 60) == reference_is_slow
    assert any("checks of earlier ones" in note for note in found.notes) == reference_is_slow
