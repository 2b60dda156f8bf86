from __future__ import annotations

import pytest
import torch

from flashinfer_bench.data import DType
from flashinfer_bench.errors import DataError
from flashinfer_bench.tensors import dtype_name, to_python_type, to_torch_dtype
from flashinfer_bench.tensors.dtypes import is_bool, is_float, is_integer


@pytest.mark.parametrize("name", [each.value for each in DType])
def test_every_type_of_the_format_has_a_torch_type_and_back(name):
    expected = getattr(torch, "float4_e2m1fn_x2" if name == "float4_e2m1" else name)
    assert to_torch_dtype(name) is expected
    assert to_torch_dtype(DType(name)) is expected
    assert dtype_name(expected) == name


@pytest.mark.parametrize("name", ["", "float", "Float32", "nn", "complex", "float8_e4m3", "int4"])
def test_an_unknown_name_is_refused_with_the_known_ones(name):
    with pytest.raises(DataError, match=r"known are .*bfloat16") as caught:
        to_torch_dtype(name)
    assert repr(name) in str(caught.value)


def test_each_type_is_a_float_an_integer_or_a_bool(dtype):
    assert [is_float(dtype), is_integer(dtype), is_bool(dtype)].count(True) == 1
    assert is_float(dtype) == to_torch_dtype(dtype).is_floating_point


def test_python_types(dtype):
    expected = bool if is_bool(dtype) else int if is_integer(dtype) else float
    assert to_python_type(dtype) is expected
    assert to_python_type(DType(dtype)) is expected
