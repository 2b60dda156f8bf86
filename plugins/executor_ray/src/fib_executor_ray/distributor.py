"""The executor: finds the devices of a cluster, checks them, and lends them to a run."""

from __future__ import annotations

import json
import logging
import os
import platform
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from fib_executor_ray import cluster
from fib_executor_ray.contents import DriverContents
from fib_executor_ray.fitness import Fitness
from fib_executor_ray.judge import Judge, distributions
from fib_executor_ray.settings import GPU_DEVIATION, take_fleet
from fib_executor_ray.wire import pack_config
from flashinfer_bench.bench.backends import Distributor
from flashinfer_bench.bench.plan import (
    meant_for_other_device,
    selected_definitions,
    selected_solutions,
)
from flashinfer_bench.errors import CapabilityError, ConfigError
from flashinfer_bench.plugins import Catalog, default_catalog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fib_executor_ray.runner import FleetRunner
    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.bench.plan import SkipKind
    from flashinfer_bench.data import Solution, TraceSet

_logger = logging.getLogger(__name__)

_POLL_S = 0.5
_CHECK_S = 120.0
_SHOWN = 8
_REPEATS = 2  # of a health check that a device has not passed


@dataclass(frozen=True)
class Slot:
    """A device of a node.

    Attributes
    ----------
    node : cluster.Node
        The node.
    number : int
        Which of its devices.
    kind : str
        ``cpu`` or ``cuda``.
    """

    node: cluster.Node
    number: int
    kind: str

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.node.name}/{self.kind}:{self.number}"

    @property
    def key(self) -> tuple[str, int]:
        """Its identity."""
        return self.node.id, self.number


