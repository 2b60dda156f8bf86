"""What all evaluations of a run on one device share."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Optional

from flashinfer_bench.bench.pool import RunInterrupted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.bench.ahead import BuildAhead
    from flashinfer_bench.bench.calibration import Ceilings
    from flashinfer_bench.bench.executors.base import CandidateFailed
    from flashinfer_bench.bench.judge.deadline import Deadline
    from flashinfer_bench.bench.judge.normals import Normals
    from flashinfer_bench.bench.locks import DeviceLock
    from flashinfer_bench.bench.pool import WorkerKey, WorkerPool
    from flashinfer_bench.bench.replay.origin import Origin
    from flashinfer_bench.bench.watch.lock import LockReport
    from flashinfer_bench.data import Environment


@dataclass(frozen=True)
class Session:
    """What all evaluations of a run on one device share.

    Attributes
    ----------
    device : str
        ``cpu`` or ``cuda:N``.
    environment : Environment
        Goes into every evaluation.
    seed : int
        Seed of the run.
    timer : str
        Name of the timing backend.
    timeout_s : float
        Wall time that one evaluation may take.
    profile_baseline : bool
        Whether references are timed.
    pool : WorkerPool
        Lends candidate processes.
    lock : DeviceLock
        Held while something is timed.
    failed_builds : dict
        Solutions that are known not to build, with the candidate's answer: building does not
        depend on the workload, so it is not tried again for the next one.
    ahead : BuildAhead, optional
        What is compiled, or has been, ahead of its evaluation.
    trust : str
        ``full``: every timed call has inputs of its own, and is held against what the judge knows.
        ``off``: candidates are believed.
    timer_version : str, optional
        Version of the timing backend as this process knows it.
    ceilings : Ceilings, optional
        What the device can do at most, if it has been calibrated.
    rotation_seed : int, optional
        What the seeds of variations follow from; None draws fresh ones.
    timed_seed : int, optional
        Take exactly this seed for the timed calls of the solution, to repeat an evaluation.
    reference_seed : int, optional
        Take exactly this one for those of the reference.
    origin : Origin, optional
        What is to be recorded about host, plugins and settings.
    timer_note : str, optional
        Which better timer could not be used, and why; for every trace.
    clock_lock : LockReport, optional
        What has become of the wish to hold the device's clocks; None if there was none.
    warm : bool
        Whether the device's caches are left as they are between calls.
    plain_calls : dict of str to Normals
        What calls of one small kernel are like on the device, once that has been asked.
    """

    device: str
    environment: Environment
    seed: int
    timer: str
    timeout_s: float
    profile_baseline: bool
    pool: WorkerPool
    lock: DeviceLock
    failed_builds: dict[WorkerKey, CandidateFailed] = field(default_factory=dict)
    ahead: Optional[BuildAhead] = None
    trust: Literal["full", "off"] = "full"
    timer_version: Optional[str] = None
    ceilings: Optional[Ceilings] = None
    rotation_seed: Optional[int] = None
    timed_seed: Optional[int] = None
    reference_seed: Optional[int] = None
    origin: Optional[Origin] = None
    timer_note: Optional[str] = None
    clock_lock: Optional[LockReport] = None
    warm: bool = False
    plain_calls: dict[str, Normals] = field(default_factory=dict)

    @contextmanager
    def device_to_itself(self, deadline: Deadline) -> Iterator[None]:
        """Keep other processes from timing on this device; waiting for it costs no budget.

        Raises
        ------
        RunInterrupted
            If the run ends while the device is waited for.
        """
        with ExitStack() as stack:
            with deadline.stopped():
                held = stack.enter_context(self.lock.held(lambda: self.pool.interrupted))
            if not held:
                raise RunInterrupted(f"the run ended while waiting for {self.device}")
            yield
