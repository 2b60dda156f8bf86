"""Comparing two solutions on one workload: launch after launch, until it is decided."""

from __future__ import annotations

import logging
import math
import random
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Optional

from fib_compare.paired.belief import Beliefs
from fib_compare.paired.cores import Cores
from fib_compare.paired.launch import (
    LaunchSize,
    NoTimeLeft,
    launch_schedule,
    pair_seconds,
    take_launch,
)
from fib_compare.paired.result import ContestResult, Obstacle
from fib_compare.paired.sides import CannotCompare, Side
from fib_compare.paired.supply import CheckSupply
from fib_compare.stats.compare import Launch, compare_launches, enough
from fib_judge.baseline import prepare_baseline
from fib_judge.checks import FEWEST_CHECKS
from fib_judge.decidability import UndecidableWorkload
from fib_judge.records import VerifiedAttempt
from flashinfer_bench.bench.calls import Deadline, Variations
from flashinfer_bench.bench.digests import secret_seed
from flashinfer_bench.bench.evaluation import EvaluatorFailed
from flashinfer_bench.bench.measurement import ReferenceFailed, Task
from flashinfer_bench.bench.pool import solution_key
from flashinfer_bench.errors import CapabilityError, ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fib_compare.paired.result import Contest, Role, Stopped
    from fib_judge.records import VerifiedBaseline, VerifiedSession
    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators.base import Evaluator

logger = logging.getLogger(__name__)

_FEWEST_LAUNCHES = 2
_RECENT = 4  # launches, of which the next one is expected to take as long as the longest
_ROLES: tuple[Role, Role] = ("baseline", "candidate")


@dataclass(frozen=True)
class CompareSettings:
    """How sure an answer has to be, and what it may cost.

    Attributes
    ----------
    min_effect : float
        Smallest relative difference that counts, such as 0.01.
    alpha : float
        Chance of calling solutions different that are not.
    max_seconds : float
        Wall time for each workload. Preparing the workload, and building both, does not count.

    Raises
    ------
    ConfigError
        If a value is not allowed.
    """

    min_effect: float = 0.01
    alpha: float = 0.05
    max_seconds: float = 30.0

    def __post_init__(self) -> None:
        _require("min_effect", self.min_effect, 0.0, 1.0)
        _require("alpha", self.alpha, 0.0, 0.5)
        _require("max_seconds", self.max_seconds, 0.0, math.inf)


def _require(name: str, value: float, low: float, high: float) -> None:
    if not low < value < high:  # neither is NaN
        most = f" and below {high:g}" if math.isfinite(high) else ""
        raise ConfigError(f"{name} is {value:g}; it has to be above {low:g}{most}")


@dataclass
class _State:
    """What a contest has so far."""

    cap: Deadline
    rng: random.Random
    beliefs: Beliefs
    supply: CheckSupply
    variations: Variations
    size: Optional[LaunchSize] = None
    launches: list[Launch] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)

    @property
    def tried(self) -> int:
        """Number of launches so far, those that were set aside among them."""
        return len(self.took_s)

    @property
    def has_time(self) -> bool:
        """Whether another launch can be finished."""
        return self.tried < _FEWEST_LAUNCHES or self.cap.remaining() > max(self.took_s[-_RECENT:])


