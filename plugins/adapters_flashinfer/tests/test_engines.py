"""The sequences of calls of SGLang and vLLM, traced and substituted without a change to them.

See `engine_sims`; each runs in a process of its own, on the real FlashInfer package: vLLM's once
for each form and layout of the cache.
"""

import json
import sys
from pathlib import Path

import pytest
from engine_sims import answers

from fib_tests import engines, forked

DRIVE = Path(__file__).parent / "engine_sims" / "drive.py"
GQA = "h4_kv2_d64"
MLA = "mla_paged_decode_h4_ckv128_kpe64_ps1"
DECODE, PREFILL = f"gqa_paged_decode_{GQA}_ps16", f"gqa_paged_prefill_causal_{GQA}_ps16"
# Decode counts once eagerly and three times for CUDA graphs; SGLang's prefix has no definition.
VLLM = {DECODE: 4, PREFILL: 1}
SGLANG = {
    "rmsnorm_h64": 1,
    "fused_add_rmsnorm_h64": 1,
    f"gqa_paged_decode_{GQA}_ps1": 4,
    f"gqa_paged_prefill_causal_{GQA}_ps1": 1,
    f"gqa_ragged_prefill_causal_{GQA}": 1,
    MLA: 1,
}
ENGINES = ["sglang", "vllm", "vllm-hnd", "vllm-packed", "vllm-packed-hnd"]
sglang = pytest.mark.parametrize("engine", ["sglang"], scope="module", indirect=True)


def run(engine, folder):
    """Run an engine in a fresh process, on a dataset in a folder; return what `report` said."""
    dataset = folder / "dataset"
    answers.write_dataset(dataset)
    command = [sys.executable, str(DRIVE), engine, str(dataset)]
    done = forked.run(command, env=engines.environment(folder), timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return {**json.loads(done.stdout.splitlines()[-1]), "log": done.stderr}


def workloads(folder):
    """Return the workloads that were traced, by definition."""
    found = {}
    for path in (folder / "dataset" / "workloads").rglob("*.jsonl"):
        lines = path.read_text(encoding="utf-8").splitlines()
        found[path.stem] = [json.loads(line)["workload"] for line in lines]
    return found


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    return request.param


@pytest.fixture(scope="module")
def folder(engine, tmp_path_factory):
    return tmp_path_factory.mktemp(engine)


@pytest.fixture(scope="module")
def said(engine, folder, flashinfer):
    return run(engine, folder)


def test_all_that_the_engine_computes_stays_the_same(said):
    """vLLM's is in slices of its own buffers: it does not look at what a run returns."""
    assert said["wrong"] == []
    assert said["wrong, imported late"] == []
    assert said["wrong, afterwards"] == []
    assert "adapter failed" not in str(said["refused"])
    assert "Traceback" not in said["log"]


def test_each_call_is_answered_by_the_solution_of_its_definition(said, engine):
    assert said["solutions"] == (SGLANG if engine == "sglang" else VLLM)
    runs = {name: n for name, n in said["kernels"].items() if not name.endswith("plan")}
    # Only the prefix, which is not causal, stays with the original.
    assert runs == ({"prefill.paged_run": 1} if engine == "sglang" else {})
    refused = [{"not causal": 1}] if engine == "sglang" else []
    assert list(said["refused"].values()) == refused


def test_every_plan_is_made_by_the_original(said):
    for name, count in said["original kernels"].items():
        if name.endswith("plan"):
            assert said["kernels"][name] == count


def test_importing_touches_nothing_and_disabling_leaves_nothing_behind(said):
    assert said["touched by importing"] == []
    assert said["left behind"] == []
    assert said["solutions, afterwards"] == {}
    assert said["kernels, afterwards"] == said["original kernels"]


@sglang
def test_functions_imported_by_value_are_found(said):
    """But for the quick plan, which SGLang compares with what it imported."""
    assert set(said["rebound"]) == {"rmsnorm", "fused_add_rmsnorm"}


def test_workloads_are_recorded(said, folder, engine):
    found = workloads(folder)
    assert set(found) == set(said["solutions"])
    if engine == "sglang":
        assert {each["axes"]["batch_size"] for each in found[MLA]} == {3}
        assert {each["axes"]["num_kv_indices"] for each in found[MLA]} == {13}
        inputs = found[MLA][0]["inputs"]
        assert inputs["sm_scale"] == {"type": "scalar", "value": pytest.approx(0.07)}
        assert inputs["kv_indptr"]["type"] == "safetensors"
        assert inputs["ckv_cache"] == {"type": "random"}
        # One token each while graphs are captured, and 13 in all eagerly and in replays.
        decoded = found[f"gqa_paged_decode_{GQA}_ps1"]
        assert {3, 13} <= {each["axes"]["num_kv_indices"] for each in decoded}
        return
    for workload in (*found[DECODE], *found[PREFILL]):  # the pages are in logical order
        assert workload["axes"]["num_pages"] == 12
        assert workload["inputs"]["k_cache"] == {"type": "random"}
    assert {each["axes"]["batch_size"] for each in found[DECODE]} == {2}
    assert {each["axes"]["total_q"] for each in found[PREFILL]} == {5}
