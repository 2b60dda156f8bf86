"""The driver's side of devices, with judges that are played."""

from __future__ import annotations

import json
import platform
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="ray is not installed; 'nox -s ray' installs it")

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from fib_executor_ray import FleetSettings, cluster, runner, use_fleet
from fib_executor_ray.distributor import RayDistributor, Slot
from fib_executor_ray.runner import FleetRunner
from fib_tests.scaled_add import DEFINITION
from fib_tests.serving import solution
from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.data import Definition, Solution, Workload
from flashinfer_bench.errors import RunnerFatalError

NODE = cluster.Node("id", "node", {"GPU": 5}, {})
SLOTS = [Slot(NODE, number, "cuda") for number in range(5)]


class Method:
    def __init__(self, answer):
        self._answer = answer

    def options(self, **given):
        return self

    def remote(self, *given):
        return self._answer


def answer(value):
    def get(timeout):
        if isinstance(value, Exception):
            assert timeout is not None
            raise value
        return json.dumps(value)

    return Method(get)


def play(physical, seconds=1.0, *, errors=0, hardware="H200", lacking=None, lost=None):
    """Return a judge."""
    told = {
        "python": platform.python_version(),
        "problem": None,
        "environment": {"hardware": hardware},
        "physical": physical,
        "builders": [lacking and ["capability", lacking]],
    }
    return SimpleNamespace(
        told=told,
        describe=Method(lambda timeout: json.dumps({**told, "distributions": RayFleet.versions})),
        check=answer(lost or {"seconds": seconds, "memory_errors": errors}),
        missing=answer(GetTimeoutError("it hangs")),
        close=answer(None),
    )


class RayFleet(RayDistributor):
    """GPUs of a node, with judges in the order in which they are started."""

    versions: dict[str, str]

    def __init__(self, **settings):
        use_fleet(FleetSettings(**settings))
        super().__init__(BenchmarkConfig.default(device="cuda"))
        RayFleet.versions = self._versions
        self._kind, self._resource = "cuda", "GPU"
        self._pairs, self._lacking = [("cuda", None)], {"H200": {}}
        self.judges = []

    def start_judge(self, slot):
        return self.judges.pop(0)

    def runner(self, number, judge):
        self._used.add(SLOTS[number].key)
        made = FleetRunner(self, SLOTS[number], judge, judge.told)
        self._runners = [*self._runners, made]
        return made


@pytest.fixture
def killed(monkeypatch):
    found = []
    monkeypatch.setattr(ray, "get", lambda reference, timeout=None: reference(timeout))
    monkeypatch.setattr(ray, "wait", lambda references, **given: (references, []))
    monkeypatch.setattr(ray, "kill", found.append)
    monkeypatch.setattr(cluster, "list_nodes", lambda: [NODE])
    monkeypatch.setattr(runner, "_POLL_S", 0.02)
    yield found
    use_fleet(FleetSettings())


def test_devices_that_are_worn_slow_or_lost_are_left_out_at_the_start(killed):
    fleet = RayFleet()
    lost = play("d", lost=RayActorError(error_msg="the node went down"))
    played = [play("a"), play("b"), play("c", errors=2), lost, play("e", 1.04)]
    unfit = fleet._without_health([fleet.runner(*one) for one in enumerate(played)])
    assert unfit == {
        SLOTS[2]: "its memory has 2 uncorrected errors",
        SLOTS[3]: "its health check did not end: the node went down",
        SLOTS[4]: "the known kernel takes 4.0% longer than on its peers (at most 3.0%)",
    }
    assert fleet.fitness.deviation("H200", SLOTS[2].name) is None


