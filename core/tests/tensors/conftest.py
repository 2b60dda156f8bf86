"""Definitions and workloads to try things on."""

from typing import Any

import pytest

from flashinfer_bench.data import Definition, DType, Workload


def tensor(dtype="float32", *shape):
    return {"shape": list(shape), "dtype": dtype}


@pytest.fixture
def make_definition():
    """Return a function that makes a definition; tensors are of shape [n, 4] unless given."""

    def make(inputs=None, outputs=None, *, name="op_n4", op_type="op", axes=None):
        return Definition(
            name=name,
            op_type=op_type,
            axes=axes or {"n": {"type": "var"}, "k": {"type": "const", "value": 4}},
            inputs=inputs or {"x": tensor("float32", "n", "k")},
            outputs=outputs or {"out": tensor("float32", "n", "k")},
            reference="def run(*args):\n    return args[0]\n",
        )

    return make


@pytest.fixture
def make_workload():
    """Return a function that makes a workload; every input is random unless given."""

    def make(definition, axes=None, *, uuid="workload-1", **inputs):
        sources = {name: {"type": "random"} for name in definition.inputs} | inputs
        return Workload(axes={"n": 3} if axes is None else axes, inputs=sources, uuid=uuid)

    return make


@pytest.fixture(params=[dtype.value for dtype in DType])
def dtype(request):
    """Each element type of the format."""
    return str(request.param)
