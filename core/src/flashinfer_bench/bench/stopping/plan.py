"""How the samples of one solution are taken: warm-up, batches, a rule, and limits over the rule."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.stopping.fixed import Fixed
from flashinfer_bench.bench.stopping.registry import rule_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.bench.stopping.base import StoppingRule
    from flashinfer_bench.bench.stopping.settings import TimingSettings

DEFAULT_MIN_SAMPLES = 30
DEFAULT_MAX_SAMPLES = 1000
DEFAULT_MAX_SECONDS = 15.0
"""As nvbench's ``--timeout`` of one measurement."""
_BATCH = 10
_GROWTH, _MOST = 8, 50  # a batch is this part of what there is: few looks, little too much


class Ending(str, Enum):
    """Why no further samples are taken."""

    RULE = "rule"
    MAX_SAMPLES = "max_samples"
    MAX_SECONDS = "max_seconds"
    IMPOSSIBLE = "impossible"  # a sample that cannot be a latency: nothing follows from the rest


@dataclass(frozen=True)
class Step:
    """What to do next.

    Attributes
    ----------
    warmup : int
        Untimed calls to make first.
    calls : int
        Timed calls that follow, at least one.
    """

    warmup: int
    calls: int


@dataclass(frozen=True)
class TimingPlan:
    """How many samples are taken of one solution on one workload.

    A user of it repeats `step` until there is an `ending`, and gives up a step, after at least one
    timed call, when it is `out_of_time`.

    Attributes
    ----------
    rule : StoppingRule
        Says when there are enough samples.
    warmup : int
        Untimed calls before the first sample, and before each batch if `rounds`.
    batch : int
        Timed calls after which the rule is asked.
    min_samples : int
        The rule is not asked before there are so many.
    max_samples : int
        No more calls than this are timed.
    max_seconds : float, optional
        Seconds by the wall clock, warm-up included, after which no call is started; this limit
        stands over `min_samples`, but one sample is always taken. None: no limit but that of the
        whole evaluation.
    rounds : bool
        Batches are rounds that begin with a warm-up each, and all have the same size. Otherwise
        there is one warm-up, and batches grow with the number of samples.
    """

    rule: StoppingRule
    warmup: int
    batch: int
    min_samples: int
    max_samples: int
    max_seconds: Optional[float] = None
    rounds: bool = False

    @classmethod
    def of(cls, config: TimingSettings) -> TimingPlan:
        """Return the plan that these settings, such as those of a definition, ask for.

        Raises
        ------
        ConfigError
            If the rule, or one of its parameters, is not known or not allowed.
        """
        rule = rule_of(config.stop_rule, config.stop_params)
        if isinstance(rule, Fixed):
            return cls._fixed(config)
        least = config.min_samples or min(DEFAULT_MIN_SAMPLES, config.max_samples or math.inf)
        return cls(
            rule=rule,
            warmup=config.warmup_runs,
            batch=_BATCH,
            min_samples=int(least),
            max_samples=config.max_samples or max(DEFAULT_MAX_SAMPLES, int(least)),
            max_seconds=DEFAULT_MAX_SECONDS if config.max_seconds is None else config.max_seconds,
        )

    @classmethod
    def _fixed(cls, config: TimingSettings) -> TimingPlan:
        """Return `num_trials` rounds; fewer or more samples only where limits are set."""
        count = config.num_trials * config.iterations
        least = config.min_samples or 1
        return cls(
            rule=Fixed(count),
            warmup=config.warmup_runs,
            batch=config.iterations,
            min_samples=least,
            max_samples=config.max_samples or max(count, least),
            max_seconds=config.max_seconds,
            rounds=True,
        )

    def step(self, taken: int) -> Step:
        """Return what comes after `taken` timed calls, fewer than `max_samples`."""
        batch = self.batch if self.rounds else max(self.batch, min(taken // _GROWTH, _MOST))
        warmup = self.warmup if self.rounds or taken == 0 else 0
        return Step(warmup=warmup, calls=max(1, min(batch, self.max_samples - taken)))

    def out_of_time(self, seconds: float) -> bool:
        """Return whether no further call is to be started, `seconds` after the first one was."""
        return self.max_seconds is not None and seconds >= self.max_seconds

    def ending(
        self, samples_ms: Sequence[float], seconds: float, *, taken: Optional[int] = None
    ) -> Optional[Ending]:
        """Return why this is the end; None if another `step` follows.

        Parameters
        ----------
        samples_ms : sequence of float
            Milliseconds of the samples that count, in the order taken.
        seconds : float
            Since the first call, warm-up included, by the wall clock.
        taken : int, optional
            Timed calls so far, if some of them do not count.
        """
        taken = len(samples_ms) if taken is None else taken
        if taken == 0:
            return None
        if not all(math.isfinite(sample) and sample >= 0 for sample in samples_ms):
            return Ending.IMPOSSIBLE
        if self._satisfied(samples_ms):
            return Ending.RULE
        if taken >= self.max_samples:
            return Ending.MAX_SAMPLES
        return Ending.MAX_SECONDS if self.out_of_time(seconds) else None

    def _satisfied(self, samples_ms: Sequence[float]) -> bool:
        enough = len(samples_ms) >= max(self.min_samples, 1)
        return enough and not self.rule.wants_more(samples_ms)

    def within(self, budget_s: float, call_s: float) -> TimingPlan:
        """Return a plan that takes at most `budget_s` seconds, this one if it does already.

        Parameters
        ----------
        budget_s : float
            Seconds that all calls together may take.
        call_s : float
            Seconds that one call takes.
        """
        if not isinstance(self.rule, Fixed):
            limits = [limit for limit in (self.max_seconds, budget_s) if limit is not None]
            return replace(self, max_seconds=max(min(limits), 0.0))
        rounds = math.ceil(self.max_samples / self.batch)
        cost = rounds * (self.warmup + self.batch) * call_s
        if cost <= budget_s:
            return self
        share = max(budget_s, 0.0) / cost
        batch = max(1, int(self.batch * share))
        return replace(
            self,
            rule=Fixed(rounds * batch),
            warmup=int(self.warmup * share),
            batch=batch,
            min_samples=1,
            max_samples=rounds * batch,
        )
