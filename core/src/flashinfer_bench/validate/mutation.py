"""Testing the checker itself: whether it refuses wrong outputs on the workloads of a dataset.

The reference of each workload runs on several sets of inputs, as for a benchmark, and with the same
tolerances. Its outputs, made wrong in one way after the other, are then given to the evaluator. A
wrong output that passes in all trials has *survived*: a solution with that mistake would be
recorded as PASSED.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench.bench import BenchmarkConfig, resolve_evaluator
from flashinfer_bench.bench.evaluators.base import Trial
from flashinfer_bench.bench.judge.decidability import tightened
from flashinfer_bench.bench.judge.seeds import trial_seed
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import (
    DataError,
    RunnerError,
    RunnerFatalError,
    SelectionError,
    UnknownNameError,
)
from flashinfer_bench.validate.mutants import MUTANTS, Case
from flashinfer_bench.validate.reference import ReferenceRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flashinfer_bench.bench import Evaluator, ResolvedEvalConfig
    from flashinfer_bench.data import Definition, Workload
    from flashinfer_bench.plugins import Catalog
    from flashinfer_bench.validate.mutants.case import Mutation


@dataclass(frozen=True)
class Survivor:
    """A wrong output that passed.

    Attributes
    ----------
    mutant : str
        What was wrong with it; see `MUTANTS`.
    variant : str
        Where: the output, the axis.
    """

    mutant: str
    variant: str


@dataclass(frozen=True)
class MutationResult:
    """What came of one workload.

    Attributes
    ----------
    definition, workload : str
        Its definition's name and its own uuid.
    fed, killed : int
        How many wrong outputs the evaluator was given, and how many of them it refused.
    survivors : tuple of Survivor
        Those that passed.
    tightened : dict of str to str
        By output, why its tolerance is smaller than what the dataset or the defaults say.
    problem : str, optional
        Why nothing could be fed.
    is_broken : bool
        Whether the problem is one of the workload or its definition, not of what is missing here.
    """

    definition: str
    workload: str
    fed: int = 0
    killed: int = 0
    survivors: tuple[Survivor, ...] = ()
    tightened: dict[str, str] = field(default_factory=dict)
    problem: Optional[str] = None
    is_broken: bool = False

    @property
    def is_bad(self) -> bool:
        """Whether wrong outputs pass, or nothing can be said about any."""
        return bool(self.survivors) or self.is_broken


@dataclass(frozen=True)
class MutationTest:
    """Feeds wrong outputs to the evaluators of a dataset's workloads.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    definitions : sequence of str
        Restricts it to these; empty for all.
    config : BenchmarkConfig, optional
        The settings of the benchmark; by default the packaged ones.
    catalog : Catalog, optional
        What is installed.
    seed : int
        Of the inputs.

    Raises
    ------
    UnknownNameError
        If there is no such definition.
    SelectionError
        If there is no workload.
    """

    trace_set: TraceSet
    definitions: Sequence[str] = ()
    config: BenchmarkConfig = field(default_factory=BenchmarkConfig.default)
    catalog: Optional[Catalog] = None
    seed: int = 0

    def __post_init__(self) -> None:
        known = self.trace_set.definitions
        for name in self.definitions:
            if name not in known:
                raise UnknownNameError(f"there is no definition {name!r} in the dataset")
        if not self.workloads:
            raise SelectionError(
                "there is no workload to feed wrong outputs for",
                hint="a dataset has them in the folder workloads",
            )

    @property
    def workloads(self) -> list[tuple[Definition, Workload]]:
        """What is tested, in the order of the definitions' names."""
        names = self.definitions or sorted(self.trace_set.definitions)
        return [
            (self.trace_set.definitions[name], trace.workload)
            for name in names
            for trace in self.trace_set.workloads.get(name, [])
        ]

    def run(self) -> Iterator[MutationResult]:
        """Yield the result of one workload after the other.

        Raises
        ------
        CapabilityError
            If references cannot be run here at all.
        RunnerFatalError
            If no process can be started.
        """
        from flashinfer_bench.plugins import default_catalog

        catalog = self.catalog if self.catalog is not None else default_catalog()
        with ReferenceRuns(catalog, self.config) as references:
            for definition, workload in self.workloads:
                evaluator = resolve_evaluator(definition, self.config.evaluator, catalog=catalog)
                yield self._result(definition, workload, evaluator, references)

    def _result(
        self,
        definition: Definition,
        workload: Workload,
        evaluator: Evaluator,
        references: ReferenceRuns,
    ) -> MutationResult:
        def reference(inputs: Sequence[Any]) -> list[Any]:
            return references.call(definition, workload, inputs)

        names = definition.name, workload.uuid
        try:
            config = self.config.resolve_eval_config(definition, workload)
            trials = self._trials(definition, workload, config.num_trials, reference)
            config = tightened(definition, workload, trials, evaluator, config)
        except DataError as error:
            return MutationResult(*names, problem=f"{error.where}: {error.message}")
        except RunnerFatalError:
            raise
        except RunnerError as error:
            return MutationResult(*names, problem=error.message, is_broken=True)
        return _feed(_Checker(definition, workload, trials, evaluator, config), reference)

    def _trials(
        self,
        definition: Definition,
        workload: Workload,
        count: int,
        reference: Callable[[Sequence[Any]], list[Any]],
    ) -> tuple[Trial, ...]:
        from flashinfer_bench.tensors import generate_inputs

        trials = []
        for index in range(count):
            seed = trial_seed(self.seed, index)
            inputs = generate_inputs(definition, workload, seed=seed, root=self.trace_set.root)
            trials.append(Trial(index, seed, inputs, reference(inputs)))
        return tuple(trials)


