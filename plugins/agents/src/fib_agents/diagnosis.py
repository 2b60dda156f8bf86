"""Why a solution is wrong: what it does on chosen inputs, and rules that name likely causes.

Reference and solution run in confined workers, as in an evaluation. This process only compares
tensors. A cause is called ``likely`` only if it was confirmed on a second set of inputs or follows
from what was observed directly; no rule looks at names or sources.
"""

from __future__ import annotations

import logging
import math
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from fib_agents import mismatch
from fib_agents.input_changes import Change, InputChanges, factors, is_float
from fib_agents.known_causes import LIKELY, POSSIBLE, SUGGESTIONS, Cause
from fib_agents.mismatch import Dimension, Fit, MismatchMap, distance, map_mismatch, relations
from flashinfer_bench.bench.backends import make_executor
from flashinfer_bench.bench.config import BenchmarkConfig, ResolvedEvalConfig
from flashinfer_bench.bench.correctness import as_tensors, bits, compare, find_problem, output_specs
from flashinfer_bench.bench.digests import trial_seed
from flashinfer_bench.bench.evaluators import resolve_evaluator
from flashinfer_bench.bench.executors.base import Candidate, CandidateError, Executor
from flashinfer_bench.bench.locks import device_lock
from flashinfer_bench.bench.sandbox import Sandbox
from flashinfer_bench.bench.transport.deadline import Deadline
from flashinfer_bench.data import Provenance, RandomInput
from flashinfer_bench.plugins import default_catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import torch

    from fib_agents.evaluations import Call
    from flashinfer_bench.bench.correctness import Comparison
    from flashinfer_bench.bench.sandbox import Level
    from flashinfer_bench.data import Definition, Solution, Trace, Workload

logger = logging.getLogger(__name__)

_MOST_CAUSES = 5
MOST_OUTPUTS = 8
_MAPPED = 3  # outputs with a map of what is wrong
_LOAD_S = 300.0
# Of larger inputs each further set takes seconds to copy: only the first calls are made.
_MOST_BYTES = 256 << 20
_SLIGHT = 0.01  # share of elements below which an effect is not counted


