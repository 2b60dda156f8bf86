"""The policy of attention, against a plain description of what it keeps."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fib_ops_llm.sequence_lengths import KeepFirstByAvgSeqLen, totals_of
from fib_tests.recorded import DECODE, UNTOLD, decode_inputs, definition, tensor
from flashinfer_bench.tracing.recorder import Layout


def fast(policy: KeepFirstByAvgSeqLen, layout: Layout) -> Any:
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
