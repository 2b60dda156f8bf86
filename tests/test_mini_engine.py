"""The example engine: traced, benchmarked and applied in one command, as its documentation says."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from flashinfer_bench.data import TraceSet

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "mini_engine.py"

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def engine():
    spec = importlib.util.spec_from_file_location("mini_engine", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["mini_engine"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mini_engine"]


def run_cycle(folder, cache):
    command = [sys.executable, SCRIPT, "cycle", "--output", folder / "dataset", "--steps", "3"]
    done = subprocess.run(
        [*map(str, command), "--repeats", "1"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "FIB_CACHE_PATH": cache},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "told.txt").write_text(done.stdout)


@pytest.fixture(scope="module")
def cycle(once, build_cache):
    folder = once("mini-engine", lambda folder: run_cycle(folder, build_cache))
    return (folder / "told.txt").read_text(), folder / "dataset"


def test_the_engine_says_the_same_with_solutions(cycle, engine):
    told, _ = cycle
    count = len(engine.PROMPTS)
    assert f"identical answers: {count} of {count}" in told


def test_workloads_were_collected_of_all_that_the_engine_computes(cycle, engine):
    _, dataset = cycle
    workloads = TraceSet.from_path(dataset).workloads
    assert set(workloads) == set(engine.DEFINITIONS)
    decoded = workloads["gqa_paged_decode_h8_kv2_d64_ps1"]
    assert all(each.workload.axes["batch_size"] == len(engine.PROMPTS) for each in decoded)
    assert len({each.workload.axes["num_kv_indices"] for each in decoded}) == len(decoded) > 1
    kept = {name: spec.type for name, spec in decoded[0].workload.inputs.items()}
    assert kept["kv_indptr"] == kept["kv_indices"] == "safetensors"
    assert (kept["q"], kept["sm_scale"]) == ("random", "scalar")


def test_page_tables_are_those_of_the_engine(cycle):
    _, dataset = cycle
    trace_set = TraceSet.from_path(dataset)
    for trace in trace_set.workloads["gqa_paged_decode_h8_kv2_d64_ps1"]:
        spec = trace.workload.inputs["kv_indptr"]
        indptr = trace_set.get_workload_blob_tensor(spec.path)[spec.tensor_key].tolist()
        assert indptr[0] == 0
        assert indptr[-1] == trace.workload.axes["num_kv_indices"]
        assert len({end - start for start, end in pairwise(indptr)}) == 1


def test_every_definition_was_judged_and_applied(cycle, engine):
    told, dataset = cycle
    traces = TraceSet.from_path(dataset).traces
    for name in engine.DEFINITIONS:
        passed = {each.solution for each in traces[name] if each.is_successful()}
        assert passed, name
        assert name in told.split("calls answered by solutions:")[1].splitlines()[0]


def test_without_variables_nothing_is_patched(tmp_path):
    script = (
        "import torch, sys; before = torch.nn.functional.linear\n"
        f"sys.path.insert(0, {str(SCRIPT.parent)!r}); import mini_engine\n"
        "found = mini_engine.generate('cpu', 1, 1)\n"
        "assert torch.nn.functional.linear is before\n"
        "import json; print(json.dumps(found['hits']))"
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("FIB_ENABLE")
    }
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}
