"""Arbitrary bytes in the files of a dataset: a named error, never a crash, a hang or an escape."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fib_datasets.repair import examine
from flashinfer_bench.data import TraceSet, read_safetensors_header, resolve_blob
from flashinfer_bench.errors import BlobError, DataError, UnsafePathError
from flashinfer_bench.validate import validate_dataset

MANY = settings(deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "I64", "F4", "BOOL", "X"]) | JSON,
        "shape": st.lists(st.integers(-1, 2**64), max_size=4) | JSON,
        "data_offsets": st.lists(st.integers(-1, 2**64), max_size=3) | JSON,
    }
)
HEADERS = st.dictionaries(st.text(max_size=5) | st.just("__metadata__"), ENTRIES | JSON, max_size=3)


def read(path):
    try:
        header = read_safetensors_header(path)
    except BlobError as error:
        told = error.path, bool(error.message)
    else:
        told = path, all(isinstance(dtype, str) for dtype, _ in header.values())
    assert told == (path, True)


@MANY
@given(st.binary(max_size=200))
def test_any_bytes_as_tensors(tmp_path, text):
    (tmp_path / "x").write_bytes(text)
    read(tmp_path / "x")


@MANY
@given(HEADERS, st.integers(0, 64), st.integers(-9, 2**63))
def test_any_header(tmp_path, header, data, wrong):
    text = json.dumps(header).encode()
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))
    read(tmp_path / "x")
    (tmp_path / "x").write_bytes(struct.pack("<Q", (len(text) + wrong) % 2**64) + text)
    read(tmp_path / "x")


@pytest.mark.parametrize(
    "text", [b"[" * 200_000, b'{"a":' * 50_000, b"9" * 200_000, b'{"a":1e999}']
)
def test_headers_that_exhaust_a_parser(tmp_path, text):
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(BlobError):
        read_safetensors_header(tmp_path / "x")


SEGMENTS = st.sampled_from(["..", ".", "", "a", "link", "blob", "/", "~", "\0", "x" * 300, "é"])


@MANY
@given(st.lists(SEGMENTS | st.text(max_size=4), max_size=6).map("/".join))
def test_no_path_leads_out(tmp_path, path):
    root = tmp_path / "root"
    (root / "blob").mkdir(parents=True, exist_ok=True)
    if not (root / "link").is_symlink():
        (root / "link").symlink_to(tmp_path)
    try:
        found = resolve_blob(root, path)
    except UnsafePathError:
        return
    assert found.is_relative_to(root.resolve())


def check_all(root):
    """Load, examine and validate; whatever is wrong has a place in the dataset."""
    trace_set = TraceSet.from_path(root, on_error="collect")
    assert all(isinstance(error, DataError) and error.path for error in trace_set.load_errors)
    assert all(not one.path.is_absolute() for one in examine(root).issues)
    assert all(not one.path.is_absolute() for one in validate_dataset(root).findings)


FILES = (
    "definitions/op/double.json",
    "solutions/alice/alice.json",
    "workloads/op/double.jsonl",
    "traces/op/double.jsonl",
)


@MANY
@given(st.sampled_from(FILES), st.binary(max_size=300) | JSON.map(lambda v: json.dumps(v).encode()))
def test_any_bytes_as_records(kills, tmp_path, file, text):
    root = kills.write_dataset(tmp_path)
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_bytes(text)
    check_all(root)


@MANY
@given(st.sampled_from(FILES[:3]), st.data())
def test_any_value_in_any_record(kills, tmp_path, file, data):
    root = kills.write_dataset(tmp_path)
    first, *rest = (root / file).read_text().splitlines()
    record = json.loads(first)
    target = record
    while isinstance(target, dict) and target:
        key = data.draw(st.sampled_from(sorted(target)))
        if not isinstance(target[key], dict) or data.draw(st.booleans()):
            target[key] = data.draw(JSON)
            break
        target = target[key]
    (root / file).write_text("\n".join([json.dumps(record), *rest]) + "\n")
    check_all(root)
