"""Names of element types, raw bytes of tensors, and the names that existing code imports."""

import itertools
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from flashinfer_bench import utils
from flashinfer_bench.data import DType
from flashinfer_bench.errors import DataError, ProtocolError
from flashinfer_bench.tensors import (
    dtype_name,
    dtypes,
    span_of,
    tensor_from_bytes,
    tensor_from_span,
    tensor_to_bytes,
    to_torch_dtype,
)

PLAIN = sorted(dtypes.NAMES - {"complex64", "complex128", "uint16", "uint32", "uint64"})


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


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@given(st.sampled_from(PLAIN), st.lists(st.integers(0, 4), max_size=5), st.data())
def test_any_bits_survive(name, shape, data):
    size = math.prod(shape) * to_torch_dtype(name).itemsize
    content = data.draw(st.binary(min_size=size, max_size=size))
    if name == "bool":
        content = bytes(byte & 1 for byte in content)
    tensor = tensor_from_bytes(name, shape, content)
    found_name, found_shape, found = tensor_to_bytes(tensor)
    assert (found_name, list(found_shape), bytes(found)) == (name, shape, content)


@pytest.mark.parametrize("tensor", [torch.ones(3).to_sparse(), torch.empty(3, device="meta")])
def test_what_has_no_plain_bytes_is_refused(tensor):
    with pytest.raises(TypeError, match="no plain bytes"):
        tensor_to_bytes(tensor)


def test_a_writable_buffer_is_shared_and_a_read_only_one_is_not():
    buffer = bytearray(8)
    shared = tensor_from_bytes("int32", [2], buffer)
    buffer[0] = 5
    assert shared.tolist() == [5, 0]
    copied = tensor_from_bytes("int32", [2], bytes(buffer))
    copied[1] = 7
    assert bytes(buffer) == b"\x05" + bytes(7)


def test_a_buffer_that_is_not_aligned_is_copied():
    buffer = bytearray(9)
    tensor = tensor_from_bytes("int64", [1], memoryview(buffer)[1:])
    assert tensor.data_ptr() % 8 == 0
    assert tensor.tolist() == [0]


@pytest.mark.parametrize("name", ["float31", "", "nn", "__class__", "qint8"])
def test_an_unknown_type_breaks_the_protocol(name):
    with pytest.raises(ProtocolError, match="unknown dtype"):
        tensor_from_bytes(name, [1], b"\0")


@pytest.mark.parametrize(
    "shape",
    [[-1], [2, -3], [1.0], ["2"], [True], [None], [2**63], [2**40, 2**40], [0, 2**63], [1] * 65],
)
def test_a_shape_that_is_none_breaks_the_protocol(shape):
    with pytest.raises(ProtocolError, match="not the shape"):
        tensor_from_bytes("int8", shape, b"")


@pytest.mark.parametrize(("shape", "size"), [([2], 7), ([2], 9), ([], 0), ([0], 4), ([2**40], 8)])
def test_the_number_of_bytes_must_fit(shape, size):
    with pytest.raises(ProtocolError, match=f"got {size} bytes"):
        tensor_from_bytes("float32", shape, bytes(size))


@given(
    name=st.one_of(st.sampled_from(PLAIN), st.text(max_size=12)),
    shape=st.lists(st.integers(-(2**64), 2**64), max_size=4),
    content=st.binary(max_size=64),
)
def test_nonsense_raises_nothing_but_a_protocol_error(name, shape, content):
    try:
        tensor = tensor_from_bytes(name, shape, content)
    except ProtocolError:
        return
    assume(tensor.dtype is not torch.bool)
    assert raw(tensor) == content


class TestSpans:
    """Strided memory of another process: every number may be a lie."""

    @given(
        name=st.sampled_from([*PLAIN, "complex64", "complex128"]),
        sizes=st.lists(st.integers(0, 4), max_size=4),
        data=st.data(),
    )
    def test_any_view_survives(self, name, sizes, data):
        dtype = to_torch_dtype(name)
        steps = [data.draw(st.integers(0, 9)) for _ in sizes]
        span = span_of(sizes, steps, dtype.itemsize)
        memory = data.draw(st.binary(min_size=span, max_size=span))
        if name == "bool":
            memory = bytes(byte & 1 for byte in memory)
        got = tensor_from_span(name, sizes, steps, memory)
        assert got.is_contiguous()
        units = torch.tensor(list(memory), dtype=torch.uint8).reshape(-1, dtype.itemsize)
        flat = [
            sum(index * step for index, step in zip(place, steps, strict=True))
            for place in itertools.product(*map(range, sizes))
        ]
        expected = units[flat].numpy().tobytes() if flat else b""
        assert (list(got.shape), got.dtype, raw(got)) == (sizes, dtype, expected)

    @pytest.mark.parametrize(
        ("shape", "strides", "span"),
        [
            *(([2], [1], 4), ([2], [1], 12), ([2], [], 8), ([2], [1, 1], 8), ([2], [-1], 8)),
            *(([2], [1.0], 8), ([2], [2**60], 8), ([-2], [1], 8), ([0], [1], 4)),
            ([2**40, 2**40], [1, 1], 8),
        ],
    )
    def test_what_does_not_fit_is_refused(self, shape, strides, span):
        with pytest.raises(ProtocolError):
            tensor_from_span("float32", shape, strides, bytes(span))

    def test_a_mask_holds_nothing_but_true_and_false(self):
        for got in (
            tensor_from_span("bool", [3], [1], b"\0\7\xff"),
            tensor_from_bytes("bool", [3], b"\0\7\xff"),
        ):
            assert got.view(torch.uint8).tolist() == [0, 1, 1]


def test_dtypes_by_their_names():
    assert utils.torch_dtype_from_def is utils.dtype_str_to_torch_dtype
    assert utils.dtype_str_to_torch_dtype("bfloat16") is torch.bfloat16
    assert utils.dtype_str_to_python_dtype("int32") is int


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(DType.INT64, True), (torch.uint8, True), ("bool", False), (torch.bfloat16, False)],
)
def test_integers_are_told_by_name_and_by_torch_type(dtype, expected):
    assert utils.is_dtype_integer(dtype) is expected


def test_everything_that_a_process_prints_goes_into_the_file(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    code = f"""
import os, sys, subprocess
from flashinfer_bench.utils import redirect_stdio_to_file
print("shown")
redirect_stdio_to_file({str(log)!r})
print("from print")
print("from stderr", file=sys.stderr)
os.write(1, b"from the descriptor\\n")
subprocess.run([sys.executable, "-c", "print('from a child')"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("shown\n", "")
    told = ("from print", "from stderr", "from the descriptor", "from a child")
    assert log.read_text().splitlines() == ["before", *told]
