"""Each policy against a plain description of what it keeps."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fib_tests.recorded import (
    DECODE,
    GEMM,
    decode_inputs,
    gemm_inputs,
)
from flashinfer_bench.tracing import FilterPolicy, TracingConfig, TracingRuntime, WorkloadEntry
from flashinfer_bench.tracing.policies import (
    KeepAllPolicy,
    KeepFirstKByAxesPolicy,
    KeepFirstKPolicy,
    KeepNonePolicy,
    OnlinePolicy,
)
from flashinfer_bench.tracing.recorder import Layout


def entry(order: int, **axes: int) -> WorkloadEntry:
    return WorkloadEntry("d", axes, {}, order)


def kept(policy: Any, sizes: list[int]) -> list[int]:
    for order, size in enumerate(sizes):
        policy.submit(entry(order, M=size))
    return [each.order for each in policy.drain()]


SIZES = st.lists(st.integers(0, 5), max_size=40)


@given(SIZES, st.integers(1, 4))
def test_policies_that_count(sizes: list[int], k: int) -> None:
    everything = list(range(len(sizes)))
    assert kept(KeepAllPolicy(), sizes) == everything
    assert kept(KeepNonePolicy(), sizes) == []
    assert kept(KeepFirstKPolicy(k), sizes) == everything[:k]
    by_size = [i for i in everything if sizes[:i].count(sizes[i]) < k]
    assert kept(KeepFirstKByAxesPolicy(k), sizes) == by_size


@given(SIZES, st.integers(1, 3))
def test_the_fast_path_recognises_what_would_not_be_admitted(sizes: list[int], k: int) -> None:
    for policy in (KeepFirstKPolicy(k), KeepFirstKByAxesPolicy(k)):
        recognised = fast(policy, Layout(GEMM))
        for size in sizes:
            args = (torch.empty(size, 4), torch.empty(8, 4))
            assert recognised(args) != policy.admit({"M": size}, {})
    assert KeepAllPolicy().fast_path(Layout(GEMM)) is None


def fast(policy: OnlinePolicy, layout: Layout) -> Any:
    path = policy.fast_path(layout)
    if path is None:
        return lambda args: False
    code = compile(path.condition, "condition", "eval")
    return lambda args: bool(
        eval(code, {**path.namespace, **{f"a{i}": args[i] for i in path.positions}})
    )


@pytest.mark.parametrize("k", [1, 2, 3])
def test_of_too_many_keys_the_older_half_is_forgotten(k: int) -> None:
    policy = KeepFirstKByAxesPolicy(k)
    policy.bound(100)
    for size in range(1000):
        for _ in range(k + 1):
            policy.submit(entry(size, M=size))
        assert len(policy._full) + len(policy._counts) <= 100
    assert not policy.admit({"M": 999}, {}), "the newest are remembered"
    assert policy.admit({"M": 0}, {}), "the oldest are not"


@pytest.mark.parametrize("change", [{"def_name": "nowhere"}, {"order": "first"}, None])
def test_a_users_policy_costs_only_its_own(root, sink, change):
    """What it keeps is not what it was given: the calls of other definitions are written."""

    class Forger(FilterPolicy):
        def __init__(self):
            self.kept = []

        def submit(self, entry):
            self.kept.append(entry)

        def drain(self):
            kept, self.kept = self.kept, []
            return [change and dataclasses.replace(entry, **change) for entry in kept]

    config = {
        GEMM.name: TracingConfig(filter_policy=Forger),
        DECODE.name: TracingConfig(),
    }
    tracing = TracingRuntime(root, config, store=sink)
    tracing.collect(GEMM.name, gemm_inputs())
    tracing.collect(DECODE.name, decode_inputs([2, 3]))
    assert tracing.flush()["written"] == 1
    assert [entry.def_name for entry in sink.entries] == [DECODE.name]
    assert tracing.stats()["errors"] == 1
