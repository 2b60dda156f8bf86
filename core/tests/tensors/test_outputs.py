from __future__ import annotations

import pytest
import torch

from flashinfer_bench.errors import DataError
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


def test_every_type_can_be_poisoned(make_definition, dtype):
    definition = make_definition(outputs={"y": {"shape": ["n", "k"], "dtype": dtype}})
    (found,) = allocate_outputs(definition, {"n": 3})
    assert tuple(found.shape) == (3, 4)
    assert found.dtype is to_torch_dtype(dtype)


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


def test_a_scalar_output_has_no_dimensions(make_definition):
    definition = make_definition(outputs={"s": {"shape": None, "dtype": "float32"}})
    (found,) = allocate_outputs(definition, {"n": 3})
    assert found.shape == ()
    assert found.isnan()


def test_empty_outputs_are_fine(make_definition, dtype):
    definition = make_definition(outputs={"y": {"shape": ["n"], "dtype": dtype}})
    (found,) = allocate_outputs(definition, {"n": 0})
    assert found.numel() == 0


def test_a_missing_axis_is_named(make_definition):
    with pytest.raises(DataError, match="'n'"):
        allocate_outputs(make_definition(), {})


class TestShifted:
    @pytest.mark.parametrize("shift", [8, 256, 4096, (1 << 20) - 256])
    def test_the_address_is_past_an_aligned_one_by_as_much(self, make_definition, dtype, shift):
        definition = make_definition(outputs={"y": {"shape": ["n", "k"], "dtype": dtype}})
        (found,) = allocate_outputs(definition, {"n": 3}, shift=shift)
        assert found.data_ptr() % 256 == shift % 256
        assert found.is_contiguous()
        assert (tuple(found.shape), found.dtype) == ((3, 4), to_torch_dtype(dtype))

    def test_it_is_poisoned_as_any_other(self, make_definition, dtype):
        definition = make_definition(outputs={"y": {"shape": ["n", "k"], "dtype": dtype}})
        plain, shifted = (allocate_outputs(definition, {"n": 3}, shift=n)[0] for n in (0, 512))
        assert torch.equal(shifted.view(torch.uint8), plain.view(torch.uint8))

    def test_what_has_no_elements(self, make_definition):
        definition = make_definition(outputs={"y": {"shape": ["n"], "dtype": "float32"}})
        assert allocate_outputs(definition, {"n": 0}, shift=256)[0].shape == (0,)

    def test_scalars(self, make_definition):
        definition = make_definition(outputs={"y": {"shape": None, "dtype": "float32"}})
        (found,) = allocate_outputs(definition, {"n": 1}, shift=256)
        assert found.shape == ()
        assert found.isnan()
