"""The doctor on files: names, tensor files, links and what dead processes leave."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flashinfer_bench.data import storage
from flashinfer_bench.data.repair import Kind, Remedy, examine, repair

sys.path.insert(0, str(Path(__file__).parent))
from damage import (
    NAME,
    TRACES,
    WORKLOADS,
    append,
    contents,
    deepen,
    kinds,
    make_old,
    named,
    only,
    write_blob,
)

# --------------------------------------------------------------------------------- files and names


def test_broken_and_doubled_definitions_are_for_humans(dataset, make, writer):
    writer.text("definitions/gemm/broken.json", "{")
    writer.json("definitions/other/again.json", make.definition_record())
    found = examine(dataset)
    assert kinds(found) == [Kind.INVALID_FILE, Kind.DUPLICATE_NAME]
    assert {one.remedy for one in found.issues} == {Remedy.BY_HAND}
    assert repair(dataset, orphans=True).taken == ()


def test_orphans_are_moved_only_when_asked(dataset, make, writer):
    before = contents(dataset)
    writer.json("solutions/bob/lost.json", make.solution_record("lost", definition="lost"))
    trace = {**make.trace_record("lost"), "definition": "lost"}
    writer.lines("traces/gemm/lost.jsonl", trace)
    assert sorted(kinds(examine(dataset))) == [Kind.ORPHAN_SOLUTION, Kind.ORPHAN_TRACE]
    assert repair(dataset).taken == ()
    done = repair(dataset, orphans=True)
    assert len(done.taken) == 2
    assert done.left.is_clean
    assert {**before, "traces/gemm/lost.jsonl": b""} == contents(dataset)
    assert (done.backup / "solutions/bob/lost.json").exists()
    assert json.loads((done.backup / "traces/gemm/lost.jsonl").read_text()) == trace


def test_nothing_is_an_orphan_for_sure_while_a_definition_is_broken(dataset):
    path = dataset / f"definitions/gemm/{NAME}.json"
    path.write_text(path.read_text()[:-20])
    before = contents(dataset)
    done = repair(dataset, orphans=True)
    assert done.taken == ()
    assert {one.remedy for one in done.left.issues} == {Remedy.BY_HAND}
    assert contents(dataset) == before


def test_unknown_solutions_are_notes(dataset, make):
    for name in ("gone", "gone", "left"):
        append(dataset / TRACES, json.dumps(make.trace_record(name, uuid=str(time.time_ns()))))
        append(dataset / TRACES, "\n")
    found = examine(dataset)
    assert kinds(found) == [Kind.UNKNOWN_SOLUTION] * 2
    assert "one of 2 traces" in found.issues[0].message
    assert found.is_clean


def test_a_solution_of_another_definition(dataset, make, writer):
    writer.json("definitions/gemm/other.json", make.definition_record("other"))
    append(
        dataset / TRACES,
        json.dumps({**make.trace_record("alice_v1"), "definition": "other"}) + "\n",
    )
    assert only(dataset).kind is Kind.WRONG_SOLUTION


# ------------------------------------------------------------------------------------------- blobs


def test_missing_damaged_and_unsafe_blobs(dataset, make):
    write_blob(dataset / "blob/good.safetensors")
    (dataset / "blob/bad.safetensors").write_bytes(b"12345678901234567890")
    (dataset / "blob/lfs.safetensors").write_bytes(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    )
    for number, blob in enumerate(("good", "bad", "lfs", "none")):
        line = named(make, f"blob/{blob}.safetensors", f"b{number}")
        append(dataset / WORKLOADS, line)
    append(dataset / WORKLOADS, named(make, "../outside.safetensors", "b9"))
    found = examine(dataset)
    assert kinds(found) == [Kind.DAMAGED_BLOB, Kind.MISSING_BLOB, Kind.UNSAFE_BLOB]
    assert [one.line for one in found.issues] == [4, 6, 7]
    assert repair(dataset, orphans=True).taken == ()


def test_blobs_that_nobody_names(dataset, make):
    write_blob(dataset / "blob/workloads/named.safetensors")
    write_blob(dataset / "blob/workloads/lost.safetensors")
    append(dataset / WORKLOADS, named(make, "./blob/workloads/named.safetensors"))
    found = only(dataset)
    assert (found.kind, found.remedy, found.is_note) == (Kind.ORPHAN_BLOB, Remedy.ORPHANS, True)
    done = repair(dataset, orphans=True)
    assert [path.name for path in (dataset / "blob/workloads").iterdir()] == ["named.safetensors"]
    assert (done.backup / "blob/workloads/lost.safetensors").exists()


def test_a_young_blob_may_get_its_workload_yet(dataset):
    write_blob(dataset / "blob/new.safetensors")
    os.utime(dataset / "blob/new.safetensors")
    assert only(dataset).remedy is Remedy.BY_HAND
    assert repair(dataset, orphans=True).taken == ()


def test_a_broken_line_may_name_a_blob(dataset, make):
    write_blob(dataset / "blob/x.safetensors")
    append(dataset / WORKLOADS, named(make, "blob/x.safetensors")[:-9] + "\n")
    done = repair(dataset, orphans=True)
    assert [one.kind for one in done.taken] == [Kind.INVALID_LINE]
    assert (dataset / "blob/x.safetensors").exists()


# --------------------------------------------------------------------------------------- leftovers


def dead_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_soft_locks_of_the_dead_are_stale(dataset):
    lock = storage.soft_lock_path(dataset / TRACES)
    lock.write_text(f"{dead_pid()}\n{socket.gethostname()}\n")
    assert only(dataset).kind is Kind.STALE_LOCK
    done = repair(dataset)
    assert not lock.exists()
    assert (done.backup / lock.relative_to(dataset)).exists()


@pytest.mark.parametrize(
    ("owner", "old", "stale"),
    [
        ("{me}\n{here}\n", True, False),
        ("1\nanother-host\n", False, False),
        ("1\nanother-host\n", True, True),
        ("", False, False),
        ("", True, True),
        ("garbage", True, True),
    ],
    ids=["alive", "elsewhere", "elsewhere long ago", "new", "nobody's", "garbage"],
)
def test_soft_locks_that_may_be_held_stay(dataset, owner, old, stale):
    lock = storage.soft_lock_path(dataset / TRACES)
    lock.write_text(owner.format(me=os.getpid(), here=socket.gethostname()))
    if old:
        make_old(lock)
    assert kinds(examine(dataset)) == [Kind.STALE_LOCK] * stale
    repair(dataset)
    assert lock.exists() is not stale


def test_files_of_dead_writers(dataset):
    folder = dataset / "traces/gemm"
    (folder / f"{NAME}.jsonl.torn").write_bytes(b'{"a\n')
    old, young = folder / f".{NAME}.jsonl.abcd_123", folder / f".{NAME}.jsonl.abcd_124"
    for path in (old, young, storage.lock_path(dataset / TRACES)):
        path.write_bytes(b"{}")
    make_old(old)
    make_old(storage.lock_path(dataset / TRACES))
    assert kinds(examine(dataset)) == [Kind.LEFTOVER, Kind.TORN_FILE]
    done = repair(dataset)
    assert done.left.is_clean
    assert young.exists()
    assert not old.exists()
    assert (done.backup / f"traces/gemm/{NAME}.jsonl.torn").read_bytes() == b'{"a\n'


# ------------------------------------------------------------------------------- odd folders


def test_links_that_lead_nowhere(dataset):
    (dataset / "traces/gemm/gone.jsonl").symlink_to("nowhere.jsonl")
    (dataset / "definitions/round.json").symlink_to("round.json")
    found = examine(dataset)
    assert kinds(found) == [Kind.UNREADABLE, Kind.UNREADABLE]
    assert {one.message for one in found.issues} == {"this link leads nowhere"}
    assert found.counts["traces"] == 3
    assert repair(dataset, orphans=True).taken == ()


@pytest.mark.parametrize("link", ["traces/up", "traces/gemm/same.jsonl", "workloads/hard.jsonl"])
def test_one_file_by_two_ways_keeps_its_lines(dataset, link):
    """Its lines look like copies of themselves; to take them out would take the only ones."""
    if link.endswith("up"):
        (dataset / link).symlink_to("..")
    elif link.endswith("same.jsonl"):
        (dataset / link).symlink_to(dataset / TRACES)
    else:
        os.link(dataset / WORKLOADS, dataset / link)
    before = {path: (dataset / path).read_bytes() for path in (TRACES, WORKLOADS)}
    found = examine(dataset)
    twice = [one for one in found.issues if one.kind is Kind.DUPLICATE_LINE]
    assert twice
    assert all("by another way" in one.message and one.line is None for one in twice)
    assert found.counts["traces"] == 3
    repair(dataset, orphans=True)
    assert {path: (dataset / path).read_bytes() for path in (TRACES, WORKLOADS)} == before


def test_a_file_where_a_folder_should_be(dataset):
    shutil.rmtree(dataset / "traces")
    (dataset / "traces").write_text("not a folder")
    found = only(dataset)
    assert (found.kind, str(found.path)) == (Kind.UNREADABLE, "traces")
    assert "Not a directory" in found.message


def test_folders_deeper_than_a_path_may_be_long(dataset):
    deepen(dataset / "traces")
    found = only(dataset)
    assert found.kind is Kind.UNREADABLE
    assert "cannot be listed" in found.message
    assert repair(dataset).taken == ()
    assert examine(dataset).counts["traces"] == 3


def test_a_file_that_goes_while_the_doctor_looks(dataset, monkeypatch):
    original = Path.stat
    path = dataset / TRACES

    def stat(self, **options):
        if self == path:
            self.unlink(missing_ok=True)
        return original(self, **options)

    monkeypatch.setattr(Path, "stat", stat)
    found = examine(dataset)
    assert found.is_clean
    assert found.counts["traces"] == 0
