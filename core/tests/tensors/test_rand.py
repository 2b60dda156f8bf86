import hashlib

import pytest
import torch

from flashinfer_bench.tensors import derive_seed, generate, random_tensor, to_torch_dtype

FLOAT4_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def bits(tensor):
    return hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def unpack_float4(packed):
    raw = packed.view(torch.uint8)
    codes = torch.stack([raw & 15, raw >> 4], dim=-1).flatten(-2)
    signs = 1.0 - 2.0 * (codes >> 3)
    return signs * FLOAT4_VALUES[(codes & 7).long()]


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (5, 7), (2, 3, 4, 5)])
def test_shape_and_type_are_as_asked(dtype, shape):
    drawn = random_tensor(shape, dtype, seed=1)
    assert tuple(drawn.shape) == shape
    assert drawn.dtype is to_torch_dtype(dtype)
    assert drawn.is_contiguous()
    assert drawn.device.type == "cpu"


def test_the_global_generator_is_neither_read_nor_moved(dtype):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = random_tensor((33,), dtype, seed=3)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(99)
    assert bits(first) == bits(random_tensor((33,), dtype, seed=3))


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_floats_are_standard_normal(name):
    drawn = random_tensor((100_000,), name, seed=1).float()
    assert drawn.mean().abs() < 0.02
    assert (drawn.std() - 1).abs() < 0.02


def test_four_bit_floats_are_normal_rounded_to_what_four_bits_hold():
    drawn = unpack_float4(random_tensor((100_000,), "float4_e2m1", seed=1))
    assert drawn.numel() == 200_000
    assert drawn.mean().abs() < 0.03
    assert (drawn.std() - 1).abs() < 0.05
    # A standard normal lies within a quarter of zero with probability 0.197.
    assert ((drawn == 0).float().mean() - 0.197).abs() < 0.01
    assert (drawn < 0).any()
    assert (drawn > 2).any()


class TestBlocks:
    """Large tensors are drawn in blocks, on several threads."""

    @pytest.fixture(autouse=True)
    def small_blocks(self, monkeypatch):
        monkeypatch.setattr(generate, "BLOCK", 64)

    def test_the_number_of_threads_changes_nothing(self, dtype, monkeypatch):
        many = random_tensor((13, 50), dtype, seed=5)
        monkeypatch.setattr(generate.os, "cpu_count", lambda: 1)
        assert bits(many) == bits(random_tensor((13, 50), dtype, seed=5))


def test_a_derived_seed_is_the_same_in_every_release():
    # Traces record the seed: what it meant then must be what it means now.
    assert derive_seed(42, "gemm_n4096_k4096", "uuid", "A") == 5816627436256228170