@dataclass(frozen=True)
class OutputFeedback:
    """One output.

    Attributes
    ----------
    name : str
        Its name in the definition.
    shape : tuple of int
        Its shape; empty if it is not known, or for a scalar.
    dtype : str
        Its dtype.
    atol, rtol : float
        Tolerances: an element passes if its absolute error is at most `atol` or its relative error
        at most `rtol`.
    required_matched_ratio : float
        Share of the elements that must pass.
    max_absolute_error, max_relative_error : float, optional
        Largest errors; None if those of this output are not known.
    wrong_share : float, optional
        Share of the elements that do not pass.
    mismatch : MismatchMap, optional
        Where it is wrong, for the first three wrong outputs of a diagnosis.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    atol: float
    rtol: float
    required_matched_ratio: float = 1.0
    max_absolute_error: Optional[float] = None
    max_relative_error: Optional[float] = None
    wrong_share: Optional[float] = None
    mismatch: Optional[MismatchMap] = None


@dataclass(frozen=True)
class Diagnosis:
    """What was found out about a wrong solution.

    Attributes
    ----------
    reproduced : bool
        Whether a call was wrong.
    note : str
        What limits the diagnosis; empty if nothing does.
    outputs : tuple of OutputFeedback
        The outputs of the call that was wrong, at most 8.
    causes : tuple of Cause
        The best first, at most 5; empty if no rule fits.
    """

    reproduced: bool
    note: str = ""
    outputs: tuple[OutputFeedback, ...] = ()
    causes: tuple[Cause, ...] = ()


def output_of(
    definition: Definition, name: str, axes: Mapping[str, int], config: ResolvedEvalConfig
) -> OutputFeedback:
    """Return what an output has to be, without what it is.

    Parameters
    ----------
    definition : Definition
        Declares it.
    name : str
        Its name.
    axes : mapping of str to int
        Value of every variable axis.
    config : ResolvedEvalConfig
        Tolerances.

    Raises
    ------
    DataError
        If an axis has no value.
    """
    place = list(definition.outputs).index(name)
    shape, own = definition.get_output_shapes(axes)[place], config.tolerance_of(name)
    limits = own.atol or 0.0, own.rtol or 0.0, own.required_matched_ratio or 1.0
    dtype = str(definition.outputs[name].dtype.value)
    return OutputFeedback(name, tuple(shape or ()), dtype, *limits)


def seeds_of(trace: Trace) -> list[int]:
    """Return the seeds of the inputs of a run, that of the set which failed first.

    Parameters
    ----------
    trace : Trace
        The run; without a recorded seed, it is taken for 0.
    """
    provenance, first = provenance_of(trace), details_of(trace).get("first_failing")
    count = max(provenance.num_trials or 3, 2)
    failed = first.get("trial") if isinstance(first, dict) else None
    trials = sorted(range(min(count, 1_000)), key=lambda number: number != failed)
    return [trial_seed(provenance.seed or 0, number) for number in trials[:4]]


def provenance_of(trace: Trace) -> Provenance:
    """Return what a trace tells of how it was made; an empty record if it tells nothing."""
    found = trace.evaluation.provenance if trace.evaluation is not None else None
    return found or Provenance()


def details_of(trace: Trace) -> dict[str, Any]:
    """Return what the evaluator of a run tells of its outputs; empty if that is nothing."""
    correctness = trace.evaluation.correctness if trace.evaluation is not None else None
    return (correctness.extra if correctness is not None else None) or {}


def diagnose(
    definition: Definition,
    solution: Solution,
    workload: Workload,
    root: Optional[Path],
    *,
    device: str = "cpu",
    sandbox: Union[Sandbox, Level] = "auto",
    executor: Optional[Executor] = None,
    config: Optional[ResolvedEvalConfig] = None,
    seeds: Sequence[int] = (),
    calls: int = 3,
    budget_s: float = 30.0,
    call: Optional[Call[Any]] = None,
) -> Diagnosis:
    """Find out how the outputs of a solution differ from the reference's, and why.

    Parameters
    ----------
    definition, solution, workload : Definition, Solution, Workload
        What was wrong.
    root : Path or None
        Folder of the dataset, for tensors in files.
    device : str
        ``cpu`` or ``cuda:N``; ignored if `executor` is given.
    sandbox : Sandbox or str
        Confines the solution; or ``off``, ``auto`` or ``strict``.
    executor : Executor, optional
        Starts the workers, and is not closed; by default one is made.
    config : ResolvedEvalConfig, optional
        Tolerances; by default those of a run without settings.
    seeds : sequence of int
        Seeds of the inputs, at least two, as of `seeds_of`; by default those of a run with seed 0.
        The first for which a call is wrong is looked into.
    calls : int
        Calls on the same inputs, at least 2.
    budget_s : float
        Seconds for everything but building; what does not fit is left out.
    call : Call, optional
        Ends the diagnosis if it is cancelled.

    Returns
    -------
    Diagnosis
        Also if a worker fails: its note then says so.

    Raises
    ------
    DataError
        If the workload does not fit the definition, or a tensor file is missing or wrong.
    CapabilityError
        If there is no executor for the device, or a sandbox ``strict`` cannot be had.
    RunnerFatalError
        If no worker can be started.
    CallCancelled
        If `call` was cancelled.
    """
    catalog = default_catalog()
    if not resolve_evaluator(definition, catalog=catalog).one_answer:
        note = "outputs of this definition are not compared element by element"
        return Diagnosis(False, note)
    settings = config or BenchmarkConfig.default().resolve_eval_config(definition, workload)
    given = tuple(seeds) or tuple(trial_seed(0, number) for number in range(3))
    with ExitStack() as at_the_end:
        if executor is None:
            executor = make_executor(catalog, device)
            at_the_end.callback(executor.close)
        if not isinstance(sandbox, Sandbox):
            sandbox = Sandbox(sandbox, catalog, dataset=root)
            at_the_end.callback(sandbox.tidy)
        from flashinfer_bench.compile import reference_solution

        executor.start()
        axes = {axis: workload.axes[axis] for axis in definition.var_axes}
        reference, own = (
            _Worker(executor, sandbox, (definition, one), axes, call)
            for one in (reference_solution(definition), solution)
        )
        study = _Study(definition, workload, root, settings, reference, own, axes)
        at_the_end.callback(study.close)
        if call is not None:
            at_the_end.enter_context(call.stopped_by(study.close))
        try:
            return study.result(given, max(calls, 2), budget_s)
        except CandidateError as error:
            who = f"the {study.asked} failed ({error.stage})"
            return Diagnosis(False, f"{who}: {error.message[:300]}")


class _StoppedError(Exception):
    """Why nothing further can be tried."""


@dataclass(eq=False)
class _Worker:
    """The reference or the solution in a process, which is started anew after it has died."""

    executor: Executor
    sandbox: Sandbox
    what: tuple[Definition, Solution]
    axes: dict[str, int]
    user: Optional[Call[Any]] = None
    deadline: Deadline = field(default_factory=Deadline.never)
    destination_passing_style: bool = False
    _candidate: Optional[Candidate] = None

    def load(self) -> Candidate:
        if self.user is not None:
            self.user.check()
        if self._candidate is None or not self._candidate.alive:
            self.close()
            self._candidate = self.executor.spawn()
            self.sandbox.confine(self._candidate, *self.what, device=self.executor.device)
            loaded = self._candidate.load(*self.what, timeout_s=_LOAD_S)
            self.destination_passing_style = loaded.destination_passing_style
        return self._candidate

    def put(self, inputs: Sequence[Any]) -> None:
        self.load().put_inputs(0, inputs, self.axes, timeout_s=self._left())

    def call(self) -> list[Any]:
        return self.load().call(0, timeout_s=self._left())

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        self.put(inputs)
        return self.call()

    def close(self) -> None:
        if self._candidate is not None:
            self._candidate.close()

    def _left(self) -> float:
        if self.deadline.expired:
            raise _StoppedError(f"not all tests fitted into {self.deadline.seconds:g} s")
        return self.deadline.remaining + 1.0


class _Set(NamedTuple):
    """Inputs, and what reference and solution make of them."""

    inputs: list[Any]
    expected: list[torch.Tensor]
    actual: list[torch.Tensor]


class _Effect(NamedTuple):
    """Which elements change with an input: at all, and by more than the tolerance."""

    own: torch.Tensor
    own_clearly: torch.Tensor
    right: torch.Tensor
    right_clearly: torch.Tensor


@dataclass
class _Study:
    definition: Definition
    workload: Workload
    root: Optional[Path]
    config: ResolvedEvalConfig
    reference: _Worker
    solution: _Worker
    axes: dict[str, int]
    sets: list[_Set] = field(default_factory=list)  # the wrong one first
    which: int = 0  # the output that is worst
    asked: str = "reference"  # what runs, for messages
    found: list[Cause] = field(default_factory=list)

    # --------------------------------------------------------------------- making calls

    def close(self) -> None:
        self.reference.close()
        self.solution.close()

    def result(self, seeds: Sequence[int], calls: int, budget_s: float) -> Diagnosis:
        self.reference.load()
        self.asked = "solution"
        self.solution.load()
        user, note = self.solution.user, ""
        device = self.reference.executor.device
        # Nobody times meanwhile. Without the lock, the first call finds that it is cancelled.
        with device_lock(device, lambda: user is not None and user.cancelled):
            self.reference.deadline = self.solution.deadline = Deadline(budget_s)
            try:
                self._observe(seeds, calls)
                self._apply_rules()
            except _StoppedError as stopped:
                note = str(stopped)
            except CandidateError as error:  # a test with unusual inputs; what is known is returned
                if not self.sets:
                    raise
                note = f"a further test failed ({error.stage}): {error.message[:200]}"
        if not self.sets:
            return Diagnosis(False, note)
        best = sorted(self.found, key=lambda one: one.confidence != LIKELY)
        if self._is_known:  # what only describes the output adds nothing
            best = [one for one in best if one.cause not in _DESCRIPTIONS]
        unique = {one.cause: one for one in reversed(best)}
        causes = [one for one in best if unique[one.cause] is one]
        return Diagnosis(True, note, self._outputs(), tuple(causes[:_MOST_CAUSES]))

    def _observe(self, seeds: Sequence[int], calls: int) -> None:
        """Make the calls whose results say whether the solution depends on earlier calls."""
        from flashinfer_bench.tensors import generate_inputs

        made: list[_Set] = []
        first: list[list[torch.Tensor]] = []
        for seed in seeds:
            if len(made) >= 2 and any(self._is_wrong(one) for one in made):
                break
            inputs = generate_inputs(self.definition, self.workload, seed=seed, root=self.root)
            self.asked = "reference"
            expected = as_tensors(self.reference.run(inputs))
            if not made and not _same(expected, as_tensors(self.reference.call())):
                raise _StoppedError("the reference itself differs from call to call")
            self.asked = "solution"
            self.solution.put(inputs)
            outputs = [self._checked(self.solution.call())]
            if not made:
                outputs += [self._checked(self.solution.call()) for _ in range(calls - 1)]
                first = outputs
            sets = [_Set(inputs, expected, each) for each in outputs]
            made.append(next(filter(self._is_wrong, sets), sets[0]))
        self.sets = sorted(made, key=lambda one: not self._is_wrong(one))[:2]
        if not self._is_wrong(self.sets[0]):
            self.sets = []
            tried = f"{len(seeds)} sets of inputs and repeated calls"
            raise _StoppedError(f"no call was wrong in {tried}")
        self.which = max(
            range(len(self.sets[0].expected)),
            key=lambda k: 1.0 - self._compared(self.sets[0], k).matched_ratio,
        )
        self._compare_calls(made, first)

    def _checked(self, outputs: list[Any]) -> list[torch.Tensor]:
        problem = find_problem(outputs, output_specs(self.definition, self.axes))
        if problem is not None:
            raise _StoppedError(problem.message)
        return as_tensors(outputs)

    def _limits(self, k: int) -> dict[str, float]:
        own = self.config.tolerance_of(list(self.definition.outputs)[k])
        return {"atol": own.atol or 0.0, "rtol": own.rtol or 0.0}

    def _compared(self, one: _Set, k: int) -> Comparison:
        return compare(one.actual[k], one.expected[k], **self._limits(k))

    def _is_wrong(self, one: _Set) -> bool:
        for k, name in enumerate(self.definition.outputs):
            own = self.config.tolerance_of(name)
            cap = math.inf if own.max_error_cap is None else own.max_error_cap
            if not self._compared(one, k).passes(own.required_matched_ratio or 1.0, cap):
                return True
        return False

    def _wrong(self, actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        """Return which elements of the worst output do not pass."""
        return ~mismatch.passes(actual, expected, **self._limits(self.which))

    def _outputs(self) -> tuple[OutputFeedback, ...]:
        found, maps = [], _MAPPED
        for k, name in enumerate(list(self.definition.outputs)[:MOST_OUTPUTS]):
            one = self._compared(self.sets[0], k)
            has_map = maps > 0 and one.matched < one.elements
            maps -= has_map
            found.append(
                replace(
                    output_of(self.definition, name, self.axes, self.config),
                    max_absolute_error=one.max_absolute_error,
                    max_relative_error=one.max_relative_error,
                    wrong_share=1.0 - one.matched_ratio,
                    mismatch=self._map(self.sets[0], k) if has_map else None,
                )
            )
        return tuple(found)

    def _map(self, one: _Set, k: int) -> MismatchMap:
        axes = [*self.definition.outputs.values()][k].shape or ()
        return map_mismatch(one.actual[k], one.expected[k], axes=axes, **self._limits(k))

    # --------------------------------------------------------------------- rules

    def _add(self, cause: str, confidence: str, evidence: str) -> None:
        self.found.append(Cause(cause, confidence, evidence, SUGGESTIONS[cause]))

    @property
    def _is_known(self) -> bool:
        return any(one.confidence == LIKELY for one in self.found)

    def _apply_rules(self) -> None:
        nbytes = sum(getattr(one, "nbytes", 0) for one in self.sets[0].inputs)
        rules = [self._unwritten, self._related, self._at_the_tail]
        if nbytes <= _MOST_BYTES:
            tests = [self._as_changed, self._dependence, self._nonfinite, self._epsilon]
            rules = [*rules[:2], *tests, rules[2], self._precision]
        for rule in rules:
            # Later tests explain less directly, and need more calls.
            if self._is_known:
                return
            rule()

    def _compare_calls(self, made: Sequence[_Set], first: Sequence[Sequence[torch.Tensor]]) -> None:
        k = self.which
        outputs, expected = [one[k] for one in first], made[0].expected[k]
        apart = max(distance(outputs[0], one) for one in outputs[1:])
        error = distance(outputs[0], expected)
        limit = mismatch.tightness(expected.dtype)
        # Atomics round differently from call to call; that explains no larger error.
        if apart > 0.05 * error or math.isinf(apart):
            self._between_calls(made[0], outputs)
            return
        if len(made) < 2 or distance(expected, made[1].expected[k]) < 10 * limit:
            return
        if distance(made[1].actual[k], expected) <= limit:
            was = "also in the first call" if error > limit else "of the first call"
            text = f"with other inputs the output is still the right one {was}"
            self._add("stale_output", LIKELY, text)

    def _between_calls(self, one: _Set, outputs: Sequence[torch.Tensor]) -> None:
        k, limit = self.which, mismatch.tightness(one.expected[self.which].dtype)
        calls = f"{len(outputs)} calls on the same inputs"
        again = []
        for _ in range(2):
            self.solution.put(one.inputs)
            again.append([self._checked(self.solution.call())[k] for _ in range(2)])
        if all(_same(pair, outputs[:2]) for pair in again):
            text = "a second call on the same tensors gives another result, and the first one again"
            is_cause = not self._wrong(outputs[0], one.expected[k]).any()
            sure = LIKELY if is_cause else POSSIBLE  # if the first call is right, it is only that
            self._add("changes_its_inputs", sure, f"{text} once the inputs are restored")
            return
        wide = [each.double() for each in outputs]
        steps = [after - before for before, after in pairwise(wide)]
        if all(distance(step, one.expected[k]) <= limit for step in steps):
            text = f"in {calls} the output grows by the expected one each time"
            self._add("accumulates_between_calls", LIKELY, text)
            return
        varies, wrong = _differ(outputs[0], outputs[1]), _differ(outputs[0], outputs[0])
        for each in outputs:
            varies |= _differ(outputs[0], each)
            wrong |= self._wrong(each, one.expected[k])
        share = float((varies & wrong).sum()) / max(1, int(wrong.sum()))
        text = (
            f"{int(varies.sum()):,} of {varies.numel():,} elements differ between {calls}; "
            "those of the reference do not"
        )
        self._add("nondeterministic", LIKELY if share >= 0.5 else POSSIBLE, text)

    def _unwritten(self) -> None:
        from flashinfer_bench.tensors import allocate_outputs

        if not self.solution.destination_passing_style:
            return
        k, one = self.which, self.sets[0]
        poison = allocate_outputs(self.definition, self.axes)[k]
        if poison.element_size() > 8 or str(poison.dtype) == "torch.bool":
            return
        held = bits(one.actual[k]) == bits(poison)
        held &= ~(bits(one.expected[k]) == bits(poison))
        wrong = self._map(one, k)
        count, total = int(held.sum()), held.numel()
        if not count or count < 0.9 * wrong.wrong:
            return
        text = (
            f"{count:,} of {total:,} elements still have the value that was there before the call"
        )
        if any(each.pattern in ("tail", "last") for each in wrong.dimensions):
            self._add("missing_tail", LIKELY, f"{text}: {wrong.where}")
        else:
            hint = "not written, or added to without being set to zero"
            self._add("uninitialised_output", LIKELY, f"{text} ({hint}): {wrong.where}")

    def _related(self) -> None:
        k = self.which
        names = self.definition.inputs
        both = []
        for one in self.sets:
            inputs = dict(zip(names, one.inputs, strict=True))
            both.append(relations(one.actual[k], one.expected[k], inputs))
        for each in both[0][:3]:
            alike = [one for one in both[-1] if one.kind == each.kind]
            if each.kind in ("scaled", "offset", "constant"):
                alike = [one for one in alike if math.isclose(one.value, each.value, rel_tol=0.01)]
            cause, text = _RELATED[each.kind], each.text
            # A number for each row or column is a description, which other tests may explain.
            is_sure = bool(alike) and len(both) == 2 and cause not in _DESCRIPTIONS
            if each.kind == "scaled":
                near_by = (text for value, text in factors(self._sizes)
                           if math.isclose(value, each.value, rel_tol=2e-3))  # fmt: skip
                text += "".join(f", which is {one}" for one in islice(near_by, 1))
            self._add(cause, LIKELY if is_sure else POSSIBLE, text)

    @property
    def _sizes(self) -> dict[str, int]:
        known = {**self.definition.const_axes, **self.axes}
        return {name: size for name, size in known.items() if size > 1}

    def _at_the_tail(self) -> None:
        wrong = [one for one in self.sets if self._is_wrong(one)]
        found = [self._tail_of(self._map(one, self.which)) for one in wrong]
        first = found[0]
        if first is None:
            return
        starts = {one.ranges[0][0] for one in found if one is not None}
        # Values that are computed may be wrong there for other reasons.
        is_constant = all(self._is_constant_where_wrong(one) for one in wrong)
        is_sure = len(found) == 2 and len(starts) == 1 and None not in found and is_constant
        is_sure = is_sure and first.block >= 8
        text = f"only these are wrong: {first.text}{', all with one value' * is_constant}"
        self._add("missing_tail", LIKELY if is_sure else POSSIBLE, text)

    @staticmethod
    def _tail_of(where: MismatchMap) -> Optional[Dimension]:
        """Return the dimension whose last indices are wrong, in all of the others."""
        partial = [one for one in where.dimensions if one.text]
        is_tail = len(partial) == 1 and partial[0].pattern in ("tail", "last")
        return partial[0] if is_tail else None

    def _is_constant_where_wrong(self, one: _Set) -> bool:
        actual, expected = one.actual[self.which], one.expected[self.which]
        values = mismatch.plain(actual)[self._wrong(actual, expected)]
        return len(values) > 0 and bool(((values == values[0]) | (values != values)).all())

    # ------------------------------------------------------- the reference on changed inputs

    def _as_changed(self) -> None:
        """Look for a change of the inputs with which the reference gives the wrong output."""
        fits = [Fit(one.actual[self.which], one.expected[self.which]) for one in self.sets]
        if not fits[0].varies:
            return
        for number, change in enumerate(self._changes(0)):
            if not self._explains(change, fits[0]):
                continue
            rivals = (change._replace(inputs=each) for each in change.rivals)
            if any(self._explains(each, fits[0]) for each in rivals):
                continue
            is_sure = len(self.sets) == 2 and self._explains(
                next(islice(self._changes(1), number, None)), fits[1]
            )
            self._add(change.cause, LIKELY if is_sure else POSSIBLE, change.text)
            if is_sure:
                return

    def _explains(self, change: Change, fit: Fit) -> bool:
        predicted = self._reference_on(change.inputs)
        if predicted is None or predicted.ndim == 0:
            return False
        try:
            predicted = change.undo(predicted)
        except (RuntimeError, IndexError):  # its shape is not as it was expected
            return False
        return fit.takes(predicted)

    def _changes(self, number: int) -> Iterator[Change]:
        one, asked = self.sets[number], self.definition.inputs
        fixed = [
            name
            for name, value in zip(asked, one.inputs, strict=True)
            if not isinstance(self.workload.inputs.get(name), RandomInput) and not is_float(value)
        ]
        shapes = {name: spec.shape or () for name, spec in asked.items()}
        output = tuple(one.expected[self.which].shape)
        return InputChanges(one.inputs, shapes, self._sizes, output, fixed).all()

    def _reference_on(self, inputs: Sequence[Any]) -> Optional[torch.Tensor]:
        """Return what the reference makes of unusual inputs; None if it refuses them."""
        try:
            outputs = as_tensors(self.reference.run(inputs))
        except CandidateError as error:
            logger.debug("the reference fails on changed inputs: %s", error)
            return None
        return outputs[self.which] if len(outputs) == len(self.definition.outputs) else None

    # ------------------------------------------------------- which inputs the output depends on

    def _dependence(self) -> None:
        one, k = self.sets[0], self.which
        if len(self.sets) < 2:
            return
        import torch

        actual = self._checked(self.solution.run(one.inputs))[k]

        def effect(inputs: list[Any]) -> Optional[_Effect]:
            both = self._both(inputs)
            if both is None or both.expected[0].shape != one.expected[k].shape:
                return None
            pairs = (both.actual[0], actual), (both.expected[0], one.expected[k])
            return _Effect(*(test(*pair) for pair in pairs for test in (_differ, self._wrong)))

        for number, (label, spec) in enumerate(self.definition.inputs.items()):
            source = self.workload.inputs.get(label)
            value, other = one.inputs[number], self.sets[1].inputs[number]
            if not isinstance(source, RandomInput) or not isinstance(value, torch.Tensor):
                continue

            def having(part: torch.Tensor, number: int = number) -> list[Any]:
                return [part if n == number else each for n, each in enumerate(one.inputs)]

            seen = effect(having(other))
            if seen is None:
                continue
            if not bool(seen.own.any()) and float(seen.right_clearly.double().mean()) > _SLIGHT:
                text = f"the output does not change with input {label!r}, the reference's does"
                self._add("ignored_input", LIKELY, text)
                return
            for dim, axis in enumerate(spec.shape or ()):
                self._along(label, axis, dim, value, other, lambda part: effect(having(part)))
                if self._is_known:
                    return

    def _along(
        self,
        label: str,
        axis: str,
        dim: int,
        value: torch.Tensor,
        other: torch.Tensor,
        effect: Callable[[torch.Tensor], Optional[_Effect]],
    ) -> None:
        size = value.shape[dim]
        if size < 3:
            return

        def changed(which: str, count: int) -> Optional[_Effect]:
            part, first = value.clone(), size - count if which == "last" else 0
            part.narrow(dim, first, count).copy_(other.narrow(dim, first, count))
            return effect(part)

        last, first = changed("last", 1), changed("first", 1)
        if last is None or first is None:
            return
        ends = {"last": last, "first": first}
        where = f"axis {axis!r} (size {size}) of input {label!r}"
        for which, one in ends.items():
            if bool(one.own.any()) or not bool(one.right_clearly.any()):
                continue
            unread, most = 1, size  # the largest part at this end that has no effect
            while unread < most:
                middle = (unread + most + 1) // 2
                part = changed(which, middle)
                has_effect = part is None or bool(part.own.any())
                unread, most = (unread, middle - 1) if has_effect else (middle, most)
            span = f"{size - unread} to {size - 1}" if which == "last" else f"0 to {unread - 1}"
            places = self._map(self.sets[0], self.which).dimensions
            tails = [each.axis for each in places if each.pattern in ("tail", "last")]
            text = f"indices {span} of {where} affect the reference's output, but not this one"
            is_tail = axis in tails and which == "last"
            # In a sum each index affects much of the output; where indices select, it need not.
            is_sure = is_tail or float(one.right_clearly.double().mean()) > 0.2
            sure = LIKELY if is_sure else POSSIBLE
            self._add("missing_tail" if is_tail else "reduction_extent", sure, text)
            return
        self._too_much(where, ends)

    def _too_much(self, where: str, ends: dict[str, _Effect]) -> None:
        """Look for elements that depend on what the reference does not use for them."""
        extra = {
            which: float((one.own_clearly & ~one.right).double().mean())
            for which, one in ends.items()
        }
        which = max(extra, key=lambda one: extra[one])
        if extra[which] <= _SLIGHT:
            return
        counts = {name: int(one.right.sum()) for name, one in ends.items()}
        text = (
            f"{100 * extra[which]:.3g} % of the elements change with the {which} index of {where}; "
            "in the reference they do not"
        )
        # In the reference one end has a wide effect, in the solution both: a mask is missing.
        other = "first" if which == "last" else "last"
        is_mask = counts[which] == 0 or counts[other] >= 2 * counts[which]
        lacks = max(float((one.right_clearly & ~one.own).double().mean()) for one in ends.values())
        if is_mask and max(extra[other], lacks) <= _SLIGHT:
            self._add("missing_mask", LIKELY, text)
        else:
            self._add("wrong_dependence", POSSIBLE, text)

    # ------------------------------------------------------- size and precision of numbers

    def _scaled(self, factor: float, which: Optional[int] = None) -> Optional[_Set]:
        """Return both sides with float inputs, or one of them, multiplied by a power of two."""
        return self._both(
            [each * factor if is_float(each) and which in (None, place) else each
             for place, each in enumerate(self.sets[0].inputs)]
        )  # fmt: skip

    def _both(self, inputs: list[Any]) -> Optional[_Set]:
        expected = self._reference_on(inputs)
        if expected is None:
            return None
        outputs = self._checked(self.solution.run(inputs))
        return _Set(inputs, [expected], [outputs[self.which]])

    def _nonfinite(self) -> None:
        where = self._map(self.sets[0], self.which)
        if not where.nan + where.inf:
            return
        small = self._scaled(2.0**-8)
        if small is None:
            return
        if bool((small.actual[0].isfinite() | ~small.expected[0].isfinite()).all()):
            text = (
                f"{where.nan:,} NaN and {where.inf:,} inf vanish if the inputs are 256 times less"
            )
            self._add("overflow", LIKELY, text)
            return
        noise = self._both([_noise(each) for each in self.sets[0].inputs])
        if noise is not None and bool(noise.actual[0].isfinite().all()):
            text = f"{where.nan:,} NaN and {where.inf:,} inf do not occur with random normal inputs"
            self._add("epsilon", POSSIBLE, text)

    def _epsilon(self) -> None:
        one = self.sets[0]
        here = distance(one.actual[self.which], one.expected[self.which])
        kinds = [each.kind for each in relations(one.actual[self.which], one.expected[self.which])]
        if not math.isfinite(here) or "row_scaled" not in kinds:  # an error of a denominator
            return
        for place, (label, each) in enumerate(zip(self.definition.inputs, one.inputs, strict=True)):
            if not is_float(each) or each.ndim < 2:
                continue
            sides = [self._scaled(factor, place) for factor in (64.0, 0.25)]
            if any(side is None for side in sides):
                continue
            large, small = (distance(side.actual[0], side.expected[0]) for side in sides if side)
            if large < here / 30 and small >= 1.2 * here:
                text = (
                    f"the relative error is {here:.2g}; with input {label!r} 64 times as large it "
                    f"is {large:.2g}, with a quarter {small:.2g}"
                )
                # Squares grow by 4096; a term that is added to them vanishes like that.
                self._add("epsilon", LIKELY if large < here / 500 else POSSIBLE, text)
                return

    def _precision(self) -> None:
        one, k = self.sets[0], self.which
        actual, expected = one.actual[k], one.expected[k]
        here = distance(actual, expected)
        if not expected.dtype.is_floating_point or not 1e-6 < here < 0.2:
            return
        places = self._map(one, k).dimensions
        is_everywhere = all(each.pattern in ("all", "scattered") for each in places)
        if len(self.sets) < 2 or not is_everywhere or self._is_repeated():
            return
        grid = mismatch.grid_of(actual, expected)
        told = f"all values are those of {grid}; " if grid else ""
        whole = self._both([_ternary(each) for each in one.inputs])
        if whole is not None and not bool(
            (whole.expected[0] == whole.expected[0].flatten()[0]).all()
        ):
            exact = distance(whole.actual[0], whole.expected[0])
            if exact < min(1e-6, here / 100):
                text = f"{told}on inputs -1, 0 and 1, which need no rounding, the outputs are equal"
                self._add("low_precision", LIKELY, f"{text}; else the error is {here:.2g}")
                return
        if grid:
            text = f"{told}errors are small ({here:.2g} of the norm) and in no pattern"
            self._add("low_precision", POSSIBLE, text)

    def _is_repeated(self) -> bool:
        """Return whether errors lie at the same places for other inputs, unlike rounding."""
        import torch

        errors = []
        for one in self.sets:
            expected = one.expected[self.which].double()
            error, scale = one.actual[self.which].double() - expected, expected.abs()
            relative = error / (scale + 1e-3 * scale.mean())
            errors.append(torch.stack((error.flatten(), relative.flatten())).nan_to_num())
        alike = torch.nn.functional.cosine_similarity(errors[0], errors[1], dim=1)
        return bool((alike.abs() > 0.5).any())


_RELATED = {
    "constant": "constant_output",
    "input": "identity_output",
    "transposed": "transposed_output",
    "shifted": "shifted",
    "reordered": "wrong_order",
    "repeated": "wrong_order",
    "negated": "sign_flipped",
    "scaled": "missing_scale",
    "offset": "missing_offset",
    "row_scaled": "row_normalisation",
    "row_offset": "row_normalisation",
    "column_scaled": "column_factor",
    "column_offset": "column_factor",
    "clamped": "saturation",
    "wrapped": "integer_wraparound",
}


_DESCRIPTIONS = ("row_normalisation", "column_factor")


def _same(left: Iterable[torch.Tensor], right: Iterable[torch.Tensor]) -> bool:
    return all(not bool(_differ(a, b).any()) for a, b in zip(left, right, strict=True))


def _differ(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return ~mismatch.equal(mismatch.plain(left), mismatch.plain(right))


def _noise(value: Any) -> Any:
    import torch

    if not is_float(value):
        return value
    generator = torch.Generator().manual_seed(value.numel())
    return torch.randn(value.shape, generator=generator).to(value.dtype)


def _ternary(value: Any) -> Any:
    """Return -1, 0 and 1 instead of floats: their short sums are exact in every type."""
    return value.float().clamp(-1, 1).round().to(value.dtype) if is_float(value) else value
