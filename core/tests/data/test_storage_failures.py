"""Killed writers and full disks: real processes, real signals, real limits."""

from __future__ import annotations

import errno
import json
import os
import signal
import time

import pytest

from flashinfer_bench.data import TraceSet, storage
from flashinfer_bench.data.storage import append_lines, replace_file
from flashinfer_bench.errors import StorageError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "x.jsonl"


# ---------------------------------------------------------------------------------------- crashes

DIE_IN_THE_MIDDLE = """
    import os, signal, sys
    from pathlib import Path
    from flashinfer_bench.data import storage

    real_write = os.write

    def half(descriptor, data):
        if len(data) < 100:
            return real_write(descriptor, data)
        real_write(descriptor, data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    storage.os.write = half
    storage.append_lines(Path(sys.argv[1]), [b'{"log": "' + b"x" * 5000 + b'"}\\n'])
"""


def test_killed_in_the_middle_of_a_write(dataset, make, python):

    path = dataset / "traces" / "gemm" / "gemm_n8_k4.jsonl"
    before = path.read_bytes()
    python.run(DIE_IN_THE_MIDDLE, path, code=-signal.SIGKILL)
    assert before < path.read_bytes()
    assert path.read_bytes().startswith(before)

    trace_set = TraceSet.from_path(dataset)
    assert len(trace_set.traces["gemm_n8_k4"]) == 3
    trace_set.add_traces([make.trace(uuid="after")])
    uuids = [trace.workload.uuid for trace in TraceSet.from_path(dataset).traces["gemm_n8_k4"]]
    assert uuids == ["w1", "w1", "w2", "after"]


def test_killed_at_any_moment(tmp_path, python):
    """A writer of large lines is killed again and again; every record that it reported is there."""
    path = tmp_path / "x.jsonl"
    script = """
        import sys
        from pathlib import Path
        from flashinfer_bench.data.storage import append_lines
        number, log = int(sys.argv[2]), b"x" * 2_000_000
        while True:
            append_lines(Path(sys.argv[1]), [b'{"n": %d, "log": "%s"}\\n' % (number, log)])
            print(number, flush=True)
            number += 1
    """
    reported = []
    for attempt in range(4):
        process = python.start(script, path, attempt * 1000)
        reported.append(int(process.stdout.readline()))
        time.sleep(0.01 + 0.013 * attempt)
        process.kill()
        rest, _ = process.communicate()
        reported.extend(
            int(line) for line in rest.splitlines(keepends=True) if line.endswith(b"\n")
        )
    append_lines(path, [b'{"n": -1}\n'])
    found = [json.loads(line)["n"] for line in path.read_bytes().splitlines()]
    assert set(reported) <= set(found)
    assert len(found) == len(set(found))
    assert found[-1] == -1


# ------------------------------------------------------------------------------------- full disks

LIMITED = """
    import resource, sys
    from pathlib import Path
    from flashinfer_bench.data import storage
    from flashinfer_bench.errors import StorageError

    path, limit = Path(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        getattr(storage, sys.argv[3])(path, eval(sys.argv[4]))
    except StorageError as error:
        print(error.errno, error)
"""


def test_a_full_disk_during_an_append_keeps_what_was_there(path, python):
    append_lines(path, [b'{"a":1}\n'])
    before = path.read_bytes()
    text = python.run(LIMITED, path, len(before) + 50, "append_lines", "[b'x' * 200 + b'\\n']")
    assert text.startswith(f"{errno.EFBIG} {path}: cannot write: File too large")
    assert "hint: free some space" in text
    assert path.read_bytes() == before
    append_lines(path, [b'{"b":2}\n'])
    assert path.read_bytes() == before + b'{"b":2}\n'


def test_a_full_disk_during_a_replacement_keeps_the_old_file(path, python):
    replace_file(path, b"old")
    text = python.run(LIMITED, path, 100, "replace_file", "b'x' * 1000")
    assert text.startswith(str(errno.EFBIG))
    assert path.read_bytes() == b"old"
    assert [file.name for file in path.parent.iterdir()] == ["x.jsonl"]


@pytest.mark.parametrize(
    ("cause", "seen"),
    [(OSError(errno.EIO, "Input/output error"), StorageError), (KeyboardInterrupt(), None)],
)
def test_a_failed_sync_or_an_interrupt_takes_the_lines_back(path, monkeypatch, cause, seen):
    append_lines(path, [b"{}\n"])

    def fail(descriptor):
        raise cause

    monkeypatch.setattr(storage.os, "fsync", fail)
    with pytest.raises(seen or KeyboardInterrupt):
        append_lines(path, [b'{"b":2}\n'])
    assert path.read_bytes() == b"{}\n"


def test_short_writes_are_continued(path, monkeypatch):
    real_write = os.write
    monkeypatch.setattr(storage.os, "write", lambda fd, data: real_write(fd, bytes(data[:3])))
    append_lines(path, [b'{"long": "line"}\n'])
    assert path.read_bytes() == b'{"long": "line"}\n'
