"""The best figures of a device, and what they say about a piece of work."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

GAIN = 1.1
"""A ceiling that rises by more shows that what was found before was not the best."""

# What a file may say: names and numbers within reason.
_Text = Annotated[str, msgspec.Meta(max_length=400)]
_Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e300)]
_Size = Annotated[int, msgspec.Meta(gt=0, lt=10**18)]
_OF_A_TABLE = msgspec.Meta(min_length=1, max_length=256)

# In which types a product of elements of a type may be computed: in its own or a wider one, in one
# of the same width, and in the next narrower ones, because a tolerance may let that through.
_SIXTEEN = ("bfloat16", "float16")
_EIGHT = ("float8_e4m3fn", "float8_e5m2", "int8")
_FOUR = ("float4_e2m1",)
_COMPUTED_IN = {
    "float64": ("float64", "float32"),
    "float32": ("float64", "float32", *_SIXTEEN),
    **dict.fromkeys(_SIXTEEN, ("float64", "float32", *_SIXTEEN, *_EIGHT)),
    **dict.fromkeys((*_EIGHT, *_FOUR), ("float64", "float32", *_SIXTEEN, *_EIGHT, *_FOUR)),
}
_SAME_WIDTH = {
    name: names for names in (("float64",), ("float32",), _SIXTEEN, _EIGHT, _FOUR) for name in names
}


@dataclass(frozen=True)
class Ceilings:
    """The best that has been measured on one device.

    Attributes
    ----------
    device : str
        ``cpu`` or ``cuda:N``.
    hardware : str
        Name of the device, as in the environment of a trace.
    bytes_per_s : dict of int to float
        Most bytes that were read and written in a second, by the size of the working set in bytes.
    flops_per_s : dict of str to float
        Most operations of a matrix product in a second (a multiplication and an addition are two),
        by dtype.
    call_ms : float
        Shortest time that a call of anything took, in milliseconds.
    torch : str
        Version of torch with which it was measured.
    created : str
        When, in UTC.
    settled : bool
        Whether measuring again found nothing better. If not, the machine was busy, the ceilings may
        be far too low, and nothing may be held against them.
    """

    device: str
    hardware: str
    bytes_per_s: dict[int, float] = field(default_factory=dict)
    flops_per_s: dict[str, float] = field(default_factory=dict)
    call_ms: float = 0.0
    torch: str = ""
    created: str = ""
    settled: bool = True

    def bandwidth(self, nbytes: int) -> float:
        """Return the most bytes a second for a working set of `nbytes`.

        That is the best figure of any measured set which is as large or larger, where a size
        between two steps counts as the smaller one: caches make small sets faster, and what is
        held against a latency must rather be too high. Infinity if nothing was measured.
        """
        first = max((size for size in self.bytes_per_s if size <= nbytes), default=0)
        return max((r for size, r in self.bytes_per_s.items() if size >= first), default=math.inf)

    def peak(self, *dtypes: str) -> float:
        """Return the most operations a second for a matrix product of such operands.

        The fastest type counts in which it may be computed: for each of `dtypes` its own, wider
        ones, those of the same width and the next narrower ones. Infinity if one of `dtypes` itself
        and all others of its width were not measured.
        """
        peaks = [self._peak(dtype) for dtype in dtypes]
        return max(peaks, default=math.inf)

    def _peak(self, dtype: str) -> float:
        usable = _COMPUTED_IN.get(dtype, ())
        if not any(name in self.flops_per_s for name in usable if name in _SAME_WIDTH[dtype]):
            return math.inf  # its own units may be faster than all that was measured
        return max(self.flops_per_s[name] for name in usable if name in self.flops_per_s)

    def merged(self, earlier: Ceilings) -> Ceilings:
        """Return these with the better figures of an earlier measurement of the same device.

        They are settled if these are, or if these raise no earlier ceiling by more than 10 %.
        """
        calls = [c.call_ms for c in (self, earlier) if c.call_ms > 0]
        best = replace(
            self,
            bytes_per_s=_best(self.bytes_per_s, earlier.bytes_per_s),
            flops_per_s=_best(self.flops_per_s, earlier.flops_per_s),
            call_ms=min(calls, default=0.0),
        )
        return replace(best, settled=self.settled or not best.exceeds(earlier))

    def exceeds(self, earlier: Ceilings) -> bool:
        """Return whether some ceiling is higher than an earlier one by more than 10 %."""
        wider = any(
            self.bandwidth(size) > earlier.bandwidth(size) * GAIN or not earlier.bytes_per_s
            for size in self.bytes_per_s
        )
        return wider or any(
            rate > earlier.flops_per_s.get(dtype, 0.0) * GAIN
            for dtype, rate in self.flops_per_s.items()
        )

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        return {
            "device": self.device,
            "hardware": self.hardware,
            "torch": self.torch,
            "created": self.created,
            "settled": self.settled,
            "bytes_per_s": {str(size): rate for size, rate in sorted(self.bytes_per_s.items())},
            "flops_per_s": dict(sorted(self.flops_per_s.items())),
            "call_ms": self.call_ms,
        }

    @classmethod
    def from_json(cls, record: Any) -> Ceilings:
        """Check what a file or a child process says.

        Raises
        ------
        ValueError
            If it is not what `to_json` writes: names and numbers within reason.
        """
        found = msgspec.convert(record, _Record, str_keys=True)
        return cls(**{name: getattr(found, name) for name in found.__struct_fields__})


class _Record(msgspec.Struct):
    device: _Text
    hardware: _Text
    torch: _Text
    created: _Text
    settled: bool
    bytes_per_s: Annotated[dict[_Size, _Positive], _OF_A_TABLE]
    flops_per_s: Annotated[dict[str, _Positive], _OF_A_TABLE]
    call_ms: _Positive


def _best(new: Mapping[Any, float], old: Mapping[Any, float]) -> dict[Any, float]:
    return {key: max(new.get(key, 0.0), old.get(key, 0.0)) for key in sorted({*new, *old})}
