"""The doctor finds each kind of damage, and takes out only what nobody misses."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashinfer_bench.data import TraceSet, storage
from flashinfer_bench.data.repair import Kind, Remedy, examine, repair
from flashinfer_bench.errors import DatasetNotFoundError, StorageError

NAME = "gemm_n8_k4"
TRACES = f"traces/gemm/{NAME}.jsonl"
WORKLOADS = f"workloads/gemm/{NAME}.jsonl"


def kinds(diagnosis):
    return [one.kind for one in diagnosis.issues]


def only(root):
    (found,) = examine(root).issues
    return found


def append(path, text):
    with path.open("ab") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


def make_old(path):
    before = time.time() - 7200
    os.utime(path, (before, before))


def contents(root):
    """Return every file of a dataset that readers look at."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not any(part.startswith((".", "doctor_")) for part in path.parts)
    }


def write_blob(path, count=2):
    header = {"x": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4 * count))
    make_old(path)


def named(make, blob, uuid="w9"):
    record = make.trace_record(None, uuid=uuid, m=2)
    name = next(iter(record["workload"]["inputs"]))
    spec = {"type": "safetensors", "path": blob, "tensor_key": "x"}
    record["workload"]["inputs"][name] = spec
    return json.dumps(record) + "\n"


# ------------------------------------------------------------------------------------- sound


def test_a_sound_dataset_is_clean(dataset):
    found = examine(dataset)
    assert found.is_clean
    assert found.issues == ()
    assert found.counts == {"definitions": 1, "solutions": 2, "workloads": 2, "traces": 3}


def test_repairing_what_is_sound_changes_nothing(dataset):
    before = contents(dataset)
    done = repair(dataset, orphans=True)
    assert (done.taken, done.backup) == ((), None)
    assert contents(dataset) == before
    assert not list(dataset.glob("doctor_backup_*"))