class ContestRun:
    """Compares two solutions on one workload.

    Parameters
    ----------
    session : VerifiedSession
        The run. Its pool must keep no processes.
    contest : Contest
        Who is compared, on what.
    evaluator : Evaluator
        Judges the outputs.
    config : ResolvedEvalConfig
        Tolerances and number of input sets.
    settings : CompareSettings
        When it is decided.
    tests : int
        How many tests the answer is corrected for.
    on_launch : callable
        Told of the number of launches and the seconds so far, after each.
    """

    def __init__(
        self,
        session: VerifiedSession,
        contest: Contest,
        evaluator: Evaluator,
        config: ResolvedEvalConfig,
        settings: CompareSettings,
        *,
        tests: int = 1,
        on_launch: Callable[[int, float], None] = lambda launches, seconds: None,
    ) -> None:
        self._session, self._contest = session, contest
        self._evaluator, self._config, self._settings = evaluator, config, settings
        self._tests, self._on_launch = tests, on_launch
        self._cores = Cores(session.device)

    def run(self, root: Optional[Path] = None) -> ContestResult:
        """Return what comes of it; whatever goes wrong with a solution is an obstacle.

        Parameters
        ----------
        root : Path, optional
            Folder of the dataset, for tensors in files.

        Raises
        ------
        RunnerFatalError
            If no process can be started.
        """
        began = time.monotonic()
        baseline = self._prepare(root)
        if isinstance(baseline, Obstacle):
            return self._result(began, obstacle=baseline)
        state = self._begin(baseline)
        try:
            stopped = self._decide(state, baseline)
        except CannotCompare as error:
            return self._result(began, obstacle=error.obstacle, notes=_notes(state))
        except EvaluatorFailed as error:
            problem = Obstacle("reference", "failed", error.message)
            return self._result(began, obstacle=problem, notes=_notes(state))
        if len(state.launches) < _FEWEST_LAUNCHES:
            return self._result(began, obstacle=self._too_slow(state), notes=_notes(state))
        comparison = compare_launches(
            state.launches,
            min_effect=self._settings.min_effect,
            alpha=self._settings.alpha,
            capped=stopped == "time",
        )
        launches = tuple(state.launches)
        found = {"comparison": comparison, "launches": launches, "stopped": stopped}
        return self._result(began, notes=_notes(state), **found)

    def _prepare(self, root: Optional[Path]) -> VerifiedBaseline | Obstacle:
        from flashinfer_bench.compile import reference_solution

        definition, workload = self._contest.definition, self._contest.workload
        reference = reference_solution(definition)
        try:
            task = Task(definition, workload, reference, self._evaluator, self._config, root)
            return prepare_baseline(self._session, task)
        except ReferenceFailed as error:
            return Obstacle("reference", "failed", error.message)
        except (UndecidableWorkload, DataError) as error:
            return Obstacle("reference", "workload", error.message)
        except CapabilityError as error:
            return Obstacle("reference", "unavailable", error.message)

    def _begin(self, baseline: VerifiedBaseline) -> _State:
        session = self._session
        rng = random.Random(secret_seed(session.rotation_seed, f"compare/{baseline.handle}"))
        inputs = [trial.inputs for trial in baseline.trials]
        return _State(
            cap=Deadline(self._settings.max_seconds),
            rng=rng,
            beliefs=Beliefs(session, baseline),
            supply=CheckSupply(session, baseline, self._settings.max_seconds, rng),
            variations=Variations(baseline.freedoms, inputs, rng, session.warm),
        )

    def _decide(self, state: _State, baseline: VerifiedBaseline) -> Stopped:
        settings = self._settings
        while state.has_time:
            began = state.cap.remaining()
            try:
                launch = self._launch(state, baseline)
            except NoTimeLeft:
                return "time"
            state.took_s.append(began - state.cap.remaining())
            if launch is not None:
                state.launches.append(launch)
            self._on_launch(len(state.launches), settings.max_seconds - state.cap.remaining())
            if launch is not None and enough(
                state.launches, settings.min_effect, settings.alpha, tests=self._tests
            ):
                return "decided"
        return "time"

    def _launch(self, state: _State, baseline: VerifiedBaseline) -> Optional[Launch]:
        """Make one launch; None if it is set aside."""
        with ExitStack() as stack:
            sides = self._sides(stack, baseline, state.tried)
            with nullcontext() if state.tried else state.cap.stopped():  # it may have to compile
                for side in sides if state.tried % 2 else sides[::-1]:
                    side.prepare(check=not state.tried)
                self._session.pool.settle()
            if state.size is None:
                pair_s = pair_seconds(self._session, sides, state.variations, state.cap)
                state.size = LaunchSize.fitting(pair_s, state.cap.seconds)
            checks = state.supply.take(min(FEWEST_CHECKS, state.size.pairs // 4))
            schedule = launch_schedule(state.size.pairs, checks, state.rng)
            launch = take_launch(
                self._session,
                sides,
                state.variations,
                schedule,
                state.size,
                number=state.tried,
                cap=state.cap,
                cores=self._cores,
            )
        added = state.beliefs.weigh(sides)
        return _raised(launch, *added) if added is not None else None

    def _sides(
        self, stack: ExitStack, baseline: VerifiedBaseline, number: int
    ) -> tuple[Side, Side]:
        contest, session = self._contest, self._session
        deadline = Deadline(session.timeout_s)
        made = []
        for role, solution in zip(_ROLES, (contest.baseline, contest.candidate), strict=True):
            key = ("compare", role, str(number), *solution_key(solution))
            worker = stack.enter_context(session.pool.worker(key))
            attempt = VerifiedAttempt(session, solution, baseline, worker, deadline)
            made.append(Side(role, attempt))
        return made[0], made[1]

    def _too_slow(self, state: _State) -> Obstacle:
        given, made = self._settings.max_seconds, len(state.launches)
        text = (
            f"{made} launches were finished within {given:g} s, and {_FEWEST_LAUNCHES} are needed; "
            "give it more with --max-seconds"
        )
        if state.beliefs.set_aside:
            text += f" ({state.beliefs.set_aside} were set aside)"
        return Obstacle("both", "too slow", text)

    def _result(self, began: float, **found: Any) -> ContestResult:
        contest, session = self._contest, self._session
        return ContestResult(
            definition=contest.definition.name,
            workload=contest.workload.uuid,
            baseline=contest.baseline.name,
            candidate=contest.candidate.name,
            seconds=time.monotonic() - began,
            timer=session.timer,
            cache="warm" if session.warm else "cold",
            hardware=session.environment.hardware,
            **found,
        )


def _raised(launch: Launch, baseline_ms: float, candidate_ms: float) -> Launch:
    return replace(
        launch,
        baseline=tuple(value + baseline_ms for value in launch.baseline),
        candidate=tuple(value + candidate_ms for value in launch.candidate),
    )


def _notes(state: _State) -> tuple[str, ...]:
    beliefs, notes = state.beliefs, []
    if beliefs.set_aside:
        notes.append(f"{beliefs.set_aside} launches set aside: claims were disputed")
    for role, added in beliefs.added_ms.items():
        notes.append(f"{role}: up to {added:.4g} ms added that the timer did not see")
    if state.supply.reused:
        notes.append("the reference is slow: later launches met checks of earlier ones")
    return tuple(notes)