@dataclass(frozen=True)
class _Checker:
    """Asks the evaluator whether it would let outputs of a trial pass."""

    definition: Definition
    workload: Workload
    trials: tuple[Trial, ...]
    evaluator: Evaluator
    config: ResolvedEvalConfig

    def passes(self, number: int, outputs: Sequence[Any]) -> bool:
        calls = [outputs] * self.evaluator.calls_per_trial(self.config)
        problem = self.definition, self.workload, self.trials[number]
        return self.evaluator.check(*problem, calls, self.config).passed


def _feed(checker: _Checker, reference: Callable[[Sequence[Any]], list[Any]]) -> MutationResult:
    """Feed every mutant in one trial after the other, until it is refused."""
    verdicts: dict[Survivor, bool] = {}  # True for those that have passed wherever they were wrong
    for number in range(len(checker.trials)):
        case = Case(checker.definition, checker.workload, checker.trials, number, reference)
        for mutant, mutation in _mutations(case, verdicts):
            key = Survivor(mutant, mutation.variant)
            if verdicts.get(key, True) and not case.is_right(mutation.outputs):
                verdicts[key] = checker.passes(number, mutation.outputs)
    survivors = tuple(key for key, passed in verdicts.items() if passed)
    return MutationResult(
        checker.definition.name,
        checker.workload.uuid,
        fed=len(verdicts),
        killed=len(verdicts) - len(survivors),
        survivors=survivors,
        tightened=dict(checker.config.tightened),
    )


def _mutations(case: Case, verdicts: dict[Survivor, bool]) -> Iterator[tuple[str, Mutation]]:
    """Yield the mutants of a trial; of those that were all refused before, none is made."""
    for name, mutant in MUTANTS.items():
        known = [passed for key, passed in verdicts.items() if key.mutant == name]
        if case.number == 0 or not known or any(known):
            yield from ((name, mutation) for mutation in mutant(case))


def mutate_dataset(
    root: Union[str, Path], definitions: Sequence[str] = (), **options: Any
) -> Iterator[MutationResult]:
    """Feed wrong outputs to the evaluators of a dataset; see `MutationTest`.

    Parameters
    ----------
    root : str or Path
        The dataset.
    definitions : sequence of str
        Restricts it to these.
    **options
        Further parameters of `MutationTest`.

    Yields
    ------
    MutationResult
        Of each workload.
    """
    trace_set = TraceSet.from_path(Path(root), on_error="collect")
    yield from MutationTest(trace_set, definitions, **options).run()
