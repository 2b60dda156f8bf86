"""Memory stays bounded, whatever is called."""

from __future__ import annotations

import gc

import pytest
import torch

from fib_tests.recorded import GEMM, Sink, gemm_inputs
from fib_tests.threads import eventually
from flashinfer_bench.tracing import TracingConfig, TracingLimits, TracingRuntime
from flashinfer_bench.tracing.store import Added


class Counting(Sink):
    """Keeps how much it was given, and how much of it at once."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def add(self, entries):
        self.batches.append(len(entries))
        return Added(len(entries))


def held():
    gc.collect()
    return sum(type(each).__name__ == "WorkloadEntry" for each in gc.get_objects())


@pytest.mark.parametrize("policy", ["keep_all", "keep_first_by_axes", "keep_first_k_by_axes"])
def test_entries_are_handed_over_early(root, policy):
    sink = Counting()
    limits = TracingLimits(max_entries=50)
    config = TracingConfig(filter_policy=policy)
    tracing = TracingRuntime(root, config, limits=limits, store=sink)
    for m in range(1, 501):
        tracing.collect(GEMM.name, gemm_inputs(m))
        assert tracing.stats()["buffered"]["entries"] < 50
    assert sum(sink.batches) == 500
    assert max(sink.batches) <= 50
    # The threads that have written for this and other tests end when they find nothing to do.
    assert eventually(lambda: not held())


def test_bytes_are_bounded(root):
    sink = Counting()
    nbytes = sum(each.nbytes for each in gemm_inputs(10))
    limits = TracingLimits(max_bytes=4 * nbytes)
    tracing = TracingRuntime(root, TracingConfig("dump_all"), limits=limits, store=sink)
    for _ in range(40):
        tracing.collect(GEMM.name, gemm_inputs(10))
    assert sum(sink.batches) == 40
    assert max(sink.batches) <= 4
    tracing.collect(GEMM.name, gemm_inputs(10_000))
    stats = tracing.stats()
    assert (stats["too_large"], stats["recorded"]) == (1, 40)


def test_many_calls_are_flat(root):
    """Few sizes, many sizes, a sample, and calls of something else."""
    sink = Counting()
    config = {GEMM.name: TracingConfig(filter_policy="keep_first_by_axes")}
    limits = TracingLimits(max_keys=500, max_entries=100)
    tracing = TracingRuntime(root, config, limits=limits, store=sink)
    a, b = gemm_inputs()
    sizes = [(torch.empty(m, 4, dtype=torch.float16), b) for m in range(1, 2001)]
    wrong = (a.float(), b)

    def calls(rounds):
        for _ in range(rounds):
            for each in sizes[:1000]:
                tracing.collect(GEMM.name, sizes[0])
                tracing.collect(GEMM.name, each) if rounds < 3 else None
            tracing.collect(GEMM.name, wrong)
            tracing.collect(f"unknown {id(object())}", wrong)

    for each in sizes:
        tracing.collect(GEMM.name, each)
    calls(2)
    gc.collect()
    before = len(gc.get_objects())
    calls(60)
    gc.collect()
    assert len(gc.get_objects()) - before < 1000
    assert tracing.stats()["calls"] > 60_000
    assert tracing.stats()["errors"] == 0
