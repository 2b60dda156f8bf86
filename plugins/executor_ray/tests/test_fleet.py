"""Runs on a cluster of real Ray processes: results, faults, unlike nodes and mistakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed; 'nox -s ray' installs it")

from doubles import NODES, add_double, make_doubles
from kills import Chaos, processes_of
from small_cluster import command, keys_of, make_dataset

from flashinfer_bench.data.storage import sha256_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # Ray's own cluster for tests leaves files and processes to the end of the program.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ASLEEP = "import time\ndef run(x):\n    time.sleep(0.05)\n    return x * 2\n"


def summary(trace):
    told = trace["evaluation"]["provenance"]
    return (
        trace["evaluation"]["status"],
        *(told[name] for name in ("seed", "warmup_runs", "iterations", "num_trials")),
        told["inputs_crc32"],
        told.get("settings"),
    )


def by_key(traces):
    found = {}
    for one in traces:
        key = one["solution"], one["workload"]["uuid"]
        assert key not in found
        found[key] = one
    return found


def nodes_of(traces):
    return {one["evaluation"]["provenance"]["extra"]["node"] for one in traces}


def test_a_fleet_gives_the_results_of_one_machine(fleet, tmp_path, traces):
    note = fleet.notes / "compilers"
    far, near = (make_doubles(tmp_path / name, note) for name in ("far", "near"))
    settings = tmp_path / "settings.yaml"
    settings.write_text("iterations: 2\ndefinition_config:\n  double:\n    iterations: 5\n")
    more = ("--config", str(settings), "--seed", "7")
    # What the command line says goes before the file, but not for all definitions.
    given = [one for one in command(far) if one not in ("--iterations", "3")]
    fleet_options = command(far, *more, address=fleet.cluster.address)[len(command(far)) :]
    done = subprocess.run([*given, *fleet_options], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    compilers = note.read_text().split()
    node = {
        "PYTHONPATH": str(Path(__file__).parents[3] / "tests/support/fib_tests/plugins"),
        "FIB_PLUGINS": "compiling_plugin",
        "FIB_SANDBOX_WRITABLE": str(fleet.notes),
        "FIB_CACHE_PATH": str(tmp_path / "cache"),
    }
    local = [one if one != str(far) else str(near) for one in given]
    alone = subprocess.run(
        [*local, *more], env={**os.environ, **node}, capture_output=True, text=True, timeout=110
    )
    assert alone.returncode == 0, alone.stderr
    found, expected = by_key(traces(far)), by_key(traces(near))
    assert {key: summary(one) for key, one in found.items()} == {
        key: summary(one) for key, one in expected.items()
    }
    assert Counter(one["evaluation"]["status"] for one in found.values()) == {
        "PASSED": 12,
        "INCORRECT_NUMERICAL": 6,
    }
    places = nodes_of(found.values())
    assert places <= set(NODES)
    assert len(places) > 1
    # A node compiles a solution once, however many workloads it gets; it gets a blob once.
    in_c = nodes_of(one for (name, _), one in found.items() if name == "in_c")
    assert compilers.count("begin") == len(in_c)
    digest = sha256_of(far / "blob" / "op" / "x.safetensors")
    recorded = nodes_of(one for (_, uuid), one in found.items() if uuid in ("w0", "w1"))
    having = {one.relative_to(fleet.folder).parts[0] for one in fleet.folder.rglob(digest)}
    assert recorded <= having


def test_kills_cost_neither_a_trace_nor_double_one(fleet, tmp_path):
    root = tmp_path / "dataset"
    count = make_dataset(root, definitions=2, workloads=20, solutions=8)
    chaos = Chaos(fleet.cluster, root, seed=1)
    for what in ("judge", "node", "driver", "judge"):
        chaos.wait_for_progress(10)
        chaos.kill(what)
    chaos.finish()
    assert chaos.killed == {"judge": 2, "node": 1, "driver": 1}
    keys = keys_of(root)
    assert len(set(keys)) == len(keys) == count


def test_it_shows_what_it_does_and_ctrl_c_leaves_nothing(fleet, dataset, traces):
    for number in range(10):
        add_double(dataset, f"slow{number}", ASLEEP)
    given = command(dataset, address=fleet.cluster.address)
    process = subprocess.Popen(given, stderr=subprocess.PIPE, text=True, start_new_session=True)
    for line in process.stderr:
        if line.startswith("[3/"):
            break
    status = [sys.executable, "-m", "flashinfer_bench", "fleet", "status", "--json"]
    status += ["--ray-address", fleet.cluster.address]
    shown = subprocess.run(status, capture_output=True, text=True, timeout=60)
    rows = json.loads(shown.stdout)["devices"]
    at_work = [row for row in rows if row["device"]]
    assert len(at_work) == 3
    assert all(row["fitness"] == 0 for row in at_work)
    assert any(row["doing"].startswith("double / ") for row in at_work)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "continue with 'fib run --resume'" in told
    deadline = time.monotonic() + 20
    while (left := processes_of(fleet.folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
    assert list(fleet.folder.glob("node-*/cache/fleet/roots/*")) == []  # they had time to tidy up
    given.append("--resume")
    process = subprocess.Popen(given, stderr=subprocess.PIPE, text=True, start_new_session=True)
    for line in process.stderr:
        if line.startswith("[1/"):
            break
    process.terminate()
    _, told = process.communicate(timeout=30)
    assert "SIGTERM received" not in told  # that is Ray's own, with its stack
    done = fleet.run(dataset, "--resume")
    assert done.returncode == 0
    assert len(by_key(traces(dataset))) == 12 * 6


@contextmanager
def another(fleet, name, **variables):
    fleet.add(name, **variables)
    try:
        yield
    finally:
        fleet.cluster.kill(name)


@pytest.mark.plugin("judge")
def test_nodes_that_differ_are_left_out_and_named(fleet, tmp_path, traces):
    root = make_doubles(tmp_path / "dataset", fleet.notes / "more")
    with (
        another(fleet, "bare", FIB_PLUGINS="played_check"),
        another(fleet, "old", FIB_DISABLE_PLUGINS="judge"),
        another(fleet, "slow"),
    ):
        fleet.seconds("slow").write_text("1.05")
        done = fleet.run(root, "--max-deviation", "3%")
    assert done.returncode == 0, done.stderr
    assert "bare/cpu:0 is not used: No builder for language 'testc'" in done.stderr
    assert "old/cpu:0 is not used: it has other plugins: fib-judge is missing" in done.stderr
    assert "slow/cpu:0 is not used: the known kernel" in done.stderr
    assert "takes 5.0% longer than on its peers" in done.stderr
    assert len(by_key(traces(root))) == 18
    assert not nodes_of(traces(root)) & {"bare", "old", "slow"}


def test_a_device_that_slows_down_is_drained(fleet, tmp_path):
    dataset = tmp_path / "dataset"
    count = make_dataset(dataset, workloads=30, solutions=2)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from fib_executor_ray import FleetSettings, use_fleet\n"
        "from flashinfer_bench.bench import Benchmark, BenchmarkConfig, RunObserver\n"
        "from flashinfer_bench.data import TraceSet\n"
        "class Slow(RunObserver):\n"
        "    def evaluation_finished(self, trace):\n"
        "        Path(sys.argv[3]).write_text('1.2')\n"
        "use_fleet(FleetSettings(sys.argv[1], resource='GPU', max_deviation=0.1, check_s=0.0))\n"
        "config = BenchmarkConfig.default(device='cpu', executor='ray', warmup_runs=1,\n"
        "                                 iterations=3, num_trials=1)\n"
        "Benchmark(TraceSet.from_path(sys.argv[2]), config, observers=[Slow()]).run_all()\n"
    )
    with another(fleet, "tired"):
        given = (fleet.cluster.address, str(dataset), str(fleet.seconds("tired")))
        done = subprocess.run(
            [sys.executable, "-c", code, *given], capture_output=True, text=True, timeout=110
        )
    assert done.returncode == 0, done.stderr
    assert "giving up on tired/cpu:0: tired/cpu:0 is drained" in done.stderr
    assert len(set(keys_of(dataset))) == len(keys_of(dataset)) == count


def test_each_kind_of_hardware_gets_everything(fleet, dataset, traces):
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("there is one core only, so all nodes are alike")
    os.sched_setaffinity(0, {min(cores)})
    try:
        fleet.add("narrow")
    finally:
        os.sched_setaffinity(0, cores)
    try:
        some = ("--workload", "w0", "w2")
        done = fleet.run(dataset, *some)
        assert done.returncode == 0, done.stderr
        everything = Counter(
            (one["evaluation"]["environment"]["hardware"], one["solution"])
            for one in traces(dataset)
        )
        assert set(everything.values()) == {2}
        (narrow,) = {hardware for hardware, _ in everything if "(1 cores)" in hardware}
        assert len(everything) == 4
        more = fleet.run(dataset, *some, "--hardware", "(1 cores)", "--solution", "right")
        assert more.returncode == 0, more.stderr
        added = [one["evaluation"]["environment"]["hardware"] for one in traces(dataset)[8:]]
        assert added == [narrow] * 2
    finally:
        fleet.cluster.kill("narrow")


@pytest.mark.parametrize(
    ("options", "address", "code", "told"),
    [
        ((), "127.0.0.1:1", 4, "no Ray cluster at '127.0.0.1:1' | ray start --head"),
        ((), "nowhere", 2, "'nowhere' is not of the form HOST:PORT"),
        ((), "ray://localhost:1", 2, "an address for Ray Client | on a node of the cluster"),
        (
            ("--executor", "Ray", "--device", "cuda:1"),
            "",
            2,
            "'cuda:1' names a device of one machine",
        ),
        (("--device", "cuda"), "", 4, "none of the cluster's devices can be used | No timer"),
        (("--ray-resource", "TPU"), "", 4, "the cluster has no TPU | node-1 has 2 CPU, 1 GPU"),
        (("--ray-nodes", "rack=7"), "", 4, "on a node with rack=7"),
        (("--hardware", "H200"), "", 4, "no device of the cluster is H200; available:"),
        (("--max-deviation", "much"), "", 2, "'much' is not a share above 0"),
        (("--executor", "fork", "--hardware", "x"), "", 2, "is for a fleet | --executor ray"),
    ],
)
def test_mistakes_are_named_before_any_work(fleet, dataset, traces, options, address, code, told):
    done = fleet.run(dataset, *options, address=address)
    assert done.returncode == code, done.stderr
    for part in told.split(" | "):
        assert part in done.stderr
    assert traces(dataset) == []
