"""The doctor finds each kind of damage to lines, and takes out only what nobody misses."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.repair import Kind, Remedy, examine, repair
from flashinfer_bench.errors import DatasetNotFoundError, SelectionError, StorageError

sys.path.insert(0, str(Path(__file__).parent))
from damage import NAME, TRACES, WORKLOADS, append, contents, kinds, only

# ------------------------------------------------------------------------------------------- sound


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


def test_a_folder_that_is_no_dataset_is_not_called_clean(tmp_path):
    (tmp_path / "readme.md").touch()
    for carry_out in (examine, repair):
        with pytest.raises(SelectionError, match="nothing in the dataset"):
            carry_out(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["readme.md"]


def test_an_empty_dataset_is_clean(tmp_path):
    (tmp_path / "definitions").mkdir()
    assert examine(tmp_path).is_clean


# ------------------------------------------------------------------------------------------- lines


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


# ----------------------------------------------------------------------------------------- backups


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


# -------------------------------------------------------------------------------------- any damage


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
