"""A dataset whose definitions change while calls are recorded."""

from __future__ import annotations

import pytest

from fib_tests.recorded import DECODE, GEMM, decode_inputs, definition, gemm_inputs, tensor, written
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.loader import load_definitions
from flashinfer_bench.tracing import TracingConfig, TracingRuntime, store

RENAMED = definition(
    GEMM.name, {"A": tensor("M", "K"), "W": tensor("N", "K")}, {"C": tensor("M", "N")}, N=8, K=4
)
OTHER_AXES = definition(
    GEMM.name, {"A": tensor("M", "K"), "B": tensor("N", "K")}, {"C": tensor("M", "N")}, K=4
)
TIED = definition(
    GEMM.name, {"A": tensor("M", "K"), "B": tensor("N", "K")}, {"C": tensor("M", "N")}, ("M >= 1",),
    N=8, K=4,
)  # fmt: skip


def step(tracing, number):
    tracing.collect(GEMM.name, gemm_inputs(number))
    tracing.collect(DECODE.name, decode_inputs([number]))
    return tracing.flush()


def file_of(root):
    return root / "definitions" / "op" / f"{GEMM.name}.json"


@pytest.mark.parametrize("changed", [RENAMED, OTHER_AXES, TIED])
@pytest.mark.parametrize("before", [True, False])
def test_what_does_not_fit_any_more_is_not_written(root, changed, before):
    tracing = TracingRuntime(root, TracingConfig("dump_all"))
    assert not before or step(tracing, 2)["written"] == 2
    file_of(root).write_text(changed.model_dump_json())
    assert {"written": 1, "lost": 1}.items() <= step(tracing, 3).items()
    file_of(root).write_text(GEMM.model_dump_json())
    assert step(tracing, 4)["written"] == 2
    assert len(written(root)) == 3 + 2 * before
    assert TraceSet.from_path(root).workloads


@pytest.mark.parametrize("text", [None, "{", GEMM.model_copy(update={"description": "x"})])
def test_what_says_nothing_else_is_no_change(root, text):
    """It is gone, cannot be read, or only its words are others."""
    tracing = TracingRuntime(root, TracingConfig("dump_all"))
    if text is None:
        file_of(root).unlink()
    else:
        file_of(root).write_text(text if isinstance(text, str) else text.model_dump_json())
    assert step(tracing, 2)["written"] == 2


def test_they_are_read_anew_only_if_a_file_has_changed(root, monkeypatch):
    """Reading hundreds of definitions at each flush would hold up the engine."""
    read = []

    def load(*what):
        read.append(what)
        return load_definitions(*what)

    monkeypatch.setattr(store, "load_definitions", load)
    tracing = TracingRuntime(root, TracingConfig("dump_all"))
    for number in (2, 3, 4):
        step(tracing, number)
    assert len(read) == 1
    file_of(root).write_text(GEMM.model_copy(update={"description": "x"}).model_dump_json())
    step(tracing, 5)
    assert len(read) == 2


def test_definitions_that_are_in_no_file(tmp_path):
    dataset = TraceSet(root=tmp_path, definitions={GEMM.name: GEMM, DECODE.name: DECODE})
    assert step(TracingRuntime(dataset, TracingConfig()), 2)["written"] == 2
