"""Recorded calls become workloads of the format, each once, whoever else writes them."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from textwrap import dedent

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fib_tests import forked
from fib_tests import store_calls as calls
from fib_tests.damage import assert_clean
from flashinfer_bench.data import TraceSet
from flashinfer_bench.tracing import store as module
from flashinfer_bench.tracing.store import Added, Store, content_key, workload_uuid


@pytest.fixture
def root(tmp_path):
    """A dataset with two definitions and nothing else."""
    for definition in calls.DEFINITIONS.values():
        folder = tmp_path / "dataset" / "definitions" / definition.op_type
        folder.mkdir(parents=True)
        (folder / "one.json").write_text(definition.model_dump_json())
    return tmp_path / "dataset"


@pytest.fixture
def store(root):
    return Store(root, calls.DEFINITIONS)


def records(root):
    """Read the workloads of a dataset as plain JSON, without help from the project."""
    files = sorted((root / "workloads").rglob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def blobs(root):
    return sorted((root / "blob").rglob("*.safetensors"))


# ------------------------------------------------------------------------------- what is written


def test_a_workload_as_the_format_has_it(root, store):
    assert store.add([calls.decode(3), calls.norm(5)]) == Added(2)
    record, norm = records(root)
    assert record["definition"] == "decode_h4"
    assert record["solution"] is record["evaluation"] is None
    workload = record["workload"]
    assert workload["axes"] == {"batch": 3, "len_indptr": 4}
    assert workload["inputs"]["q"] == {"type": "random"}
    assert workload["inputs"]["scale"] == {"type": "scalar", "value": 0.5}
    indptr = workload["inputs"]["indptr"]
    assert (indptr["type"], indptr["tensor_key"]) == ("safetensors", "indptr")
    assert indptr["path"].startswith("./blob/workloads/gqa/decode_h4/decode_h4_")
    assert uuid.UUID(workload["uuid"]).version == 5
    assert norm["workload"]["axes"] == {"M": 5}
    assert (root / "workloads" / "rmsnorm" / "norm%2Fh8.jsonl").is_file()
    assert_clean(root)


# ------------------------------------------------------------------------------------ each once


def test_repetitions_are_told_apart_and_survive_a_restart(root, store):
    assert store.add([calls.decode(1)] * 2) == Added(2)
    assert store.add([calls.decode(1)]) == Added(1)
    assert len({record["workload"]["uuid"] for record in records(root)}) == 3
    again = Store(root, calls.DEFINITIONS)
    assert again.add([calls.decode(1)] * 2) == Added(0, 2)
    assert again.add([calls.decode(1)] * 2) == Added(1, 1)


def test_what_makes_a_workload_another_one(root, store):
    turned = calls.decode(3, q=torch.zeros(3, 4))
    entries = [
        turned,
        calls.decode(1),
        calls.decode(2),
        calls.decode(1, 0.25),
        calls.decode(1, 1),
        calls.decode(1, 1.0),
        calls.decode(1, True),
        calls.decode(1, indptr=torch.tensor([0, 5], dtype=torch.int32)),
        calls.decode(1, indptr=torch.tensor([0, 1], dtype=torch.int64)),
    ]
    assert store.add(entries) == Added(len(entries))
    axes, values = reversed(turned.axes.items()), reversed(turned.inputs_to_dump.items())
    entries[0] = dataclasses.replace(turned, axes=dict(axes), inputs_to_dump=dict(values))
    assert Store(root, calls.DEFINITIONS).add(entries) == Added(0, len(entries))


_AXES = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), max_size=3)


@given(st.tuples(st.sampled_from("xy"), _AXES), st.tuples(st.sampled_from("xy"), _AXES))
def test_keys_are_equal_if_and_only_if_contents_are(one, two):
    assert (content_key(*one, {}) == content_key(*two, {})) == (one == two)


def test_the_uuid_of_a_content_is_the_same_for_ever():
    key = content_key("d", {"M": 1}, {})
    assert key == '["d",{"M":1},{}]'
    assert workload_uuid(key, 0) == "61fce237-d6dd-5c40-8397-ca55ce52c928"
    assert workload_uuid(key, 0) != workload_uuid(key, 1)


@given(st.lists(st.sampled_from(["ours", "theirs", "cut", "clean", "broken", "gone"]), max_size=8))
def test_whatever_others_do_to_the_file(tmp_path_factory, steps):
    """What is looked up is what the file holds now: nothing is missing, nothing is there twice."""
    root = tmp_path_factory.mktemp("dataset")
    store = Store(root, calls.DEFINITIONS)
    store.add([calls.norm(0)])
    path = root / "workloads" / "rmsnorm" / "norm%2Fh8.jsonl"
    for number, step in enumerate(steps, 1):
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        if step == "theirs":
            Store(root, calls.DEFINITIONS).add([calls.norm(number)])
        elif step == "cut" and path.exists():
            os.truncate(path, path.stat().st_size // 2)
        elif step == "clean":
            path.write_bytes(b"".join(lines[1:]))
        elif step == "broken":
            path.write_bytes(b"".join(lines) + b'broken\n\xff\n[1]\n{"definition": "norm')
        elif step == "gone":
            path.unlink(missing_ok=True)
        fresh = Store(root, calls.DEFINITIONS)  # it has counted nothing: it writes each once
        assert fresh.add([calls.norm(number)]).lost == 0
        assert Store(root, calls.DEFINITIONS).add([calls.norm(number)]) == Added(0, 1)
        assert store.add([calls.norm(number)]) == Added(0, 1)


# ---------------------------------------------------------------------------------- tensor files


def test_equal_tensors_are_one_file_which_becomes_young(root, store):
    store.add([calls.decode(1, 0.1), calls.decode(1, 0.2)])
    [path] = blobs(root)
    before = path.stat().st_ino
    os.utime(path, (1000, 1000))
    Store(root, calls.DEFINITIONS).add([calls.decode(1, 0.3)])
    assert [one.stat().st_ino for one in blobs(root)] == [before]
    assert path.stat().st_mtime > 1e9


@pytest.mark.parametrize("size", [0, 10])
def test_a_damaged_file_is_written_again(root, store, size):
    store.add([calls.decode(1)])
    [path] = blobs(root)
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    store.add([calls.decode(1, 0.7)])
    assert path.read_bytes() == whole
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_file_that_a_clean_up_takes_at_the_worst_moment(root, store, monkeypatch):
    """What goes between its writing and the look-up under the lock is written once more."""
    locked = module.locked

    def clean_up_first(*args):
        for path in blobs(root):
            path.unlink()
        return locked(*args)

    monkeypatch.setattr(module, "locked", clean_up_first)
    store.add([calls.decode(1)])
    assert len(blobs(root)) == 1


# -------------------------------------------------------------------------------- what is lost


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (lambda: calls.entry("nowhere", {}), "there is no definition 'nowhere'"),
        (lambda: calls.entry("norm/h8", {}), "M"),
        (lambda: calls.entry("norm/h8", {"M": 1}, {"x": 1}), "int"),
        (lambda: calls.decode(1, scale=None), "ScalarInput"),
        (lambda: calls.entry("decode_h4", {"batch": 1, "len_indptr": 2}), "scale"),
    ],
)
def test_one_bad_entry_costs_only_itself(root, store, entry, message):
    added = store.add([calls.decode(1), entry(), calls.norm(2)])
    assert (added.written, added.known, added.lost) == (2, 0, 1)
    assert message in str(added.problem)
    assert len(records(root)) == 2


@pytest.mark.parametrize("folder", ["workloads", "workloads/gqa", "blob", "blob/workloads/gqa"])
def test_a_file_in_place_of_a_folder_costs_what_goes_there(root, store, folder):
    (root / folder).parent.mkdir(parents=True, exist_ok=True)
    (root / folder).write_text("")
    assert store.add([calls.decode(1), calls.decode(2)]).lost == 2
    (root / folder).unlink()
    assert store.add([calls.decode(1), calls.decode(2)]) == Added(2)
    assert len(records(root)) == 2


def test_a_deleted_dataset_is_not_made_again(root, store):
    store.add([calls.decode(1), calls.norm(1)])
    shutil.rmtree(root)
    added = store.add([calls.decode(2)])
    assert added.lost == 1
    assert "does not exist" in str(added.problem)
    assert not root.exists()
    root.mkdir()
    assert store.add([calls.decode(3), calls.norm(2)]) == Added(2)


# -------------------------------------------------------------------------------- processes


START = """
import sys
from pathlib import Path
from fib_tests.store_calls import *
from flashinfer_bench.tracing.store import *
root = Path(sys.argv[1])
"""


def start(script, *args, **options):
    command = [sys.executable, "-c", START + dedent(script), *map(str, args)]
    return forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def finish(process):
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err.decode()
    return out.decode()


RANK = """
    rank = int(sys.argv[2])
    store = Store(root, DEFINITIONS)
    written = known = 0
    for start in range(0, 60, 20):
        # Half of what a rank sees is what all others see, too.
        numbers = range(start, start + 20)
        added = store.add([decode(n + 1, float(rank) if n % 2 else 0.5) for n in numbers])
        written, known = written + added.written, known + added.known
    print(written, known)
