"""Writing survives crowds, crashes and full disks. Real processes, real files, real signals."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data import storage
from flashinfer_bench.data.storage import append_lines, locked, replace_file
from flashinfer_bench.errors import StorageError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "x.jsonl"


# -------------------------------------------------------------------------------------- appending


def test_a_complete_last_line_is_terminated_first(path):
    path.parent.mkdir()
    path.write_bytes(b'{"a":1}')
    append_lines(path, [b'{"b":2}\n'])
    assert path.read_bytes() == b'{"a":1}\n{"b":2}\n'


def test_a_broken_last_line_stays_a_line_of_its_own(path):
    path.parent.mkdir()
    path.write_bytes(b"{broken")
    append_lines(path, [b'{"b":2}\n'])
    assert path.read_bytes() == b'{broken\n{"b":2}\n'


@pytest.mark.parametrize("size", [10, storage._BLOCK - 1, storage._BLOCK, 3 * storage._BLOCK + 7])
def test_torn_lines_of_any_length_are_moved_aside(path, size, caplog):
    path.parent.mkdir()
    torn = b'{"x": "' + b"y" * size
    path.write_bytes(b"{}\n" + torn)
    append_lines(path, [b"{}\n"])
    assert path.read_bytes() == b"{}\n{}\n"
    assert path.with_name("x.jsonl.torn").read_bytes() == torn + b"\n"
    assert "moved an unfinished last line" in caplog.text


_RECORDS = st.lists(
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9)), max_size=4
)


@given(_RECORDS, st.data())
def test_after_a_cut_anywhere_no_whole_record_is_lost(tmp_path_factory, records, data):
    path = tmp_path_factory.mktemp("cut") / "x.jsonl"
    lines = [(json.dumps(record) + "\n").encode() for record in records]
    cut = data.draw(st.integers(0, sum(map(len, lines))))
    path.write_bytes(b"".join(lines)[:cut])
    append_lines(path, [b'{"last": true}\n'])
    kept = [json.loads(line) for line in path.read_bytes().splitlines()]
    whole = path.read_bytes().count(b"\n") - 1
    assert kept == [*records[:whole], {"last": True}]
    assert sum(map(len, lines[: whole + 1])) > cut or whole == len(lines)


def test_a_held_lock_is_waited_for_and_then_named(path):
    errors = []

    def wait():
        try:
            with locked(path, timeout_s=0.05):
                pass
        except StorageError as error:
            errors.append(str(error))

    with locked(path):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
    [message] = errors
    assert "another process has held its lock for 0.05 s" in message
    assert str(path.with_name(".x.jsonl.lock")) in message


def test_a_lock_of_a_dead_process_is_free(path, python):
    process = python.start(
        """
        import os, signal, sys
        from pathlib import Path
        from flashinfer_bench.data.storage import locked
        with locked(Path(sys.argv[1])):
            os.kill(os.getpid(), signal.SIGKILL)
        """,
        path,
    )
    python.finish(process, -signal.SIGKILL)
    with locked(path, timeout_s=1.0):
        pass


def test_two_processes_append_at_the_same_time(dataset, python):
    script = """
        import sys
        from flashinfer_bench.data import Trace, TraceSet
        trace_set = TraceSet.from_path(sys.argv[1])
        template = trace_set.traces["gemm_n8_k4"][0]
        sys.stdin.readline()
        for number in range(200):
            workload = template.workload.model_copy(update={"uuid": f"{sys.argv[2]}-{number}"})
            trace_set.add_traces([template.model_copy(update={"workload": workload})])
    """
    both = [python.start(script, dataset, name, stdin=subprocess.PIPE) for name in ("one", "two")]
    for process in both:  # all are ready before any begins
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in both:
        python.finish(process)
    from flashinfer_bench.data import TraceSet

    uuids = [trace.workload.uuid for trace in TraceSet.from_path(dataset).traces["gemm_n8_k4"]]
    assert len(uuids) == 3 + 400
    assert set(uuids[3:]) == {f"{name}-{n}" for name in ("one", "two") for n in range(200)}
    for name in ("one", "two"):  # each writer's own order is kept
        mine = [uuid for uuid in uuids if uuid.startswith(name)]
        assert mine == [f"{name}-{number}" for number in range(200)]


# ---------------------------------------------------------------------------------- replacing files


def test_a_file_is_written_as_a_whole(path):
    replace_file(path, b"one")
    replace_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert [file.name for file in path.parent.iterdir()] == ["x.jsonl"]


def test_a_new_file_has_ordinary_permissions(path):
    before = os.umask(0o027)
    try:
        replace_file(path, b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
