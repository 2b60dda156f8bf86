"""A small definition, so that the author of a builder need only write a kernel for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashinfer_bench.data import Definition, Solution

_HIDDEN = 8


def sample_definition() -> Definition:
    """Return ``out = (x + y) * scale``.

    ``x``, ``y`` and ``out`` are float32 of shape ``[tokens, 8]``, ``scale`` is a float32 scalar;
    ``tokens`` varies.
    """
    from flashinfer_bench.data import Definition

    matrix = {"shape": ["tokens", "hidden"], "dtype": "float32"}
    return Definition.model_validate(
        {
            "name": "sample_scaled_add_h8",
            "op_type": "sample",
            "axes": {"tokens": {"type": "var"}, "hidden": {"type": "const", "value": _HIDDEN}},
            "inputs": {"x": matrix, "y": matrix, "scale": {"shape": None, "dtype": "float32"}},
            "outputs": {"out": matrix},
            "reference": "def run(x, y, scale):\n    return (x + y) * scale\n",
        }
    )


def make_solution(
    definition: Definition,
    sources: Mapping[str, str],
    entry_point: str,
    *,
    language: str,
    name: str = "sample_solution",
    **spec: Any,
) -> Solution:
    """Make a solution of `definition`.

    Parameters
    ----------
    definition : Definition
        What it computes.
    sources : mapping of str to str
        Content of each file.
    entry_point : str
        ``"file::symbol"``.
    language : str
        Its language.
    name : str
        Its name.
    **spec
        Further fields of `BuildSpec`: ``binding``, ``destination_passing_style``, …

    Returns
    -------
    Solution
        For any hardware, unless `spec` says otherwise.
    """
    from flashinfer_bench.data import Solution

    return Solution.model_validate(
        {
            "name": name,
            "definition": definition.name,
            "author": "conformance",
            "spec": {
                "language": language,
                "target_hardware": ["any"],
                "entry_point": entry_point,
                **spec,
            },
            "sources": [{"path": path, "content": text} for path, text in sources.items()],
        }
    )
