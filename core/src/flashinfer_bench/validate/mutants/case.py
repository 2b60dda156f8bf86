"""What mutants are made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from flashinfer_bench.bench.dtype_tolerances import EPS, precision_of
from flashinfer_bench.bench.judge.correctness import compare
from flashinfer_bench.bench.judge.decidability import scale_of
from flashinfer_bench.bench.judge.structure import output_specs
from flashinfer_bench.bench.judge.trivial import as_declared

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from flashinfer_bench.bench.evaluators.base import Trial
    from flashinfer_bench.bench.judge.structure import OutputSpec
    from flashinfer_bench.data import Definition, Workload


class Mutation(NamedTuple):
    """Wrong outputs of one trial.

    Attributes
    ----------
    variant : str
        Tells those of one mutant apart: the output, the axis.
    outputs : list of torch.Tensor
        All outputs, as declared.
    """

    variant: str
    outputs: list[torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One trial of a workload, seen by a mutant.

    Attributes
    ----------
    definition, workload
        What is computed on what.
    trials : tuple of Trial
        All input sets with the reference's outputs.
    number : int
        Which of them is to be mutated.
    reference : callable
        Runs the reference on inputs; as slow as it is.
    """

    definition: Definition
    workload: Workload
    trials: tuple[Trial, ...]
    number: int
    reference: Callable[[Sequence[Any]], list[Any]]

    @property
    def trial(self) -> Trial:
        """The trial that is to be mutated."""
        return self.trials[self.number]

    @cached_property
    def specs(self) -> tuple[OutputSpec, ...]:
        """What the outputs have to be."""
        return output_specs(self.definition, self.workload.axes)

    @property
    def right(self) -> list[torch.Tensor]:
        """The right outputs, as declared; a new list."""
        return self.declared(self.trial.expected)

    def declared(self, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return what a reference returned in the declared dtypes."""
        return [as_declared(*pair) for pair in zip(outputs, self.specs, strict=True)]

    def with_output(self, index: int, value: torch.Tensor, variant: str = "") -> Mutation:
        """Return the right outputs but for one, which is brought into its declared dtype."""
        outputs = self.right
        outputs[index] = as_declared(value, self.specs[index])
        name = self.specs[index].name
        return Mutation(f"{name}, {variant}" if variant else name, outputs)

    def is_right(self, outputs: Sequence[torch.Tensor]) -> bool:
        """Return whether outputs are the right ones up to one rounding: no mutant then."""
        return all(map(self._same, outputs, self.right, self.specs))

    def _same(self, value: torch.Tensor, right: torch.Tensor, spec: OutputSpec) -> bool:
        eps = 0.0
        if spec.dtype.is_floating_point:
            eps = EPS[precision_of(self.definition, spec.name)]
        found = compare(value, right, atol=eps * scale_of(right) if eps else 0.0, rtol=eps)
        return found.passes(1.0)
