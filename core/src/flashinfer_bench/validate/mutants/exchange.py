"""Outputs put in the place of others: nothing, those of other inputs, those of another name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.validate.mutants.case import Mutation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.validate.mutants.case import Case


def zeros(case: Case) -> Iterator[Mutation]:
    """Return one output as it may come from the allocator: all bits 0."""
    import torch

    for index, right in enumerate(case.right):
        blank = torch.zeros_like(right.contiguous().view(torch.uint8)) if right.dim() else None
        value = torch.zeros_like(right) if blank is None else blank.view(right.dtype)
        yield case.with_output(index, value)


def stale(case: Case) -> Iterator[Mutation]:
    """Return what an earlier call with other inputs returned."""
    if len(case.trials) > 1:
        earlier = case.trials[case.number - 1]
        yield Mutation("all outputs", case.declared(earlier.expected))


def swapped_outputs(case: Case) -> Iterator[Mutation]:
    """Return two outputs of one shape and dtype in the wrong order."""
    for first, one in enumerate(case.specs):
        for second, other in enumerate(case.specs[first + 1 :], first + 1):
            if (one.shape, one.dtype) == (other.shape, other.dtype):
                outputs = case.right
                outputs[first], outputs[second] = outputs[second], outputs[first]
                yield Mutation(f"{one.name} and {other.name}", outputs)
