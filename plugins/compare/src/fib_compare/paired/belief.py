"""Whether the latencies that a side claims are believed, launch by launch."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Optional

from fib_compare.paired.sides import CannotCompare
from fib_judge.integrity import Claim, inquire
from fib_judge.normals import Normals
from fib_judge.reference import renewed_normal
from fib_judge.timed import poisoned_bytes
from flashinfer_bench.bench.calls import find_impossible

if TYPE_CHECKING:
    from fib_compare.paired.sides import Side
    from fib_judge.integrity import Inquiry
    from fib_judge.normals import Normal
    from fib_judge.records import VerifiedBaseline, VerifiedSession

logger = logging.getLogger(__name__)

_FEW = 3  # launches that may be set aside before anything follows from it


class Beliefs:
    """Holds the claims of both sides against what is known of the reference and the device.

    A launch whose claims are disputed is set aside, so that nobody gains by it, and another one
    takes its place. Whoever is disputed in more than half of its launches, and in more than three,
    is not believed any more; where noise, or a device's host, may be the reason, the launch then
    counts with the time added that its timer has not seen.

    Parameters
    ----------
    session : VerifiedSession
        The run.
    baseline : VerifiedBaseline
        What the workload was prepared with. Without a ``normal`` all is believed that is possible.
    """

    def __init__(self, session: VerifiedSession, baseline: VerifiedBaseline) -> None:
        self._session, self._baseline = session, baseline
        self._normal = baseline.normal
        self._launches = 0
        self._disputed: dict[str, int] = {}
        self.set_aside = 0
        self.added_ms: dict[str, float] = {}

    def weigh(self, sides: tuple[Side, Side]) -> Optional[tuple[float, float]]:
        """Return the milliseconds to add to each side's samples; None sets the launch aside.

        Raises
        ------
        CannotCompare
            If a claim is not believed.
        """
        if self._normal is None:
            for side in sides:
                _require_possible(side)
            return 0.0, 0.0
        self._launches += 1
        found = [(side, self._inquire(side, other)) for side, other in (sides, sides[::-1])]
        disputed = [one for one in found if one[1].violation is not None]
        for side, inquiry in disputed:
            assert inquiry.violation is not None
            if not inquiry.violation.disputable:
                raise CannotCompare(side.role, "not believed", str(inquiry.violation))
            self._disputed[side.role] = self._disputed.get(side.role, 0) + 1
        if not disputed:
            return 0.0, 0.0
        if all(self._is_usual(side) for side, _ in disputed):
            return self._added(found)
        self._set_aside(disputed[0])
        return None

    def _is_usual(self, side: Side) -> bool:
        count = self._disputed[side.role]
        return count > _FEW and 2 * count > self._launches

    def _added(self, found: list[tuple[Side, Inquiry]]) -> tuple[float, float]:
        for side, inquiry in found:
            violation = inquiry.violation
            if violation is None:
                continue
            if self._session.device == "cpu" and not violation.undecided:
                many = f"{self._disputed[side.role]} of {self._launches} launches"
                raise CannotCompare(side.role, "not believed", f"{violation} (in {many})")
            self.added_ms[side.role] = max(inquiry.added_ms, self.added_ms.get(side.role, 0.0))
        first, second = (inquiry.added_ms if inquiry.violation else 0.0 for _, inquiry in found)
        return first, second

    def _set_aside(self, disputed: tuple[Side, Inquiry]) -> None:
        side, inquiry = disputed
        logger.info("%s: %s; the launch is set aside", side.role, inquiry.violation)
        self.set_aside += 1
        if self.set_aside == 1:
            assert self._normal is not None
            self._normal = renewed_normal(self._session, self._baseline, self._normal)

    def _inquire(self, side: Side, other: Side) -> Inquiry:
        """Hold the claims of a side against what is known.

        Both sides may be on one core, where the reference was not: inputs are then changed, and
        calls made ready, by one thread instead of several. What that takes the other side shows.
        """
        session = self._session
        claim = Claim(
            calls=tuple(side.calls),
            timer=session.timer,
            timer_version=session.timer_version,
            floor=self._baseline.floor,
            poisoned_bytes=poisoned_bytes(side.attempt),
            device=session.device,
        )
        assert self._normal is not None
        return inquire(claim, _beside(self._normal, other))


def _beside(normal: Normals, other: Side) -> Normals:
    """Return `normal` with the time of changes and of getting ready that the other side took."""
    if find_impossible(other.calls) is not None:
        return normal
    there = Normals.of(other.calls)
    # As they are, and not the best of either: where the reference was, it may have been quicker.
    exchange = max(normal.exchange, there.exchange, key=_median_ms)
    stage = max(normal.stage, there.stage, key=_median_ms)
    return replace(normal, exchange=exchange, stage=stage)


def _median_ms(normal: Normal) -> float:
    return normal.median_ms


def _require_possible(side: Side) -> None:
    problem = find_impossible(side.calls)
    if problem is not None:
        raise CannotCompare(side.role, "not believed", problem)
