"""Programs that never import the package: what the environment asks for is done in them, too."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flashinfer_bench.bench.executors import launch
from flashinfer_bench.data import TraceSet
from flashinfer_bench.utils import env_snapshot

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "examples" / "sample-dataset"
NAME = "gemm_n256_k256"
WINNER = "alice_gemm_out"

pytestmark = [pytest.mark.torch, pytest.mark.plugin("flashinfer"), pytest.mark.timeout(300)]

START = "from flashinfer_bench.engines import at_startup; at_startup()\n"  # as the .pth file does
CALLS = """
import sys
import torch
before = torch.nn.functional.linear
x, w = torch.ones(5, 256), torch.eye(256)
for _ in range(3):
    assert torch.equal(torch.nn.functional.linear(x, w), x)
"""
TELL = """
import json
apply = sys.modules.get("flashinfer_bench.apply")
runtime = apply.get_runtime() if apply is not None else None
stats = runtime.stats() if runtime is not None and hasattr(runtime, "stats") else {}
print(json.dumps({
    "hits": {name: each.hits for name, each in stats.items()},
    "modules": [name for name in ("torch", "flashinfer_bench.apply", "flashinfer_bench.tracing",
                                  "flashinfer_bench.engines") if name in sys.modules],
    "hooks": [type(each).__name__ for each in sys.meta_path],
}))
"""


@pytest.fixture
def dataset(tmp_path):
    """Give the sample's matrix product, with a record of this machine."""
    root = tmp_path / "dataset"
    for kind in ("definitions/gemm", "solutions/alice/gemm"):
        shutil.copytree(SAMPLE / kind, root / kind)
    evaluation = {
        "status": "PASSED",
        "environment": {"hardware": env_snapshot("cpu").hardware, "libs": {}},
        "timestamp": "2026-01-01T00:00:00",
        "correctness": {"max_relative_error": 0.0, "max_absolute_error": 0.0},
        "performance": {"latency_ms": 0.1, "reference_latency_ms": 1.0, "speedup_factor": 10.0},
    }
    random = {"type": "random"}
    workload = {"axes": {"M": 5}, "inputs": {"A": random, "B": random}, "uuid": "m5"}
    record = {"definition": NAME, "workload": workload, "solution": WINNER}
    path = root / "traces" / "gemm" / f"{NAME}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**record, "evaluation": evaluation}) + "\n")
    return root


BOTH = {"FIB_ENABLE_APPLY": "1", "FIB_ENABLE_TRACING": "1"}
# Runs each program in a fork of its own.
FORK = """
import json, os, sys, torch
for line in iter(sys.stdin.readline, ""):
    request = json.loads(line)
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    os.environ.clear()
    os.environ.update(request["environment"])
    for number, path in enumerate(request["shown"], 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    exec(request["program"])
    break
"""


def environment_of(dataset, **variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FIB_ENABLE")}
    places = {"FIB_DATASET_PATH": dataset, "FIB_CACHE_PATH": dataset.parent / "cache"}
    return {**kept, **{name: str(path) for name, path in places.items()}, **variables}


def told(program, dataset, **variables):
    """Run a program in a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", program + TELL],
        capture_output=True,
        text=True,
        env=environment_of(dataset, **variables),
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "stderr": done.stderr}


@pytest.fixture(scope="module")
def torch_there():
    """A process that has imported torch, and nothing of ours."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", FORK], **pipes) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def told_there(torch_there, tmp_path):
    """Return a function that runs a program where torch has been imported already."""

    def run(program, dataset, **variables):
        shown = [tmp_path / "out", tmp_path / "err"]
        for path in shown:
            path.unlink(missing_ok=True)
        request = {
            "program": program + TELL,
            "environment": environment_of(dataset, **variables),
            "shown": [*map(str, shown)],
        }
        print(json.dumps(request), file=torch_there.stdin, flush=True)
        code = int(torch_there.stdout.readline())
        out, err = (path.read_text() for path in shown)
        assert code == 0, err
        return {**json.loads(out), "stderr": err}

    return run


def workloads(dataset):
    return TraceSet.from_path(dataset).workloads.get(NAME, [])


def test_calls_are_substituted(dataset):
    found = told(START + CALLS, dataset, FIB_ENABLE_APPLY="1")
    assert found["hits"] == {NAME: 3}, found


