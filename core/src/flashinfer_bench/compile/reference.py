"""A definition's reference implementation, as a solution."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashinfer_bench.data import Definition, Solution

REFERENCE_AUTHOR = "flashinfer_bench"

_FILE = "reference.py"


def reference_solution(definition: Definition) -> Solution:
    """Return a solution that consists of the definition's reference code.

    Parameters
    ----------
    definition : Definition
        Its ``reference`` has a function ``run`` that returns the outputs.

    Returns
    -------
    Solution
        Named ``<definition>__reference``; a value-returning Python solution for any hardware.
    """
    from flashinfer_bench.data import BuildSpec, Solution, SourceFile

    return Solution(
        name=f"{definition.name}__reference",
        definition=definition.name,
        author=REFERENCE_AUTHOR,
        spec=BuildSpec(
            language="python",
            target_hardware=["any"],
            entry_point=f"{_FILE}::run",
            destination_passing_style=False,
        ),
        sources=[SourceFile(path=_FILE, content=definition.reference)],
    )
