"""vLLM's sequence of calls, traced and substituted without a change to it.

See `engine_sims.vllm_like`; it runs in a process of its own, on the real FlashInfer package, once
for each form and layout of the cache.
"""

from __future__ import annotations

import pytest

GQA = "h4_kv2_d64"
DECODE, PREFILL = f"gqa_paged_decode_{GQA}_ps16", f"gqa_paged_prefill_causal_{GQA}_ps16"


@pytest.fixture(scope="module", params=["vllm", "vllm-hnd", "vllm-packed", "vllm-packed-hnd"])
def engine(request):
    return request.param


@pytest.fixture(scope="module")
def folder(engine, tmp_path_factory):
    return tmp_path_factory.mktemp(engine)


@pytest.fixture(scope="module")
def said(engine, folder, flashinfer):
    from engine_sims.running import run

    return run(engine, folder)


def test_importing_and_enabling_nothing_touches_nothing(said):
    assert said["touched by importing"] == []


def test_all_that_the_engine_computes_stays_the_same(said):
    """In slices of its own buffers: it does not look at what a run returns."""
    assert said["wrong"] == []
    assert said["wrong, imported late"] == []
    assert said["wrong, afterwards"] == []


def test_each_run_is_answered_by_a_solution(said):
    assert said["solutions"] == {DECODE: 4, PREFILL: 1}
    assert not [name for name in said["kernels"] if not name.endswith("plan")]
    assert said["refused"] == {}


def test_every_plan_is_made_by_the_original(said):
    assert said["kernels"]["prefill.plan"] == said["original kernels"]["prefill.plan"]


def test_every_attribute_is_the_original_afterwards(said):
    assert said["left behind"] == []
    assert said["solutions, afterwards"] == {}
    assert said["kernels, afterwards"] == said["original kernels"]


def test_nothing_went_wrong_on_our_side(said):
    assert "Traceback" not in said["log"]


def test_workloads_have_the_pages_in_logical_order(said, folder):
    from engine_sims.running import workloads

    found = workloads(folder)
    assert set(found) == {DECODE, PREFILL}
    for workload in (*found[DECODE], *found[PREFILL]):
        assert workload["axes"]["num_pages"] == 12
        assert workload["inputs"]["k_cache"] == {"type": "random"}
    assert {each["axes"]["batch_size"] for each in found[DECODE]} == {2}
    assert {each["axes"]["total_q"] for each in found[PREFILL]} == {5}