def test_calls_are_traced(dataset):
    found = told(START + CALLS, dataset, FIB_ENABLE_TRACING="1")
    assert found["hits"] == {}
    assert [each.workload.axes for each in workloads(dataset)] == [{"M": 5}]


LOOKS = (
    "from flashinfer_bench.routing.patch_points import router\n"
    "def now():\n    return [type(each).__name__ for each in router.active], len(router.watchers)\n"
)


@pytest.mark.parametrize("imported", ["flashinfer_bench.apply", "flashinfer_bench.tracing"])
def test_importing_parts_of_the_package_enables_nothing_before_a_call(
    dataset, told_there, imported
):
    """Plugins that describe a library do so, while that library is being imported."""
    program = (
        f"{START}import {imported}\n{LOOKS}"
        "assert now() == (['_Pending'], 0), now()\n"
        f"{CALLS}assert now() == (['ApplyRuntime'], 1), now()\n"
    )
    assert told_there(program, dataset, **BOTH)["hits"] == {NAME: 3}
    assert [each.workload.axes for each in workloads(dataset)] == [{"M": 5}]


def test_who_asks_what_is_enabled_need_not_make_a_call(dataset, told_there):
    program = (
        f"{START}import flashinfer_bench.apply as apply\n"
        "from flashinfer_bench.tracing import TracingRuntime\n{}\n"
        f"{LOOKS}assert now() == (['ApplyRuntime'], 1), now()\n"
    )
    for asks in (
        "assert type(apply.get_runtime()).__name__ == 'ApplyRuntime'",
        "assert apply.ApplyRuntime.get_instance() is not None",
        "assert TracingRuntime.get_instance() is not None",
    ):
        asked = program.replace("{}", asks) + CALLS
        assert told_there(asked, dataset, **BOTH)["hits"] == {NAME: 3}


def test_what_was_disabled_before_the_first_call_stays_off(dataset, told_there):
    program = (
        f"{START}from flashinfer_bench import disable_apply\ndisable_apply()\n"
        "import flashinfer_bench.apply\n"
    )
    assert told_there(program + CALLS, dataset, FIB_ENABLE_APPLY="1")["hits"] == {}


def test_nothing_is_asked(dataset):
    found = told(START + CALLS, dataset)
    assert found["modules"] == ["torch", "flashinfer_bench.engines"], found
    assert "ImportHook" not in found["hooks"]
    assert not workloads(dataset)


def test_a_program_without_torch_pays_for_no_more_than_waiting(dataset):
    found = told(START + "import sys\n", dataset, FIB_ENABLE_APPLY="1")
    assert found["modules"] == ["flashinfer_bench.engines"], found
    assert "ImportHook" in found["hooks"]


def test_torch_may_be_there_already(dataset, told_there):
    found = told_there(START + CALLS, dataset, FIB_ENABLE_APPLY="1")
    assert found["hits"] == {NAME: 3}, found


def test_other_calls_do_not_wait_for_anything(dataset, told_there):
    """Those of sizes that no definition has."""
    found = told_there(START + CALLS.replace("256", "8"), dataset, FIB_ENABLE_APPLY="1")
    assert found["hits"] == {}
    assert "flashinfer_bench.apply" not in found["modules"]


@pytest.mark.parametrize("kind", ["missing", "empty", "a file"])
def test_a_dataset_that_is_none(tmp_path, told_there, kind):
    path = tmp_path / "x" / "dataset"
    path.parent.mkdir()
    if kind == "empty":
        path.mkdir()
    elif kind == "a file":
        path.write_text("")
    found = told_there(START + CALLS, path, **BOTH)
    assert found["hits"] == {}
    assert "no definition" in found["stderr"]
    assert "Traceback" not in found["stderr"]


@pytest.mark.parametrize("name", BOTH)
def test_a_variable_that_says_nothing_known(dataset, told_there, name):
    found = told_there(START + CALLS, dataset, **{name: "maybe"})
    assert found["hits"] == {}
    assert "maybe" in found["stderr"]


def test_a_definition_that_cannot_be_read(dataset, told_there):
    (dataset / "definitions" / "gemm" / f"{NAME}.json").write_text("{")
    assert told_there(START + CALLS, dataset, FIB_ENABLE_APPLY="1")["hits"] == {}


