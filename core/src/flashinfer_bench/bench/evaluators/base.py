"""What an evaluator is: the part of the judge that knows what a correct output looks like."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.data import Correctness, Definition, EvaluationStatus, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from flashinfer_bench.bench.config import ResolvedEvalConfig


@dataclass(frozen=True)
class Trial:
    """One set of inputs and what the reference made of it.

    Attributes
    ----------
    index : int
        Number of the set, from 0.
    seed : int
        Seed that the inputs were made from.
    inputs : list
        CPU tensors and Python scalars in the order of the definition's inputs.
    expected : list of torch.Tensor
        The reference's outputs on the CPU, in the order of the definition's outputs; scalars are
        0-d tensors.
    """

    index: int
    seed: int
    inputs: list[Any]
    expected: list[torch.Tensor]


@dataclass(frozen=True)
class Check:
    """What an evaluator says about the outputs of one trial.

    Attributes
    ----------
    status : EvaluationStatus
        ``PASSED``, ``INCORRECT_NUMERICAL``, ``INCORRECT_SHAPE`` or ``INCORRECT_DTYPE``.
    correctness : Correctness, optional
        Required for the first two, absent for the others.
    message : str
        Why it did not pass.
    """

    status: EvaluationStatus
    correctness: Optional[Correctness] = None
    message: str = ""

    @classmethod
    def of(cls, correctness: Correctness, problems: Sequence[str]) -> Check:
        """Return a passed check, or a failed one if there are problems."""
        if not problems:
            return cls(EvaluationStatus.PASSED, correctness)
        return cls(EvaluationStatus.INCORRECT_NUMERICAL, correctness, "; ".join(problems))

    @property
    def passed(self) -> bool:
        """Whether the outputs are right."""
        return self.status == EvaluationStatus.PASSED


class Evaluator(ABC):
    """Decides whether outputs are correct. Trusted code, in the judge's process.

    Attributes
    ----------
    name : str
        Name under which it is registered; goes into every trace.
    version : str
        Changes whenever a verdict may change.
    one_answer : bool
        Whether only what the reference returned, up to rounding, is right. Where that is not so, as
        in sampling, zeros may be a right answer, and no workload is undecidable for that.
    any_device : bool
        Whether `check_timed` takes outputs and expected outputs that are on a device, both on the
        same one.
    """

    name: str = ""
    version: str = "1"
    one_answer: bool = True
    any_device: bool = False

    def check_settings(self, config: ResolvedEvalConfig) -> None:
        """Raise if a setting that only this evaluator knows is not allowed.

        It is asked before anything runs. Settings that it does not know are not its concern.

        Raises
        ------
        ConfigError
            Naming the key, as in ``extra.sampling_tvd_threshold``.
        """
        del config

    def calls_per_trial(self, config: ResolvedEvalConfig) -> int:
        """Return how often a solution is called on each set of inputs; more than once to sample."""
        del config
        return 1

    @abstractmethod
    def check(
        self,
        definition: Definition,
        workload: Workload,
        trial: Trial,
        calls: Sequence[Sequence[Any]],
        config: ResolvedEvalConfig,
    ) -> Check:
        """Judge what a solution returned for one set of inputs.

        Parameters
        ----------
        definition : Definition
            What is computed.
        workload : Workload
            Gives the axes.
        trial : Trial
            Inputs and expected outputs.
        calls : sequence of sequence
            For each call its outputs: CPU tensors and Python scalars, of any number, shape and
            dtype, from untrusted code.
        config : ResolvedEvalConfig
            Tolerances.
        """

    def check_timed(
        self,
        definition: Definition,
        workload: Workload,
        trial: Trial,
        outputs: Sequence[Any],
        config: ResolvedEvalConfig,
    ) -> Check:
        """Judge what a single call, which was timed, left behind.

        It is asked about some timed calls, after the verdict of `check`. By default it is `check`
        with that one call. An evaluator that draws conclusions from many calls overrides it, and
        says what one call alone can show.

        Parameters
        ----------
        definition, workload, trial, config
            As in `check`; the trial's inputs are those that this call got, and its expected
            outputs belong to them.
        outputs : sequence
            What the call returned, as untrusted as that of any other.
        """
        return self.check(definition, workload, trial, [outputs], config)

    @property
    def finds_patterns(self) -> bool:
        """Whether it compares the outputs of all timed calls together."""
        return type(self).find_pattern is not Evaluator.find_pattern

    def find_pattern(
        self,
        definition: Definition,
        calls: Sequence[tuple[Trial, Sequence[Any]]],
        config: ResolvedEvalConfig,
    ) -> Optional[str]:
        """Return what is wrong with timed calls together, each of which is right; None if nothing.

        By default nothing is. An evaluator of random outputs looks at how often each comes.

        Parameters
        ----------
        definition, config
            As in `check`.
        calls : sequence of (Trial, sequence)
            What each of them got, and what it returned, as in `check_timed`.
        """
        del definition, calls, config
        return None

    def combine(self, checks: Sequence[Check]) -> Correctness:
        """Merge the checks of all trials, the last of which is the only one that may have failed.

        Returns
        -------
        Correctness
            The largest errors of any trial, and the ``extra`` of the worst one.
        """
        measured = [check.correctness for check in checks if check.correctness is not None]
        worst = min(measured, key=lambda item: float((item.extra or {}).get("matched_ratio", 1.0)))
        return Correctness(
            max_relative_error=max(item.max_relative_error for item in measured),
            max_absolute_error=max(item.max_absolute_error for item in measured),
            extra=worst.extra,
        )
