"""Defaults for cases: a sample definition, workloads, and running the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from fib_testing.records import RecordCase
from flashinfer_bench.data import Definition, RandomInput, ScalarInput, Solution, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_SIZES = (3, 5, 7, 11, 13, 17)
_SCALARS: dict[type, Any] = {bool: True, int: 3, float: 0.5}


@dataclass(frozen=True, kw_only=True)
class DefinitionCase(RecordCase):
    """Base class of the cases with a definition.

    Parameters
    ----------
    definition : Definition
        The definition.
    root : Path, optional
        Folder of the files of workloads.
    """

    definition: Definition
    root: Optional[Path] = None

    def generate(self, workload: Optional[Workload], seed: int, device: str = "cpu") -> list[Any]:
        """Return the inputs of a workload (default: `default_workload`) in declaration order."""
        from flashinfer_bench.tensors import generate_inputs

        chosen = workload or default_workload(self.definition)
        return generate_inputs(self.definition, chosen, seed=seed, root=self.root, device=device)


def sample_definition() -> Definition:
    """Return ``out = (x + y) * scale``.

    ``x``, ``y`` and ``out`` are float32 of shape ``[tokens, 8]``, ``scale`` is a float32 scalar;
    ``tokens`` varies.
    """
    matrix = {"shape": ["tokens", "hidden"], "dtype": "float32"}
    return Definition.model_validate(
        {
            "name": "sample_scaled_add_h8",
            "op_type": "sample",
            "axes": {"tokens": {"type": "var"}, "hidden": {"type": "const", "value": 8}},
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
    """Return a solution of `definition`.

    Parameters
    ----------
    definition : Definition
        Its definition.
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
    fixed = {"language": language, "target_hardware": ["any"], "entry_point": entry_point}
    return Solution.model_validate(
        {
            "name": name,
            "definition": definition.name,
            "author": "conformance",
            "spec": {**fixed, **spec},
            "sources": [{"path": path, "content": text} for path, text in sources.items()],
        }
    )


def default_workload(definition: Definition) -> Workload:
    """Return a workload with small, different sizes and random tensors.

    Parameters
    ----------
    definition : Definition
        A definition without constraints.

    Raises
    ------
    ValueError
        If it has constraints, which default sizes might violate.
    """
    from flashinfer_bench.tensors import to_python_type

    if definition.constraints:
        raise ValueError(
            f"definition {definition.name!r} has constraints on its axes "
            f"({'; '.join(definition.constraints)}): give the case a workload, or inputs"
        )
    inputs: dict[str, Any] = {
        name: RandomInput()
        if spec.shape is not None
        else ScalarInput(value=_SCALARS[to_python_type(spec.dtype)])
        for name, spec in definition.inputs.items()
    }
    axes = {name: _SIZES[i % len(_SIZES)] for i, name in enumerate(definition.var_axes)}
    return Workload(axes=axes, inputs=inputs, uuid="conformance")


def difference_of(found: Any, expected: Any, **tolerances: Any) -> str:
    """Return in a line how a tensor differs from another; empty if they are equal enough."""
    from torch.testing import assert_close

    try:
        assert_close(found, expected, equal_nan=True, **tolerances)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


def run_reference(definition: Definition, inputs: Sequence[Any]) -> list[Any]:
    """Run the trusted reference of a definition in this process.

    Parameters
    ----------
    definition : Definition
        The definition.
    inputs : sequence
        The inputs in declaration order.

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
