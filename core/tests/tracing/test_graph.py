"""CUDA graphs: what is captured is read later."""

from __future__ import annotations

import threading

import pytest
import torch

from fib_tests.recorded import DECODE, GEMM, decode_inputs, gemm_inputs
from flashinfer_bench.tracing import TracingConfig, TracingRuntime

INT32 = TracingConfig("dump_int32", filter_policy="keep_first_by_axes")


@pytest.fixture
def capturing(monkeypatch):
    """Says that a stream is being captured, where there is no GPU to do so."""
    state = {"now": False}
    for name in ("is_initialized", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, lambda: state["now"])
    return state


def indptr(sink, index=0):
    entry = sink.entries[index]
    assert not entry.is_deferred
    return entry.inputs_to_dump["kv_indptr"].tolist()


def test_the_last_snapshot_counts(root, sink):
    tracing = TracingRuntime(root, INT32, store=sink)
    args = decode_inputs([1, 1])
    with tracing.cuda_graph_scope():
        tracing.collect(DECODE.name, args)
    assert tracing.snapshot_graph_tensors() == 1
    args[3].copy_(torch.tensor([0, 0, 2]))
    assert tracing.snapshot_graph_tensors() == 1
    args[3].zero_()
    assert tracing.flush()["written"] == 1
    assert indptr(sink) == [0, 0, 2]
    assert sink.entries[0].cuda_graph_snapshot["kv_indptr"].tolist() == [0, 0, 2]
    assert sink.entries[0].values()["sm_scale"] == 0.5
    assert tracing.snapshot_graph_tensors() == 0, "nothing refers to the tensors any more"


def test_without_a_snapshot_they_are_read_when_written(root, sink):
    tracing = TracingRuntime(root, INT32, store=sink)
    args = decode_inputs([1, 1])
    with tracing.cuda_graph_scope(), tracing.cuda_graph_scope():
        tracing.collect(DECODE.name, args)
    args[3].copy_(torch.tensor([0, 2, 2]))
    tracing.flush()
    assert indptr(sink) == [0, 2, 2]


def test_a_captured_stream_is_never_waited_for(root, sink, capturing):
    tracing = TracingRuntime(root, INT32, store=sink)
    args = decode_inputs([1, 1])
    capturing["now"] = True
    tracing.collect(DECODE.name, args)
    assert tracing.snapshot_graph_tensors() == 0
    assert tracing.flush()["entries"] == 0, "kept for the next time"
    capturing["now"] = False
    args[3].copy_(torch.tensor([0, 0, 2]))
    assert tracing.flush()["written"] == 1
    assert indptr(sink) == [0, 0, 2]


def test_a_scope_is_of_one_thread(root, sink):
    tracing = TracingRuntime(root, TracingConfig("dump_all"), store=sink)
    with tracing.cuda_graph_scope():
        thread = threading.Thread(target=tracing.collect, args=(GEMM.name, gemm_inputs()))
        thread.start()
        thread.join()
    assert tracing.snapshot_graph_tensors() == 0
    tracing.flush()
    assert len(sink.entries) == 1


def test_a_scalar_on_a_device_is_read_late(root, sink, capturing):
    class OnDevice:  # what the layout asks of a CUDA tensor
        is_cuda = True

        def __init__(self, tensor):
            self.tensor = tensor

        def __getattr__(self, name):
            return getattr(self.tensor, name)

    scale = torch.tensor(0.5)
    tracing = TracingRuntime(root, INT32, store=sink)
    capturing["now"] = True
    tracing.collect(DECODE.name, decode_inputs([1, 1], scale=OnDevice(scale)))
    capturing["now"] = False
    scale.fill_(2.0)
    tracing.flush()
    assert sink.entries[0].values()["sm_scale"] == 2.0
