"""From a definition to the declaration of a C function."""

from __future__ import annotations

import pytest
from flashinfer_bench.data import DType

from fib_builder_example.prototype import (
    C_TYPES,
    header,
    parameters_of,
    prototype,
)


def test_inputs_then_outputs_then_variable_axes(make_definition):
    definition = make_definition(
        axes={"b": {"type": "var"}, "k": {"type": "const", "value": 4}, "a": {"type": "var"}},
        inputs={
            "n": {"shape": None, "dtype": "int32"},
            "x": {"shape": ["a", "k"], "dtype": "float16"},
        },
        outputs={
            "y": {"shape": ["b"], "dtype": "bool"},
            "total": {"shape": None, "dtype": "float32"},
        },
        reference="def run(n, x):\n    return x, x\n",
    )
    assert prototype("f", parameters_of(definition)) == (
        "void f(int32_t n, const uint16_t *x, bool *y, float *total, int64_t b, int64_t a);"
    )


def test_every_dtype_has_a_type():
    assert set(C_TYPES) == {str(dtype.value) for dtype in DType}


@pytest.mark.parametrize(
    ("dtype", "scalar", "tensor"),
    [
        ("float32", "float", "const float *"),
        ("float16", "float", "const uint16_t *"),
        ("bfloat16", "float", "const uint16_t *"),
        ("float8_e4m3fn", "float", "const uint8_t *"),
        ("int64", "int64_t", "const int64_t *"),
        ("int8", "int8_t", "const int8_t *"),
        ("bool", "bool", "const bool *"),
    ],
)
def test_a_scalar_is_a_number_and_a_tensor_is_its_bits(make_definition, dtype, scalar, tensor):
    definition = make_definition(
        inputs={
            "s": {"shape": None, "dtype": dtype},
            "t": {"shape": ["tokens"], "dtype": dtype},
        },
        reference="def run(s, t):\n    return t\n",
    )
    first, second, *_ = parameters_of(definition)
    assert (first.declared, second.declared) == (scalar, tensor)


def test_constant_axes_are_macros_where_their_names_allow_it():
    text = header("f", (), {"hidden": 8, "head-dim": 64, "7": 7})
    assert text == "#define AXIS_hidden 8\nvoid f(void);\n"