def test_threads_that_call_at_once(dataset, told_there):
    """While one is enabling, the others go to the original; afterwards to the solution."""
    program = (
        "import sys, threading, torch\n"
        "x, w = torch.ones(5, 256), torch.eye(256)\n"
        "wrong = []\n"
        "def work(barrier):\n"
        "    barrier.wait()\n"
        "    for _ in range(20):\n"
        "        if not torch.equal(torch.nn.functional.linear(x, w), x): wrong.append(1)\n"
        "for _ in range(2):\n"
        "    barrier = threading.Barrier(8)\n"
        "    threads = [threading.Thread(target=work, args=[barrier]) for _ in range(8)]\n"
        "    [each.start() for each in threads]; [each.join() for each in threads]\n"
        "assert not wrong\n"
    )
    found = told_there(START + program, dataset, FIB_ENABLE_APPLY="1")
    assert 160 < found["hits"][NAME] <= 320


def test_workers_inherit_it(dataset, told_there):
    program = (
        "import multiprocessing, sys, torch\n"
        "def work():\n"
        "    x, w = torch.ones(5, 256), torch.eye(256)\n"
        "    torch.nn.functional.linear(x, w)\n"
        "process = multiprocessing.get_context('fork').Process(target=work)\n"
        "process.start(); process.join(); assert process.exitcode == 0\n"
    )
    told_there(START + program, dataset, FIB_ENABLE_TRACING="1")
    assert [each.workload.axes for each in workloads(dataset)] == [{"M": 5}]


def test_solutions_are_judged_without_it(monkeypatch, tmp_path):
    monkeypatch.setenv("FIB_ENABLE_APPLY", "1")
    monkeypatch.setenv("FIB_ENABLE_TRACING", "1")
    environment = launch.environment(tmp_path, "cpu")
    assert (environment["FIB_ENABLE_APPLY"], environment["FIB_ENABLE_TRACING"]) == ("0", "0")


class TestTheDistribution:
    """What makes interpreters and engines load it."""

    @pytest.mark.parametrize("group", ["vllm.general_plugins", "sglang.srt.plugins"])
    def test_engines_find_their_plugin(self, group):
        (point,) = [
            each
            for each in importlib.metadata.entry_points(group=group)
            if each.name == "flashinfer_bench"
        ]
        assert point.load()() is None

    @pytest.mark.parametrize("group", ["vllm.general_plugins", "sglang.srt.plugins"])
    def test_an_engine_that_loads_its_plugins_is_reached(self, dataset, told_there, group):
        """By its plugins alone: when the interpreter started, nothing was asked for yet."""
        program = (
            "import os\n"
            "from importlib.metadata import entry_points\n"
            "os.environ['FIB_ENABLE_APPLY'] = '1'\n"
            f"plugins = [each.load() for each in entry_points(group={group!r})]\n"
            "for each in (*plugins, *plugins):\n    each()\n"  # some load them more than once
        )
        assert told_there(program + CALLS, dataset)["hits"] == {NAME: 3}
        nothing = program.replace("'1'", "'0'")
        assert told_there(nothing + CALLS, dataset)["hits"] == {}

    def test_the_file_in_site_packages_is_installed(self):
        files = importlib.metadata.files("flashinfer-bench-core") or []
        assert [each for each in files if each.name == "flashinfer_bench_startup.pth"]

    def test_it_is_one_line_of_code(self):
        text = (ROOT / "core" / "flashinfer_bench_startup.pth").read_text()
        assert text.startswith("import ")
        assert len(text.splitlines()) == 1
        compile(text, "flashinfer_bench_startup.pth", "exec")

    @pytest.mark.parametrize("value", [None, "", "0"])
    def test_it_imports_nothing_unless_asked(self, tmp_path, value):
        text = (ROOT / "core" / "flashinfer_bench_startup.pth").read_text()
        program = text + "import sys\n"
        variables = {} if value is None else {"FIB_ENABLE_APPLY": value}
        assert told(program, tmp_path, **variables)["modules"] == []

    def test_it_starts_everything(self, dataset):
        text = (ROOT / "core" / "flashinfer_bench_startup.pth").read_text()
        assert told(text + CALLS, dataset, FIB_ENABLE_APPLY="1")["hits"] == {NAME: 3}
