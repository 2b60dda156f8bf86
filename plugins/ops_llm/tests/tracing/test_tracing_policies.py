"""Each policy against a plain description of what it keeps."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fib_ops_llm.tracing_policies import KeepFirstByAvgSeqLen, KeepRandomK, totals_of
from fib_tests.recorded import (
    DECODE,
    GEMM,
    UNTOLD,
    Sink,
    decode_inputs,
    definition,
    gemm_inputs,
    tensor,
)
from flashinfer_bench.tracing import OnlinePolicy, TracingConfig, TracingRuntime, WorkloadEntry
from flashinfer_bench.tracing.recorder import Layout


def entry(order: int, **axes: int) -> WorkloadEntry:
    return WorkloadEntry("d", axes, {}, order)


def kept(policy: Any, sizes: list[int]) -> list[int]:
    for order, size in enumerate(sizes):
        policy.submit(entry(order, M=size))
    return [each.order for each in policy.drain()]


def fast(policy: OnlinePolicy, layout: Layout) -> Any:
    path = policy.fast_path(layout)
    assert path is not None
    code = compile(path.condition, "condition", "eval")
    return lambda args: bool(
        eval(code, {**path.namespace, **{f"a{i}": args[i] for i in path.positions}})
    )


class TestAverageLength:
    @staticmethod
    def seen(lengths: list[int]) -> tuple[dict[str, int], dict[str, Any]]:
        args = decode_inputs(lengths)
        layout = Layout(DECODE)
        return layout.read(args)[0], dict(zip(layout.names, args, strict=True))

    @given(
        st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), max_size=12),
        st.integers(1, 2),
        st.booleans(),
    )
    def test_keeps_so_many_of_each_average(
        self, batches: list[list[int]], k: int, by_batch: bool
    ) -> None:
        policy = KeepFirstByAvgSeqLen(k, by_batch)
        path = fast(policy, Layout(DECODE))
        counts: Counter[Any] = Counter()
        for lengths in batches:
            key = (len(lengths) if by_batch else 0, round(sum(lengths) / len(lengths)))
            full = counts[key] >= k
            assert path(decode_inputs(lengths)) == full
            assert policy.admit(*self.seen(lengths)) == (not full)
            counts[key] += 1

    def test_no_data_is_read_where_an_axis_says_it(self) -> None:
        class Unreadable:
            shape = (3,)

        policy = KeepFirstByAvgSeqLen()
        policy.fast_path(Layout(DECODE))
        assert policy.admit({"num_kv_indices": 8}, {"kv_indptr": Unreadable()})
        assert not policy.admit({"num_kv_indices": 8}, {"kv_indptr": Unreadable()})
        assert policy.admit({"num_kv_indices": 20}, {"kv_indptr": Unreadable()})

    def test_the_last_element_is_read_where_none_does(self) -> None:
        policy = KeepFirstByAvgSeqLen()
        path = fast(policy, Layout(UNTOLD))
        for total, fresh in ((8, True), (8, False), (9, True), (8, False)):
            args = torch.empty(total, 4), torch.tensor([0, total], dtype=torch.int32)
            assert path(args) != fresh
            assert policy.admit({}, {"kv_indptr": args[1]}) == fresh


@pytest.mark.parametrize(
    ("constraint", "totals"),
    [
        ("n == p[-1].item()", {"p": "n"}),
        ("p[-1].item() == n", {"p": "n"}),
        ("n == p[-1]", {"p": "n"}),
        ("n == p[0].item()", {}),
        ("n <= p[-1].item()", {}),
        ("m == p[-1].item()", {}),
        ("n == max(p)[-1].item()", {}),
        ("n == p[-1].item() + 1", {}),
    ],
)
def test_axes_that_are_totals(constraint: str, totals: dict[str, str]) -> None:
    inputs = {"x": tensor("n"), "p": tensor("len_p", dtype="int32")}
    assert totals_of(Layout(definition("d", inputs, {}, (constraint,)))) == totals


class TestRandom:
    def test_each_call_is_as_likely(self) -> None:
        counts: Counter[int] = Counter()
        runs, calls, k = 3000, 12, 3
        for seed in range(runs):
            counts.update(kept(KeepRandomK(k, seed), [0] * calls))
        expected = runs * k / calls
        # Five standard deviations of a binomial count.
        bound = 5 * (expected * (1 - k / calls)) ** 0.5
        assert all(abs(counts[i] - expected) < bound for i in range(calls)), counts

    @given(st.integers(1, 6), st.integers(0, 60), st.integers(0, 2**32))
    def test_as_many_as_asked_in_order(self, k: int, calls: int, seed: int) -> None:
        first = kept(KeepRandomK(k, seed), [0] * calls)
        assert len(first) == min(k, calls)
        assert first == sorted(set(first))
        assert first == kept(KeepRandomK(k, seed), [0] * calls), "a seed decides it"

    def test_the_fast_path_counts_as_the_slow_one(self) -> None:
        slow, quick = KeepRandomK(3, 7), KeepRandomK(3, 7)
        skipped = fast(quick, Layout(GEMM))
        for order in range(2000):
            slow.submit(entry(order))
            if not skipped(()) and quick.admit({}, {}):
                quick.keep(entry(order))
        assert [e.order for e in slow.drain()] == [e.order for e in quick.drain()]


def test_the_presets_keep_one_of_each_average(root: Any) -> None:
    sink = Sink()
    tracing = TracingRuntime(root, store=sink)
    for lengths in ([2, 2], [1, 3], [2, 2, 2], [5, 5], [5, 4], [2]):
        tracing.collect(DECODE.name, decode_inputs(lengths))
    tracing.flush()
    assert [each["num_kv_indices"] for each in sink.axes()] == [4, 6, 10, 9, 2]
    assert sorted(sink.entries[0].tensors()) == ["kv_indices", "kv_indptr"]


def held() -> list[Any]:
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is WorkloadEntry]


def test_a_sample_keeps_no_more_than_it_says(root: Any) -> None:
    before = held()
    config = TracingConfig("dump_all", filter_policy="keep_random_k", filter_policy_kwargs={"k": 5})
    sink = Sink()
    tracing = TracingRuntime(root, config, store=sink)
    for m in range(1, 2000):
        tracing.collect(GEMM.name, gemm_inputs(m))
    assert tracing.stats()["buffered"]["entries"] == 5
    assert len(held()) - len(before) == 5
    tracing.flush()
    assert len(sink.entries) == 5
