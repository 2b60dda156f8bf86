"""How solutions are measured: the seam between the benchmark loop and who checks and times."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar, Optional

from flashinfer_bench.bench.backends import load_subclass
from flashinfer_bench.bench.evaluation import (
    Report,
    check_all,
    evaluate_by,
    in_worker,
    speeds_of,
    time_trusting,
)
from flashinfer_bench.bench.reference import DeviceBaseline, Task, running_reference
from flashinfer_bench.errors import CapabilityError, PluginLoadError

if TYPE_CHECKING:
    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.bench.session import Session
    from flashinfer_bench.data import Evaluation, Solution
    from flashinfer_bench.plugins import Catalog, MeasurementSpec, Registered

logger = logging.getLogger(__name__)


class MeasurementMethod(ABC):
    """Prepares workloads and evaluates solutions on them; one object for each device of a run.

    A plugin registers a subclass by a `flashinfer_bench.plugins.MeasurementSpec`.

    Parameters
    ----------
    device : str
        ``cpu`` or ``cuda:N``.
    """

    name: ClassVar[str]
    """That of the record. It goes into every trace, as ``provenance.extra["measurement"]``."""

    def __init__(self, device: str) -> None:
        self.device = device

    def running(self, config: BenchmarkConfig) -> AbstractContextManager[object]:
        """Return a context manager that is entered around a run on this device."""
        return nullcontext()

    @abstractmethod
    def prepare(self, session: Session, task: Task) -> DeviceBaseline:
        """Make the inputs of a workload and run the reference on them, in a process of its own.

        Parameters
        ----------
        session : Session
            The run.
        task : Task
            The workload, and how solutions are judged on it.

        Raises
        ------
        DataError
            If the workload does not fit the definition, or a tensor file is missing or wrong.
        ReferenceFailed
            If the reference fails, or returns something else than its definition declares.
        CapabilityError
            If it cannot be built here, by no fault of its own.
        """

    @abstractmethod
    def evaluate(
        self, session: Session, solution: Solution, baseline: DeviceBaseline
    ) -> Evaluation:
        """Evaluate a solution against what `prepare` returned.

        Raises
        ------
        NotEvaluated
            If there can be no verdict, because this machine lacks what its build needs.
        RunInterrupted
            If the run ends meanwhile.
        """

    def completed(self, evaluation: Evaluation, baseline: DeviceBaseline) -> Evaluation:
        """Return the evaluation of a workload's last solution, as it is to be recorded."""
        return evaluation


class BasicMeasurement(MeasurementMethod):
    """Checks a solution's outputs, then times it, and believes the clock of its process.

    Its numbers hold for solutions that nobody has a reason to distrust. Reports and apply say of
    them that they were not verified.
    """

    name = "basic"

    def running(self, config: BenchmarkConfig) -> AbstractContextManager[object]:
        """Refuse what only the verified measurement can do."""
        if config.lock_clocks_mhz is not None:
            raise CapabilityError(
                "lock_clocks_mhz: the basic measurement does not hold clocks",
                hint="pip install fib-judge, or leave it out",
            )
        return super().running(config)

    def prepare(self, session: Session, task: Task) -> DeviceBaseline:
        """Compute expected outputs, and time the reference as solutions will be timed."""
        with running_reference(session, task) as problem:
            taken = problem.measured(task.config) if session.profile_baseline else None
        return DeviceBaseline(
            **vars(task),
            device=session.device,
            seed=session.seed,
            trials=problem.trials,
            measurement=taken,
            freedoms=problem.freedoms,
        )

    def evaluate(
        self, session: Session, solution: Solution, baseline: DeviceBaseline
    ) -> Evaluation:
        """Build, check, time: the verdict is that of the checks."""

        def once(report: Report) -> Evaluation:
            with in_worker(report) as attempt:
                check, correctness = check_all(attempt)
                taken = time_trusting(attempt) if check.passed else None
            if taken is None or correctness is None:
                return report.wrong(check, correctness)
            return report.passed(correctness, taken, speeds_of(taken, baseline.measurement))

        return evaluate_by(once, Report(session, solution, baseline))


def pick_measurement(
    catalog: Catalog, device: str, name: Optional[str] = None
) -> MeasurementMethod:
    """Return how solutions are measured on a device.

    Parameters
    ----------
    catalog : Catalog
        Where the methods are registered.
    device : str
        ``cpu`` or ``cuda:N``.
    name : str, optional
        Take this one; by default the one of the highest priority that can be used here. One that
        cannot be loaded is then passed over, with a warning.

    Raises
    ------
    CapabilityError
        If the named one is not registered, or cannot be used here.
    PluginLoadError
        If it cannot be loaded.
    """
    if name is None:
        kind = device.partition(":")[0]
        for entry in catalog.measurements:
            if kind in entry.spec.devices and entry.availability():
                try:
                    return _made(entry, device)
                except PluginLoadError as error:
                    logger.warning("%s", error)
    return _made(catalog.select_measurement(device, name), device)


def _made(entry: Registered[MeasurementSpec], device: str) -> MeasurementMethod:
    factory = load_subclass(entry, MeasurementMethod)  # type: ignore[type-abstract]
    subject = f"measurement {entry.name!r} of {entry.origin}"
    try:
        made = factory(device)
    except Exception as error:
        raise PluginLoadError(f"{subject}: {type(error).__name__}: {error}") from error
    if made.name != entry.name:
        raise PluginLoadError(f"{subject}: {entry.spec.factory} calls itself {made.name!r}")
    return made
