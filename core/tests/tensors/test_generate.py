import itertools
from types import MappingProxyType

import pytest
import torch
from safetensors.torch import save_file

from flashinfer_bench.data.blobs import save_tensors
from flashinfer_bench.errors import BlobError, DataError, UnsafePathError
from flashinfer_bench.tensors import generate_inputs, random_tensor


def matrix(dtype="float32"):
    return {"shape": ["n", "k"], "dtype": dtype}


def scalar(dtype):
    return {"shape": None, "dtype": dtype}


def from_file(path="blob/t.safetensors", key="t"):
    return {"type": "safetensors", "path": path, "tensor_key": key}


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


def test_probs_of_a_sampling_definition_are_probabilities(make_definition, make_workload):
    definition = make_definition({"probs": matrix()}, op_type="sampling")
    (probs,) = generate_inputs(definition, make_workload(definition), seed=1, root=None)
    assert (probs >= 0).all()
    assert torch.allclose(probs.sum(-1), torch.ones(3))
    assert len({tuple(row.tolist()) for row in probs}) == 3


class TestScalar:
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
    def test_the_value_gets_the_declared_type(
        self, make_definition, make_workload, dtype, given, expected
    ):
        definition = make_definition({"s": scalar(dtype)})
        workload = make_workload(definition, s={"type": "scalar", "value": given})
        (value,) = generate_inputs(definition, workload, seed=1, root=None)
        assert value == expected
        assert type(value) is type(expected)

    @pytest.mark.parametrize(
        ("dtype", "given"),
        [("int32", 2.5), ("bool", 2), ("bool", 0.5), ("int64", float("inf")), ("int8", -1e-9)],
    )
    def test_a_value_that_would_change_is_refused(
        self, make_definition, make_workload, dtype, given
    ):
        definition = make_definition({"s": scalar(dtype)})
        workload = make_workload(definition, s={"type": "scalar", "value": given})
        with pytest.raises(DataError, match=f"not a value of dtype {dtype}") as caught:
            generate_inputs(definition, workload, seed=1, root=None)
        assert caught.value.field == "inputs.s"

    def test_a_scalar_for_a_tensor_is_refused(self, make_definition, make_workload):
        definition = make_definition({"x": matrix()})
        workload = make_workload(definition, x={"type": "scalar", "value": 1.0})
        with pytest.raises(DataError, match=r"tensor of shape \[3, 4\], not a scalar") as caught:
            generate_inputs(definition, workload, seed=1, root=None)
        assert caught.value.field == "inputs.x"
        assert "safetensors" in str(caught.value)


def test_a_missing_input_is_named(make_definition, make_workload):
    workload = make_workload(make_definition())
    definition = make_definition({"x": matrix(), "w": matrix()})
    with pytest.raises(DataError, match="does not specify input 'w'") as caught:
        generate_inputs(definition, workload, seed=1, root=None)
    assert caught.value.field == "inputs.w"


class TestFiles:
    @pytest.fixture
    def blob(self, tmp_path):
        def write(content, name="t.safetensors"):
            save_tensors(tmp_path / "blob" / name, {"t": content})
            return tmp_path

        return write

    def one(self, make_definition, make_workload, root, spec, source=None):
        definition = make_definition({"x": spec})
        workload = make_workload(definition, x=source or from_file())
        (value,) = generate_inputs(definition, workload, seed=1, root=root)
        return value

    def test_every_type_is_read_as_it_was_written(
        self, make_definition, make_workload, blob, dtype
    ):
        content = random_tensor((3, 4), dtype, seed=9)
        value = self.one(make_definition, make_workload, blob(content), matrix(dtype))
        assert same(value, content)

    def test_a_scalar_may_be_stored_as_any_tensor_of_one_element(
        self, make_definition, make_workload, blob
    ):
        for content in (torch.tensor(2.5), torch.tensor([2.5]), torch.tensor([[2.5]])):
            value = self.one(make_definition, make_workload, blob(content), scalar("float32"))
            assert value == 2.5
            assert type(value) is float

    def test_another_shape_is_refused_with_both_shapes(self, make_definition, make_workload, blob):
        root = blob(torch.ones(4, 3))
        with pytest.raises(BlobError) as caught:
            self.one(make_definition, make_workload, root, matrix())
        text = str(caught.value)
        assert "t.safetensors" in text
        assert "tensor 't' must be shape [3, 4] of float32" in text
        assert "the file has shape [4, 3] of float32" in text
        assert caught.value.field == "inputs.x"

    def test_a_missing_key_is_refused_with_those_there_are(
        self, make_definition, make_workload, blob, tmp_path
    ):
        (tmp_path / "blob").mkdir()
        tensors = {"kv_indptr": torch.ones(2), "kv_indices": torch.ones(2)}
        save_file(tensors, tmp_path / "blob" / "t.safetensors")
        with pytest.raises(BlobError, match=r"no tensor 't' .* has kv_indices, kv_indptr"):
            self.one(make_definition, make_workload, tmp_path, matrix())

    @pytest.mark.parametrize(
        "content",
        [b"", b"not tensors at all", (2**62).to_bytes(8, "little") + b"{}"],
        ids=["empty", "text", "huge header"],
    )
    def test_what_is_no_tensor_file_is_refused(
        self, make_definition, make_workload, tmp_path, content
    ):
        path = tmp_path / "blob" / "t.safetensors"
        path.parent.mkdir()
        path.write_bytes(content)
        with pytest.raises(BlobError, match="not a readable safetensors file") as caught:
            self.one(make_definition, make_workload, tmp_path, matrix())
        assert caught.value.path == path

    @pytest.mark.parametrize("path", ["../t.safetensors", "/etc/passwd", "blob/../../t"])
    def test_a_path_out_of_the_dataset_is_refused(self, make_definition, make_workload, blob, path):
        root = blob(torch.ones(3, 4)) / "blob"
        with pytest.raises(UnsafePathError):
            self.one(make_definition, make_workload, root, matrix(), from_file(path))
