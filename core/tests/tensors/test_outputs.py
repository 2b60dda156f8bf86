import pytest
import torch

from flashinfer_bench.tensors import allocate_outputs, poison, to_torch_dtype

PATTERN = 0x5B


def test_shapes_and_types_are_as_declared_and_in_order(make_definition):
    definition = make_definition(
        outputs={
            "z": {"shape": ["k", "n"], "dtype": "bfloat16"},
            "a": {"shape": ["n"], "dtype": "int32"},
            "m": {"shape": ["7", "k"], "dtype": "bool"},
        }
    )
    found = allocate_outputs(definition, {"n": 5})
    assert [(tuple(t.shape), t.dtype) for t in found] == [
        ((4, 5), torch.bfloat16),
        ((5,), torch.int32),
        ((7, 4), torch.bool),
    ]


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_floats_are_nan(name):
    tensor = torch.zeros(9, dtype=to_torch_dtype(name))
    poison(tensor)
    assert tensor.float().isnan().all()


@pytest.mark.parametrize("name", ["int64", "int32", "int16", "int8", "float4_e2m1"])
def test_integers_have_a_pattern_that_no_kernel_writes(name):
    tensor = torch.empty(9, dtype=to_torch_dtype(name))
    poison(tensor)
    assert set(tensor.view(torch.uint8).tolist()) == {PATTERN}


def test_bools_alternate_so_that_neither_constant_passes():
    tensor = torch.zeros(5, dtype=torch.bool)
    poison(tensor)
    assert tensor.tolist() == [True, False, True, False, True]
