"""Measuring maxima on a machine that may be busy: again and again until nothing gets better.

Other work on the machine only ever makes a measurement slower. So the best of many is what the
device can do, provided that the measurements are spread over some time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

from fib_judge.calibration import Ceilings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


Key = tuple[str, Union[int, str]]
"""What is measured (``bytes``, ``flops`` or ``call``), and for which size or dtype."""

_LEAST_PASSES = 3


@dataclass(frozen=True)
class Probe:
    """One measurement.

    Attributes
    ----------
    key : tuple
        What it measures; several may measure the same in different ways, and the best counts.
    rate : callable
        Measures it: bytes, operations or calls in a second.
    """

    key: Key
    rate: Callable[[], float]


@dataclass
class Best:
    """The highest rates so far.

    Attributes
    ----------
    rates : dict
        By key.
    settled : bool
        Whether the last pass raised no ceiling by more than 10 %.
    passes : int
        How many passes there were.
    """

    rates: dict[Key, float] = field(default_factory=dict)
    settled: bool = False
    passes: int = 0


def best_of_passes(
    probes: Sequence[Probe],
    *,
    budget_s: float,
    on_progress: Callable[[float], None] = lambda share: None,
    clock: Callable[[], float] = time.monotonic,
) -> Best:
    """Take the probes in turn until a whole pass raises nothing, or until time is up.

    Parameters
    ----------
    probes : sequence of Probe
        What to measure. One that this device or this torch cannot do (it raises) is left out.
    budget_s : float
        Time that must not be exceeded by more than one probe, except in the first pass.
    on_progress : callable
        Told the share of the budget that is used up, from 0 to 1.
    clock : callable
        The time in seconds.
    """
    began, best, able = clock(), Best(), list(probes)
    while not best.settled or best.passes < _LEAST_PASSES:
        before = dict(best.rates)
        for probe in list(able):
            share = (clock() - began) / budget_s
            on_progress(min(share, 1.0))
            if share >= 1 and best.passes:
                return best
            try:
                rate = probe.rate()
            except (RuntimeError, NotImplementedError, TypeError, ValueError, MemoryError):
                able.remove(probe)  # such as a dtype that has no matrix product here
                continue
            if 0 < rate < float("inf"):
                best.rates[probe.key] = max(best.rates.get(probe.key, 0.0), rate)
        best.passes += 1
        best.settled = best.passes > 1 and not ceilings_of(best.rates).exceeds(ceilings_of(before))
    on_progress(1.0)
    return best


def doubling(smallest: int, largest: int) -> list[int]:
    """Return sizes of working sets: the smallest, and what is twice as large up to the largest."""
    sizes = [smallest]
    while sizes[-1] * 2 <= largest:
        sizes.append(sizes[-1] * 2)
    return sizes


def nothing() -> None:
    """Stand for the shortest solution that there can be."""


def ceilings_of(rates: Mapping[Key, float]) -> Ceilings:
    """Return the ceilings that `rates` are, of no device in particular."""
    by_kind: dict[str, dict[Any, float]] = {"bytes": {}, "flops": {}, "call": {}}
    for (kind, name), rate in sorted(rates.items()):
        by_kind[kind][name] = rate
    fastest = max(by_kind["call"].values(), default=float("inf"))
    return Ceilings("", "", by_kind["bytes"], by_kind["flops"], call_ms=1e3 / fastest)


def product(device: str, dtype: str, side: int) -> Callable[[], object]:
    """Return a function that multiplies two square matrices of zeros on the current stream.

    Zeros, because a GPU computes faster on them: they take less power, so that clocks stay high.

    Parameters
    ----------
    device : str
        ``cpu`` or ``cuda:N``.
    dtype : str
        Of the elements.
    side : int
        Rows and columns.

    Raises
    ------
    RuntimeError, NotImplementedError, TypeError, ValueError
        If this torch cannot do it there.
    """
    import torch

    found = getattr(torch, dtype, None)
    if found is None:
        raise NotImplementedError(f"torch {torch.__version__} has no {dtype}")
    a = torch.zeros(side, side, dtype=torch.float32, device=device).to(found)
    b = a.clone()
    if dtype.startswith("float8"):
        return _scaled(torch, a, b)
    if dtype == "int8":
        return _integers(torch, a, b)
    out = torch.empty_like(a)
    return lambda: torch.matmul(a, b, out=out)


def _scaled(torch: Any, a: Any, b: Any) -> Callable[[], object]:
    if not hasattr(torch, "_scaled_mm"):
        raise NotImplementedError("this torch has no product of 8-bit floats")
    one = torch.ones((), dtype=torch.float32, device=a.device)
    columns = b.t()  # the second factor has to be column-major
    kwargs = {"use_fast_accum": True} if a.is_cuda else {}

    def multiply() -> object:
        return torch._scaled_mm(
            a, columns, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, **kwargs
        )

    multiply()
    return multiply


def _integers(torch: Any, a: Any, b: Any) -> Callable[[], object]:
    if not hasattr(torch, "_int_mm"):
        raise NotImplementedError("this torch has no product of 8-bit integers")
    second = b.t() if a.is_cuda else b
    torch._int_mm(a, second)
    return lambda: torch._int_mm(a, second)
