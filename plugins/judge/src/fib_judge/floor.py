"""The physics floor: no solution is faster than the device can move and compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from fib_judge.least_work import TABLE_VERSION, LeastWork, least_work
from flashinfer_bench.plugins import default_catalog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fib_judge.calibration import Ceilings
    from flashinfer_bench.data import Definition

MARGIN = 1.25
"""How much better than the ceilings an honest solution is believed to be.

Ceilings are the best of many measurements of torch's own operations. A hand-written kernel can
still come closer to what the device can do, and a clock has noise. The best copies and products of
vendors reach 80 % to 95 % of what is physically there, which leaves less than this factor.
"""


@dataclass(frozen=True)
class Floor:
    """A latency below which a claim is not believed.

    Attributes
    ----------
    ms : float
        In milliseconds.
    nbytes, flops : int
        What any solution must move and compute at least.
    limited_by : str
        ``bytes``, ``flops``, ``call``, or ``nothing`` where there is no floor.
    version : int
        Of the table that says what must be moved and computed.
    """

    ms: float
    nbytes: int
    flops: int
    limited_by: str
    version: int = TABLE_VERSION


def physics_floor(definition: Definition, axes: Mapping[str, int], ceilings: Ceilings) -> Floor:
    """Return the floor for one workload of `definition`.

    It is the longest of three times, each divided by `MARGIN`: moving what must be moved at the
    highest bandwidth that a working set of this size can have, computing what must be computed at
    the highest rate of any type in which that may be done, and the shortest call. Ceilings that
    have not settled make none: a busy machine shows a small part of what it can do.

    Parameters
    ----------
    definition : Definition
        What is computed.
    axes : mapping of str to int
        Value of each variable axis.
    ceilings : Ceilings
        Of the device.

    Raises
    ------
    DataError
        If a variable axis has no value.
    """
    work = _work_of_family(definition, axes) or least_work(definition, axes)
    if not ceilings.settled:
        return Floor(0.0, work.nbytes, work.flops, "nothing")
    times_s = {
        "call": ceilings.call_ms / 1e3,
        "bytes": work.nbytes / ceilings.bandwidth(work.nbytes),
        "flops": work.flops / ceilings.peak(*work.dtypes),
    }
    limit = max(times_s, key=lambda name: times_s[name])
    return Floor(times_s[limit] * 1e3 / MARGIN, work.nbytes, work.flops, limit)


def _work_of_family(definition: Definition, axes: Mapping[str, int]) -> Optional[LeastWork]:
    """Return what a plugin says of the op type; None if none says anything."""
    family = default_catalog().family_of(definition.op_type)
    if family is None or family.spec.work is None:
        return None
    nbytes, operations = family.load(family.spec.work)(definition, axes)
    return LeastWork(int(nbytes), int(operations))
