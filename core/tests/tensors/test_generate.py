import itertools
from types import MappingProxyType

import pytest
import torch

from flashinfer_bench.data.blobs import save_tensors
from flashinfer_bench.errors import BlobError, DataError, UnsafePathError
from flashinfer_bench.tensors import (
    allocate_outputs,
    derive_seed,
    generate,
    generate_inputs,
    poison,
    random_tensor,
    to_torch_dtype,
)

FLOAT4_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def matrix(dtype="float32"):
    return {"shape": ["n", "k"], "dtype": dtype}


def scalar(dtype):
    return {"shape": None, "dtype": dtype}


def from_file(path="blob/t.safetensors"):
    return {"type": "safetensors", "path": path, "tensor_key": "t"}


def same(left, right):
    if not isinstance(left, torch.Tensor):
        return left == right
    return left.dtype is right.dtype and torch.equal(
        left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8)
    )


class TestDeterminism:
    INPUTS = MappingProxyType(
        {"x": matrix(), "y": matrix("bfloat16"), "s": scalar("float32"), "i": matrix("int64")}
    )

    def generate(self, make_definition, make_workload, *, names=None, seed=1, uuid="u", **kwargs):
        names = names or list(self.INPUTS)
        definition = make_definition({name: self.INPUTS[name] for name in names}, **kwargs)
        values = generate_inputs(
            definition, make_workload(definition, uuid=uuid), seed=seed, root=None
        )
        return dict(zip(names, values, strict=True))

    def test_the_order_and_the_presence_of_other_inputs_change_nothing(
        self, make_definition, make_workload
    ):
        full = self.generate(make_definition, make_workload)
        for size in (1, 2, 4):
            for names in itertools.permutations(self.INPUTS, size):
                part = self.generate(make_definition, make_workload, names=names)
                assert all(same(part[name], full[name]) for name in names)

    @pytest.mark.parametrize("change", [{"seed": 2}, {"uuid": "v"}, {"name": "other"}])
    def test_seed_workload_and_definition_change_every_input(
        self, make_definition, make_workload, change
    ):
        first = self.generate(make_definition, make_workload)
        second = self.generate(make_definition, make_workload, **change)
        assert not any(same(first[name], second[name]) for name in first)


@pytest.fixture
def one(make_definition, make_workload):
    """Return a function that generates the only input of a definition, ``x``."""

    def make(spec, source=None, root=None, op_type="op", name="x"):
        definition = make_definition({name: spec}, op_type=op_type)
        workload = make_workload(definition, **({name: source} if source else {}))
        (value,) = generate_inputs(definition, workload, seed=1, root=root)
        return value

    return make


def test_probs_of_a_sampling_definition_are_probabilities(one):
    probs = one(matrix(), op_type="sampling", name="probs")
    assert (probs >= 0).all()
    assert torch.allclose(probs.sum(-1), torch.ones(3))
    assert len({tuple(row.tolist()) for row in probs}) == 3


@pytest.mark.parametrize(
    ("dtype", "given", "expected"),
    [
        ("float32", 0.125, 0.125),
        ("float32", 3, 3.0),
        ("bfloat16", True, 1.0),
        ("int32", 7, 7),
        ("int64", 3.0, 3),
        ("int8", -1, -1),
        ("int32", True, 1),
        ("bool", True, True),
        ("bool", 0, False),
        ("bool", 1.0, True),
        ("float32", float("inf"), float("inf")),
    ],
)
def test_a_scalar_gets_the_declared_type(one, dtype, given, expected):
    value = one(scalar(dtype), {"type": "scalar", "value": given})
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("spec", "given", "told"),
    [
        (scalar("int32"), 2.5, "2.5 is not a value of dtype int32"),
        (scalar("bool"), 2, "2 is not a value of dtype bool"),
        (scalar("bool"), 0.5, "0.5 is not a value of dtype bool"),
        (scalar("int64"), float("inf"), "inf is not a value of dtype int64"),
        (scalar("int8"), -1e-9, "-1e-09 is not a value of dtype int8"),
        (matrix(), 1.0, r"tensor of shape \[3, 4\], not a scalar(.|\n)*safetensors"),
    ],
)
def test_a_value_that_would_change_is_refused(one, spec, given, told):
    with pytest.raises(DataError, match=told) as caught:
        one(spec, {"type": "scalar", "value": given})
    assert caught.value.field == "inputs.x"


