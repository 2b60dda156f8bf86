"""Repairs while other processes append, and repairs of each other."""

from __future__ import annotations

import json
import signal
import subprocess
import threading

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.repair import examine, repair
from flashinfer_bench.data.storage import append_lines, locked

NAME = "gemm_n8_k4"
TRACES = f"traces/gemm/{NAME}.jsonl"

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
    errors = []

    def run():
        start.wait()
        try:
            repair(dataset)
        except Exception as error:  # noqa: BLE001 - raised in the test instead
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    whole = path.read_bytes() + other.read_bytes()
    assert sorted(whole.splitlines()) == sorted(before.splitlines())


def test_a_repair_waits_for_an_append(dataset):
    path = dataset / TRACES
    with path.open("ab") as file:
        file.write(b"broken\n")
    done = threading.Event()

    def run():
        repair(dataset)
        done.set()

    thread = threading.Thread(target=run)
    with locked(path):
        thread.start()
        assert not done.wait(0.3)
        with path.open("ab") as file:  # what the holder of the lock has just begun
            file.write(b"another\n")
    thread.join()
    assert examine(dataset).is_clean
    (backup,) = dataset.glob("doctor_backup_*")
    assert (backup / TRACES).read_text() == "broken\nanother\n"


def test_a_repair_that_is_killed_loses_nothing(dataset, python):
    """Killed when the backup is written and the file is not yet replaced."""
    path = dataset / TRACES
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(b"broken\n")
    script = """
        import os, signal, sys
        from pathlib import Path
        from flashinfer_bench.data.repair import mend, repair
        mend.replace_file = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        repair(Path(sys.argv[1]))
    """
    python.run(script, dataset, code=-signal.SIGKILL)
    assert path.read_bytes() == whole + b"broken\n"
    done = repair(dataset)
    assert path.read_bytes() == whole
    assert (done.backup / TRACES).read_text() == "broken\n"


def test_issues_are_plain_data(dataset):
    with (dataset / TRACES).open("ab") as file:
        file.write(b"broken\n")
    (one,) = examine(dataset).issues
    assert json.dumps([one.kind, one.remedy, str(one.path), one.line, one.message])
    assert one.where == f"{TRACES}:4"
