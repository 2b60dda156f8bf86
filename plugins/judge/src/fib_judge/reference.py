"""Running a reference whose timed calls become checks of solutions, and show what is normal."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Optional

from fib_judge.decidability import tightened
from fib_judge.floor import physics_floor
from fib_judge.integrity import Normals
from fib_judge.records import KeyedRandom, VerifiedBaseline, VerifiedSession
from fib_judge.timed import TimedCheck, free_memory, number_of_checks, secret_places
from flashinfer_bench.bench import calls
from flashinfer_bench.bench.digests import fresh_seed, trial_seed
from flashinfer_bench.bench.evaluators.base import Trial
from flashinfer_bench.bench.executors.base import CandidateError
from flashinfer_bench.bench.measurement import (
    FEW_CALLS,
    DeviceBaseline,
    Task,
    checked_outputs,
    running_reference,
)

if TYPE_CHECKING:
    from flashinfer_bench.bench.stopping import TimingPlan
    from flashinfer_bench.data import Definition, Solution
    from flashinfer_bench.tensors.vary import Variation


logger = logging.getLogger(__name__)


def prepare_baseline(session: VerifiedSession, task: Task) -> VerifiedBaseline:
    """Run the reference; keep the outputs of some of its timed calls as checks.

    Raises
    ------
    DataError, ReferenceFailed, CapabilityError
        As of `MeasurementMethod.prepare`.
    UndecidableWorkload
        If a solution that computes nothing would pass.
    """
    given = (session.reference_seed, session.rotation_seed)
    seed = next((one for one in given if one is not None), None)
    timed = replace(session, rotation_seed=fresh_seed() if seed is None else seed)
    taken: Optional[calls.Measurement] = None
    checks: tuple[TimedCheck, ...] = ()
    normal: Optional[Normals] = None
    with running_reference(timed, task) as (attempt, plan):
        if session.config.trust == "full":
            taken, checks, normal = _timed_with_checks(timed, attempt, plan)
        elif session.config.profile_baseline:
            taken = calls.measure(attempt, plan)
    if normal is not None:
        normal = with_plain_calls(session, attempt.baseline, normal)
    trials = attempt.baseline.trials
    config = tightened(task.definition, task.workload, trials, task.evaluator, task.config)
    floor = None
    if session.ceilings is not None and session.config.trust != "off":
        floor = physics_floor(task.definition, task.axes, session.ceilings)
    return VerifiedBaseline(
        **vars(replace(attempt.baseline, config=config, measurement=taken)),
        checks=checks,
        normal=normal,
        floor=floor,
        reference_seed=timed.rotation_seed if checks else None,
    )


def _timed_with_checks(
    session: VerifiedSession, attempt: calls.Attempt, plan: TimingPlan
) -> tuple[Optional[calls.Measurement], tuple[TimedCheck, ...], Normals]:
    """Time the reference, and keep the outputs of some of its calls: they become checks."""
    baseline, candidate = attempt.baseline, attempt.candidate
    rng = KeyedRandom(session.secret_seed("reference"))
    nbytes = sum(value.nbytes for value in baseline.trials[0].expected)
    count = number_of_checks(plan.max_samples, nbytes, free_memory())
    variations = calls.Variations(baseline, rng)
    places = frozenset(secret_places(plan.max_samples, count, rng))
    drawn: list[Variation] = []
    checks: list[TimedCheck] = []

    def variation_of(place: Optional[int]) -> Variation:
        drawn[:] = [variations.draw()]
        return drawn[0]

    def visit(place: int) -> bool:
        if place not in places:
            return False
        (variation,) = drawn
        outputs = candidate.collect(timeout_s=attempt.left("call"))
        expected = checked_outputs(baseline, outputs)
        base = baseline.trials[variation.slot]
        checks.append(TimedCheck(variation, baseline.freedoms, base, expected))
        return True

    taken = calls.take_calls(attempt, plan, variation_of, visit=visit)
    calls.refuse_impossible(attempt, taken.calls)
    measurement = calls.measurement_of(taken) if session.config.profile_baseline else None
    return measurement, tuple(checks), Normals.of(taken.calls)


def renewed_normal(
    session: VerifiedSession, baseline: VerifiedBaseline, before: Normals
) -> Normals:
    """Return what is normal on the machine as it is now, or was before.

    Of the two the slower counts: whoever is to be convicted must be slower than both. A reference
    that fails this time changes nothing.

    Parameters
    ----------
    session : VerifiedSession
        The run.
    baseline : VerifiedBaseline
        Prepared with trust ``full``.
    before : Normals
        What was normal before.
    """
    try:
        return before.or_slower(few_calls(session, baseline))
    except CandidateError:
        logger.debug("the reference of %s did not answer again", baseline.definition.name)
        return before


def few_calls(session: VerifiedSession, baseline: DeviceBaseline) -> Normals:
    """Make timed calls of a reference, in a process of its own, to learn what is normal.

    Parameters
    ----------
    session : VerifiedSession
        The run.
    baseline : DeviceBaseline
        Has the reference, and its input sets.

    Raises
    ------
    CandidateError
        If the process fails.
    """
    limit_s = session.config.timeout_seconds
    with session.pool.worker(("reference", baseline.definition.name)) as worker:
        worker.load(baseline.definition, baseline.reference, timeout_s=limit_s)
        session.pool.settle()
        deadline = calls.Deadline(limit_s)
        attempt = calls.Attempt(session, baseline.reference, baseline, worker, deadline)
        for trial in baseline.trials:
            attempt.put(trial)
        variations = calls.Variations(baseline, KeyedRandom(session.secret_seed("again")))
        taken = calls.take_calls(attempt, FEW_CALLS, lambda place: variations.draw())
        return Normals.of(taken.calls)


# What a timed call costs on a device at least, whatever a reference shows of it.
#
# A reference that keeps the host busy, because it waits for the device or launches many small
# kernels, returns when the device has nearly done its work. So it shows nothing of the way from a
# call's return to the device's end, which other solutions go: the timer's second event, letting the
# device start, being told, telling the judge. That is 0.1 ms of the host's, and nobody's hidden
# time.


_ELEMENTS = 1 << 20  # some microseconds on a device: one kernel, which the host does not wait for
_SOURCE = "def run(x):\n    return x + x\n"


def with_plain_calls(
    session: VerifiedSession, baseline: DeviceBaseline, normals: Normals
) -> Normals:
    """Return `normals`, with at least the overhead of plain calls.

    Parameters
    ----------
    session : VerifiedSession
        The run. What is learned is kept there; if it cannot be learned, or on the CPU, nothing
        changes.
    baseline : DeviceBaseline
        Any: the settings are its.
    normals : Normals
        What is normal for a reference.
    """
    if session.device == "cpu":
        return normals
    if session.device not in session.plain_calls:
        try:
            session.plain_calls[session.device] = _learn(session, baseline)
        except CandidateError as error:
            logger.warning("%s: what a plain call costs is not known: %s", session.device, error)
            return normals
    plain = session.plain_calls[session.device]
    return replace(normals, overhead=normals.overhead.or_slower(plain.overhead))


def _learn(session: VerifiedSession, baseline: DeviceBaseline) -> Normals:
    """Time a definition of one small kernel.

    Raises
    ------
    CandidateError
        If its process fails.
    """
    from flashinfer_bench.data import RandomInput, Workload
    from flashinfer_bench.tensors import generate_inputs
    from flashinfer_bench.tensors.vary import freedoms

    definition, solution = _small_kernel()
    workload = Workload(axes={}, inputs={"x": RandomInput()}, uuid=definition.name)
    seed = trial_seed(session.seed, 0)
    inputs = generate_inputs(definition, workload, seed=seed, root=None)
    small = replace(
        baseline,
        definition=definition,
        workload=workload,
        reference=solution,
        trials=(Trial(0, seed, inputs, []),),
        freedoms=freedoms(definition, workload, inputs),
    )
    return few_calls(session, small)


def _small_kernel() -> tuple[Definition, Solution]:
    from flashinfer_bench.data import (
        AxisConst,
        BuildSpec,
        Definition,
        Solution,
        SourceFile,
        TensorSpec,
    )

    vector = TensorSpec(shape=["n"], dtype="float32")
    definition = Definition(
        name="one_small_kernel",
        op_type="elementwise",
        axes={"n": AxisConst(value=_ELEMENTS)},
        inputs={"x": vector},
        outputs={"y": vector},
        reference=_SOURCE,
    )
    solution = Solution(
        name=definition.name,
        definition=definition.name,
        author="judge",
        spec=BuildSpec(
            language="python",
            target_hardware=["any"],
            entry_point="main.py::run",
            destination_passing_style=False,
        ),
        sources=[SourceFile(path="main.py", content=_SOURCE)],
    )
    return definition, solution