def test_replacements_are_examined_and_others_are_tried(killed, caplog):
    fleet = RayFleet()
    fleet.fitness.record("H200", "another", 1.0)
    one = fleet.runner(0, play("a"))
    one._lose()
    tried = [play("b", 1.2), play("c", lacking="no nvcc"), play("d", hardware="L4"), play("e")]
    fleet.judges = tried[:]
    one._replace()
    assert (one.device, one.physical, one.judge) == (SLOTS[3].name, "e", tried[3])
    assert killed[1:] == tried[:3]
    assert [record.getMessage() for record in caplog.records] == [
        "node/cuda:0 is not used: the known kernel takes 20.0% longer than on its peers (at most "
        "3.0%)",
        "node/cuda:1 is not used: no nvcc",
        "node/cuda:2 is not used: it is L4, not H200",
        "node/cuda:0 is replaced by node/cuda:3",
    ]
    assert fleet.take_slot(SLOTS[4], other=True) == SLOTS[4]


def test_an_unfit_gpu_does_not_come_back_under_another_name(killed):
    fleet = RayFleet()
    fleet.exclude(SLOTS[1], "gpu-1")
    one = fleet.runner(0, play("gpu-0"))
    one._lose()
    # Ray first gives the GPU that became free.
    unfit, fit = play("gpu-1"), play("gpu-0")
    fleet._used.update(slot.key for slot in SLOTS)
    fleet.judges = [unfit, fit]
    one._replace()
    assert (one.device, one.judge) == (SLOTS[0].name, fit)
    assert unfit not in killed
    fleet.close()
    assert unfit in killed


def test_a_drained_device_is_lent_to_nobody(killed):
    fleet = RayFleet()
    fleet.fitness.record("H200", "another", 1.0)
    one = fleet.runner(0, play("a", 1.2))
    with pytest.raises(RunnerFatalError, match="is drained: the known kernel"):
        one._check()
    one.close()
    fleet._used.update(slot.key for slot in SLOTS[1:])
    assert fleet.take_slot(Slot(NODE, 9, "cuda"), other=True) is None
    assert fleet.hold_unfit(SLOTS[3], "a", None)


def test_a_runner_that_gives_up_leaves_its_device_once(killed, monkeypatch):
    fleet = RayFleet()
    one = fleet.runner(0, play("a"))
    fleet._used.update(slot.key for slot in SLOTS[1:])
    another = Slot(NODE, 9, "cuda")
    one._lose()
    with monkeypatch.context() as away:
        away.setattr(cluster, "list_nodes", list)
        assert fleet.take_slot(one.slot, other=False) is None
    assert fleet.take_slot(another, other=True) is None
    one.close()
    assert fleet.take_slot(another, other=True) == SLOTS[0]
    one.close()
    assert SLOTS[0].key in fleet._used


def test_who_waits_has_no_peers_any_more(killed, monkeypatch):
    monkeypatch.setattr(cluster, "list_nodes", list)
    monkeypatch.setattr(runner, "_PATIENCE_S", 0.1)
    fleet = RayFleet(wait_s=0.4)
    one, peer = fleet.runner(0, play("a")), fleet.runner(1, play("b"))
    one._lose()
    began = time.monotonic()
    with pytest.raises(RunnerFatalError, match="is lost, and no other H200 was free"):
        one._replace()
    assert 0.1 <= time.monotonic() - began < 0.4
    monkeypatch.setattr(fleet, "take_slot", lambda lost, other: peer._lose())
    began = time.monotonic()
    with pytest.raises(RunnerFatalError):
        one._replace()
    assert time.monotonic() - began >= 0.4


def test_a_judge_that_hangs_while_it_takes_contents_is_given_up(killed, monkeypatch):
    fleet = RayFleet()
    judges = [play("a") for _ in range(3)]
    one = fleet.runner(0, judges[0])
    others = iter(judges[1:])
    monkeypatch.setattr(one, "_replace", lambda: setattr(one, "judge", next(others)))
    random = {"type": "random"}
    inputs = {"x": random, "y": random, "scale": {"type": "scalar", "value": 0.5}}
    workload = {"uuid": "w", "axes": {"tokens": 2}, "inputs": inputs}
    given = Definition.model_validate(DEFINITION), Workload.model_validate(workload)
    solutions = [Solution.model_validate(solution())]
    with pytest.raises(RunnerFatalError, match="the judge was lost 3 times in a row: it hangs"):
        list(one.evaluate_each(*given, solutions, fleet.config))
    assert killed == judges
