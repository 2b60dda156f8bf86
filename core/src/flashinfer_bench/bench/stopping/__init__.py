"""When there are enough samples: rules, how they declare parameters, and plans that follow them.

Importing it imports neither pydantic nor torch: the help of ``fib run`` lists the rules.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Optional, Union

from flashinfer_bench.errors import CapabilityError, ConfigError, PluginLoadError
from flashinfer_bench.plugins import Registered, StopRuleSpec, default_catalog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from flashinfer_bench.bench.config import TimingSettings

logger = logging.getLogger(__name__)

Number = Union[int, float]
_KEY = "parameter"  # of the metadata of a field

DEFAULT_MIN_SAMPLES = 30
DEFAULT_MAX_SAMPLES = 1000
DEFAULT_MAX_SECONDS = 15.0
"""As nvbench's ``--timeout`` of one measurement."""
DEFAULT_FIXED_SECONDS = 2.0
"""Rounds that would take longer have fewer calls, but at least `DEFAULT_MIN_SAMPLES`."""
_BATCH = 10
_WARMUP = 3
_GROWTH, _MOST = 8, 50  # a batch is this part of what there is: few looks, little too much


@dataclass(frozen=True)
class Parameter:
    """One setting of a rule, as its class declares it; the only place where it is described.

    Attributes
    ----------
    name : str
        Under which users set it.
    default : int or float
        Its default; if that is an integer, only integers are allowed.
    help : str
        What it does, in a line.
    unit : str
        Of its value: ``fraction`` (which may also be written as ``0.5%``), ``ms``, …; may be empty.
    low, high : int or float
        The smallest and the largest value allowed.
    """

    name: str
    default: Number
    help: str
    unit: str
    low: Number
    high: Number

    @property
    def allowed(self) -> str:
        """What a value may be, in words."""
        kind = "an integer" if isinstance(self.default, int) else "a number"
        if math.isinf(self.high):
            return f"{kind} of at least {self.low:g}"
        return f"{kind} from {self.low:g} to {self.high:g}"

    def parse(self, value: Any) -> Number:
        """Return `value`, a number or the text of one, as it is used.

        Raises
        ------
        ConfigError
            If it is not allowed.
        """
        number, text = math.nan, str(value).strip()
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            with suppress(ValueError):
                percent = self.unit == "fraction" and text.endswith("%")
                number = float(text[:-1]) / 100 if percent else float(text)
        whole = isinstance(self.default, int)
        allowed = math.isfinite(number) and self.low <= number <= self.high
        if allowed and (not whole or number.is_integer()):
            return int(number) if whole else number
        unit = f" ({self.unit})" if self.unit else ""
        raise ConfigError(
            f"{self.name} must be {self.allowed}{unit}, not {value!r}", hint=self.help
        )


def parameter(
    default: Number, text: str, *, unit: str, low: Number = 0, high: Number = math.inf
) -> Any:
    """Declare a dataclass field that users may set; see `Parameter`."""
    return field(default=default, metadata={_KEY: (default, text, unit, low, high)})


