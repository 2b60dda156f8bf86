"""Giving both sides one core: when that is done, and that nobody gains by it."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import pytest

from fib_compare.paired import comparer as contests
from fib_compare.paired.launch import Cores, Settled, core_ticks
from fib_tests.scripted import steady
from flashinfer_bench.bench.executors.threads import ENDED

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="cores are chosen on Linux alone"
)


@pytest.fixture(autouse=True)
def for_solutions(monkeypatch):
    """Leave no core to the judge."""
    monkeypatch.setenv("FIB_CPU_THREADS", "99")


class Machine:
    """A folder ``proc`` with cores that are so idle, and the affinity of this process."""

    def __init__(self, proc: Path, monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
        self.proc = proc
        self._ticks = [[0, 0] for _ in range(cores)]
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
        self.pass_time(*[1] * cores)

    def pass_time(self, *idle: int) -> None:
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
    """A candidate with scripted threads."""

    def __init__(self, *looks: dict[int, int], obeys: bool = True) -> None:
        self._looks = itertools.chain(looks, itertools.repeat(looks[-1]))
        self._obeys = obeys
        self.asked: list[set[int]] = []
        self.on: frozenset[int] = frozenset({0, 1, 2})

    def thread_times(self) -> dict[int, int]:
        return next(self._looks)

    def keep_on(self, cores: Any) -> bool:
        self.asked.append(set(cores))
        if self._obeys:
            self.on = frozenset(cores)
        return self._obeys

    def cores(self) -> frozenset[int]:
        return self.on


CALLED = 100e-6, 100e-6
ALONE = {1: 0}, {1: 100}
BESIDE = {2: 0, 3: 0}, {2: 100, 3: 80}


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


class TestSettled:
    @pytest.fixture
    def cores(self, machine):
        here = machine()
        made = Cores("cpu", here.proc)
        here.pass_time(10, 90, 50)
        return made

    def test_both_get_the_same_core(self, cores):
        sides = Fake(*ALONE), Fake(*ALONE)
        settled = Settled(sides, cores)
        assert settled.on_one_core(CALLED) is True
        settled.end()
        assert [one.asked for one in sides] == [[{1}], [{1}]]

    @pytest.mark.parametrize("pair", [(ALONE, BESIDE), (BESIDE, ALONE), (BESIDE, BESIDE)])
    def test_whoever_works_on_several_is_left_alone_and_so_is_the_other(self, cores, pair):
        sides = tuple(Fake(*looks) for looks in pair)
        settled = Settled(sides, cores)
        assert settled.on_one_core(CALLED) is False
        settled.end()
        assert [one.asked for one in sides] == [[], []]

    def test_threads_that_end_in_each_call_are_seen(self, cores):
        sides = Fake(*ALONE), Fake({1: 0, ENDED: 0}, {1: 100, ENDED: 70})
        assert Settled(sides, cores).on_one_core(CALLED) is False

    @pytest.mark.parametrize("refuses", [0, 1])
    def test_if_one_cannot_be_moved_neither_is(self, cores, refuses):
        sides = tuple(Fake(*ALONE, obeys=number != refuses) for number in (0, 1))
        assert Settled(sides, cores).on_one_core(CALLED) is False
        assert sides[1 - refuses].on == {0, 1, 2}
        assert cores.choose() is None, "nor in the next launches"

    def test_if_one_moves_itself_nobody_is_moved_again(self, cores):
        sides = Fake(*ALONE), Fake(*ALONE)
        settled = Settled(sides, cores)
        assert settled.on_one_core(CALLED) is True
        sides[1].on = frozenset({0, 1})
        settled.end()
        assert [one.on for one in sides] == [{0, 1, 2}] * 2
        assert cores.choose() is None


@pytest.mark.torch
def test_processes_that_are_only_played_touch_no_real_ones(compare, monkeypatch):
    """Their numbers may be those of other people's processes."""

    def forbidden(*parts: Any) -> None:
        raise AssertionError(f"asked about a real process: {parts}")

    for name in ("thread_times", "keep_on", "cores_of"):
        monkeypatch.setattr(f"flashinfer_bench.bench.executors.call_timing.{name}", forbidden)
    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    monkeypatch.setattr(contests, "enough", lambda taken, *rest, **more: len(taken) >= 2)
    assert compare(steady(1.0), steady(1.1)).obstacle is None
