"""Which workloads are taken out, and why; nothing is lost, and nobody is disturbed."""

from __future__ import annotations

import json
import os
import struct
import time
from typing import TYPE_CHECKING, Any, Optional

import pytest

from fib_datasets.repair import examine
from fib_datasets.sanitize import Reason, sanitize
from fib_tests.dataset_maker import DatasetMaker
from fib_tests.records import Make
from flashinfer_bench.data import TraceSet

if TYPE_CHECKING:
    from pathlib import Path

HOURS = 7200.0
RAGGED = {
    "axes": {
        "batch": {"type": "var"},
        "len_indptr": {"type": "var"},
        "total": {"type": "var"},
        "H": {"type": "const", "value": 2},
    },
    "inputs": {
        "q": {"shape": ["batch", "H"], "dtype": "bfloat16"},
        "k": {"shape": ["total", "H"], "dtype": "float32"},
        "kv_indptr": {"shape": ["len_indptr"], "dtype": "int32"},
        "seq_lens": {"shape": ["batch"], "dtype": "int32"},
        "scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"o": {"shape": ["batch", "H"], "dtype": "bfloat16"}},
    "reference": "def run(q, k, kv_indptr, seq_lens, scale):\n    return q\n",
    "constraints": ["len_indptr == batch + 1", "total == kv_indptr[-1].item()"],
}
BLOBS = "blob/workloads/gqa/ragged"


class Writer(DatasetMaker):
    """Writes records of one definition."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.definition("ragged", "gqa", **RAGGED)
        self.workloads = root / "workloads/gqa/ragged.jsonl"

    def tensor(self, name: str, values: list[int], key="kv_indptr", age: float = 0.0) -> str:
        path = self.blob(f"{BLOBS}/{name}.safetensors", {key: ("I32", [len(values)])})
        data = struct.pack(f"<{len(values)}i", *values)
        path.write_bytes(path.read_bytes()[: -len(data)] + data)
        os.utime(path, (time.time() - age,) * 2)
        return f"./{BLOBS}/{name}.safetensors"

    def add(
        self,
        uuid: str,
        indptr: Optional[list[int]] = None,
        *,
        blob: Optional[str] = None,
        lens: Optional[list[int]] = None,
        scale: Any = 0.5,
        **axes: int,
    ) -> dict[str, Any]:
        """Add a workload, and return its line."""
        values = [0, 2, 5] if indptr is None else indptr
        fits = {"batch": len(values) - 1, "len_indptr": len(values), "total": values[-1]}
        path = self.tensor(uuid, values) if blob is None else blob
        inputs = {
            "q": {"type": "random"},
            "k": {"type": "random"},
            "kv_indptr": {"type": "safetensors", "path": path, "tensor_key": "kv_indptr"},
            "seq_lens": {"type": "random"},
            "scale": {"type": "scalar", "value": scale},
        }
        if lens is not None:
            path = self.tensor(f"{uuid}_lens", lens, "seq_lens")
            inputs["seq_lens"] = {"type": "safetensors", "path": path, "tensor_key": "seq_lens"}
        self.workload("ragged", uuid, {**fits, **axes}, inputs, "gqa")
        return json.loads(self.workloads.read_text().splitlines()[-1])

    def run(self, record: dict[str, Any], solution: str = "s") -> None:
        evaluation = Make.evaluation_record("RUNTIME_ERROR")
        line = {**record, "solution": solution, "evaluation": evaluation}
        self._append("traces/gqa/ragged.jsonl", line)

    def left(self) -> list[str]:
        lines = self.workloads.read_text().splitlines()
        return [json.loads(line)["workload"]["uuid"] for line in lines]

    def blobs(self) -> list[str]:
        return sorted(path.stem for path in (self.root / "blob").rglob("*.safetensors"))


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "dataset")


def kinds(found):
    return [one.kind for one in found]


def test_degenerate_ones_go_to_the_backup(writer):
    writer.add("good")
    writer.add("zero", [0, 0, 0])
    writer.add("down", [0, 9, 5])
    writer.add("wrong", [0, 3, 5], total=6)
    before = writer.workloads.read_text().splitlines(keepends=True)
    done = sanitize(writer.root)
    assert kinds(done.dropped)[:3] == [Reason.ZERO_AXIS, Reason.BAD_INDPTR, Reason.CONSTRAINT]
    assert kinds(done.dropped)[3:] == [Reason.UNUSED_BLOB] * 3
    assert writer.left() == ["good"]
    assert writer.blobs() == ["good"]
    assert done.backup is not None
    assert done.backup.name.startswith("sanitize_backup_")
    kept = done.backup / "workloads" / "gqa" / "ragged.jsonl"
    assert kept.read_text() == "".join(before[1:])
    assert len(list(done.backup.rglob("*.safetensors"))) == 3
    manifest = [json.loads(line) for line in (done.backup / "taken.jsonl").read_text().splitlines()]
    assert [one["kind"] for one in manifest] == [one.kind.value for one in done.dropped]
    assert manifest[0]["line"] == 2
    assert examine(writer.root).is_clean


# -------------------------------------------------------------------------------- duplicates


def test_equal_tensors_in_different_files_are_duplicates(writer):
    for uuid in ("a", "b", "c"):
        writer.add(uuid)
    writer.add("other", scale=0.25)
    done = sanitize(writer.root)
    assert writer.left() == ["a", "other"]
    assert kinds(done.dropped) == [Reason.DUPLICATE] * 2 + [Reason.UNUSED_BLOB] * 2
    assert "equals a at workloads/gqa/ragged.jsonl:1" in done.dropped[0].message


def test_a_shared_file_stays_as_long_as_one_needs_it(writer):
    writer.add("a")
    path = "./blob/workloads/gqa/ragged/a.safetensors"
    writer.add("b", blob=path)
    writer.add("c", blob=path, scale=0.1)
    done = sanitize(writer.root)
    assert kinds(done.dropped) == [Reason.DUPLICATE]
    assert writer.left() == ["a", "c"]
    assert writer.blobs() == ["a"]


# ------------------------------------------------------------------------------------ traces


def test_with_traces_they_go_together(writer):
    good = writer.add("good")
    bad = writer.add("zero", [0, 0, 0])
    for record in (good, bad, bad):
        writer.run(record)
    done = sanitize(writer.root, with_traces=True)
    assert kinds(done.dropped) == [
        Reason.ZERO_AXIS, Reason.TRACE, Reason.TRACE, Reason.UNUSED_BLOB
    ]  # fmt: skip
    trace_set = TraceSet.from_path(writer.root)
    assert [one.workload.uuid for one in trace_set.traces["ragged"]] == ["good"]
    assert done.backup is not None
    assert (done.backup / "traces" / "gqa" / "ragged.jsonl").read_text().count("\n") == 2
    assert examine(writer.root).issues[0].kind.value == "unknown_solution"  # which is a note


def test_of_duplicates_the_one_with_traces_stays(writer):
    writer.add("a")
    record = writer.add("b")
    writer.add("c")
    writer.run(record)
    sanitize(writer.root)
    assert writer.left() == ["b"]


def test_a_trace_alone_keeps_the_file_it_names(writer):
    record = writer.add("a")
    writer.run(record)
    writer.workloads.unlink()
    path = writer.root / "blob/workloads/gqa/ragged/a.safetensors"
    os.utime(path, (1e9, 1e9))
    assert sanitize(writer.root).dropped == ()
    assert writer.blobs() == ["a"]


# ------------------------------------------------------------------------------ tensor files


def test_unused_files_go_if_they_are_old(writer):
    writer.add("a")
    writer.tensor("old", [1], age=HOURS)
    writer.tensor("young", [2])
    done = sanitize(writer.root)
    assert kinds(done.dropped) == [Reason.UNUSED_BLOB]
    assert writer.blobs() == ["a", "young"]


def test_a_line_that_cannot_be_read_keeps_all_files(writer):
    writer.add("good")
    writer.add("zero", [0, 0, 0])
    writer.tensor("old", [1], age=HOURS)
    with writer.workloads.open("a") as file:
        file.write("broken\n")
    done = sanitize(writer.root)
    assert kinds(done.dropped) == [Reason.ZERO_AXIS]
    assert len(done.unread) == 1
    assert writer.blobs() == ["good", "old", "zero"]
    assert writer.workloads.read_text().endswith("broken\n")


def test_a_file_that_just_found_a_use(writer, monkeypatch):
    """A tracer adds a workload that names it, between the look and the move."""
    from fib_datasets.sanitize import carry

    writer.add("a")
    path = writer.tensor("old", [0, 1], age=HOURS)
    unused = carry.unused_blobs

    def look_then_trace(*args):
        found = unused(*args)
        writer.add("b", [0, 1], blob=path)
        return found

    monkeypatch.setattr(carry, "unused_blobs", look_then_trace)
    assert sanitize(writer.root).dropped == ()
    assert "old" in writer.blobs()


# --------------------------------------------------------------------------------- odd files


def test_lines_that_are_appended_meanwhile_stay(writer, monkeypatch):
    from fib_datasets.sanitize import carry

    writer.add("zero", [0, 0, 0])
    plan = carry.find_useless

    def plan_then_append(*args):
        made = plan(*args)
        writer.add("late")
        return made

    monkeypatch.setattr(carry, "find_useless", plan_then_append)
    sanitize(writer.root)
    assert writer.left() == ["late"]


def test_a_file_of_one_document(writer):
    records = [writer.add("good"), writer.add("zero", [0, 0, 0])]
    writer.workloads.write_text(json.dumps(records, indent=2))
    sanitize(writer.root)
    assert writer.left() == ["good"]


# -------------------------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("changes", "expected", "message"),
    [
        ({"batch": 0}, Reason.ZERO_AXIS, "batch = 0"),
        ({"batch": 0, "total": 0}, Reason.ZERO_AXIS, "batch, total = 0"),
        ({"scale": "NaN"}, Reason.NOT_FINITE, "scale = nan"),
        ({"indptr": [1, 2, 5]}, Reason.BAD_INDPTR, "kv_indptr starts at 1, not at 0"),
        ({"indptr": [0, 6, 5]}, Reason.BAD_INDPTR, "kv_indptr decreases from 6 to 5 at 2"),
        ({"indptr": [0, 0, 0], "total": 4}, Reason.EMPTY_BATCH, "2 sequences of kv_indptr are"),
        ({"lens": [0, 0]}, Reason.EMPTY_BATCH, "all 2 lengths of seq_lens are 0"),
        ({"total": 7}, Reason.CONSTRAINT, "'total == kv_indptr[-1].item()' is violated"),
        ({"len_indptr": 9}, Reason.CONSTRAINT, "(batch=2, len_indptr=9)"),
    ],
)
def test_what_is_of_no_use(writer, changes, expected, message):
    writer.add("w", **changes)
    found = sanitize(writer.root, dry_run=True).dropped[0]
    assert found.kind is expected
    assert message in found.message


@pytest.mark.parametrize(
    ("constraint", "holds"),
    [
        ("kv_indptr[0].item() == 0", True),
        ("kv_indptr[1].item() * 2 < total", True),
        ("kv_indptr[-1].item() - kv_indptr[-2].item() == 3", True),
        ("total < kv_indptr[-1].item()", False),
    ],
)
def test_constraints_about_values(writer, constraint, holds):
    writer.definition("ragged", "gqa", **{**RAGGED, "constraints": [constraint]})
    writer.add("w")
    found = kinds(sanitize(writer.root, dry_run=True).dropped)
    assert found[:1] == ([] if holds else [Reason.CONSTRAINT])