class StoppingRule(ABC):
    """Decides after each batch of samples whether there are enough.

    A rule is a frozen dataclass; what users may set are its fields made by `parameter`. It keeps no
    state: the same samples always give the same answer. It need not care for limits: `TimingPlan`
    asks it only between the smallest and the largest number of samples, and ends the benchmark when
    its time is over.

    Attributes
    ----------
    name : str
        Under which it is chosen; goes into every trace.
    summary : str
        When it stops, in a line.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""

    @classmethod
    def parameters(cls) -> tuple[Parameter, ...]:
        """Return what users may set."""
        return tuple(
            Parameter(one.name, *one.metadata[_KEY])
            for one in fields(cls)  # type: ignore[arg-type]  # every rule is a dataclass
            if _KEY in one.metadata
        )

    @property
    def values(self) -> dict[str, Number]:
        """The parameters as they are set, for the record."""
        return {one.name: getattr(self, one.name) for one in self.parameters()}

    @abstractmethod
    def wants_more(self, samples_ms: Sequence[float]) -> bool:
        """Return whether another batch is worth its time.

        Parameters
        ----------
        samples_ms : sequence of float
            Milliseconds of all samples so far, in the order taken; finite, not negative, at least
            one.
        """

    def outcome(self, samples_ms: Sequence[float]) -> str:
        """Return in a few words where the rule stands, for the log and the trace."""
        return f"{len(samples_ms)} samples"


@dataclass(frozen=True)
class Fixed(StoppingRule):
    """Stop after `count` samples, whatever they are."""

    name: ClassVar[str] = "fixed"
    summary: ClassVar[str] = "after num_trials rounds of iterations samples"

    count: int = 150

    def wants_more(self, samples_ms: Sequence[float]) -> bool:
        """Return whether there are fewer than `count`."""
        return len(samples_ms) < self.count


def rules() -> dict[str, type[StoppingRule]]:
    """Return the registered rules by name; broken ones are warned about and left out."""
    found = {}
    for entry in default_catalog().stop_rules:
        try:
            found[entry.name] = _load(entry)
        except PluginLoadError as error:
            logger.warning("%s", error.message)
    return found


def rule_of(name: str, params: Mapping[str, Any]) -> StoppingRule:
    """Return the named rule with its parameters set.

    Parameters
    ----------
    name : str
        One of `rules`.
    params : mapping
        Values, numbers or their text, by name of the parameter; others keep their defaults.

    Raises
    ------
    ConfigError
        If the rule or a parameter is not known, or a value not allowed.
    """
    try:
        kind = _load(default_catalog().stop_rules.find(name))
    except CapabilityError as error:
        raise ConfigError(error.message, hint=error.hint) from error
    declared = {one.name: one for one in kind.parameters()}
    for key in params:
        if key not in declared:
            message = f"stop rule {name!r} has no parameter {key!r}"
            hint = nearest(key, sorted(declared)) if declared else "it has none"
            if owners := [other.name for other in rules().values() if key in _names(other)]:
                hint = f"{key!r} belongs to the rule {' and '.join(owners)}"
            raise ConfigError(message, hint=hint)
    return kind(**{key: declared[key].parse(value) for key, value in params.items()})


def require_parameters(params: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if no rule has parameters of these names."""
    known = {name for rule in rules().values() for name in _names(rule)}
    for key in params:
        if key not in known:
            raise ConfigError(
                f"no stop rule has a parameter {key!r}", hint=nearest(key, sorted(known))
            )


