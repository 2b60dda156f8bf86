"""The judge's way of measuring, as the benchmark loop sees it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Optional

from fib_judge.calibration import Ceilings, load_ceilings
from fib_judge.evaluate import evaluate_solution
from fib_judge.records import VerifiedBaseline, VerifiedSession
from fib_judge.reference import prepare_baseline
from fib_judge.watch.lock import ClockRequest, LockReport, locked_clocks, restore_clocks
from flashinfer_bench.bench.measurement import MeasurementMethod
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.bench.measurement import DeviceBaseline, Task
    from flashinfer_bench.bench.session import Session
    from flashinfer_bench.data import Evaluation, Solution


class VerifiedMeasurement(MeasurementMethod):
    """Holds what a solution's process says against what the judge sees and knows.

    Attributes
    ----------
    timed_seed, reference_seed : int, optional
        Seeds of the timed calls of the solution and of the reference, to repeat an evaluation; by
        default fresh ones are drawn, which nobody can foresee.
    """

    name = "verified"

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.timed_seed: Optional[int] = None
        self.reference_seed: Optional[int] = None
        self._clock_lock: Optional[LockReport] = None
        self._ceilings: dict[str, Optional[Ceilings]] = {}

    @contextmanager
    def running(self, config: BenchmarkConfig) -> Iterator[None]:
        """Hold the device's clocks during the run, if that is asked for."""
        with _held_clocks(self.device, config.lock_clocks_mhz) as self._clock_lock:
            try:
                yield
            finally:
                self._clock_lock = None

    def prepare(self, session: Session, task: Task) -> VerifiedBaseline:
        """Run the reference; keep the outputs of some of its timed calls as checks."""
        return prepare_baseline(self._own(session), task)

    def evaluate(
        self, session: Session, solution: Solution, baseline: DeviceBaseline
    ) -> Evaluation:
        """Build, check, time, and weigh what the clocks say."""
        assert isinstance(baseline, VerifiedBaseline)
        return evaluate_solution(self._own(session), solution, baseline)

    def completed(self, evaluation: Evaluation, baseline: DeviceBaseline) -> Evaluation:
        """Return a workload's last evaluation, with the seed of the checks that all had in common.

        No other record may tell it: a solution that knew it beforehand could give right outputs to
        the checks alone. The others name it by ``checks_id``.
        """
        assert isinstance(baseline, VerifiedBaseline)
        provenance = evaluation.provenance
        if provenance is None or baseline.reference_seed is None:
            return evaluation
        extra = {**provenance.extra, "reference_seed": baseline.reference_seed}
        told = provenance.model_copy(update={"extra": extra})
        return evaluation.model_copy(update={"provenance": told})

    def _own(self, session: Session) -> VerifiedSession:
        hardware = session.environment.hardware
        if hardware not in self._ceilings:
            self._ceilings[hardware] = load_ceilings(self.device, hardware)
        return VerifiedSession(
            **vars(session),
            ceilings=self._ceilings[hardware],
            clock_lock=self._clock_lock,
            timed_seed=self.timed_seed,
            reference_seed=self.reference_seed,
        )


@contextmanager
def _held_clocks(device: str, sm_mhz: Optional[int]) -> Iterator[Optional[LockReport]]:
    """Set the SM clock of a device for the body of a ``with`` statement.

    Without one, clocks that a killed run has left locked are freed all the same.

    Raises
    ------
    ConfigError
        If the device has no such clock.
    """
    if sm_mhz is None:
        restore_clocks(device)
        yield None
        return
    if device == "cpu":
        raise ConfigError(
            f"lock_clocks_mhz={sm_mhz}: only the clocks of NVIDIA GPUs can be locked",
            hint="leave it out, or name a GPU with --device",
        )
    with locked_clocks(device, ClockRequest(sm_mhz=sm_mhz)) as report:
        yield report