def test_no_dataset(tmp_path):
    for carry_out in (examine, repair):
        with pytest.raises(DatasetNotFoundError, match="does not exist"):
            carry_out(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_an_empty_folder_is_clean(tmp_path):
    assert examine(tmp_path).is_clean


# ------------------------------------------------------------------------------------- lines


def test_a_torn_line_is_moved(dataset):
    before = contents(dataset)
    append(dataset / TRACES, '{"definition": "gemm_n')
    found = only(dataset)
    assert (found.kind, found.line, found.remedy) == (Kind.TORN_LINE, 4, Remedy.SAFE)
    done = repair(dataset)
    assert [one.kind for one in done.taken] == [Kind.TORN_LINE]
    assert done.left.is_clean
    assert contents(dataset) == before
    assert (done.backup / TRACES).read_text() == '{"definition": "gemm_n\n'


def test_invalid_lines_are_moved_and_the_rest_stays(dataset):
    path = dataset / TRACES
    first, *rest = path.read_bytes().splitlines(keepends=True)
    bad = [b"not json\n", b'{"definition": 5}\n', b"\xff\xfe\n"]
    path.write_bytes(bad[0] + first + bad[1] + b"\n" + b"".join(rest) + bad[2])
    with pytest.raises(ValueError, match="not valid"):
        _ = TraceSet.from_path(dataset).traces
    assert [one.line for one in examine(dataset).issues] == [1, 3, 7]
    done = repair(dataset)
    assert [one.kind for one in done.taken] == [Kind.INVALID_LINE] * 3
    assert path.read_bytes() == first + b"\n" + b"".join(rest)
    assert (done.backup / TRACES).read_bytes() == b"".join(bad)
    assert len(TraceSet.from_path(dataset).traces[NAME]) == 3


def test_duplicates_are_taken_once_the_first_stays(dataset):
    path = dataset / TRACES
    before = path.read_bytes()
    lines = before.splitlines(keepends=True)
    append(path, lines[0] + b"  " + lines[1])
    other = path.with_name("moved.jsonl")
    other.write_bytes(lines[2])
    found = examine(dataset)
    assert [(one.path.name, one.line) for one in found.issues] == [
        (path.name, 4),
        (path.name, 5),
        ("moved.jsonl", 1),
    ]
    assert found.issues[0].message == f"the same line stands at {TRACES}:1"
    repair(dataset)
    assert path.read_bytes() == before
    assert other.read_bytes() == b""


def test_the_same_run_again_is_no_duplicate(dataset):
    record = json.loads((dataset / TRACES).read_text().splitlines()[0])
    record["evaluation"]["timestamp"] = "2027-01-01T00:00:00"
    append(dataset / TRACES, json.dumps(record) + "\n")
    assert examine(dataset).is_clean


def test_a_file_that_is_one_document_is_left_to_a_human(dataset):
    path = dataset / TRACES
    records = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text(json.dumps([*records, records[0], {"definition": 3}], indent=2))
    before = path.read_bytes()
    found = examine(dataset)
    assert sorted(kinds(found)) == [Kind.DUPLICATE_LINE, Kind.INVALID_LINE]
    assert {one.remedy for one in found.issues} == {Remedy.BY_HAND}
    done = repair(dataset, orphans=True)
    assert done.taken == ()
    assert not done.left.is_clean
    assert path.read_bytes() == before


def test_a_link_is_not_made_into_a_file(dataset, tmp_path):
    path = dataset / TRACES
    target = tmp_path / "elsewhere.jsonl"
    path.rename(target)
    path.symlink_to(target)
    append(target, "broken\n")
    done = repair(dataset)
    assert done.taken == ()
    assert path.is_symlink()


def test_a_file_that_cannot_be_read(dataset):
    (dataset / "traces/gemm/gone.jsonl").symlink_to("nowhere.jsonl")
    (dataset / "traces/gemm/pipe.json").mkdir()
    assert examine(dataset).is_clean  # neither is a file that a reader would take


# ------------------------------------------------------------------------------ files and names


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


# -------------------------------------------------------------------------------------- blobs


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


# ---------------------------------------------------------------------------------- leftovers


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


# ------------------------------------------------------------------------------------ backups


def test_the_backup_says_what_was_taken_and_why(dataset):
    append(dataset / TRACES, "broken\n")
    done = repair(dataset)
    (record,) = map(json.loads, (done.backup / "taken.jsonl").read_text().splitlines())
    assert record["kind"] == "invalid_line"
    assert (record["path"], record["line"]) == (TRACES, 4)
    assert "not valid JSON" in record["message"]


def test_two_repairs_in_one_second_have_two_backups(dataset, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda _: "20260101_000000")
    backups = []
    for _ in range(2):
        append(dataset / TRACES, "broken\n")
        backups.append(repair(dataset).backup.name)
    assert backups == ["doctor_backup_20260101_000000", "doctor_backup_20260101_000000_2"]
    assert all((dataset / name / TRACES).read_text() == "broken\n" for name in backups)


def test_a_full_disk_leaves_everything_in_place(dataset, monkeypatch):
    append(dataset / TRACES, "broken\n")
    before = contents(dataset)

    def fail(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="No space left"):
        repair(dataset)
    assert contents(dataset) == before


# ------------------------------------------------------------------------------- any damage


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 9), st.integers(0, 4000), st.binary(max_size=40), st.integers(0, 60))
def test_whatever_was_done_to_a_file(dataset, choose, place, garbage, dropped):
    """Nothing is lost, what was whole stays, and a second repair has nothing to do."""
    root = dataset.with_name("damaged")
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(dataset, root)
    paths = [root / TRACES, root / WORKLOADS, *sorted(root.rglob("*.json"))]
    path = paths[choose % len(paths)]
    text = path.read_bytes()
    at = place % (len(text) + 1)
    path.write_bytes(text[:at] + garbage + text[at + dropped :])
    readable = len(TraceSet.from_path(root, on_error="collect").traces.get(NAME, []))
    lines = {line.strip() for line in path.read_bytes().split(b"\n")}
    done = repair(root)
    again = repair(root)
    assert again.taken == ()
    assert again.left.issues == done.left.issues
    kept = {line.strip() for line in path.read_bytes().split(b"\n")}
    backup = done.backup and done.backup / path.relative_to(root)
    taken = backup.read_bytes().split(b"\n") if backup and backup.exists() else []
    assert lines <= kept | {line.strip() for line in taken}
    loaded = TraceSet.from_path(root, on_error="collect")
    assert len(loaded.traces.get(NAME, [])) == readable
    if path.suffix == ".jsonl" and not done.left.issues:
        assert loaded.load_errors == []
    assert not any(Path(one.path).is_absolute() for one in done.left.issues)
