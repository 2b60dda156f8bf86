"""The doctor finds each kind of damage, and takes out only what nobody misses."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_datasets.repair import Kind, Remedy, examine, repair
from fib_tests.damage import (
    NAME,
    TRACES,
    WORKLOADS,
    append,
    contents,
    kinds,
    make_old,
    named,
    only,
    write_blob,
)
from flashinfer_bench.data import TraceSet, storage
from flashinfer_bench.data.storage import append_lines
from flashinfer_bench.errors import StorageError

# ------------------------------------------------------------------------------------------- lines


def test_torn_and_invalid_lines_are_moved_and_the_rest_stays(dataset):
    path = dataset / TRACES
    first, *rest = path.read_bytes().splitlines(keepends=True)
    bad = [b"not json\n", b'{"definition": 5}\n', b"\xff\xfe\n", b'{"definition": "gemm_n']
    path.write_bytes(bad[0] + first + bad[1] + b"\n" + b"".join([*rest, *bad[2:]]))
    with pytest.raises(ValueError, match="not valid"):
        _ = TraceSet.from_path(dataset).traces
    found = examine(dataset).issues
    assert [(one.line, one.remedy) for one in found] == [(n, Remedy.SAFE) for n in (1, 3, 7, 8)]
    done = repair(dataset)
    assert [one.kind for one in done.taken] == [Kind.INVALID_LINE] * 3 + [Kind.TORN_LINE]
    assert done.left.is_clean
    told = [json.loads(line) for line in (done.backup / "taken.jsonl").read_text().splitlines()]
    assert [(one["kind"], one["path"], one["line"]) for one in told] == [
        *(("invalid_line", TRACES, line) for line in (1, 3, 7)),
        ("torn_line", TRACES, 8),
    ]
    assert "not valid JSON" in told[0]["message"]
    assert path.read_bytes() == first + b"\n" + b"".join(rest)
    assert (done.backup / TRACES).read_bytes() == b"".join(bad) + b"\n"
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
    assert found.issues[0].message == f"a copy of the line at {TRACES}:1"
    repair(dataset)
    assert path.read_bytes() == before
    assert other.read_bytes() == b""


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


def test_unknown_solutions_are_notes_and_those_of_others_are_not(dataset, make, writer):
    for name in ("gone", "gone", "left"):
        append(dataset / TRACES, json.dumps(make.trace_record(name, uuid=str(time.time_ns()))))
        append(dataset / TRACES, "\n")
    found = examine(dataset)
    assert kinds(found) == [Kind.UNKNOWN_SOLUTION] * 2
    assert "one of 2 traces" in found.issues[0].message
    assert found.is_clean
    writer.json("definitions/gemm/other.json", make.definition_record("other"))
    writer.lines("traces/other.jsonl", {**make.trace_record("alice_v1"), "definition": "other"})
    assert kinds(examine(dataset)) == [*kinds(found), Kind.WRONG_SOLUTION]


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


@pytest.mark.parametrize(
    ("owner", "old", "stale"),
    [
        ("{dead}\n{here}\n", False, True),
        ("{me}\n{here}\n", True, False),
        ("1\nanother-host\n", False, False),
        ("1\nanother-host\n", True, True),
        ("", False, False),
        ("", True, True),
        ("garbage", True, True),
    ],
    ids=["dead", "alive", "elsewhere", "elsewhere long ago", "new", "nobody's", "garbage"],
)
def test_stale_soft_locks_are_moved(dataset, owner, old, stale):
    with subprocess.Popen(["true"]) as dead:
        pass
    lock = storage.soft_lock_path(dataset / TRACES)
    lock.write_text(owner.format(me=os.getpid(), dead=dead.pid, here=socket.gethostname()))
    if old:
        make_old(lock)
    assert kinds(examine(dataset)) == [Kind.STALE_LOCK] * stale
    done = repair(dataset)
    assert lock.exists() is not stale
    assert not stale or (done.backup / lock.relative_to(dataset)).exists()


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
    assert {one.message for one in found.issues} == {"broken link"}
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
    assert all("this is the same file as" in one.message and one.line is None for one in twice)
    assert found.counts["traces"] == 3
    repair(dataset, orphans=True)
    assert {path: (dataset / path).read_bytes() for path in (TRACES, WORKLOADS)} == before


def test_nothing_is_an_orphan_for_sure_while_a_definition_is_broken(dataset):
    path = dataset / f"definitions/gemm/{NAME}.json"
    path.write_text(path.read_text()[:-20])
    before = contents(dataset)
    done = repair(dataset, orphans=True)
    assert done.taken == ()
    assert {one.remedy for one in done.left.issues} == {Remedy.BY_HAND}
    assert contents(dataset) == before


WRITER = """
    import sys
    from flashinfer_bench.data import TraceSet
    trace_set = TraceSet.from_path(sys.argv[1], on_error="collect")
    template = trace_set.traces["gemm_n8_k4"][0]
    sys.stdin.readline()
    for number in range(150):
        workload = template.workload.model_copy(update={"uuid": f"{sys.argv[2]}-{number}"})
        trace_set.add_traces([template.model_copy(update={"workload": workload})])
"""


def test_appends_during_repairs_lose_nothing(dataset, python):
    path = dataset / TRACES
    writers = [
        python.start(WRITER, dataset, name, stdin=subprocess.PIPE) for name in ("one", "two")
    ]
    for writer in writers:
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    repairs = 0
    while any(writer.poll() is None for writer in writers):
        append_lines(path, [b"broken %d\n" % repairs])
        assert len(repair(dataset).taken) >= 1
        repairs += 1
    for writer in writers:
        python.finish(writer)
    assert repair(dataset).left.is_clean
    uuids = [trace.workload.uuid for trace in TraceSet.from_path(dataset).traces[NAME]]
    assert sorted(uuids[3:]) == sorted(f"{name}-{n}" for name in ("one", "two") for n in range(150))
    taken = [
        line
        for folder in dataset.glob("doctor_backup_*")
        for line in (folder / TRACES).read_text().splitlines()
    ]
    assert sorted(taken) == sorted(f"broken {number}" for number in range(repairs))


def test_two_repairs_at_a_time_leave_one_of_two_equal_lines(dataset):
    path = dataset / TRACES
    before = path.read_bytes()
    other = path.with_name("copy.jsonl")
    other.write_bytes(before + before)
    start = threading.Barrier(3)

    def run(_):
        start.wait()
        repair(dataset)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(run, range(3)))  # raises what a repair raises
    whole = path.read_bytes() + other.read_bytes()
    assert sorted(whole.splitlines()) == sorted(before.splitlines())


def test_a_repair_that_is_killed_loses_nothing(dataset, python):
    """Killed when the backup is written and the file is not yet replaced."""
    path = dataset / TRACES
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(b"broken\n")
    script = """
        import os, signal, sys
        from pathlib import Path
        from fib_datasets.repair import mend, repair
        mend.replace_file = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        repair(Path(sys.argv[1]))
    """
    python.run(script, dataset, code=-signal.SIGKILL)
    assert path.read_bytes() == whole + b"broken\n"
    done = repair(dataset)
    assert path.read_bytes() == whole
    assert (done.backup / TRACES).read_text() == "broken\n"
