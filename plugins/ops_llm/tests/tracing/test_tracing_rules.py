"""Programs written for earlier releases: the names that they import, and how they call them."""

from __future__ import annotations

from typing import Any

import pytest

from fib_tests.recorded import DECODE, GEMM, UNTOLD, decode_inputs, gemm_inputs, written
from flashinfer_bench import tracer
from flashinfer_bench.apply import apply
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.tracer import TraceEntry, TracingRule, presets
from flashinfer_bench.tracing.recorder import Layout


def test_rules_by_keyword_into_the_dataset(root: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("FIB_DATASET_PATH", str(root))
    made = tracer.enable_tracing(rules={GEMM.name: presets.gemm_rule})
    assert tracer.get_tracer() is made
    assert isinstance(made, tracer.Tracer)
    for m in (1, 2, 1):
        apply(GEMM.name, gemm_inputs(m), fallback=lambda *x: None)
        made.collect(UNTOLD.name, {})
    assert made.flush()["written"] == 2
    tracer.disable_tracing()
    assert tracer.get_tracer() is None
    assert len(written(root)) == 2


@pytest.mark.parametrize(
    ("out", "blob"),
    [("traces/workloads", "blob/workloads"), ("workloads", None), ("", None), (None, "blob")],
)
def test_folders(root: Any, tmp_path: Any, monkeypatch: Any, out: Any, blob: Any) -> None:
    monkeypatch.setenv("FIB_DATASET_PATH", str(root))
    there = tmp_path / "there"
    folders = {
        "out_dir": None if out is None else there / out,
        "blob_dir": None if blob is None else there / blob,
    }
    with tracer.enable_tracing(rules={GEMM.name: presets.gemm_rule}, **folders) as made:
        made.collect(GEMM.name, gemm_inputs())
    assert len(written(there)) == 1
    assert not (root / "workloads").exists()


def test_old_and_new_settings_do_not_mix(root: Any) -> None:
    with pytest.raises(ConfigError, match="older interface"):
        tracer.enable_tracing(root, rules={})
    with pytest.raises(ConfigError, match="TracingRule objects, not dict"):
        tracer.enable_tracing(rules={"a": {}})
    with pytest.raises(ConfigError, match="dedup_policy"):
        tracer.Tracer({"a": TracingRule([], None)})  # type: ignore[arg-type]


class TestPolicies:
    BATCHES = ([2, 2], [1, 3], [5], [2, 2, 2], [5, 5], [9])

    @classmethod
    def entries(cls) -> list[TraceEntry]:
        layout = Layout(DECODE)
        calls = [decode_inputs(each) for each in cls.BATCHES]
        return [
            TraceEntry("d", layout.read(args)[0], {*DECODE.inputs}, {"kv_indptr": args[3]}, order)
            for order, args in enumerate(calls)
        ]

    @pytest.mark.parametrize(
        ("policy", "orders"),
        [
            (presets.KEEP_ALL, [0, 1, 2, 3, 4, 5]),
            (presets.policy_keep_first_k(2), [0, 1]),
            (presets.DEDUP_BY_AXES, [0, 2, 3, 4, 5]),
            (presets.policy_dedup_by_axes(2), [0, 1, 2, 3, 4, 5]),
            (presets.DEDUP_BY_AVG_SEQ_LEN, [0, 2, 5]),
            (presets.policy_dedup_by_avg_seq_len(2), [0, 1, 2, 4, 5]),
        ],
    )
    def test_presets(self, policy: Any, orders: list[int]) -> None:
        assert [each.order for each in policy(self.entries())] == orders

    @pytest.mark.parametrize("wrapped", [True, False])
    def test_in_a_rule(self, root: Any, monkeypatch: Any, wrapped: bool) -> None:
        """A preset, and a function that does the same."""
        monkeypatch.setenv("FIB_DATASET_PATH", str(root))
        preset = presets.DEDUP_BY_AVG_SEQ_LEN
        rule = TracingRule(presets.DUMP_INT32, (lambda e: preset(e)) if wrapped else preset)
        with tracer.enable_tracing({DECODE.name: rule}, out_dir=root.parent / "there") as made:
            for batch in self.BATCHES:
                made.collect(DECODE.name, decode_inputs(batch))
        found = written(root.parent / "there")
        assert [each["workload"]["axes"]["num_kv_indices"] for each in found] == [4, 5, 9]


def test_rules_are_folded_in_bounded_buffers(root: Any) -> None:
    most = 0

    def first_of_each(entries: list[Any]) -> list[Any]:
        nonlocal most
        most = max(most, len(entries))
        found: dict[int, Any] = {}
        for each in entries:
            found.setdefault(each.axes["M"] % 7, each)
        return list(found.values())

    rule = TracingRule([], first_of_each)
    tracing = tracer.Tracer({GEMM.name: rule}, out_dir=root)
    for m in range(1, 900):
        tracing.collect(GEMM.name, gemm_inputs(m))
    assert most <= 256 + 7
    tracing.flush()
    assert sorted(each["workload"]["axes"]["M"] for each in written(root)) == list(range(1, 8))
