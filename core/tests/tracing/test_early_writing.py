"""What is recorded reaches the disk soon, and by itself: it outlives a process that is killed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from textwrap import dedent

import pytest

from fib_tests import forked
from fib_tests.damage import assert_clean
from fib_tests.recorded import DECODE, GEMM, Sink, decode_inputs, gemm_inputs, written
from fib_tests.threads import eventually
from flashinfer_bench.data import TraceSet
from flashinfer_bench.tracing import (
    FilterPolicy,
    KeyedPolicy,
    OnlinePolicy,
    TracingConfig,
    TracingRuntime,
    runtime,
)

START = """
import os, resource, signal, sys, time
from pathlib import Path
from fib_tests.recorded import *
from flashinfer_bench.tracing import *
from flashinfer_bench.tracing.store import Added
root = Path(sys.argv[1])

def sizes(*found):
    for m in found:
        tracing.collect(GEMM.name, gemm_inputs(m))

def wait():
    print("ready", flush=True)
    time.sleep(600)
"""


def start(root, script):
    command = [sys.executable, "-c", START + dedent(script), str(root)]
    return forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def lines(root):
    """Return the sizes that are in the dataset; whatever is there can be read."""
    return sorted(each["workload"]["axes"]["M"] for each in written(root))


RECORDS = """
    with enable_tracing(root, TracingConfig("dump_all", filter_policy={policy!r})) as tracing:
        sizes(1, 2, 2, 5, 5)
        while sum(tracing.stats()[each] for each in ("written", "known")) < {count}:
            time.sleep(0.01)
        wait()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize(
    ("policy", "sizes"), [("keep_all", [1, 2, 2, 5, 5]), ("keep_first_by_axes", [1, 2, 5])]
)
def test_a_program_that_is_killed(root, number, policy, sizes):
    """Nothing of ours is run then; what the next program records is not there twice."""
    for _ in range(2):
        process = start(root, RECORDS.format(policy=policy, count=len(sizes)))
        assert process.stdout.readline() == b"ready\n", process.communicate()
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (-number, b"")
        assert lines(root) == sizes
    assert_clean(root)
    found = TraceSet.from_path(root)
    for trace in found.workloads[GEMM.name]:
        tensors = found.get_workload_blob_tensor(trace.workload.inputs["A"].path)
        assert tensors["A"].shape == (trace.workload.axes["M"], 4)


def test_a_program_that_ends_while_the_thread_writes(root):
    script = """
        started = []
        class Slow:
            def add(self, entries):
                started.append(1)
                time.sleep(0.5)
                os.write(1, b"%d " % len(entries))
                return Added(len(entries))
        tracing = TracingRuntime(root, TracingConfig(), store=Slow())
        sizes(1)
        while not started:
            time.sleep(0.01)
        sizes(2, 3)
    """
    process = start(root, script)
    assert process.communicate(timeout=60) == (b"1 2 ", b"")
    assert process.returncode == 0


def test_a_full_disk_that_is_freed(root):
    """A limit on the size of files stands for it: writing fails half-way as well."""
    script = """
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
        tracing = TracingRuntime(root, TracingConfig())
        sizes(1, 2, 3)
        wait()
    """
    freed = "signal.signal(signal.SIGUSR1, lambda *_: resource.setrlimit("
    freed += "resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)))\n"
    process = start(root, freed + dedent(script))
    assert process.stdout.readline() == b"ready\n"
    told = process.stderr.readline()
    assert b"3 workloads could not be written, and will be retried" in told
    assert lines(root) == []
    process.send_signal(signal.SIGUSR1)
    assert eventually(lambda: lines(root) == [1, 2, 3])
    process.kill()
    assert process.communicate(timeout=60)[1].count(b"could not be written") == 0


# ---------------------------------------------------------------------------- in this process


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(runtime, "WRITE_AFTER_S", 0.02)


