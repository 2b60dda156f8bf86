"""SGLang's sequence of calls, traced and substituted without a change to it.

See `engine_sims.sglang_like`; it runs in a process of its own, on the real FlashInfer package.
"""

from __future__ import annotations

import pytest

GQA = "h4_kv2_d64"
MLA = "mla_paged_decode_h4_ckv128_kpe64_ps1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sglang")


@pytest.fixture(scope="module")
def said(folder, flashinfer):
    from engine_sims.running import run

    return run("sglang", folder)


def test_importing_and_enabling_nothing_touches_nothing(said):
    assert said["touched by importing"] == []


def test_all_that_the_engine_computes_stays_the_same(said):
    assert said["wrong"] == []
    assert said["wrong, imported late"] == []
    assert said["wrong, afterwards"] == []


def test_each_call_is_answered_by_the_solution_of_its_definition(said):
    """Decode counts once eagerly and three times for CUDA graphs; the prefix has no definition."""
    assert said["solutions"] == {
        "rmsnorm_h64": 1,
        "fused_add_rmsnorm_h64": 1,
        f"gqa_paged_decode_{GQA}_ps1": 4,
        f"gqa_paged_prefill_causal_{GQA}_ps1": 1,
        f"gqa_ragged_prefill_causal_{GQA}": 1,
        MLA: 1,
    }


def test_only_the_prefix_which_is_not_causal_stays_with_the_original(said):
    runs = {name: n for name, n in said["kernels"].items() if not name.endswith("plan")}
    assert runs == {"prefill.paged_run": 1}
    assert list(said["refused"].values()) == [{"not causal": 1}]


def test_every_plan_is_made_by_the_original(said):
    for name, count in said["original kernels"].items():
        if name.endswith("plan"):
            assert said["kernels"][name] == count


def test_functions_imported_by_value_are_found(said):
    assert set(said["rebound"]) == {"rmsnorm", "fused_add_rmsnorm"}


def test_the_quick_plan_stays_itself(said):
    """SGLang compares it with what it imported; the engine asserts that as it runs."""
    assert "fast_decode_plan" not in said["rebound"]


def test_every_attribute_is_the_original_afterwards(said):
    assert said["left behind"] == []
    assert said["solutions, afterwards"] == {}
    assert said["kernels, afterwards"] == said["original kernels"]


def test_nothing_went_wrong_on_our_side(said):
    assert "adapter failed" not in str(said["refused"])
    assert "Traceback" not in said["log"]


def test_workloads_are_recorded(said, folder):
    from engine_sims.running import workloads

    found = workloads(folder)
    assert set(found) == set(said["solutions"])
    assert {each["axes"]["batch_size"] for each in found[MLA]} == {3}
    assert {each["axes"]["num_kv_indices"] for each in found[MLA]} == {13}
    inputs = found[MLA][0]["inputs"]
    assert inputs["sm_scale"] == {"type": "scalar", "value": pytest.approx(0.07)}
    assert inputs["kv_indptr"]["type"] == "safetensors"
    assert inputs["ckv_cache"] == {"type": "random"}


def test_workloads_of_decode_are_told_apart_by_their_lengths(said, folder):
    """One token each while graphs are captured, and 13 in all eagerly and in replays."""
    from engine_sims.running import workloads

    found = workloads(folder)[f"gqa_paged_decode_{GQA}_ps1"]
    assert {3, 13} <= {each["axes"]["num_kv_indices"] for each in found}
