"""The driver's side of one device: sends work to its judge, and replaces a judge that is lost."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

import ray
from ray.exceptions import RayError

from fib_executor_ray.judge import BEAT_S
from fib_executor_ray.wire import unpack_error
from flashinfer_bench.bench.evaluation import NotEvaluated
from flashinfer_bench.bench.pool import RunInterrupted, in_thread
from flashinfer_bench.data import Environment, Evaluation
from flashinfer_bench.data.blobs import fetch_if_pointer, present_blob
from flashinfer_bench.data.json_codec import from_json, to_json
from flashinfer_bench.errors import RunnerFatalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from fib_executor_ray.distributor import RayDistributor, Slot
    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.data import Definition, Solution, Workload
    from flashinfer_bench.errors import FibError

_logger = logging.getLogger(__name__)

_SILENCE_S = 6 * BEAT_S
_ATTEMPTS = 3  # in which nothing was evaluated, or with the same solution
_POLL_S = 1.0
_PATIENCE_S = 30.0
_CLOSE_S = 2.0
_SEND_S = 600.0  # a content, which may be large


class JudgeLost(Exception):
    """A judge has ended, or does not answer."""


def end_judges(judges: Sequence[Any]) -> None:
    """Have judges undo what they did to their devices, and kill them; does not raise."""
    with suppress(Exception):
        closed = [one.close.options(concurrency_group="status").remote() for one in judges]
        ray.wait(closed, num_returns=len(closed), timeout=_CLOSE_S)
    for one in judges:
        with suppress(Exception):
            ray.kill(one)


class FleetRunner:
    """Evaluates on one device of a cluster.

    Parameters
    ----------
    fleet : RayDistributor
        Starts judges.
    slot : Slot
        The device.
    judge : ray.actor.ActorHandle
        Its judge.
    told : dict
        What the judge says of itself.

    Attributes
    ----------
    device : str
        Its name in messages: ``node-a/cuda:0``.
    physical : str
        What it really is: which GPU of the node, by its UUID.
    environment : Environment
        Hardware and libraries.
    interrupted : bool
        Whether `interrupt` has been called.
    """

    def __init__(self, fleet: RayDistributor, slot: Slot, judge: Any, told: dict[str, Any]) -> None:
        self._fleet, self.slot, self.judge = fleet, slot, judge
        self.device, self.physical = slot.name, str(told["physical"])
        self.environment = from_json(json.dumps(told["environment"]), Environment)
        self.interrupted = False
        self._stop = threading.Event()
        self._ending: Optional[Future[None]] = None
        self._closed = False
        self._checked = time.monotonic()

    def evaluate_each(
        self,
        definition: Definition,
        workload: Workload,
        solutions: Iterable[Solution],
        config: BenchmarkConfig,
        root: Optional[Path] = None,
        *,
        on_start: Callable[[Solution], None] = lambda solution: None,
        on_skip: Callable[[Solution, NotEvaluated], None] = lambda solution, why: None,
    ) -> Iterator[tuple[Solution, Evaluation]]:
        """Yield each evaluation as soon as it ends, once, however often judges are lost."""
        left = list(solutions)
        blobs = self._blobs(workload, root)
        losses: Counter[str] = Counter()
        failed = 0
        while left:
            doing: Optional[Solution] = None
            try:
                if self.judge is None:
                    self._replace()
                if time.monotonic() - self._checked > self._fleet.settings.check_s:
                    self._check()
                for head, body in self._evaluate(definition, workload, left[:], blobs):
                    if "error" in head:
                        raise self._error(head["error"])
                    if (solution := head.get("started")) is not None:
                        doing = solution
                        on_start(solution)
                    elif (solution := head.get("skipped")) is not None:
                        left.remove(solution)
                        on_skip(solution, NotEvaluated(head["reason"]))
                    elif (solution := head.get("evaluated")) is not None:
                        evaluation = from_json(body, Evaluation)
                        left.remove(solution)
                        doing, failed = None, 0
                        yield solution, evaluation
                if left:  # it has said that it is through
                    raise JudgeLost("it left out solutions")
            except (RayError, JudgeLost) as error:
                self._lose()
                if self.interrupted:
                    raise RunInterrupted(f"the run ended while {self.device} worked") from error
                failed += 1
                what = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
                _logger.warning("%s: the judge was lost, and is replaced: %s", self.device, what)
                if doing is not None:
                    losses[doing.name] += 1
                    if losses[doing.name] >= _ATTEMPTS:
                        left.remove(doing)
                        failed = 0
                        reason = f"the judge was lost {_ATTEMPTS} times while it was evaluated"
                        on_skip(doing, NotEvaluated(f"{reason}: {what}"))
                if failed >= _ATTEMPTS:
                    raise RunnerFatalError(
                        f"{self.device}: the judge was lost {failed} times in a row: {what}"
                    ) from error

    def _error(self, packed: dict[str, Any]) -> FibError:
        if self.interrupted:  # which is why
            return RunInterrupted(f"the run ended while {self.device} worked")
        return unpack_error(packed, self.device)

    def _evaluate(
        self,
        definition: Definition,
        workload: Workload,
        solutions: Sequence[Solution],
        blobs: dict[str, str],
    ) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield the messages of a judge; numbers of solutions are replaced by solutions."""
        contents = self._fleet.contents
        work = {
            "definition": contents.record(definition),
            "solutions": [contents.record(one) for one in solutions],
            "workload": json.loads(to_json(workload, indent=None)),
            "blobs": blobs,
        }
        judge, answer = self.judge, partial(ray.get, timeout=_SEND_S)
        contents.send(
            self.slot.node.id,
            [work["definition"], *work["solutions"], *blobs.values()],
            lambda paths: json.loads(answer(judge.missing.remote(json.dumps(paths)))),
            lambda digest, references: answer(judge.keep.remote(digest, references)),
        )
        stream = judge.evaluate.options(num_returns="streaming").remote(json.dumps(work))
        while True:
            ready, _ = ray.wait([stream], timeout=_SILENCE_S)
            if not ready:
                raise JudgeLost(f"it has said nothing for {_SILENCE_S:.0f} s")
            try:
                lines = iter(ray.get(next(stream)).splitlines())
            except StopIteration:
                return
            for line in lines:
                head = json.loads(line)
                for text in head.pop("warnings", ()):
                    self._fleet.warn(self.slot.node.name, text)
                for event in ("started", "skipped", "evaluated"):
                    if event in head:
                        head[event] = solutions[head[event]]
                yield head, next(lines) if "evaluated" in head else b""

    def _blobs(self, workload: Workload, root: Optional[Path]) -> dict[str, str]:
        """Return the digests of the tensor files of a workload; judges tell which are missing."""
        found = {}
        for source in workload.inputs.values():
            if source.type == "safetensors" and root is not None:
                path = present_blob(root, source.path)
                if path.is_file():
                    fetch_if_pointer(path)
                    found[source.path] = self._fleet.contents.file(path)
        return found

    def _check(self) -> None:
        """Have the judge time the known kernel.

        Raises
        ------
        RunnerFatalError
            If the device is unfit.
        """
        self._checked = time.monotonic()
        problem = self._fleet.check(self.judge, self.environment.hardware, self.device)
        if problem is not None:
            self._fleet.exclude(self.slot, self.physical)
            raise RunnerFatalError(
                f"{self.device} is drained: {problem}", hint="others do what is left"
            )

    def _lose(self) -> None:
        """Give the judge up."""
        judge, self.judge = self.judge, None
        if judge is not None:
            with suppress(RayError, ValueError):
                ray.kill(judge)
        self._fleet.contents.forget(self.slot.node.id)

    def _replace(self) -> None:
        """Get another judge, on the same device if it is there, else on one like it.

        Raises
        ------
        RunnerFatalError
            If there is none for too long.
        RunInterrupted
            If the run ends meanwhile.
        """
        fleet, began = self._fleet, time.monotonic()
        failed = False
        while True:
            wait_s = fleet.settings.wait_s
            if fleet.has_peers(self):  # which may do what this one holds
                wait_s = min(wait_s, _PATIENCE_S)
            slot = fleet.take_slot(self.slot, other=failed)
            if slot is not None:
                self.slot = slot
                try:
                    if self._begin(slot, wait_s):
                        return
                except RayError as error:  # the node is going down, perhaps
                    _logger.debug("%s: %s", slot.name, error)
                self._lose()
                failed = True
            if self.interrupted:
                raise RunInterrupted(f"the run ended while {self.device} was replaced")
            if time.monotonic() - began > wait_s:
                raise RunnerFatalError(
                    f"{self.device} is lost, and no other {self.environment.hardware} was free "
                    f"within {wait_s:.0f} s",
                    hint="others do what is left; 'fib run --resume' goes on later",
                )
            self._stop.wait(_POLL_S)

    def _begin(self, slot: Slot, wait_s: float) -> bool:
        """Start a judge on another device, or again on this one; return whether it can be used."""
        fleet, hardware = self._fleet, self.environment.hardware
        self.judge = fleet.start_judge(slot)
        if self.interrupted:  # whoever said so may have come before
            return False
        told = fleet.described(self.judge, wait_s)
        problem, physical = fleet.unlike(told, hardware), ""
        if problem is None:
            physical = told["physical"]
            if fleet.hold_unfit(slot, physical, self.judge):
                self.judge = None  # the next one gets another GPU of the node
                return False
            if slot.name != self.device:
                fleet.fitness.forget(hardware, self.device)
            problem = fleet.check(self.judge, hardware, slot.name)
        if problem is not None:
            _logger.warning("%s is not used: %s", slot.name, problem)
            fleet.exclude(slot, physical)
            return False
        if slot.name != self.device:
            _logger.warning("%s is replaced by %s", self.device, slot.name)
        self.device, self.physical, self._checked = slot.name, physical, time.monotonic()
        return True

    def interrupt(self) -> None:
        """End the judge, from another thread, without waiting for that."""
        self.interrupted = True
        self._stop.set()
        judge = self.judge
        if judge is not None and self._ending is None:
            self._ending = in_thread("fib-end", end_judges, [judge])

    def close(self) -> None:
        """End the judge; idempotent, does not raise."""
        if self._closed:
            return
        self._closed = True
        judge, self.judge = self.judge, None
        if self._ending is not None:
            self._ending.result()
        elif judge is not None:
            end_judges([judge])
        self._fleet.leave(self.slot)
