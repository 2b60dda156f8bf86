"""Tables that are exchanged while threads call: nobody runs who may in neither of them."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

import pytest
from tests.apply_faults import channel
from tests.apply_faults.channel import FALLBACK
from tests.apply_faults.conftest import SEEDS
from tests.apply_faults.drive import STYLES, Driver, Tally, enable, strided
from tests.apply_faults.oracle import NOTHING, Oracle, Verdict
from tests.apply_faults.problems import make_inputs

from flashinfer_bench.apply import ApplyConfig, apply
from flashinfer_bench.errors import FibError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.apply_faults.world import World

    from flashinfer_bench.apply import ApplyRuntime

pytestmark = pytest.mark.plugin("python")

THREADS = 8
CHANGING = (SEEDS[1], SEEDS[3])  # other latencies, other winners
REBUILDS = 9  # odd: the last exchange leaves another table than there was at first


class Crowd:
    """Threads that call everything of some worlds until they are told to stop."""

    def __init__(self, worlds: list[World], must_hit: bool = True) -> None:
        self.drivers = [Driver(world, apply) for world in worlds]
        self.must_hit = must_hit
        self.tallies = [Tally() for _ in range(THREADS)]
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(index,)) for index in range(THREADS)
        ]

    def run_while(self, work: Callable[[], None]) -> list[str]:
        """Call while `work` goes on; return what was wrong."""
        for thread in self._threads:
            thread.start()
        try:
            work()
            while self.must_hit and not self._has_hits():  # a busy machine may take its time
                time.sleep(0.01)
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()
        return [text for tally in self.tallies for text in tally.wrong]

    def _has_hits(self) -> bool:
        hits = sum(tally.hits for tally in self.tallies)
        return hits > THREADS or any(tally.wrong for tally in self.tallies)

    def _work(self, index: int) -> None:
        rng = random.Random(index)
        try:
            while not self._stop.is_set():
                self._call(self.tallies[index], rng)
                self._stop.wait(0.001)  # who never waits keeps the others from what is tested
        except BaseException as error:  # noqa: BLE001 - it is what the test is about
            self.tallies[index].wrong.append(repr(error))

    def _call(self, tally: Tally, rng: random.Random) -> None:
        driver = rng.choice(self.drivers)
        problem = rng.choice(list(driver.world.problems.values()))
        values = rng.choice(driver.world.recorded(problem.name) or [()])
        if len(values) != len(problem.variable):
            return
        inputs = make_inputs(problem, problem.sizes(values), rng)
        spoilt = strided(problem, inputs, rng) if rng.random() < 0.2 else None
        verdict = NOTHING if spoilt else self._verdict(problem.name, values)
        style = rng.choice(STYLES[:2] if spoilt else STYLES)
        tally.add(*driver.judged(problem, spoilt or inputs, style, verdict, self._judge))

    def _verdict(self, name: str, values: tuple[int, ...]) -> Verdict:
        each = [driver.oracle.verdict(name, values) for driver in self.drivers]
        winners = frozenset(one.winner for one in each if one.winner)
        everywhere = all(one.winner for one in each)
        return Verdict(winners, "somebody" if everywhere and self.must_hit else None)

    def _judge(self, verdict: Verdict, ran: list[str]) -> str:
        if {*ran} - {*verdict.allowed, FALLBACK}:
            return f"{ran}: only {set(verdict.allowed)} may run"
        if verdict.winner and FALLBACK in ran:
            return "a miss, although both tables have a winner"
        return ""


def rebuilding(runtime: ApplyRuntime, *folders: Path) -> Callable[[], None]:
    """Return what exchanges the table of a runtime in turn for those of two folders."""

    def rebuild() -> None:
        for turn in range(REBUILDS):
            runtime.rebuild(str(folders[turn % 2]))
            time.sleep(0.02)

    return rebuild


def winners_of(world: World) -> list[str | None]:
    oracle = Oracle(world)
    return [
        oracle.verdict(name, values).winner
        for name in world.problems
        for values in world.recorded(name)
    ]


@pytest.mark.parametrize("seed", CHANGING)
def test_rebuilding_under_load(seed, make_world, tmp_path):
    world, folder = make_world(seed)
    other = world.swapped(random.Random(seed))
    with enable(folder) as runtime:
        rebuild = rebuilding(runtime, other.write(tmp_path / "other"), folder)
        assert Crowd([world, other]).run_while(rebuild) == []
        # The last exchange holds, for every thread that begins now.
        assert winners_of(world) != winners_of(other)
        assert Crowd([other]).run_while(lambda: time.sleep(0.1)) == []


@pytest.mark.parametrize("seed", CHANGING)
def test_a_dataset_that_is_rewritten_while_it_is_read(seed, make_world, tmp_path):
    """Half of it may be missing when it is read: that loses hits, and brings no wrong one."""
    world, folder = make_world(seed)
    other = world.swapped(random.Random(seed))
    runtime = enable(folder)
    done = threading.Event()

    def rewrite() -> None:
        while not done.is_set():
            for each in (world, other):
                for path, content in _contents(each, tmp_path / "aside").items():
                    with (folder / path).open("r+b") as file:
                        file.truncate(0)
                        file.write(content[: len(content) // 2])
                        file.flush()
                        file.write(content[len(content) // 2 :])

    def rebuild() -> None:
        writer = threading.Thread(target=rewrite)
        writer.start()
        try:
            for _ in range(REBUILDS):
                try:
                    runtime.rebuild()
                except FibError:
                    continue  # refused as a whole: the old table stays
        finally:
            done.set()
            writer.join()

    with runtime:
        crowd = Crowd([world, other], must_hit=False)
        crowd._judge = lambda verdict, ran: _only_usable(crowd, ran)  # type: ignore[method-assign]
        assert crowd.run_while(rebuild) == []
        runtime.rebuild()
        assert winners_of(world) != winners_of(other)
        assert Crowd([other]).run_while(lambda: time.sleep(0.1)) == []


def _contents(world: World, aside) -> dict[str, bytes]:
    root = world.write(aside)
    files = (path for path in root.rglob("*.jsonl"))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def _only_usable(crowd: Crowd, ran: list[str]) -> str:
    """Half of the lines gone, another of the eligible solutions may win; none else.

    A solution that passed and was found wrong later is among them: the line that says so may be
    in the half that is missing.
    """
    records = [record for driver in crowd.drivers for record in driver.world.records]
    disproved = {record.solution for record in records if record.fault == "disproved"}
    usable = {
        name
        for driver in crowd.drivers
        for problem in driver.world.problems.values()
        for values in driver.world.recorded(problem.name)
        for name in driver.oracle.verdict(problem.name, values).allowed
    }
    strangers = {*ran} - usable - disproved - {FALLBACK}
    return f"{strangers} must not run" if strangers else ""


def test_enabling_and_disabling_under_load(make_world):
    world, folder = make_world(SEEDS[1])

    def toggle() -> None:
        for _ in range(REBUILDS):
            with enable(folder):
                time.sleep(0.01)

    assert Crowd([world], must_hit=False).run_while(toggle) == []


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_solutions_that_turn_wrong_while_tables_are_exchanged(seed, make_world, tmp_path):
    world, folder = make_world(seed)
    other = world.swapped(random.Random(seed))
    rng = random.Random(seed)
    for name in world.solutions:
        kind = rng.choice(("raise", "dtype", channel.WRONG))
        channel.behaviours[name] = channel.Behaviour(kind, rng.randint(0, 50))
    with enable(folder, ApplyConfig(shadow_share=1.0)) as runtime:
        rebuild = rebuilding(runtime, other.write(tmp_path / "other"), folder)
        assert Crowd([world, other], must_hit=False).run_while(rebuild) == []
