"""A traced program notices nothing of what goes wrong; what could be recorded is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fib_tests import forked

pytest.importorskip("torch")

from fib_datasets.repair import examine
from flashinfer_bench.data import TraceSet

PATIENCE_S = 600  # for programs that import torch on a machine with other work
ENGINE = Path(__file__).with_name("engine.py")
AXES = {"M": {"type": "var"}, "H": {"type": "const", "value": 8}}
DEFINITIONS = [
    {
        "name": "norm_h8",
        "op_type": "rmsnorm",
        "axes": AXES,
        "inputs": {"x": {"shape": ["M", "H"], "dtype": "float32"}},
        "outputs": {"y": {"shape": ["M", "H"], "dtype": "float32"}},
        "reference": "def run(x):\n    return x * 2\n",
    },
    {
        "name": "ragged_h8",
        "op_type": "gqa",
        "axes": {**AXES, "len_indptr": {"type": "var"}},
        "inputs": {
            "q": {"shape": ["M", "H"], "dtype": "float32"},
            "kv_indptr": {"shape": ["len_indptr"], "dtype": "int32"},
            "scale": {"shape": None, "dtype": "float32"},
        },
        "outputs": {"o": {"shape": ["M", "H"], "dtype": "float32"}},
        "reference": "def run(q, kv_indptr, scale):\n    return q * scale + kv_indptr[-1]\n",
    },
]


@pytest.fixture
def folder(tmp_path):
    for record in DEFINITIONS:
        path = tmp_path / "dataset" / "definitions" / record["op_type"] / f"{record['name']}.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(record))
    return tmp_path


def start(fault, folder):
    dropped = ("FIB_ENABLE_APPLY", "FIB_ENABLE_TRACING", "FIB_DATASET_PATH")
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    return forked.Popen(
        [sys.executable, str(ENGINE), fault, str(folder)],
        env={**kept, "FIB_CACHE_PATH": str(folder / "cache"), "FIB_NO_PLUGINS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def noticed(fault, folder):
    """Return what the engine said at its end: a document of each of its processes."""
    process = start(fault, folder)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert ("Traceback" in err) is ("reported once" in err), err
    assert err.count("reported once") <= 1, err
    return [json.loads(line) for line in out.splitlines()], err


def workloads(folder):
    return {
        name: len(found) for name, found in TraceSet.from_path(folder / "dataset").workloads.items()
    }


def all_is_there(folder, documents):
    assert workloads(folder)["norm_h8"] >= 30
    assert examine(folder / "dataset").issues == ()


def what_the_engine_raises_too(folder, documents):
    all_is_there(folder, documents)
    assert documents[0]["errors of the engine"] == 5  # 13 rows, of 200 steps


def those_of_workers_too(folder, documents):
    assert documents[-1]["codes"] == [0, 0, 0]
    all_is_there(folder, documents)


CHECKS = {
    "no_fault": what_the_engine_raises_too,
    "threads": all_is_there,
    "forked_workers": those_of_workers_too,
    "bare_fork": all_is_there,
}


@pytest.mark.parametrize("fault", CHECKS)
def test_nothing_is_noticed(fault, folder):
    documents, err = noticed(fault, folder)
    calls = sum(one["calls"] for one in documents)
    assert calls >= 50
    assert sum(one.get("exceptions", 0) for one in documents) == 0, err
    assert sum(one.get("wrong outputs", 0) for one in documents) == 0
    CHECKS[fault](folder, documents)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_terminated_at_work(folder, number):
    """At any moment, also while tracing itself is at work: it ends as it would without us."""
    for attempt in range(2):
        process = start("terminated_at_work", folder)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.2 + 0.15 * attempt)
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == -number, err
        assert "not written within" not in err
    assert workloads(folder)["norm_h8"] >= 10
    assert examine(folder / "dataset").issues == ()
