import pytest
import torch

from flashinfer_bench.data import DType
from flashinfer_bench.errors import DataError
from flashinfer_bench.tensors import dtype_name, to_torch_dtype


def test_every_type_of_the_format_has_a_torch_type_and_back(dtype):
    expected = getattr(torch, "float4_e2m1fn_x2" if dtype == "float4_e2m1" else dtype)
    assert to_torch_dtype(dtype) is expected
    assert to_torch_dtype(DType(dtype)) is expected
    assert dtype_name(expected) == dtype


@pytest.mark.parametrize("name", ["", "float", "Float32", "nn", "complex", "float8_e4m3", "int4"])
def test_an_unknown_name_is_refused_with_the_known_ones(name):
    with pytest.raises(DataError, match=r"known: .*bfloat16") as caught:
        to_torch_dtype(name)
    assert repr(name) in str(caught.value)
