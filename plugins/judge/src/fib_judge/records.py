"""What the judge adds to a run, to the baseline of a workload, and to one attempt at it."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.calls import Attempt
from flashinfer_bench.bench.digests import fresh_seed
from flashinfer_bench.bench.measurement import DeviceBaseline
from flashinfer_bench.bench.session import Session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fib_judge.calibration import Ceilings
    from fib_judge.floor import Floor
    from fib_judge.integrity import Mode, Overhead
    from fib_judge.timed import TimedCheck
    from fib_judge.values import Values
    from fib_judge.watch.lock import LockReport
    from flashinfer_bench.bench.stopping import TimingPlan

_SEED_BITS = 53  # every JSON reader, JavaScript's too, keeps such an integer exact


@dataclass(frozen=True)
class VerifiedSession(Session):
    """A run on one device, with what the judge knows of the device.

    Attributes
    ----------
    ceilings : Ceilings, optional
        What the device can do at most, if it has been calibrated.
    clock_lock : LockReport, optional
        What has become of the wish to hold the device's clocks; None if there was none.
    rotation_seed : int, optional
        What the seeds of variations follow from; None draws fresh ones.
    timed_seed : int, optional
        Take exactly this seed for the timed calls of the solution, to repeat an evaluation.
    reference_seed : int, optional
        Take exactly this one for those of the reference.
    """

    ceilings: Optional[Ceilings] = None
    clock_lock: Optional[LockReport] = None
    rotation_seed: Optional[int] = None
    timed_seed: Optional[int] = None
    reference_seed: Optional[int] = None

    def secret_seed(self, purpose: str) -> int:
        """Return the seed of what no candidate may foresee, below 2**53.

        A fresh one each time: a trace that tells it is written while other candidates still run,
        and they might read it. With a `rotation_seed` it follows from that, and from `purpose`:
        what it is for.
        """
        if self.rotation_seed is None:
            return fresh_seed()
        text = f"{self.rotation_seed}/{purpose}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> (64 - _SEED_BITS)


class KeyedRandom(random.Random):
    """Chance of which nobody can foresee more from what was seen of it: SHAKE128 over a counter.

    The state of Python's own generator follows from 624 of its outputs.

    Parameters
    ----------
    seed : int
        The key; the same one gives the same numbers.
    """

    def seed(self, a: object = None, version: int = 2) -> None:
        """Begin anew with another key."""
        self._key, self._count = str(a).encode(), 0
        super().seed(0)

    def getrandbits(self, k: int, /) -> int:
        """Return an integer of `k` bits."""
        self._count += 1
        text, size = str(self._count).encode(), (k + 7) // 8
        found = hashlib.shake_128(b"%d %b %b" % (len(self._key), self._key, text)).digest(size)
        return int.from_bytes(found, "big") >> (8 * size - k)

    def random(self) -> float:
        """Return a number in [0, 1)."""
        return float(self.getrandbits(53)) * 2.0**-53


def seed_commitment(seed: int) -> str:
    """Return a name for a secret seed from which the seed cannot be found: 8 hexadecimal digits.

    2**21 of the seeds of 53 bits have the same.
    """
    return hashlib.blake2b(f"{seed}".encode(), digest_size=4).hexdigest()


@dataclass(frozen=True)
class VerifiedBaseline(DeviceBaseline):
    """A workload with what solutions are held against.

    Attributes
    ----------
    checks : tuple of TimedCheck
        Draws of inputs with the outputs that they must give; empty if candidates are trusted.
    checks_alone : tuple of TimedCheck
        Those for calls that are made alone; empty where every call is.
    values : Values, optional
        Draws the inputs of timed calls; None if candidates are trusted.
    overhead : Overhead, optional
        What an exchange takes beyond a call; None if candidates are trusted.
    of_rounds : mapping
        What exchanges with several calls take, for each way in which these are made.
    mode : Mode, optional
        In which way the reference's calls are made; None in single ones.
    replayable : bool
        Whether a timed call's result can be had from another's.
    floor : Floor, optional
        What no latency can be below; None where the device has not been calibrated.
    reference_seed : int, optional
        What all values follow from; a secret while a solution may still be evaluated against them.
        None if candidates are trusted.
    apart : bool
        Whether no solution can tell another one what it has seen; else each gets checks of its own.
    """

    checks: tuple[TimedCheck, ...] = ()
    checks_alone: tuple[TimedCheck, ...] = ()
    values: Optional[Values] = None
    overhead: Optional[Overhead] = None
    of_rounds: Mapping[Mode, Overhead] = field(default_factory=dict)
    mode: Optional[Mode] = None
    replayable: bool = False
    floor: Optional[Floor] = None
    reference_seed: Optional[int] = None
    apart: bool = False

    def usual(self, mode: Optional[Mode], *, into: bool = False) -> Overhead:
        """Return what an exchange takes beyond its calls, if they are made so.

        Parameters
        ----------
        mode : Mode, optional
            In which way; None for single ones.
        into : bool
            Whether outputs are written into the judge's memory.
        """
        found = self.overhead if mode is None else self.of_rounds[mode].for_outputs(into=into)
        assert found is not None
        return found


@dataclass(frozen=True)
class VerifiedAttempt(Attempt):
    """One solution on one workload, and the process that it runs in.

    Attributes
    ----------
    part : TimingPlan, optional
        What this process has to do of the whole plan; None for all of it.
    """

    session: VerifiedSession
    baseline: VerifiedBaseline
    part: Optional[TimingPlan] = None

    @property
    def plan(self) -> TimingPlan:
        """How often this process calls the solution."""
        return self.part or super().plan