def merged_params(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parameters of the rule that the strongest layer names.

    Parameters
    ----------
    layers : sequence of mapping
        From weak to strong; ``stop_rule`` and ``stop_params`` may be missing in any.
    """
    rule: Optional[str] = None
    params: dict[str, Any] = {}
    for layer in layers:
        named = layer.get("stop_rule")
        if named is not None and named != rule:
            # What was set for no rule in particular stays, where the rule has it.
            own = _names(rules()[named]) if rule is None else ()
            params = {key: value for key, value in params.items() if key in own}
            rule = named
        params.update(layer.get("stop_params", {}))
    return params


def described() -> Iterator[str]:
    """Yield a line for each rule, and indented ones for its parameters: for ``--help``."""
    for rule in rules().values():
        yield f"{rule.name}: stop {rule.summary}."
        for one in rule.parameters():
            setting = f"{one.name}={one.default:g}"
            yield f"  {setting:<16} {one.help}"


def _load(entry: Registered[StopRuleSpec]) -> type[StoppingRule]:
    rule = entry.load()
    if isinstance(rule, type) and issubclass(rule, StoppingRule) and rule.name == entry.name:
        return rule
    raise PluginLoadError(
        f"The {entry.label} of {entry.origin}: {entry.spec.factory} is not a "
        "StoppingRule of this name",
        hint=f"Run `fib plugins doctor {entry.plugin}`.",
    )


def _names(rule: type[StoppingRule]) -> tuple[str, ...]:
    return tuple(one.name for one in rule.parameters())


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for a mistyped name."""
    known = list(known)
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


class Step(NamedTuple):
    """What to do next: untimed calls, then timed ones, at least one."""

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
        seconds = config.max_seconds
        if isinstance(rule, Fixed):  # rounds; fewer or more samples only where limits are set
            count, least = config.num_trials * config.iterations, config.min_samples or 1
            whole = max(count, least)
            most = min(config.max_samples or whole, whole)
            return cls(
                Fixed(count), config.warmup_runs, config.iterations, least, most, seconds, True
            )
        least = config.min_samples or min(
            DEFAULT_MIN_SAMPLES, config.max_samples or DEFAULT_MIN_SAMPLES
        )
        most = config.max_samples or max(DEFAULT_MAX_SAMPLES, least)
        seconds = DEFAULT_MAX_SECONDS if seconds is None else seconds
        return cls(rule, config.warmup_runs, _BATCH, least, most, seconds)

    @classmethod
    def fixed(cls, count: int, warmup: int, iterations: int) -> TimingPlan:
        """Return a plan of `count` rounds: each of untimed calls, and `iterations` timed ones."""
        total = count * iterations
        return cls(Fixed(total), warmup, iterations, total, total, rounds=True)

    def step(self, taken: int) -> Step:
        """Return what comes after `taken` timed calls, fewer than `max_samples`."""
        batch = self.batch if self.rounds else max(self.batch, min(taken // _GROWTH, _MOST))
        warmup = self.warmup if self.rounds or taken == 0 else 0
        return Step(warmup, max(1, min(batch, self.max_samples - taken)))

    def out_of_time(self, seconds: float) -> bool:
        """Return whether no further call is to be started, `seconds` after the first one was."""
        return self.max_seconds is not None and seconds >= self.max_seconds

    def ending(self, samples_ms: Sequence[float], seconds: float) -> Optional[str]:
        """Return why this is the end; None if another `step` follows.

        Parameters
        ----------
        samples_ms : sequence of float
            Milliseconds of the timed calls, in the order taken.
        seconds : float
            Since the first call, warm-up included, by the wall clock.

        Returns
        -------
        str, optional
            ``rule``, ``max_samples``, ``max_seconds``, or ``impossible`` after a sample that cannot
            be a latency, so that nothing follows from the rest.
        """
        taken = len(samples_ms)
        if taken == 0:
            return None
        if not all(math.isfinite(sample) and sample >= 0 for sample in samples_ms):
            return "impossible"
        if taken >= self.min_samples and not self.rule.wants_more(samples_ms):
            return "rule"
        if taken >= self.max_samples:
            return "max_samples"
        return "max_seconds" if self.out_of_time(seconds) else None

    @property
    def total(self) -> int:
        """Timed calls of a plan of rounds, as long as there is time."""
        assert isinstance(self.rule, Fixed)
        return max(self.min_samples, min(self.rule.count, self.max_samples))

    def split(self, count: int) -> list[TimingPlan]:
        """Return plans of one round each that have the calls of this plan of rounds between them.

        Each has a warm-up of a few calls, if there is one.
        """
        total = self.total
        rounds = math.ceil(total / self.batch)
        warmup = max(min(_WARMUP, self.warmup), self.warmup * rounds // count)
        shares = [total // count + (number < total % count) for number in range(count)]
        limit = self.max_seconds and self.max_seconds / count
        return [replace(self.fixed(1, warmup, share), max_seconds=limit) for share in shares]

    def at_most(self, count: int) -> TimingPlan:
        """Return a plan of as many rounds with `count` timed calls, this one if it has no more."""
        if count >= self.total:
            return self
        return replace(
            self,
            rule=Fixed(count),
            warmup=max(min(_WARMUP, self.warmup), self.warmup * count // self.total),
            batch=math.ceil(count / math.ceil(self.total / self.batch)),
            min_samples=min(self.min_samples, count),
            max_samples=count,
        )

    def shortened(self, call_s: float) -> TimingPlan:
        """Return a plan that takes about `DEFAULT_FIXED_SECONDS` if it is one of rounds.

        A plan that takes less, or has a limit of time, is returned unchanged. The number of calls
        must be known before the first one: some of them are compared, and a solution could
        otherwise spend the time on a few calls, and have the others ignored.

        Parameters
        ----------
        call_s : float
            Seconds that one call takes.
        """
        if not self.rounds or self.max_seconds is not None:
            return self
        whole_s = (math.ceil(self.total / self.batch) * self.warmup + self.total) * call_s
        if whole_s <= DEFAULT_FIXED_SECONDS:
            return self
        count = int(self.total * DEFAULT_FIXED_SECONDS / whole_s)
        return self.at_most(max(count, DEFAULT_MIN_SAMPLES, self.min_samples))

    def within(self, budget_s: float, call_s: float) -> TimingPlan:
        """Return a plan of rounds that takes at most `budget_s` seconds, this one if it does.

        Parameters
        ----------
        budget_s : float
            Seconds that all calls together may take.
        call_s : float
            Seconds that one call takes.
        """
        rounds = math.ceil(self.max_samples / self.batch)
        cost = rounds * (self.warmup + self.batch) * call_s
        if cost <= budget_s:
            return self
        share = max(budget_s, 0.0) / cost
        batch = max(1, int(self.batch * share))
        total = rounds * batch
        return replace(
            self,
            rule=Fixed(total),
            warmup=int(self.warmup * share),
            batch=batch,
            min_samples=1,
            max_samples=total,
        )
