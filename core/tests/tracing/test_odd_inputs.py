"""Tensors and numbers that are not plain ones: no program notices, and no other call is lost."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fib_tests.damage import assert_clean
from fib_tests.recorded import GEMM, definition, gemm_inputs, tensor
from flashinfer_bench.data import TraceSet
from flashinfer_bench.tracing import TracingConfig, TracingRuntime

SCALARS = definition(
    "scalars",
    {
        "x": tensor("M"),
        "f": {"shape": None, "dtype": "float32"},
        "i": {"shape": None, "dtype": "int32"},
        "b": {"shape": None, "dtype": "bool"},
    },
    {"y": tensor("M")},
)


class Packed(torch.Tensor):
    """Says one thing and holds another, as distributed and quantised tensors do."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError("it may be asked for nothing")


class Rude(torch.Tensor):
    """Lets nobody look at it."""

    @classmethod
    def __torch_function__(cls, *args, **kwargs):
        raise RuntimeError("rude")


class Labelled(torch.Tensor):
    """As harmless as a parameter."""


def fake(like):
    with FakeTensorMode():
        return torch.empty(like.shape, dtype=like.dtype)


def given_back(like):
    gone = like.clone()
    gone.untyped_storage().resize_(0)
    return gone


def inference(like):
    with torch.inference_mode():
        return like.clone()


def strided(like):
    return torch.zeros(like.shape[0] * 2, like.shape[1] * 2, dtype=like.dtype)[::2, ::2]


UNSOUND = {
    "no data": lambda like: like.to("meta"),
    "not dense": lambda like: like.to_sparse(),
    "tensor subclass": fake,
    "tensor subclass ": Packed,
    "not a tensor": lambda like: like.numpy(),
    "dtype": lambda like: torch.quantize_per_tensor(like.float(), 0.1, 0, torch.qint8),
    "rank": lambda like: torch.nested.nested_tensor([like]),
}
SOUND = {
    "parameter": torch.nn.Parameter,
    "subclass": lambda like: like.as_subclass(Labelled),
    "gradient": lambda like: like.clone().requires_grad_() * 1,
    "inference": inference,
    "strided": strided,
    "transposed": lambda like: like.t().contiguous().t(),
    "expanded": lambda like: like[:1].expand(like.shape),
    "empty": lambda like: like[:0],
}


def loaded(root, name):
    assert_clean(root)
    return [trace.workload for trace in TraceSet.from_path(root).workloads.get(name, [])]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reason", UNSOUND)
def test_what_has_no_data_does_not_stand_for_what_has(root, reason):
    """A real call of the same size comes after a warm-up that had nothing in it."""
    tracing = TracingRuntime(root, TracingConfig("dump_all", filter_policy="keep_first"))
    a, b = gemm_inputs()
    tracing.collect(GEMM.name, (UNSOUND[reason](a), b))
    tracing.collect(GEMM.name, (a, b))
    assert tracing.flush()["written"] == 1
    stats = tracing.stats()
    assert (stats["errors"], stats["rejected"]) == (0, {reason.strip(): 1})
    assert len(loaded(root, GEMM.name)) == 1


@pytest.mark.parametrize("kind", SOUND)
def test_what_is_a_tensor_is_written_as_one(root, kind):
    tracing = TracingRuntime(root, TracingConfig("dump_all"))
    a, b = gemm_inputs()
    given = SOUND[kind](a)
    tracing.collect(GEMM.name, (given, b))
    assert tracing.flush()["written"] == 1
    [workload] = loaded(root, GEMM.name)
    assert workload.axes == {"M": given.shape[0]}


@pytest.mark.parametrize("make", [lambda like: like.as_subclass(Rude), given_back])
def test_what_cannot_be_read_is_counted(root, make, caplog):
    tracing = TracingRuntime(root, TracingConfig("dump_all"))
    a, b = gemm_inputs()
    tracing.collect(GEMM.name, (make(a), b))
    tracing.collect(GEMM.name, (a, b))
    assert tracing.flush()["written"] == 1
    assert tracing.stats()["errors"] == 1
    assert caplog.text.count("reported once") == 1


def test_memory_given_back_before_the_snapshot(root):
    """References of a CUDA graph are read later; what is gone by then would end the process."""
    tracing = TracingRuntime(root, TracingConfig("dump_all"))
    a, b = gemm_inputs()
    with tracing.cuda_graph_scope():
        tracing.collect(GEMM.name, (a, b))
    a.untyped_storage().resize_(0)
    assert tracing.flush()["written"] == 0
    assert tracing.stats()["errors"] == 1


NUMBERS = [
    ((math.nan, 1, True), True),
    ((-math.inf, 1, True), True),
    ((np.float32(0.5), np.int64(3), np.bool_(True)), True),
    ((torch.tensor(0.5, requires_grad=True), torch.tensor(3), torch.tensor(True)), True),
    ((1.0, 2**70, True), True),
    ((1.0, -(2**64), True), True),
    ((1e300, 3.0, 1), True),
    ((10**400, 1, True), False),
    ((2**53 + 1, 1, True), False),
    ((1.0, math.nan, True), False),
    ((1.0, 3.5, True), False),
    ((1.0, 1, 2), False),
    ((torch.ones((), device="meta"), 1, True), False),
    ((1j, 1, True), False),
    ((None, 1, True), False),
    (("1.0", 1, True), False),
]


@pytest.mark.parametrize(("numbers", "fits"), NUMBERS)
def test_numbers(tmp_path, numbers, fits):
    folder = tmp_path / "definitions"
    folder.mkdir()
    (folder / "x.json").write_text(SCALARS.model_dump_json())
    tracing = TracingRuntime(tmp_path, TracingConfig())
    tracing.collect(SCALARS.name, (torch.ones(3, dtype=torch.float16), *numbers))
    assert tracing.flush()["written"] == int(fits)
    assert tracing.stats()["rejected"] == ({} if fits else {"scalar": 1})
    for workload in loaded(tmp_path, SCALARS.name):
        read = [workload.inputs[name].value for name in "fib"]
        given = [getattr(each, "item", lambda each=each: each)() for each in numbers]
        assert read == pytest.approx(given, nan_ok=True)
