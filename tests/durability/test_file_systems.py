"""Full and read-only file systems: real ones, mounted where that is possible."""

from __future__ import annotations

import errno
import os

import pytest

from flashinfer_bench.data import storage
from flashinfer_bench.errors import StorageError

FILL = """
import sys
from pathlib import Path
from flashinfer_bench.data import TraceSet, Trace
from flashinfer_bench.errors import StorageError

root = Path(sys.argv[1])
trace_set = TraceSet.from_path(root)
workload = trace_set.workloads["double"][0].workload.model_dump()
evaluation = {"status": "RUNTIME_ERROR", "environment": {"hardware": "none"},
              "timestamp": "2026-01-01T00:00:00", "log": "x" * 3000}
added = 0
try:
    while True:
        record = {"definition": "double", "solution": "alice", "evaluation": evaluation,
                  "workload": {**workload, "uuid": f"t{added}"}}
        before = {file: file.read_bytes() for file in root.rglob("*.json*")}
        trace_set.add_traces([Trace.model_validate(record)])
        added += 1
except StorageError as error:
    print(error)
after = {file: file.read_bytes() for file in root.rglob("*.json*")}
assert after == before, "the full disk changed a file"
assert len(TraceSet.from_path(root).traces["double"]) == added > 5
from fib_datasets.repair import examine
assert examine(root).is_clean
"""

READ_ONLY = """
import sys
from pathlib import Path
from flashinfer_bench.data import TraceSet
from fib_datasets.repair import examine, repair
from flashinfer_bench.errors import StorageError
from flashinfer_bench.validate import validate_dataset

root = Path(sys.argv[1])
trace_set = TraceSet.from_path(root)
assert trace_set.summary().total == 0
assert len(trace_set.workloads["double"]) == 4
validate_dataset(root)
assert examine(root).is_clean
for write in (lambda: trace_set.add_workload_traces(trace_set.workloads["double"]),
              lambda: repair(root)):
    try:
        write()
    except StorageError as error:
        print(error)
    else:
        raise SystemExit("it was written")
"""


def test_a_full_disk_leaves_the_previous_state(mounted, kills, tmp_path):
    root = kills.write_dataset(tmp_path / "dataset")
    script = """
        mount -t tmpfs -o size=128k tmpfs /mnt
        cp -r "$1" /mnt/dataset
        "$0" -c "$2" /mnt/dataset
    """
    told = mounted(script, root, FILL)
    assert "cannot write: No space left on device" in told
    assert "free some space" in told


def test_a_read_only_dataset_can_be_read(mounted, kills, tmp_path):
    root = kills.write_dataset(tmp_path / "dataset")
    script = """
        mount -t tmpfs tmpfs /mnt
        cp -r "$1" /mnt/dataset
        mount -o remount,ro /mnt
        "$0" -c "$2" /mnt/dataset
    """
    told = mounted(script, root, READ_ONLY)
    assert told.count("Read-only file system") == 2
    assert told.count("change the permissions") == 2


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(tmp_path, monkeypatch, number):
    def fail(self):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(storage.FileLock, "_acquire", fail)
    with pytest.raises(StorageError) as caught:
        storage.append_lines(tmp_path / "x.jsonl", [b"{}\n"])
    assert "FIB_DATASET_LOCK=soft" in caught.value.hint
    assert not (tmp_path / "x.jsonl").exists()
    monkeypatch.setenv("FIB_DATASET_LOCK", "soft")
    storage.append_lines(tmp_path / "x.jsonl", [b"{}\n"])
    assert (tmp_path / "x.jsonl").read_bytes() == b"{}\n"


def test_sync_policy(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(storage.os, "fsync", synced.append)
    storage.append_lines(tmp_path / "x.jsonl", [b"{}\n"])
    storage.replace_file(tmp_path / "y.json", b"{}")
    assert len(synced) == 4  # two files, and their names in the folder
    monkeypatch.setenv("FIB_FSYNC", "never")
    storage.append_lines(tmp_path / "x.jsonl", [b"{}\n"])
    storage.replace_file(tmp_path / "y.json", b"{}")
    assert len(synced) == 4
    monkeypatch.setenv("FIB_FSYNC", "sometimes")
    with pytest.raises(ValueError, match="allowed are always, never"):
        storage.replace_file(tmp_path / "y.json", b"{}")
