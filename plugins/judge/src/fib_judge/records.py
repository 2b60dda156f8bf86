"""What the judge adds to a run, to the baseline of a workload, and to one attempt at it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.evaluation import Attempt
from flashinfer_bench.bench.measurement import DeviceBaseline
from flashinfer_bench.bench.session import Session

if TYPE_CHECKING:
    from fib_judge.calibration import Ceilings
    from fib_judge.floor import Floor
    from fib_judge.integrity import Normals
    from fib_judge.timed import TimedCheck
    from fib_judge.watch.lock import LockReport


@dataclass(frozen=True)
class VerifiedSession(Session):
    """A run on one device, with what the judge knows of the device.

    Attributes
    ----------
    ceilings : Ceilings, optional
        What the device can do at most, if it has been calibrated.
    clock_lock : LockReport, optional
        What has become of the wish to hold the device's clocks; None if there was none.
    plain_calls : dict of str to Normals
        What calls of one small kernel are like on the device, once that has been asked.
    """

    ceilings: Optional[Ceilings] = None
    clock_lock: Optional[LockReport] = None
    plain_calls: dict[str, Normals] = field(default_factory=dict)


@dataclass(frozen=True)
class VerifiedBaseline(DeviceBaseline):
    """A workload with what solutions are held against.

    Attributes
    ----------
    checks : tuple of TimedCheck
        Timed calls with the outputs that they must give; empty if candidates are trusted.
    normal : Normals, optional
        How long the reference's calls took beyond their latency; None if candidates are trusted.
    floor : Floor, optional
        What no latency can be below; None where the device has not been calibrated.
    reference_seed : int, optional
        What the inputs of the reference's timed calls, and so those of `checks`, follow from; a
        secret while a solution may still be evaluated against them. None if there are no checks.
    """

    checks: tuple[TimedCheck, ...] = ()
    normal: Optional[Normals] = None
    floor: Optional[Floor] = None
    reference_seed: Optional[int] = None


@dataclass(frozen=True)
class VerifiedAttempt(Attempt):
    """One solution on one workload, and the process that it runs in."""

    session: VerifiedSession
    baseline: VerifiedBaseline
