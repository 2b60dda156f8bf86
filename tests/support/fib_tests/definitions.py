"""Definitions made of the shapes of their inputs and outputs."""

from __future__ import annotations

from typing import Any

from flashinfer_bench.data import Definition


def tensor(*shape: str, dtype: str = "float16") -> dict[str, Any]:
    return {"shape": list(shape), "dtype": dtype}


def definition(
    name: str,
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    constraints: tuple[str, ...] = (),
    *,
    op_type: str = "op",
    **constants: int,
) -> Definition:
    """Return a definition that nothing computes; axes that are no constants are variable."""
    axes = {
        axis: {"type": "var"}
        for spec in (inputs | outputs).values()
        for axis in spec["shape"] or ()
    }
    axes |= {axis: {"type": "const", "value": constants[axis]} for axis in axes.keys() & constants}
    return Definition.model_validate(
        {
            "name": name,
            "op_type": op_type,
            "axes": axes,
            "inputs": inputs,
            "outputs": outputs,
            "constraints": list(constraints),
            "reference": "def run(*args):\n    pass\n",
        }
    )
