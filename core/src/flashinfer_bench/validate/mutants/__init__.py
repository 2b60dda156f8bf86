"""Wrong outputs, made of right ones, that a checker has to refuse; each one short function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.validate.mutants.case import Case
from flashinfer_bench.validate.mutants.contraction import truncated_contraction
from flashinfer_bench.validate.mutants.exchange import stale, swapped_outputs, zeros
from flashinfer_bench.validate.mutants.precision import downcast
from flashinfer_bench.validate.mutants.region import (
    dropped_tile,
    off_by_one,
    transposed,
    wrong_mask,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flashinfer_bench.validate.mutants.case import Mutation

    Mutant = Callable[[Case], Iterator[Mutation]]

MUTANTS: dict[str, Mutant] = {
    "zeros": zeros,
    "stale": stale,
    "swapped_outputs": swapped_outputs,
    "transposed": transposed,
    "dropped_tile": dropped_tile,
    "off_by_one": off_by_one,
    "wrong_mask": wrong_mask,
    "truncated_contraction": truncated_contraction,
    "downcast": downcast,
}
"""What is fed to a checker, by name, in the order in which it is tried."""

__all__ = ["MUTANTS", "Case", "Mutant"]