def test_a_missing_input_is_named(make_definition, make_workload):
    workload = make_workload(make_definition())
    definition = make_definition({"x": matrix(), "w": matrix()})
    with pytest.raises(DataError, match="does not specify input 'w'") as caught:
        generate_inputs(definition, workload, seed=1, root=None)
    assert caught.value.field == "inputs.w"


# ------------------------------------------------------------------------------------------ files


@pytest.fixture
def read(one, tmp_path):
    """Return a function that reads an input from a file with this content, or tensor ``t``."""

    def run(content, spec, source=None):
        path = tmp_path / "blob" / "t.safetensors"
        if isinstance(content, bytes):
            path.parent.mkdir()
            path.write_bytes(content)
        else:
            save_tensors(path, content if isinstance(content, dict) else {"t": content})
        return one(spec, source or from_file(), root=tmp_path)

    return run


def test_every_type_is_read_as_it_was_written(read, dtype):
    content = random_tensor((3, 4), dtype, seed=9)
    assert same(read(content, matrix(dtype)), content)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_scalar_may_be_stored_as_any_tensor_of_one_element(read, shape):
    value = read(torch.full(shape, 2.5), scalar("float32"))
    assert value == 2.5
    assert type(value) is float


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            torch.ones(4, 3),
            "tensor 't' must be shape [3, 4] of float32, but the file has shape [4, 3] of float32",
        ),
        (
            {"kv_indptr": torch.ones(2), "kv_indices": torch.ones(2)},
            "no tensor 't' in the file; it has kv_indices, kv_indptr",
        ),
        (b"", "not a readable safetensors file"),
        (b"not tensors at all", "not a readable safetensors file"),
        ((2**62).to_bytes(8, "little") + b"{}", "not a readable safetensors file"),
    ],
    ids=["shape", "key", "empty", "text", "huge header"],
)
def test_a_file_that_does_not_fit_is_refused(read, tmp_path, content, told):
    with pytest.raises(BlobError) as caught:
        read(content, matrix())
    assert told in str(caught.value)
    assert caught.value.path == tmp_path / "blob" / "t.safetensors"


@pytest.mark.parametrize("path", ["../t.safetensors", "/etc/passwd", "blob/../../t"])
def test_a_path_out_of_the_dataset_is_refused(read, path):
    with pytest.raises(UnsafePathError):
        read(torch.ones(3, 4), matrix(), from_file(path))


# --------------------------------------------------------------------------------- random tensors


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
    assert same(first, random_tensor((33,), dtype, seed=3))


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_floats_are_standard_normal(name):
    drawn = random_tensor((100_000,), name, seed=1).float()
    assert drawn.mean().abs() < 0.02
    assert (drawn.std() - 1).abs() < 0.02


def test_four_bit_floats_are_normal_rounded_to_what_four_bits_hold():
    raw = random_tensor((100_000,), "float4_e2m1", seed=1).view(torch.uint8)
    codes = torch.cat([raw & 15, raw >> 4])
    drawn = (1.0 - 2.0 * (codes >> 3)) * FLOAT4_VALUES[(codes & 7).long()]
    assert drawn.mean().abs() < 0.03
    assert (drawn.std() - 1).abs() < 0.05
    # A standard normal lies within a quarter of zero with probability 0.197.
    assert ((drawn == 0).float().mean() - 0.197).abs() < 0.01
    assert (drawn < 0).any()
    assert (drawn > 2).any()


def test_the_number_of_threads_changes_nothing(dtype, monkeypatch):
    """Large tensors are drawn in blocks, on several threads."""
    monkeypatch.setattr(generate, "BLOCK", 64)
    many = random_tensor((13, 50), dtype, seed=5)
    monkeypatch.setattr(generate.os, "cpu_count", lambda: 1)
    assert same(many, random_tensor((13, 50), dtype, seed=5))


def test_a_derived_seed_is_the_same_in_every_release():
    # Traces record the seed: what it meant then must be what it means now.
    assert derive_seed(42, "gemm_n4096_k4096", "uuid", "A") == 5816627436256228170


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


def test_outputs_hold_what_no_kernel_writes(dtype):
    tensor = torch.zeros(9, dtype=to_torch_dtype(dtype))
    poison(tensor)
    if dtype == "bool":
        assert tensor.tolist() == [True, False] * 4 + [True], "neither constant passes"
    elif "float" in dtype and dtype != "float4_e2m1":
        assert tensor.float().isnan().all()
    else:
        assert set(tensor.view(torch.uint8).tolist()) == {0x5B}
