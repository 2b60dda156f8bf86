"""Headers of tensor files, read without a tensor library."""

from __future__ import annotations

import json
import struct

import pytest

from fib_datasets.tensor_headers import MAX_HEADER_BYTES, read_safetensors_header
from flashinfer_bench.errors import BlobError


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.safetensors"


def test_a_header(path):
    header = {
        "__metadata__": {"format": "pt"},
        "a": entry(),
        "b": entry("BF16", (2, 3), (8, 20)),
        "scalar": entry("I64", (), (20, 28)),
        "empty": entry("I32", (0, 5), (28, 28)),
        "four": entry("F4", (2, 3), (28, 31)),
    }
    path.write_bytes(safetensors(header, b"\0" * 31))
    assert read_safetensors_header(path) == {
        "a": ("F32", (2,)),
        "b": ("BF16", (2, 3)),
        "scalar": ("I64", ()),
        "empty": ("I32", (0, 5)),
        "four": ("F4", (2, 3)),
    }


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "does not exist"),
        (b"\0" * 7, "shorter than 8 bytes"),
        (safetensors({}, length=3), "header of 3 bytes in a file of 10"),
        (safetensors({}, length=1 << 60), "header of"),
        (safetensors({}, length=MAX_HEADER_BYTES + 1), "header of"),
        (safetensors(b"{,}"), "the header is not JSON"),
        (safetensors(b"\xff\xff"), "the header is not JSON"),
        (safetensors(b"[" * 100_000), "the header is not JSON"),
        (safetensors([]), "the header is not an object"),
        (safetensors({"a": []}), "needs dtype, shape and two data_offsets"),
        (safetensors({"a": {"dtype": "F32", "shape": []}}), "needs dtype, shape"),
        (safetensors({"a": entry(offsets=(0,))}), "needs dtype, shape"),
        (safetensors({"a": entry(offsets=(0, 4, 8))}), "needs dtype, shape"),
        (safetensors({"a": entry("F128")}), "unknown dtype 'F128'"),
        (safetensors({"a": {**entry(), "shape": 2}}), "must be integers"),
        (safetensors({"a": entry(shape=(-1,))}), "must be integers"),
        (safetensors({"a": entry(shape=(1.5,))}), "must be integers"),
        (safetensors({"a": entry(shape=(True, 2))}), "must be integers"),
        (safetensors({"a": entry(offsets=(-8, 0))}), "must be integers"),
        (safetensors({"a": entry(shape=(1 << 40, 1 << 40))}), "does not match"),
        (safetensors({"a": entry()}, b"\0" * 7), "does not match bytes 0 to 8 of 7"),
        (safetensors({"a": entry(offsets=(8, 0))}, b"\0" * 8), "does not match"),
        (safetensors({"a": entry(shape=(0, 10**30), offsets=(0, 0))}), "must be integers"),
        # The library refuses these, too.
        (safetensors({"a": entry(), "b": entry()}, b"\0" * 8), "begins at byte 0"),
        (safetensors({"a": entry(offsets=(8, 16))}, b"\0" * 16), "begins at byte 8"),
        (safetensors({"a": entry()}, b"\0" * 16), "gap or overlap between tensors"),
    ],
)
def test_what_is_no_safetensors_file(path, content, problem):
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BlobError, match=problem) as caught:
        read_safetensors_header(path)
    assert caught.value.path == path