"""


@pytest.mark.parametrize(("ranks", "locks"), [(4, "auto"), (2, "soft")])
def test_the_ranks_of_an_engine(root, ranks, locks):
    """Nothing is lost, nothing is there twice."""
    environment = {**os.environ, "FIB_DATASET_LOCK": locks} if locks == "soft" else None
    processes = [start(RANK, root, rank, env=environment) for rank in range(1, ranks + 1)]
    outcomes = [[int(part) for part in finish(one).split()] for one in processes]
    assert sum(map(sum, outcomes)) == ranks * 60
    found = records(root)
    assert len(found) == sum(written for written, _ in outcomes) == 30 + ranks * 30
    assert len({record["workload"]["uuid"] for record in found}) == len(found)
    assert_clean(root)
    trace_set = TraceSet.from_path(root)
    for trace in trace_set.workloads["decode_h4"]:
        tensors = trace_set.get_workload_blob_tensor(trace.workload.inputs["indptr"].path)
        assert tensors["indptr"].tolist() == list(range(trace.workload.axes["batch"] + 1))
    assert len(blobs(root)) == 60


def test_a_stopped_process_does_not_stop_the_others(root, store, monkeypatch):
    """A process that holds the lock and is not dead: others wait, lose entries, and say so."""
    monkeypatch.setattr(module, "LOCK_TIMEOUT_S", 0.2)
    holder = start(
        """
        from flashinfer_bench.data.layout import workloads_file
        with locked(tracing_lock(workloads_file(root, "rmsnorm", "norm/h8"))):
            print("held", flush=True)
            sys.stdin.read()
        """,
        root,
        stdin=-1,
    )
    assert holder.stdout.readline() == b"held\n"
    os.kill(holder.pid, signal.SIGSTOP)
    try:
        added = store.add([calls.norm(1), calls.decode(1)])
        assert (added.written, added.lost) == (1, 1)
        assert "locked by another process" in str(added.problem)
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()
    assert store.add([calls.norm(1)]) == Added(1)
