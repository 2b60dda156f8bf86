"""What a stopping rule is, and how it declares its parameters."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Optional, Union

from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

Number = Union[int, float]
_KEY = "parameter"  # of the metadata of a field


@dataclass(frozen=True)
class Parameter:
    """One setting of a rule, as its class declares it; the only place where it is described.

    Attributes
    ----------
    name : str
        Under which users set it.
    default : int or float
        Its value if nobody does; an integer takes integers only.
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
        number = self._number(value)
        if number is None or not self.low <= number <= self.high:
            unit = f" ({self.unit})" if self.unit else ""
            raise ConfigError(
                f"{self.name} must be {self.allowed}{unit}, not {value!r}", hint=self.help
            )
        return number

    def _number(self, value: Any) -> Optional[Number]:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            return None
        try:
            number = self._from_text(value) if isinstance(value, str) else float(value)
        except (ValueError, OverflowError):
            return None
        if not math.isfinite(number):
            return None
        if isinstance(self.default, int):
            return int(number) if number.is_integer() else None
        return number

    def _from_text(self, text: str) -> float:
        if self.unit == "fraction" and text.rstrip().endswith("%"):
            return float(text.rstrip()[:-1]) / 100
        return float(text)


def parameter(
    default: Number, text: str, *, unit: str, low: Number = 0, high: Number = math.inf
) -> Any:
    """Declare a dataclass field that users may set; see `Parameter`."""
    declared = {"default": default, "help": text, "unit": unit, "low": low, "high": high}
    return field(default=default, metadata={_KEY: declared})


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
            Parameter(name=one.name, **one.metadata[_KEY])
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
