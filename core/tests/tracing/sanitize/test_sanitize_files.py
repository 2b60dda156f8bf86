"""Taking workloads out of files: nothing is lost, and nobody is disturbed."""

from __future__ import annotations

import json
import os
import time

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.repair import examine
from flashinfer_bench.errors import DatasetNotFoundError
from flashinfer_bench.tracing.sanitize import Limits, Reason, sanitize

HOURS = 7200.0


def kinds(found):
    return [one.kind for one in found]


def test_a_sound_dataset_is_not_touched(writer):
    writer.workload("a")
    writer.workload("b", [0, 1, 2, 3])
    before = writer.files()
    done = sanitize(writer.root)
    assert (done.dropped, done.kept, done.backup, done.workloads) == ((), (), None, 2)
    assert writer.files() == before


def test_degenerate_ones_go_to_the_backup(writer):
    writer.workload("good")
    writer.workload("zero", [0, 0, 0])
    writer.workload("down", [0, 9, 5])
    writer.workload("wrong", [0, 3, 5], total=6)
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


def test_a_second_time_there_is_nothing_to_do(writer):
    writer.workload("zero", [0, 0, 0])
    writer.workload("good")
    assert sanitize(writer.root).dropped
    again = sanitize(writer.root)
    assert (again.dropped, again.backup) == ((), None)


def test_a_dry_run_changes_nothing(writer):
    writer.workload("good")
    writer.workload("zero", [0, 0, 0])
    before = {path: path.read_bytes() for path in writer.root.rglob("*") if path.is_file()}
    dry = sanitize(writer.root, dry_run=True)
    assert {path: path.read_bytes() for path in writer.root.rglob("*") if path.is_file()} == before
    assert dry.backup is None
    assert dry.dropped == sanitize(writer.root).dropped


# -------------------------------------------------------------------------------- duplicates


def test_equal_tensors_in_different_files_are_duplicates(writer):
    for uuid in ("a", "b", "c"):
        writer.workload(uuid)
    writer.workload("other", scale=0.25)
    done = sanitize(writer.root)
    assert writer.left() == ["a", "other"]
    assert kinds(done.dropped) == [Reason.DUPLICATE] * 2 + [Reason.UNUSED_BLOB] * 2
    assert "equals a at workloads/gqa/ragged.jsonl:1" in done.dropped[0].message


def test_other_tensors_are_no_duplicates(writer):
    writer.workload("a", [0, 2, 5])
    writer.workload("b", [0, 3, 5])
    assert sanitize(writer.root).dropped == ()


def test_a_shared_file_stays_as_long_as_one_needs_it(writer):
    writer.workload("a")
    path = "./blob/workloads/gqa/ragged/a.safetensors"
    writer.workload("b", blob=path)
    writer.workload("c", blob=path, scale=0.1)
    done = sanitize(writer.root)
    assert kinds(done.dropped) == [Reason.DUPLICATE]
    assert writer.left() == ["a", "c"]
    assert writer.blobs() == ["a"]


def test_tensors_that_are_missing_are_equal_by_their_names(writer):
    missing = "./blob/workloads/gqa/ragged/gone.safetensors"
    writer.workload("a", blob=missing)
    writer.workload("b", blob=missing)
    writer.workload("c", blob="./blob/workloads/gqa/ragged/too.safetensors")
    sanitize(writer.root)
    assert writer.left() == ["a", "c"]


def test_the_very_same_line_twice(writer):
    record = writer.workload("a")
    writer.workload("b", [0, 1])
    writer.append(writer.workloads, record)
    writer.trace(record)
    sanitize(writer.root)
    assert writer.left() == ["a", "b"]


def test_workloads_of_a_definition_that_is_not_there(writer):
    """Nothing is known of them, except that they are equal."""
    for uuid in ("a", "b"):
        writer.workload(uuid, [0, 0, 0])
    (writer.root / "definitions" / "gqa" / "ragged.json").unlink()
    sanitize(writer.root)
    assert writer.left() == ["a"]


# ------------------------------------------------------------------------------------ traces


def test_workloads_that_traces_refer_to_stay(writer):
    record = writer.workload("zero", [0, 0, 0])
    writer.trace(record)
    writer.trace(record, "t")
    done = sanitize(writer.root)
    assert done.dropped == ()
    assert [(one.kind, one.traces) for one in done.kept] == [(Reason.ZERO_AXIS, 2)]
    assert writer.left() == ["zero"]


def test_with_traces_they_go_together(writer):
    good = writer.workload("good")
    bad = writer.workload("zero", [0, 0, 0])
    for record in (good, bad, bad):
        writer.trace(record)
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
    writer.workload("a")
    record = writer.workload("b")
    writer.workload("c")
    writer.trace(record)
    sanitize(writer.root)
    assert writer.left() == ["b"]


def test_duplicates_that_all_have_traces_stay(writer):
    for uuid in ("a", "b"):
        writer.trace(writer.workload(uuid))
    done = sanitize(writer.root)
    assert [(one.uuid, one.traces) for one in done.kept] == [("b", 1)]
    assert writer.left() == ["a", "b"]
    sanitize(writer.root, with_traces=True)
    assert writer.left() == ["a"]


def test_a_trace_alone_keeps_the_file_it_names(writer):
    record = writer.workload("a")
    writer.trace(record)
    writer.workloads.unlink()
    path = writer.root / "blob/workloads/gqa/ragged/a.safetensors"
    os.utime(path, (1e9, 1e9))
    assert sanitize(writer.root).dropped == ()
    assert writer.blobs() == ["a"]


