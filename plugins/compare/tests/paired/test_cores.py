"""Giving both sides one core: when that is done, and that nobody gains by it."""

import os

import pytest

from fib_compare.paired import comparer as contests
from fib_compare.paired.launch import Cores, Settled, core_ticks
from fib_tests.scripted import steady

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="cores are chosen on Linux alone"
)


@pytest.fixture(autouse=True)
def for_solutions(monkeypatch):
    """Leave no core to the judge."""
    monkeypatch.setenv("FIB_CPU_THREADS", "99")


class Machine:
    """A folder ``proc`` with cores that are so idle, and the affinity of this process."""

    def __init__(self, proc, monkeypatch, cores):
        self.proc = proc
        self._ticks = [[0, 0] for _ in range(cores)]
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
        self.pass_time(*[1] * cores)

    def pass_time(self, *idle):
        """Let 100 ticks pass, of which each core was idle for so many."""
        lines = ["cpu  1 2 3 4 5 6 7 8 9 10"]
        for core, ticks in enumerate(idle):
            self._ticks[core][0] += 100 - ticks
            self._ticks[core][1] += ticks
            busy, unused = self._ticks[core]
            lines.append(f"cpu{core} {busy} 0 0 {unused} 0 0 0 0 0 0")
        (self.proc / "stat").write_text("\n".join([*lines, "intr 1 2 3", "ctxt 5"]))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return lambda cores=3: Machine(tmp_path, monkeypatch, cores)


class Fake:
    """A candidate that works with one thread, and refuses to be moved unless it obeys."""

    def __init__(self, obeys):
        self._obeys = obeys
        self._looks = iter([{1: 0}, {1: 100}])
        self.on = frozenset({0, 1, 2})

    def thread_times(self):
        return next(self._looks)

    def keep_on(self, cores):
        if self._obeys:
            self.on = frozenset(cores)
        return self._obeys


class TestChoice:
    def test_the_idlest_since_the_last_choice(self, machine):
        here = machine()
        cores = Cores("cpu", here.proc)
        here.pass_time(10, 90, 50)
        assert cores.choose() == 1
        here.pass_time(60, 20, 50)
        assert cores.choose() == 0

    def test_a_device_has_no_use_for_it(self, machine):
        cores = Cores("cuda:0", machine().proc)
        assert (cores.choose(), cores.allowed) == (None, frozenset())

    def test_only_cores_that_this_process_may_use(self, machine, monkeypatch):
        here = machine()
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2})
        cores = Cores("cpu", here.proc)
        here.pass_time(10, 90, 50)
        assert cores.choose() == 2

    def test_not_the_core_that_is_left_to_the_judge(self, machine, monkeypatch):
        monkeypatch.delenv("FIB_CPU_THREADS")
        here = machine()
        cores = Cores("cpu", here.proc)
        here.pass_time(90, 10, 50)
        assert (cores.choose(), cores.allowed) == (2, {1, 2})

    def test_without_proc_there_is_no_choice(self, tmp_path):
        assert core_ticks(tmp_path) == {}
        assert Cores("cpu", tmp_path).choose() is None


@pytest.mark.parametrize("refuses", [0, 1])
def test_if_one_cannot_be_moved_neither_is(machine, refuses):
    here = machine()
    cores = Cores("cpu", here.proc)
    here.pass_time(10, 90, 50)
    sides = tuple(Fake(obeys=number != refuses) for number in (0, 1))
    assert Settled(sides, cores).on_one_core((100e-6, 100e-6)) is False
    assert sides[1 - refuses].on == {0, 1, 2}
    assert cores.choose() is None, "nor in the next launches"


@pytest.mark.torch
def test_processes_that_are_only_played_touch_no_real_ones(compare, monkeypatch):
    """Their numbers may be those of other people's processes."""

    def forbidden(*parts):
        raise AssertionError(f"asked about a real process: {parts}")

    for name in ("thread_times", "keep_on", "cores_of"):
        monkeypatch.setattr(f"flashinfer_bench.bench.executors.process.{name}", forbidden)
    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    monkeypatch.setattr(contests, "enough", lambda taken, *rest, **more: len(taken) >= 2)
    assert compare(steady(1.0), steady(1.1)).obstacle is None
