"""What a definition's reference makes of given inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.data import Definition


def run_reference(definition: Definition, inputs: Sequence[Any]) -> list[Any]:
    """Call the reference of a definition in this process.

    Parameters
    ----------
    definition : Definition
        One that the author of the tests trusts.
    inputs : sequence
        In declaration order.

    Returns
    -------
    list
        The outputs in declaration order.
    """
    from flashinfer_bench.compile import list_outputs, reference_solution
    from flashinfer_bench.compile.toolkit import load_python

    loaded = load_python(definition, reference_solution(definition), prefix="fib_conformance")
    try:
        return list_outputs(loaded.function(*inputs), definition)
    finally:
        loaded.cleaner()