class RayDistributor(Distributor):
    """Divides a run among the devices of a Ray cluster; see `FleetSettings`."""

    def __init__(self, config: BenchmarkConfig) -> None:
        super().__init__(config)
        self.settings = take_fleet()
        self.fitness = Fitness()
        self.contents = DriverContents(cluster.put)
        self._mine = False
        self._lock = threading.Lock()
        self._used: set[tuple[str, int]] = set()
        self._excluded: set[tuple[str, int]] = set()
        self._unfit: set[tuple[str, str]] = set()
        self._holding: list[Any] = []
        self._warned: set[str] = set()
        self._runners: Sequence[FleetRunner] = ()
        self._pairs: list[tuple[str, Optional[str]]] = []
        self._lacking: dict[str, dict[tuple[str, Optional[str]], tuple[SkipKind, str]]] = {}
        self._versions = distributions(default_catalog())
        if config.device not in (None, "cpu", "cuda"):
            raise ConfigError(
                f"--device {config.device!r} names a device of one machine",
                hint="a fleet takes cpu or cuda; choose nodes with --ray-nodes",
            )

    # ------------------------------------------------------------------------------ beginning

    def open(self, trace_set: TraceSet) -> Sequence[FleetRunner]:
        """Return a runner for each device that passes the checks."""
        self._mine = cluster.connect(self.settings.address)
        from fib_executor_ray.runner import FleetRunner, end_judges

        self._choose(trace_set)
        slots = self._slots()
        judges = {slot: self.start_judge(slot) for slot in slots}
        self._used.update(slot.key for slot in slots)
        told = self._describe_all(judges)
        unfit = {slot: one["problem"] for slot, one in told.items() if one["problem"]}
        fit = {slot: one for slot, one in told.items() if slot not in unfit}
        fit = self._of_hardware(fit)
        unfit |= self._without_builders(fit)
        runners = [FleetRunner(self, slot, judges[slot], fit[slot]) for slot in fit]
        runners = [one for one in runners if one.slot not in unfit]
        unfit |= self._without_health(runners)
        runners = [one for one in runners if one.slot not in unfit]
        for slot in unfit:
            self.exclude(slot)
        reasons = _grouped(unfit)
        if not runners:
            raise CapabilityError(
                f"none of the cluster's devices can be used: "
                f"{'; '.join(f'{names}: {problem}' for problem, names in reasons.items())}",
                hint="have the same Python, plugins and compilers on all nodes, such as by one "
                "container image",
            )
        for problem, names in reasons.items():
            _logger.warning("%s is not used: %s", names, problem)
        if unused := judges.keys() - {one.slot for one in runners}:
            end_judges([judges[slot] for slot in unused])
        self._runners = runners
        kinds = sorted({one.environment.hardware for one in runners})
        _logger.info("%d devices: %s", len(runners), ", ".join(kinds))
        return runners

    def _choose(self, trace_set: TraceSet) -> None:
        """Work out what nodes must be able to do, and what judges are told."""
        config = self.config
        definitions = selected_definitions(trace_set, config.definitions)
        groups = selected_solutions(trace_set, definitions, config.solutions).values()
        specs = [one.spec for group in groups for one in group]
        self._pairs = list(dict.fromkeys((str(one.language), one.binding) for one in specs))
        self._dataset = str(trace_set.root.absolute()) if trace_set.root else ""

    def _slots(self) -> list[Slot]:
        """Return the devices of the nodes that are wanted; wait for them if need be."""
        deadline = time.monotonic() + self.settings.wait_s
        if self.settings.devices:
            self._request(self.settings.devices)
        while True:
            nodes = cluster.list_nodes()
            if self.config.device is None:
                gpus = any(one.devices("GPU") for one in nodes) or self.settings.devices
                self._kind = "cuda" if gpus else "cpu"
            else:
                self._kind = self.config.device
            self._resource = self.settings.resource or {"cuda": "GPU", "cpu": None}[self._kind]
            slots = self._slots_of(nodes)
            if slots and len(slots) >= (self.settings.devices or 1):
                return slots[: self.settings.devices]
            if not self.settings.devices or time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        found = "; ".join(f"{one.name} has {_resources(one)}" for one in nodes)
        wanted = self._resource or "CPU"
        if self.settings.devices:
            wanted = f"{self.settings.devices} units of {wanted} ({len(slots)} are there)"
        if self.settings.nodes:
            wanted += f" on a node with {', '.join(self.settings.nodes)}"
        raise CapabilityError(
            f"the cluster has no {wanted}: {found}",
            hint="--device cpu uses the CPUs of nodes; --ray-resource names another resource",
        )

    def _slots_of(self, nodes: Sequence[cluster.Node]) -> list[Slot]:
        return [
            Slot(node, number, self._kind)
            for node in nodes
            if node.matches(self.settings.nodes)
            for number in range(node.devices(self._resource))
        ]

    def _request(self, count: int) -> None:
        """Ask the autoscaler for devices, instead of those that were asked for before."""
        from ray.autoscaler.sdk import request_resources

        kind = self.config.device or "cuda"
        resource = self.settings.resource or ("GPU" if kind == "cuda" else "CPU")
        with suppress(Exception):  # a cluster without an autoscaler
            request_resources(bundles=[{resource: 1}] * count)

    def start_judge(self, slot: Slot) -> Any:
        """Start a judge on a device, and return its handle at once."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        job = {
            "name": slot.name,
            "node": slot.node.name,
            "device": "cpu" if slot.kind == "cpu" else "cuda:0",
            "config": pack_config(self.config),
            "dataset": self._dataset,
        }
        on_gpu = slot.kind == "cuda" or self._resource == "GPU"
        custom = {self._resource: 1} if self._resource not in ("GPU", None) else {}
        judge = ray.remote(concurrency_groups={"status": 1})(Judge)
        return judge.options(
            name=f"{cluster.JUDGE}{slot.name} {os.urandom(3).hex()}",
            namespace=cluster.NAMESPACE,
            num_cpus=0,  # tasks that compile shall never wait for a judge
            num_gpus=int(on_gpu),
            resources=custom,
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(slot.node.id, soft=False),
        ).remote(json.dumps(job))

    def described(self, judge: Any, wait_s: float) -> dict[str, Any]:
        """Return what a judge says of itself, with the ``problem`` if it cannot be used.

        Raises
        ------
        RayError
            If it ends.
        """
        import ray
        from ray.exceptions import GetTimeoutError

        try:
            text = ray.get(judge.describe.remote(json.dumps(self._pairs)), timeout=wait_s)
        except GetTimeoutError:
            return {"problem": self._late(wait_s)}
        return self._examined(json.loads(text))

    def _late(self, wait_s: float) -> str:
        return (
            f"no judge has started within {wait_s:.0f} s; other work may have taken "
            f"its {self._resource or 'cores'}"
        )

    def _describe_all(self, judges: dict[Slot, Any]) -> dict[Slot, dict[str, Any]]:
        import ray
        from ray.exceptions import RayError

        pairs = json.dumps(self._pairs)
        asked = {judge.describe.remote(pairs): slot for slot, judge in judges.items()}
        ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=self.settings.wait_s)
        told = {asked[one]: {"problem": self._late(self.settings.wait_s)} for one in late}
        for one in ready:
            try:
                told[asked[one]] = self._examined(json.loads(ray.get(one)))
            except RayError as error:
                told[asked[one]] = {"problem": f"its judge did not start: {_line_of(error)}"}
        return {slot: told[slot] for slot in judges}

    def _examined(self, told: dict[str, Any]) -> dict[str, Any]:
        """Return what a judge says, with a ``problem`` if its node differs from this one."""
        if told["problem"] is None:
            told["problem"] = self._difference(told)
        return told

    def _difference(self, told: dict[str, Any]) -> Optional[str]:
        here, there = platform.python_version(), told["python"]
        if here.split(".")[:2] != there.split(".")[:2]:
            return f"it has Python {there}, and this process {here}"
        differing = [
            f"{name} {told['distributions'].get(name, 'is missing')} (here: {version})"
            for name, version in self._versions.items()
            if told["distributions"].get(name) != version
        ]
        return f"it has other plugins: {', '.join(differing)}" if differing else None

    def _of_hardware(self, fit: dict[Slot, dict[str, Any]]) -> dict[Slot, dict[str, Any]]:
        """Return the devices of the hardware that is asked for."""
        there = sorted({one["environment"]["hardware"] for one in fit.values()})
        wanted = self.settings.hardware or ("",)
        if fit and (missing := [text for text in wanted if not any(text in one for one in there)]):
            raise CapabilityError(
                f"no device of the cluster is {' or '.join(missing)}; available: "
                f"{', '.join(there)}",
                hint="--hardware takes parts of names as in traces",
            )
        return {
            slot: one
            for slot, one in fit.items()
            if any(text in one["environment"]["hardware"] for text in wanted)
        }

    def _without_builders(self, fit: dict[Slot, dict[str, Any]]) -> dict[Slot, str]:
        """Return the devices that lack a builder which others of their hardware have, and why."""
        unfit: dict[Slot, str] = {}
        for hardware in {one["environment"]["hardware"] for one in fit.values()}:
            group = {
                slot: one["builders"]
                for slot, one in fit.items()
                if one["environment"]["hardware"] == hardware
            }
            self._lacking[hardware] = {}
            for number, pair in enumerate(self._pairs):
                lacking = {slot: one[number] for slot, one in group.items() if one[number]}
                if lacking and len(lacking) == len(group):
                    kind, reason = next(iter(lacking.values()))
                    self._lacking[hardware][pair] = kind, reason
                else:
                    unfit |= {slot: reason for slot, (_, reason) in lacking.items()}
        return unfit

    def unlike(self, told: dict[str, Any], hardware: str) -> Optional[str]:
        """Return why a device cannot take the place of one of some hardware; None if it can."""
        if told["problem"] is not None:
            return str(told["problem"])
        if (there := told["environment"]["hardware"]) != hardware:
            return f"it is {there}, not {hardware}"
        for pair, lacking in zip(self._pairs, told["builders"], strict=True):
            if lacking and pair not in self._lacking[hardware]:
                return str(lacking[1])
        return None

    # -------------------------------------------------------------------------------- fitness

    def check(self, judge: Any, hardware: str, device: str) -> Optional[str]:
        """Time the known kernel on a device, and return why it is unfit; None if it is not.

        Raises
        ------
        RayError
            If its judge is lost.
        """
        import ray

        limit, best = self._limit(), float("inf")
        for _ in range(1 + _REPEATS):
            told = json.loads(ray.get(judge.check.remote(), timeout=_CHECK_S))
            if told["memory_errors"]:
                problem = f"its memory has {told['memory_errors']} uncorrected errors"
                break
            best = min(best, told["seconds"])
            off = self.fitness.record(hardware, device, best)
            if off is None or abs(off) <= limit:
                return None
            problem = (
                f"the known kernel takes {abs(off):.1%} {'longer' if off > 0 else 'less'} than on "
                f"its peers (at most {limit:.1%})"
            )
        self.fitness.forget(hardware, device)
        return problem

    def _limit(self) -> float:
        """Return how far a device may be off its peers."""
        if self.settings.max_deviation is not None:
            return self.settings.max_deviation
        return GPU_DEVIATION if self._kind == "cuda" else float("inf")

    def _without_health(self, runners: Sequence[FleetRunner]) -> dict[Slot, str]:
        """Return the devices that are unfit, and why."""
        from ray.exceptions import RayError

        unfit: dict[Slot, str] = {}
        for one in self._suspects(runners):
            try:
                problem = self.check(one.judge, one.environment.hardware, one.device)
            except RayError as error:
                problem = f"its health check did not end: {_line_of(error)}"
            if problem is not None:
                unfit[one.slot] = problem
                self.exclude(one.slot, one.physical)
        return unfit

    def _suspects(self, runners: Sequence[FleetRunner]) -> list[FleetRunner]:
        """Record a first check of all, at the same time; return those that have not passed."""
        import ray
        from ray.exceptions import RayError

        asked = {one.judge.check.remote(): one for one in runners}
        ray.wait(list(asked), num_returns=len(asked), timeout=_CHECK_S)
        sound = set()
        for reference, one in asked.items():
            with suppress(RayError):
                told = json.loads(ray.get(reference, timeout=0))
                self.fitness.record(one.environment.hardware, one.device, told["seconds"])
                if not told["memory_errors"]:
                    sound.add(one)
        return [one for one in runners if one not in sound or not self._is_near(one)]

    def _is_near(self, runner: FleetRunner) -> bool:
        off = self.fitness.deviation(runner.environment.hardware, runner.device)
        return off is not None and abs(off) <= self._limit()

    # ----------------------------------------------------------------------------- the run

    def obstacle(self, solution: Solution, hardware: str) -> Optional[tuple[SkipKind, str]]:
        """Return why a solution cannot be evaluated on some hardware."""
        elsewhere = meant_for_other_device(solution, Catalog(), self._kind)
        if elsewhere is not None:
            return "device", elsewhere
        pair = str(solution.spec.language), solution.spec.binding
        return self._lacking.get(hardware, {}).get(pair)

    def has_peers(self, runner: FleetRunner) -> bool:
        """Return whether other devices of the same hardware have a judge."""
        hardware = runner.environment.hardware
        return any(
            one is not runner and one.judge is not None and one.environment.hardware == hardware
            for one in self._runners
        )

    def take_slot(self, lost: Slot, *, other: bool) -> Optional[Slot]:
        """Return a device in place of a lost one.

        Parameters
        ----------
        lost : Slot
            It is let go of if another one is returned.
        other : bool
            Prefer another one to itself.
        """
        slots = self._slots_of(cluster.list_nodes())
        with self._lock:
            taken = self._used - {lost.key} | self._excluded
            for slot in sorted(slots, key=lambda one: (one.key == lost.key) == other):
                if slot.key not in taken:
                    self._used.discard(lost.key)
                    self._used.add(slot.key)
                    return slot
        return None

    def exclude(self, slot: Slot, physical: str = "") -> None:
        """Use a device no more.

        Parameters
        ----------
        slot : Slot
            The device.
        physical : str
            What it really is, if it is unfit: which GPU of a node a judge gets is up to Ray.
        """
        with self._lock:
            self._excluded.add(slot.key)
            if physical and slot.kind == "cuda":
                self._unfit.add((slot.node.id, physical))

    def hold_unfit(self, slot: Slot, physical: str, judge: Any) -> bool:
        """Return whether a judge is on a GPU that is unfit; it then stays, so that no other is."""
        with self._lock:
            if (slot.node.id, physical) not in self._unfit:
                return False
            self._holding.append(judge)
            return True

    def leave(self, slot: Slot) -> None:
        """Let others use a device."""
        with self._lock:
            self._used.discard(slot.key)

    def warn(self, node: str, text: str) -> None:
        """Tell a warning of a node, once for all nodes."""
        with self._lock:
            if text in self._warned:
                return
            self._warned.add(text)
        _logger.warning("%s: %s", node, text)

    def close(self) -> None:
        """Leave the cluster, which ends all that was started there."""
        import ray

        from fib_executor_ray.runner import end_judges

        if self.settings.devices:
            self._request(0)
        if self._holding:
            end_judges(self._holding)
        if self._mine:
            with suppress(Exception):
                ray.shutdown()
            self._mine = False


def _grouped(unfit: dict[Slot, str]) -> dict[str, str]:
    """Return the names of devices by what is wrong with them."""
    names: dict[str, list[str]] = {}
    for slot, problem in unfit.items():
        names.setdefault(problem, []).append(slot.name)
    return {
        problem: ", ".join(group[:_SHOWN])
        + (f" and {len(group) - _SHOWN} others" if len(group) > _SHOWN else "")
        for problem, group in names.items()
    }


def _resources(node: cluster.Node) -> str:
    shown = {
        name: amount
        for name, amount in node.resources.items()
        if not name.startswith("node:") and "memory" not in name
    }
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(shown.items())) or "nothing"


def _line_of(error: Exception) -> str:
    """Return the line of an error of Ray that tells most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "ModuleNotFoundError" in line or "Error:" in line]
    return (telling or lines or [repr(error)])[-1]