# ------------------------------------------------------------------------------ tensor files


def test_unused_files_go_if_they_are_old(writer):
    writer.workload("a")
    writer.blob("old", [1], age=HOURS)
    writer.blob("young", [2])
    done = sanitize(writer.root)
    assert kinds(done.dropped) == [Reason.UNUSED_BLOB]
    assert writer.blobs() == ["a", "young"]


def test_a_file_outside_the_usual_folders(writer):
    writer.workload("a")
    path = writer.root / "blob" / "x.safetensors"
    path.write_bytes(b"")
    os.utime(path, (1e9, 1e9))
    done = sanitize(writer.root)
    assert [one.path.as_posix() for one in done.dropped] == ["blob/x.safetensors"]


def test_a_line_that_cannot_be_read_keeps_all_files(writer):
    writer.workload("good")
    writer.workload("zero", [0, 0, 0])
    writer.blob("old", [1], age=HOURS)
    with writer.workloads.open("a") as file:
        file.write("broken\n")
    done = sanitize(writer.root)
    assert kinds(done.dropped) == [Reason.ZERO_AXIS]
    assert len(done.unread) == 1
    assert writer.blobs() == ["good", "old", "zero"]
    assert writer.workloads.read_text().endswith("broken\n")


def test_a_file_that_just_found_a_use(writer, monkeypatch):
    """A tracer adds a workload that names it, between the look and the move."""
    from flashinfer_bench.tracing.sanitize import carry

    writer.workload("a")
    path = writer.blob("old", [0, 1], age=HOURS)
    unused = carry.unused_blobs

    def look_then_trace(*args):
        found = unused(*args)
        writer.workload("b", [0, 1], blob=path)
        return found

    monkeypatch.setattr(carry, "unused_blobs", look_then_trace)
    assert sanitize(writer.root).dropped == ()
    assert "old" in writer.blobs()


# --------------------------------------------------------------------------------- odd files


def test_lines_that_are_appended_meanwhile_stay(writer, monkeypatch):
    from flashinfer_bench.tracing.sanitize import carry

    writer.workload("zero", [0, 0, 0])
    plan = carry.make_plan

    def plan_then_append(*args, **options):
        made = plan(*args, **options)
        writer.workload("late")
        return made

    monkeypatch.setattr(carry, "make_plan", plan_then_append)
    sanitize(writer.root)
    assert writer.left() == ["late"]


def test_lines_that_moved_meanwhile_stay(writer, monkeypatch):
    from flashinfer_bench.tracing.sanitize import carry

    writer.workload("zero", [0, 0, 0])
    writer.workload("good")
    plan = carry.make_plan

    def plan_then_turn(*args, **options):
        made = plan(*args, **options)
        lines = writer.workloads.read_text().splitlines(keepends=True)
        writer.workloads.write_text("".join(reversed(lines)))
        return made

    monkeypatch.setattr(carry, "make_plan", plan_then_turn)
    assert sanitize(writer.root).dropped == ()
    assert writer.left() == ["good", "zero"]


def test_a_file_of_one_document(writer):
    records = [writer.workload("good"), writer.workload("zero", [0, 0, 0])]
    writer.workloads.write_text(json.dumps(records, indent=2))
    sanitize(writer.root)
    assert writer.left() == ["good"]


def test_blank_lines_are_counted(writer):
    writer.workload("good")
    text = writer.workloads.read_text()
    writer.workload("zero", [0, 0, 0])
    bad = writer.workloads.read_text()[len(text) :]
    writer.workloads.write_text("\n\n" + text + "\n" + bad + "\n")
    done = sanitize(writer.root)
    assert done.dropped[0].line == 5
    assert writer.workloads.read_text().split() == text.split()


def test_a_link_is_left_alone(writer, tmp_path):
    writer.workload("zero", [0, 0, 0])
    elsewhere = tmp_path / "elsewhere.jsonl"
    writer.workloads.rename(elsewhere)
    writer.workloads.symlink_to(elsewhere)
    sanitize(writer.root)
    assert writer.workloads.is_symlink()
    assert writer.left() == ["zero"]


def test_a_definition_that_cannot_be_read(writer):
    writer.workload("zero", [0, 0, 0])
    (writer.root / "definitions" / "gqa" / "ragged.json").write_text("{")
    done = sanitize(writer.root)
    assert len(done.errors) == 1
    assert writer.left() == ["zero"]


def test_limits(writer):
    writer.workload("small")
    writer.workload("large", [0, 500, 1000])
    done = sanitize(writer.root, Limits(max_elements=100))
    assert done.dropped[0].kind is Reason.OUTSIZED
    assert writer.left() == ["small"]


def test_no_dataset(writer, tmp_path):
    with pytest.raises(DatasetNotFoundError, match="does not exist"):
        sanitize(tmp_path / "nowhere")
    with pytest.raises(DatasetNotFoundError, match="is not a folder"):
        sanitize(writer.root / "definitions" / "gqa" / "ragged.json")


def test_thousands_in_linear_time(writer):
    """Twice as many workloads take about twice as long, in time of the CPU."""
    took = []
    path = writer.blob("shared", [0, 2, 5])
    for count in (400, 1600):
        for number in range(count):
            writer.workload(f"{count}-{number}", blob=path, scale=float(number))
        start = time.process_time()
        sanitize(writer.root, dry_run=True)
        took.append(time.process_time() - start)
    assert took[1] < 4 * 5 * took[0]
