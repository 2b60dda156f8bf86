"""The ranks of an engine record into one dataset: nothing is lost, nothing is there twice."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.repair import examine
from flashinfer_bench.tracing.store import Added, Store

RANK = """
    rank = int(sys.argv[2])
    store = Store(root, DEFINITIONS)
    added = [0, 0]
    for start in range(0, 200, 20):
        entries = []
        for number in range(start, start + 20):
            # Half of what a rank sees is what all others see, too.
            shared = number % 2 == 0
            entries.append(decode(number + 1, 0.5 if shared else float(rank)))
        for place, count in enumerate(store.add(entries)):
            added[place] += count
    print(*added)
"""


def test_four_processes_of_two_hundred_entries(root, child, records):
    processes = [child.start(RANK, root, rank) for rank in range(1, 5)]
    outcomes = [Added(*map(int, child.finish(one).split())) for one in processes]
    assert sum(one.written + one.known for one in outcomes) == 4 * 200
    found = records(root)
    uuids = {record["workload"]["uuid"] for record in found}
    assert len(found) == len(uuids) == 100 + 4 * 100
    assert sum(one.written for one in outcomes) == len(found)
    # Every call of every rank is there, with tensors that can be read.
    scales = {
        (r["workload"]["axes"]["batch"], r["workload"]["inputs"]["scale"]["value"]) for r in found
    }
    assert scales == {(n + 1, 0.5) for n in range(0, 200, 2)} | {
        (n + 1, float(rank)) for n in range(1, 200, 2) for rank in range(1, 5)
    }
    diagnosis = examine(root)
    assert diagnosis.issues == ()
    assert len(list((root / "blob").rglob("*.safetensors"))) == 200


def test_files_hold_what_their_workloads_say(root, child):
    processes = [child.start(RANK, root, rank) for rank in range(1, 3)]
    for one in processes:
        child.finish(one)
    trace_set = TraceSet.from_path(root)
    for trace in trace_set.workloads["decode_h4"]:
        tensors = trace_set.get_workload_blob_tensor(trace.workload.inputs["indptr"].path)
        batch = trace.workload.axes["batch"]
        assert tensors["indptr"].tolist() == list(range(batch + 1))


def test_soft_locks(root, child, records):
    environment = {**os.environ, "FIB_DATASET_LOCK": "soft"}
    processes = [child.start(RANK, root, rank, env=environment) for rank in range(1, 3)]
    for one in processes:
        child.finish(one)
    assert len(records(root)) == 100 + 2 * 100
    assert examine(root).issues == ()


FOR_EVER = """
    store, number = Store(root, DEFINITIONS), int(sys.argv[2])
    while True:
        number += 1
        store.add([decode(number), norm(number)])
        print(number, flush=True)
"""


def test_killed_at_any_moment(root, child, records, calls):
    """Whatever was reported is there; what a killed process leaves disturbs nobody."""
    reported = []
    for attempt in range(3):
        process = child.start(FOR_EVER, root, attempt * 1000)
        reported.append(int(process.stdout.readline()))
        time.sleep(0.02 + 0.017 * attempt)
        process.kill()
        rest, _ = process.communicate()
        reported += [int(text) for text in rest.splitlines(keepends=True) if text.endswith(b"\n")]
    Store(root, calls.DEFINITIONS).add([calls.decode(9999), calls.norm(9999)])
    found = records(root)
    batches = {r["workload"]["axes"].get("batch") for r in found}
    assert set(reported) <= batches
    assert len({r["workload"]["uuid"] for r in found}) == len(found)
    trace_set = TraceSet.from_path(root)
    for trace in trace_set.workloads["decode_h4"]:
        trace_set.get_workload_blob_tensor(trace.workload.inputs["indptr"].path)


def test_a_stopped_process_does_not_stop_the_others(root, child, calls, monkeypatch):
    """A process that holds the lock and is not dead: others wait, lose entries, and say so."""
    from flashinfer_bench.tracing.store import LostEntriesError
    from flashinfer_bench.tracing.store import store as module

    monkeypatch.setattr(module, "LOCK_TIMEOUT_S", 0.2)
    holder = child.start(
        """
        from flashinfer_bench.data.layout import workloads_file
        from flashinfer_bench.data.storage import locked
        from flashinfer_bench.tracing.store.store import tracing_lock
        with locked(tracing_lock(workloads_file(root, "rmsnorm", "norm/h8"))):
            print("held", flush=True)
            sys.stdin.read()
        """,
        root,
        stdin=-1,
    )
    assert holder.stdout.readline() == b"held\n"
    os.kill(holder.pid, signal.SIGSTOP)
    store = Store(root, calls.DEFINITIONS)
    try:
        with pytest.raises(LostEntriesError, match="has held its lock") as caught:
            store.add([calls.norm(1), calls.decode(1)])
        assert caught.value.lost == 1
        assert caught.value.added == Added(1, 0)
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()
    assert store.add([calls.norm(1)]) == Added(1, 0)


# ------------------------------------------------------------------------------------- forking

FORK = """
    import os
    store = Store(root, DEFINITIONS)
    assert store.add([norm(1), norm(1)]) == (2, 0)
    pid = os.fork()
    if pid == 0:
        # The same two calls in another rank are the same two workloads.
        print(*store.add([norm(1), norm(1), norm(2)]), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    print(*store.add([norm(2), norm(1)]))
"""


def test_a_forked_process_counts_anew(root, child):
    assert child.run(FORK, root).split("\n")[:2] == ["1 2", "1 1"]


FORK_WHILE_ANOTHER_THREAD_WRITES = """
    import os, threading, time
    store = Store(root, DEFINITIONS)
    inside, leave = threading.Event(), threading.Event()

    class Slow(Call):
        def values(self):
            inside.set()
            leave.wait(30)
            return {}

    thread = threading.Thread(target=store.add, args=([Slow("norm/h8", {"M": 1})],))
    thread.start()
    inside.wait(30)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if store.add([norm(5)]) == (1, 0) else 1)
    _, status = os.waitpid(pid, 0)
    leave.set()
    thread.join()
    print(os.waitstatus_to_exitcode(status))
"""


def test_a_lock_that_a_thread_of_the_parent_held(root, child, records):
    assert child.run(FORK_WHILE_ANOTHER_THREAD_WRITES, root) == "0\n"
    assert [r["workload"]["axes"]["M"] for r in records(root)] == [5, 1]


def test_threads_and_processes_at_once(root, child, calls, records):
    process = child.start(RANK, root, 1)
    store = Store(root, calls.DEFINITIONS)

    def work(number):
        for size in range(number, 200, 4):
            store.add([calls.decode(size + 1, 0.5 if size % 2 == 0 else 1.0)])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    child.finish(process)
    assert len(records(root)) == 200
