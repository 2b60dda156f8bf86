"""Whatever is done to the files of a dataset, validating it ends with a report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data import TraceSet
from flashinfer_bench.validate import Severity, known_checks, validate_dataset


@pytest.fixture
def whole(maker):
    """A dataset in which everything occurs."""
    maker.sound()
    maker.definition("triple", op_type="gemm", constraints=["N >= 1"], tags=["t"])
    maker.solution("bob_triple", definition="triple", author="bob")
    maker.blob("blob/x.safetensors", {"x": ("F32", [16])})
    maker.from_blob("blob/x.safetensors", uuid="w3")
    maker.trace(uuid="w3", samples_ms=[1.0, 2.0])
    maker.trace(uuid="w3", status="INCORRECT_NUMERICAL", error=float("inf"))
    assert validate_dataset(maker.root).errors == ()
    return maker.root


def files_of(root):
    return sorted(path for path in root.rglob("*") if path.is_file())


def damaged(root, choose, damage):
    """Copy the dataset, replace one file by `damage` of its content, and validate the copy."""
    copy = root.with_name("damaged")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy)
    paths = files_of(copy)
    path = paths[choose % len(paths)]
    path.write_bytes(damage(path.read_bytes()))
    return copy, validate_dataset(copy)


def check_report(copy, report):
    for finding in report.findings:
        assert finding.check in known_checks()
        assert finding.message
        assert not finding.path.is_absolute()
        assert finding.line is None or finding.line >= 1
    # Whatever a reader of the dataset has to leave out is an error here too.
    refused = TraceSet.from_path(copy, on_error="collect").load_errors
    assert len(report.errors) >= len(refused)
    for error in refused:
        relative = Path(error.path).relative_to(copy)
        assert any(f.path == relative and f.severity is Severity.ERROR for f in report.findings)


MISSING = object()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def paths_in(value, at=()):
    """Return the path of every value in a JSON document."""
    found = [at]
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, inner in items:
        found += paths_in(inner, (*at, key))
    return found


@given(st.integers(0, 50), st.integers(0, 500), st.just(MISSING) | JSON)
def test_values_of_another_kind_or_missing_anywhere(whole, choose, place, new):
    def damage(content):
        first, *others = content.splitlines() or [b""]
        try:
            box = [json.loads(first)]
        except ValueError:
            return content
        paths = paths_in(box)[1:]
        *parents, last = paths[place % len(paths)]
        holder = box
        for key in parents:
            holder = holder[key]
        if new is not MISSING:
            holder[last] = new
        elif holder is not box:
            del holder[last]
        return b"\n".join([json.dumps(box[0]).encode(), *others])

    check_report(*damaged(whole, choose, damage))