def test_a_dataset_that_is_away_for_a_while(soon, root, caplog):
    tracing = TracingRuntime(root, TracingConfig())
    away = shutil.move(root, root.with_name("away"))
    tracing.collect(GEMM.name, gemm_inputs(1))
    assert eventually(lambda: "will be retried" in caplog.text)
    assert not root.exists()
    tracing.collect(GEMM.name, gemm_inputs(2))
    shutil.move(away, root)
    assert eventually(lambda: lines(root) == [1, 2])
    report = {"entries": 2, "written": 2, "known": 0, "lost": 0}
    assert tracing.flush() == report, "what the thread has done counts as well"
    shutil.rmtree(root)
    tracing.collect(GEMM.name, gemm_inputs(3))
    assert tracing.flush() == {"entries": 1, "written": 0, "known": 0, "lost": 1}
    assert tracing.stats()["buffered"] == {"entries": 0, "bytes": 0}
    assert caplog.text.count("could not be written") == 2


def test_a_store_that_answers_nonsense_once(soon, root):
    sink, answers = Sink(), [None]

    class Odd(Sink):
        def add(self, entries):
            return answers.pop() if answers else sink.add(entries)

    tracing = TracingRuntime(root, TracingConfig(), store=Odd())
    tracing.collect(GEMM.name, gemm_inputs(1))
    assert eventually(lambda: tracing.stats()["lost"] == 1)
    tracing.collect(GEMM.name, gemm_inputs(2))
    assert eventually(lambda: len(sink.entries) == 1)
    assert tracing.flush() == {"entries": 2, "written": 1, "known": 0, "lost": 1}


class LastOfAll(OnlinePolicy):
    def admit(self, axes, inputs):
        return True

    def keep(self, entry):
        displaced = self.entries.pop() if self.entries else None
        self.entries.append(entry)
        return displaced


class LastOfKey(LastOfAll, KeyedPolicy):
    def key_of(self, axes, inputs):
        return 0


class LongestOfAll(FilterPolicy):
    def __init__(self):
        self.kept = []

    def submit(self, entry):
        self.kept.append(entry)

    def drain(self):
        kept, self.kept = self.kept, []
        return sorted(kept, key=lambda entry: entry.axes["num_kv_indices"])[-1:]


@pytest.mark.parametrize("policy", [LastOfAll, LastOfKey, LongestOfAll])
def test_a_policy_that_chooses_at_the_end(soon, root, sink, policy):
    config = {DECODE.name: TracingConfig(filter_policy=policy), GEMM.name: TracingConfig()}
    tracing = TracingRuntime(root, config, store=sink)
    for number in (1, 2, 3):
        tracing.collect(DECODE.name, decode_inputs([number]))
        tracing.collect(GEMM.name, gemm_inputs(number))
        assert eventually(lambda number=number: len(sink.entries) == number)
    tracing.flush()
    chosen = [each["num_kv_indices"] for each in sink.axes(DECODE.name)]
    assert chosen == [3]
    assert sink.axes(GEMM.name) == [{"M": 1}, {"M": 2}, {"M": 3}]


def test_what_a_graph_refers_to_waits(soon, root, sink, monkeypatch):
    """Another snapshot may come, and to read without one would touch the device."""
    asked = set()
    monkeypatch.setattr(runtime, "is_capturing", lambda: asked.add(threading.current_thread().name))
    tracing = TracingRuntime(root, TracingConfig("dump_all"), store=sink)
    captured = gemm_inputs(7)
    with tracing.cuda_graph_scope():
        tracing.collect(GEMM.name, captured)
    for value in (1, 2):
        captured[0].fill_(value)
        assert tracing.snapshot_graph_tensors() == 1
        tracing.collect(GEMM.name, gemm_inputs(value))
        assert eventually(lambda value=value: len(sink.entries) == value)
    assert asked == {threading.current_thread().name}, "CUDA is asked by the thread of the call"
    tracing.flush()
    assert sink.axes() == [{"M": 1}, {"M": 2}, {"M": 7}]
    assert sink.entries[-1].inputs_to_dump["A"].eq(2).all()
